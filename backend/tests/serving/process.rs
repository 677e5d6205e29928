//! A whole backend with its threads, over TCP, against a scheduler and a frontend played by one
//! thread. Waits are bounded and always for the event itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_backend::execute::{EngineError, checksum};
use baton_backend::{Backend, BackendConfig, BackendError};
use baton_rdma::wire::{Action, LeaveAck, Pong, ReadyAck, Role};
use baton_rdma::{Identity, SlabSet, TcpConfig, TcpTransport, Transport};
use baton_topo::{BatchLayout, Clock, EngineSpec, OnnxPlace};
use baton_types::{FrontendId, GpuId, ModelId, Nanos, TaskId};
use crossbeam_channel::{Receiver, Sender, bounded};

use zerocopy::IntoBytes;

use crate::party::{Party, Said};
use crate::world::{
    ActionSpec, INPUT_BYTES, MODEL, acknowledge_join, announce, config, listed, send_catalog, slabs,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// Scheduler and frontend; lives on its own thread.
struct Others {
    clock: Clock,
    control: Party<TcpTransport>,
    thread: Party<TcpTransport>,
    frontend: Party<TcpTransport>,
    slabs: Arc<SlabSet>,
    answers: Sender<(TaskId, Vec<u8>)>,
}

/// The test's handle on them.
struct Playing {
    scheduler: SocketAddr,
    slabs: Arc<SlabSet>,
    answers: Receiver<(TaskId, Vec<u8>)>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn party(role: Role, member: u32) -> Party<TcpTransport> {
    party_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), role, member)
}

fn party_at(listen: SocketAddr, role: Role, member: u32) -> Party<TcpTransport> {
    let identity = Identity { role, member };
    Party::new(TcpTransport::bind(Some(listen), identity, TcpConfig::default()).unwrap())
}

