//! Inference requests as a gateway reads them: JSON, and bytes behind it or in shared memory. What is accepted fills the slots of
//! its tasks, and no place in a region is outside it.
#![no_main]

use std::sync::LazyLock;

use baton_client::signature::Row;
use baton_client::{ElementType, Extent, TensorSpec};
use baton_gateway::protocol::fill::fill;
use baton_gateway::protocol::memory::{Part, Regions, Registration};
use baton_gateway::protocol::problem::Problem;
use baton_gateway::protocol::request::{Model, Request};
use baton_gateway::protocol::route::route;
use libfuzzer_sys::fuzz_target;

const BATCH_MAX: usize = 4;

static INPUTS: LazyLock<Vec<TensorSpec>> = LazyLock::new(|| {
    let spec = |name: &str, element, shape: &[Extent]| TensorSpec {
        name: name.into(),
        element,
        shape: shape.to_vec(),
    };
    let x = spec("x", ElementType::F32, &[Extent::Fixed(2), Extent::UpTo(3)]);
    vec![x, spec("y", ElementType::I8, &[]), spec("z", ElementType::Bool, &[Extent::UpTo(2)])]
});

/// Any name is this region's.
struct Region(Registration);

const OBJECT: usize = 48;

impl Regions for Region {
    fn read(&self, part: &Part, at: u64, to: &mut [u8]) -> Result<(), Problem> {
        let begin = part.place_in(&self.0)? + at;
        assert!(begin >= self.0.offset && begin + to.len() as u64 <= OBJECT as u64);
        to.fill(1);
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let _ = route(&text).is_ok();
    let number = |at: usize| {
        data.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight")))
    };
    let anything = Registration {
        name: "r".into(),
        key: text.into_owned(),
        offset: number(0),
        byte_size: number(8),
    };
    if let Ok((file, end)) = anything.check() {
        assert!(!file.contains('/') && end > anything.offset);
    }
    let Some((&json_bytes, rest)) = data.split_first() else { return };
    let (json, mut binary) = rest.split_at(rest.len().saturating_sub(usize::from(json_bytes)));
    let model = Model { name: "m", inputs: &INPUTS, outputs: &INPUTS, batch_max: BATCH_MAX };
    let Ok(request) = Request::parse(json, &model) else { return };
    assert!((1..=BATCH_MAX).contains(&request.batch) && request.inputs.len() == INPUTS.len());
    let row = Row::new(INPUTS.clone()).expect("a row");
    let region = Region(Registration {
        name: "r".into(),
        key: "k".into(),
        offset: 8,
        byte_size: OBJECT as u64 - 8,
    });
    let mut rows = vec![vec![0xee; row.bytes_max() as usize]; request.batch];
    if let Ok(len) = fill(&request, &INPUTS, &row, &mut rows, &mut binary, &region) {
        assert!(rows.iter().all(|bytes| row.unpack(&bytes[..len]).is_ok()));
    }
});
