//! `[[model]]`: one model of the cluster file.

use std::path::Path;

use baton_types::{BATCH_MAX, ModelId, Nanos, Profile, QuotaLimits, RateLimit};
use serde::Deserialize;

use crate::cluster_file::addition::ModelChange;
use crate::cluster_file::cluster::{EngineSpec, ModelSpec, OnnxPlace, TensorRt};
use crate::cluster_file::device::{Device, NoDevice};
use crate::cluster_file::onnx::OnnxModel;
use crate::cluster_file::profile::{self, has_profile, unmeasured};
use crate::cluster_file::section::Section;
use crate::cluster_file::tables::Subclusters;
use crate::cluster_file::variants;
use crate::cluster_file::weights;
use crate::signature::INPUT_BYTES_MAX;

/// No execution and no objective is longer than ten minutes.
pub(super) const MS_MAX: f64 = 600_000.0;
/// The input of a model without a file unless it says otherwise: 224 × 224 RGB bytes, as in the papers.
const INPUT_BYTES: u32 = 224 * 224 * 3;
/// A model without a file answers with a checksum: one little-endian u64.
const CHECKSUM_BYTES: u32 = 8;

/// Keys that say what a model file is.
const OF_FILE: [&str; 11] = [
    "file",
    "sha256",
    "file_bytes",
    "tensors",
    "input_shape",
    "dims",
    "shapes",
    "batch_dim",
    "batched",
    "constants",
    "outputs",
];
/// Keys of models that ONNX Runtime executes.
const ON_GPU: [&str; 7] =
    ["device", "cpu_operators", "tf32", "check_finite", "cuda_graphs", "tensorrt", "fp16"];

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EngineName {
    Emulated,
    Cuda,
    Onnx,
}

/// Reads the model. `None` if it has no name, profile, SLO or sizes; then there are problems.
pub(crate) fn model(
    section: &Section<'_>,
    index: u32,
    subclusters: &mut Subclusters,
    folder: &Path,
) -> Option<ModelSpec> {
    section.require("name", "name the model: name = \"resnet50\"");
    let name = section.name("name");
    let subcluster = subclusters.of_model(section);
    section.require("slo_ms", "give the latency objective: slo_ms = 25");
    let slo = section.millis("slo_ms", 0.001..=MS_MAX);
    let expected_rps = section.number("expected_rps", 0.0..=1e9);
    let queue_capacity = section.integer("queue_capacity", 1..=1 << 20).unwrap_or(4096);
    let quota = quota(section);
    let variants = variants::sections(section);
    let engine = engine_name(section, &variants);
    let sized = match engine {
        EngineName::Emulated => emulated(section, &variants),
        EngineName::Cuda => cuda(section, &variants),
        EngineName::Onnx => onnx(section, &variants, folder),
    };
    let largest = largest_batch(sized.as_ref());
    let (profile, variants) = if variants.is_empty() {
        (latency(section, (engine, sized.as_ref()), largest, slo, folder), Some(Vec::new()))
    } else {
        let is_onnx = engine == EngineName::Onnx;
        let read = variants::read(section, &variants, largest, (slo, is_onnx), folder);
        (read.as_ref().map(|variants| variants[0].profile.clone()), read)
    };
    let weights = weights::of_model(section, sized.as_ref().and_then(|sized| sized.files_bytes));
    section.refuse_unread();
    let Sized { engine, input_bytes, output_bytes, .. } = sized?;
    Some(ModelSpec {
        id: ModelId(index),
        name: name?.to_owned(),
        subcluster,
        profile: profile?,
        slo: slo?,
        input_bytes,
        output_bytes,
        queue_capacity,
        quota,
        expected_rps,
        engine,
        variants: variants?,
        weights,
    })
}

/// What the engine can execute.
fn largest_batch(sized: Option<&Sized>) -> u32 {
    let fixed_batch = sized.and_then(|sized| sized.engine.fixed_batch());
    fixed_batch.unwrap_or(BATCH_MAX).min(BATCH_MAX)
}

/// What the model names, or its files say.
fn engine_name(section: &Section<'_>, variants: &[Section<'_>]) -> EngineName {
    let has_file = section.has("file") || variants.iter().any(|variant| variant.has("file"));
    let by_file = if has_file { EngineName::Onnx } else { EngineName::Emulated };
    section.word("engine").unwrap_or(by_file)
}

/// ℓ(b) of a model without variants.
fn latency(
    section: &Section<'_>,
    (engine, sized): (EngineName, Option<&Sized>),
    largest: u32,
    slo: Option<Nanos>,
    folder: &Path,
) -> Option<Profile> {
    match engine {
        EngineName::Onnx if !has_profile(section) => unmeasured(section, largest, slo),
        _ if section.has("profile") => {
            profile::from_file(section, largest, sized.map(|sized| &sized.engine), folder)
        }
        _ => profile::of_keys(section, (section, None), largest),
    }
}

