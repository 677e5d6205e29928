//! What can go wrong, as data: drawn from the seed here, carried out by the run.
//!
//! A new kind of fault is a variant of [`Fault`], an arm in `draw_one`, one in the run, and a word
//! in [`Fault::holds`] on which tasks it may keep from their outcome.

use baton_core::Nanos;
use baton_topo::Cluster;
use rand::RngExt;
use rand::rngs::StdRng;

/// A process, by its part in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// The scheduler.
    Scheduler,
    /// A backend, by its position in the cluster file.
    Backend(usize),
    /// A frontend, by its number.
    Frontend(usize),
}

/// One thing that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The process is killed; its kernel closes its connections. Started again after a while, if
    /// that is given.
    Kill(Who, Option<Nanos>),
    /// The scheduler ends in order, which takes a while, and starts again this long after its end.
    Stop(Nanos),
    /// The process's machine loses power, and its peers hear nothing. Started again after a while.
    Vanish(Who, Nanos),
    /// The process stands still for a while.
    Freeze(Who, Nanos),
    /// Both processes stand still together for a while: who observes, and who is observed.
    FreezeBoth(Who, Who, Nanos),
    /// Every process stands still for a while, and so do the programs that use them: a host that has
    /// no core for any.
    FreezeAll(Nanos),
    /// One thread of the scheduler stands still for a while.
    FreezeThread(usize, Nanos),
    /// Nothing passes from the first to the second for a while.
    Wall(Who, Who, Nanos),
    /// Nothing passes either way for a while.
    Partition(Who, Who, Nanos),
    /// One of the connections between the two breaks, in the middle of what is on its way. If the
    /// flag is not set, only one side learns of it at once.
    Cut(Who, Who, usize, bool),
    /// Of 1,000 outcomes, reports and cancellations, how many are said again, for a while.
    Repeat(u32, Nanos),
    /// A GPU executes nothing for a while.
    Stall(usize, usize, Nanos),
    /// A GPU takes this much of its usual time for a while, in percent.
    Slow(usize, usize, u64, Nanos),
    /// A GPU's executor ends.
    EngineDies(usize, usize),
    /// The backend is asked to leave, and started again after a while.
    Leave(usize, Nanos),
    /// The application lets go of everything, and starts again after a while.
    Depart(usize, Nanos),
    /// A model moves to another ModelThread, if it can.
    Move(u32, usize),
    /// Another frontend joins.
    Join,
}

/// Whose tasks a fault may keep from their outcome until their lease ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holds {
    /// No frontend's: the process that owes the outcome learns at once that it does.
    None,
    /// Those of one frontend.
    Frontend(usize),
    /// Those of all.
    All,
}

impl Fault {
    /// True if every outcome must still come on its usual way, once.
    pub fn is_calm(&self) -> bool {
        matches!(self, Self::Leave(..) | Self::Move(..) | Self::Join | Self::Slow(..))
    }

    /// How long after it the process that it takes down starts again.
    pub(crate) fn starts_again(&self) -> Option<Nanos> {
        match *self {
            Self::Kill(_, again) => again,
            Self::Vanish(_, again)
            | Self::Stop(again)
            | Self::Leave(_, again)
            | Self::Depart(_, again) => Some(again),
            _ => None,
        }
    }

    /// Until when it lasts, counted from its beginning, if it is longer than a run usually is.
    pub(crate) fn outlasts(&self) -> Nanos {
        match *self {
            Self::FreezeBoth(_, _, long) | Self::FreezeAll(long) => long,
            _ => Nanos::ZERO,
        }
    }

    /// Until when it keeps the scheduler from a member, counted from its beginning, if that is for longer than they are patient.
    pub(crate) fn parts(&self) -> Nanos {
        match *self {
            Self::Wall(a, b, long) | Self::Partition(a, b, long) if long > PATIENT => {
                let parts = [a, b].contains(&Who::Scheduler);
                if parts { long } else { Nanos::ZERO }
            }
            _ => Nanos::ZERO,
        }
    }

