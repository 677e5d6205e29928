//! The smallest client: one request to the first model, and its outcome.
//!
//!     cargo run -p baton-client --example hello -- 127.0.0.1:7700

use std::error::Error;

use baton_client::{Client, ClientConfig, Deadline, Outcome};

#[expect(clippy::print_stdout, reason = "the outcome is this program's result")]
fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7700".into());
    let client = Client::connect(ClientConfig::new(scheduler.parse()?))?;
    let models = client.models();
    let model = models.first().ok_or("the scheduler serves no model")?;

    let mut input = model.input()?;
    input.fill(0);
    let outcome = input.submit(Deadline::Slo)?.wait();

    match outcome {
        Outcome::Completed(reply) => {
            let (timing, late) = (reply.timing(), if reply.late() { ", late" } else { "" });
            let (latency, batch) = (timing.latency(), timing.batch_size);
            println!(
                "{}: {} bytes in {latency:?}, batch of {batch}{late}",
                model.name(),
                reply.len()
            );
        }
        Outcome::Dropped(reason, _) => println!("{}: dropped: {}", model.name(), reason.as_str()),
        Outcome::Failed(reason, _) => println!("{}: failed: {}", model.name(), reason.as_str()),
    }
    client.leave()?;
    Ok(())
}
