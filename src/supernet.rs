//! `baton supernet`.

use std::error::Error;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use baton_backend::profile::{
    MeasuredVariant, SupernetReport, Switching, open_driver, profile_variants,
};
use baton_supernet::{
    Checkpoint, Exported, Form, Left, Measured, Pareto, export, is_table, pareto, read_table,
    table_text, variants_of,
};
use baton_topo::{ModelSpec, VariantSpec, accuracy_of};
use serde_json::{Value, json};
use toml::Table;

use crate::CommandResult;
use crate::args::{ProfileArgs, SupernetCommand, SupernetExportArgs, SupernetParetoArgs};
use crate::output::{check_writable, say, write_whole};
use crate::profile::{subject, usual_file, watched};

pub(crate) fn run(command: &SupernetCommand) -> CommandResult {
    match command {
        SupernetCommand::Export(args) => run_export(args),
        SupernetCommand::Profile(args) => run_profile(args),
        SupernetCommand::Pareto(args) => run_pareto(args),
    }
}

fn run_export(args: &SupernetExportArgs) -> CommandResult {
    let checkpoint = Checkpoint::read(&args.checkpoint)?;
    let form = if args.is_static { Form::Static } else { Form::Super };
    let files = export(&checkpoint, form, &args.variants)?;
    warn_of_unused(&checkpoint);
    let name = &checkpoint.description.name;
    let written = match form {
        Form::Super => {
            let path = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.onnx")));
            vec![(path, &files[0])]
        }
        Form::Static => {
            let folder = args.out.clone().unwrap_or_else(|| PathBuf::from("."));
            if !folder.is_dir() {
                let cannot =
                    |error| format!("cannot make the folder {}: {error}", folder.display());
                fs::create_dir(&folder).map_err(cannot)?;
            }
            let path =
                |file: &Exported| folder.join(format!("{name}.{}.onnx", file.variants[0].name));
            files.iter().map(|file| (path(file), file)).collect()
        }
    };
    for (path, file) in &written {
        write_whole(path, &file.bytes)?;
    }
    say(&if args.json { report_json(&written) } else { report(&written) })?;
    Ok(ExitCode::SUCCESS)
}

