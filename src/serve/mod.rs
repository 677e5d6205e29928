//! `baton scheduler` and `baton backend`: start, say so on stdout, and end on a signal.

mod standby;

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_backend::{Backend, BackendConfig};
use baton_scheduler::SchedulerHandle;
use baton_topo::Clock;

use crate::CommandResult;
use crate::args::{BackendArgs, SchedulerArgs};
use crate::output::{load_cluster, locator, say};
use crate::process::stop_flag;

/// How often to look whether a signal has come.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Prints `listening ADDR` once members may join; with etcd, `standby` before if another one leads.
pub(crate) fn scheduler(args: &SchedulerArgs) -> CommandResult {
    let mut cluster = load_cluster(&args.config)?;
    cluster.scheduler.listen = args.listen.unwrap_or(cluster.scheduler.listen);
    let stop = stop_flag()?;
    if let Some(etcd) = &cluster.scheduler.etcd {
        return standby::run(&cluster, etcd, &stop);
    }
    let scheduler = baton_scheduler::start(&cluster, Clock::start())?;
    say(&format!("listening {}", scheduler.addr()))?;
    while !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(STOP_INTERVAL);
    }
    end(scheduler);
    Ok(ExitCode::SUCCESS)
}

/// Stops a scheduler in order.
fn end(scheduler: SchedulerHandle) {
    let counters = scheduler.counters().pairs();
    scheduler.stop();
    tracing::info!(?counters, "stopped");
}

/// Prints `ready` once plans may come, and `left` after having drained.
pub(crate) fn backend(args: &BackendArgs) -> CommandResult {
    let cluster = load_cluster(&args.config)?;
    let scheduler = locator(&cluster, args.scheduler)?;
    let config = BackendConfig::from_cluster(&cluster, &args.name, scheduler)?;
    let stop = stop_flag()?;
    let backend = Backend::start(config, Clock::start())?;
    say("ready")?;
    while !stop.load(Ordering::Relaxed) {
        if let Some(ended) = backend.wait_for(STOP_INTERVAL) {
            ended?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let counters = backend.leave()?;
    tracing::info!(?counters, "left");
    say("left")?;
    Ok(ExitCode::SUCCESS)
}
