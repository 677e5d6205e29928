//! A model of `ModelState` that remembers everything and recomputes everything, by trying every
//! window and counting every arrival.

mod gaps;

use std::ops::Range;

use baton_core::{
    Candidate, Deferral, Floor, Grant, Latency, ModelConfig, Nanos, Order, Prefer, Request, Rules,
    TaskId, WORTH_DROPPING, WORTH_WAITING,
};
use gaps::Gaps;

const BUCKET: Nanos = Nanos::from_millis(100);
const BUCKETS: u64 = 50;

/// Knows only what a definition needs: the tasks, every arrival, ℓ as the ModelState reports it.
pub(crate) struct Naive {
    pub(crate) config: ModelConfig,
    pub(crate) rules: Rules,
    /// By deadline, then by arrival.
    pub(crate) waiting: Vec<Request>,
    arrivals: Vec<Nanos>,
    /// How far each arrival's gap exceeded the mean gap of its time.
    paused: Vec<Option<Nanos>>,
    /// As of the last bucket that closed.
    gaps: Gaps,
    /// For how long beyond a run tasks waited, in which bucket it was counted, and whether another came meanwhile.
    waited: Vec<(u64, Nanos, bool)>,
    /// A task has waited since the last came.
    waits: bool,
    /// The buckets in which tasks were given up.
    bad: Vec<u64>,
    /// Arrivals that λ counted and the span it counted over, when a bucket closed last.
    rate: Option<(u64, Nanos)>,
    bucket: u64,
    target: u32,
    floor: u32,
    pause: Nanos,
    /// The same for tasks that wait.
    pause_of_waiting: Nanos,
    /// Of the last grant.
    slot_wait: Nanos,
    longest: Nanos,
    /// The largest batch that is not longer.
    most: u32,
    /// By when tasks with later deadlines than their objective are served, while some may wait.
    pub(crate) objective: Nanos,
    /// GPU time of each task in a batch of the target size.
    each: Nanos,
    /// What is left of the objective beside a lone task.
    slack: Nanos,
    bad_rate: u32,
    dispersion: u16,
}

