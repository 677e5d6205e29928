//! What it hides to submit a task ahead of its input: latency from a request's arrival, with the input made before the submit
//! and while the task queues, in turn against a running cluster.
//!
//! ```text
//! cargo run --release -p baton-bench --example ahead -- SCHEDULER MODEL RATE STEP_MS [ROUNDS]
//! ```
//! Three ways take turns of two seconds: `before` makes the input and then gives the task the model's objective; `before_at` too, with
//! a deadline that counts from the arrival; `ahead` submits at the arrival. Making an input is a sleep of STEP_MS: it costs no CPU
//! time that the cluster beside it would miss. Prints one JSON object.
#![allow(clippy::disallowed_methods, reason = "a bench: it sleeps and looks at the clock")]
#![allow(clippy::print_stdout, reason = "its report")]

use std::error::Error;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use baton_client::{Client, ClientConfig, Deadline, ModelHandle, Outcome};
use hdrhistogram::Histogram;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

const WAYS: [&str; 3] = ["before", "before_at", "ahead"];
const TURN: Duration = Duration::from_secs(2);
/// Requests that are made or await their outcomes at a time.
const WORKERS: usize = 192;

struct Request {
    way: usize,
    arrived: Instant,
}

/// Of one way.
struct Seen {
    arrived: u64,
    /// Answered by the objective, counted from the arrival.
    in_time: u64,
    /// From the arrival to the answer, us.
    latency_us: Histogram<u64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [scheduler, model, rate, step_ms, rounds @ ..] = &args[..] else {
        return Err("usage: ahead SCHEDULER MODEL RATE STEP_MS [ROUNDS]".into());
    };
    let (rate, step_ms): (f64, f64) = (rate.parse()?, step_ms.parse()?);
    let rounds: u32 = rounds.first().map_or(Ok(8), |rounds| rounds.parse())?;
    let client = Client::connect(ClientConfig::new(scheduler.parse()?).slots_per_model(1_024))?;
    let model = client.model(model)?;
    let latencies = || Histogram::new_with_bounds(1, 60_000_000, 3).expect("the bounds are sound");
    let new = || Seen { arrived: 0, in_time: 0, latency_us: latencies() };
    let seen: Arc<[Mutex<Seen>; 3]> = Arc::new([0; 3].map(|_| Mutex::new(new())));
    // 1. Workers serve requests, one each at a time.
    let (requests, queue) = sync_channel::<Request>(WORKERS);
    let queue = Arc::new(Mutex::new(queue));
    let step = Duration::from_secs_f64(step_ms / 1e3);
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (queue, model, seen) = (Arc::clone(&queue), model.clone(), Arc::clone(&seen));
            thread::spawn(move || work(&queue, &model, step, &seen))
        })
        .collect();
    // 2. Requests arrive at random, and each way has its turn.
    offer(requests, rate, rounds, 2 * model.slo())?;
    for worker in workers {
        worker.join().map_err(|_| "a worker panicked")?;
    }
    // 3. What each way came to.
    let counters = client.counters();
    let ways: Vec<Value> = (0..3).map(|way| report(way, &lock(&seen[way]))).collect();
    println!(
        "{}",
        json!({ "rate_rps": rate, "step_ms": step_ms, "slo_ms": model.slo().as_secs_f64() * 1e3, "ways": ways,
            "ahead": counters.ahead, "inputs_late": counters.inputs_late })
    );
    drop(model);
    client.leave()?;
    Ok(())
}

/// What is left of a turn has `pause` to end in before the next.
fn offer(
    requests: SyncSender<Request>,
    rate: f64,
    rounds: u32,
    pause: Duration,
) -> Result<(), Box<dyn Error>> {
    let mut rng = StdRng::seed_from_u64(1);
    for turn in 0..3 * rounds {
        let end = Instant::now() + TURN;
        let mut due = Instant::now();
        while due < end {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            requests.send(Request { way: turn as usize % 3, arrived: due })?;
            let gap_s = -(1.0 - rng.random::<f64>()).ln() / rate;
            due += Duration::from_secs_f64(gap_s);
        }
        thread::sleep(pause);
    }
    drop(requests);
    Ok(())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report(way: usize, seen: &Seen) -> Value {
    let ms = |share: f64| seen.latency_us.value_at_quantile(share) as f64 / 1e3;
    let in_time = seen.in_time as f64 / seen.arrived.max(1) as f64;
    json!({ "way": WAYS[way], "arrived": seen.arrived, "in_time": in_time, "p50_ms": ms(0.5), "p99_ms": ms(0.99),
        "mean_ms": seen.latency_us.mean() / 1e3 })
}

fn work(
    queue: &Mutex<Receiver<Request>>,
    model: &ModelHandle,
    step: Duration,
    seen: &[Mutex<Seen>; 3],
) {
    loop {
        // The lock is given back before the request is served.
        let next = lock(queue).recv();
        let Ok(Request { way, arrived }) = next else { return };
        let outcome = serve(model, step, way, arrived);
        let latency = arrived.elapsed();
        let mut seen = lock(&seen[way]);
        seen.arrived += 1;
        if let Some(Outcome::Completed(_)) = outcome {
            seen.latency_us.saturating_record(latency.as_micros() as u64);
            seen.in_time += u64::from(latency <= model.slo());
        }
    }
}

/// `None` if it was not submitted.
fn serve(model: &ModelHandle, step: Duration, way: usize, arrived: Instant) -> Option<Outcome> {
    let mut input = model.input().ok()?;
    let due = Deadline::At(arrived + model.slo());
    if way == 2 {
        let (mut ahead, ticket) = input.submit_ahead(due).ok()?;
        thread::sleep(step);
        ahead.fill(1);
        ahead.finish();
        return Some(ticket.wait());
    }
    thread::sleep(step);
    input.fill(1);
    let deadline = if way == 0 { Deadline::Slo } else { due };
    Some(input.submit(deadline).ok()?.wait())
}
