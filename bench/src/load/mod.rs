//! The load generator, over the client library: arrivals at a rate or of a scenario, whatever became of earlier
//! tasks (an open loop), or a fixed number of tasks under way (a closed loop).
//!
//! One thread submits what is due and reaps outcomes. Every arrival is counted: one that finds no free slot has
//! failed, not vanished.

mod caches;
mod examples;
mod figure;
mod generator;
mod groups;
mod inputs;
mod latency;
mod message;
pub mod outcomes;
mod perf_csv;
mod reference_answers;
mod report;
mod schedule;
mod search;
mod supply;
mod table;
mod tally;
mod timeline;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_client::{
    Client, ClientConfig, ConnectError, MetricsError, TransportCounters, UnknownModel,
};
use baton_core::Nanos;
use baton_leader::SchedulerLocator;
use baton_topo::{Clock, Cluster, Idle};

pub use caches::{CacheCounts, ColdFigures};
pub use examples::ExamplesError;
pub(crate) use examples::write as write_numbers;
pub use figure::{ReportError, write as write_report};
use generator::{Generator, targets};
pub use inputs::InputsError;
pub(crate) use inputs::{Expected, Inputs, Verdict, say_unchecked};
pub use message::{Finished, Message, Progress};
use outcomes::{OutcomesError, Writer};
pub use perf_csv::{CsvError, ServerTimes, write as write_csv};
pub use report::{CacheFigures, Circumstances, ModelReport, Report, Totals};
pub use schedule::Offered;
pub(crate) use schedule::{Due, Schedule};
pub use search::{Ask, Knee, Point, Search, Seen};
pub(crate) use supply::Supply;
pub use table::busiest;
pub(crate) use table::write_reasons;
pub(crate) use tally::merge_reasons;
pub use tally::{Reasons, Tally};
pub use timeline::Timeline;

/// Files of inputs and their right answers, for models by name or for all others.
#[derive(Clone, Default, Debug)]
pub struct Expect(pub Vec<(Option<String>, PathBuf)>);

impl Expect {
    /// The file for a model.
    pub(crate) fn of(&self, name: &str) -> Option<&Path> {
        let named = self.0.iter().find(|(model, _)| model.as_deref() == Some(name));
        let found = named.or_else(|| self.0.iter().find(|(model, _)| model.is_none()));
        found.map(|(_, file)| file.as_path())
    }
}

/// What load to offer.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// Where the scheduler is.
    pub scheduler: SchedulerLocator,
    /// What to offer.
    pub offered: Offered,
    /// For how long.
    pub seconds: f64,
    /// Same seed, same arrivals and inputs.
    pub seed: u64,
    /// What the generator does while nothing is due and nothing comes.
    pub idle: Idle,
    /// Inputs and answers that are known from files.
    pub expect: Expect,
    /// Where to write what became of tasks that were not answered in time ([`outcomes`]).
    pub outcomes: Option<PathBuf>,
    /// Where Prometheus may scrape the client.
    pub metrics: Option<SocketAddr>,
    /// Time between two calls of `progress`.
    pub progress_every: Nanos,
    /// Set whenever the client's counters are to be logged.
    pub report: Arc<AtomicBool>,
    /// Unset once the client has joined: before, there is nothing to report.
    pub joining: Arc<AtomicBool>,
}

/// Why there was no load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No client.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The cluster serves no such model any more.
    #[error(transparent)]
    UnknownModel(#[from] UnknownModel),
    /// A rate that is no rate.
    #[error("rate of {name}: {rate}; give tasks per second from 0 to 1000000")]
    Rate {
        /// The model.
        name: String,
        /// What was asked for.
        rate: f64,
    },
    /// No inputs for a model.
    #[error("model {name}: {source}")]
    Inputs {
        /// The model.
        name: String,
        /// What is wrong.
        source: InputsError,
    },
    /// The client cannot be scraped.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The file of outcomes cannot be written.
    #[error(transparent)]
    Outcomes(#[from] OutcomesError),
}

/// Offers the load and waits for every outcome. `stop` ends the offering early; `progress` is called
/// every [`LoadConfig::progress_every`], and at the end.
///
/// # Errors
/// Nothing was offered, or its outcomes could not be written; see [`LoadError`].
pub fn run(
    cluster: &Cluster,
    config: &LoadConfig,
    clock: Clock,
    stop: &AtomicBool,
    mut progress: impl FnMut(&Progress),
) -> Result<Finished, LoadError> {
    config.offered.check()?;
    let outcomes = config.outcomes.as_deref().map(Writer::create).transpose()?;
    let settings = ClientConfig::from_cluster(cluster, config.scheduler.clone());
    let (client, mut driver) =
        Client::driven(settings.models(config.offered.models()).clock(clock))?;
    config.joining.store(false, Ordering::Relaxed);
    let _server = config.metrics.map(|addr| client.serve_metrics(addr)).transpose()?;
    let targets = targets(cluster, config, (&client, &mut driver), clock.now())?;
    let start = clock.now();
    let end = start + Nanos::from_millis_f64(config.seconds * 1e3);
    let supply = Supply::new(&config.offered, config.seed, start, end);
    let mut generator = Generator::new((client.clone(), driver), clock, targets, supply, start);
    generator.outcomes = outcomes;
    generator.idle = config.idle;
    let counted = client;
    let mut progress = |now: &Progress| {
        if config.report.swap(false, Ordering::Relaxed) {
            tracing::info!(
                "counted so far: {}",
                baton_client::counted(&counted.counters().pairs())
            );
        }
        progress(now);
    };
    let offered = generator.offer(end, config.progress_every, stop, &mut progress);
    generator.collect();
    progress(&generator.progress(clock.now()));
    generator.outcomes.take().map_or(Ok(()), Writer::finish)?;
    Ok(generator.finish(offered, carrier(&counted.counters().transport)))
}

/// What backends read the inputs and sent the answers over: what was served by message is counted,
/// what a device served without anybody's help is not, but the queue pairs are.
fn carrier(counters: &TransportCounters) -> &'static str {
    let (has_links, has_served) = (counters.links_rdma > 0, counters.reads_served > 0);
    if counters.links_same_host > 0 {
        return if has_served { "shared memory and tcp" } else { "shared memory" };
    }
    match (has_links, has_served, counters.answers_rdma > 0) {
        (true, false, true) => "rdma",
        (true, false, false) => "rdma, answers over tcp",
        (true, true, _) => "rdma and tcp",
        (false, ..) => "tcp",
    }
}