    /// The frontend to which alone something happens.
    pub(crate) fn concerns(&self) -> Option<usize> {
        match *self {
            Self::Kill(Who::Frontend(f), _)
            | Self::Vanish(Who::Frontend(f), _)
            | Self::Freeze(Who::Frontend(f), _)
            | Self::Depart(f, _) => Some(f),
            Self::Wall(a, b, _) | Self::Partition(a, b, _) | Self::Cut(a, b, ..) => {
                match between(a, b) {
                    Holds::Frontend(f) => Some(f),
                    Holds::None | Holds::All => None,
                }
            }
            _ => None,
        }
    }

    /// True if it may keep a reader of an input from ending: no scheduler can take up its task
    /// meanwhile.
    pub(crate) fn may_hold_inputs(&self) -> bool {
        matches!(
            self,
            Self::Vanish(..)
                | Self::Freeze(..)
                | Self::FreezeThread(..)
                | Self::FreezeBoth(..)
                | Self::FreezeAll(..)
                | Self::Wall(..)
                | Self::Partition(..)
                | Self::Cut(..)
                | Self::Stall(..)
        )
    }

    /// Whose tasks may be left to their lease, and for how long from the fault on, not counting
    /// what it takes to notice.
    pub fn holds(&self) -> (Holds, Nanos) {
        match *self {
            Self::Freeze(Who::Frontend(f), long) => (Holds::Frontend(f), long),
            Self::FreezeBoth(_, _, long) | Self::FreezeAll(long) => (Holds::All, long),
            Self::Freeze(_, long) | Self::FreezeThread(_, long) | Self::Stall(_, _, long) => {
                (Holds::All, long)
            }
            Self::Wall(a, b, long) | Self::Partition(a, b, long) => (between(a, b), long),
            Self::Cut(a, b, ..) => match between(a, b) {
                // The scheduler and the backend each notice, and the scheduler takes over.
                Holds::All => (Holds::None, Nanos::ZERO),
                holds => (holds, Nanos::from_millis(60)),
            },
            Self::Vanish(Who::Frontend(_), _) | Self::Kill(Who::Frontend(_), _) => {
                (Holds::None, Nanos::ZERO)
            }
            Self::Vanish(..) => (Holds::All, Nanos::ZERO),
            Self::Kill(Who::Scheduler, _) => (Holds::All, Nanos::ZERO),
            _ => (Holds::None, Nanos::ZERO),
        }
    }
}

fn between(a: Who, b: Who) -> Holds {
    match (a, b) {
        (Who::Frontend(f), _) | (_, Who::Frontend(f)) => Holds::Frontend(f),
        _ => Holds::All,
    }
}

/// What goes wrong in a run of `span`. One run in five is spared.
pub(crate) fn draw(
    rng: &mut StdRng,
    cluster: &Cluster,
    frontends: usize,
    span: Nanos,
) -> Vec<(Nanos, Fault)> {
    let count = match rng.random_range(0..5) {
        0 => 0,
        1 => 1,
        _ => rng.random_range(2..=10),
    };
    // A run has a few kinds of trouble rather than a little of each: some bugs need the same twice.
    let kinds: Vec<u32> =
        (0..rng.random_range(1..=4)).map(|_| rng.random_range(0..KINDS)).collect();
    let mut faults: Vec<(Nanos, Fault)> = (0..count)
        .map(|_| {
            let kind = kinds[rng.random_range(0..kinds.len())];
            let at = Nanos(rng.random_range(0..span.0));
            (at, draw_one(rng, kind, cluster, frontends))
        })
        .collect();
    faults.sort_by_key(|(at, _)| *at);
    faults
}

const KINDS: u32 = 19;
/// Nothing shorter makes a member lose patience.
const PATIENT: Nanos = Nanos::from_millis(400);

