//! Fig. 8: distribution of batch sizes.

use serde_json::json;

use super::ReproduceError;
use super::distribution::{self, Distribution, find};
use super::experiment::{Claim, Experiment, Findings};
use super::grid::rounded;
use super::markdown::{percent, rate, table};
use super::policies::OURS;
use super::runner::Runner;
use super::table4::Model;
use crate::plot::{Reference, stairs};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "fig8",
    title: "Fig. 8: batch sizes",
    setup: "Table 4's two models, each policy at its own goodput (§5.2.2): part of the tasks that \
            ran in batches up to a size. The dashed lines are the analytic batches: without \
            coordination, and staggered.",
    remark: REMARK,
    seeds: 3,
    run,
};

const REMARK: &str = "Deferred policies put nearly every task into the staggered optimum's \
    batch, as in the paper; their lines lie on one another. Clockwork's sizes spread over the \
    whole range, as the paper says, but most of its tasks are in the larger ones, and its \
    goodput is accordingly higher than printed. Nexus' batches stay within the uncoordinated \
    size, which its plan aims for.";

fn run(runner: &mut Runner) -> Result<Findings, ReproduceError> {
    let distributions = distribution::measure(runner)?;
    let references = |model: &Model| {
        let at = |(batch, _): (f64, f64)| Reference::At(batch, format!("{batch}"));
        vec![at(model.uncoordinated()), at(model.staggered())]
    };
    Ok(Findings {
        points: distribution::json(&distributions, |distribution| {
            vec![("tasks_by_batch", json!(distribution.seen.tasks_by_batch()))]
        }),
        figure: distribution::figure(
            "Fig. 8: batch sizes at each policy's own goodput, 8 GPUs",
            "tasks in the batch, at most",
            &distributions,
            |distribution| stairs(&distribution.batches()),
            references,
        ),
        claims: claims(&distributions),
        tables: tables(&distributions),
        rankings: Vec::new(),
    })
}

/// (what the paper says, model, whose tasks, batches above)
const SAYS: [(&str, usize, &[&str], f64); 4] = [
    ("ResNet50, Symphony: most requests in batches above 14", 0, &OURS, 14.0),
    ("ResNet50, Nexus: most requests in batches above 6", 0, &["nexus:1"], 6.0),
    ("InceptionResNetV2, Symphony: most in batches above 8", 1, &OURS, 8.0),
    ("InceptionResNetV2, Nexus: most in batches above 3", 1, &["nexus:1"], 3.0),
];

fn claims(distributions: &[Distribution]) -> Vec<Claim> {
    let part = |model: usize, policy: &str, b: f64| {
        let distribution = find(distributions, model, policy)?;
        let (above, at_least) =
            (percent(distribution.above(b)), percent(distribution.above(b - 1.0)));
        Some(format!("`{policy}` {above} above {b}, {at_least} at {b} or above"))
    };
    let claim = |(paper, model, policies, b): (&'static str, usize, &[&str], f64)| {
        let parts: Vec<String> = policies.iter().filter_map(|p| part(model, p, b)).collect();
        Claim { paper, place: "§5.2.2", here: parts.join("; ") }
    };
    SAYS.map(claim).into()
}

fn tables(distributions: &[Distribution]) -> String {
    let headings = [
        "model",
        "policy",
        "goodput, tasks/s",
        "mean batch",
        "GPU use",
        "half of the tasks in batches up to",
    ];
    let row = |distribution: &Distribution| {
        let batches = distribution.batches();
        let half = batches.iter().find(|(_, part)| *part >= 0.5).map_or(0.0, |(b, _)| *b);
        vec![
            distribution.model.title(),
            format!("`{}`", distribution.policy.name),
            rate(distribution.report.goodput_rps),
            format!("{:.1}", rounded(distribution.report.mean_batch, 1)),
            percent(distribution.report.gpu_utilization),
            format!("{half}"),
        ]
    };
    table(&headings.map(str::to_owned), &distributions.iter().map(row).collect::<Vec<_>>())
}
