//! A whole backend with its threads, to which a real model is added while it serves. Needs `ORT_DYLIB_PATH`; says so
//! loudly when it is not set. Waits are bounded and always for the event itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_backend::Backend;
use baton_backend::execute::checksum;
use baton_rdma::wire::{
    Action, LeaveAck, ModelDesc, ModelDown, ModelTable, PeerUp, Pong, ReadyAck, Role, WireAddr,
};
use baton_rdma::{Identity, SlabSet, SlabSpec, TcpConfig, TcpTransport, Transport};
use baton_topo::Clock;
use baton_types::{FrontendId, GpuId, ModelId, Nanos, TaskId};
use zerocopy::IntoBytes;

use crate::party::{Party, Said};
use crate::world::{
    FIRST_GPU, FRONTEND_TOKEN, INPUT_BYTES, MODEL, acknowledge_join, config, listed, send_catalog,
};

/// The scheduler's id of the digits.
const DIGITS: u32 = 5 | 3 << 16;
/// An 8×8 image, and ten logits.
const DIGITS_BYTES: [u32; 2] = [256, 40];
const BATCH_MAX: u32 = 4;
const PATIENCE: Nanos = Nanos::from_millis(60_000);

fn digits(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits").join(name)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn party(role: Role, member: u32) -> Party<TcpTransport> {
    let (any, identity) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Identity { role, member });
    Party::new(TcpTransport::bind(Some(any), identity, TcpConfig::default()).unwrap())
}

/// Scheduler and frontend, on the test's thread.
struct Others {
    clock: Clock,
    control: Party<TcpTransport>,
    thread: Party<TcpTransport>,
    frontend: Party<TcpTransport>,
    slabs: Arc<SlabSet>,
    /// What the scheduler heard.
    told: Vec<Said>,
    answered: Vec<u64>,
    actions: u64,
}

impl Others {
    fn start() -> Self {
        let spec = |model, input_bytes, output_bytes| SlabSpec {
            model: ModelId(model),
            slots: 8,
            input_bytes,
            output_bytes,
        };
        let [input, output] = DIGITS_BYTES;
        let specs = [spec(MODEL, INPUT_BYTES, 8), spec(DIGITS, input, output)];
        let slabs = SlabSet::new(&specs, 1).unwrap();
        slabs.set_frontend(FrontendId(1));
        let mut frontend = party(Role::Frontend, 1);
        frontend.transport.expose(slabs.clone()).unwrap();
        Self {
            clock: Clock::start(),
            control: party(Role::Control, 0),
            thread: party(Role::ModelThread, 0),
            frontend,
            slabs,
            told: Vec::new(),
            answered: Vec::new(),
            actions: 0,
        }
    }

    fn pass(&mut self) {
        let now = self.clock.now();
        for said in self.control.poll(now) {
            self.on_control(&said, now);
            self.told.push(said);
        }
        self.thread.poll(now);
        for said in self.frontend.poll(now) {
            if let Said::Result { task, .. } = said {
                self.answered.push(task);
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
                self.introduce();
            }
            Said::Ping(sent) => {
                let pong = Pong { sent_ns: (*sent).into(), scheduler_ns: now.0.into() };
                self.control.tell(&pong, &[]);
            }
            Said::Leave => self.control.tell(&LeaveAck { reserved: 0.into() }, &[]),
            _ => {}
        }
    }

    /// The frontend has joined, without its slab of the digits.
    fn introduce(&mut self) {
        self.control.tell(&self.slabs.descs()[0], &[]);
        let up = PeerUp {
            frontend: 1.into(),
            reserved: 0.into(),
            token: FRONTEND_TOKEN.into(),
            addr: WireAddr::new(self.frontend.transport.local_addr()),
            slabs: 1.into(),
            reserved2: 0.into(),
        };
        self.control.tell(&up, &[]);
    }

    fn add_digits(&mut self) {
        let [input, output] = DIGITS_BYTES;
        let desc = ModelDesc {
            model: DIGITS.into(),
            thread: 0.into(),
            subcluster: 8.into(),
            batch_max: BATCH_MAX.into(),
            input_bytes: input.into(),
            output_bytes: output.into(),
            slo_ns: 50_000_000.into(),
        };
        let file = digits("digits.onnx");
        let table = format!(
            "[[model]]\nname = \"digits\"\nslo_ms = 50\nbatch_max = {BATCH_MAX}\nfile = \"{}\"\n",
            file.display()
        );
        self.control.tell(&desc, b"digits");
        self.control.tell(&ModelTable { model: DIGITS.into() }, table.as_bytes());
    }