impl Naive {
    pub(crate) fn new(config: ModelConfig, rules: Rules, latency: &Latency) -> Self {
        let mut naive = Self {
            config,
            rules,
            waiting: Vec::new(),
            arrivals: Vec::new(),
            paused: Vec::new(),
            gaps: Gaps::NONE,
            waited: Vec::new(),
            waits: false,
            bad: Vec::new(),
            rate: None,
            bucket: 0,
            target: 0,
            floor: 0,
            pause: Nanos::MAX,
            pause_of_waiting: Nanos::MAX,
            slot_wait: Nanos::ZERO,
            longest: Nanos::MAX,
            most: 0,
            objective: Nanos::MAX,
            each: Nanos::ZERO,
            slack: Nanos::ZERO,
            bad_rate: 0,
            dispersion: 0,
        };
        naive.retarget(latency);
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
            self.pause = self.pause(open - closed..open, first);
            self.pause_of_waiting = self.pause_of_waiting(open - closed..open);
            let arrivals: Vec<_> = self.arrivals.iter().map(|&at| (bucket(at), at)).collect();
            self.gaps = Gaps::of(&arrivals, open);
            self.bad_rate = self.bad_rate(open - closed..open, first);
            self.retarget(latency);
        }
        let gap = now - *self.arrivals.last().unwrap_or(&Nanos::ZERO);
        self.paused.push((gap > self.mean_gap()).then(|| gap - self.mean_gap()));
        if self.waits && gap > self.run_gap() {
            self.waited.push((self.bucket, gap - self.run_gap(), true));
        }
        self.waits = true;
        self.arrivals.push(now);
    }

    /// No task waits.
    pub(crate) fn emptied(&mut self, now: Nanos) {
        if let Some(&last) = self.arrivals.last().filter(|_| self.waits) {
            self.waited.push((self.bucket, now - last - self.run_gap(), false));
        }
        self.waits = false;
    }

    /// A task was given up for want of time.
    pub(crate) fn gave_up(&mut self) {
        self.bad.push(self.bucket);
    }

    pub(crate) fn granted(&mut self, grant: Grant, latency: &Latency) {
        self.slot_wait = grant.slot_wait;
        if self.longest != grant.longest {
            self.longest = grant.longest;
            self.retarget(latency);
        }
    }

    pub(crate) fn retarget(&mut self, latency: &Latency) {
        self.target = self.target(latency, 0);
        self.most = self.most(latency);
        self.dispersion = self.dispersion();
        let target = self.target.min(self.most);
        self.each = Nanos(latency.of(target).0 / u64::from(target));
        self.slack = self.slack(latency);
        self.floor = match self.rules.floor {
            Floor::Efficient => self.efficient(latency),
            Floor::Target => self.target,
            Floor::Gathered => self.target(latency, 1),
            Floor::One => 1,
        };
    }

    /// Of all that came in these buckets, and in those before them if there were fewer than a thousand. Of the latter, in
    /// 1/512 of a task, one in 512 fades with each bucket.
    fn bad_rate(&self, lately: Range<u64>, first: Nanos) -> u32 {
        let came = |bucket: u64| {
            self.arrivals.iter().filter(|&&at| (at - first).0 / BUCKET.0 == bucket).count() as u64
        };
        let bad = |bucket: u64| self.bad.iter().filter(|&&at| at == bucket).count() as u64;
        let sum = |of: &dyn Fn(u64) -> u64| lately.clone().map(of).sum::<u64>();
        let faded = |of: &dyn Fn(u64) -> u64| {
            (0..lately.start).fold(0, |count, bucket| count - count / 512 + 512 * of(bucket))
        };
        let older = |of| if sum(&came) < 1_000 { faded(of) } else { 0 };
        let (all, lost) = (512 * sum(&came) + older(&came), 512 * sum(&bad) + older(&bad));
        ((lost << 16) / (all + 51_200)).min(1 << 16) as u32
    }

    /// Any batch, if not even a single task is short enough.
    fn most(&self, latency: &Latency) -> u32 {
        let largest = if self.rules.splits { self.content() } else { latency.batch_max() };
        let is_short = |&b: &u32| latency.of(b) <= self.longest;
        (1..=largest).take_while(is_short).last().unwrap_or(largest)
    }

    /// The smallest batch whose tasks cost at most 1/16 more than in any larger one.
    fn content(&self) -> u32 {
        let table = self.config.profile.table();
        let cost = |b: usize| u128::from(table[b - 1].0);
        let is_dear =
            |b: usize, larger| cost(larger) * b as u128 * 17 < cost(b) * larger as u128 * 16;
        let content =
            (1..=table.len()).find(|&b| !(b..=table.len()).any(|larger| is_dear(b, larger)));
        content.expect("no batch is larger than the largest") as u32
    }

    /// The mean pause over the mean gap.
    fn dispersion(&self) -> u16 {
        match self.mean_gap() {
            Nanos::MAX => 16,
            gap => (self.pause.0 / gap.0.div_ceil(16).max(1)).clamp(16, 1024) as u16,
        }
    }

    /// The smallest batch that costs at most 1/16 more per task than the target.
    fn efficient(&self, latency: &Latency) -> u32 {
        let per_task = |b: u32| latency.of(b).0 / u64::from(b);
        let enough = per_task(self.target) + per_task(self.target) / WORTH_DROPPING;
        (1..=self.target).find(|&b| per_task(b) <= enough).expect("the target is enough")
    }

    fn mean_gap(&self) -> Nanos {
        match self.rate {
            None | Some((0, _)) => Nanos::MAX,
            Some((arrivals, span)) => Nanos(span.0 / arrivals),
        }
    }

    fn run_gap(&self) -> Nanos {
        match self.rate {
            None | Some((0, _)) => Nanos::ZERO,
            Some(_) => Nanos(self.mean_gap().0 / 16),
        }
    }

    /// The mean excess of the gaps above the mean gap, five that exceed it by 1/λ assumed.
    fn pause(&self, buckets: Range<u64>, first: Nanos) -> Nanos {
        let counts = |&(at, _): &(&Nanos, _)| buckets.contains(&((*at - first).0 / BUCKET.0));
        let arrivals = self.arrivals.iter().zip(&self.paused).filter(counts);
        let excess: Vec<Nanos> = arrivals.filter_map(|(_, &excess)| excess).collect();
        let sum = excess.iter().fold(self.mean_gap().times(5), |sum, &excess| sum + excess);
        Nanos(sum.0 / (excess.len() as u64 + 5)).max(self.mean_gap())
    }

    /// Where tasks that waited were joined by a quarter of what pauses let expect: the mean time in which one was, and eight
    /// pauses of waiting at least.
    fn pause_of_waiting(&self, buckets: Range<u64>) -> Nanos {
        let counted = self.waited.iter().filter(|(bucket, ..)| buckets.contains(bucket));
        let joined = counted.clone().filter(|(.., joined)| *joined).count() as u64;
        let waited = counted.fold(Nanos::ZERO, |sum, &(_, waited, _)| sum + waited);
        let mean = Nanos((self.pause + waited).0 / (joined + 1));
        let is_plain = waited > self.pause.times(8) && mean > self.pause.times(4);
        if is_plain { mean } else { self.pause }
    }

    /// The largest b with b/λ + ℓ(b) within the self.config.slo, or (b − 1)/λ; without λ, with ℓ(b) within half of it.
    pub(crate) fn target(&self, latency: &Latency, less: u32) -> u32 {
        let network = self.config.network;
        let budget = self.config.slo - network.response - network.ctrl;
        let gather = |b: u32| match self.rate {
            None => Some(Nanos(budget.0 - budget.0 / 2)),
            Some((0, _)) => None,
            Some((arrivals, span)) => Some(Nanos(span.0 * u64::from(b - less) / arrivals)),
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

    /// Every window tried: the first head that reaches the floor or takes all behind it. Where heads are passed over:
    /// the first behind it with a larger batch, if that must start first.
    pub(crate) fn window(&self, latency: &Latency, start: Start) -> Option<(usize, u32)> {
        let (head, batch) = self.window_for(latency, start, self.floor)?;
        let latest = |(head, batch): (usize, u32)| {
            let head: &Request = &self.waiting[head];
            head.deadline - latency.of(batch)
        };
        let larger = batch < self.most && self.waiting.len() > head + batch as usize;
        let behind = larger.then(|| self.window_for(latency, start, batch + 1)).flatten();
        let goes_first = |other: &(usize, u32)| {
            self.rules.passes_over && other.1 > batch && latest(*other) < latest((head, batch))
        };
        Some(behind.filter(goes_first).unwrap_or((head, batch)))
    }

    fn window_for(&self, latency: &Latency, start: Start, floor: u32) -> Option<(usize, u32)> {
        let batch = |head: usize| {
            let most = ((self.waiting.len() - head) as u32).min(self.most);
            let fits = |&b: &u32| self.fits(latency, start, b, self.waiting[head].deadline);
            (1..=most).filter(fits).max().unwrap_or(0)
        };
        let reaches = |head: &usize| {
            let wanted = ((self.waiting.len() - head) as u32).min(floor).min(self.most);
            batch(*head) >= wanted
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
        let in_run = candidate.filter(|c| c.run > 0);
        let run_over = in_run.map(|c| self.awaited(c.batch, c.latest));
        let last = hopeless.into_iter().chain(invalid).min().map(|last| last + Nanos(1));
        last.into_iter().chain(run_over).min()
    }

    /// Appendix C's update_candidate, and the policies' choices in it.
    pub(crate) fn candidate(&self, latency: &Latency, now: Nanos) -> Option<Candidate> {
        let (head, batch) = self.window(latency, Start { now, free_at: Nanos::ZERO })?;
        let (network, deadline) = (self.config.network, self.waiting[head].deadline);
        let delay = network.before(batch);
        let soft = deadline.min(self.objective);
        let frontrun = soft - latency.p99(batch + 1) - network.data_per_task;
        let invalid_after = deadline - latency.of(batch);
        let latest = frontrun - network.jitter;
        let deferred = match self.rules.deferral {
            _ if batch == self.most => Nanos::ZERO,
            Deferral::Expectation if self.rate.is_none() => latest,
            Deferral::Expectation => self.awaited(batch, latest).min(latest - self.slot_wait),
            Deferral::Fill if self.gathered(latency, batch) => Nanos::ZERO,
            Deferral::Fill | Deferral::Frontrun => latest,
            Deferral::Tenths(tenths) => {
                let left = self.config.slo - Nanos(self.config.slo.0 / 10 * u64::from(tenths));
                latest.min(deadline - left)
            }
            Deferral::None => Nanos::ZERO,
        };
        let yields = self.rules.yields;
        let early = yields && self.config.prefer == Prefer::Latency;
        let (urgency, bad_rate) = match self.rules.order {
            Order::LatestStart => (invalid_after, self.bad_rate),
            Order::Frontrun => (frontrun, 0),
        };
        let latest = latest - self.slot_wait;
        let in_run = self.awaited(batch, latest) > now;
        Some(Candidate {
            batch,
            exec_at: deferred.max(now + delay),
            invalid_after,
            urgency,
            bad_rate,
            delay,
            latest,
            latency: latency.of(batch),
            alone: latency.of(1),
            slack: if yields { self.slack } else { Nanos::ZERO },
            dispersion: self.dispersion,
            excess: if early { self.excess(latency, batch) } else { Candidate::NOT_EARLY },
            run: if early && in_run { self.run_tail() } else { 0 },
        })
    }

    /// By how much each task costs more than in a batch of the target size.
    fn excess(&self, latency: &Latency, batch: u32) -> u16 {
        if self.pause_of_waiting != self.pause {
            return Candidate::COMPLETE;
        }
        let efficient = self.each.0 * u64::from(batch);
        let dearer = latency.of(batch).0.saturating_sub(efficient) * Candidate::EXCESS_ONE;
        (dearer / efficient.max(1)).min(u64::from(Candidate::EXCESS_MAX)) as u16
    }

    /// What is left of the objective beside a lone task.
    fn slack(&self, latency: &Latency) -> Nanos {
        let network = self.config.network;
        self.config.slo - network.response - network.before(1) - latency.of(1)
    }

    fn run_tail(&self) -> u16 {
        self.gaps.run_tail(self.run_gap()).min(Candidate::RUN_MAX.into()) as u16
    }

    /// More than βλ tasks.
    fn gathered(&self, latency: &Latency, batch: u32) -> bool {
        let in_beta = self.rate.map(|(n, span)| n * latency.beta().0 / span.0);
        in_beta.is_some_and(|in_beta| u64::from(batch) > in_beta)
    }

    /// Until when more tasks than are worth waiting for are expected: by pauses, once one has begun.
    fn awaited(&self, batch: u32, latest: Nanos) -> Nanos {
        let tasks = self.patience(batch);
        let by_pause = latest - Nanos((self.pause_of_waiting.0 as f64 * tasks) as u64);
        let last = *self.arrivals.last().unwrap_or(&Nanos::ZERO);
        let paused = last + self.mean_gap();
        if self.pause_of_waiting != self.pause || by_pause >= paused {
            return by_pause;
        }
        (last + self.gaps.awaited(latest - last, tasks)).min(paused)
    }

    /// How many more tasks make the present batch notably dearer, in whole sixteenths.
    fn patience(&self, batch: u32) -> f64 {
        let cost = |b: f64| {
            let (below, above) = (b.floor() as u32, b.ceil() as u32);
            let latency = |b| self.config.profile.latency(b).0 as f64;
            (latency(below) + (latency(above) - latency(below)) * b.fract()) / b
        };
        let dear = cost(f64::from(batch));
        let dearer = |b: &f64| cost(*b) * (1.0 + 1.0 / WORTH_WAITING as f64) < dear;
        let steps = (self.config.profile.batch_max() - batch) * 16;
        let larger = (1..=steps).map(|step| f64::from(batch) + f64::from(step) / 16.0);
        larger
            .clone()
            .find(dearer)
            .map_or_else(|| f64::from(u32::MAX), |b| b - f64::from(batch) - 1.0 / 16.0)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Start {
    pub(crate) now: Nanos,
    pub(crate) free_at: Nanos,
}
