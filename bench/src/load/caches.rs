//! What a scheduler counts of its weights caches, before and after a load.

use baton_client::status::ClusterStatus;
use serde::{Deserialize, Serialize};

/// Counted since the scheduler's start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheCounts {
    /// Tasks that came while no slot held their model.
    pub cold: u64,
    /// Of these, those whose batch ended in time.
    pub cold_in_time: u64,
    /// LOADs that ended well.
    pub loads: u64,
}

/// How caches fared under a load, as `baton sim run --json` has it. Tasks of others count as well.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ColdFigures {
    /// Tasks per second that came while no slot held their model.
    pub cold_rps: f64,
    /// The part of them whose batch ended in time; `null` without any.
    pub cold_satisfied: Option<f64>,
    /// LOADs that ended well, per second.
    pub loads_per_s: f64,
}

impl CacheCounts {
    /// `None`: slots have room for every model.
    pub fn of(status: &ClusterStatus) -> Option<Self> {
        let caches = || status.models.iter().filter_map(|model| model.cache.as_ref());
        caches().next()?;
        Some(Self {
            cold: caches().map(|cache| cache.cold).sum(),
            cold_in_time: caches().map(|cache| cache.cold_in_time).sum(),
            loads: status.gpus.iter().filter_map(|gpu| gpu.loads).sum(),
        })
    }

    /// What has come since then, in this time. Of a scheduler that was exchanged meanwhile: since its start.
    pub fn since(self, before: Self, seconds: f64) -> ColdFigures {
        let before = if self.cold < before.cold { Self::default() } else { before };
        let cold = self.cold - before.cold;
        let in_time = self.cold_in_time.saturating_sub(before.cold_in_time).min(cold);
        ColdFigures {
            cold_rps: cold as f64 / seconds,
            cold_satisfied: (cold > 0).then(|| in_time as f64 / cold as f64),
            loads_per_s: self.loads.saturating_sub(before.loads) as f64 / seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_has_what_has_come_since_it_began() {
        let counts = |cold, cold_in_time, loads| CacheCounts { cold, cold_in_time, loads };
        let figures = |cold_rps, cold_satisfied, loads_per_s| ColdFigures {
            cold_rps,
            cold_satisfied,
            loads_per_s,
        };
        let before = counts(100, 90, 50);
        assert_eq!(counts(140, 120, 58).since(before, 4.0), figures(10.0, Some(0.75), 2.0));
        assert_eq!(before.since(before, 4.0), figures(0.0, None, 0.0));
        assert_eq!(
            counts(8, 6, 60).since(before, 2.0),
            figures(4.0, Some(0.75), 30.0),
            "another one"
        );
    }
}
