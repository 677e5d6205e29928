//! The `cuda` engine on an executor's thread, over the fake driver.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use baton_backend::execute::{
    BatchBack, BatchEnd, BatchJob, Cuda, EngineError, Event, Executor, HostStore, OpenLibrary,
    Outputs, Placing, ThreadExecutor, checksum,
};
use baton_cuda::{Gpu, Library, OpenError};
use baton_rdma::BatchBuffer;
use baton_topo::{Clock, EngineSpec, Idle, ModelSpec, Placement, Waker, check_text};
use baton_types::{ModelId, Nanos, SplitMix64};
use crossbeam_channel::{Receiver, unbounded};

const PATIENCE: Duration = Duration::from_secs(20);
const STRIDE: u32 = 3_000;
const SLOTS: usize = 4;

/// Built as a dependency of this test, and beside it.
fn fake() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    folder.join("libbaton_cuda_fake.so")
}

fn open_fake() -> Result<Arc<Library>, OpenError> {
    static FAKE: OnceLock<Arc<Library>> = OnceLock::new();
    Ok(Arc::clone(FAKE.get_or_init(|| Arc::new(Library::open_at(&fake()).unwrap()))))
}

/// Models of a cluster file: the first is the one that batches name.
fn models(more: &str) -> Vec<ModelSpec> {
    let text = format!(
        "[[model]]\nname = \"toy\"\nengine = \"cuda\"\nalpha_ms = 0.02\nbeta_ms = 0.1\nslo_ms = 50\ninput_bytes = {STRIDE}\n\
         batch_max = 16\n{more}\n[[backend]]\nname = \"gpu\"\n"
    );
    let cluster = check_text(Path::new("cluster.toml"), &text).cluster.unwrap();
    assert_eq!(cluster.models[0].engine, EngineSpec::Cuda);
    cluster.models
}

fn start(
    open: OpenLibrary,
    device: u32,
    models: Vec<ModelSpec>,
    owner: Waker,
) -> Result<ThreadExecutor, EngineError> {
    let placement = Placement { name: "test-gpu".into(), core: None, idle: Idle::Park };
    let clock = Clock::start();
    let (slot, seed, model_memory) = (device, 1, None);
    let (store, trials) = (HostStore::default(), vec![]);
    let placing =
        Placing { placement, clock, slot, seed, model_memory, store, trials, measure: true };
    let make = move || Cuda::new(open, clock, (device, device), HostStore::default());
    Ok(ThreadExecutor::start_with(placing, models, owner, make)?.0)
}

fn refusal(open: OpenLibrary, device: u32, models: Vec<ModelSpec>) -> String {
    start(open, device, models, Waker::for_current_thread()).map(drop).unwrap_err().to_string()
}

struct Rig {
    executor: ThreadExecutor,
    owner: Waker,
    woken: Receiver<()>,
    rows: Vec<Arc<BatchBuffer>>,
    random: SplitMix64,
    /// Whose batches these are.
    model: ModelId,
    /// By batch slot: the right answers.
    expected: [Vec<[u8; 8]>; SLOTS],
}

impl Rig {
    fn new() -> Self {
        Self::serving(models(""), ModelId(0))
    }

    fn serving(models: Vec<ModelSpec>, model: ModelId) -> Self {
        let (woken_out, woken) = unbounded();
        let owner = Waker::new(move || woken_out.send(()).unwrap_or_default());
        let executor = start(open_fake, 0, models, owner.clone()).unwrap();
        let rows = (0..SLOTS).map(|_| executor.memory().inputs(16 * STRIDE as usize).unwrap());
        let rows = rows.collect();
        let (random, expected) = (SplitMix64::new(1), std::array::from_fn(|_| Vec::new()));
        Self { executor, owner, woken, rows, random, model, expected }
    }

    /// Random rows of random lengths.
    fn prepare(&mut self, slot: usize) {
        let count = 1 + self.random.below(16) as u32;
        let mut lens = Vec::new();
        self.expected[slot].clear();
        for row in 0..count {
            let mut input = self.rows[slot].lend(row, STRIDE).unwrap();
            let len = self.random.below(u64::from(STRIDE) + 1) as usize;
            input.fill_with(|| self.random.next_u64() as u8);
            self.expected[slot].push(checksum(&input[..len]));
            lens.push(len as u32);
        }
        let rows = self.rows[slot].rows(count, STRIDE).unwrap();
        let mut outputs = Outputs::with_room(16, 128).unwrap();
        outputs.reset(count, 8);
        let (model, start_by) = (self.model, Nanos::MAX.into());
        let job = BatchJob { slot, model, rows, stride: STRIDE, lens, outputs, start_by };
        self.executor.prepare(job);
    }

