//! Images as a gateway reads them. What is decoded fills the tensor, and is finite.
#![no_main]

use baton_client::{ElementType, Extent, TensorSpec};
use baton_gateway::ImageStep;
use baton_gateway::protocol::image::ImageTensor;
use libfuzzer_sys::fuzz_target;

const SIDE: usize = 5;

fuzz_target!(|jpeg: &[u8]| {
    for channels in [1, 3] {
        let shape = [channels, SIDE, SIDE].map(|extent| Extent::Fixed(extent as u32)).to_vec();
        let input = TensorSpec { name: "x".into(), element: ElementType::F32, shape };
        let step = ImageStep { model: "m".into(), mean: vec![0.5], std: vec![0.25] };
        let tensor = ImageTensor::of(&step, &[input]).expect("an image");
        let mut out = vec![0; channels * SIDE * SIDE * size_of::<f32>()];
        if tensor.write(jpeg, &mut out).is_ok() {
            let values = out.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            assert!(values.into_iter().all(f32::is_finite));
        }
    }
});
