//! Many ONNX models of which a tenth fits, in processes: every answer is right, also while the backend and the scheduler are
//! killed and started again. `BATON_CACHE_COPIES=500 cargo test --test cache_onnx -- --nocapture` is the long form.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, park_timeout, spawn};
use std::time::Duration;

use baton_client::{Client, ClientConfig, Clock, Deadline, Nanos, Outcome};
use rustix::process::Signal;
use serde_json::Value;
use support::operator::status;
use support::{Cluster, Folder, has_onnx_runtime, prometheus};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits/");
const ANSWER: Duration = Duration::from_secs(10);
const PATIENCE: Nanos = Nanos::from_millis(60_000);
/// What `heldout.bin` has of one image: 64 pixels, 10 logits, a label.
const RECORD: usize = 4 * (64 + 10 + 1);
const IMAGE: usize = 4 * 64;

fn copies() -> usize {
    std::env::var("BATON_CACHE_COPIES").map_or(40, |copies| copies.parse().unwrap())
}

/// As many copies of the digits' file, and a cluster file in which a tenth of them fits.
fn cluster(copies: usize) -> Cluster {
    let folder = Folder::new("cache-onnx");
    let fit = copies / 10;
    let mut text = format!(
        "[[backend]]\nname = \"a\"\nmetrics = \"127.0.0.1:0\"\nweights_cache_mib = {fit}\npage_mib = 1\n"
    );
    for copy in 0..copies {
        std::fs::copy(format!("{DIGITS}digits.onnx"), folder.path().join(format!("{copy}.onnx")))
            .unwrap();
        let model = format!("name = \"digits-{copy}\"\nfile = \"{copy}.onnx\"\nslo_ms = 2000");
        writeln!(text, "[[model]]\n{model}\nbatch_max = 4").unwrap();
    }
    Cluster::of(folder, &text)
}

/// Applications that ask one model after the other until they are stopped.
struct Applications {
    answered: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Applications {
    fn start(cluster: &Cluster, count: usize, copies: usize) -> Self {
        let (answered, is_over) = (Arc::default(), Arc::default());
        let mut all = Self { answered, is_over, threads: Vec::new() };
        for first in 0..count {
            let client = ClientConfig::new(cluster.addr().parse().unwrap());
            let (answered, is_over) = (Arc::clone(&all.answered), Arc::clone(&all.is_over));
            all.threads.push(spawn(move || {
                let client = Client::connect(client).unwrap();
                ask(&client, copies, copies * first / count, &answered, &is_over);
            }));
        }
        all
    }

    /// Waits until this many more tasks have been answered.
    fn await_answers(&self, more: usize) {
        let (clock, from) = (Clock::start(), self.answered.load(Ordering::Relaxed));
        while self.answered.load(Ordering::Relaxed) < from + more as u64 {
            assert!(clock.now() < PATIENCE, "no {more} answers");
            assert!(!self.threads.iter().any(JoinHandle::is_finished), "an application died");
            park_timeout(Duration::from_millis(20));
        }
        eprintln!("{more} answers in {:.0} ms", clock.now().as_millis_f64());
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Models are asked in turn, four tasks each, with every image.
fn ask(client: &Client, copies: usize, first: usize, answered: &AtomicU64, is_over: &AtomicBool) {
    let heldout = std::fs::read(format!("{DIGITS}heldout.bin")).unwrap();
    let models: Vec<_> =
        (0..copies).map(|copy| client.model(&format!("digits-{copy}")).unwrap()).collect();
    for (at, record) in heldout[20..].chunks_exact(RECORD).enumerate().cycle() {
        let model = &models[(first + at / 4) % copies];
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut input) = model.input() else { continue };
        input.copy_from_slice(&record[..IMAGE]);
        match input.submit(Deadline::within(ANSWER)).map(|ticket| ticket.wait()) {
            Ok(Outcome::Completed(reply)) => {
                check(reply.bytes(), &record[IMAGE..]);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            // A process was just killed.
            Ok(_) | Err(_) => park_timeout(Duration::from_millis(20)),
        }
    }
}

fn check(answer: &[u8], expected: &[u8]) {
    let floats = |bytes: &[u8]| {
        let each = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        each.take(10).collect::<Vec<f32>>()
    };
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
    let (answer, expected) = (floats(answer), floats(expected));
    assert!(
        answer.len() == 10 && answer.iter().zip(&expected).all(near),
        "{answer:?} {expected:?}"
    );
}

fn copies_held(status: &Value) -> u64 {
    let models = status["models"].as_array().unwrap().iter();
    models.map(|model| model["cache"]["copies"].as_u64().unwrap()).sum()
}

#[test]
fn ten_times_as_many_models_as_fit_are_served_through_two_kills() {
    if !has_onnx_runtime() {
        return;
    }
    let (clock, copies) = (Clock::start(), copies());
    let mut cluster = cluster(copies);
    let backend = cluster.backend("a");
    eprintln!("ready after {:.0} ms", clock.now().as_millis_f64());
    let applications = Applications::start(&cluster, 4, copies);
    applications.await_answers(4 * copies);

    backend.signal(Signal::KILL);
    backend.await_end();
    let clock = Clock::start();
    let backend = cluster.backend("a");
    eprintln!("ready again after {:.0} ms", clock.now().as_millis_f64());
    let metrics = backend.metrics_addr();
    applications.await_answers(2 * copies);
    cluster.kill_and_restart_scheduler();
    applications.await_answers(4 * copies);
    applications.stop();

    let status = status(&cluster);
    let fit = copies as u64 / 10;
    assert!((1..=fit).contains(&copies_held(&status)), "at most as many as fit: {status}");
    let text = prometheus::get(&metrics, "/metrics").unwrap();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    eprintln!(
        "{} LOADs, {} MiB",
        value("baton_backend_loads_total"),
        backend.resident_bytes() >> 20
    );
    assert!(value("baton_backend_loads_total") >= fit, "{text}");
    assert!(value("baton_backend_unloads_total") > 0, "{text}");
    assert_eq!(value("baton_backend_load_errors_total"), 0, "{text}");
}
