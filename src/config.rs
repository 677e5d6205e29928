//! `baton config check`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use baton_backend::execute::{BlockingEngine, Cuda, Engine, EngineError, HostStore, Onnx};
use baton_backend::profile::{open_driver, usual_device};
use baton_rdma::Credentials;
use baton_topo::machine::{Cpus, Sysroot};
use baton_topo::{
    Checked, Clock, Cluster, Device, EngineSpec, Journal, ModelSpec, check_cluster,
    check_cluster_on, model_file_problem,
};

use crate::CommandResult;
use crate::certificates;
use crate::output::say;

/// Names the ONNX Runtime library.
const LIBRARY_VARIABLE: &str = "ORT_DYLIB_PATH";

/// Prints the problems, or the cluster as it was understood, and the warnings. With `[tls]` the
/// certificate of this host is looked at as its peers will; so are the files for etcd, the journal, and
/// with ONNX Runtime the models.
pub(crate) fn check(file: &Path) -> CommandResult {
    let checked = on_this_host(file);
    for warning in &checked.warnings {
        say(&format!("warning: {warning}"))?;
    }
    let problems = match checked.cluster {
        Ok(cluster) => {
            say(&cluster.to_string())?;
            let (line, mut problems) = models(file, &cluster);
            line.map_or(Ok(()), |line| say(&line))?;
            expiring(&cluster)
                .into_iter()
                .chain(gateway_warnings(&cluster))
                .try_for_each(|warning| say(&format!("warning: {warning}")))?;
            problems.extend(certificate_problems(&cluster));
            problems.extend(etcd_problem(&cluster));
            problems.extend(journal_problem(&cluster));
            problems
        }
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    };
    for problem in &problems {
        say(problem)?;
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A host that does not say which CPUs it has is any host.
fn on_this_host(file: &Path) -> Checked {
    let cpus = Sysroot::open(Path::new("/")).ok().and_then(|root| Cpus::read(&root).ok());
    match cpus {
        Some(cpus) => check_cluster_on(file, &cpus.online),
        None => check_cluster(file),
    }
}

/// Loads each model from an ONNX file as a backend does. Returns what was checked, and what is wrong.
fn models(file: &Path, cluster: &Cluster) -> (Option<String>, Vec<String>) {
    // Files on servers are for backends to pull.
    let is_onnx = |&(_, model): &(usize, &ModelSpec)| {
        matches!(model.engine, EngineSpec::Onnx { .. }) && model.remote_files().is_empty()
    };
    let models: Vec<_> = cluster.models.iter().enumerate().filter(is_onnx).collect();
    if models.is_empty() {
        return (None, Vec::new());
    }
    let count = models.len();
    if std::env::var_os(LIBRARY_VARIABLE).is_none_or(|path| path.is_empty()) {
        let line = format!(
            "not checked: whether ONNX Runtime executes the {count} model(s) from ONNX files; \
             {LIBRARY_VARIABLE} is not set: export {LIBRARY_VARIABLE}=\"$(./x onnxruntime)\""
        );
        return (Some(line), Vec::new());
    }
    let problem = |(index, model)| model_problem(file, index, model);
    let mut problems: Vec<String> = models.into_iter().filter_map(problem).collect();
    // Without the library each model has the same problem.
    problems.dedup();
    let line = problems.is_empty().then(|| {
        format!(
            "checked: ONNX Runtime executes the smallest and the largest batch of {count} model(s)"
        )
    });
    (line, problems)
}

/// One model at a time takes memory.
fn model_problem(file: &Path, index: usize, model: &ModelSpec) -> Option<String> {
    let loaded = Onnx::new(0).load(model).and_then(|()| captured(model));
    Some(match loaded.err()? {
        EngineError::Load { problem, fix, .. } => {
            model_file_problem(file, index, problem, fix).to_string()
        }
        error => error.to_string(),
    })
}

/// What a backend does with a model that executes as CUDA graphs.
fn captured(model: &ModelSpec) -> Result<(), EngineError> {
    match usual_device(model) {
        Device::Cuda(first) if model.is_captured() => {
            let (clock, store) = (Clock::start(), HostStore::default());
            Cuda::new(open_driver, clock, (0, first), store).load(model)
        }
        _ => Ok(()),
    }
}

fn certificate_problems(cluster: &Cluster) -> Vec<String> {
    let Some(tls) = &cluster.fabric.tls else { return Vec::new() };
    match Credentials::load(tls) {
        Ok(credentials) => credentials.problems(),
        Err(error) => vec![error.to_string()],
    }
}

fn expiring(cluster: &Cluster) -> Vec<String> {
    let (members, clients) = (cluster.fabric.tls.as_ref(), cluster.gateway.tls.as_ref());
    let files = members.map(|tls| (certificates::MEMBERS, &tls.cert)).into_iter();
    let files = files.chain(clients.map(|tls| ("gateway.cert", &tls.cert)));
    files.filter_map(|(key, file)| certificates::expiring(key, file)).collect()
}

/// Of the files that the gateway reads: its host may be another one.
fn gateway_warnings(cluster: &Cluster) -> Vec<String> {
    let tls = cluster.gateway.tls.iter().flat_map(|tls| [&tls.cert, &tls.key]);
    let tokens = cluster.gateway.tokens.iter().map(|token| &token.file);
    let warning = |file: &PathBuf| {
        let error = File::open(file).err()?;
        let file = file.display();
        Some(format!("gateway: {file} cannot be read here: {error}; the gateway's host needs it"))
    };
    tls.chain(tokens).filter_map(warning).collect()
}

fn etcd_problem(cluster: &Cluster) -> Option<String> {
    let tls = cluster.scheduler.etcd.as_ref()?.tls.as_ref()?;
    baton_leader::check_files(tls).err().map(|error| error.to_string())
}

fn journal_problem(cluster: &Cluster) -> Option<String> {
    let file = cluster.scheduler.journal.as_deref()?;
    Journal::open(file).err().map(|error| error.to_string())
}
