//! The demo's cluster: which models, which backends, how much load.

use baton_topo::zoo::{self, ZooModel};

use super::DemoConfig;
use crate::processes::{ClusterFile, Folder, ProcessError};

/// The digits model and its held-out images travel inside the binary, so that the demo runs from
/// any folder.
const DIGITS_ONNX: &[u8] = include_bytes!("../../../examples/digits/digits.onnx");
const DIGITS_HELDOUT: &[u8] = include_bytes!("../../../examples/digits/heldout.bin");

/// Emulated GPU slots: two backends with two each.
const GPUS: f64 = 4.0;
/// Share of what the emulated GPUs could do at best.
const LOAD: f64 = 0.25;
/// Digits per second: a fraction of a core, whatever the core.
const DIGITS_RATE: f64 = 100.0;

/// From the paper's table, β/α from 9 down to 0.02: what batching is worth differs widely.
/// Inputs: one model gets whole 224 × 224 RGB images, the others less, so that two cores suffice
/// for four "GPUs", their frontends and the network in between.
const EMULATED: [(&str, u32); 4] =
    [("DenseNet201", 16_384), ("ResNet50", 150_528), ("EfficientNetB3", 65_536), ("BERT", 2_048)];

/// What the demo starts.
#[derive(Debug)]
pub(super) struct DemoCluster {
    /// The cluster file.
    text: String,
    /// Names of the backends.
    backends: Vec<&'static str>,
    with_onnx: bool,
    /// Models and their tasks per second over all frontends.
    pub(super) rates: Vec<(String, f64)>,
}

impl DemoCluster {
    pub(super) fn new(config: &DemoConfig) -> Self {
        let DemoConfig { with_onnx, transport, .. } = *config;
        // By CUDA one device does the work of the four emulated ones, four times as fast as they: at the paper's pace a task
        // would wait longer for two batches of others than ResNet50's objective allows, however low the load.
        let (engine, pace, backends_text, mut backends) = match config.cuda {
            Some(_) => ("engine = \"cuda\"\n", GPUS, CUDA_BACKEND, vec!["gpu"]),
            None => ("", 1.0, EMULATED_BACKENDS, vec!["emulated-a", "emulated-b"]),
        };
        let rate_scale = config.rate_scale;
        let mut text = HEADER.replace("TRANSPORT", transport.as_str());
        let mut rates = Vec::new();
        for (model, input_bytes) in emulated() {
            text.push_str(&model_table(&model, pace, input_bytes, engine));
            rates.push((model.name.clone(), rate_scale * rate(&model)));
        }
        text.push_str(backends_text);
        if with_onnx {
            text.push_str(DIGITS);
            backends.push("cpu");
            rates.push(("digits".to_owned(), rate_scale * DIGITS_RATE));
        }
        Self { text, backends, with_onnx, rates }
    }

    /// Writes the cluster file, and what it needs beside it.
    pub(super) fn write(&self, folder: &Folder) -> Result<ClusterFile, ProcessError> {
        if self.with_onnx {
            folder.write("digits.onnx", DIGITS_ONNX)?;
            folder.write("heldout.bin", DIGITS_HELDOUT)?;
        }
        let backends = self.backends.iter().map(|&name| name.to_owned()).collect();
        folder.write_cluster(&self.text, backends)
    }
}

fn emulated() -> impl Iterator<Item = (ZooModel, u32)> {
    let zoo = zoo::gtx_1080ti();
    EMULATED.into_iter().map(move |(name, input_bytes)| {
        let model = zoo.iter().find(|model| model.name == name).cloned();
        (model.expect("the table has every name above; a test looks"), input_bytes)
    })
}

/// Each model gets an equal share of the GPUs' time, and offers [`LOAD`] of what the staggered
/// optimum makes of it: the largest b with (1 + 1/N)·ℓ(b) ≤ SLO, at b / ℓ(b) per GPU.
fn rate(model: &ZooModel) -> f64 {
    let budget_ms = model.slo_ms / (1.0 + 1.0 / GPUS);
    let batch = ((budget_ms - model.beta_ms) / model.alpha_ms).floor().max(1.0);
    let latency_ms = model.alpha_ms * batch + model.beta_ms;
    LOAD * GPUS / EMULATED.len() as f64 * batch / latency_ms * 1e3
}

/// The model on a GPU that is `pace` times as fast as the paper's.
fn model_table(model: &ZooModel, pace: f64, input_bytes: u32, engine: &str) -> String {
    let ZooModel { name, slo_ms, .. } = model;
    let [alpha_ms, beta_ms] = [model.alpha_ms, model.beta_ms].map(|ms| ms / pace);
    format!(
        "[[model]]\nname = \"{name}\"\nalpha_ms = {alpha_ms}\nbeta_ms = {beta_ms}\nslo_ms = {slo_ms}\n\
         input_bytes = {input_bytes}\nbatch_max = 32\nsubcluster = \"gpu\"\n{engine}\n"
    )
}

