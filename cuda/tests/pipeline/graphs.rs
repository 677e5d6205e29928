//! Graphs of several tensors: what is copied on the device before and after.

use baton_cuda::{
    DeviceMemory, End, HostSource, Job, Pipeline, Program, Room, RowsAt, Tensor, Work,
};
use baton_cuda_sim::{Place, RowCopy, SimDriver, SimGraph};
use baton_types::Nanos;

const ROWS: u32 = 3;
/// Of a row, and of an answer.
const STRIDES: (usize, usize) = (48, 24);
/// Address, length and offset of each.
const INPUTS: [(u64, usize, usize); 2] = [(0xa000, 6, 0), (0xa100, 40, 8)];
const OUTPUTS: [(u64, usize, usize); 2] = [(0xb000, 4, 0), (0xb100, 16, 8)];

struct Batch {
    program: Program<SimGraph>,
    answer_bytes: usize,
}

impl Job<SimGraph> for Batch {
    fn work(&self) -> Work<'_, SimGraph> {
        Work::Graph(&self.program)
    }
    fn rows(&self) -> HostSource {
        HostSource::Registered(0x1000)
    }
    fn stride(&self) -> u32 {
        STRIDES.0 as u32
    }
    fn lens(&self) -> &[u32] {
        &[STRIDES.0 as u32; ROWS as usize]
    }
    fn start_by(&self) -> Nanos {
        Nanos::MAX
    }
    fn take(&mut self, answers: &[u8]) {
        self.answer_bytes = answers.len();
    }
}

fn batch() -> Batch {
    let tensors = |of: [(u64, usize, usize); 2]| {
        of.map(|(address, row_bytes, offset)| Tensor { address, row_bytes, offset }).into()
    };
    let graph = SimGraph { input: INPUTS[0].0, output: OUTPUTS[0].0, takes: Nanos(1_000) };
    let (inputs, outputs) = (tensors(INPUTS), tensors(OUTPUTS));
    let program = Program { graph, inputs, outputs, answer_stride: STRIDES.1 };
    Batch { program, answer_bytes: 0 }
}

#[test]
fn rows_are_taken_apart_for_a_graph_and_its_answers_are_put_together() {
    let driver = SimDriver::default();
    driver.world().host_write(Place::Rows(0x1000), vec![1; 8]);
    let mut pipeline = Pipeline::new(driver.clone(), 1).unwrap();
    let row_bytes = ROWS as usize * STRIDES.0;
    pipeline.reserve(Room { row_bytes, rows: ROWS, answer_bytes: 0 }).unwrap();
    pipeline.prepare(0, batch(), Nanos(1_000));
    driver.world().advance(1_000_000);
    let now = Nanos(driver.look().now);
    pipeline.submit(0, now);
    driver.world().advance(1_000_000);
    let back = pipeline.poll(now).unwrap();
    assert!(matches!(back.end, End::Executed { .. }), "{:?}", back.end);
    assert_eq!(back.job.answer_bytes, ROWS as usize * STRIDES.1);
    let copies = driver.look().row_copies.clone();
    let (rows, answers) = (copies[0].from.memory, copies[2].to.memory);
    assert!(
        matches!((rows, answers), (DeviceMemory::Block(one), DeviceMemory::Block(other)) if one != other)
    );
    // Either side of a copy: the tensor, and the row or the answer that it is a part of.
    let sides = |(address, bytes, offset), memory, stride| {
        let tensor = RowsAt { memory: DeviceMemory::At(address), offset: 0, stride: bytes };
        (tensor, RowsAt { memory, offset, stride }, bytes)
    };
    let inputs = INPUTS.map(|tensor| sides(tensor, rows, STRIDES.0));
    let outputs = OUTPUTS.map(|tensor| sides(tensor, answers, STRIDES.1));
    let before = inputs.map(|(to, from, bytes)| RowCopy { to, from, bytes, rows: ROWS });
    let after = outputs.map(|(from, to, bytes)| RowCopy { to, from, bytes, rows: ROWS });
    assert_eq!(copies, [before, after].concat());
}