/// Reads a change: `name` and at least one key that can change. `None` if there are problems.
pub(crate) fn change(section: &Section<'_>) -> Option<ModelChange> {
    section.require("name", "name the model that changes");
    let name = section.name("name");
    let limit = |key| section.has(key).then(|| limit_or_none(section, key));
    let change = ModelChange {
        name: name.unwrap_or_default().to_owned(),
        slo: section.millis("slo_ms", 0.001..=MS_MAX),
        max_rps: limit("max_rps"),
        frontend_max_rps: limit("frontend_max_rps"),
        profile: has_profile(section)
            .then(|| profile::of_keys(section, (section, None), BATCH_MAX))
            .flatten(),
    };
    section.refuse_unread();
    let keys = ["slo_ms", "max_rps", "frontend_max_rps"];
    if !has_profile(section) && !keys.into_iter().any(|key| section.has(key)) {
        let fix = "give slo_ms, max_rps, frontend_max_rps, or a profile; any other key exchanges the model";
        section.refuse("name", "names a model of which nothing changes", fix);
    }
    name.map(|_| change)
}

/// A limit; 0 lifts it.
fn limit_or_none(section: &Section<'_>, key: &'static str) -> Option<RateLimit> {
    let rps = section.number(key, 0.0..=*RateLimit::RANGE.end())?;
    (rps >= *RateLimit::RANGE.start()).then(|| RateLimit::per_second(rps))
}

fn quota(section: &Section<'_>) -> QuotaLimits {
    let (model, frontend) = ("max_rps", "frontend_max_rps");
    QuotaLimits { model: rate_limit(section, model), frontend: rate_limit(section, frontend) }
}

fn rate_limit(section: &Section<'_>, key: &'static str) -> Option<RateLimit> {
    section.number(key, RateLimit::RANGE).map(RateLimit::per_second)
}

/// What the engine's own keys say.
struct Sized {
    engine: EngineSpec,
    input_bytes: u32,
    output_bytes: u32,
    /// The size of its files; `None` without any.
    files_bytes: Option<u64>,
}

fn emulated(section: &Section<'_>, variants: &[Section<'_>]) -> Option<Sized> {
    variants.iter().for_each(|variant| refuse_foreign(variant, "file", "emulated"));
    let jitter = || section.number("jitter", 0.0..=1.0).unwrap_or(0.0);
    Some(checksums(section, "emulated", || EngineSpec::Emulated { jitter: jitter() }))
}

fn cuda(section: &Section<'_>, variants: &[Section<'_>]) -> Option<Sized> {
    variants.iter().for_each(|variant| refuse_foreign(variant, "file", "cuda"));
    refuse_foreign(section, "jitter", "cuda");
    Some(checksums(section, "cuda", || EngineSpec::Cuda))
}

/// A model without a file: it answers with a checksum. Keys are read in the order in which problems list them.
fn checksums(section: &Section<'_>, name: &str, engine: impl FnOnce() -> EngineSpec) -> Sized {
    OF_FILE.iter().for_each(|key| refuse_foreign(section, key, name));
    ON_GPU.iter().for_each(|key| refuse_foreign(section, key, name));
    let output_bytes = CHECKSUM_BYTES;
    section.integer("output_bytes", output_bytes..=output_bytes);
    let engine = engine();
    let input_bytes = section.integer("input_bytes", 1..=INPUT_BYTES_MAX).unwrap_or(INPUT_BYTES);
    Sized { engine, input_bytes, output_bytes, files_bytes: None }
}

fn onnx(section: &Section<'_>, variants: &[Section<'_>], folder: &Path) -> Option<Sized> {
    for key in ["jitter", "input_bytes"] {
        refuse_foreign(section, key, "onnx");
    }
    let place = onnx_place(section);
    let OnnxModel { file, sha256, signature, layout, bytes, .. } =
        variants::onnx_model(section, variants, folder)?;
    let (input_bytes, output_bytes) = (signature.input.bytes_max(), signature.output.bytes_max());
    let is_measured = !has_profile(section) && variants::are_measured(variants);
    let place = place?;
    let engine = EngineSpec::Onnx { file, sha256, signature, layout, is_measured, place };
    Some(Sized { engine, input_bytes, output_bytes, files_bytes: Some(bytes) })
}

/// `device`, and what only means something on a GPU. `None`: there is a problem.
fn onnx_place(section: &Section<'_>) -> Option<OnnxPlace> {
    let text = if section.has("device") { section.text("device")? } else { "cpu" };
    let refuse =
        |error: NoDevice| section.refuse("device", format!("is \"{text}\""), error.to_string());
    let device: Device = text.parse().map_err(refuse).ok()?;
    let truth = |key, usual| section.truth(key).unwrap_or(usual);
    let [cpu_operators, tf32] = ["cpu_operators", "tf32"].map(|key| truth(key, false));
    let cuda_graphs = truth("cuda_graphs", true);
    let tensorrt = truth("tensorrt", false).then(|| TensorRt { fp16: truth("fp16", false) });
    if tensorrt.is_none() && section.has("fp16") {
        let fix = "add tensorrt = true, or export the model in half precision";
        section.refuse("fp16", "means nothing without TensorRT", fix);
    }
    for key in ["cpu_operators", "tf32", "cuda_graphs", "tensorrt"] {
        if device == Device::Cpu && section.has(key) {
            let fix = "name a GPU: device = \"cuda:0\", or remove the key";
            section.refuse(key, "means nothing on the CPU", fix);
        }
    }
    let check_finite = section.truth("check_finite").unwrap_or(false);
    Some(OnnxPlace { device, cpu_operators, tf32, check_finite, tensorrt, cuda_graphs })
}

fn refuse_foreign(section: &Section<'_>, key: &'static str, engine: &str) {
    if section.has(key) {
        section.refuse(
            key,
            format!("does not belong to engine = \"{engine}\""),
            "remove it, or name the other engine",
        );
    }
}
