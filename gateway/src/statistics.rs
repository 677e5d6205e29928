//! What was inferred through this gateway, by model: for the protocol's statistics.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_client::{Nanos, Reply, Timing};
use serde_json::{Value, json};

use crate::protocol::render::VERSION;

/// Of all models. A model that is gone keeps what it has.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    models: Mutex<BTreeMap<String, Counts>>,
}

/// How often something was, and how long it took in all.
#[derive(Clone, Copy, Default, Debug)]
struct Spent {
    count: u64,
    ns: u64,
}

impl Spent {
    fn add(&mut self, span: Nanos) {
        self.count += 1;
        self.ns = self.ns.saturating_add(span.0);
    }

    fn json(self) -> Value {
        json!({ "count": self.count, "ns": self.ns })
    }
}

/// Of a model.
#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    /// Requests.
    success: Spent,
    fail: Spent,
    /// Tasks of requests that have an answer.
    tasks: u64,
    /// Of the batches that executed them, the share that was theirs.
    executions: f64,
    queue: Spent,
    compute: Spent,
    output: Spent,
}

impl Statistics {
    /// A request was answered.
    pub(crate) fn answered(&self, model: &str, took: Nanos, replies: &[Reply]) {
        self.of(model, |counts| {
            counts.success.add(took);
            replies.iter().for_each(|reply| counts.task(reply.timing()));
        });
    }

    /// A request for a model was not answered.
    pub(crate) fn failed(&self, model: &str, took: Nanos) {
        self.of(model, |counts| counts.fail.add(took));
    }

    /// The answer to `GET v2/models/stats`, of these models.
    pub(crate) fn json<'a>(&self, names: impl Iterator<Item = &'a str>) -> Value {
        let models = self.lock();
        let of = |name: &str| models.get(name).copied().unwrap_or_default().json(name);
        json!({ "model_stats": names.map(of).collect::<Vec<_>>() })
    }

    fn of(&self, model: &str, count: impl FnOnce(&mut Counts)) {
        let mut models = self.lock();
        if let Some(counts) = models.get_mut(model) {
            count(counts);
        } else {
            count(models.entry(model.to_owned()).or_default());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Counts>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn task(&mut self, timing: &Timing) {
        self.tasks += 1;
        self.executions += 1.0 / f64::from(timing.batch_size.max(1));
        self.queue.add(timing.started - timing.submitted);
        self.compute.add(timing.finished - timing.started);
        self.output.add(timing.landed - timing.finished);
    }

    fn json(self, name: &str) -> Value {
        json!({
            "name": name,
            "version": VERSION,
            "inference_count": self.tasks,
            "execution_count": self.executions.round() as u64,
            "inference_stats": {
                "success": self.success.json(),
                "fail": self.fail.json(),
                "queue": self.queue.json(),
                "compute_input": Spent::default().json(),
                "compute_infer": self.compute.json(),
                "compute_output": self.output.json(),
                "cache_hit": Spent::default().json(),
                "cache_miss": Spent::default().json(),
            },
            "batch_stats": [],
        })
    }
}

#[cfg(test)]
mod tests {
    use baton_client::GpuId;

    use super::*;

    #[test]
    fn tasks_of_a_batch_count_their_share_of_its_execution() {
        let statistics = Statistics::default();
        let timing = Timing {
            submitted: Nanos(1_000),
            started: Nanos(4_000),
            finished: Nanos(9_000),
            landed: Nanos(10_000),
            deadline: Nanos(20_000),
            clock_error: Nanos::ZERO,
            batch_size: 2,
            gpu: GpuId(0),
            variant: 0,
            cold: false,
        };
        statistics.of("m", |counts| {
            (0..4).for_each(|_| counts.task(&timing));
        });
        statistics.failed("m", Nanos(500));
        let said = statistics.json(["m", "n"].into_iter());
        let [m, n] = [0, 1].map(|at| &said["model_stats"][at]);
        assert_eq!((&m["inference_count"], &m["execution_count"]), (&json!(4), &json!(2)));
        assert_eq!(m["inference_stats"]["queue"], json!({ "count": 4, "ns": 12_000 }));
        assert_eq!(m["inference_stats"]["compute_infer"]["ns"], 20_000);
        assert_eq!(m["inference_stats"]["compute_output"], json!({ "count": 4, "ns": 4_000 }));
        assert_eq!(m["inference_stats"]["fail"], json!({ "count": 1, "ns": 500 }));
        assert_eq!((&n["name"], &n["inference_count"]), (&json!("n"), &json!(0)));
    }
}