fn warn_of_unused(checkpoint: &Checkpoint) {
    let unused = checkpoint.unused();
    if !unused.is_empty() {
        let weights = checkpoint.description.weights.display();
        let named = unused[..unused.len().min(8)].join(", ");
        let more = match unused.len().saturating_sub(8) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        tracing::warn!(
            "no layer of the description has these tensors of {weights}: {named}{more}; fix: check the layers' names, or leave the tensors out"
        );
    }
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

/// What is wrong with the model or the file is said before anything is measured.
fn run_profile(args: &ProfileArgs) -> CommandResult {
    let model = match &args.file {
        Some(file) => exported(file, args)?,
        None => subject(args, Table::new())?.model,
    };
    let out = args.out.clone().unwrap_or_else(|| usual_file(&model.name, "variants"));
    check_writable(&out, is_table, "baton supernet")?;
    let report = watched(args, &model, |device, limits, stop, on_size| {
        profile_variants(&model, device, limits, open_driver, stop, on_size)
    })?;
    write_whole(&out, table_text(&measured(&report, &model), &remarks(&report)).as_bytes())?;
    if args.json {
        say(&profile_json(&report, &out).to_string())?;
    } else {
        say(&report.to_string())?;
        say(&format!("written to {}", out.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The model of a file that `export` wrote. It may have more variants than a cluster serves, and in any order: that is what is to be found out.
fn exported(file: &Path, args: &ProfileArgs) -> Result<ModelSpec, Box<dyn Error>> {
    let bytes =
        fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let named = variants_of(&bytes).map_err(|what| {
        format!("{}: {what}; for another file, use --config FILE --model NAME", file.display())
    })?;
    let table = "variant = [{ name = \"0\", accuracy = 1 }, { name = \"1\", accuracy = 2 }]";
    let mut model = subject(args, table.parse().expect("it is TOML"))?.model;
    let like = model.variants.swap_remove(0);
    let spec = |variant: baton_supernet::NamedVariant| VariantSpec {
        name: variant.name,
        accuracy: accuracy_of(variant.accuracy),
        ..like.clone()
    };
    model.variants = named.into_iter().map(spec).collect();
    Ok(model)
}

fn measured(report: &SupernetReport, model: &ModelSpec) -> Vec<Measured> {
    let of = |(variant, spec): (&MeasuredVariant, &VariantSpec)| Measured {
        name: variant.name.clone(),
        accuracy: variant.accuracy,
        file: spec.file.clone(),
        latency_ms: variant.latency_ms.clone(),
    };
    report.variants.iter().zip(&model.variants).map(of).collect()
}

fn remarks(report: &SupernetReport) -> Vec<String> {
    let mut remarks =
        vec![format!("{}, engine {}, on {}", report.model, report.engine, report.device)];
    remarks.extend(report.is_fake.then(|| "FAKE GPU: these times mean nothing".to_owned()));
    remarks
}

fn profile_json(report: &SupernetReport, out: &Path) -> Value {
    let variant = |variant: &MeasuredVariant| {
        let MeasuredVariant { name, accuracy, latency_ms, measured } = variant;
        json!({ "name": name, "accuracy": accuracy, "latency_ms": latency_ms, "measured": measured })
    };
    let switching = |switching: &Switching| {
        let Switching { batch, worst_ms, before, after } = switching;
        json!({ "batch": batch, "worst_ms": worst_ms, "before": before, "after": after })
    };
    json!({
        "model": report.model,
        "engine": report.engine,
        "device": report.device,
        "is_fake": report.is_fake,
        "variants": report.variants.iter().map(variant).collect::<Vec<_>>(),
        "switching": report.switching.iter().map(switching).collect::<Vec<_>>(),
        "out": out,
    })
}

fn run_pareto(args: &SupernetParetoArgs) -> CommandResult {
    let shown = args.table.display();
    let text =
        fs::read_to_string(&args.table).map_err(|error| match error.kind() {
            ErrorKind::InvalidData => format!(
                "{shown} is no table of variants; make one with `baton supernet profile FILE.onnx --out TABLE.toml`"
            ),
            _ => format!("cannot read {shown}: {error}"),
        })?;
    let all = read_table(&text).map_err(|what| format!("{shown}: {what}"))?;
    let count = all.len();
    let found = pareto(all);
    let table =
        table_text(&found.kept, &[format!("{} of {count} variants of {shown}", found.kept.len())]);
    if let Some(out) = &args.out {
        check_writable(out, is_table, "baton supernet")?;
        write_whole(out, table.as_bytes())?;
    }
    match (&args.out, args.json) {
        (_, true) => say(&pareto_json(&found).to_string())?,
        (None, false) => say(&format!("{table}\n{}", pareto_remarks(&found)))?,
        (Some(out), false) => {
            say(&format!("{}written to {}", pareto_remarks(&found), out.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// As comments, so that what is printed is a table.
fn pareto_remarks(found: &Pareto) -> String {
    let left = |Left { name, because_of }: &Left| {
        format!("# left out: {name}, because {because_of} is as accurate and takes no longer\n")
    };
    let raised = |(variant, &part): (&Measured, &f64)| {
        let name = &variant.name;
        let text = format!(
            "# {name}: times raised by up to {:.1} %, to those of the cheaper one\n",
            part * 100.0
        );
        (part > 0.0).then_some(text)
    };
    let mut text: String = found.left.iter().map(left).collect();
    text.extend(found.kept.iter().zip(&found.raised).filter_map(raised));
    if !found.left.is_empty() {
        let names: Vec<&str> = found.kept.iter().map(|variant| variant.name.as_str()).collect();
        text.push_str(&format!(
            "# a file of these: baton supernet export CHECKPOINT --variants {}\n",
            names.join(",")
        ));
    }
    text
}

fn pareto_json(found: &Pareto) -> Value {
    let left = |Left { name, because_of }: &Left| json!({ "name": name, "because_of": because_of });
    json!({
        "kept": found.kept,
        "left": found.left.iter().map(left).collect::<Vec<_>>(),
        "raised": found.raised,
    })
}
