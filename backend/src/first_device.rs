//! Which engine a backend's GPU slots have: one that executes kernels and CUDA graphs on a device, or one for each kind.

use baton_topo::{Device, EngineSpec, ModelSpec, OnnxPlace};

/// The device of the first GPU slot, if kernels and CUDA graphs are all that its models need; with a kernel among them the
/// engine refuses the others by name.
pub(crate) fn first_device(models: &[ModelSpec]) -> Option<u32> {
    let kernels = models.iter().any(|model| matches!(model.engine, EngineSpec::Cuda));
    let mut devices = models.iter().map(|model| match &model.engine {
        EngineSpec::Onnx { place: OnnxPlace { device: Device::Cuda(first), .. }, .. } => {
            model.is_captured().then_some(*first)
        }
        EngineSpec::Cuda => Some(0),
        _ => None,
    });
    let first = devices.next().flatten();
    match devices.all(|device| device == first) {
        true => first,
        false => kernels.then_some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{captured, emulated, kernel, uncaptured};

    #[test]
    fn kernels_begin_at_the_first_device() {
        assert_eq!(first_device(&[kernel()]), Some(0));
        assert_eq!(first_device(&[kernel(), kernel()]), Some(0));
    }

    #[test]
    fn graphs_begin_at_the_device_that_all_of_them_name() {
        assert_eq!(first_device(&[captured(2)]), Some(2));
        assert_eq!(first_device(&[captured(2), captured(2)]), Some(2));
        assert_eq!(first_device(&[captured(2), captured(1)]), None);
        assert_eq!(first_device(&[captured(0), captured(0), captured(1)]), None);
    }

    #[test]
    fn a_graph_beside_what_is_no_graph_is_executed_by_the_engines_of_each_kind() {
        for other in [uncaptured(0), uncaptured(2), emulated("toy", 0, 4, 3)] {
            assert_eq!(first_device(std::slice::from_ref(&other)), None);
            for models in [[captured(0), other.clone()], [other, captured(0)]] {
                assert_eq!(first_device(&models), None);
            }
        }
    }

    #[test]
    fn a_kernel_keeps_its_engine_whatever_is_beside_it() {
        assert_eq!(first_device(&[captured(0), kernel()]), Some(0));
        for other in [uncaptured(0), captured(2), emulated("toy", 0, 4, 3)] {
            for models in [[kernel(), other.clone()], [other, kernel()]] {
                assert_eq!(first_device(&models), Some(0));
            }
        }
    }
}
