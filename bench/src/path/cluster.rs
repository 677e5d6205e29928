//! The cluster: one model, one backend with emulated GPU slots, a scheduler with one ModelThread.

use super::{Pace, PathBench};
use crate::processes::{ClusterFile, Folder, ONE_HOST, ProcessError};

pub(super) const MODEL: &str = "m";
const BACKEND: &str = "emulated";
/// Tasks that a client may have outstanding, and a queue may hold: more than a stall of the machine piles up.
const SLOTS: u32 = 8_192;
/// What a client's slab takes at most for that, bytes.
const SLAB_BYTES: u32 = 256 << 20;

/// Writes the cluster file.
pub(super) fn write(
    folder: &Folder,
    bench: &PathBench,
    pace: Pace,
) -> Result<ClusterFile, ProcessError> {
    folder.write_cluster(&text(bench, pace), vec![BACKEND.to_owned()])
}

fn text(bench: &PathBench, pace: Pace) -> String {
    let PathBench { bytes, batch, slots: gpus, engine: (engine, [alpha, beta]), .. } = bench;
    let (idle, transport) = (bench.idle.as_str(), bench.transport.as_str());
    let outstanding = match pace {
        Pace::Closed { outstanding } => outstanding,
        Pace::Poisson { .. } => 1,
    };
    let slots = SLOTS.min(SLAB_BYTES / bytes).max(outstanding);
    format!(
        "# Written by `baton bench path`.\n[scheduler]\nidle = \"{idle}\"\nmodel_threads = 1\n\n\
         {ONE_HOST}transport = \"{transport}\"\n\n[frontend]\nslots_per_model = {slots}\n\n\
         [[model]]\nname = \"{MODEL}\"\nengine = \"{engine}\"\nalpha_ms = {alpha}\nbeta_ms = {beta}\nslo_ms = 50\n\
         input_bytes = {bytes}\nbatch_max = {batch}\nqueue_capacity = {slots}\n\n\
         [[backend]]\nname = \"{BACKEND}\"\ngpus = {gpus}\nidle = \"{idle}\"\n"
    )
}

#[cfg(test)]
mod tests {
    use baton_topo::{Idle, TransportChoice};

    use super::*;
    use crate::processes::ChildConfig;

    #[test]
    fn the_file_is_a_good_cluster_file_without_warnings_at_either_end_of_the_options() {
        let closed = |outstanding| Pace::Closed { outstanding };
        for (bytes, batch, slots, pace, idle) in [
            (64, 256, 4, closed(1_024), Idle::Park),
            (1, 1, 1, Pace::Poisson { rate: 1.0 }, Idle::Spin),
            (1_048_576, 256, 4, closed(1_024), Idle::Park),
            (64, 1_024, 256, closed(65_536), Idle::Spin),
        ] {
            let children =
                ChildConfig { exe: "baton".into(), common_args: Vec::new(), variables: Vec::new() };
            let paces = vec![pace];
            let engine = ("emulated", [0.001, 0.5]);
            let (seconds, seed, transport) = (1.0, 1, TransportChoice::Auto);
            let bench = PathBench {
                children,
                bytes,
                batch,
                paces,
                seconds,
                slots,
                engine,
                idle,
                transport,
                seed,
            };
            let file = std::path::Path::new("cluster.toml");
            let checked = baton_topo::check_text(file, &text(&bench, pace));
            assert_eq!(checked.warnings, []);
            let cluster = checked.cluster.unwrap();
            assert_eq!((cluster.models[0].name.as_str(), cluster.backends[0].gpus), (MODEL, slots));
            assert_eq!(cluster.models[0].input_bytes, bytes);
            assert_eq!((cluster.scheduler.idle, cluster.backends[0].idle), (idle, idle));
        }
    }
}
