//! What goes wrong, drawn from the seed: the same seed is the same sequence. Pure.

use std::fmt;

use baton_core::Nanos;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt, SeedableRng};

/// A process of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Scheduler,
    Backend(usize),
    Frontend(usize),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler => f.write_str("scheduler"),
            Self::Backend(at) => write!(f, "backend-{at}"),
            Self::Frontend(at) => write!(f, "frontend-{at}"),
        }
    }
}

/// One thing that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// kill −9, and started again after this long.
    Kill(Who, Nanos),
    /// SIGSTOP, and SIGCONT after this long.
    Stop(Who, Nanos),
    /// Every control connection breaks.
    Cut,
    /// kill −9, and started again with a log that cannot be written: the disk is full.
    FullDisk(Who),
    /// The scheduler is killed, and for this long another process has its port and talks nonsense.
    Thief(Nanos),
}

impl Fault {
    /// As it is counted in the report.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Kill(Who::Scheduler, _) => "kill_scheduler",
            Self::Kill(Who::Backend(_), _) => "kill_backend",
            Self::Kill(Who::Frontend(_), _) => "kill_frontend",
            Self::Stop(..) => "stop",
            Self::Cut => "cut",
            Self::FullDisk(_) => "full_disk",
            Self::Thief(_) => "port_thief",
        }
    }

    /// A backend may be taken for dead that is not: its batches are executed elsewhere too, under the
    /// same generation, and it may still answer.
    pub(crate) fn may_double(self) -> bool {
        matches!(
            self,
            Self::Kill(Who::Backend(_), _)
                | Self::FullDisk(Who::Backend(_))
                | Self::Stop(Who::Backend(_) | Who::Scheduler, _)
                | Self::Cut
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(who, down) => {
                write!(f, "{who} killed, down for {:.0} ms", down.as_millis_f64())
            }
            Self::Stop(who, long) => {
                write!(f, "{who} stopped for {:.0} ms", long.as_millis_f64())
            }
            Self::Cut => f.write_str("every control connection cut"),
            Self::FullDisk(who) => write!(f, "{who} killed, then no room for its log"),
            Self::Thief(long) => {
                let ms = long.as_millis_f64();
                write!(f, "scheduler killed, its port taken by another for {ms:.0} ms")
            }
        }
    }
}

const KINDS: u32 = 7;

/// The endless sequence of a seed.
pub(crate) struct Plan {
    rng: StdRng,
    backends: usize,
    frontends: usize,
    /// Kinds still to come in this round: each comes once before any comes again.
    round: Vec<u32>,
}

impl Plan {
    pub(crate) fn new(seed: u64, backends: usize, frontends: usize) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), backends, frontends, round: Vec::new() }
    }

    /// The next fault, and how long after the recovery from the one before.
    pub(crate) fn draw(&mut self) -> (Nanos, Fault) {
        if self.round.is_empty() {
            self.round = (0..KINDS).collect();
            self.round.shuffle(&mut self.rng);
        }
        let kind = self.round.pop().expect("just filled");
        let gap = self.ms(50, 400);
        let backend = Who::Backend(self.rng.random_range(0..self.backends));
        let frontend = Who::Frontend(self.rng.random_range(0..self.frontends));
        let fault = match kind {
            0 => Fault::Kill(Who::Scheduler, self.ms(0, 400)),
            1 => Fault::Kill(backend, self.ms(0, 400)),
            2 => Fault::Kill(frontend, self.ms(0, 400)),
            // From a hiccup to longer than `member_timeout`.
            3 => Fault::Stop(self.anyone(backend, frontend), self.ms(20, 1_500)),
            4 => Fault::Cut,
            5 => Fault::FullDisk(self.anyone(backend, frontend)),
            _ => Fault::Thief(self.ms(50, 400)),
        };
        (gap, fault)
    }

    fn anyone(&mut self, backend: Who, frontend: Who) -> Who {
        [Who::Scheduler, backend, frontend][self.rng.random_range(0..3)]
    }

    fn ms(&mut self, from: u64, to: u64) -> Nanos {
        Nanos::from_millis(self.rng.random_range(from..=to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence_and_each_kind_comes_in_each_round() {
        let (mut a, mut b) = (Plan::new(7, 3, 2), Plan::new(7, 3, 2));
        let faults: Vec<_> = (0..2 * KINDS).map(|_| a.draw()).collect();
        assert_eq!(faults, (0..2 * KINDS).map(|_| b.draw()).collect::<Vec<_>>());
        for round in faults.chunks(KINDS as usize) {
            let mut kinds: Vec<_> = round.iter().map(|(_, fault)| fault.kind()).collect();
            kinds.sort_unstable();
            kinds.dedup();
            assert_eq!(kinds.len(), KINDS as usize);
        }
        assert_ne!(Plan::new(8, 3, 2).draw(), faults[0]);
    }
}
