//! `baton model`: the catalogue of a running scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs::DirBuilder;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use baton_backend::pull::{GiveUp, ModelFolder};
use baton_client::signature::{Extent, TensorSpec};
use baton_client::{Operator, ServedModel};
use baton_topo::{ModelFolderSpec, describe_pulled, is_url, per_cent, read_model};
use serde_json::{Value, json};
use toml::Table;

use crate::CommandResult;
use crate::args::{ModelAddArgs, ModelCommand, ModelListArgs, ModelSetArgs, SchedulerOf};
use crate::extents;
use crate::import;
use crate::live::Live;
use crate::output::{aligned, locator, read_cluster, say};

/// How long the scheduler may take to answer at all.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);

pub(crate) fn run(command: &ModelCommand) -> CommandResult {
    match command {
        ModelCommand::Add(args) => add(args),
        ModelCommand::Set(args) => set(args),
        ModelCommand::Remove(args) => {
            let mut operator = connect(&args.of)?;
            told("the last tasks are served", |waiting| operator.remove(&args.name, waiting))
        }
        ModelCommand::List(args) => list(args),
        ModelCommand::ImportTriton(args) => import::triton(args),
    }
}

/// A connection to the scheduler that is meant.
pub(crate) fn connect(of: &SchedulerOf) -> Result<Operator, Box<dyn Error>> {
    let (locator, tls) = match (&of.config, of.scheduler) {
        (Some(file), given) => {
            let cluster = read_cluster(file)?;
            (locator(&cluster, given)?, cluster.fabric.tls)
        }
        (None, Some(addr)) => (addr.into(), None),
        (None, None) => return Err("give --config FILE or --scheduler ADDR".into()),
    };
    Ok(Operator::connect(&locator, tls.as_ref(), CONNECT)?)
}

fn add(args: &ModelAddArgs) -> CommandResult {
    let mut table = named(&args.name);
    table.insert("slo_ms".into(), args.slo_ms.into());
    let (file, keys) = args.file_and_keys();
    if let Some(file) = file {
        table.insert("file".into(), path(file)?.into());
    }
    insert(&mut table, &keys);
    make_paths_absolute(&mut table, Path::new(""))?;
    describe_remote(&mut table, args.ca.as_deref())?;
    complete(&mut table)?;
    let text = in_a_file(table)?;
    if args.print {
        say(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut operator = connect(&args.of)?;
    told("the backends load it", |waiting| operator.add(&text, waiting))
}

fn set(args: &ModelSetArgs) -> CommandResult {
    let mut table = named(&args.name);
    insert(&mut table, &args.keys());
    make_paths_absolute(&mut table, Path::new(""))?;
    describe_remote(&mut table, args.ca.as_deref())?;
    complete(&mut table)?;
    let text = in_a_file(table)?;
    let mut operator = connect(&args.of)?;
    told("the change is made", |waiting| operator.set(&text, waiting))
}

/// Finds out how long the answers of a file's model are, where the file leaves it open.
fn complete(table: &mut Table) -> Result<(), Box<dyn Error>> {
    if let Some(dims) = extents::complete(table, None)? {
        tracing::info!(dims, "an execution tells how long the answers are");
    }
    // For its warnings: the scheduler's are in a log that the operator may not see. It refuses what is wrong itself.
    drop(read_model(&in_a_file(table.clone())?, Path::new(""), None));
    Ok(())
}

/// Prints what was done, and meanwhile what is waited for.
fn told<E: Error + 'static>(
    what: &str,
    change: impl FnOnce(&mut dyn FnMut(Duration)) -> Result<String, E>,
) -> CommandResult {
    let mut live = Live::new();
    let done = change(&mut |waited| live.progress(format_args!("{what}: {} s", waited.as_secs())));
    live.finish();
    say(&done?)?;
    Ok(ExitCode::SUCCESS)
}

fn named(name: &str) -> Table {
    Table::from_iter([("name".to_owned(), name.into())])
}

/// A value that is no TOML is a text: `subcluster=gpu` needs no quotes.
pub(crate) fn insert(table: &mut Table, keys: &[(String, String)]) {
    for (key, text) in keys {
        let parsed: Result<Table, _> = toml::from_str(&format!("value = {text}"));
        let value = parsed.ok().and_then(|mut parsed| parsed.remove("value"));
        table.insert(key.clone(), value.unwrap_or_else(|| text.as_str().into()));
    }
}

/// A text whose only table is this `[[model]]`.
pub(crate) fn in_a_file(model: Table) -> Result<String, toml::ser::Error> {
    let models = toml::Value::Array(vec![model.into()]);
    toml::to_string(&Table::from_iter([("model".to_owned(), models)]))
}

/// The scheduler and the backends read the files, not this process: they may be elsewhere.
fn make_paths_absolute(table: &mut Table, folder: &Path) -> Result<(), Box<dyn Error>> {
    let variants = table.get_mut("variant").and_then(toml::Value::as_array_mut);
    for variant in variants.into_iter().flatten().filter_map(toml::Value::as_table_mut) {
        make_paths_absolute(variant, folder)?;
    }
    for key in ["file", "profile"] {
        if let Some(toml::Value::String(file)) = table.get_mut(key).filter(|file| !is_remote(file))
        {
            *file = path(&std::path::absolute(folder.join(&*file))?)?;
        }
    }
    Ok(())
}

fn is_remote(file: &toml::Value) -> bool {
    file.as_str().is_some_and(is_url)
}

/// Pulls the files that lie on servers, to write down what they are: neither the scheduler nor the next one need do it.
fn describe_remote(table: &mut Table, ca: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let variants = table.get_mut("variant").and_then(toml::Value::as_array_mut);
    for variant in variants.into_iter().flatten().filter_map(toml::Value::as_table_mut) {
        describe_remote(variant, ca)?;
    }
    let is_described =
        ["sha256", "file_bytes", "tensors"].iter().all(|&key| table.contains_key(key));
    let Some(url) = table.get("file").filter(|file| is_remote(file) && !is_described) else {
        return Ok(());
    };
    let url = url.as_str().unwrap_or_default().to_owned();
    let scratch = Scratch::new()?;
    let spec = ModelFolderSpec {
        bytes: u64::MAX,
        ca: ca.map(Path::to_owned),
        ..ModelFolderSpec::default()
    };
    let folder = ModelFolder::open(scratch.0.clone(), &spec)?;
    let mut live = Live::new();
    live.progress(format_args!("pulls {url} to see what it is"));
    let pulled = folder.pull(&url, None, &BTreeSet::new(), &GiveUp::default());
    live.finish();
    describe_pulled(table, &pulled?.path).map_err(|problem| format!("{url}: {problem}"))?;
    Ok(())
}

/// A folder that no other user may enter. It goes with this.
struct Scratch(PathBuf);

impl Scratch {
    /// What has the name already, be it a link, is not taken for it.
    fn new() -> Result<Self, String> {
        let number = RandomState::new().build_hasher().finish();
        let path = std::env::temp_dir().join(format!("baton-model-{number:016x}"));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| {
            format!("{}: {error}; name a folder for temporary files in TMPDIR", path.display())
        })?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "it is left behind");
        }
    }
}