const HEADER: &str = "\
# Written by `baton demo`. Models, latencies and objectives are those of Symphony's Table 5.
[scheduler]
idle = \"park\"

# Sixteen processes and threads share what may be two cores: plan with timers that run late.
[network]
jitter_us = 1000
response_us = 1000
transport = \"TRANSPORT\"

# A busy machine looks at a completion late; that is no reason to read again.
[rdma]
read_timeout_ms = 500
ack_timeout = 14

";

const EMULATED_BACKENDS: &str = "\
[[backend]]
name = \"emulated-a\"
subcluster = \"gpu\"
gpus = 2

[[backend]]
name = \"emulated-b\"
subcluster = \"gpu\"
gpus = 2

";

const CUDA_BACKEND: &str = "\
# One GPU for the load of four: its latencies are a quarter of the table's.
[[backend]]
name = \"gpu\"
subcluster = \"gpu\"
gpus = 1

";

const DIGITS: &str = "\
[[model]]
name = \"digits\"
file = \"digits.onnx\"
slo_ms = 50
batch_max = 32
subcluster = \"cpu\"

[[backend]]
name = \"cpu\"
subcluster = \"cpu\"
gpus = 1
";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use baton_core::Nanos;
    use baton_sim::{ClusterRun, Run, Scenario};
    use baton_topo::{TransportChoice, check_text};

    use super::*;
    use crate::demo::{CudaDriver, Story};
    use crate::processes::ChildConfig;

    fn config(with_onnx: bool, cuda: Option<CudaDriver>) -> DemoConfig {
        DemoConfig {
            children: ChildConfig {
                exe: "baton".into(),
                common_args: Vec::new(),
                variables: Vec::new(),
            },
            seconds: 1.0,
            rate_scale: 1.0,
            transport: TransportChoice::Auto,
            cuda,
            with_onnx,
            with_gateway: false,
            story: Story::Usual,
            keep_dir: false,
        }
    }

    #[test]
    fn the_file_is_a_good_cluster_file_without_warnings() {
        for (with_onnx, cuda) in
            [true, false].map(|onnx| [(onnx, None), (onnx, Some(CudaDriver::Real))]).concat()
        {
            let demo = DemoCluster::new(&config(with_onnx, cuda));
            let beside_the_model = Path::new("../examples/digits/demo.toml");
            let checked = check_text(beside_the_model, &demo.text);
            let cluster = checked.cluster.unwrap();
            assert_eq!(checked.warnings, []);
            let names: Vec<&str> = cluster.backends.iter().map(|b| b.name.as_str()).collect();
            assert_eq!(names, demo.backends);
            assert_eq!(cluster.models.len(), if with_onnx { 5 } else { 4 });
            for (name, _) in &demo.rates {
                assert!(cluster.models.iter().any(|model| model.name == *name), "{name}");
            }
        }
    }

    #[test]
    fn the_load_is_what_it_says() {
        // ResNet50: (27 / 1.25 − 5.378) / 2.05 → b = 7, ℓ(7) = 19.728 ms.
        let resnet50 = emulated().find(|(model, _)| model.name == "ResNet50").unwrap().0;
        assert!((rate(&resnet50) - LOAD * 7.0 / 19.728e-3).abs() < 1e-6);
        let busy: f64 = emulated()
            .map(|(model, _)| {
                // GPU time per second if every batch held a single task: the worst that can happen.
                rate(&model) * (model.alpha_ms + model.beta_ms) / 1e3
            })
            .sum();
        assert!(busy < GPUS * 0.9, "even without batching the GPUs keep up: {busy}");
    }

    /// Of a minute's tasks, simulated: late and dropped ones.
    fn bad_rate(cuda: Option<CudaDriver>, seed: u64) -> f64 {
        let demo = DemoCluster::new(&config(false, cuda));
        let folder = Folder::create(false).unwrap();
        let file = demo.write(&folder).unwrap();
        let [duration, warmup] = [60_000, 5_000].map(Nanos::from_millis);
        let run = ClusterRun { duration, warmup, without: Vec::new(), replay: None };
        let mut scenario = Scenario::load_cluster(&file.path, &run).unwrap();
        let rate_rps: f64 = demo.rates.iter().map(|(_, rate)| rate).sum();
        for (model, (name, rate)) in scenario.models.iter_mut().zip(&demo.rates) {
            assert_eq!(model.name, *name);
            model.share = rate / rate_rps;
        }
        let policy = "baton".parse().unwrap();
        baton_sim::run(&scenario, Run { policy, rate_rps, seed }).unwrap().bad_rate
    }

    #[test]
    fn what_is_offered_is_served_by_emulated_gpus_and_by_one_device() {
        for cuda in [None, Some(CudaDriver::Real)] {
            for seed in 1..=5 {
                let bad = bad_rate(cuda, seed);
                assert!(bad < 0.002, "cuda: {cuda:?}, seed {seed}: {bad} of the tasks are lost");
            }
        }
    }
}
