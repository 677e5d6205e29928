//! How LOADs end.

/// What became of a LOAD, in [`LoadDone`](super::LoadDone). Its victims have left in every case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum LoadStatus {
    /// The slot has the weights.
    Loaded = 0,
    /// It could not begin in its window.
    Late = 1,
    /// There were too few free pages.
    NoPages = 2,
    /// The copy failed, or the backend could not make sense of the LOAD.
    Failed = 3,
}

impl LoadStatus {
    /// The status with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Loaded),
            1 => Some(Self::Late),
            2 => Some(Self::NoPages),
            3 => Some(Self::Failed),
            _ => None,
        }
    }
}
