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
    /// Of each request, these of the task that ended it. Times to read inputs are part of `queue`.
    queue: Spent,
    compute: Spent,
    output: Spent,
}

impl Statistics {
    /// A request was answered.
    pub(crate) fn answered(&self, model: &str, took: Nanos, replies: &[Reply]) {
        self.of(model, |counts| {
            counts.success.add(took);
            counts.request(replies.iter().map(Reply::timing));
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
    fn request<'a>(&mut self, tasks: impl Iterator<Item = &'a Timing> + Clone) {
        for timing in tasks.clone() {
            self.tasks += 1;
            self.executions += 1.0 / f64::from(timing.batch_size.max(1));
        }
        if let Some(last) = tasks.max_by_key(|timing| timing.landed) {
            self.queue.add(last.started - last.submitted);
            self.compute.add(last.finished - last.started);
            self.output.add(last.landed - last.finished);
        }
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
                // perf_analyzer aborts where the three parts of the compute time have different counts.
                "compute_input": Spent { count: self.compute.count, ns: 0 }.json(),
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
    fn tasks_count_their_share_of_executions_and_requests_the_times_of_their_last_task() {
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
        // Its answer is there sooner, although its execution ended later.
        let sooner = Timing { finished: Nanos(9_200), landed: Nanos(9_500), ..timing };
        for tasks in [[timing, sooner], [sooner, timing]] {
            statistics.of("m", |counts| counts.request(tasks.iter()));
        }
        statistics.failed("m", Nanos(500));
        let said = statistics.json(["m", "n"].into_iter());
        let [m, n] = [0, 1].map(|at| &said["model_stats"][at]);
        assert_eq!((&m["inference_count"], &m["execution_count"]), (&json!(4), &json!(2)));
        for (part, ns) in [
            ("queue", 6_000),
            ("compute_input", 0),
            ("compute_infer", 10_000),
            ("compute_output", 2_000),
        ] {
            assert_eq!(m["inference_stats"][part], json!({ "count": 2, "ns": ns }), "{part}");
        }
        assert_eq!(m["inference_stats"]["fail"], json!({ "count": 1, "ns": 500 }));
        assert_eq!((&n["name"], &n["inference_count"]), (&json!("n"), &json!(0)));
    }
}
