//! The smallest client: one request to a model, the first one unless another is named, and its outcome.
//!
//!     cargo run -p baton-client --example hello -- 127.0.0.1:7700 [model]

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use baton_client::{Client, ClientConfig, Deadline, Outcome};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the outcome is this program's result")]
fn run() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let scheduler = args.next().unwrap_or_else(|| "127.0.0.1:7700".into());
    let client = Client::connect(ClientConfig::new(address(&scheduler)?))?;
    let model = match args.next() {
        Some(name) => client.model(&name)?,
        None => client.models().into_iter().next().ok_or("the scheduler serves no model")?,
    };

    let mut input = model.input()?;
    input.fill(0);
    let outcome = input.submit(Deadline::Slo)?.wait();

    match &outcome {
        Outcome::Completed(reply) => {
            let (timing, late) = (reply.timing(), if reply.late() { ", late" } else { "" });
            let (latency, batch) = (timing.latency(), timing.batch_size);
            println!(
                "{}: {} bytes in {latency:?}, batch of {batch}{late}",
                model.name(),
                reply.len()
            );
        }
        unanswered => println!("{}: {}", model.name(), unanswered.explain()),
    }
    drop(outcome);
    client.leave()?;
    Ok(())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text}: give the scheduler as 127.0.0.1:7700"))
}
