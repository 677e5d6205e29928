//! Scenarios at a rate that is drawn with them: how much of it each policy serves in time.
//!
//! With weights that do not fit, or with variants to choose from, a policy does not carry a rate or
//! fail to: it serves more of it, or more accurately. `docs/simulator.md` lists what is drawn.

mod caches;
mod contest;
mod draw;
mod summary;
mod supernets;

pub use contest::{PolicyServed, ServedContest, ServedRow};
pub use draw::draw_at_rate;
pub use summary::ServedSummary;

use std::str::FromStr;

/// What scenarios are drawn of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Models whose weights do not fit into the slots' memory.
    Caches,
    /// Models with variants.
    Supernets,
}

impl Family {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Caches => "caches",
            Self::Supernets => "supernets",
        }
    }
}

impl FromStr for Family {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let families = [Self::Caches, Self::Supernets];
        let found = families.into_iter().find(|family| family.name() == name);
        found.ok_or_else(|| format!("there is no family `{name}`; give caches or supernets"))
    }
}
