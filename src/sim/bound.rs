//! `baton sim bound`.

use std::process::ExitCode;

use baton_bench::machine::in_parallel;
use baton_sim::{Clairvoyant, SimError, analytic_bound_rps, clairvoyant};
use serde_json::json;

use crate::CommandResult;
use crate::args::SimBoundArgs;
use crate::live::Paced;
use crate::output::say;

pub(crate) fn run(args: &SimBoundArgs) -> CommandResult {
    let scenario = args.source.source().load()?;
    let analytic = analytic_bound_rps(&scenario);
    let seeds: Vec<u64> =
        (0..u64::from(args.seeds)).map(|i| scenario.seed.wrapping_add(i)).collect();
    let paced = Paced::new();
    let tell = |tried| paced.progress(tried);
    let found = in_parallel(&seeds, |&seed| clairvoyant(&scenario, seed, tell));
    drop(paced);
    let found = match found.into_iter().collect::<Result<Vec<_>, _>>() {
        Err(SimError::NotClairvoyant { why }) => Err(why),
        other => Ok(other?),
    };
    let text = || text(analytic, &found);
    say(&if args.json { json(analytic, &found).to_string() } else { text() })?;
    Ok(ExitCode::SUCCESS)
}

type Found = Result<Vec<Clairvoyant>, &'static str>;

fn json(analytic: f64, found: &Found) -> serde_json::Value {
    match found {
        Err(why) => json!({ "analytic_bound_rps": analytic, "clairvoyant": null, "why": why }),
        Ok(seeds) => {
            let (feasible, upper) = means(seeds);
            let clairvoyant = json!({
                "feasible_rps": feasible,
                "feasible_ratio": feasible / analytic,
                "upper_rps": upper,
                "upper_ratio": upper.map(|upper| upper / analytic),
                "seeds": seeds,
            });
            json!({ "analytic_bound_rps": analytic, "clairvoyant": clairvoyant })
        }
    }
}

fn text(analytic: f64, found: &Found) -> String {
    let head = format!("analytic (staggered) bound: {analytic:.0} tasks/s");
    let seeds = match found {
        Err(why) => return format!("{head}\nno clairvoyant bounds: {why}"),
        Ok(seeds) => seeds,
    };
    let (feasible, upper) = means(seeds);
    let ratio = |rps: f64| format!("{rps:.0} tasks/s, {:.3} of it", rps / analytic);
    let or_none = |upper: Option<f64>| upper.map_or_else(|| "none found".to_owned(), ratio);
    let seed = |found: &Clairvoyant| {
        let (feasible, upper) = (ratio(found.feasible_rps), or_none(found.upper_rps));
        format!("  seed {}: feasible {feasible}; upper {upper}\n", found.seed)
    };
    format!(
        "{head}\nclairvoyant plan, feasible: {}\nclairvoyant upper bound: {}\n{}",
        ratio(feasible),
        or_none(upper),
        seeds.iter().map(seed).collect::<String>(),
    )
}

/// Of the feasible rates and, if every seed has one, of the upper bounds.
fn means(seeds: &[Clairvoyant]) -> (f64, Option<f64>) {
    let count = seeds.len() as f64;
    let feasible = seeds.iter().map(|found| found.feasible_rps).sum::<f64>() / count;
    let upper: Option<Vec<f64>> = seeds.iter().map(|found| found.upper_rps).collect();
    (feasible, upper.map(|upper| upper.iter().sum::<f64>() / count))
}
