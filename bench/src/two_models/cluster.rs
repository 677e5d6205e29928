//! The cluster: two models, two backends with an emulated GPU each.

use std::fmt::Write as _;

use crate::processes::{ClusterFile, Folder, ONE_HOST, ProcessError};

pub(crate) const MODELS: [&str; 2] = ["first", "second"];
/// Long enough that timers which run late on a busy machine do not decide.
pub(crate) const SLO_MS: f64 = 100.0;
const ALPHA_MS: f64 = 2.0;
const BETA_MS: f64 = 8.0;
const BACKENDS: [&str; 2] = ["left", "right"];

/// The staggered optimum of one model on all GPUs: the largest b with (1 + 1/N)·ℓ(b) ≤ SLO. Both models
/// are alike, so it is that of both together.
pub(crate) fn at_best_rps() -> f64 {
    let gpus = BACKENDS.len() as f64;
    let batch = ((SLO_MS / (1.0 + 1.0 / gpus) - BETA_MS) / ALPHA_MS).floor();
    gpus * batch / (ALPHA_MS * batch + BETA_MS) * 1e3
}

/// Writes the cluster file; `quota_rps` is what each model may be offered.
pub(super) fn write(folder: &Folder, quota_rps: Option<f64>) -> Result<ClusterFile, ProcessError> {
    folder.write_cluster(&text(quota_rps), BACKENDS.map(str::to_owned).to_vec())
}

fn text(quota_rps: Option<f64>) -> String {
    let mut text = HEADER.to_owned() + ONE_HOST + "\n";
    let quota = quota_rps.map_or_else(String::new, |rps| format!("max_rps = {rps}\n"));
    for name in MODELS {
        write!(
            text,
            "[[model]]\nname = \"{name}\"\nalpha_ms = {ALPHA_MS}\nbeta_ms = {BETA_MS}\n\
             slo_ms = {SLO_MS}\ninput_bytes = 1024\nbatch_max = 48\n{quota}\n"
        )
        .expect("writing to a String cannot fail");
    }
    for name in BACKENDS {
        write!(text, "[[backend]]\nname = \"{name}\"\n\n").expect("as above");
    }
    text
}

const HEADER: &str = "\
# Written by `baton bench overload`.
[scheduler]
idle = \"park\"

";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_a_good_cluster_file_without_warnings() {
        let file = std::path::Path::new("cluster.toml");
        let checked = baton_topo::check_text(file, &text(Some(450.0)));
        assert_eq!(checked.warnings, []);
        let file = checked.cluster.unwrap();
        assert_eq!(file.models.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), MODELS);
        assert!(file.models.iter().all(|m| m.quota.model.is_some()));
    }

    #[test]
    fn the_optimum_is_that_of_the_staggered_schedule() {
        // 1.5 · ℓ(29) = 99 ms: two batches of 29 in 66 ms.
        assert!((at_best_rps() - 58.0 / 66e-3).abs() < 1e-6);
    }
}
