//! What becomes of LOADs, in words that an operator hears: from the RankThread to the ControlThread, which remembers the last.

use baton_core::{GpuId, LoadOutcome, LoadReason, ModelId, Nanos};
use baton_rdma::wire::{LoadFault, LoadStatus};

/// News that may wait for the ControlThread; more is left out, and counted.
pub(crate) const NEWS_MAX: usize = 1024;

/// How a LOAD ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LoadEnd {
    /// The slot has the weights; the copy took this long.
    Loaded { took: Nanos },
    /// It did not begin in time.
    Late,
    /// It came to nothing.
    Failed(Failure),
    /// Its backend is gone.
    Lost,
}

/// Why a LOAD came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Failure {
    NoPages,
    Unreadable,
    Different,
    Hung,
    Unsent,
    Other,
}

/// Something that happened to a LOAD. A name comes again once its LOAD has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LoadNews {
    /// It was ordered.
    Ordered(LoadOrdered),
    /// It ended.
    Ended { name: u64, at: Nanos, end: LoadEnd },
}

/// A LOAD as it was planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoadOrdered {
    pub(crate) name: u64,
    pub(crate) model: ModelId,
    pub(crate) slot: GpuId,
    pub(crate) reason: LoadReason,
    pub(crate) at: Nanos,
    /// When the weights should be there.
    pub(crate) until: Nanos,
    /// Models that leave for it.
    pub(crate) victims: u32,
}

impl LoadEnd {
    /// As a backend reports it.
    pub(crate) fn reported(status: LoadStatus, fault: u8, took: Nanos) -> Self {
        match status {
            LoadStatus::Loaded => Self::Loaded { took },
            LoadStatus::Late => Self::Late,
            LoadStatus::NoPages => Self::Failed(Failure::NoPages),
            LoadStatus::Failed => Self::Failed(match LoadFault::from_code(fault) {
                Some(LoadFault::Unreadable) => Failure::Unreadable,
                Some(LoadFault::Different) => Failure::Different,
                Some(LoadFault::Hung) => Failure::Hung,
                Some(LoadFault::Other) | None => Failure::Other,
            }),
        }
    }

    /// What LoadState hears; nothing of what was lost, as it knows that the slot is gone.
    pub(crate) fn outcome(self) -> Option<LoadOutcome> {
        Some(match self {
            Self::Loaded { took } => LoadOutcome::Loaded { took },
            Self::Late => LoadOutcome::Late,
            Self::Failed(Failure::NoPages) => LoadOutcome::NoPages,
            Self::Failed(_) => LoadOutcome::Failed,
            Self::Lost => return None,
        })
    }

    /// As it stands in the answer to an operator.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Loaded { .. } => "loaded",
            Self::Late => "late",
            Self::Failed(failure) => failure.as_str(),
            Self::Lost => "lost",
        }
    }
}

impl Failure {
    pub(crate) const ALL: [Self; 6] =
        [Self::NoPages, Self::Unreadable, Self::Different, Self::Hung, Self::Unsent, Self::Other];

    /// The one with this number.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// As it stands in the answer to an operator.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::NoPages => "no_pages",
            Self::Unreadable => "unreadable",
            Self::Different => "different",
            Self::Hung => "hung",
            Self::Unsent => "unsent",
            Self::Other => "failed",
        }
    }
}

/// As it stands in the answer to an operator.
pub(crate) const fn reason_name(reason: LoadReason) -> &'static str {
    match reason {
        LoadReason::Waiting => "waiting",
        LoadReason::Expected => "expected",
        LoadReason::Busy => "busy",
        LoadReason::Losing => "losing",
        LoadReason::Priority => "priority",
        LoadReason::Commanded => "commanded",
    }
}
