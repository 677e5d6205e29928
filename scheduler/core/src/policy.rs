//! The choices that vary between scheduling policies. An enum over small pure pieces: a policy is
//! data to `ModelState`, which has one code path.

/// How tasks are batched and when a batch may start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Policy {
    /// Deferred, non-work-conserving batching (Symphony §4.3): window formation, schedulable once
    /// βλ tasks wait or the frontrun moment has come.
    Symphony,
    /// Work-conserving: whatever can run together with the head is schedulable at once.
    Eager,
}

/// Which waiting tasks make up the candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Formation {
    /// Give up the heads that would keep the batch from its target size.
    Window,
    /// The head and as many after it as its deadline allows.
    Prefix,
}

impl Policy {
    /// The policy's batch formation.
    pub const fn formation(self) -> Formation {
        match self {
            Self::Symphony => Formation::Window,
            Self::Eager => Formation::Prefix,
        }
    }

    /// Whether a candidate waits although a GPU is idle.
    pub const fn defers(self) -> bool {
        matches!(self, Self::Symphony)
    }
}
