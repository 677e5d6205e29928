//! Published model profiles, as data.

use serde::Deserialize;

/// One row of a paper's table.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZooModel {
    /// The model's name as printed.
    pub name: String,
    /// α of ℓ(b) = α·b + β, ms: the cost of one more task.
    pub alpha_ms: f64,
    /// β, ms: the cost of invoking a batch at all.
    pub beta_ms: f64,
    /// The latency objective the paper runs it with, ms.
    pub slo_ms: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Zoo {
    model: Vec<ZooModel>,
}

/// Symphony's Table 5: 35 models on an NVIDIA GTX 1080 Ti, by falling β/α.
pub fn gtx_1080ti() -> Vec<ZooModel> {
    read(include_str!("../zoo-1080ti.toml"))
}

/// Symphony's Table 6: 37 models on an NVIDIA A100, in the paper's order.
pub fn a100() -> Vec<ZooModel> {
    read(include_str!("../zoo-a100.toml"))
}

fn read(table: &str) -> Vec<ZooModel> {
    let zoo: Zoo =
        toml::from_str(table).expect("the committed tables are well-formed; the tests read them");
    zoo.model
}

impl ZooModel {
    /// β/α: how much batching gains. Above 2 the paper calls it strong.
    pub fn batching(&self) -> f64 {
        self.beta_ms / self.alpha_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_5_is_complete_and_in_the_papers_order() {
        let models = gtx_1080ti();
        assert_eq!(models.len(), 35);
        let ratios: Vec<f64> = models.iter().map(|m| m.beta_ms / m.alpha_ms).collect();
        assert!(ratios.windows(2).all(|pair| pair[0] >= pair[1]), "{ratios:?}");
        let resnet50 = models.iter().find(|m| m.name == "ResNet50").unwrap();
        assert_eq!((resnet50.alpha_ms, resnet50.beta_ms, resnet50.slo_ms), (2.050, 5.378, 27.0));
    }

    #[test]
    fn table_6_is_complete() {
        let models = a100();
        assert_eq!(models.len(), 37);
        let strong = models.iter().filter(|model| model.batching() > 2.0).count();
        assert_eq!(strong, 29);
        let bert = models.last().unwrap();
        assert_eq!((bert.alpha_ms, bert.beta_ms, bert.slo_ms), (7.353, 0.222, 59.0));
    }

    /// Appendix B: "Latency SLO associated with each model ensures that each model can run with
    /// batch size greater than or equal to 4"; the staggered optimum needs 1 + 1/N with many GPUs.
    #[test]
    fn every_objective_leaves_room_for_a_batch_of_four() {
        for model in gtx_1080ti().into_iter().chain(a100()) {
            let latency_ms = 4.0 * model.alpha_ms + model.beta_ms;
            assert!(latency_ms <= model.slo_ms, "{}: ℓ(4) = {latency_ms}", model.name);
        }
    }
}
