//! What `baton sim run` says for people.

use std::fmt::Write as _;

use baton_bench::load::busiest;
use baton_sim::{ModelReport, Report};

use super::milliseconds;

pub(super) fn table(report: &Report) -> String {
    let mut text = summary(report);
    let _infallible = writeln!(
        text,
        "\n{:<24} {:>10} {:>10} {:>8} {:>8} {:>6} {:>9} {:>9} {:>9}",
        "model",
        "submitted",
        "completed",
        "late",
        "dropped",
        "batch",
        "mean ms",
        "p50 ms",
        "p99 ms",
    );
    let (shown, others) = busiest(&report.models, |model| model.submitted);
    for model in shown {
        text += &rows(model);
    }
    if others > 0 {
        let _infallible = writeln!(
            text,
            "{others} more models with fewer tasks have no row; --json has them all"
        );
    }
    text
}

fn summary(report: &Report) -> String {
    let mut text = format!(
        "{}: {:.0} tasks/s offered, {:.0} in time; {:.2} % bad, worst model {:.2} %; \
         batches of {:.1}, GPUs busy {:.1} %\nlatency in ms: mean {}, median {}, p99 {}\n",
        report.policy,
        report.offered_rps,
        report.goodput_rps,
        report.bad_rate * 100.0,
        report.worst_model_bad_rate * 100.0,
        report.mean_batch,
        report.gpu_utilization * 100.0,
        milliseconds(report.mean_ms),
        milliseconds(report.p50_ms),
        milliseconds(report.p99_ms),
    );
    if let Some(accuracy) = report.mean_accuracy {
        text += &format!("accuracy {accuracy:.2} % in the mean of the answers in time\n");
    }
    if let Report { cold_rps: Some(cold), loads_per_s: Some(loads), .. } = report {
        let in_time = report.cold_satisfied.map_or_else(|| "-".into(), percent);
        let busy = report.loader_utilization.map_or_else(|| "-".into(), percent);
        text += &format!(
            "{cold:.1} tasks/s came while no slot held their model, {in_time} of them in time; \
             {loads:.1} LOADs/s, loaders busy {busy}\n"
        );
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The model's, and one for each of its variants.
fn rows(model: &ModelReport) -> String {
    let mut text = format!(
        "{:<24} {:>10} {:>10} {:>8} {:>8} {:>6.1} {:>9} {:>9} {:>9}\n",
        model.name,
        model.submitted,
        model.completed,
        model.late,
        model.dropped,
        model.mean_batch,
        milliseconds(model.mean_ms),
        milliseconds(model.p50_ms),
        milliseconds(model.p99_ms),
    );
    for variant in &model.variants {
        let name = format!("  {}, {} %", variant.name, variant.accuracy);
        let batch = variant.mean_batch;
        let _infallible =
            writeln!(text, "{name:<24} {:>10} {:>10} {:>17} {batch:>6.1}", "", variant.tasks, "");
    }
    text
}

#[cfg(test)]
mod tests {
    use baton_sim::{Run, Scenario};

    use super::*;

    fn text(scenario: &str, rate_rps: f64) -> String {
        let scenario = Scenario::parse(scenario).unwrap();
        let policy = "baton".parse().unwrap();
        table(&baton_sim::run(&scenario, Run { policy, rate_rps, seed: 1 }).unwrap())
    }

    const MODEL: &str = "gpus = 1\nduration_s = 2\n[[model]]\nname = 'm'\nslo_ms = 40\n";

    #[test]
    fn a_supernet_shows_its_accuracy_and_what_each_variant_did() {
        let variant = |name: &str, accuracy: f64| {
            format!(
                "[[model.variant]]\nname = '{name}'\naccuracy = {accuracy}\nalpha_ms = 1\nbeta_ms = {accuracy}e-2\n"
            )
        };
        let shown = text(&[MODEL, &variant("small", 70.5), &variant("large", 80.0)].concat(), 5.0);
        assert!(shown.contains("\naccuracy 80.00 % in the mean"), "{shown}");
        let rows: Vec<&str> = shown.lines().rev().take(2).collect();
        assert!(rows[1].starts_with("  small, 70.5 %") && rows[1].trim_end().ends_with("0.0"));
        assert!(rows[0].starts_with("  large, 80 %") && rows[0].trim_end().ends_with("1.0"));
        assert!(!text(&[MODEL, "alpha_ms = 1\nbeta_ms = 1\n"].concat(), 5.0).contains("accuracy"));
    }

    #[test]
    fn caches_show_their_cold_tasks_and_of_many_models_the_busiest_have_rows() {
        let cached =
            ["pages = 4\n", MODEL, "alpha_ms = 1\nbeta_ms = 1\nweights_mb = 20\ncopies = 40\n"];
        let shown = text(&cached.concat(), 100.0);
        assert!(shown.contains(" tasks/s came while no slot held their model, "), "{shown}");
        assert!(
            shown.ends_with("\n10 more models with fewer tasks have no row; --json has them all\n")
        );
        assert_eq!(shown.lines().filter(|line| line.starts_with("m-")).count(), 30);
    }
}
