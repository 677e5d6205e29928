//! `baton bench send-rate`: how many control messages a connection carries, over TCP or RDMA.
//!
//! A sender keeps `depth` messages under way to a responder, which sends each of them back; both take
//! whatever has arrived in one pass and answer it in one. Over TCP, stretches of messages take
//! turns with stretches of the same bytes echoed by bare sockets: the floor. Senders run on the first core and
//! responders on the second, because two threads that spin on one wait for the kernel's time slices.

mod bare;
mod ours;
mod report;

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::Thread;

use baton_core::Nanos;
use baton_rdma::Transport;
use baton_topo::{Clock, Idle, Placement, TransportChoice, prepare_thread};

use super::PullError;
use super::report::Recorder;
use crate::machine::StealMeter;
use bare::Bare;
use ours::Ours;
pub use report::SendRateReport;

/// Bytes of the shortest message: one that describes a model without a name, its header included.
const LEN_MIN: u32 = 40;
/// Messages in a stretch, per message under way.
const STRETCH: u32 = 64;
/// Bytes under way at most: what the kernel's buffers hold of both directions, so that two sides
/// that both write before they read cannot block each other.
const UNDER_WAY_MAX: u32 = 64 * 1024;

/// What to run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SendRate {
    /// `Rdma` or `Tcp`.
    pub transport: TransportChoice,
    /// Messages under way.
    pub depth: u32,
    /// Bytes of a message on the wire, its header included: at least 40.
    pub bytes: u32,
    /// Length of the measurement, the floor's part included.
    pub seconds: f64,
    /// What either side does without work.
    pub idle: Idle,
}

impl SendRate {
    fn check(&self) -> Result<(), PullError> {
        let Self { depth, bytes, .. } = *self;
        let under_way = depth.checked_mul(bytes).filter(|len| (1..=UNDER_WAY_MAX).contains(len));
        if bytes >= LEN_MIN && under_way.is_some() {
            return Ok(());
        }
        Err(PullError::Messages { depth, bytes })
    }

    fn stretch(&self) -> u64 {
        u64::from(self.depth) * u64::from(STRETCH)
    }
}

/// Runs it.
///
/// # Errors
/// See [`PullError`].
pub fn send_rate(run: &SendRate, clock: Clock) -> Result<SendRateReport, PullError> {
    run.check()?;
    let run = *run;
    let placement = place(&run, "bench-sender", 0);
    let thread = std::thread::Builder::new().name(placement.name.clone());
    let body = move || measure(&run, &placement, clock);
    let system = |source| PullError::System { what: "the sender's thread", source };
    thread.spawn(body).map_err(system)?.join().map_err(|_| PullError::Panicked)?
}

fn measure(
    run: &SendRate,
    placement: &Placement,
    clock: Clock,
) -> Result<SendRateReport, PullError> {
    match run.transport {
        TransportChoice::Tcp => {
            let bare = Bare::start(run, clock)?;
            take_turns(run, placement, clock, Ours::over_tcp(run, clock)?, Some(bare))
        }
        _ => take_turns(run, placement, clock, Ours::over_rdma(run, clock)?, None),
    }
}

fn take_turns<T: Transport + Send + 'static>(
    run: &SendRate,
    placement: &Placement,
    clock: Clock,
    mut ours: Ours<T>,
    mut bare: Option<Bare>,
) -> Result<SendRateReport, PullError> {
    // Last: threads inherit where their maker may run.
    prepare_thread(placement);
    ours.stretch(run.stretch())?;
    if let Some(bare) = &mut bare {
        bare.stretch(run.stretch())?;
    }
    let steal = StealMeter::start();
    let (mut ours_took, mut floor_took) = (Recorder::new(), Recorder::new());
    let end = clock.now() + Nanos::from_millis_f64(run.seconds * 1e3);
    while clock.now() < end {
        ours_took.record(ours.stretch(run.stretch())?, run.stretch());
        if let Some(bare) = &mut bare {
            floor_took.record(bare.stretch(run.stretch())?, run.stretch());
        }
    }
    let steal_fraction = steal.fraction();
    Ok(SendRateReport::new(run, &ours_took, bare.map(|_| &floor_took), steal_fraction))
}

/// Cores of their own for sender and responder, where there are two.
fn place(run: &SendRate, name: &str, core: usize) -> Placement {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Placement { name: name.into(), core: (cores > 1).then_some(core), idle: run.idle }
}

/// Tells a responder's thread when to work: one that spins out of turn would take the core that the
/// other is measured on.
#[derive(Default)]
struct Turn(AtomicU8);

impl Turn {
    const REST: u8 = 0;
    const WORK: u8 = 1;
    const END: u8 = 2;

    fn set(&self, to: u8, thread: &Thread) {
        self.0.store(to, Ordering::Release);
        thread.unpark();
    }

    /// Sleeps out of turn; false when all is over.
    fn await_turn(&self) -> bool {
        loop {
            match self.0.load(Ordering::Acquire) {
                Self::REST => std::thread::park(),
                turn => return turn == Self::WORK,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: SendRate = SendRate {
        transport: TransportChoice::Tcp,
        depth: 32,
        bytes: 64,
        seconds: 0.05,
        idle: Idle::Park,
    };

    #[test]
    fn every_message_comes_back_whatever_a_side_does_without_work() {
        for idle in [Idle::Park, Idle::Yield, Idle::Spin] {
            let report = send_rate(&SendRate { idle, ..RUN }, Clock::start()).unwrap();
            assert!(report.stretches > 0 && report.round_trips_per_s > 1.0, "{report:?}");
            assert!(report.floor_round_trips_per_s > Some(1.0), "{report:?}");
            assert!(report.efficiency > Some(0.0), "{report:?}");
        }
    }

    #[test]
    fn depth_one_and_long_messages_work() {
        for (depth, bytes) in [(1, 40), (2, 4_096), (3, 20_040)] {
            send_rate(&SendRate { depth, bytes, ..RUN }, Clock::start()).unwrap();
        }
    }

    #[test]
    fn what_is_too_short_or_fills_the_kernels_buffers_is_refused() {
        for (depth, bytes) in [(0, 64), (1, 39), (32, 0), (1_025, 64), (u32::MAX, 48)] {
            let refused = send_rate(&SendRate { depth, bytes, ..RUN }, Clock::start());
            assert!(matches!(refused, Err(PullError::Messages { .. })), "{depth} × {bytes}");
        }
    }
}
