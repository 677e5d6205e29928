//! `baton demo --supernet`: a model with variants under a burst, with a backend that is killed in the middle of it.
//!
//! The load has three parts: calm, a burst, calm. In the middle of the burst one of two backends is killed. The scheduler gives
//! up accuracy and no task; every answer proves the variant that it names: the digits by the logits that the training code had
//! of this variant, emulated ones by their checksum.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::thread::available_parallelism;
use std::time::Duration;

use baton_client::{Operator, SchedulerLocator};

use super::plot::Sparkline;
use super::{DemoConfig, DemoError, frontends};
use crate::load::{Finished, Progress};
use crate::processes::{ClusterFile, Folder, Note, ProcessError, Processes};

/// The digits supernet travels inside the binary, as the digits do.
const DIGITS_ONNX: &[u8] = include_bytes!("../../../examples/digits-super/digits-super.onnx");
const DIGITS_HELDOUT: &[u8] = include_bytes!("../../../examples/digits-super/heldout.bin");

/// Where in the run the burst begins and ends, and when the backend dies.
const BURST_SPAN: Range<f64> = 0.35..0.7;
const KILL_AT: f64 = 0.5;
/// The child that is killed: the scheduler is number 0.
const VICTIM: usize = 1;
/// The burst over what one slot executes in full batches of the dearest variant: too much for the two that there are, and far too
/// much for the one that remains.
const BURST_OF_A_SLOT: f64 = 2.4;
/// Largest batch of the digits.
const BATCH_MAX: u32 = 16;
/// More tasks per second and core take the cores from the execution: frontends, scheduler and backends need them, too.
const PEAK_PER_CORE: f64 = 3_000.0;
/// How long the scheduler may take to say how long the variants take.
const ANSWER: Duration = Duration::from_secs(5);
/// Seconds that the plot shows.
const SHOWN: usize = 16;
/// Shorter spans between two lines, as at the end, have no rate of their own.
const SPAN_MIN_S: f64 = 0.1;

/// A variant: name, accuracy, and its ℓ(b) or nothing if backends measure it.
type DemoVariant = (&'static str, f64, &'static str);

/// A supernet and the load that it gets.
struct Supernet {
    name: &'static str,
    slo_ms: f64,
    /// More keys of the model.
    keys: &'static str,
    variants: &'static [DemoVariant],
    /// Of each backend.
    slots: u32,
    /// How many times the load is in the burst.
    burst: f64,
    /// Tasks per second of all frontends in the burst; `None`: as many as the slots cannot execute by the dearest variant.
    peak: Option<f64>,
}

/// On emulated GPUs.
const EMULATED: Supernet = Supernet {
    name: "supernet",
    slo_ms: 250.0,
    keys: "input_bytes = 4096\nbatch_max = 16\n",
    variants: &[
        ("tiny", 73.82, "alpha_ms = 0.5\nbeta_ms = 1.5\n"),
        ("small", 76.69, "alpha_ms = 0.8\nbeta_ms = 2.0\n"),
        ("medium", 78.25, "alpha_ms = 1.3\nbeta_ms = 2.7\n"),
        ("large", 79.44, "alpha_ms = 2.0\nbeta_ms = 3.5\n"),
        ("huge", 80.16, "alpha_ms = 2.8\nbeta_ms = 4.5\n"),
    ],
    slots: 2,
    burst: 5.0,
    peak: Some(1_500.0),
};

/// With ONNX Runtime, on the cores that everything else runs on as well.
const DIGITS: Supernet = Supernet {
    name: "digits-super",
    slo_ms: 100.0,
    keys: "file = \"digits-super.onnx\"\nbatch_max = 16\n",
    variants: &[
        ("w4-d1", 84.37, ""),
        ("w6-d1", 89.35, ""),
        ("w6-d2", 90.64, ""),
        ("w12-d2", 92.73, ""),
        ("w12-d3", 94.29, ""),
        ("w24-d2", 95.11, ""),
        ("w24-d3", 95.71, ""),
    ],
    slots: 1,
    burst: 10.0,
    peak: None,
};

/// Where the cores execute more than they can offer.
const TOO_FAST: &str = "the dearest variant is so fast here that the burst may cost no accuracy; without \
                        ORT_DYLIB_PATH the variants are emulated, and it does";

const HEADER: &str = "\
# Written by `baton demo --supernet`.
[scheduler]
idle = \"park\"

# The burst is not to end at the frontends' room for tasks.
[frontend]
slots_per_model = 2048

# Many processes and threads share what may be two cores: plan with timers that run late. The burst leaves no other time to
# spare, because accuracy takes it all.
[network]
jitter_us = 2000
response_us = 20000
transport = \"TRANSPORT\"

";

const BACKENDS: &str = "\
[[backend]]
name = \"super-a\"
gpus = SLOTS

[[backend]]
name = \"super-b\"
gpus = SLOTS
";

