//! `baton sim zoo`.

use std::process::ExitCode;

use baton_topo::zoo::{self, ZooModel};
use serde_json::{Value, json};

use crate::CommandResult;
use crate::args::SimZooArgs;
use crate::output::{aligned, say};

pub(crate) fn run(args: &SimZooArgs) -> CommandResult {
    let zoos = zoo::all();
    if args.json {
        let zoos: Vec<Value> =
            zoos.iter().map(|(name, models)| json!({ "name": name, "models": models })).collect();
        say(&json!({ "zoos": zoos }).to_string())?;
    } else {
        let tables: Vec<String> = zoos.iter().map(|(name, models)| table(name, models)).collect();
        say(&tables.join("\n\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(name: &str, models: &[ZooModel]) -> String {
    let title = format!("zoo = \"{name}\"");
    let head = [title.as_str(), "alpha_ms", "beta_ms", "slo_ms"].map(str::to_owned).to_vec();
    let row = |model: &ZooModel| {
        let numbers = [model.alpha_ms, model.beta_ms].map(|ms| format!("{ms:.3}"));
        [vec![model.name.clone()], numbers.to_vec(), vec![model.slo_ms.to_string()]].concat()
    };
    aligned(&[vec![head], models.iter().map(row).collect()].concat())
}