    fn next(&mut self) -> BatchBack {
        loop {
            self.owner.prepare_sleep();
            match self.executor.poll().unwrap() {
                Some(Event::Batch(back)) => return back,
                Some(other) => panic!("{other:?}"),
                None => self.woken.recv_timeout(PATIENCE).expect("something comes back"),
            }
        }
    }
}

#[test]
fn answers_are_the_rows_checksums_while_the_next_batches_are_copied() {
    let mut rig = Rig::new();
    (0..SLOTS).for_each(|slot| rig.prepare(slot));
    rig.executor.submit(0);
    for batch in 0..300 {
        rig.executor.submit((batch + 1) % SLOTS);
        let back = rig.next();
        let BatchEnd::Executed { started, finished, result, .. } = &back.end else {
            panic!("{back:?}")
        };
        assert_eq!(*result, Ok(()));
        assert!(*finished - *started >= Nanos::from_micros(100), "ℓ(1) at least");
        for (row, expected) in rig.expected[back.slot].iter().enumerate() {
            assert_eq!(back.outputs.row(row as u32), Ok(&expected[..]), "batch {batch}, row {row}");
        }
        rig.prepare(back.slot);
    }
}

/// They come in any order where models are added and removed.
#[test]
fn a_model_stays_when_one_with_a_lower_number_comes() {
    let mut both = models(&format!(
        "[[model]]\nname = \"other\"\nengine = \"cuda\"\nalpha_ms = 0.02\nbeta_ms = 0.1\nslo_ms = 50\n\
         input_bytes = {STRIDE}\nbatch_max = 16\n"
    ));
    both.reverse();
    assert_eq!(both[0].id, ModelId(1));
    let mut rig = Rig::serving(both, ModelId(1));
    rig.prepare(0);
    rig.executor.submit(0);
    let back = rig.next();
    assert!(matches!(back.end, BatchEnd::Executed { result: Ok(()), .. }), "{back:?}");
}

#[test]
fn a_withdrawn_batch_gives_its_rows_back() {
    let mut rig = Rig::new();
    rig.prepare(2);
    rig.executor.withdraw(2);
    let back = rig.next();
    assert_eq!((back.slot, back.end), (2, BatchEnd::Withdrawn));
    rig.prepare(2);
}

#[test]
fn a_host_without_what_is_needed_is_refused_with_the_fix() {
    let missing =
        refusal(|| Library::open_at(Path::new("/no/libcuda.so.1")).map(Arc::new), 0, models(""));
    assert!(missing.contains("no CUDA driver found") && missing.contains("525"), "{missing}");
    let foreign = refusal(|| Library::open_at(Path::new("libc.so.6")).map(Arc::new), 0, models(""));
    for symbol in ["cuInit", "cuLaunchKernel", "cuMemHostRegister_v2"] {
        assert!(foreign.contains(symbol), "every missing symbol at once: {foreign}");
    }
    let ninth = refusal(open_fake, 8, models(""));
    assert!(ninth.contains("GPU slot 8") && ninth.contains("`gpus`"), "{ninth}");
}

#[test]
fn a_model_that_is_too_large_or_anothers_is_refused_by_name() {
    let large = "[[model]]\nname = \"huge\"\nengine = \"cuda\"\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 900\n\
                 input_bytes = 8388608\nbatch_max = 128\n";
    let refused = refusal(open_fake, 0, models(large));
    assert!(refused.contains("`huge`") && refused.contains("4096 MiB"), "{refused}");
    assert!(refused.contains("OUT_OF_MEMORY") && refused.contains("batch_max"), "{refused}");
    let other = "[[model]]\nname = \"cpu\"\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 900\n";
    let refused = refusal(open_fake, 0, models(other));
    assert!(refused.contains("`cpu`") && refused.contains("sub-cluster"), "{refused}");
}

#[test]
fn the_fake_says_what_it_is() {
    let library = open_fake().unwrap();
    assert!(library.is_fake());
    let devices = library.devices().unwrap();
    assert_eq!((devices.len(), devices[0].name.as_str()), (8, "Baton fake GPU"));
    drop(Gpu::open(library, 1).unwrap());
}
