//! The names of the scheduling policies. The cluster file, the command line, the simulator and the plots all use them;
//! what a policy does is in `scheduler/core/src/policy/`.

use core::fmt;
use core::str::FromStr;

/// How tasks are batched and when a batch may start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Policy {
    /// Ours: see `scheduler/core/src/policy/baton.rs`.
    #[default]
    Baton,
    /// Deferred, non-work-conserving batching (Symphony §4.3): see `scheduler/core/src/policy/symphony.rs`.
    Symphony,
    /// Work-conserving: see `scheduler/core/src/policy/eager.rs`.
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
