//! Models that execute as CUDA graphs.

use super::cluster::{EngineSpec, ModelSpec};
use super::device::Device;

impl ModelSpec {
    /// Whether it executes as CUDA graphs: on a GPU, each operator there, all rows of one shape, one behind the other in every
    /// tensor.
    pub fn is_captured(&self) -> bool {
        let EngineSpec::Onnx { signature, layout, place, .. } = &self.engine else { return false };
        let is_fixed = signature.input.is_fixed() && signature.output.is_fixed();
        let on_cuda = !place.cpu_operators && place.tensorrt.is_none();
        let is_on_gpu = place.device != Device::Cpu && on_cuda;
        place.cuda_graphs && is_on_gpu && is_fixed && layout.is_plain() && !self.is_controlled()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use baton_types::{ModelId, Nanos, Profile, QuotaLimits, SubclusterId};

    use super::super::{BatchLayout, Constant, OnnxPlace, TensorRt, VariantSpec};
    use super::*;
    use crate::signature::{ElementType, Extent, Row, Signature, TensorSpec};

    /// A row of two tensors, the second of which is that long.
    fn row(extent: Extent) -> Row {
        let tensor = |name: &str, extent| TensorSpec {
            name: name.into(),
            element: ElementType::F32,
            shape: vec![extent],
        };
        Row::new(vec![tensor("one", Extent::Fixed(3)), tensor("other", extent)]).unwrap()
    }

    fn model(place: OnnxPlace, [input, output]: [Extent; 2]) -> ModelSpec {
        let signature = Signature { input: row(input), output: row(output) };
        ModelSpec {
            id: ModelId(0),
            name: "model".into(),
            subcluster: SubclusterId(0),
            profile: Profile::linear(Nanos(1), Nanos(1), 4).unwrap(),
            slo: Nanos::from_millis(25),
            input_bytes: signature.input.bytes_max(),
            output_bytes: signature.output.bytes_max(),
            queue_capacity: 16,
            quota: QuotaLimits::default(),
            expected_rps: None,
            engine: EngineSpec::Onnx {
                file: PathBuf::from("model.onnx"),
                sha256: None,
                signature,
                layout: BatchLayout::default(),
                is_measured: true,
                place,
            },
            variants: Vec::new(),
            weights: None,
        }
    }

    /// Two variants that execute these files.
    fn variants(files: [Option<&str>; 2]) -> Vec<VariantSpec> {
        let variant = |file: Option<&str>| VariantSpec {
            name: "variant".into(),
            accuracy: 70_000,
            profile: Profile::linear(Nanos(1), Nanos(1), 4).unwrap(),
            file: file.map(PathBuf::from),
            sha256: None,
        };
        files.map(variant).into()
    }

    const GPU: OnnxPlace = OnnxPlace { device: Device::Cuda(1), ..OnnxPlace::CPU };
    const FIXED: [Extent; 2] = [Extent::Fixed(2); 2];

    #[test]
    fn a_gpu_whose_provider_executes_each_operator_captures() {
        assert!(model(GPU, FIXED).is_captured());
        let also = OnnxPlace { tf32: true, check_finite: true, ..GPU };
        assert!(model(also, FIXED).is_captured());
        let tensorrt = Some(TensorRt { fp16: false });
        for other in [
            OnnxPlace::CPU,
            OnnxPlace { cuda_graphs: false, ..GPU },
            OnnxPlace { cpu_operators: true, ..GPU },
            OnnxPlace { tensorrt, ..GPU },
        ] {
            assert!(!model(other, FIXED).is_captured(), "{other:?}");
        }
    }

    #[test]
    fn rows_of_several_shapes_are_not_captured() {
        let (fixed, open) = (Extent::Fixed(2), Extent::UpTo(2));
        for extents in [[open, fixed], [fixed, open]] {
            assert!(!model(GPU, extents).is_captured(), "{extents:?}");
        }
    }

    #[test]
    fn rows_that_do_not_lie_one_behind_the_other_are_not_captured() {
        let with = |others| {
            let mut model = model(GPU, FIXED);
            let EngineSpec::Onnx { layout, .. } = &mut model.engine else { unreachable!() };
            layout.others = others;
            model.is_captured()
        };
        assert!(with([].into()));
        assert!(!with([("one".to_owned(), Some(1))].into()));
        let mut model = model(GPU, FIXED);
        let EngineSpec::Onnx { layout, .. } = &mut model.engine else { unreachable!() };
        let (name, text, element) = ("sr".to_owned(), "sr = 1".to_owned(), ElementType::U8);
        layout.constants =
            vec![Constant { name, element, shape: Vec::new(), bytes: vec![1], text }];
        assert!(!model.is_captured(), "a constant");
    }

    #[test]
    fn variants_are_captured_if_each_has_a_file() {
        let of = |files| ModelSpec { variants: variants(files), ..model(GPU, FIXED) };
        assert!(of([Some("small.onnx"), Some("large.onnx")]).is_captured());
        assert!(!of([None, None]).is_captured(), "the variant is an input");
    }

    #[test]
    fn models_without_a_file_are_not_captured() {
        for engine in [EngineSpec::Cuda, EngineSpec::Emulated { jitter: 0.0 }] {
            assert!(!ModelSpec { engine, ..model(GPU, FIXED) }.is_captured());
        }
    }
}
