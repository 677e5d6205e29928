//! `baton model` and `baton status`: what an operator asks of a running scheduler.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::values::deadline_ms;

#[derive(Subcommand, Debug)]
pub(crate) enum ModelCommand {
    /// Serve one more model
    ///
    /// Returns once every backend of its sub-cluster has loaded it and clients can use it. FILE may be a URL: then each backend
    /// pulls it. Otherwise the scheduler and the backends must be able to read FILE under the same path. A model that is added is served until it is removed. The next
    /// scheduler knows it if the cluster file names a journal.
    Add(ModelAddArgs),
    /// Change a model: its objective, limits or profile at once, any other key by a model that takes its place
    ///
    /// With a key such as `file` the backends load another model while the former one serves. As soon as all have, clients
    /// use that one; it keeps the objective, the limits and the sub-cluster, and every other key is that of this command.
    Set(ModelSetArgs),
    /// Serve a model no more
    ///
    /// Tasks that wait are still served; new ones are dropped (`model_removed`). Returns once the last one has ended.
    Remove(ModelRemoveArgs),
    /// List the models that are served
    List(ModelListArgs),
    /// Write a cluster file that serves the ONNX models of a Triton model repository
    ///
    /// Says on stderr, by model and line, what is not carried over and what must be chosen. Models that cannot be served
    /// are left out.
    ImportTriton(ImportTritonArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct ImportTritonArgs {
    /// The repository: a folder for each model, with config.pbtxt and 1/model.onnx
    pub(crate) dir: PathBuf,
    /// The latency objective of models whose configuration has no default_timeout_microseconds
    #[arg(long, value_name = "MS", default_value_t = 100.0, value_parser = deadline_ms)]
    pub(crate) slo_ms: f64,
    /// Serve every model on the CPU
    #[arg(long)]
    pub(crate) cpu: bool,
    /// Write to this new file instead of stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// Which scheduler.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = true)]
pub(crate) struct SchedulerOf {
    /// The cluster file: where the scheduler is, and with which certificate to reach it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The scheduler's address, if there is no cluster file or it says another
    #[arg(long, value_name = "ADDR")]
    pub(crate) scheduler: Option<SocketAddr>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ModelAddArgs {
    /// The ONNX file, or its URL (http:// or https://); without one, the keys describe an emulated model
    file: Option<PathBuf>,
    /// Other keys of a [[model]] table, such as batch_max=8 or dims={seq=128}
    #[arg(value_name = "KEY=VALUE", value_parser = key)]
    keys: Vec<(String, String)>,
    /// Its name
    #[arg(long)]
    pub(crate) name: String,
    /// Its latency objective
    #[arg(long, value_name = "MS")]
    pub(crate) slo_ms: f64,
    /// As KEY=VALUE without it
    #[arg(long = "key", value_name = "KEY=VALUE", value_parser = key, hide = true)]
    more_keys: Vec<(String, String)>,
    /// The authorities of a server with https://, as PEM; otherwise the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Print the [[model]] table, with what a URL needs beside it, instead of adding the model. It needs no scheduler
    #[arg(long, group = "SchedulerOf")]
    pub(crate) print: bool,
    #[command(flatten)]
    pub(crate) of: SchedulerOf,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ModelSetArgs {
    /// Which model
    pub(crate) name: String,
    /// Keys of a [[model]] table, such as slo_ms=30 or max_rps=0, which lifts the limit
    #[arg(value_name = "KEY=VALUE", value_parser = key, required_unless_present = "more_keys")]
    keys: Vec<(String, String)>,
    /// As KEY=VALUE without it
    #[arg(long = "key", value_name = "KEY=VALUE", value_parser = key, hide = true)]
    more_keys: Vec<(String, String)>,
    /// The authorities of a server with https://, as PEM; otherwise the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) of: SchedulerOf,
}

impl ModelAddArgs {
    /// The file, unless the first word is a key of a model without one; and the keys.
    pub(crate) fn file_and_keys(&self) -> (Option<&Path>, Vec<(String, String)>) {
        let first = self.file.as_deref().and_then(Path::to_str).filter(|word| is_key(word));
        let first = first.and_then(|word| key(word).ok());
        let file = self.file.as_deref().filter(|_| first.is_none());
        (file, first.into_iter().chain(all(&self.keys, &self.more_keys)).collect())
    }
}

impl ModelSetArgs {
    pub(crate) fn keys(&self) -> Vec<(String, String)> {
        all(&self.keys, &self.more_keys).collect()
    }
}

/// Keys without `--key` and with it.
pub(super) fn all<'a>(
    keys: &'a [(String, String)],
    more: &'a [(String, String)],
) -> impl Iterator<Item = (String, String)> + 'a {
    keys.iter().chain(more).cloned()
}

/// Whether a word begins as keys of tables do, and no path or URL. The file of such a name is `./a=b`.
fn is_key(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

#[derive(clap::Args, Debug)]
pub(crate) struct ModelRemoveArgs {
    /// Which model
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) of: SchedulerOf,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ModelListArgs {
    #[command(flatten)]
    pub(crate) of: SchedulerOf,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) of: SchedulerOf,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Go on, about once a second, until a signal comes
    #[arg(long)]
    pub(crate) watch: bool,
}

pub(super) fn key(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
    let (key, value) = pair.ok_or_else(|| "write KEY=VALUE, for example slo_ms=30".to_owned())?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Args, Command};

    fn model(line: &str) -> ModelCommand {
        match Args::try_parse_from(line.split(' '))
            .unwrap_or_else(|error| panic!("{error}"))
            .command
        {
            Command::Model { command } => command,
            other => panic!("{other:?}"),
        }
    }

    fn of_add(rest: &str) -> (Option<String>, String) {
        let line = format!("baton model add {rest} --name m --slo-ms 5 --scheduler 127.0.0.1:1");
        let ModelCommand::Add(args) = model(&line) else { panic!("{line}") };
        let (file, keys) = args.file_and_keys();
        (file.map(|file| file.display().to_string()), text(&keys))
    }

    fn text(keys: &[(String, String)]) -> String {
        keys.iter().map(|(key, value)| format!("{key}:{value} ")).collect()
    }

    #[test]
    fn add_and_set_take_keys_in_either_form() {
        let (one, two) = ("batch_max:8 ".to_owned(), "dims:{seq=128} batch_max:8 ".to_owned());
        let file = |name: &str| Some(name.to_owned());
        assert_eq!(of_add("m.onnx dims={seq=128} batch_max=8"), (file("m.onnx"), two.clone()));
        assert_eq!(
            of_add("m.onnx --key dims={seq=128} --key batch_max=8"),
            (file("m.onnx"), two.clone())
        );
        assert_eq!(of_add("dims={seq=128} batch_max=8"), (None, two.clone()));
        assert_eq!(of_add("dims={seq=128} --key batch_max=8"), (None, two.clone()));
        assert_eq!(of_add("--key batch_max=8"), (None, one.clone()));
        for path in ["./a=b.onnx", "http://h/f?v=3"] {
            assert_eq!(of_add(&format!("{path} batch_max=8")), (file(path), one.clone()));
        }
        for keys in [
            "dims={seq=128} batch_max=8",
            "--key dims={seq=128} --key batch_max=8",
            "dims={seq=128} --key batch_max=8",
        ] {
            let line = format!("baton model set m {keys} --scheduler 127.0.0.1:1");
            let ModelCommand::Set(args) = model(&line) else { panic!("{line}") };
            assert_eq!(text(&args.keys()), two, "{line}");
        }
        let without = Args::try_parse_from("baton model set m --scheduler 127.0.0.1:1".split(' '));
        assert!(without.is_err_and(|error| error.to_string().contains("KEY=VALUE")));
    }
}
