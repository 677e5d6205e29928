//! Weights and the memory for them, as a scenario file has them.

use baton_core::{LoadLimits, LoadRule, Nanos, Weights};
use serde::Deserialize;

use crate::scenario::{Scenario, SimModel};
use crate::scenario_file::{ScenarioError, check};

/// A scenario's GPU memory; without it every slot holds every model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GpuMemory {
    /// Pages of each slot.
    pub pages: u32,
    /// A page, MiB.
    pub page_mib: f64,
    /// What copies weights to a slot, 10⁹ bytes a second.
    pub load_gb_per_s: f64,
    /// Real over planned time of a LOAD.
    pub load_error: f64,
    /// Mean of the exponentially distributed time that a LOAD takes beyond that.
    pub load_overrun: Nanos,
    /// A slot whose LOADs take longer than those of the others, which the scheduler does not know beforehand.
    pub slow_link: Option<SlowLink>,
}

/// `slow_link` of a scenario file.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowLink {
    /// The slot, from 0.
    pub gpu: u32,
    /// Its time for a LOAD over that of another.
    pub factor: f64,
}

/// What one model's weights take.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SimWeights {
    /// Their size, 10⁶ bytes.
    pub weights_mb: f64,
    /// How long a LOAD takes, ms; `None`: as its size and the link say.
    pub load_ms: Option<f64>,
}

/// A page, if the file does not say, MiB (Clockwork §5.2).
pub(crate) const PAGE_MIB: f64 = 16.0;
/// What Table 1 of Clockwork comes to: weights over transfer time.
pub(crate) const LOAD_GB_PER_S: f64 = 12.3;

impl GpuMemory {
    pub(crate) fn check(&self, gpus: u32, models: &[SimModel]) -> Result<(), ScenarioError> {
        check("pages", self.pages.into(), 1.0, 1e6)?;
        check("page_mib", self.page_mib, 0.01, 1e6)?;
        check("load_gb_per_s", self.load_gb_per_s, 0.001, 1e6)?;
        check("load_error", self.load_error, 0.01, 100.0)?;
        if let Some(link) = self.slow_link {
            check("slow_link.gpu", link.gpu.into(), 0.0, f64::from(gpus) - 1.0)?;
            check("slow_link.factor", link.factor, 0.01, 100.0)?;
        }
        for model in models {
            let Some(weights) = model.weights else {
                return Err(ScenarioError::NoWeights { model: model.name.clone() });
            };
            let most_mb = f64::from(self.pages) * self.page_mib * MIB / 1e6;
            let SimWeights { weights_mb, .. } = weights;
            if weights_mb > most_mb {
                let (model, pages) = (model.name.clone(), self.pages);
                return Err(ScenarioError::Weights { model, weights_mb, pages, most_mb });
            }
            check(&format!("{}.weights_mb", model.name), weights_mb, 0.001, most_mb)?;
            if let Some(load_ms) = weights.load_ms {
                check(&format!("{}.load_ms", model.name), load_ms, 0.001, 1e6)?;
            }
        }
        Ok(())
    }

    /// What the scheduler knows of a model's weights. Its scenario has memory, so the model has weights.
    pub(crate) fn weights(&self, model: &SimModel) -> Weights {
        let SimWeights { weights_mb, load_ms } =
            model.weights.unwrap_or(SimWeights { weights_mb: 0.0, load_ms: None });
        let pages = (weights_mb * 1e6 / (self.page_mib * MIB)).ceil().max(1.0) as u32;
        let load_ms = load_ms.unwrap_or(weights_mb / self.load_gb_per_s);
        let (load, alone) = (Nanos::from_millis_f64(load_ms), model.profile.latency(1));
        Weights { pages, load, is_guess: false, alone }
    }
}

/// As much as the scenario's slots could hold, on at most [`COPIES_MAX`] slots each.
pub(crate) fn limits(scenario: &Scenario, rule: LoadRule) -> LoadLimits {
    let pages = scenario.memory.map_or(0, |memory| memory.pages);
    LoadLimits {
        gpus: scenario.gpus,
        copies: scenario.gpus.min(COPIES_MAX),
        residents: pages.min(scenario.models.len() as u32),
        rule,
        outstanding: Nanos::ZERO,
    }
}

/// Slots that may hold one model.
const COPIES_MAX: u32 = 64;

pub(crate) const MIB: f64 = (1u64 << 20) as f64;
