//! Ports: batches whose inputs come one batch after the other, and models that learn how long that takes. Backends are
//! played by hand; times are milliseconds.
mod world;

use baton_core::{
    Batch, Candidate, DropReason, Gpu, GpuId, GpuUpdate, Grant, ModelConfig, ModelId, ModelSink,
    ModelState, Nanos, NetworkDelay, Policy, RankLimits, RankSink, RankState, Request, SlotPart,
    Slowdown, SubclusterId, TaskId, Unserved,
};
use world::{linear, ms};

const HERE: SubclusterId = SubclusterId(0);

fn gpu(id: u32) -> Gpu {
    Gpu { id: GpuId(id), life: 1 }
}

/// Granted: which slot, to whom, and for how long its port is taken.
#[derive(Default)]
struct Grants(Vec<(u32, u32, Nanos)>);

impl RankSink for Grants {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.0.push((model.0, grant.gpu.id.0, grant.port_wait));
    }
    fn drained(&mut self, _gpu: Gpu) {}
}

impl Grants {
    fn take(&mut self) -> Vec<(u32, u32, Nanos)> {
        std::mem::take(&mut self.0)
    }
}

/// Four models; backends with two slots each: 0 and 1, 2 and 3.
fn two_backends() -> (RankState, Grants) {
    let mut out = Grants::default();
    let mut rank = RankState::new(RankLimits { gpus: 4, subclusters: 1, copies: 0 }, &[HERE; 4]);
    for id in 0..4 {
        rank.share_port(GpuId(id), GpuId(id / 2 * 2));
        rank.on_gpu_join(Nanos::ZERO, gpu(id), HERE, &mut out);
    }
    (rank, out)
}

/// A batch that is due at once, needs 1 ms from the grant to its start, and may start until 90 ms.
fn candidate() -> Option<Candidate> {
    Some(Candidate {
        batch: 1,
        exec_at: Nanos::ZERO,
        invalid_after: ms(90.0),
        urgency: ms(90.0),
        bad_rate: 0,
        delay: ms(1.0),
        latest: ms(90.0),
        latency: ms(1.0),
        alone: ms(1.0),
        slack: Nanos::ZERO,
        dispersion: 16,
        excess: Candidate::NOT_EARLY,
        run: 0,
    })
}

fn planned(id: u32, start: f64, fetched_at: f64) -> GpuUpdate {
    let (start, fetched_at) = (ms(start), Some(ms(fetched_at)));
    GpuUpdate::Planned { gpu: gpu(id), start, latency: ms(1.0), work: ms(1.0), fetched_at }
}

fn finished(id: u32, at: f64, fetched_at: f64) -> GpuUpdate {
    GpuUpdate::Finished { gpu: gpu(id), at: ms(at), pace: None, fetched_at: Some(ms(fetched_at)) }
}

#[test]
fn a_backend_that_fetches_nothing_comes_before_one_that_does() {
    let (mut rank, mut out) = two_backends();
    rank.on_candidate(ms(0.0), ModelId(0), candidate(), 0, &mut out);
    assert_eq!(out.take(), [(0, 0, Nanos::ZERO)]);
    rank.on_gpu(ms(0.0), planned(0, 0.8, 0.8), &mut out);
    rank.on_candidate(ms(0.0), ModelId(1), candidate(), 0, &mut out);
    assert_eq!(out.take(), [(1, 2, Nanos::ZERO)], "slot 1 is idle, but its port is not");
    rank.on_gpu(ms(0.0), planned(2, 0.5, 0.5), &mut out);
    rank.on_candidate(ms(0.0), ModelId(2), candidate(), 0, &mut out);
    assert_eq!(out.take(), [(2, 3, ms(0.5))], "both fetch, this one for a shorter time");
}

#[test]
fn an_idle_slot_waits_for_its_port() {
    let (mut rank, mut out) = two_backends();
    for (model, slot) in [(0, 0), (1, 2)] {
        rank.on_candidate(ms(0.0), ModelId(model), candidate(), 0, &mut out);
        assert_eq!(out.take(), [(model, slot, Nanos::ZERO)]);
        rank.on_gpu(ms(0.0), planned(slot, 10.0, 10.0 + f64::from(slot)), &mut out);
    }
    rank.on_candidate(ms(0.0), ModelId(2), candidate(), 0, &mut out);
    assert_eq!(out.take(), [], "a batch granted now would have its inputs after 10 ms");
    assert_eq!(rank.next_timer(), Some(ms(9.0)), "1 ms before the first port is free");
    rank.on_timer(ms(9.0), &mut out);
    assert_eq!(out.take(), [(2, 1, ms(1.0))]);
}

