//! How large a run is. Most are short and small, because thousands of them find more than a few large ones. Some things
//! happen only in large ones: clients with hundreds of tasks outstanding, windows of seconds that pass, many models.
//!
//! Drawn apart from everything else, so that a usual run is what it would be without.

use baton_core::Nanos;
use baton_topo::Cluster;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::faults::{Fault, Who, of_frontends};
use crate::network::Link;
use crate::plan::{Load, model};

/// What a run has more of than others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Nothing: tens of tasks outstanding, less than half a second of load.
    Usual,
    /// Hundreds of tasks outstanding for each client, and a scheduler that goes.
    Crowd,
    /// Seconds of load.
    Long,
    /// Many models.
    Models,
    /// Something happens to frontends alone, and connections hold little: answers to one wait with another's.
    Bystanders,
}

/// A rate is measured over five seconds; a long run sees several of these windows pass.
const LONG_MS: std::ops::RangeInclusive<u64> = 6_000..=14_000;

impl Scale {
    /// The scale of a seed's run, and where the rest of it is drawn from.
    pub(crate) fn draw(seed: u64) -> (Self, StdRng) {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x7363_616c);
        let scale = match rng.random_range(0..200) {
            0..3 => Self::Long,
            3..7 => Self::Crowd,
            7..11 => Self::Models,
            11..17 => Self::Bystanders,
            _ => Self::Usual,
        };
        (scale, rng)
    }

    /// Enlarges the cluster.
    pub(crate) fn enlarge(self, rng: &mut StdRng, cluster: &mut Cluster) {
        match self {
            Self::Usual | Self::Long | Self::Bystanders => {}
            Self::Crowd => {
                cluster.frontend.slots_per_model = rng.random_range(300..=700);
                for model in &mut cluster.models {
                    // Memory for hundreds of each.
                    model.input_bytes = model.input_bytes.min(600);
                    model.output_bytes = model.output_bytes.min(600);
                    model.queue_capacity = rng.random_range(300..=1_000);
                }
            }
            Self::Models => {
                let (from, to) = (cluster.models.len() as u32, rng.random_range(8..=24));
                let subclusters = cluster.subclusters.len() as u32;
                cluster.models.extend((from..to).map(|id| model(rng, id, subclusters)));
            }
        }
    }

    /// For how long load is offered.
    pub(crate) fn span(self, rng: &mut StdRng, usual: Nanos) -> Nanos {
        match self {
            Self::Long => Nanos::from_millis(rng.random_range(LONG_MS)),
            Self::Usual | Self::Crowd | Self::Models | Self::Bystanders => usual,
        }
    }

    /// How many frontends there are.
    pub(crate) fn frontends(self, usual: usize) -> usize {
        if self == Self::Bystanders { usual.max(2) } else { usual }
    }

    /// Connections that hold little.
    pub(crate) fn narrow(self, link: &mut Link, rng: &mut StdRng, cluster: &mut Cluster) {
        if self == Self::Bystanders {
            link.window = 1 << rng.random_range(11..=12);
            for model in &mut cluster.models {
                model.output_bytes = rng.random_range(200..=600);
            }
        }
    }

    /// What is asked for: of a long run not much more than of a short one, and in phases.
    pub(crate) fn load(self, rng: &mut StdRng, load: &mut Load) {
        match self {
            Self::Usual | Self::Models | Self::Bystanders => {}
            Self::Long => {
                load.gap = load.gap.times(rng.random_range(8..=20));
                load.burst = load.burst.max(rng.random_range(1..=60));
            }
            Self::Crowd => {
                load.burst = rng.random_range(300..=700);
                let (from, to) = load.deadline_percent;
                load.deadline_percent = (from * 5, to * 20);
            }
        }
    }

    /// Where there are bystanders, something happens to frontends alone.
    pub(crate) fn spare(
        self,
        rng: &mut StdRng,
        faults: &mut Vec<(Nanos, Fault)>,
        frontends: usize,
        span: Nanos,
    ) {
        if self == Self::Bystanders {
            *faults = of_frontends(rng, frontends, span);
        }
    }

    /// What goes wrong besides.
    pub(crate) fn trouble(self, rng: &mut StdRng, span: Nanos) -> Option<(Nanos, Fault)> {
        if self != Self::Crowd {
            return None;
        }
        let long = Nanos::from_micros(rng.random_range(500..=100_000));
        let fault = match rng.random_range(0..3) {
            0 => Fault::Stop(long),
            1 => Fault::Kill(Who::Scheduler, Some(long)),
            _ => return None,
        };
        Some((Nanos(rng.random_range(0..span.0)), fault))
    }
}

/// What a run is spared altogether: some faults show only where no other trouble hides them.
pub(crate) fn leave_out(rng: &mut StdRng, link: &mut Link, drift_ppm: &mut i64) {
    if rng.random_range(0..4) == 0 {
        (link.jitter, link.spikes, link.cuts) = (Nanos(1_000), 0, 0);
    }
    if rng.random_range(0..4) == 0 {
        *drift_ppm = 0;
    }
}
