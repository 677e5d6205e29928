//! The scheduler is killed in mid-run and started again at the same address: whoever was with the old
//! one serves with the new one, within two seconds, and no task is left without its outcome.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::time::Duration;

use baton_backend::execute::checksum;
use baton_client::{Client, ClientConfig, Clock, Deadline, ModelHandle, Nanos, Outcome, Ticket};
use support::Cluster;

/// From the scheduler's listening to an answered task.
const BOUND: Nanos = Nanos::from_millis(2_000);
/// More than any restart takes.
const LONG: Deadline = Deadline::Within(Duration::from_secs(30));
const OUTSTANDING: u64 = 60;

/// Tasks of one frontend in this process, each with an input of its own.
struct Application {
    client: Client,
    model: ModelHandle,
    clock: Clock,
    submitted: u64,
}

impl Application {
    fn connect(cluster: &Cluster) -> Self {
        let clock = Clock::start();
        let config = ClientConfig::new(cluster.addr().parse().unwrap()).clock(clock);
        let client = Client::connect(config).unwrap();
        let model = client.model("m").unwrap();
        Self { client, model, clock, submitted: 0 }
    }

    /// `None` if it is refused.
    fn submit(&mut self, deadline: Deadline) -> Option<(Ticket, [u8; 8])> {
        let mut input = self.model.input().unwrap();
        input.fill(0);
        input[..8].copy_from_slice(&self.submitted.to_le_bytes());
        let expected = checksum(&input);
        let ticket = input.submit(deadline).ok()?;
        self.submitted += 1;
        Some((ticket, expected))
    }

    /// How long it takes from now until a task is answered.
    fn until_answered(&mut self) -> Nanos {
        let start = self.clock.now();
        loop {
            match self.submit(Deadline::Slo).map(|(ticket, _)| ticket.wait()) {
                Some(Outcome::Completed(_)) => return self.clock.now() - start,
                Some(_) => {}
                None => std::thread::park_timeout(Duration::from_millis(2)),
            }
            assert!(self.clock.now() - start < BOUND.times(20), "it is not served again");
        }
    }
}

#[test]
fn a_scheduler_that_is_killed_and_restarted_twice_loses_nothing() {
    let mut cluster = Cluster::start("restart");
    let backends = [cluster.backend("a"), cluster.backend("b")];
    let load = cluster.load(1);
    let mut application = Application::connect(&cluster);
    application.until_answered();
    for round in 1..=2 {
        load.await_completed(50);
        let tickets: Vec<_> = (0..OUTSTANDING).map(|_| application.submit(LONG).unwrap()).collect();
        cluster.restart_scheduler();
        let took = application.until_answered();
        assert!(
            took <= BOUND,
            "round {round}: served again only after {} ms",
            took.as_millis_f64()
        );
        for (ticket, expected) in tickets {
            match ticket.wait() {
                Outcome::Completed(reply) => assert_eq!(reply.bytes(), expected),
                other => panic!("there was time enough: {other:?}"),
            }
        }
        let counters = application.client.counters();
        assert_eq!(counters.reconnects, round);
        assert!(counters.resubmitted >= round, "nothing was outstanding: {counters:?}");
    }
    let counters = application.client.counters();
    assert_eq!(counters.submitted, application.submitted);
    assert_eq!(counters.submitted, counters.completed + counters.dropped + counters.failed);
    assert_eq!(application.client.slots_in_use(), 0);
    drop(application.model);
    application.client.leave().unwrap();

    load.await_completed(100);
    let counts = load.stop();
    assert!(counts.completed > 200, "{counts:?}");
    for backend in backends {
        backend.signal(rustix::process::Signal::TERM);
        backend.line("left");
        assert!(backend.finish().0.success());
    }
}