#[test]
fn what_was_late_is_waited_for() {
    let (mut rank, mut out) = two_backends();
    (2..4).for_each(|id| rank.on_gpu_leave(gpu(id)));
    for (model, slot, at) in [(0, 0, 5.0), (1, 1, 8.0)] {
        rank.on_candidate(ms(at - 4.0), ModelId(model), candidate(), 0, &mut out);
        rank.on_gpu(ms(at - 4.0), planned(slot, at, at), &mut out);
    }
    assert_eq!(out.take().len(), 2);
    rank.on_gpu(ms(8.0), finished(0, 8.0, 7.0), &mut out);
    rank.on_candidate(ms(8.5), ModelId(2), candidate(), 0, &mut out);
    assert_eq!(out.take(), [], "the second batch is 2 ms late, too");
    rank.on_timer(ms(9.0), &mut out);
    assert_eq!(out.take(), [(2, 0, ms(1.0))]);
}

#[test]
fn what_a_lost_backend_fetched_is_nothing_to_the_next_with_its_number() {
    let (mut rank, mut out) = two_backends();
    (2..4).for_each(|id| rank.on_gpu_leave(gpu(id)));
    for (model, slot) in [(0, 0), (1, 1)] {
        rank.on_candidate(ms(0.0), ModelId(model), candidate(), 0, &mut out);
        rank.on_gpu(ms(0.0), planned(slot, 0.5, 0.5), &mut out);
    }
    // One batch each, and a grant that is not answered.
    rank.on_candidate(ms(1.0), ModelId(2), candidate(), 0, &mut out);
    assert_eq!(out.take().len(), 3);
    (0..2).for_each(|id| rank.on_gpu_leave(gpu(id)));
    let next = Gpu { id: GpuId(0), life: 2 };
    rank.share_port(next.id, next.id);
    rank.on_gpu_join(ms(2.0), next, HERE, &mut out);
    let (start, fetched_at) = (ms(3.0), Some(ms(2.5)));
    let (latency, at) = (ms(1.0), ms(4.0));
    rank.on_candidate(ms(2.0), ModelId(3), candidate(), 0, &mut out);
    let planned = GpuUpdate::Planned { gpu: next, start, latency, work: latency, fetched_at };
    rank.on_gpu(ms(2.0), planned, &mut out);
    rank.on_gpu(at, GpuUpdate::Finished { gpu: next, at, pace: None, fetched_at }, &mut out);
    rank.on_candidate(at, ModelId(0), candidate(), 1, &mut out);
    assert_eq!(out.take(), [(3, 0, Nanos::ZERO), (0, 0, Nanos::ZERO)]);
}

#[test]
fn slots_without_ports_wait_for_none() {
    let mut out = Grants::default();
    let mut rank = RankState::new(RankLimits { gpus: 2, subclusters: 1, copies: 0 }, &[HERE; 2]);
    (0..2).for_each(|id| rank.on_gpu_join(Nanos::ZERO, gpu(id), HERE, &mut out));
    rank.on_candidate(ms(0.0), ModelId(0), candidate(), 0, &mut out);
    rank.on_gpu(ms(0.0), planned(0, 10.0, 10.0), &mut out);
    rank.on_candidate(ms(0.0), ModelId(1), candidate(), 0, &mut out);
    assert_eq!(out.take(), [(0, 0, Nanos::ZERO), (1, 1, Nanos::ZERO)]);
}

/// What a model decided last.
#[derive(Default)]
struct Decided {
    /// Tasks, planned start, and when its inputs should be there.
    batch: Option<(u32, Nanos, Option<Nanos>)>,
    /// What RankState learns of it: planned start, and when its inputs should be there.
    planned: Option<(Nanos, Option<Nanos>)>,
    dropped: Vec<u64>,
}

