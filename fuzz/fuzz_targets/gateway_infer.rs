//! Inference requests as a gateway reads them: JSON, and bytes behind it. What is accepted fills the slots of its tasks.
#![no_main]

use std::sync::LazyLock;

use baton_client::signature::Row;
use baton_client::{ElementType, Extent, TensorSpec};
use baton_gateway::protocol::fill::fill;
use baton_gateway::protocol::request::{Model, Request};
use baton_gateway::protocol::route::route;
use libfuzzer_sys::fuzz_target;

const BATCH_MAX: usize = 4;

static INPUTS: LazyLock<Vec<TensorSpec>> = LazyLock::new(|| {
    let spec = |name: &str, element, shape: &[Extent]| {
        TensorSpec { name: name.into(), element, shape: shape.to_vec() }
    };
    let x = spec("x", ElementType::F32, &[Extent::Fixed(2), Extent::UpTo(3)]);
    vec![x, spec("y", ElementType::I8, &[]), spec("z", ElementType::Bool, &[Extent::UpTo(2)])]
});

fuzz_target!(|data: &[u8]| {
    let _ = route(&String::from_utf8_lossy(data)).is_ok();
    let Some((&json_bytes, rest)) = data.split_first() else { return };
    let (json, mut binary) = rest.split_at(rest.len().saturating_sub(usize::from(json_bytes)));
    let model = Model { name: "m", inputs: &INPUTS, outputs: &INPUTS, batch_max: BATCH_MAX };
    let Ok(request) = Request::parse(json, &model) else { return };
    assert!((1..=BATCH_MAX).contains(&request.batch) && request.inputs.len() == INPUTS.len());
    let row = Row::new(INPUTS.clone()).expect("a row");
    let mut rows = vec![vec![0xee; row.bytes_max() as usize]; request.batch];
    if let Ok(len) = fill(&request, &INPUTS, &row, &mut rows, &mut binary) {
        assert!(rows.iter().all(|bytes| row.unpack(&bytes[..len]).is_ok()));
    }
});