fn draw_one(rng: &mut StdRng, kind: u32, cluster: &Cluster, frontends: usize) -> Fault {
    let backend = rng.random_range(0..cluster.backends.len());
    let frontend = rng.random_range(0..frontends);
    let gpu = rng.random_range(0..cluster.backends[backend].gpus as usize);
    let long = Nanos::from_micros(rng.random_range(500..=250_000));
    let (b, f) = (Who::Backend(backend), Who::Frontend(frontend));
    match kind {
        // One in five stays away.
        0 => Fault::Kill(b, (rng.random_range(0..5) > 0).then_some(long)),
        1 => Fault::Kill(f, Some(long)),
        2 => match rng.random_range(0..3) {
            0 => Fault::Kill(Who::Scheduler, Some(long)),
            1 => Fault::Stop(long),
            _ => Fault::Vanish(Who::Scheduler, long),
        },
        3 => Fault::Vanish(one_of(rng, [b, f]), long),
        4 => Fault::Freeze(one_of(rng, [b, f, Who::Scheduler]), long),
        5 => Fault::FreezeThread(rng.random_range(0..5), long),
        6 => {
            let (a, b) = pair(rng, b, f);
            Fault::Wall(a, b, stretched(long))
        }
        7 => {
            let (a, b) = pair(rng, b, f);
            Fault::Partition(a, b, stretched(long))
        }
        8 | 9 => {
            let (a, b) = pair(rng, b, f);
            Fault::Cut(a, b, rng.random_range(0..8), rng.random_range(0..3) > 0)
        }
        10 => Fault::Repeat(rng.random_range(10..=500), long),
        11 => Fault::Stall(backend, gpu, long),
        12 => Fault::Slow(backend, gpu, rng.random_range(110..=300), long),
        13 if rng.random_range(0..3) == 0 => Fault::EngineDies(backend, gpu),
        13 => Fault::Leave(backend, long),
        14 => Fault::Depart(frontend, long),
        15 => {
            let model = rng.random_range(0..cluster.models.len() as u32);
            Fault::Move(model, rng.random_range(0..cluster.scheduler.model_threads as usize))
        }
        16 => {
            let (a, b) = pair(rng, b, f);
            Fault::FreezeBoth(a, b, beyond_patience(rng, 1_000))
        }
        17 => Fault::FreezeAll(beyond_patience(rng, 3_000)),
        _ => Fault::Join,
    }
}

/// One time in five it lasts for longer than members are patient with each other.
fn stretched(long: Nanos) -> Nanos {
    if long > Nanos::from_millis(200) { long.times(4) } else { long }
}

/// Nothing goes wrong but that frontends stand still, hear nothing or go.
pub(crate) fn of_frontends(rng: &mut StdRng, frontends: usize, span: Nanos) -> Vec<(Nanos, Fault)> {
    let mut faults: Vec<(Nanos, Fault)> = (0..rng.random_range(1..=6))
        .map(|_| {
            let f = Who::Frontend(rng.random_range(0..frontends));
            let long = Nanos::from_millis(rng.random_range(20..=250));
            let fault = match rng.random_range(0..8) {
                0 => Fault::Kill(f, Some(long)),
                1 => Fault::Vanish(f, long),
                _ => Fault::Freeze(f, long),
            };
            (Nanos(rng.random_range(0..span.0)), fault)
        })
        .collect();
    faults.sort_by_key(|(at, _)| *at);
    faults
}

/// From less than anybody's patience to more than everybody's.
fn beyond_patience(rng: &mut StdRng, most_ms: u64) -> Nanos {
    Nanos::from_millis(rng.random_range(100..=most_ms))
}

fn one_of<const N: usize>(rng: &mut StdRng, all: [Who; N]) -> Who {
    all[rng.random_range(0..N)]
}

/// Two that talk to each other, in either order.
fn pair(rng: &mut StdRng, backend: Who, frontend: Who) -> (Who, Who) {
    let pair = match rng.random_range(0..3) {
        0 => (backend, frontend),
        1 => (backend, Who::Scheduler),
        _ => (frontend, Who::Scheduler),
    };
    if rng.random_range(0..2) == 0 { pair } else { (pair.1, pair.0) }
}