    /// One batch of these inputs; returns the answers.
    fn infer(&mut self, model: u32, inputs: &[&[u8]]) -> Vec<Vec<u8>> {
        let submit = |bytes: &&[u8]| {
            let mut input = self.slabs.acquire(ModelId(model)).unwrap();
            input.copy_from_slice(bytes);
            input.submit()
        };
        let tasks: Vec<TaskId> = inputs.iter().map(submit).collect();
        let now = self.clock.now();
        let window = [now, now + PATIENCE];
        self.actions += 1;
        let action = Action::infer(self.actions, window, ModelId(model), GpuId(FIRST_GPU + 1));
        let tail = listed(&tasks, inputs[0].len() as u32);
        self.thread.tell(&action, tail.as_bytes());
        self.until("the batch is answered", |others| {
            tasks.iter().all(|task| others.answered.contains(&task.0))
        });
        let answer = |&task: &TaskId| {
            assert!(self.slabs.complete(task));
            self.slabs.output(task).unwrap().to_vec()
        };
        tasks.iter().map(answer).collect()
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = self.clock.now() + PATIENCE;
        while !done(self) {
            assert!(self.clock.now() < end, "in vain: {what}; told {:?}", self.told);
            self.pass();
        }
    }
}

#[test]
fn a_real_model_is_added_to_a_running_backend_and_answers_as_its_reference_says() {
    if std::env::var_os("ORT_DYLIB_PATH").is_none_or(|path| path.is_empty()) {
        eprintln!("SKIPPED: ORT_DYLIB_PATH is not set; export it: $(./x onnxruntime)");
        return;
    }
    let mut others = Others::start();
    let config = config(others.control.transport.local_addr(), 2);
    let starting = std::thread::spawn(move || Backend::start(config, Clock::start()));
    others.until("it is ready", |others| others.told.contains(&Said::Ready));
    others.control.tell(&ReadyAck {}, &[]);
    let backend = starting.join().unwrap().unwrap();

    others.add_digits();
    assert_eq!(others.infer(MODEL, &[&[7; 64]]), [checksum(&[7; 64])], "whatever is being loaded");
    let profile = |said: &Said| match said {
        Said::Profile { model: DIGITS, table } => Some(table.len()),
        _ => None,
    };
    others.until("it is loaded", |others| others.told.iter().any(|said| profile(said).is_some()));
    let sizes = others.told.iter().find_map(profile);
    assert_eq!(sizes, Some(BATCH_MAX as usize), "it was measured");
    let slab = others.slabs.descs()[1];
    others.control.tell(&slab, &[]);
    let known = Said::Known { frontend: 1, first_slot: slab.first_slot.get() };
    others.until("the slab is known", |others| others.told.contains(&known));

    let heldout = std::fs::read(digits("heldout.bin")).unwrap();
    let images: Vec<&[u8]> = heldout[20..].chunks_exact((64 + 10 + 1) * 4).take(4).collect();
    let inputs: Vec<&[u8]> = images.iter().map(|image| &image[..256]).collect();
    let answers = others.infer(DIGITS, &inputs);
    for (image, answer) in images.iter().zip(answers) {
        for (ours, reference) in floats(&answer).iter().zip(floats(&image[256..296])) {
            assert!((ours - reference).abs() < 1e-3, "{ours} {reference}");
        }
    }
    others.control.tell(&ModelDown { model: DIGITS.into() }, &[]);
    assert_eq!(others.infer(MODEL, &[&[8; 64]]), [checksum(&[8; 64])]);
    let leaving = std::thread::spawn(move || backend.leave());
    others.until("it leaves", |others| others.told.contains(&Said::Leave));
    while !leaving.is_finished() {
        others.pass();
    }
    let counters = leaving.join().unwrap().unwrap();
    assert_eq!((counters.models_added, counters.models_removed), (1, 1));
}
