//! `baton topo show`.

use std::process::ExitCode;

use baton_topo::machine::{Machine, Sysroot};

use crate::CommandResult;
use crate::args::TopoShowArgs;
use crate::output::say;

pub(crate) fn run(args: &TopoShowArgs) -> CommandResult {
    let machine = Machine::read(&Sysroot::open(&args.sysroot)?)?;
    let drawing = machine.drawing();
    say(&if args.json { serde_json::to_string(&drawing)? } else { drawing.to_string() })?;
    Ok(ExitCode::SUCCESS)
}
