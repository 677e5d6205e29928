//! Reads the cluster file: TOML text in; out comes a [`Cluster`], or everything that is wrong.
//!
//! Reading never stops at the first mistake. `tables.rs` and `model.rs` read every key of every
//! table, `check.rs` checks values against each other, and the caller gets the whole list of
//! mistakes with line numbers.

mod addition;
mod captured;
mod check;
mod cluster;
mod device;
mod etcd;
mod fabric;
mod gateway;
mod journal;
mod literal;
mod model;
mod model_folder;
mod onnx;
mod problem;
mod profile;
mod profile_file;
mod section;
mod sha256;
mod summary;
mod tables;
mod tls;
mod variants;
mod weights;

use std::io::Read as _;
use std::path::Path;

use toml::de::DeTable;

use self::problem::Findings;
use self::section::Section;
use crate::machine::CpuSet;

pub use addition::{
    ModelChange, ModelTable, name_of_replaced, read_change, read_measured_model, read_model,
    replacement,
};
pub use cluster::{
    BATCH_MEMORY_MAX, BATCH_SLOTS, BackendSpec, CardsSpec, Cluster, EngineSpec, EtcdIdentity,
    EtcdSpec, EtcdTlsSpec, FrontendSpec, GPUS_PER_BACKEND_MAX, MODEL_THREADS_MAX, MODELS_MAX,
    ModelSpec, NetworkSpec, OnnxPlace, ReconnectSpec, SchedulerSpec, TensorRt,
};
pub use device::Device;
pub use fabric::{FabricSpec, TransportChoice, VerbsConfig};
pub use gateway::{GatewaySpec, GatewayTlsSpec, ImageSpec, TokenSpec};
pub use journal::{Journal, JournalError, JournalKind, Replayed};
pub use model_folder::{ModelFolderSpec, pulled_file};
pub use onnx::{
    BatchLayout, Constant, OpenDim, describe_pulled, is_url, is_whole_model, open_dims,
};
pub use problem::Problem;
pub use profile_file::{MeasuredSize, ProfileFile};
pub use section::nearest_word;
pub use sha256::{NoSha256, Sha256, with_checksums};
pub(crate) use tables::CREDIT_BYTES;
pub use tls::TlsSpec;
pub use variants::{
    BESIDE_VARIANTS, VariantSpec, VariantsProblem, accuracy_of, checked_variants, per_cent,
};
pub use weights::{WeightsCacheSpec, WeightsSpec};

/// A longer file is not read: no cluster needs it, and a device file has no end.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// What became of a cluster file.
#[derive(Debug)]
pub struct Checked {
    /// The cluster, or every problem in the order of the lines.
    pub cluster: Result<Cluster, Vec<Problem>>,
    /// What is legal but probably not meant, in the order of the lines.
    pub warnings: Vec<Problem>,
}

/// Reads and validates a cluster file. Warnings go to the log.
///
/// # Errors
/// Every problem found, in the order of the lines. With TOML syntax errors only those are listed:
/// what would follow from half-read tables is noise.
pub fn load_cluster(path: &Path) -> Result<Cluster, Vec<Problem>> {
    let checked = check_cluster(path);
    for warning in &checked.warnings {
        tracing::warn!("{warning}");
    }
    checked.cluster
}

/// Like [`load_cluster`], but hands the warnings out.
pub fn check_cluster(path: &Path) -> Checked {
    check_file(path, None)
}

/// Like [`check_cluster`], for a host with these CPUs: warns of cores that it does not have.
pub fn check_cluster_on(path: &Path, cpus: &CpuSet) -> Checked {
    check_file(path, Some(cpus))
}

fn check_file(path: &Path, host_cpus: Option<&CpuSet>) -> Checked {
    match read_text(path) {
        Ok(text) => check_text_for(path, &text, host_cpus),
        Err(problem) => Checked { cluster: Err(vec![problem]), warnings: Vec::new() },
    }
}

/// [`check_cluster`] on text that is already in memory. `path` names it in problems, and relative
/// model files are relative to its folder.
pub fn check_text(path: &Path, text: &str) -> Checked {
    check_text_for(path, text, None)
}

fn check_text_for(path: &Path, text: &str, host_cpus: Option<&CpuSet>) -> Checked {
    let mut findings = Findings::new(path, text);
    findings.host_cpus = host_cpus;
    let (tree, syntax_errors) = DeTable::parse_recoverable(text);
    findings.syntax_errors(text, &syntax_errors);
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let cluster = if syntax_errors.is_empty() {
        tables::cluster(&Section::root(tree.get_ref(), &findings), folder)
    } else {
        None
    };
    let (problems, warnings) = findings.into_sorted();
    match cluster {
        Some(cluster) if problems.is_empty() => Checked { cluster: Ok(cluster), warnings },
        _ => Checked { cluster: Err(problems), warnings },
    }
}

/// What an engine finds wrong with the file of `[[model]]` number `index` of the cluster file `path`, with its line.
pub fn model_file_problem(path: &Path, index: usize, what: String, fix: String) -> Problem {
    let text = read_text(path).unwrap_or_default();
    let findings = Findings::new(path, &text);
    let tree = DeTable::parse_recoverable(&text).0;
    let root = Section::root(tree.get_ref(), &findings);
    // The root stands for a table that has gone since the file was read.
    root.tables("model").get(index).unwrap_or(&root).refuse("file", what, fix);
    findings.into_sorted().0.remove(0)
}

fn read_text(path: &Path) -> Result<String, Problem> {
    let mut text = String::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(Problem::unreadable(path, &error)),
        Ok(bytes) if bytes as u64 > FILE_BYTES_MAX => Err(Problem::too_long(path, FILE_BYTES_MAX)),
        Ok(_) => Ok(text),
    }
}
