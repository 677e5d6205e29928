//! Published model profiles, as data.

use serde::{Deserialize, Serialize};

/// One row of a paper's table.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
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
    /// The size of its weights, 10⁶ bytes, if the paper gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_mb: Option<f64>,
    /// How long they take from host memory to the GPU, ms, if the paper gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_ms: Option<f64>,
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

/// Clockwork's Table 1: 6 models on an NVIDIA Tesla V100, in the paper's order. α and β are the
/// line that misses the measured latencies by the smallest squares, relative to each.
pub fn clockwork() -> Vec<ZooModel> {
    clockwork_measured().into_iter().map(MeasuredModel::fitted).collect()
}

/// Batch sizes that Clockwork measures.
const BATCHES: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];

/// A row that says ℓ(b) instead of α and β.
#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct MeasuredModel {
    /// As the table has it.
    pub name: String,
    /// ℓ(1), ℓ(2), ℓ(4), ℓ(8) and ℓ(16), ms.
    pub latency_ms: [f64; 5],
    /// Objective, ms.
    pub slo_ms: f64,
    /// Size of the weights, 10⁶ bytes.
    pub weights_mb: f64,
    /// Time from host memory to the GPU, ms.
    pub load_ms: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredZoo {
    model: Vec<MeasuredModel>,
}

/// Clockwork's Table 1 as it was measured: what [`clockwork`] fits lines to.
pub fn clockwork_measured() -> Vec<MeasuredModel> {
    let zoo: MeasuredZoo = toml::from_str(include_str!("../zoo-clockwork.toml"))
        .expect("the committed tables are well-formed; the tests read them");
    zoo.model
}

impl MeasuredModel {
    /// ℓ(1), ℓ(2), …, ℓ(16), ms: straight lines between the measured sizes.
    pub fn table_ms(&self) -> Vec<f64> {
        let mut table_ms = vec![self.latency_ms[0]];
        for (sizes, ends) in BATCHES.windows(2).zip(self.latency_ms.windows(2)) {
            let steps = sizes[1] - sizes[0];
            let at = |step: u32| ends[0] + (ends[1] - ends[0]) * f64::from(step) / steps;
            table_ms.extend((1..=steps as u32).map(at));
        }
        table_ms
    }

    fn fitted(self) -> ZooModel {
        let points: Vec<(f64, f64)> = BATCHES.into_iter().zip(self.latency_ms).collect();
        let (alpha_ms, beta_ms) = line(&points);
        let (weights_mb, load_ms) = (Some(self.weights_mb), Some(self.load_ms));
        ZooModel { name: self.name, alpha_ms, beta_ms, slo_ms: self.slo_ms, weights_mb, load_ms }
    }
}

/// α and β of the line nearest to points (b, ℓ(b)), of which there are two at least: weighted least squares; the weight of
/// ℓ(b) is 1/ℓ(b)².
pub fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let sum =
        |of: fn(f64, f64) -> f64| points.iter().map(|&(b, l)| of(b, l) / (l * l)).sum::<f64>();
    let (n, b, l) = (sum(|_, _| 1.0), sum(|b, _| b), sum(|_, l| l));
    let (bb, bl) = (sum(|b, _| b * b), sum(|b, l| b * l));
    let alpha = (n * bl - b * l) / (n * bb - b * b);
    (alpha, (l - alpha * b) / n)
}

/// Each table by the name that a scenario file gives it.
pub fn all() -> [(&'static str, Vec<ZooModel>); 3] {
    [("1080ti", gtx_1080ti()), ("a100", a100()), ("clockwork", clockwork())]
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

    #[test]
    fn clockworks_rows_rise_and_their_lines_are_near() {
        let rows = clockwork_measured();
        assert_eq!((rows.len(), clockwork().len()), (6, 6));
        for row in rows {
            let (name, measured_ms) = (row.name.clone(), row.latency_ms);
            assert!(measured_ms.windows(2).all(|pair| pair[0] < pair[1]), "{name}");
            let gain = |at: usize| (measured_ms[at + 1] - measured_ms[at]) / BATCHES[at];
            assert!((0..4).all(|at| gain(at) < measured_ms[0]), "{name}: batching never pays");
            let line = row.fitted();
            let most = if name == "inceptionv3" { 0.13 } else { 0.071 };
            for (b, l) in BATCHES.into_iter().zip(measured_ms) {
                let off = (line.alpha_ms * b + line.beta_ms) / l - 1.0;
                assert!(off.abs() < most, "{name}: ℓ({b}) is off by {off}");
            }
        }
    }

    #[test]
    fn between_measured_sizes_latencies_lie_on_straight_lines() {
        let rows = clockwork_measured();
        let resnet50 = rows.iter().find(|row| row.name == "resnet50").unwrap();
        let table_ms = resnet50.table_ms();
        assert_eq!(table_ms.len(), 16);
        for (b, l) in [(1, 2.61), (2, 3.78), (3, 4.695), (4, 5.61), (6, 7.37), (15, 14.8525)] {
            assert!((table_ms[b - 1] - l).abs() < 1e-9, "ℓ({b}) = {}", table_ms[b - 1]);
        }
        assert_eq!(table_ms[15], 15.67);
    }

    #[test]
    fn a_line_is_fitted_exactly() {
        let latency_ms = BATCHES.map(|b| 0.5 * b + 3.0);
        let (name, weights_mb, load_ms) = (String::new(), 1.0, 1.0);
        let row = MeasuredModel { name, latency_ms, slo_ms: 1.0, weights_mb, load_ms };
        let line = row.fitted();
        assert!(
            (line.alpha_ms - 0.5).abs() < 1e-9 && (line.beta_ms - 3.0).abs() < 1e-9,
            "{line:?}"
        );
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
