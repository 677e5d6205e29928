//! `baton reproduce`.

use std::process::ExitCode;

use baton_bench::reproduce::{self, Precision, Reproduced};

use crate::CommandResult;
use crate::args::ReproduceArgs;
use crate::output::say;

pub(crate) fn run(args: &ReproduceArgs) -> CommandResult {
    let precision = match (args.quick, args.brief) {
        (true, _) => Precision::Quick,
        (false, true) => Precision::Brief,
        (false, false) => Precision::Full,
    };
    let parts = reproduce::reproduce(&args.name, precision, &args.out)?;
    say(&if args.json { json(args, &parts) } else { sections(&parts) })?;
    Ok(ExitCode::SUCCESS)
}

/// One experiment's data, or all by name.
fn json(args: &ReproduceArgs, parts: &[Reproduced]) -> String {
    match parts {
        [part] if args.name != reproduce::ALL => part.data.to_string(),
        parts => {
            let by_name = parts.iter().map(|part| (part.name.to_owned(), part.data.clone()));
            serde_json::Value::Object(by_name.collect()).to_string()
        }
    }
}

fn sections(parts: &[Reproduced]) -> String {
    parts.iter().map(|part| part.section.as_str()).collect::<Vec<_>>().join("\n")
}