/// The `[[model]]` tables of a cluster file by name, each in a file of its own, with absolute paths.
pub(crate) fn tables_of(file: &Path) -> Result<BTreeMap<String, String>, Box<dyn Error>> {
    let folder = file.parent().unwrap_or_else(|| Path::new(""));
    let mut all: Table = toml::from_str(&std::fs::read_to_string(file)?)?;
    let Some(toml::Value::Array(models)) = all.remove("model") else { return Ok(BTreeMap::new()) };
    let mut tables = BTreeMap::new();
    for model in models {
        let toml::Value::Table(mut table) = model else { continue };
        make_paths_absolute(&mut table, folder)?;
        if let Some(toml::Value::String(name)) = table.get("name").cloned() {
            tables.insert(name, in_a_file(table)?);
        }
    }
    Ok(tables)
}

/// A path as a message carries it.
pub(crate) fn path(file: &Path) -> Result<String, &'static str> {
    let text = file.to_str().ok_or("the file's path is not UTF-8, and a message carries text")?;
    Ok(text.to_owned())
}

fn list(args: &ModelListArgs) -> CommandResult {
    let operator = connect(&args.of)?;
    let models = operator.models();
    if args.json {
        let models: Vec<Value> = models.iter().map(as_json).collect();
        say(&json!({ "models": models }).to_string())?;
    } else {
        say(&as_text(models))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(model: &ServedModel) -> Value {
    let extent = |extent: &Extent| match extent {
        Extent::Fixed(extent) => json!(extent),
        Extent::UpTo(max) => json!({ "max": max }),
    };
    let tensor = |spec: &TensorSpec| {
        let shape: Vec<Value> = spec.shape.iter().map(extent).collect();
        json!({ "name": spec.name, "type": spec.element.to_string(), "shape": shape })
    };
    let side = |tensors: &[TensorSpec]| tensors.iter().map(tensor).collect::<Vec<Value>>();
    let variant =
        |(name, accuracy): &(String, u32)| json!({ "name": name, "accuracy": per_cent(*accuracy) });
    let [inputs, outputs] = &model.tensors;
    json!({
        "name": model.name,
        "id": model.id,
        "subcluster": model.subcluster,
        "model_thread": model.model_thread,
        "slo_ms": model.slo.as_millis_f64(),
        "batch_max": model.batch_max,
        "input_bytes": model.row_bytes[0],
        "output_bytes": model.row_bytes[1],
        "inputs": side(inputs),
        "outputs": side(outputs),
        "variants": model.variants.iter().map(variant).collect::<Vec<Value>>(),
    })
}

fn as_text(models: &[ServedModel]) -> String {
    let side = |tensors: &[TensorSpec], bytes: u32| match tensors {
        [] => format!("{bytes} bytes"),
        tensors => tensors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    };
    let mut rows = vec![
        ["model", "sub-cluster", "SLO", "batch", "thread", "input", "output"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(models.iter().map(|model| {
        let [inputs, outputs] = &model.tensors;
        vec![
            model.name.clone(),
            model.subcluster.clone(),
            format!("{} ms", model.slo.as_millis_f64()),
            model.batch_max.to_string(),
            model.model_thread.to_string(),
            side(inputs, model.row_bytes[0]),
            side(outputs, model.row_bytes[1]),
        ]
    }));
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_for_a_moment_is_this_users_alone_and_goes() {
        let (one, other) = (Scratch::new().expect("a folder"), Scratch::new().expect("another"));
        assert_ne!(one.0, other.0);
        let about = std::fs::metadata(&one.0).expect("it is there");
        assert!(about.is_dir() && about.permissions().mode() & 0o777 == 0o700);
        let path = one.0.clone();
        drop(one);
        assert!(!path.exists() && other.0.exists());
    }
}
