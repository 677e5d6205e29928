//! What processes show to Prometheus, and what they say on signals.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use baton_client::{Client, ClientConfig};
use rustix::process::Signal;
use support::prometheus::{Prometheus, get, promtool};
use support::{CLUSTER, Cluster, Folder, Load};

/// The cluster of the other tests, whose scheduler and first backend can be scraped.
fn cluster(test: &str) -> Cluster {
    let text = CLUSTER.replacen("name = \"a\"\n", "name = \"a\"\nmetrics = \"127.0.0.1:0\"\n", 1);
    let text = format!("[scheduler]\nmetrics = \"127.0.0.1:0\"\n{text}");
    Cluster::of(Folder::new(test), &text)
}

/// A value, by its line.
fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series));
    let value = line.unwrap_or_else(|| panic!("{series} is missing: {text}"));
    value.trim().parse().unwrap()
}

fn load(cluster: &Cluster) -> Load {
    cluster.load_with(1, &["--metrics", "127.0.0.1:0"])
}

#[test]
fn each_process_shows_what_it_counts() {
    let cluster = cluster("metrics");
    let scheduler = cluster.scheduler.metrics_addr();
    let backend = cluster.backend("a");
    let load = load(&cluster);
    let (at_backend, at_client) = (backend.metrics_addr(), load.process.metrics_addr());
    load.await_completed(100);
    let text = get(&scheduler, "/metrics").unwrap();
    assert_eq!(value(&text, "baton_leader "), 1.0);
    assert!(value(&text, "baton_scheduler_submitted_total ") >= 100.0);
    assert_eq!(value(&text, "baton_members{role=\"frontend\",state=\"serving\"} "), 1.0);
    assert_eq!(value(&text, "baton_gpus{subcluster=\"default\"} "), 1.0);
    let executed = value(&text, "baton_scheduler_task_duration_seconds_count{model=\"m\"} ");
    let all = "baton_scheduler_task_duration_seconds_bucket{le=\"+Inf\",model=\"m\"} ";
    assert!(executed >= 50.0 && value(&text, all) == executed);
    let text = get(&at_backend, "/metrics").unwrap();
    assert!(value(&text, "baton_backend_rows_executed_total ") >= 50.0);
    let text = get(&at_client, "/metrics").unwrap();
    let completed = value(&text, "baton_client_completed_total ");
    let late = value(&text, "baton_client_late_total ");
    let of_deadline = "baton_client_latency_of_deadline_bucket{le=\"1.0\",model=\"m\"} ";
    let in_time = value(&text, of_deadline);
    assert!(completed >= 100.0);
    // Read while it counts: the counters one after the other.
    assert!((in_time - (completed - late)).abs() <= 20.0, "{in_time} of {completed}, {late} late");
    load.stop();
}

#[test]
fn a_program_shows_what_its_client_counts() {
    let cluster = cluster("metrics-client");
    let client = Client::connect(ClientConfig::new(cluster.addr().parse().unwrap())).unwrap();
    let server = client.serve_metrics("127.0.0.1:0".parse().unwrap()).unwrap();
    let text = get(&server.addr().to_string(), "/metrics").unwrap();
    assert_eq!(value(&text, "baton_client_submitted_total "), 0.0);
    let build = format!("baton_build_info{{version=\"{}\"}} ", env!("CARGO_PKG_VERSION"));
    assert_eq!(value(&text, &build), 1.0);
    client.leave().unwrap();
}

#[test]
fn a_real_prometheus_scrapes_a_cluster() {
    let cluster = cluster("prometheus");
    let scheduler = cluster.scheduler.metrics_addr();
    let backend = cluster.backend("a");
    let load = load(&cluster);
    let (at_backend, at_client) = (backend.metrics_addr(), load.process.metrics_addr());
    let folder = Folder::new("prometheus-data");
    let targets: [(&str, &str); 3] = [
        ("127.0.0.1:8002", &scheduler),
        ("127.0.0.1:8003", &at_backend),
        ("127.0.0.1:8006", &at_client),
    ];
    // The example's other targets are not here.
    let absent = [("127.0.0.1:8004", "127.0.0.1:1"), ("127.0.0.1:8005", "127.0.0.1:1")];
    let Some(prometheus) = Prometheus::start(folder.path(), &[&targets[..], &absent].concat())
    else {
        return;
    };
    assert_eq!(prometheus.await_values("up == 1", 3), [1.0; 3]);
    let completed = prometheus.await_values("baton_client_completed_total > 10", 1)[0];
    let later = format!("baton_client_completed_total > {completed}");
    prometheus.await_values(&later, 1);
    let types = "count(baton_build_info) == 3 and count(baton_gpus) == 1";
    prometheus.await_values(types, 1);
    let share = "sum(rate(baton_client_latency_of_deadline_bucket{le=\"1.0\"}[30s])) / \
                 sum(rate(baton_client_latency_of_deadline_count[30s]))";
    let in_time = prometheus.await_values(&format!("({share}) >= 0"), 1)[0];
    assert!((0.0..=1.0).contains(&in_time), "{in_time}");
    let p99 =
        "histogram_quantile(0.99, rate(baton_scheduler_task_duration_seconds_bucket[30s])) > 0";
    let p99 = prometheus.await_values(p99, 1)[0];
    assert!((0.001..20.0).contains(&p99), "{p99}");
    load.stop();
    backend.signal(Signal::KILL);
    // Pending, or firing once it has been so for as long as the rule says.
    let gone = format!("ALERTS{{alertname=\"BatonTargetDown\",instance=\"{at_backend}\"}}");
    prometheus.await_values(&gone, 1);
    prometheus.await_values("ALERTS{alertname=\"BatonSubclusterWithoutGpus\"}", 1);
    let (ill, well) = prometheus.rules();
    assert!(ill.is_empty() && well > 30, "{ill:?}, and {well} are well");
}

#[test]
fn the_alerts_are_rules_and_fire_when_they_should() {
    for (what, file) in [
        (["check", "config"], "prometheus.yml"),
        (["check", "rules"], "baton-alerts.yml"),
        (["test", "rules"], "baton-alerts-test.yml"),
    ] {
        let Some(said) = promtool(&what, file) else { return };
        let text = [said.stdout, said.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(said.status.success(), "{file}: {text:?}");
    }
}

#[test]
fn an_address_in_use_is_said_and_the_process_ends() {
    let cluster = cluster("metrics-taken");
    let taken = cluster.scheduler.metrics_addr();
    let load = cluster.load_with(1, &["--metrics", &taken]);
    load.process.await_stderr(&format!("cannot listen on {taken} for metrics"));
    assert_eq!(load.process.finish().0.code(), Some(1));
}

#[test]
fn a_signal_logs_the_counters_and_another_one_ends_in_order() {
    let cluster = cluster("signals");
    cluster.scheduler.await_stderr("scheduler serves");
    let backend = cluster.backend("a");
    let load = cluster.load(1);
    load.await_completed(10);
    for process in [&cluster.scheduler, &backend, &load.process] {
        process.signal(Signal::USR1);
        let counters = process.behind("counted so far");
        assert!(counters.contains('=') && !counters.contains("=0 "), "{counters}");
    }
    load.await_completed(10);
    backend.signal(Signal::HUP);
    backend.line("left");
    assert!(backend.finish().0.success());
    load.process.signal(Signal::HUP);
    assert!(load.process.finish().0.success());
    cluster.scheduler.signal(Signal::HUP);
    cluster.scheduler.await_stderr("stopped");
}
