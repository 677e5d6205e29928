//! Models for unit tests.

use baton_topo::signature::{Row, Signature};
use baton_topo::{BatchLayout, Device, EngineSpec, ModelSpec, OnnxPlace, VariantSpec};
use baton_types::{ModelId, Nanos, Profile, QuotaLimits, SubclusterId};

/// An emulated model with ℓ(b) = 200 µs + b · 100 µs.
pub(crate) fn emulated(name: &str, id: u32, input_bytes: u32, batch_max: u32) -> ModelSpec {
    let (alpha, beta) = (Nanos::from_micros(100), Nanos::from_micros(200));
    ModelSpec {
        id: ModelId(id),
        name: name.into(),
        subcluster: SubclusterId(0),
        profile: Profile::linear(alpha, beta, batch_max).unwrap(),
        slo: Nanos::from_millis(25),
        input_bytes,
        output_bytes: 8,
        queue_capacity: 16,
        quota: QuotaLimits::default(),
        expected_rps: None,
        engine: EngineSpec::Emulated { jitter: 0.0 },
        variants: Vec::new(),
        weights: None,
    }
}

/// The same with two variants, the second of which takes twice as long.
pub(crate) fn supernet(name: &str, id: u32, input_bytes: u32, batch_max: u32) -> ModelSpec {
    let model = emulated(name, id, input_bytes, batch_max);
    let twice: Vec<Nanos> = model.profile.table().iter().map(|latency| latency.times(2)).collect();
    let variant = |name: &str, accuracy, profile: Profile| VariantSpec {
        name: name.into(),
        accuracy,
        profile,
        file: None,
        sha256: None,
    };
    let small = variant("small", 70_000, model.profile.clone());
    let large = variant("large", 80_000, Profile::from_table(&twice).unwrap());
    ModelSpec { variants: vec![small, large], ..model }
}

/// A model that the kernel executes.
pub(crate) fn kernel() -> ModelSpec {
    ModelSpec { engine: EngineSpec::Cuda, ..emulated("kernel", 0, 4, 3) }
}

/// A model from a file that executes as CUDA graphs, from the device with this number on.
pub(crate) fn captured(first: u32) -> ModelSpec {
    on_gpu(OnnxPlace { device: Device::Cuda(first), ..OnnxPlace::CPU })
}

/// The same without graphs.
pub(crate) fn uncaptured(first: u32) -> ModelSpec {
    on_gpu(OnnxPlace { device: Device::Cuda(first), cuda_graphs: false, ..OnnxPlace::CPU })
}

fn on_gpu(place: OnnxPlace) -> ModelSpec {
    let signature = Signature { input: Row::opaque("input", 4), output: Row::opaque("output", 12) };
    let engine = EngineSpec::Onnx {
        file: "model.onnx".into(),
        sha256: None,
        signature,
        layout: BatchLayout::default(),
        is_measured: true,
        place,
    };
    ModelSpec { engine, output_bytes: 12, ..emulated("graphs", 0, 4, 3) }
}
