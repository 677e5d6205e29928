//! `baton demo --cold`: two hundred models on emulated GPUs whose memory holds twenty.
//!
//! The popularity of the models is Zipf's, so that a few are asked all the time and most of them now and then. A task of a model
//! that no slot holds is cold: its weights are loaded while it waits. The line on the terminal shows how many come and how many
//! of them are served in time, and how busy what loads is.

use std::net::SocketAddr;
use std::time::Duration;

use baton_client::status::ClusterStatus;
use baton_client::{Operator, OperatorError, SchedulerLocator};

use super::plot::Sparkline;
use super::{DemoConfig, DemoError, frontends};
use crate::load::{CacheCounts, CacheFigures, Finished, Progress};
use crate::processes::{ClusterFile, Folder, ProcessError, Processes};

/// Models, and how many of them fit into a slot. There are two slots.
const MODELS: u32 = 200;
const FIT: u32 = 10;
const BACKENDS: [&str; 2] = ["cold-a", "cold-b"];
/// Pages of a model: ResNet50's weights of Clockwork's Table 1, 97.6 MiB in pages of 16.
const PAGES: u32 = 7;
const PAGE_MIB: u32 = 16;
/// Tasks per second of all models, and how much rarer each model's tasks are than those of the one before.
const RATE: f64 = 250.0;
const ZIPF: f64 = 0.9;
/// How long the scheduler may take to say how its caches fare.
const ANSWER: Duration = Duration::from_secs(5);
/// Seconds that the plot shows.
const SHOWN: usize = 16;
/// Shorter spans between two lines, as at the end, have no rate of their own.
const SPAN_MIN_S: f64 = 0.1;

const HEADER: &str = "\
# Written by `baton demo --cold`.
[scheduler]
idle = \"park\"

# A few tasks of each of many models are under way at once.
[frontend]
slots_per_model = 16

# Many processes and threads share what may be two cores: plan with timers that run late.
[network]
jitter_us = 2000
response_us = 10000
transport = \"TRANSPORT\"
";

fn figures(status: &ClusterStatus) -> CacheFigures {
    let caches = || status.models.iter().filter_map(|model| model.cache.as_ref());
    let CacheCounts { cold, cold_in_time, loads } = CacheCounts::of(status).unwrap_or_default();
    let busy = || status.gpus.iter().filter_map(|gpu| gpu.loader_busy);
    CacheFigures {
        models: caches().count() as u64,
        room: u64::from(FIT) * BACKENDS.len() as u64,
        copies: caches().map(|cache| u64::from(cache.copies)).sum(),
        cold,
        cold_in_time,
        loads,
        loader_busy: busy().sum::<f64>() / busy().count().max(1) as f64,
    }
}

fn name(model: u32) -> String {
    format!("model-{model:03}")
}

/// The cluster file's text.
fn cluster(config: &DemoConfig) -> String {
    let mut text = HEADER.replace("TRANSPORT", config.transport.as_str());
    for name in BACKENDS {
        let cache_mib = FIT * PAGES * PAGE_MIB;
        text += &format!("\n[[backend]]\nname = \"{name}\"\nweights_cache_mib = {cache_mib}\n");
    }
    for model in 1..=MODELS {
        text += &format!(
            "\n[[model]]\nname = \"{}\"\nalpha_ms = 0.6\nbeta_ms = 2.0\nbatch_max = 16\nslo_ms = 250\n\
             input_bytes = 1024\nweights_mib = 97.6\nload_ms = 8.33\n",
            name(model)
        );
    }
    text
}

/// Tasks per second of each model.
fn rates(scale: f64) -> Vec<(String, f64)> {
    let share = |model: u32| f64::from(model).powf(-ZIPF);
    let all: f64 = (1..=MODELS).map(share).sum();
    (1..=MODELS).map(|model| (name(model), scale * RATE * share(model) / all)).collect()
}

/// Writes the cluster file.
pub(super) fn write(config: &DemoConfig, folder: &Folder) -> Result<ClusterFile, ProcessError> {
    folder.write_cluster(&cluster(config), BACKENDS.map(str::to_owned).to_vec())
}

/// Offers the load and shows how the caches fare. Returns how they did in the end as well.
pub(super) fn run(
    processes: &mut Processes<'_>,
    config: &DemoConfig,
    file: &ClusterFile,
    scheduler: SocketAddr,
) -> Result<(Vec<Finished>, CacheFigures), DemoError> {
    let (rates, seconds) = (rates(config.rate_scale), config.seconds);
    let at = SchedulerLocator::from(scheduler);
    let started = frontends::start(processes, file, scheduler, &rates, seconds)?;
    let mut plot = Plot::default();
    let finished = frontends::watch_with(processes, started, seconds, |_, progress| {
        // A scheduler that does not answer shows as a line that stands still.
        plot.line(progress, ask(&at).ok())
    })?;
    Ok((finished, ask(&at)?))
}

