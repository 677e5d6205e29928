//! What a scheduler process shows to Prometheus: also while another one leads.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use baton_metrics::{Metric, MetricsError, MetricsServer, build_info, threads};
use baton_scheduler::{SchedulerHandle, SchedulerMetrics};

use crate::certificates::Certificates;

type Serving = Arc<Mutex<Option<SchedulerMetrics>>>;

/// Answers scrapes until it is dropped.
#[derive(Debug)]
pub(super) struct Exposed {
    serving: Serving,
    /// Kept for its end.
    _server: Option<MetricsServer>,
}

impl Exposed {
    /// At `metrics` of the cluster file, if it has one.
    pub(super) fn start(
        addr: Option<SocketAddr>,
        certificates: Certificates,
    ) -> Result<Self, MetricsError> {
        let serving = Serving::default();
        let read = {
            let serving = Arc::clone(&serving);
            move || {
                // Not held while it is read: that takes a while.
                let of = serving.lock().unwrap_or_else(PoisonError::into_inner).clone();
                all(of.as_ref()).into_iter().chain(of_process(&certificates)).collect()
            }
        };
        let server = addr.map(|addr| MetricsServer::start(addr, read)).transpose()?;
        Ok(Self { serving, _server: server })
    }

    /// This one leads from now on.
    pub(super) fn leads(&self, scheduler: &SchedulerHandle) {
        let metrics = scheduler.metrics().clone();
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = Some(metrics);
    }
}

fn all(serving: Option<&SchedulerMetrics>) -> Vec<Metric> {
    let help = "1 on the scheduler that serves, 0 on one that stands by";
    let leads = if serving.is_some() { 1.0 } else { 0.0 };
    let mut metrics = vec![Metric::gauge("baton_leader", help, leads)];
    metrics.extend(serving.map(SchedulerMetrics::read).unwrap_or_default());
    metrics
}

/// What each process says of itself.
pub(crate) fn of_process(certificates: &Certificates) -> [Metric; 4] {
    let [cpu, wait] = threads();
    [build_info(env!("CARGO_PKG_VERSION")), certificates.metric(), cpu, wait]
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use baton_scheduler::SchedulerCounters;

    use super::*;

    /// Everything that any process shows, by name.
    pub(in crate::serve) fn registry() -> Vec<Metric> {
        let mut metrics = Vec::from(of_process(&Certificates::new(None)));
        metrics.extend(all(None).into_iter().filter(|metric| metric.name == "baton_leader"));
        metrics.extend(SchedulerMetrics::described(&SchedulerCounters::new(1)));
        metrics.extend(baton_backend::Counters::default().metrics());
        metrics.extend(super::super::cards::metrics(&[]));
        metrics.extend(baton_client::described());
        metrics.extend(baton_gateway::described());
        metrics.sort_by_key(Metric::full_name);
        metrics
    }

    /// The table of `docs/metrics.md` as it has to be.
    fn table(metrics: &[Metric]) -> String {
        metrics.iter().fold(String::new(), |mut text, metric| {
            let labels: Vec<String> =
                metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let (name, kind, help) = (metric.full_name(), metric.kind.as_str(), metric.help);
            let _ = writeln!(text, "| `{name}` | {kind} | {} | {help} |", labels.join(", "));
            text
        })
    }

    #[test]
    fn the_page_lists_what_is_scraped_and_nothing_else() {
        let page = include_str!("../../docs/metrics.md");
        let metrics = registry();
        let names: BTreeSet<String> = metrics.iter().map(Metric::full_name).collect();
        assert_eq!(names.len(), metrics.len(), "a name stands for one thing");
        let rows = page.lines().filter(|line| line.starts_with("| `baton_"));
        let listed: String = rows.map(|row| format!("{row}\n")).collect();
        let wanted = table(&metrics);
        assert!(listed == wanted, "the table in docs/metrics.md has to be:\n{wanted}");
    }

    #[test]
    fn names_and_words_are_as_prometheus_wants_them() {
        for metric in registry() {
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(metric.name.chars().all(is_plain), "{}", metric.name);
            assert!(!metric.name.ends_with("_total"), "{}: it is appended", metric.name);
            assert!(!metric.help.is_empty() && !metric.help.contains(['|', '[']), "{metric:?}");
        }
    }
}
