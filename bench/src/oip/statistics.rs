//! What a server says of the time it has spent on a model: twice, before a load and after it.

use crate::load::ServerTimes;

use super::messages::{Spans, Spent, Statistics};

/// Of each model, where the server says it.
pub(super) type Reading = Vec<Option<Spans>>;

/// The first model's, of a server's answer.
pub(super) fn spans(said: Statistics) -> Option<Spans> {
    said.model_stats.into_iter().next()?.inference_stats
}

/// Means over what was inferred between two readings; `None` where the server says nothing.
pub(super) fn between(before: &Reading, after: &Reading) -> Option<ServerTimes> {
    let models: Vec<(&Spans, &Spans)> = before
        .iter()
        .zip(after)
        .filter_map(|(before, after)| before.as_ref().zip(after.as_ref()))
        .collect();
    let mean_us = |of: fn(&Spans) -> Option<Spent>| {
        let spent = |spans: &Spans| of(spans).unwrap_or_default();
        let difference = |get: fn(Spent) -> u64| -> u64 {
            models.iter().map(|(b, a)| get(spent(a)).saturating_sub(get(spent(b)))).sum()
        };
        let (count, ns) = (difference(|spent| spent.count), difference(|spent| spent.ns));
        ns as f64 / count.max(1) as f64 / 1e3
    };
    (!models.is_empty()).then(|| ServerTimes {
        queue_us: mean_us(|spans| spans.queue),
        compute_input_us: mean_us(|spans| spans.compute_input),
        compute_infer_us: mean_us(|spans| spans.compute_infer),
        compute_output_us: mean_us(|spans| spans.compute_output),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_happened_in_between_counts() {
        let reading = |queue: (u64, u64), infer: (u64, u64)| {
            let spent = |(count, ns)| Some(Spent { count, ns });
            let (compute_input, compute_output) = (None, None);
            Some(Spans {
                queue: spent(queue),
                compute_infer: spent(infer),
                compute_input,
                compute_output,
            })
        };
        let before = vec![reading((10, 10_000), (10, 70_000)), None];
        let after = vec![reading((20, 30_000), (20, 170_000)), None];
        let times = between(&before, &after).unwrap();
        assert_eq!(
            (times.queue_us, times.compute_infer_us, times.compute_input_us),
            (2.0, 10.0, 0.0)
        );
        assert_eq!(between(&vec![None], &vec![None]), None);
    }

    #[test]
    fn a_servers_json_is_read() {
        let text = r#"{"model_stats":[{"name":"m","version":"1","inference_stats":
            {"success":{"count":1,"ns":2},"queue":{"count":3,"ns":4},"compute_infer":{"count":5,"ns":6}}}]}"#;
        let spans = spans(serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!(spans.queue, Some(Spent { count: 3, ns: 4 }));
        assert_eq!(spans.compute_output, None);
    }
}