/// On a connection of its own each time: one that says nothing for long is closed.
fn ask(scheduler: &SchedulerLocator) -> Result<CacheFigures, OperatorError> {
    let mut operator = Operator::connect(scheduler, None, ANSWER)?;
    operator.status(ANSWER).map(|status| figures(&status))
}

/// What the line on the terminal shows.
#[derive(Default)]
struct Plot {
    seconds: f64,
    before: CacheFigures,
    cold: Sparkline,
    loader: Sparkline,
    /// The latest: cold tasks a second, the share of them in time, LOADs a second.
    said: (f64, Option<f64>, f64),
}

impl Plot {
    /// Takes in what has changed since the last line, if that is a while ago.
    fn take(&mut self, seconds: f64, figures: CacheFigures) {
        let span = seconds - self.seconds;
        if span < SPAN_MIN_S {
            return;
        }
        let grown = |of: fn(&CacheFigures) -> u64| (of(&figures) - of(&self.before)) as f64;
        let (cold, in_time) = (grown(|f| f.cold), grown(|f| f.cold_in_time));
        let served = (cold > 0.0).then(|| (in_time / cold).min(1.0));
        self.said = (cold / span, served, grown(|f| f.loads) / span);
        (self.seconds, self.before) = (seconds, figures);
        self.cold.push(self.said.0, SHOWN);
        self.loader.push(figures.loader_busy, SHOWN);
    }

    fn line(&mut self, progress: &Progress, figures: Option<CacheFigures>) -> String {
        let figures = figures.unwrap_or(self.before);
        self.take(progress.seconds, figures);
        let (rate, served, loads) = self.said;
        let served = served.map_or_else(|| "-".into(), |share| format!("{:.0} %", 100.0 * share));
        let Progress { seconds, completed, late, wrong_answers, .. } = *progress;
        let lost = progress.dropped + progress.failed;
        let mut line = format!(
            "{seconds:4.0} s  cold {} {rate:3.0}/s, {served} in time  loads {} {loads:3.0}/s  {} copies  \
             {completed} answered, {late} late, {lost} lost",
            self.cold.drawn(0.0..RATE),
            self.loader.drawn(0.0..1.0),
            figures.copies,
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

    use baton_topo::{TransportChoice, check_text};

    use super::*;
    use crate::demo::Story;
    use crate::processes::ChildConfig;

    fn config() -> DemoConfig {
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
            with_onnx: false,
            with_gateway: false,
            story: Story::Cold,
            keep_dir: false,
        }
    }

    #[test]
    fn the_file_is_good_and_a_tenth_of_its_models_fits() {
        let checked = check_text(Path::new("c.toml"), &cluster(&config()));
        assert_eq!(checked.warnings, []);
        let cluster = checked.cluster.unwrap();
        let fits = |at: usize| {
            let cache = cluster.backends[at].weights_cache.unwrap();
            cache.pages / cache.pages_of(cluster.models[0].weights.unwrap())
        };
        assert_eq!((cluster.models.len() as u32, fits(0) + fits(1)), (MODELS, 2 * FIT));
        let rates = rates(1.0);
        assert!(rates.iter().zip(&cluster.models).all(|((name, _), model)| *name == model.name));
        let sum: f64 = rates.iter().map(|(_, rate)| rate).sum();
        assert!((sum - RATE).abs() < 1e-6 && rates[0].1 > 10.0 * rates[199].1);
    }

    #[test]
    fn two_slots_have_time_to_execute_and_to_load() {
        let cluster = check_text(Path::new("c.toml"), &cluster(&config())).cluster.unwrap();
        let alone = cluster.models[0].profile.latency(1).as_millis_f64();
        assert!(RATE * alone / 1e3 < 0.5 * 2.0, "even without batches");
        let rates = rates(1.0);
        let cold: f64 = rates[2 * FIT as usize..].iter().map(|(_, rate)| rate).sum();
        let load = cluster.models[0].weights.unwrap().load.as_millis_f64();
        let busy = cold * load / 1e3 / 2.0;
        assert!(
            (0.3..0.9).contains(&busy),
            "what the rarest cost if each of their tasks is cold: {busy}"
        );
    }

    #[test]
    fn a_line_shows_what_has_changed_since_the_last_one() {
        let mut plot = Plot::default();
        let at = |seconds, completed| Progress { seconds, completed, ..Progress::default() };
        let figures = |cold, cold_in_time, loads| CacheFigures {
            copies: 20,
            cold,
            cold_in_time,
            loads,
            loader_busy: 0.5,
            ..CacheFigures::default()
        };
        let line = plot.line(&at(1.0, 200), Some(figures(250, 200, 100)));
        assert!(line.contains("cold █ 250/s, 80 % in time  loads ▅ 100/s  20 copies"), "{line}");
        let line = plot.line(&at(2.0, 400), Some(figures(250, 200, 100)));
        assert!(line.contains("cold █▁   0/s, - in time"), "{line}");
        let line = plot.line(&at(3.0, 500), None);
        assert!(line.contains("0/s, - in time") && line.contains("500 answered"), "{line}");
    }
}
