//! `baton profile`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use baton_backend::profile::{
    ProfileError, Progress, RunLimits, open_driver, profile, usual_device,
};
use baton_core::Nanos;
use baton_topo::{Cluster, Device, ModelSpec, Problem, ProfileFile, read_measured_model};
use serde_json::json;
use toml::Table;

use crate::CommandResult;
use crate::args::ProfileArgs;
use crate::extents;
use crate::live::Live;
use crate::model::{in_a_file, insert, path};
use crate::output::{check_writable, load_cluster, say, write_whole};
use crate::process::stop_flag;

/// The longest objective there is: none keeps a batch from being measured.
pub(crate) const SLO_MS: f64 = 600_000.0;

/// What is wrong with the model or the file is said before anything is measured.
pub(crate) fn run(args: &ProfileArgs) -> CommandResult {
    let Subject { model, dims } = subject(args, Table::new())?;
    let out = args.out.clone().unwrap_or_else(|| usual_file(&model.name, "profile"));
    check_writable(&out, ProfileFile::is_ours, "baton profile")?;
    let report = watched(args, &model, |device, limits, stop, on_size| {
        profile(&model, device, limits, open_driver, stop, on_size)
    })?;
    write_whole(&out, report.file.text()?.as_bytes())?;
    if args.json {
        let report = json!({
            "profile": report.file, "remarks": report.remarks, "out": out, "dims": dims,
        });
        say(&report.to_string())?;
    } else {
        say(&report.to_string())?;
        say(&format!("written to {0}; in the model's table: profile = \"{0}\"", out.display()))?;
        dims.map_or(Ok(()), |dims| say(&format!("and how long the answers are: dims = {dims}")))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures as the arguments say, shows how far it is, and stops when asked to.
pub(crate) fn watched<R>(
    args: &ProfileArgs,
    model: &ModelSpec,
    measure: impl FnOnce(
        Device,
        RunLimits,
        &AtomicBool,
        &mut dyn FnMut(Progress),
    ) -> Result<R, ProfileError>,
) -> Result<R, Box<dyn Error>> {
    let device = args.device.unwrap_or_else(|| usual_device(model));
    let per_size = Nanos::from_millis_f64(args.seconds_per_size * 1e3);
    let limits = RunLimits { runs: args.runs, per_size };
    let stop = stop_flag()?;
    let mut live = Live::new();
    let report = measure(device, limits, &stop, &mut |size| live.progress(size));
    live.finish();
    Ok(report?)
}

/// A model to measure.
pub(crate) struct Subject {
    pub(crate) model: ModelSpec,
    /// The key `dims` that its table needs, if an execution has told a part of it.
    pub(crate) dims: Option<String>,
}

/// What to measure; `more` keys are added to the table of a file's model.
pub(crate) fn subject(args: &ProfileArgs, more: Table) -> Result<Subject, Box<dyn Error>> {
    match (&args.file, &args.config, &args.model) {
        (Some(file), ..) => of_file(file, (args.batch_max, &args.keys()), (args.device, more)),
        (None, Some(config), Some(name)) => {
            Ok(Subject { model: of_cluster(load_cluster(config)?, name)?, dims: None })
        }
        _ => Err("name an ONNX file, or --config FILE --model NAME".into()),
    }
}

/// What the keys leave open is as in a cluster file, but for the extents of outputs, which an execution tells.
pub(crate) fn of_file(
    file: &Path,
    (batch_max, keys): (Option<u32>, &[(String, String)]),
    (device, more): (Option<Device>, Table),
) -> Result<Subject, Box<dyn Error>> {
    let mut table = more;
    table.insert("name".into(), name_of(file).into());
    table.insert("file".into(), path(&std::path::absolute(file)?)?.into());
    table.insert("slo_ms".into(), SLO_MS.into());
    table.extend(batch_max.map(|most| ("batch_max".to_owned(), most.into())));
    insert(&mut table, keys);
    let dims = extents::complete(&mut table, device)?;
    let table = read_measured_model(&in_a_file(table)?).map_err(|problems| {
        format!("the model cannot be measured:\n{}", Problem::lines(&problems))
    })?;
    Ok(Subject { model: table.spec, dims })
}

fn of_cluster(cluster: Cluster, name: &str) -> Result<ModelSpec, Box<dyn Error>> {
    let known: Vec<String> = cluster.models.iter().map(|model| model.name.clone()).collect();
    let found = cluster.models.into_iter().find(|model| model.name == name);
    let missing =
        || format!("no [[model]] is named `{name}`; the cluster file has: {}", known.join(", "));
    found.ok_or_else(|| missing().into())
}

/// The file's name, of the letters that names have.
fn name_of(file: &Path) -> String {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = stem.chars().map(plain).take(64).collect();
    if name.is_empty() { "model".to_owned() } else { name }
}

/// `/` may be in a model's name, and is none in a file's.
pub(crate) fn usual_file(model: &str, kind: &str) -> PathBuf {
    PathBuf::from(format!("{}.{kind}.toml", model.replace(['/', ':'], "-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_files_and_files_from_names() {
        assert_eq!(name_of(Path::new("/a/res net (50).onnx")), "res-net--50-");
        assert_eq!(name_of(Path::new("/")), "model");
        assert_eq!(
            usual_file("vision/resnet:50", "profile"),
            Path::new("vision-resnet-50.profile.toml")
        );
    }
}
