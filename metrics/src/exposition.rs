//! Metrics as Prometheus reads them.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::{Kind, Metric, Value};

/// The metrics in the OpenMetrics text format.
pub fn text(metrics: Vec<Metric>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Collected(metrics)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .expect("a String takes everything");
    text
}

#[derive(Debug)]
struct Collected(Vec<Metric>);

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in &self.0 {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut encoder = encoder.encode_descriptor(&metric.name, metric.help, None, kind)?;
            for (values, value) in &metric.series {
                let names = metric.labels.iter().copied();
                let labels: Vec<(&str, &str)> =
                    names.zip(values.iter().map(String::as_str)).collect();
                match labels.is_empty() {
                    true => encode(&mut encoder, value)?,
                    false => encode(&mut encoder.encode_family(&labels)?, value)?,
                }
            }
        }
        Ok(())
    }
}

fn encode(encoder: &mut MetricEncoder<'_>, value: &Value) -> fmt::Result {
    match value {
        Value::Count(count) => encoder.encode_counter::<NoLabelSet, _, u64>(count, None),
        Value::Seconds(time) => encoder.encode_counter::<NoLabelSet, _, f64>(time, None),
        Value::Level(level) => encoder.encode_gauge(level),
        Value::Sizes { buckets, sum } => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_a_gauge_and_a_histogram() {
        let buckets = vec![(0.5, 2), (1.0, 0), (f64::INFINITY, 1)];
        let series = vec![(vec!["a\"b".to_owned()], Value::Sizes { buckets, sum: 7.5 })];
        let time = vec![(Vec::new(), Value::Seconds(1.25))];
        let metrics = vec![
            Metric::counter("client", "late", " Of these, too late.", 3),
            Metric::gauge("baton_gpus", "GPUs", 2.0),
            Metric { series: time, ..Metric::counters("baton_busy", "Time", &[]) },
            Metric { series, ..Metric::histograms("baton_s", "Sizes", &["model"]) },
        ];
        assert_eq!(
            text(metrics),
            "# HELP baton_client_late Of these, too late\n\
             # TYPE baton_client_late counter\n\
             baton_client_late_total 3\n\
             # HELP baton_gpus GPUs\n\
             # TYPE baton_gpus gauge\n\
             baton_gpus 2.0\n\
             # HELP baton_busy Time\n\
             # TYPE baton_busy counter\n\
             baton_busy_total 1.25\n\
             # HELP baton_s Sizes\n\
             # TYPE baton_s histogram\n\
             baton_s_sum{model=\"a\\\"b\"} 7.5\n\
             baton_s_count{model=\"a\\\"b\"} 3\n\
             baton_s_bucket{le=\"0.5\",model=\"a\\\"b\"} 2\n\
             baton_s_bucket{le=\"1.0\",model=\"a\\\"b\"} 2\n\
             baton_s_bucket{le=\"+Inf\",model=\"a\\\"b\"} 3\n\
             # EOF\n"
        );
    }
}