impl Playing {
    fn start() -> Self {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    fn start_at(scheduler: SocketAddr) -> Self {
        let slabs = slabs(1);
        let (answers, answers_out) = bounded(16);
        let mut others = Others {
            clock: Clock::start(),
            control: party_at(scheduler, Role::Control, 0),
            thread: party(Role::ModelThread, 0),
            frontend: party(Role::Frontend, 1),
            slabs: slabs.clone(),
            answers,
        };
        others.frontend.transport.expose(slabs.clone()).unwrap();
        let scheduler = others.control.transport.local_addr();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                others.pass();
            }
        });
        Self { scheduler, slabs, answers: answers_out, stop, thread: Some(thread) }
    }

    /// The scheduler and the frontend die.
    fn kill(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Others {
    fn pass(&mut self) {
        let now = self.clock.now();
        for said in self.control.poll(now) {
            self.on_control(&said, now);
        }
        self.thread.poll(now);
        for said in self.frontend.poll(now) {
            if let Said::Result { task, .. } = said {
                let task = TaskId(task);
                assert!(self.slabs.complete(task));
                let output = self.slabs.output(task).expect("landed").to_vec();
                self.answers.send((task, output)).unwrap();
            }
        }
        self.control.transport.wait(Some(Nanos::from_micros(200)));
    }

    fn on_control(&mut self, said: &Said, now: Nanos) {
        match said {
            Said::Opened(_) => {
                send_catalog(&mut self.control, self.thread.transport.local_addr(), "resnet50", 64);
            }
            Said::Join { .. } => {
                acknowledge_join(&mut self.control);
                let addr = self.frontend.transport.local_addr();
                announce(&mut self.control, &self.slabs, FrontendId(1), addr);
            }
            Said::Ping(sent) => {
                let pong = Pong { sent_ns: (*sent).into(), scheduler_ns: now.0.into() };
                self.control.tell(&pong, &[]);
            }
            Said::Ready => {
                self.control.tell(&ReadyAck {}, &[]);
                self.infer_three(now);
            }
            Said::Leave => self.control.tell(&LeaveAck { reserved: 0.into() }, &[]),
            _ => {}
        }
    }

    /// One batch of three inputs.
    fn infer_three(&mut self, now: Nanos) {
        let tasks = [1, 2, 3].map(|byte| {
            let mut input = self.slabs.acquire(ModelId(MODEL)).unwrap();
            input.fill(byte);
            input.submit()
        });
        let window = [now, now + Nanos::from_millis(PATIENCE.as_millis() as u64)];
        let gpu = GpuId(ActionSpec::default().gpu);
        let action = Action::infer(1, window, ModelId(MODEL), gpu);
        self.thread.tell(&action, listed(&tasks, INPUT_BYTES).as_bytes());
    }
}

/// Nothing here ends because this machine is busy.
fn backend_config(scheduler: SocketAddr) -> BackendConfig {
    let patience = Nanos::from_millis(PATIENCE.as_millis() as u64);
    BackendConfig {
        member_timeout: patience,
        join_timeout: patience,
        leave_timeout: patience,
        ..config(scheduler, 2)
    }
}

#[test]
fn a_process_joins_serves_and_leaves() {
    let mut playing = Playing::start();
    let backend = Backend::start(backend_config(playing.scheduler), Clock::start()).unwrap();
    let mut answers: Vec<Vec<u8>> =
        (0..3).map(|_| playing.answers.recv_timeout(PATIENCE).unwrap().1).collect();
    answers.sort();
    let mut expected = [1, 2, 3].map(|byte| checksum(&[byte; 64]).to_vec());
    expected.sort();
    assert_eq!(answers, expected);
    let counters = backend.leave().unwrap();
    assert_eq!((counters.batches_executed, counters.rows_executed), (1, 3));
    assert_eq!(counters.fetch_bytes, 3 * 64);
    assert_eq!(playing.slabs.leases(), 0);
    playing.kill();
}

#[test]
fn a_process_serves_again_when_its_scheduler_has_died_and_come_back() {
    let mut first = Playing::start();
    let backend = Backend::start(backend_config(first.scheduler), Clock::start()).unwrap();
    first.kill();
    let mut second = Playing::start_at(first.scheduler);
    for _ in 0..3 {
        second.answers.recv_timeout(PATIENCE).unwrap();
    }
    assert_eq!(backend.wait_for(Duration::ZERO), None, "it runs all the same");
    assert_eq!(backend.leave().unwrap().rejoins, 1);
    second.kill();
}

#[test]
fn without_a_scheduler_the_start_fails_and_says_where_it_looked() {
    let free = party(Role::Control, 0).transport.local_addr();
    let config = BackendConfig { join_timeout: Nanos::from_millis(300), ..backend_config(free) };
    let error = Backend::start(config, Clock::start()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("no scheduler for") && text.contains(&free.to_string()), "{text}");
}

#[test]
fn a_model_that_cannot_be_loaded_stops_the_start_before_anybody_is_called() {
    let unused = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let mut config = backend_config(unused);
    config.models[1].engine = EngineSpec::Onnx {
        file: "/nowhere/tiny.onnx".into(),
        sha256: None,
        signature: config.models[1].signature(),
        layout: BatchLayout::default(),
        is_measured: true,
        place: OnnxPlace::CPU,
    };
    let error = Backend::start(config, Clock::start()).unwrap_err();
    assert!(matches!(error, BackendError::Engine(_)), "{error}");
}

#[test]
fn models_beyond_the_memory_for_models_stop_the_start_and_the_error_names_the_key() {
    let unused = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let mut config = backend_config(unused);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("large.onnx");
    std::fs::write(&file, vec![0; (1 << 20) + 1]).unwrap();
    let (signature, layout) = (config.models[1].signature(), BatchLayout::default());
    let place = OnnxPlace::CPU;
    config.models[1].engine =
        EngineSpec::Onnx { file, sha256: None, signature, layout, is_measured: true, place };
    config.model_memory = Some(1 << 20);
    let error = Backend::start(config, Clock::start()).unwrap_err();
    let BackendError::Engine(EngineError::Memory { needs_bytes, free_bytes, .. }) = error else {
        panic!("{error}");
    };
    assert_eq!((needs_bytes, free_bytes), ((1 << 20) + 1, 1 << 20));
    let said = error.to_string();
    assert!(said.contains("`tiny` takes 2 MiB") && said.contains("model_memory_mib"), "{said}");
}
