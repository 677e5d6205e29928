//! The staggered optimum: what a cluster could serve if tasks came evenly spaced and the batches of
//! its GPUs started one after another (Symphony §4.2, with real-valued batch sizes).

use crate::scenario::{Scenario, SimModel};

/// The largest total rate, tasks/s, with every model at its share and within its objective.
///
/// One model on N GPUs: b/r + ℓ(b) = SLO with r = N·b/ℓ(b). Several: each gathers evenly,
/// (b − 1)/r + ℓ(b) = SLO, and together they need at most N GPUs. Plan delivery is taken off the
/// objective and fetching added to α. α and β are the real ones, by the models' `profile_error`;
/// overrun, stragglers, its spread, and slots that leave or come are left out. Zero if no model has tasks that
/// come at a rate: closed loops have none.
pub fn analytic_bound_rps(scenario: &Scenario) -> f64 {
    let gpus = f64::from(scenario.gpus);
    let offered = scenario.models.iter().filter(|model| model.share > 0.0);
    let models: Vec<Terms> = offered.map(|model| terms(scenario, model)).collect();
    if models.is_empty() || models.iter().any(|model| model.latency_s(1.0) > model.slo_s) {
        return 0.0;
    }
    if let [model] = models.as_slice() {
        let batch = model.limited(model.slo_s / (1.0 + 1.0 / gpus));
        return gpus * batch / model.latency_s(batch);
    }
    let needed = |rate: f64| models.iter().map(|model| model.gpus_at(rate)).sum::<f64>();
    let mut high = 1.0;
    while needed(high) <= gpus {
        high *= 2.0;
    }
    let mut low = 0.0;
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if needed(middle) <= gpus { low = middle } else { high = middle }
    }
    low
}

/// One model with the network's delays in it, seconds.
struct Terms {
    alpha_s: f64,
    beta_s: f64,
    slo_s: f64,
    share: f64,
    batch_max: f64,
}

fn terms(scenario: &Scenario, model: &SimModel) -> Terms {
    let network = &scenario.network;
    Terms {
        alpha_s: (model.alpha_ms * model.profile_error + network.data_per_task.as_millis_f64())
            / 1e3,
        beta_s: model.beta_ms * model.profile_error / 1e3,
        slo_s: (model.slo_ms - network.ctrl.as_millis_f64()) / 1e3,
        share: model.share,
        batch_max: f64::from(model.profile.batch_max()),
    }
}

impl Terms {
    fn latency_s(&self, batch: f64) -> f64 {
        self.alpha_s * batch + self.beta_s
    }

    /// The real-valued batch that takes this long, within 1 and the profile's largest.
    fn limited(&self, latency_s: f64) -> f64 {
        ((latency_s - self.beta_s) / self.alpha_s).max(1.0).min(self.batch_max)
    }

    /// GPUs the model needs at a total rate.
    fn gpus_at(&self, total_rps: f64) -> f64 {
        let rate = total_rps * self.share;
        let gap_s = 1.0 / rate;
        let batch = (self.slo_s - self.beta_s + gap_s) / (self.alpha_s + gap_s);
        let batch = batch.clamp(1.0, self.batch_max);
        rate * self.latency_s(batch) / batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(text: &str) -> f64 {
        analytic_bound_rps(&Scenario::parse(text).unwrap()).round()
    }

    fn table_4(alpha_ms: f64, beta_ms: f64, slo_ms: f64) -> f64 {
        bound(&format!(
            "gpus = 8\nduration_s = 1\n[[model]]\nname = \"m\"\nalpha_ms = {alpha_ms}\n\
             beta_ms = {beta_ms}\nslo_ms = {slo_ms}"
        ))
    }

    #[test]
    fn one_model_on_eight_gpus() {
        assert_eq!(table_4(1.053, 5.072, 25.0), 5_863.0);
        assert_eq!(table_4(5.090, 18.368, 70.0), 1_108.0);
    }

    #[test]
    fn what_messages_take_is_no_time_for_a_batch() {
        let with = |slo_ms: f64, network: &str| {
            bound(&format!(
                "gpus = 8\nduration_s = 1\n{network}\n[[model]]\nname = \"m\"\nalpha_ms = 1\n\
                 beta_ms = 5\nslo_ms = {slo_ms}"
            ))
        };
        assert!(with(25.0, "") > with(22.0, ""));
        assert_eq!(with(25.0, "network = { ctrl_us = 3_000 }"), with(22.0, ""));
    }

    #[test]
    fn the_papers_zoos_on_64_gpus() {
        let zoo = |name, filter| {
            bound(&format!(
                "gpus = 64\nduration_s = 1\nzoo = \"{name}\"\nzoo_filter = \"{filter}\""
            ))
        };
        assert_eq!(zoo("1080ti", "all"), 8_023.0);
        assert_eq!(zoo("1080ti", "gt2"), 21_186.0);
        assert_eq!(zoo("1080ti", "lt2"), 4_063.0);
        assert_eq!(zoo("a100", "gt2"), 61_351.0);
        assert_eq!(zoo("a100", "lt2"), 6_580.0);
    }

    #[test]
    fn closed_loops_have_no_rate() {
        let text = "gpus = 1\nduration_s = 1\n[[model]]\nname = \"m\"\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9\n\
                    copies = 2\nclosed_loop = { clients = 2 }";
        assert_eq!(bound(text), 0.0);
    }

    #[test]
    fn an_objective_shorter_than_one_execution_allows_nothing() {
        assert_eq!(table_4(1.0, 5.0, 5.9), 0.0);
    }
}
