//! `[[model]]`: one model of the cluster file.

use std::path::Path;

use baton_core::{BATCH_MAX, ModelId, Nanos, Profile, ProfileError, QuotaLimits, RateLimit};
use serde::Deserialize;

use crate::cluster_file::cluster::{EngineSpec, ModelSpec};
use crate::cluster_file::section::Section;
use crate::cluster_file::tables::Subclusters;

/// No execution and no objective is longer than ten minutes.
const MS_MAX: f64 = 600_000.0;
/// One input row.
const INPUT_BYTES_MAX: u32 = 64 << 20;
/// One output row.
const OUTPUT_BYTES_MAX: u32 = 1 << 20;
/// An emulated model's input unless it says otherwise: 224 × 224 RGB bytes, as in the papers.
const INPUT_BYTES: u32 = 224 * 224 * 3;
/// An emulated engine answers with a checksum: one little-endian u64.
const EMULATED_OUTPUT_BYTES: u32 = 8;
/// Largest batch of an α, β profile unless the model sets it.
const LINEAR_BATCH_MAX: u32 = 64;
/// An f32.
const FLOAT_BYTES: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EngineName {
    Emulated,
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
    let profile = profile(section);
    section.require("slo_ms", "give the latency objective: slo_ms = 25");
    let slo = section.millis("slo_ms", 0.001..=MS_MAX);
    let expected_rps = section.number("expected_rps", 0.0..=1e9);
    let queue_capacity = section.integer("queue_capacity", 1..=1 << 20).unwrap_or(4096);
    let quota = QuotaLimits {
        model: rate_limit(section, "max_rps"),
        frontend: rate_limit(section, "frontend_max_rps"),
    };
    let sized = match section.word("engine").unwrap_or(EngineName::Emulated) {
        EngineName::Emulated => emulated(section),
        EngineName::Onnx => onnx(section, folder),
    };
    section.refuse_unread();
    let Sized { engine, input_bytes, output_bytes } = sized?;
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
    })
}

fn rate_limit(section: &Section<'_>, key: &'static str) -> Option<RateLimit> {
    section.number(key, RateLimit::RANGE).map(RateLimit::per_second)
}

/// ℓ(b), from `latency_ms` or from `alpha_ms` and `beta_ms`.
fn profile(section: &Section<'_>) -> Option<Profile> {
    if section.has("latency_ms") {
        return measured(section);
    }
    let fix = "give alpha_ms and beta_ms (ℓ(b) = α·b + β), or a table: latency_ms = [6.1, 7.2]";
    section.require("alpha_ms", fix);
    section.require("beta_ms", fix);
    let alpha = section.millis("alpha_ms", 0.0..=MS_MAX);
    let beta = section.millis("beta_ms", 0.0..=MS_MAX);
    let batch_max = section.integer("batch_max", 1..=BATCH_MAX);
    let profile = Profile::linear(alpha?, beta?, batch_max.unwrap_or(LINEAR_BATCH_MAX));
    accept(section, "alpha_ms", profile)
}

fn measured(section: &Section<'_>) -> Option<Profile> {
    for key in ["alpha_ms", "beta_ms"] {
        if section.has(key) {
            section.refuse(
                key,
                "latency_ms gives ℓ(b) already",
                format!("remove {key} or latency_ms"),
            );
        }
    }
    let table = section.numbers("latency_ms", 0.0..=MS_MAX)?;
    let mut table: Vec<Nanos> = table.into_iter().map(Nanos::from_millis_f64).collect();
    let entries = (table.len() as u32).clamp(1, BATCH_MAX);
    if let Some(batch_max) = section.integer("batch_max", 1..=entries) {
        table.truncate(batch_max as usize);
    }
    accept(section, "latency_ms", Profile::from_table(&table))
}

fn accept(
    section: &Section<'_>,
    key: &str,
    profile: Result<Profile, ProfileError>,
) -> Option<Profile> {
    let refuse = |error: ProfileError| {
        let fix = match error {
            ProfileError::Empty => "measure at least ℓ(1)",
            ProfileError::TooLarge => "give fewer entries",
            ProfileError::ZeroLatency => "give ℓ(1) a latency above zero",
            ProfileError::TooLong => "give milliseconds",
            ProfileError::NotMonotone { .. } => "raise that entry to the one before it",
        };
        section.refuse(key, error.to_string(), fix);
    };
    profile.map_err(refuse).ok()
}

/// What the engine's own keys say.
struct Sized {
    engine: EngineSpec,
    input_bytes: u32,
    output_bytes: u32,
}

fn emulated(section: &Section<'_>) -> Option<Sized> {
    for key in ["file", "input_shape"] {
        refuse_foreign(section, key, "emulated");
    }
    let fixed = EMULATED_OUTPUT_BYTES;
    section.integer("output_bytes", fixed..=fixed);
    Some(Sized {
        engine: EngineSpec::Emulated { jitter: section.number("jitter", 0.0..=1.0).unwrap_or(0.0) },
        input_bytes: section.integer("input_bytes", 1..=INPUT_BYTES_MAX).unwrap_or(INPUT_BYTES),
        output_bytes: fixed,
    })
}

fn onnx(section: &Section<'_>, folder: &Path) -> Option<Sized> {
    for key in ["jitter", "input_bytes"] {
        refuse_foreign(section, key, "onnx");
    }
    section.require("file", "name the model file: file = \"model.onnx\"");
    section
        .require("input_shape", "give it without the batch dimension: input_shape = [3, 224, 224]");
    section.require("output_bytes", "give 4 bytes per output value: output_bytes = 40");
    let file = section.text("file").map(|file| folder.join(file));
    if let Some(file) = file.as_ref().filter(|file| !file.is_file()) {
        let what = format!("there is no file {}", file.display());
        section.refuse(
            "file",
            what,
            "give a path relative to this cluster file, or an absolute one",
        );
    }
    let input_shape = section.integers("input_shape", 1..=INPUT_BYTES_MAX);
    let input_bytes = input_shape.as_deref().and_then(|shape| row_bytes(section, shape));
    let output_bytes = section.integer("output_bytes", 1..=OUTPUT_BYTES_MAX);
    if output_bytes.is_some_and(|bytes| bytes % FLOAT_BYTES != 0) {
        section.refuse(
            "output_bytes",
            "is not a multiple of 4",
            "give 4 bytes per f32 of the output",
        );
    }
    Some(Sized {
        engine: EngineSpec::Onnx { file: file?, input_shape: input_shape? },
        input_bytes: input_bytes?,
        output_bytes: output_bytes?,
    })
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

/// Bytes of one input row of this shape.
fn row_bytes(section: &Section<'_>, shape: &[u32]) -> Option<u32> {
    let bytes = shape.iter().try_fold(FLOAT_BYTES, |bytes, &extent| bytes.checked_mul(extent));
    let bytes = bytes.filter(|&bytes| bytes <= INPUT_BYTES_MAX && !shape.is_empty());
    if bytes.is_none() {
        let what = format!("one input row must be 4 … {INPUT_BYTES_MAX} bytes of f32");
        section.refuse("input_shape", what, "give the shape without the batch dimension");
    }
    bytes
}