impl Supernet {
    fn of(config: &DemoConfig) -> &'static Self {
        if config.with_onnx { &DIGITS } else { &EMULATED }
    }

    /// The cluster file's text.
    fn cluster(&self, config: &DemoConfig) -> String {
        let Self { name, slo_ms, keys, variants, .. } = self;
        let variant = |(name, accuracy, latency): &DemoVariant| {
            format!("[[model.variant]]\nname = \"{name}\"\naccuracy = {accuracy}\n{latency}\n")
        };
        let variants: String = variants.iter().map(variant).collect();
        let model = format!("[[model]]\nname = \"{name}\"\nslo_ms = {slo_ms}\n{keys}\n{variants}");
        let backends = BACKENDS.replace("SLOTS", &self.slots.to_string());
        HEADER.replace("TRANSPORT", config.transport.as_str()) + &model + &backends
    }

    /// The load as a scenario file: its courses are `baton load`'s. What executes there does not matter.
    fn scenario(&self, seconds: f64) -> String {
        let Self { name, slo_ms, burst, .. } = self;
        let [from, to] = [BURST_SPAN.start, BURST_SPAN.end].map(|part| part * seconds);
        format!(
            "gpus = 1\nduration_s = {seconds}\n\
             load = {{ shape = \"steps\", points = [[0, 1], [{from}, {burst}], [{to}, 1]] }}\n\n\
             [[model]]\nname = \"{name}\"\nslo_ms = {slo_ms}\nalpha_ms = 0.1\nbeta_ms = 1\n"
        )
    }

    /// Tasks per second over the whole of the load, of each frontend.
    fn mean_rate(&self, peak: f64) -> f64 {
        let burst = BURST_SPAN.end - BURST_SPAN.start;
        peak / self.burst * (1.0 + (self.burst - 1.0) * burst) / frontends::FRONTENDS as f64
    }

    /// Tasks per second in the burst, and whether this machine could offer as many as it should be.
    fn peak(&self, scheduler: SocketAddr) -> Result<(f64, bool), DemoError> {
        if let Some(peak) = self.peak {
            return Ok((peak, true));
        }
        let mut operator = Operator::connect(&SchedulerLocator::from(scheduler), None, ANSWER)?;
        let status = operator.status(ANSWER)?;
        let dearest = status.models.first().and_then(|model| model.variants.last());
        let latency_ms = dearest.map_or(f64::INFINITY, |variant| variant.latency_ms);
        let cores = available_parallelism().map_or(1, NonZeroUsize::get) as f64;
        let of_slot = f64::from(BATCH_MAX) * 1e3 / latency_ms;
        let (wanted, most) = (BURST_OF_A_SLOT * of_slot, PEAK_PER_CORE * cores);
        Ok((wanted.min(most), wanted <= most))
    }
}

/// Writes the cluster file, and what it needs beside it.
pub(super) fn write(config: &DemoConfig, folder: &Folder) -> Result<ClusterFile, ProcessError> {
    let supernet = Supernet::of(config);
    if config.with_onnx {
        folder.write("digits-super.onnx", DIGITS_ONNX)?;
        folder.write("heldout.bin", DIGITS_HELDOUT)?;
    }
    folder.write("load.toml", supernet.scenario(config.seconds).as_bytes())?;
    let backends = ["super-a", "super-b"].map(str::to_owned).to_vec();
    folder.write_cluster(&supernet.cluster(config), backends)
}

/// Offers the load, kills the backend, and shows what becomes of load and accuracy.
pub(super) fn run(
    processes: &mut Processes<'_>,
    config: &DemoConfig,
    file: &ClusterFile,
    scheduler: SocketAddr,
) -> Result<Vec<Finished>, DemoError> {
    let (supernet, seconds) = (Supernet::of(config), config.seconds);
    let scenario = file.path.with_file_name("load.toml").display().to_string();
    let (name, (peak, is_enough)) = (supernet.name, supernet.peak(scheduler)?);
    let (mean, calm) = (supernet.mean_rate(peak), peak / supernet.burst);
    let offers = ["--scenario".to_owned(), scenario, format!("--rps={mean}")];
    let what = format!("{calm:.0} tasks/s of {name}, and {peak:.0}/s in a burst");
    let started = frontends::start_with(processes, file, scheduler, (&offers, &what), seconds)?;
    if !is_enough {
        processes.tell(Note::Step(TOO_FAST));
    }
    let mut plot = Plot::of(supernet, peak);
    let mut alive = true;
    frontends::watch_with(processes, started, seconds, |processes, progress| {
        if alive && progress.seconds >= KILL_AT * seconds {
            alive = false;
            let name = processes.name(VICTIM).to_owned();
            processes.tell(Note::Step(&format!("killing {name}, one of two")));
            processes.kill(VICTIM);
        }
        plot.line(progress)
    })
}

/// What the line on the terminal shows.
struct Plot {
    before: Progress,
    load: Sparkline,
    accuracy: Sparkline,
    /// The latest, as the line says them.
    said: (f64, Option<f64>),
    peak: f64,
    accuracies: Range<f64>,
}

