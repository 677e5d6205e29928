//! A frontend in the test's own process, with an input of its own for each task.

use std::time::Duration;

use baton_backend::execute::checksum;
use baton_client::{Client, ClientConfig, Clock, Deadline, ModelHandle, Nanos, Outcome, Ticket};

use super::Cluster;

/// The model, which this client is about to hear of.
pub(crate) fn await_model(client: &Client, name: &str) -> ModelHandle {
    let clock = Clock::start();
    loop {
        match client.model(name) {
            Ok(model) => return model,
            Err(error) => assert!(clock.now() < Nanos::from_millis(30_000), "{error}"),
        }
        std::thread::yield_now();
    }
}

/// Tasks of one frontend in this process, each with an input of its own.
pub(crate) struct Application {
    pub(crate) client: Client,
    pub(crate) model: ModelHandle,
    pub(crate) clock: Clock,
    pub(crate) submitted: u64,
}

impl Application {
    pub(crate) fn connect(cluster: &Cluster) -> Self {
        Self::join(ClientConfig::new(cluster.addr().parse().unwrap()))
    }

    pub(crate) fn join(config: ClientConfig) -> Self {
        let clock = Clock::start();
        let config = config.clock(clock);
        let client = Client::connect(config).unwrap();
        let model = client.model("m").unwrap();
        Self { client, model, clock, submitted: 0 }
    }

    /// `None` if it is refused.
    pub(crate) fn submit(&mut self, deadline: Deadline) -> Option<(Ticket, [u8; 8])> {
        let mut input = self.model.input().unwrap();
        input.fill(0);
        input[..8].copy_from_slice(&self.submitted.to_le_bytes());
        let expected = checksum(&input);
        let ticket = input.submit(deadline).ok()?;
        self.submitted += 1;
        Some((ticket, expected))
    }

    /// How long it takes from now until a task is answered.
    pub(crate) fn until_answered(&mut self, bound: Nanos) -> Nanos {
        let start = self.clock.now();
        loop {
            match self.submit(Deadline::Slo).map(|(ticket, _)| ticket.wait()) {
                Some(Outcome::Completed(_)) => return self.clock.now() - start,
                Some(_) => {}
                None => std::thread::park_timeout(Duration::from_millis(2)),
            }
            assert!(self.clock.now() - start < bound, "it is not served again");
        }
    }
}
