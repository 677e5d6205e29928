//! Files: an experiment's JSON, its section, and the page of all of them.

use serde_json::{Value, json};

use super::experiment::{Claim, Experiment, Findings};
use super::grid::{Ranking, rounded};
use super::markdown::{percent, ratio, table};
use super::policies::POLICIES;
use super::precision::Precision;
use super::runner::Runner;

/// Folder of the figures and their data, beside the page.
pub(crate) const FIGURES: &str = "reproduction";
/// The page.
pub(crate) const PAGE: &str = "reproduction.md";

/// The content of `NAME.json`.
pub(crate) fn data(experiment: &Experiment, runner: &Runner, findings: &Findings) -> Value {
    let (warmup_s, duration_s) = runner.spans_s;
    json!({
        "experiment": experiment.name,
        "title": experiment.title,
        "effort": runner.precision.as_str(),
        "warmup_s": warmup_s,
        "duration_s": duration_s,
        "seeds": runner.seeds,
        "paper": findings.claims.iter().map(claim_json).collect::<Vec<_>>(),
        "standings": findings.rankings.iter().map(ranking_json).collect::<Vec<_>>(),
        "points": findings.points,
    })
}

fn claim_json(claim: &Claim) -> Value {
    json!({ "says": claim.paper, "place": claim.place, "here": claim.here })
}

fn ranking_json(ranking: &Ranking) -> Value {
    json!({
        "policy": ranking.policy,
        "worst_of_best": rounded(ranking.worst_of_best, 4),
        "mean_ratio": rounded(ranking.mean_ratio, 4),
        "best_in": rounded(ranking.best_in, 4),
    })
}

/// JSON with one line for each key, and for each element of a list: differences stay readable.
pub(crate) fn lines(data: &Value) -> String {
    let Value::Object(keys) = data else { return format!("{data}\n") };
    let entry = |(key, value): (&String, &Value)| match value {
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let items: Vec<String> = items.iter().map(|item| format!("    {item}")).collect();
            format!("  {}: [\n{}\n  ]", json!(key), items.join(",\n"))
        }
        value => format!("  {}: {value}", json!(key)),
    };
    let entries: Vec<String> = keys.iter().map(entry).collect();
    format!("{{\n{}\n}}\n", entries.join(",\n"))
}

/// An experiment's section of the page.
pub(crate) fn section(experiment: &Experiment, findings: &Findings) -> String {
    let Experiment { name, title, setup, remark, .. } = experiment;
    let claims: Vec<Vec<String>> = findings
        .claims
        .iter()
        .map(|claim| vec![claim.paper.to_owned(), claim.place.to_owned(), claim.here.clone()])
        .collect();
    let headings = ["the paper says", "where", "here"].map(str::to_owned);
    let claims = match claims.as_slice() {
        [] => String::new(),
        claims => format!("{}\n", table(&headings, claims).replace("---:|", "---|")),
    };
    format!(
        "## {title}\n\n{setup}\n\n![{title}]({FIGURES}/{name}.svg)\n\n\
         [Data]({FIGURES}/{name}.json) · `baton reproduce {name}`\n\n{claims}{}\n{remark}\n",
        findings.tables
    )
}

/// The whole page.
pub(crate) fn page(precision: Precision, parts: &[(&Experiment, Findings, Value)]) -> String {
    let mut text = format!("{}\n{}\n", introduction(precision), rankings(parts));
    for (experiment, findings, _) in parts {
        text.push_str(&section(experiment, findings));
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn introduction(precision: Precision) -> String {
    let marked = match precision {
        Precision::Full => "",
        Precision::Brief => {
            "Every point is one seed of eight seconds: differences of one or two per cent are noise. \
             The rates that are promised, from three seeds of half a minute, are in \
             `SPECIFICATION.md`; `baton reproduce all` measures everything that long, which takes many hours on two cores.\n\n"
        }
        Precision::Quick | Precision::Smoke => {
            "> **This is a quick run**: one seed, short spans, fewer points. Differences of a few per \
             cent are noise.\n\n"
        }
    };
    let how = match precision {
        Precision::Full => "",
        Precision::Brief => " --brief",
        Precision::Quick | Precision::Smoke => " --quick",
    };
    format!(
        "# Symphony's, Clockwork's and SuperServe's tables and figures, measured again\n\n{marked}\
         Written by `baton reproduce all{how}` into the folder that `--out` names (`docs` for the committed page). Everything here is virtual time: the production \
         scheduler's code and the other systems' rules in one simulator, under the same arrivals. \
         `docs/simulator.md` states each policy's source and every liberty taken.\n\n\
         * *Goodput* is the highest offered rate at which no model's bad rate (late + dropped) exceeds \
         1 %. Cells read \"tasks/s · part of the bound\"; the best policy of each column is bold.\n\
         * *The bound* is the staggered optimum for evenly spaced tasks, which no system reaches under \
         random arrivals.\n\
         * Numbers of the paper are those it prints, with the place; where it only plots, this page says \
         so and quotes nothing.\n\
         * The data files hold the scenario of every point, ready for `baton sim goodput --scenario`.\n"
    )
}

/// Every policy in every experiment that measures goodput: its worst case against the best policy.
fn rankings(parts: &[(&Experiment, Findings, Value)]) -> String {
    let ranked: Vec<_> = parts.iter().filter(|(_, f, _)| !f.rankings.is_empty()).collect();
    let mut headings = vec!["policy".to_owned()];
    headings.extend(ranked.iter().map(|(experiment, ..)| experiment.name.to_owned()));
    let cell = |findings: &Findings, policy: &str| {
        let ranking = findings.rankings.iter().find(|ranking| ranking.policy == policy);
        ranking.map_or_else(
            || "–".to_owned(),
            |s| format!("{} · {}", ratio(s.worst_of_best), percent(s.best_in)),
        )
    };
    let row = |policy: &'static str| {
        let cells = ranked.iter().map(|(_, findings, _)| cell(findings, policy));
        std::iter::once(format!("`{policy}`")).chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = POLICIES.iter().map(|policy| row(policy.name)).collect();
    format!(
        "## Who wins where\n\nGoodput over that of the best policy, in the case where this is \
         worst · part of the cases in which no policy is better by more than 1 %.\n\n{}",
        table(&headings, &rows)
    )
}