impl Plot {
    fn of(supernet: &Supernet, peak: f64) -> Self {
        let accuracy = |at: usize| supernet.variants[at].1;
        Self {
            before: Progress::default(),
            load: Sparkline::default(),
            accuracy: Sparkline::default(),
            said: (0.0, None),
            peak,
            accuracies: accuracy(0)..accuracy(supernet.variants.len() - 1),
        }
    }

    /// Takes in what has changed since the last line, if that is a while ago.
    fn take(&mut self, progress: &Progress) {
        let span = progress.seconds - self.before.seconds;
        if span < SPAN_MIN_S {
            return;
        }
        let rate = (progress.submitted - self.before.submitted) as f64 / span;
        let accuracy = progress.accuracy_since(&self.before);
        self.load.push(rate, SHOWN);
        accuracy.into_iter().for_each(|accuracy| self.accuracy.push(accuracy, SHOWN));
        (self.before, self.said) = (*progress, (rate, accuracy));
    }

    fn line(&mut self, progress: &Progress) -> String {
        self.take(progress);
        let (rate, accuracy) = self.said;
        let lost = progress.dropped + progress.failed;
        let known = accuracy.map_or_else(|| "-".to_owned(), |accuracy| format!("{accuracy:.2} %"));
        let load = self.load.drawn(0.0..self.peak * 1.3);
        let accuracies = self.accuracy.drawn(self.accuracies.clone());
        let Progress { seconds, completed, late, wrong_answers, .. } = *progress;
        let mut line = format!(
            "{seconds:4.0} s  load {load} {rate:4.0}/s  accuracy {accuracies} {known}  \
             {completed} answered, {late} late, {lost} lost"
        );
        if wrong_answers > 0 {
            line += &format!("  {wrong_answers} WRONG");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use baton_sim::Scenario;
    use baton_topo::{TransportChoice, check_text};

    use super::*;
    use crate::demo::Story;
    use crate::processes::ChildConfig;

    fn config(with_onnx: bool) -> DemoConfig {
        DemoConfig {
            children: ChildConfig {
                exe: "baton".into(),
                common_args: Vec::new(),
                variables: Vec::new(),
            },
            seconds: 20.0,
            rate_scale: 1.0,
            transport: TransportChoice::Auto,
            cuda: None,
            with_onnx,
            with_gateway: false,
            story: Story::Supernet,
            keep_dir: false,
        }
    }

    #[test]
    fn both_files_are_good_and_name_the_same_model() {
        for with_onnx in [false, true] {
            let config = config(with_onnx);
            let supernet = Supernet::of(&config);
            let beside_the_model = Path::new("../examples/digits-super/demo.toml");
            let checked = check_text(beside_the_model, &supernet.cluster(&config));
            let cluster = checked.cluster.unwrap();
            assert_eq!(checked.warnings, []);
            assert_eq!(cluster.models[0].variants.len(), supernet.variants.len());
            let scenario = Scenario::parse(&supernet.scenario(20.0)).unwrap();
            assert_eq!(scenario.models[0].name, cluster.models[0].name);
            assert_eq!(scenario.models[0].slo(), cluster.models[0].slo);
        }
    }

    #[test]
    fn half_of_the_gpus_bear_the_burst_with_the_cheapest_variant_and_not_with_the_dearest() {
        let config = config(false);
        let text = EMULATED.cluster(&config);
        let model = check_text(Path::new("c.toml"), &text).cluster.unwrap().models.remove(0);
        let per_second = |variant| 16e3 / model.profile_of(variant).latency(16).as_millis_f64();
        let last = EMULATED.variants.len() as u16 - 1;
        let peak = EMULATED.peak.unwrap();
        assert!(2.0 * per_second(0) > peak * 1.5);
        assert!(2.0 * per_second(last) < peak);
        assert!(4.0 * per_second(last) > peak / EMULATED.burst * 2.0, "calm is calm");
    }

    #[test]
    fn a_line_shows_what_has_changed_since_the_last_one() {
        let mut plot = Plot::of(&EMULATED, 750.0);
        let at = |seconds, submitted, accuracies| Progress {
            seconds,
            submitted,
            completed: submitted,
            accuracies,
            ..Progress::default()
        };
        let line = plot.line(&at(1.0, 150, (150, 150.0 * 80.16)));
        assert!(line.contains("150/s  accuracy █ 80.16 %"), "{line}");
        let line = plot.line(&at(2.0, 900, (900, 150.0 * 80.16 + 750.0 * 73.82)));
        assert!(line.contains("750/s  accuracy █▁ 73.82 %"), "{line}");
        let line = plot.line(&at(2.01, 1_000, (1_000, 150.0 * 80.16 + 850.0 * 73.82)));
        assert!(line.contains("750/s  accuracy █▁ 73.82 %  1000 answered"), "{line}");
    }
}
