//! `baton model import-triton`: another server's files as a cluster file.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::ExitCode;

use baton_topo::triton::{self, Defaults, Imported};

use crate::CommandResult;
use crate::args::ImportTritonArgs;
use crate::output::{complain, say};

/// Writes what a Triton repository becomes, and says what of it is not carried over.
pub(crate) fn triton(args: &ImportTritonArgs) -> CommandResult {
    let defaults = Defaults { slo_ms: args.slo_ms, cpu: args.cpu };
    let Imported { text, models, notes } = triton::import(&args.dir, defaults)?;
    for line in triton::lines(&notes) {
        complain(&line);
    }
    match &args.out {
        None => say(&text)?,
        Some(file) => {
            let new = OpenOptions::new().write(true).create_new(true).open(file);
            let written = new.and_then(|mut new| new.write_all(text.as_bytes()));
            written.map_err(|error| format!("{}: {error}", file.display()))?;
            say(&format!("{}: {}", file.display(), models.join(", ")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
