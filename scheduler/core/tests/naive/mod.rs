//! A model of `ModelState` that remembers everything and recomputes everything, by trying every
//! window and counting every arrival.

use baton_core::{Candidate, Latency, ModelConfig, Nanos, Policy, Request, TaskId};

const BUCKET: Nanos = Nanos::from_millis(100);
const BUCKETS: u64 = 50;

/// Knows only what a definition needs: the tasks, every arrival, ℓ as the ModelState reports it.
pub(crate) struct Naive {
    pub(crate) config: ModelConfig,
    /// By deadline, then by arrival.
    pub(crate) waiting: Vec<Request>,
    arrivals: Vec<Nanos>,
    /// Arrivals that λ counted and the span it counted over, when a bucket closed last.
    rate: Option<(u64, Nanos)>,
    bucket: u64,
    pub(crate) target: u32,
}

impl Naive {
    pub(crate) fn new(config: ModelConfig, latency: &Latency) -> Self {
        let (waiting, arrivals) = (Vec::new(), Vec::new());
        let mut naive = Self { config, waiting, arrivals, rate: None, bucket: 0, target: 0 };
        naive.target = naive.target(latency);
        naive
    }

    /// λ and the target size follow whenever a bucket of 100 ms has closed.
    pub(crate) fn arrived(&mut self, now: Nanos, latency: &Latency) {
        let first = *self.arrivals.first().unwrap_or(&now);
        let bucket = |at: Nanos| (at - first).0 / BUCKET.0;
        let open = bucket(now);
        if open > self.bucket {
            self.bucket = open;
            let closed = open.min(BUCKETS);
            let counted = |&&at: &&Nanos| (open - closed..open).contains(&bucket(at));
            let count = self.arrivals.iter().filter(counted).count();
            self.rate = Some((count as u64, BUCKET.times(closed)));
            self.target = self.target(latency);
        }
        self.arrivals.push(now);
    }

    /// The largest b with b/λ + ℓ(b) within the self.config.slo; without λ, with ℓ(b) within half of it.
    pub(crate) fn target(&self, latency: &Latency) -> u32 {
        let network = self.config.network;
        let budget = self.config.slo - network.response - network.ctrl;
        let gather = |b: u32| match self.rate {
            None => Some(Nanos(budget.0 - budget.0 / 2)),
            Some((0, _)) => None,
            Some((arrivals, span)) => Some(Nanos(span.0 * u64::from(b) / arrivals)),
        };
        let cost = |b: u32| latency.of(b) + network.data_per_task.times(u64::from(b));
        let fits = |&b: &u32| gather(b).is_some_and(|gather| cost(b) + gather <= budget);
        (1..=latency.batch_max()).filter(fits).max().unwrap_or(1)
    }

    pub(crate) fn fits(
        &self,
        latency: &Latency,
        start: Start,
        batch: u32,
        deadline: Nanos,
    ) -> bool {
        let arrival = start.now + self.config.network.before(batch);
        arrival.max(start.free_at) + latency.of(batch) <= deadline
    }

    /// The tasks that cannot even run alone.
    pub(crate) fn hopeless(&self, latency: &Latency, start: Start) -> Vec<TaskId> {
        let hopeless = |r: &&Request| !self.fits(latency, start, 1, r.deadline);
        self.waiting.iter().filter(hopeless).map(|r| r.task).collect()
    }

    /// Every window tried: the first head that reaches the target or takes all behind it.
    pub(crate) fn window(&self, latency: &Latency, start: Start) -> Option<(usize, u32)> {
        let batch = |head: usize| {
            let most = ((self.waiting.len() - head) as u32).min(latency.batch_max());
            let fits = |&b: &u32| self.fits(latency, start, b, self.waiting[head].deadline);
            (1..=most).filter(fits).max().unwrap_or(0)
        };
        let reaches = |head: &usize| {
            let wanted = ((self.waiting.len() - head) as u32).min(self.target);
            self.config.policy == Policy::Eager || batch(*head) >= wanted
        };
        (0..self.waiting.len()).find(reaches).map(|head| (head, batch(head)))
    }

    /// When time alone makes the head hopeless or the candidate too large.
    pub(crate) fn next_moment(
        &self,
        latency: &Latency,
        candidate: Option<Candidate>,
    ) -> Option<Nanos> {
        let alone = latency.of(1) + self.config.network.before(1);
        let hopeless = self.waiting.first().map(|head| head.deadline - alone);
        let invalid = candidate.map(|c| c.invalid_after - c.delay);
        hopeless.into_iter().chain(invalid).min().map(|last| last + Nanos(1))
    }

    /// Appendix C's update_candidate.
    pub(crate) fn candidate(&self, latency: &Latency, now: Nanos) -> Option<Candidate> {
        let (head, batch) = self.window(latency, Start { now, free_at: Nanos::ZERO })?;
        let (network, deadline) = (self.config.network, self.waiting[head].deadline);
        let delay = network.before(batch);
        let urgency = deadline - latency.of(batch + 1) - network.data_per_task;
        let in_beta = self.rate.map(|(n, span)| n * latency.beta().0 / span.0);
        let gathered = in_beta.is_some_and(|in_beta| u64::from(batch) > in_beta);
        let at_once = batch == latency.batch_max() || gathered;
        let earliest = now + delay;
        let exec_at = if at_once || self.config.policy == Policy::Eager {
            earliest
        } else {
            (urgency - network.jitter).max(earliest)
        };
        let invalid_after = deadline - latency.of(batch);
        Some(Candidate { batch, exec_at, invalid_after, urgency, delay })
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Start {
    pub(crate) now: Nanos,
    pub(crate) free_at: Nanos,
}
