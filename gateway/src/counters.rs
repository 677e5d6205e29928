//! What a gateway counts. Writers are its connections; scrapes read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use baton_metrics::{Metric, Value};

use crate::access::Access;
use crate::lag::Lag;
use crate::memory::Memory;
use crate::protocol::problem::Kind;

/// How a request came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

impl Protocol {
    const ALL: [Self; 2] = [Self::Http, Self::Grpc];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}

/// What an answered request is called among the kinds of problems.
const OK: &str = "ok";

const FAILING: &str = "1 from the moment in which changed tokens or certificates could not be used until they come into use";

macro_rules! counters {
    ($($(#[doc = $help:literal])* $name:ident,)*) => {
        /// See the module documentation.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[doc = $help])* pub(crate) $name: Count,)*
            /// Answers to requests by protocol: [`OK`], then each kind.
            answers: [[Count; Kind::ALL.len() + 1]; Protocol::ALL.len()],
            /// Connections that are open.
            pub(crate) connections: Count,
            /// Bytes of bodies and answers that are held.
            pub(crate) held_bytes: Count,
            /// 1 while the last reload is one that failed.
            reload_failing: AtomicBool,
        }

        impl Counters {
            fn counts(&self) -> Vec<Metric> {
                let counters = [$((stringify!($name), concat!($($help),*), &self.$name),)*];
                let metric = |(name, help, count): (&str, &'static str, &Count)| {
                    Metric::counter("gateway", name, help, count.get())
                };
                counters.into_iter().map(metric).collect()
            }
        }
    };
}

counters! {
    /// Requests whose client went away before the answer; their tasks were cancelled.
    requests_abandoned,
    /// Connections turned away because there were as many as there may be.
    connections_refused,
    /// Connections closed because they asked for nothing for too long.
    connections_idle,
    /// Connections that did not come to an agreement about TLS.
    tls_refused,
    /// Connections closed because the client did not take an answer in time.
    connections_stalled,
    /// Times that changed tokens and certificates came into use.
    reloads,
    /// Times that changed tokens or certificates could not be used: those from before are in use.
    reloads_failed,
    /// Connections that the system did not accept, such as for want of file handles.
    accepts_failed,
}

impl Counters {
    /// A request was answered, or had this problem.
    pub(crate) fn count_answer(&self, protocol: Protocol, problem: Option<Kind>) {
        self.answers[protocol as usize][problem.map_or(0, |kind| kind as usize + 1)].add(1);
    }

    /// Changed tokens and certificates are in use.
    pub(crate) fn count_reload(&self) {
        self.reloads.add(1);
        self.reload_failing.store(false, Ordering::Relaxed);
    }

    /// Changed tokens and certificates cannot be used.
    pub(crate) fn count_failed_reload(&self) {
        self.reloads_failed.add(1);
        self.reload_failing.store(true, Ordering::Relaxed);
    }

    /// As Prometheus scrapes them.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let help = "Requests answered, by protocol (http, grpc) and by what became of them: ok, or the kind of the problem";
        let kinds = || [OK].into_iter().chain(Kind::ALL.iter().map(|kind| kind.as_str()));
        let series = Protocol::ALL.iter().zip(&self.answers).flat_map(|(protocol, answers)| {
            let labels = move |kind: &str| vec![protocol.as_str().to_owned(), kind.to_owned()];
            kinds().zip(answers).map(move |(kind, count)| (labels(kind), Value::Count(count.get())))
        });
        let answers = Metric {
            series: series.collect(),
            ..Metric::counters("baton_gateway_requests", help, &["protocol", "result"])
        };
        let open = "Connections that are open";
        let held = "Bytes of requests and answers that the gateway holds";
        let level = |count: &Count| count.get() as f64;
        let mut metrics = self.counts();
        metrics.push(answers);
        metrics.push(Metric::gauge("baton_gateway_connections", open, level(&self.connections)));
        metrics.push(Metric::gauge("baton_gateway_held_bytes", held, level(&self.held_bytes)));
        let failing = f64::from(u8::from(self.reload_failing.load(Ordering::Relaxed)));
        metrics.push(Metric::gauge("baton_gateway_reload_failing", FAILING, failing));
        metrics
    }
}

/// What any gateway shows to Prometheus, besides what its client library shows.
pub fn described() -> Vec<Metric> {
    let mut metrics = Counters::default().metrics();
    metrics.push(Lag::default().metric());
    metrics.extend(Access::default().metrics());
    metrics.extend(Memory::metrics(&None));
    metrics
}

/// One counter, or level. Relaxed: it orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds unless more than `most` would be there.
    pub(crate) fn try_add(&self, count: u64, most: u64) -> bool {
        let fits = |level: u64| level.checked_add(count).filter(|&level| level <= most);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_counted_under_its_kind() {
        let counters = Counters::default();
        counters.count_answer(Protocol::Http, None);
        counters.count_answer(Protocol::Grpc, Some(Kind::Shed));
        counters.count_answer(Protocol::Grpc, Some(Kind::Shed));
        counters.count_answer(Protocol::Http, Some(Kind::Internal));
        let metrics = counters.metrics();
        let answers =
            metrics.iter().find(|metric| metric.name == "baton_gateway_requests").unwrap();
        let of = |(protocol, name): (&str, &str)| {
            let series = answers.series.iter().find(|series| series.0 == [protocol, name]);
            series.map(|series| series.1.clone())
        };
        let counts =
            [("http", "ok"), ("grpc", "shed"), ("http", "internal"), ("http", "shed")].map(of);
        assert_eq!(counts, [1, 2, 1, 0].map(|count| Some(Value::Count(count))));
    }

    #[test]
    fn reloads_fail_until_one_succeeds() {
        let counters = Counters::default();
        let failing = || {
            let metrics = counters.metrics();
            let of = |metric: &&Metric| metric.name == "baton_gateway_reload_failing";
            metrics.iter().find(of).unwrap().series[0].1.clone()
        };
        assert_eq!(failing(), Value::Level(0.0));
        for (count, level) in [
            (Counters::count_failed_reload as fn(&Counters), 1.0),
            (Counters::count_failed_reload, 1.0),
            (Counters::count_reload, 0.0),
        ] {
            count(&counters);
            assert_eq!(failing(), Value::Level(level));
        }
        assert_eq!((counters.reloads.get(), counters.reloads_failed.get()), (1, 2));
    }

    #[test]
    fn a_level_is_kept_below_its_bound() {
        let level = Count::default();
        assert!(level.try_add(60, 100) && !level.try_add(41, 100) && level.try_add(40, 100));
        level.sub(100);
        assert_eq!((level.get(), level.try_add(u64::MAX, 100)), (0, false));
    }
}
