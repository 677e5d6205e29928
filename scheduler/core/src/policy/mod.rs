//! Scheduling policies: what varies between them, and their names.
//!
//! `ModelState` and `RankState` have one code path. A policy is data to them: a [`Rules`] in a file of its own, and
//! one line of [`Policy::ALL`], [`Policy::name`] and [`Policy::rules`]. The cluster file, the command line, the
//! simulator and the plots all use these names.

mod baton;
mod eager;
pub(crate) mod patience;
mod symphony;

use core::fmt;
use core::str::FromStr;

/// How tasks are batched and when a batch may start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Policy {
    /// Ours: see `policy/baton.rs`.
    #[default]
    Baton,
    /// Deferred, non-work-conserving batching (Symphony §4.3): see `policy/symphony.rs`.
    Symphony,
    /// Work-conserving: see `policy/eager.rs`.
    Eager,
}

/// What a policy that waits does with GPUs that are idle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Prefer {
    /// Batches start at once while there are slots to spare.
    #[default]
    Latency,
    /// Batches wait for as long as waiting makes them larger, so that load gathers on few slots
    /// (Symphony §4.4).
    FewestGpus,
}

/// A policy's answers to the questions that are asked of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// For which batch size are heads given up?
    pub floor: Floor,
    /// Until when does a candidate wait?
    pub deferral: Deferral,
    /// Do batches start early while slots are to spare, and leave slots to models with shorter objectives?
    pub yields: bool,
    /// Which of several due candidates does a slot take?
    pub order: Order,
}

/// The batch size that heads are given up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Floor {
    /// The smallest that costs hardly more per task than the target: see [`WORTH_DROPPING`].
    Efficient,
    /// The target itself.
    Target,
    /// None: the head always runs, with as many after it as its deadline allows.
    One,
}

/// Until when a candidate waits although a slot is idle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deferral {
    /// While more tasks are expected before frontrun than the batch's patience.
    Expectation,
    /// Until βλ tasks wait, at most until frontrun.
    Fill,
    /// Not at all.
    None,
}

/// What competing candidates are ordered by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The latest start, advanced by the model's bad rate.
    LatestStart,
    /// The frontrun moment, dl − ℓ(b + 1).
    Frontrun,
}

/// Heads are not given up for a batch unless the smaller one's tasks cost 1/12 more GPU time each.
pub const WORTH_DROPPING: u64 = 12;

/// A batch does not wait for tasks unless without them each costs 1/16 more GPU time.
pub const WORTH_WAITING: u64 = 16;

impl Policy {
    /// All of them, the default first.
    pub const ALL: [Self; 3] = [Self::Baton, Self::Symphony, Self::Eager];

    /// As it is written in files, on the command line and in plots.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baton => "baton",
            Self::Symphony => "symphony",
            Self::Eager => "eager",
        }
    }

    /// Its answers.
    pub const fn rules(self) -> Rules {
        match self {
            Self::Baton => baton::RULES,
            Self::Symphony => symphony::RULES,
            Self::Eager => eager::RULES,
        }
    }
}

impl Prefer {
    /// Both, the default first.
    pub const ALL: [Self; 2] = [Self::Latency, Self::FewestGpus];

    /// As it is written in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::FewestGpus => "fewest_gpus",
        }
    }
}

/// A name that stands for no policy, or for no preference. It says nothing more: the caller that
/// read it knows where it stands, and lists what there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownName;

impl FromStr for Policy {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or(UnknownName)
    }
}

impl FromStr for Prefer {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|prefer| prefer.name() == name).ok_or(UnknownName)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Prefer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for prefer in Prefer::ALL {
            assert_eq!(prefer.to_string().parse(), Ok(prefer));
        }
        assert_eq!("fifo".parse::<Policy>(), Err(UnknownName));
        assert_eq!((Policy::ALL[0], Prefer::ALL[0]), Default::default());
    }
}
