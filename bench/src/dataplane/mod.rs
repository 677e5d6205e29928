//! `baton bench read-lat | read-bw | incast`: what pulling inputs costs, over TCP or RDMA.
//!
//! One puller and its senders, in one process on one host, with the transports backends and
//! frontends use. In rounds (`read-lat`, `incast`) all objects are asked for at once and the round
//! ends with the last; in a stream (`read-bw`) as many are kept under way. Over TCP each round is
//! followed by the same bytes pulled over bare sockets: the floor, measured in the same run.

mod bare;
mod harness;
mod matrix;
mod report;
mod send_rate;
mod tls_cost;

use baton_core::{BATCH_MAX, Nanos};
use baton_topo::{Clock, Idle, TransportChoice};

use crate::machine::StealMeter;
use bare::Bare;
use harness::Harness;
pub use matrix::{Cell, Matrix, MatrixError, MatrixReport, Measured, Responder, matrix, respond};
use report::Recorder;
pub use report::{PullReport, Times};
pub use send_rate::{SendRate, SendRateReport, send_rate};
pub use tls_cost::{Cost, TlsCost, TlsCostReport, tls_cost};

/// What to run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pull {
    /// Its name in the report.
    pub bench: &'static str,
    /// `Rdma` or `Tcp`.
    pub transport: TransportChoice,
    /// Senders, each with a connection of its own.
    pub senders: u32,
    /// Objects of each sender under way at a time.
    pub objects: u32,
    /// Bytes of an object.
    pub bytes: u32,
    /// Keep them under way, instead of in rounds.
    pub stream: bool,
    /// Length of the measurement.
    pub seconds: f64,
    /// What the puller does without work.
    pub idle: Idle,
    /// Rate of the link, Gb/s, if the floor is to be computed from it.
    pub link_gbps: Option<f64>,
}

impl Pull {
    fn check(&self) -> Result<(), PullError> {
        check_shape(self.senders, self.objects, self.bytes)
    }
}

fn check_shape(senders: u32, objects: u32, bytes: u32) -> Result<(), PullError> {
    let objects_in_all = senders.checked_mul(objects).filter(|n| (1..=BATCH_MAX).contains(n));
    match objects_in_all {
        Some(_) if bytes > 0 => Ok(()),
        _ => Err(PullError::Shape { senders, objects }),
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The machine does not give the memory of the rows.
    #[error(transparent)]
    NoMemory(#[from] baton_rdma::NoMemory),
    /// The shape is beyond what a batch holds.
    #[error(
        "{senders} senders × {objects} objects: give 1 to {BATCH_MAX} in all, of at least 1 byte"
    )]
    Shape {
        /// Senders asked for.
        senders: u32,
        /// Objects asked for.
        objects: u32,
    },
    /// The messages are none, or more than the kernel's buffers hold.
    #[error(
        "{depth} messages of {bytes} bytes: give at least 40 bytes, and at most 64 KiB \
         of them under way"
    )]
    Messages {
        /// Messages under way asked for.
        depth: u32,
        /// Bytes of each asked for.
        bytes: u32,
    },
    /// A transport could not start.
    #[error(transparent)]
    Transport(#[from] baton_rdma::MixedError),
    /// A certificate, its key or the authority's.
    #[error(transparent)]
    Tls(#[from] baton_rdma::CredentialsError),
    /// Memory, a socket or a thread.
    #[error("{what}: {source}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The slabs could not be made.
    #[error(transparent)]
    Slab(#[from] baton_rdma::SlabError),
    /// A READ did not bring its object.
    #[error("a READ ended as {0:?}; see the log")]
    Read(baton_rdma::ReadStatus),
    /// An object arrived changed.
    #[error("an object arrived with other bytes than were sent; please report this")]
    Changed,
    /// A thread of the measurement panicked.
    #[error("a thread of the measurement panicked; please report this")]
    Panicked,
    /// The connections did not come up.
    #[error("the senders' connections were not up within 10 s; see the log")]
    NotUp,
}

/// Runs it.
///
/// # Errors
/// See [`PullError`].
pub fn run(pull: &Pull, clock: Clock) -> Result<PullReport, PullError> {
    pull.check()?;
    let mut harness = Harness::start(pull, clock)?;
    let is_over_tcp = pull.transport == TransportChoice::Tcp;
    let mut bare = is_over_tcp.then(|| Bare::start(pull)).transpose()?;
    harness.round()?;
    harness.check()?;
    let steal = StealMeter::start();
    let (mut ours, mut floor) = (Recorder::new(), Recorder::new());
    let start = clock.now();
    let end = start + Nanos::from_millis_f64(pull.seconds * 1e3);
    while clock.now() < end {
        let began = clock.now();
        // A stream is measured in stretches of equal length, so that the floor can take turns.
        let count = if pull.stream { harness.stream()? } else { harness.round()? };
        ours.record(clock.now() - began, count);
        if let Some(bare) = &mut bare {
            let began = clock.now();
            let count = if pull.stream { bare.stream()? } else { bare.round()? };
            floor.record(clock.now() - began, count);
        }
    }
    harness.check()?;
    let steal_fraction = steal.fraction();
    Ok(PullReport::new(pull, &ours, bare.map(|_| &floor), steal_fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pull(stream: bool) -> Pull {
        Pull {
            bench: "incast",
            transport: TransportChoice::Tcp,
            senders: 2,
            objects: 3,
            bytes: 10_000,
            stream,
            seconds: 0.05,
            idle: Idle::Park,
            link_gbps: None,
        }
    }

    /// Both ways end, and the bytes are compared before and after (`Harness::check`).
    #[test]
    fn rounds_and_streams_come_to_an_end_with_a_floor() {
        for stream in [false, true] {
            let report = run(&pull(stream), Clock::start()).unwrap();
            assert!(report.rounds > 0 && report.total_us.min > 0.0);
            assert!(report.floor_us.is_some() && report.efficiency.is_some());
        }
    }

    #[test]
    fn more_objects_than_a_batch_holds_are_refused() {
        for (senders, objects) in [(0, 1), (1, 0), (1_025, 1), (u32::MAX, 2)] {
            let pull = Pull { senders, objects, ..pull(false) };
            assert!(matches!(run(&pull, Clock::start()), Err(PullError::Shape { .. })));
        }
    }
}
