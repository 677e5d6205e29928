//! Many tasks outstanding at once, awaited like any other future; the executor is thirty lines.
//!
//!     cargo run -p baton-client --example pipelined -- 127.0.0.1:7700 [model] [tasks]

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use baton_client::{Client, ClientConfig, Deadline, ModelHandle, Outcome, Ticket};

/// Tasks kept outstanding: enough to fill batches, fewer than the model's slots.
const OUTSTANDING: usize = 32;

#[derive(Default)]
struct Tally {
    completed: u32,
    late: u32,
    dropped: BTreeMap<&'static str, u32>,
    failed: BTreeMap<&'static str, u32>,
    latency: Duration,
    batches: u64,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the tally is this program's result")]
fn run() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let scheduler = args.next().unwrap_or_else(|| "127.0.0.1:7700".into());
    let client = Client::connect(ClientConfig::new(address(&scheduler)?))?;
    let model = match args.next() {
        Some(name) => client.model(&name)?,
        None => client.models().into_iter().next().ok_or("the scheduler serves no model")?,
    };
    let tasks = args.next().map_or(Ok(1_000), |tasks| {
        tasks.parse().map_err(|_| format!("{tasks}: give a whole number of tasks"))
    })?;

    let tally = block_on(submit_all(&model, tasks))?;

    let Tally { completed, late, dropped, failed, .. } = &tally;
    let mean = tally.latency / (*completed).max(1);
    let batch = tally.batches as f64 / f64::from((*completed).max(1));
    let (dropped, failed) = (reasons(dropped), reasons(failed));
    println!(
        "{}: {completed} completed ({late} late), {dropped} dropped, {failed} failed",
        model.name()
    );
    println!("mean latency {mean:?}, mean batch {batch:.1}");
    client.leave()?;
    Ok(())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text}: give the scheduler as 127.0.0.1:7700"))
}

/// How many, and why.
fn reasons(counts: &BTreeMap<&'static str, u32>) -> String {
    let each: Vec<String> =
        counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    match counts.values().sum() {
        0_u32 => "0".to_owned(),
        sum => format!("{sum} ({})", each.join(", ")),
    }
}

/// Submits `tasks` tasks, at most [`OUTSTANDING`] at once, and counts their outcomes.
async fn submit_all(model: &ModelHandle, tasks: usize) -> Result<Tally, Box<dyn Error>> {
    let mut tally = Tally::default();
    let mut window = VecDeque::with_capacity(OUTSTANDING);
    for number in 0..tasks {
        if window.len() == OUTSTANDING
            && let Some(oldest) = window.pop_front()
        {
            tally.add(&oldest.await);
        }
        window.push_back(submit(model, number).await?);
    }
    for ticket in window {
        tally.add(&ticket.await);
    }
    Ok(tally)
}

async fn submit(model: &ModelHandle, number: usize) -> Result<Ticket, Box<dyn Error>> {
    let mut input = model.input_ready().await?;
    input.fill(number as u8);
    Ok(input.submit(Deadline::Slo)?)
}

impl Tally {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Completed(reply) => {
                self.completed += 1;
                self.late += u32::from(reply.late());
                self.latency += reply.timing().latency();
                self.batches += u64::from(reply.timing().batch_size);
            }
            Outcome::Dropped(reason, _) => *self.dropped.entry(reason.as_str()).or_default() += 1,
            Outcome::Failed(reason, _) => *self.failed.entry(reason.as_str()).or_default() += 1,
        }
    }
}

/// Wakes the thread that runs the future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs one future on this thread. Any executor will do in its place.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