impl ModelSink for Decided {
    fn candidate(&mut self, _model: ModelId, _candidate: Option<Candidate>, _grants: u32) {}
    fn dispatch(&mut self, batch: &Batch<'_>) {
        assert_eq!(self.planned, Some((batch.exec_at, batch.fetched_at)));
        self.batch = Some((batch.len(), batch.exec_at, batch.fetched_at));
    }
    fn gpu(&mut self, update: GpuUpdate) {
        if let GpuUpdate::Planned { fetched_at, start, .. } = update {
            assert!(fetched_at.is_none_or(|at| at <= start), "nothing starts before it is there");
            self.planned = Some((start, fetched_at));
        }
    }
    fn end_task(&mut self, task: TaskId, why: Unserved) {
        assert_eq!(why, Unserved::Dropped(DropReason::Deadline));
        self.dropped.push(task.0);
    }
}

/// ℓ(b) = b + 2 ms, 20 ms, and 1 ms from the grant to a batch's inputs, which take 0.1 ms each as far as is known.
fn config() -> ModelConfig {
    let network = NetworkDelay { ctrl: ms(1.0), data_per_task: ms(0.1), ..NetworkDelay::default() };
    ModelConfig { network, ..linear(Policy::Eager, 1.0, 2.0, 20.0) }
}

/// The model with eight tasks that have 20 ms, and what it decides if it is granted an idle slot.
fn granted(mut model: ModelState, port_wait: Nanos) -> Decided {
    let mut out = Decided::default();
    for task in 0..8 {
        model.on_request(ms(0.0), Request::new(TaskId(task), ms(20.0)), &mut out);
    }
    let (slot_wait, longest) = (Nanos::ZERO, Nanos::MAX);
    let (gpu, free_at, slowdown) = (gpu(0), Nanos::ZERO, Slowdown::NONE);
    let grant = Grant {
        gpu,
        free_at,
        port_wait,
        slowdown,
        slot_wait,
        longest,
        spare: 1,
        part: SlotPart::NONE,
        is_short_of_slots: false,
        others_lose: false,
    };
    model.on_grant(ms(0.0), grant, &mut out);
    out
}

/// After many batches whose inputs took `each` per task and were late by `late`.
fn experienced(each: f64, late: f64) -> ModelState {
    let mut model = ModelState::new(config());
    for batch in [4, 10, 1, 7].into_iter().cycle().take(2_000) {
        model.on_fetched(batch, ms(each * f64::from(batch)), ms(late));
    }
    model
}

#[test]
fn what_is_measured_is_planned_with() {
    let fresh = granted(ModelState::new(config()), Nanos::ZERO);
    assert_eq!(fresh.batch, Some((8, ms(1.8), None)), "as the cluster file says");
    let (size, start, fetched_at) = granted(experienced(1.0, 0.0), Nanos::ZERO).batch.unwrap();
    assert!(ms(8.6) < start && start < ms(9.2), "1 ms, and eight inputs of 1 ms: {start:?}");
    assert!(size == 8 && fetched_at.is_some_and(|at| at <= start && start - at < ms(0.2)));
    let (size, start, _) = granted(experienced(2.0, 0.0), Nanos::ZERO).batch.unwrap();
    assert!(size == 5 && start < ms(12.0), "six would end at 1 + 6 · 2 + ℓ(6) = 21");
}

#[test]
fn a_batch_is_planned_behind_those_that_are_fetched_before() {
    let (size, start, _) = granted(experienced(1.0, 0.0), ms(4.0)).batch.unwrap();
    assert!(size == 7 && start > ms(10.7), "4 + 7 · 1 + ℓ(7) = 20: {size} at {start:?}");
    let hopeless = granted(experienced(1.0, 0.0), ms(17.0));
    assert_eq!((hopeless.batch, hopeless.dropped.len()), (None, 8), "no input is there in time");
}

#[test]
fn inputs_that_tend_to_be_late_are_given_more_time() {
    let start = |late| granted(experienced(0.5, late), Nanos::ZERO).batch.unwrap().1;
    let more = start(2.0) - start(0.0);
    assert!(ms(1.9) < more && more < ms(2.3), "{more:?}");
    assert!(
        start(19.0) < ms(13.1),
        "1 + 8 · 0.5, and no more than half of what 1 + ℓ(1) leave of 20"
    );
}
