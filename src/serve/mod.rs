//! `baton scheduler` and `baton backend`: start, say so on stdout, and end on a signal.

mod cards;
pub(crate) mod exposed;
#[cfg(test)]
mod monitoring_tests;
mod standby;

use std::process::ExitCode;
use std::time::Duration;

use baton_backend::{Backend, BackendConfig};
use baton_metrics::{MetricsServer, counted};
use baton_scheduler::SchedulerHandle;
use baton_topo::{CardsSpec, Clock, Cluster};

use crate::CommandResult;
use crate::args::{BackendArgs, SchedulerArgs};
use crate::certificates::Certificates;
use crate::output::{load_cluster, locator, say};
use crate::process::Signals;
use cards::Cards;
use exposed::{Exposed, of_process};

/// How often to look whether what serves has ended by itself.
const LOOK_INTERVAL: Duration = Duration::from_millis(2_000);
/// Names of models that the log's first line has.
const NAMES_MAX: usize = 8;
/// A scheduler without one of its threads serves nothing, and its members would wait for it.
const DIED: &str = "a thread of this scheduler has died; see the log above, and start it again";
/// Of this build.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Prints `listening ADDR` once members may join; with etcd, `standby` before if another one leads.
pub(crate) fn scheduler(args: &SchedulerArgs) -> CommandResult {
    let mut cluster = load_cluster(&args.config)?;
    cluster.scheduler.listen = args.listen.unwrap_or(cluster.scheduler.listen);
    let mut signals = Signals::new()?;
    let certificates = Certificates::new(cluster.fabric.tls.as_ref());
    let exposed = Exposed::start(args.metrics.or(cluster.scheduler.metrics), certificates)?;
    if let Some(etcd) = &cluster.scheduler.etcd {
        return standby::run(&cluster, etcd, &exposed, &mut signals);
    }
    let scheduler = baton_scheduler::start(&cluster, Clock::start())?;
    begin(&cluster, &scheduler, &exposed)?;
    while signals.wait(LOOK_INTERVAL) {
        if scheduler.has_died() {
            return Err(DIED.into());
        }
        signals.log_if_asked(|| scheduler.counters().pairs());
    }
    end(scheduler);
    Ok(ExitCode::SUCCESS)
}

/// Members may join from now on.
fn begin(cluster: &Cluster, scheduler: &SchedulerHandle, exposed: &Exposed) -> std::io::Result<()> {
    let policy = cluster.scheduler.policy.name();
    let models = named(scheduler.models().iter().map(String::as_str));
    tracing::info!(version = VERSION, policy, models, "scheduler serves");
    exposed.leads(scheduler);
    say(&format!("listening {}", scheduler.addr()))
}

/// Some of the names, and how many more there are.
fn named<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let (shown, left_out) = names.split_at(names.len().min(NAMES_MAX));
    match left_out.len() {
        0 => shown.join(", "),
        count => format!("{} and {count} more", shown.join(", ")),
    }
}

/// Stops a scheduler in order.
fn end(scheduler: SchedulerHandle) {
    let counters = scheduler.counters().pairs();
    scheduler.stop();
    tracing::info!("stopped; counted {}", counted(&counters));
}

/// Prints `ready` once the scheduler has confirmed that its slots get batches, and `left` after having drained.
pub(crate) fn backend(args: &BackendArgs) -> CommandResult {
    let cluster = load_cluster(&args.config)?;
    let scheduler = locator(&cluster, args.scheduler)?;
    let config = BackendConfig::from_cluster(&cluster, &args.name, scheduler)?;
    let spec = cluster.backends.iter().find(|backend| backend.name == config.name);
    let keys = spec.map(|backend| backend.cards.clone()).unwrap_or_default();
    cards::see(&keys)?;
    // Clocks that are locked must be released, whatever comes.
    let mut signals = if keys.lock_clocks { Signals::new() } else { Signals::starting() }?;
    let cards = find_cards(&config, &keys)?;
    let _locked = cards.as_ref().filter(|_| keys.lock_clocks).map(Cards::lock).transpose()?;
    let models = named(config.models.iter().map(|model| model.name.as_str()));
    let (name, gpus) = (config.name.clone(), config.gpus);
    let metrics = args.metrics.or_else(|| spec.and_then(|backend| backend.metrics));
    let certificates = Certificates::new(cluster.fabric.tls.as_ref());
    let backend = Backend::start(config, Clock::start())?;
    signals.started();
    tracing::info!(version = VERSION, name, gpus, models, "backend is ready");
    let read = backend.metrics();
    let of_cards = move || cards.as_ref().map(Cards::metrics).unwrap_or_default();
    let read =
        move || read().into_iter().chain(of_cards()).chain(of_process(&certificates)).collect();
    let _server = metrics.map(|addr| MetricsServer::start(addr, read)).transpose()?;
    say("ready")?;
    while signals.wait(LOOK_INTERVAL) {
        signals.log_if_asked(|| backend.counters().pairs());
        if let Some(ended) = backend.wait_for(Duration::ZERO) {
            ended?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let counters = backend.leave()?;
    tracing::info!("left; counted {}", counted(&counters.pairs()));
    say("left")?;
    Ok(ExitCode::SUCCESS)
}

/// Only clocks that are to be locked make it an error that NVML is missing.
fn find_cards(
    config: &BackendConfig,
    keys: &CardsSpec,
) -> Result<Option<Cards>, Box<dyn std::error::Error>> {
    if !keys.lock_clocks && !config.models.iter().any(|model| model.engine.is_on_gpu()) {
        return Ok(None);
    }
    match Cards::find(config.gpus) {
        Ok(cards) => Ok(Some(cards)),
        Err(error) if keys.lock_clocks => Err(format!("lock_clocks: {error}").into()),
        Err(error) => {
            tracing::info!("the GPUs' clocks are not observed: {error}");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_counted() {
        assert_eq!(named(["a", "b"].into_iter()), "a, b");
        assert_eq!(named(["x"; 10].into_iter()), "x, x, x, x, x, x, x, x and 2 more");
    }
}
