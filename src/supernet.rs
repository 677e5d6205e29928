//! `baton supernet`.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use baton_supernet::{Checkpoint, Exported, Form, export};
use serde_json::json;

use crate::CommandResult;
use crate::args::{SupernetCommand, SupernetExportArgs};
use crate::output::say;

pub(crate) fn run(command: &SupernetCommand) -> CommandResult {
    match command {
        SupernetCommand::Export(args) => run_export(args),
    }
}

fn run_export(args: &SupernetExportArgs) -> CommandResult {
    let checkpoint = Checkpoint::read(&args.checkpoint)?;
    let form = if args.is_static { Form::Static } else { Form::Super };
    let files = export(&checkpoint, form, &args.variants)?;
    let name = &checkpoint.description.name;
    let written = match form {
        Form::Super => {
            let path = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.onnx")));
            vec![(path, &files[0])]
        }
        Form::Static => {
            let folder = args.out.clone().unwrap_or_else(|| PathBuf::from("."));
            if !folder.is_dir() {
                return Err(format!("there is no folder {}; make it", folder.display()).into());
            }
            let path =
                |file: &Exported| folder.join(format!("{name}.{}.onnx", file.variants[0].name));
            files.iter().map(|file| (path(file), file)).collect()
        }
    };
    for (path, file) in &written {
        write(path, &file.bytes)?;
    }
    say(&if args.json { report_json(&written) } else { report(&written) })?;
    Ok(ExitCode::SUCCESS)
}

/// The file is the former one or the new one, never a part.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = PathBuf::from(aside);
    fs::write(&aside, bytes).and_then(|()| fs::rename(&aside, path)).map_err(|error| {
        format!("cannot write {}: {error}; give another --out", path.display()).into()
    })
}

fn report(written: &[(PathBuf, &Exported)]) -> String {
    let line = |(path, file): &(PathBuf, &Exported)| {
        let names: Vec<&str> = file.variants.iter().map(|variant| variant.name.as_str()).collect();
        format!("{}: {} bytes, {}", path.display(), file.bytes.len(), names.join(", "))
    };
    written.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn report_json(written: &[(PathBuf, &Exported)]) -> String {
    let file = |(path, file): &(PathBuf, &Exported)| json!({ "file": path, "bytes": file.bytes.len(), "variants": file.variants });
    json!({ "files": written.iter().map(file).collect::<Vec<_>>() }).to_string()
}
