//! Graphs through the real calls, on the fake library: what a library puts into a recorder's stream is captured and not
//! executed, and batches execute it.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]
#![expect(unsafe_code, reason = "puts work into a stream as another library does")]

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;

use baton_cuda::{
    CudaError, Driver, End, Gpu, Graph, HostBlock, HostSource, Job, Library, Pipeline, Program,
    Recorder, Room, Tensor, Work,
};
use baton_types::Nanos;

const ROWS: usize = 4;
const STRIDE: usize = 24;
/// Where the tensor lies in a row, and in an answer.
const INPUT: (usize, usize) = (8, 16);
const ANSWER: (usize, usize) = (4, 32);

/// Built with this test, and beside it.
fn path() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libbaton_cuda_fake.so")
}

/// Memory that belongs to the library whose work is captured.
struct Foreign {
    library: libloading::Library,
    tensor: u64,
}

impl Foreign {
    /// A tensor of the device with room for `ROWS` rows of 16 bytes.
    fn new() -> Self {
        // SAFETY: the fake library has no initialiser.
        let library = unsafe { libloading::Library::new(path()) }.unwrap();
        let mut tensor = 0;
        type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
        // SAFETY: the function has this signature.
        let allocate = unsafe { library.get::<Allocate>(b"cuMemAlloc_v2") }.unwrap();
        // SAFETY: it writes one address.
        let made = unsafe { allocate(&raw mut tensor, 128) };
        assert_eq!(made, 0);
        Self { library, tensor }
    }

    /// Its work: the answer is the input.
    fn work(&self, recorder: &Recorder) -> Result<(), CudaError> {
        type Copy = unsafe extern "C" fn(u64, u64, usize, *mut ()) -> c_int;
        // SAFETY: the function has this signature.
        let copy = unsafe { self.library.get::<Copy>(b"cuMemcpyDtoDAsync_v2") }.unwrap();
        // SAFETY: both halves of the tensor are there.
        let put = unsafe { copy(self.tensor + 64, self.tensor, 64, recorder.stream()) };
        assert_eq!(put, 0);
        Ok(())
    }
}

struct Batch<'a> {
    program: &'a Program<Graph>,
    rows: HostBlock,
    lens: Vec<u32>,
    answers: Vec<u8>,
}

impl Job<Graph> for Batch<'_> {
    fn work(&self) -> Work<'_, Graph> {
        Work::Graph(self.program)
    }
    fn rows(&self) -> HostSource {
        HostSource::Block(self.rows)
    }
    fn stride(&self) -> u32 {
        STRIDE as u32
    }
    fn lens(&self) -> &[u32] {
        &self.lens
    }
    fn start_by(&self) -> Nanos {
        Nanos::MAX
    }
    fn take(&mut self, answers: &[u8]) {
        self.answers.extend_from_slice(answers);
    }
}

#[test]
fn a_captured_graph_executes_batches_between_copies_of_their_tensors() {
    let gpu = Gpu::open(Arc::new(Library::open_at(&path()).unwrap()), 0).unwrap();
    let foreign = Foreign::new();
    let recorder = gpu.recorder().unwrap();
    recorder.write(foreign.tensor, &[7; 128]).unwrap();
    recorder.write(foreign.tensor, &[9; 64]).unwrap();
    let graph = recorder.capture(|| foreign.work(&recorder)).unwrap();
    let mut seen = [0; 64];
    recorder.read(foreign.tensor + 64, &mut seen).unwrap();
    assert_eq!(seen, [7; 64], "what is captured is not executed");
    recorder.replay(&graph).unwrap();
    recorder.read(foreign.tensor + 64, &mut seen).unwrap();
    assert_eq!(seen, [9; 64]);
    let tensor = |address, offset| Tensor { address, row_bytes: INPUT.1, offset };
    let program = Program {
        graph,
        inputs: vec![tensor(foreign.tensor, INPUT.0)],
        outputs: vec![tensor(foreign.tensor + 64, ANSWER.0)],
        answer_stride: ANSWER.1,
    };
    let mut pipeline = Pipeline::new(gpu, 2).unwrap();
    let room = Room { row_bytes: ROWS * STRIDE, rows: 4, answer_bytes: ROWS * ANSWER.1 };
    pipeline.reserve(room).unwrap();
    for count in [4, 1, 3] {
        let rows = pipeline.driver_mut().allocate_host(ROWS * STRIDE).unwrap();
        let content: Vec<u8> = (0..ROWS * STRIDE).map(|at| (at + count) as u8).collect();
        pipeline.driver_mut().write(rows, &content);
        let (lens, answers) = (vec![STRIDE as u32; count], Vec::new());
        pipeline.prepare(0, Batch { program: &program, rows, lens, answers }, Nanos(1_000));
        pipeline.submit(0, Nanos::ZERO);
        let back = loop {
            if let Some(back) = pipeline.poll(Nanos::ZERO) {
                break back;
            }
        };
        assert!(matches!(back.end, End::Executed { .. }), "{:?}", back.end);
        assert_eq!(back.job.answers.len(), count * ANSWER.1);
        for (row, answer) in back.job.answers.chunks(ANSWER.1).enumerate() {
            let input = &content[row * STRIDE + INPUT.0..][..INPUT.1];
            assert_eq!(&answer[ANSWER.0..][..INPUT.1], input, "row {row} of {count}");
        }
    }
}

#[test]
fn an_error_of_the_work_ends_the_capture_and_the_stream_goes_on() {
    let gpu = Gpu::open(Arc::new(Library::open_at(&path()).unwrap()), 1).unwrap();
    let recorder = gpu.recorder().unwrap();
    let refused = CudaError { call: "work", code: 1, name: "NAME".into() };
    let captured = recorder.capture(|| Err::<(), _>(refused.clone()));
    assert_eq!(captured.unwrap_err(), refused);
    let empty = recorder.capture(|| Ok::<(), CudaError>(())).unwrap();
    recorder.replay(&empty).unwrap();
    recorder.synchronize().unwrap();
}
