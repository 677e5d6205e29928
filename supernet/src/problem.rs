//! What is wrong with a checkpoint.

/// Where something is wrong, what, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {what}; {fix}")]
pub struct Problem {
    /// The file, layer, tensor or variant.
    pub place: String,
    /// What is wrong with it.
    pub what: String,
    /// What to do.
    pub fix: String,
}

impl Problem {
    pub(crate) fn new(
        place: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { place: place.into(), what: what.into(), fix: fix.into() }
    }
}
