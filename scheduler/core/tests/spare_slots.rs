//! How many slots RankState leaves a model for longer than its tasks need: [`Grant::spare`].

use baton_core::{
    Candidate, Gpu, GpuId, GpuUpdate, Grant, ModelId, Nanos, RankLimits, RankSink, RankState,
    SubclusterId,
};

const HERE: SubclusterId = SubclusterId(0);
const GPUS: u32 = 4;
const MS: Nanos = Nanos::from_millis(1);

#[derive(Default)]
struct Out(Vec<(u32, Grant)>);

impl RankSink for Out {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.0.push((model.0, grant));
    }
    fn drained(&mut self, _: Gpu) {}
}

struct Stage {
    rank: RankState,
    out: Out,
    grants: [u32; 2],
}

fn slot(id: u32) -> Gpu {
    Gpu { id: GpuId(id), life: 0 }
}

impl Stage {
    fn new() -> Self {
        let limits = RankLimits { gpus: GPUS, subclusters: 1, copies: 0 };
        let mut stage =
            Self { rank: RankState::new(limits, &[HERE; 2]), out: Out::default(), grants: [0; 2] };
        for id in 0..GPUS {
            stage.rank.on_gpu_join(Nanos::ZERO, slot(id), HERE, &mut stage.out);
        }
        stage
    }

    /// A batch of one task that is granted a slot at once.
    fn granted(&mut self, now: Nanos, model: u32) -> Grant {
        let candidate = Candidate {
            batch: 1,
            exec_at: now,
            invalid_after: now + MS.times(40),
            urgency: now + MS.times(40),
            bad_rate: 0,
            delay: Nanos::ZERO,
            latest: now,
            latency: MS,
            slack: MS.times(30),
            dispersion: 16,
            excess: Candidate::NOT_EARLY,
            run: 0,
        };
        let seen = &mut self.grants[model as usize];
        let (id, out) = (ModelId(model), &mut self.out);
        self.rank.on_candidate(now, id, Some(candidate), *seen, out);
        *seen += 1;
        let (whose, grant) = out.0.pop().expect("a slot is idle");
        assert_eq!(whose, model);
        grant
    }

    fn planned(&mut self, now: Nanos, gpu: Gpu, latency: Nanos, work: Nanos) {
        let update = GpuUpdate::Planned { gpu, start: now, latency, work, fetched_at: None };
        self.rank.on_gpu(now, update, &mut self.out);
    }

    fn finished(&mut self, now: Nanos, gpu: Gpu) {
        let update = GpuUpdate::Finished { gpu, at: now, pace: None, fetched_at: None };
        self.rank.on_gpu(now, update, &mut self.out);
    }

    /// Half a second in which the model keeps one slot busy.
    fn busy(&mut self, from: Nanos, model: u32) -> Nanos {
        let mut now = from;
        for _ in 0..500 {
            let gpu = self.granted(now, model).gpu;
            self.planned(now, gpu, MS, MS);
            now = now + MS;
            self.finished(now, gpu);
        }
        now
    }
}

#[test]
fn a_model_alone_may_have_all_slots() {
    let mut stage = Stage::new();
    let now = stage.busy(Nanos::ZERO, 0);
    for taken in 0..GPUS {
        let grant = stage.granted(now, 0);
        assert_eq!(grant.spare, GPUS, "with {taken} taken");
        stage.planned(now, grant.gpu, MS.times(30), MS);
    }
}

#[test]
fn what_others_need_is_left_to_them() {
    let mut stage = Stage::new();
    let now = stage.busy(Nanos::ZERO, 1);
    // Model 1 keeps a slot busy: with two deviations of Poisson arrivals it may need three.
    let first = stage.granted(now, 0);
    assert_eq!(first.spare, 1);
    stage.planned(now, first.gpu, MS.times(30), MS);
    let second = stage.granted(now, 0);
    assert_eq!(second.spare, 0, "it has its one");
    stage.planned(now, second.gpu, MS, MS);
    stage.finished(now + MS, second.gpu);
    stage.finished(now + MS.times(30), first.gpu);
    assert_eq!(stage.granted(now + MS.times(30), 0).spare, 1, "both have ended");
}

#[test]
fn slots_that_leave_take_their_batches_along() {
    let mut stage = Stage::new();
    let now = stage.busy(Nanos::ZERO, 1);
    let first = stage.granted(now, 0);
    stage.planned(now, first.gpu, MS.times(30), MS);
    stage.rank.on_gpu_leave(first.gpu);
    let grant = stage.granted(now, 0);
    assert_eq!(grant.spare, 0, "three slots, and model 1 may need them all");
    stage.rank.on_gpu(now, GpuUpdate::Returned { gpu: grant.gpu }, &mut stage.out);
    let life = Gpu { life: 1, ..first.gpu };
    stage.rank.on_gpu_join(now, life, HERE, &mut stage.out);
    assert_eq!(
        stage.granted(now, 0).spare,
        1,
        "the lost batch and the returned grant do not count"
    );
}

#[test]
fn what_a_model_needed_long_ago_is_free_again() {
    let mut stage = Stage::new();
    let now = stage.busy(Nanos::ZERO, 1) + MS.times(20_000);
    let grant = stage.granted(now, 0);
    stage.planned(now, grant.gpu, MS, MS);
    assert_eq!(stage.granted(now, 0).spare, GPUS);
}
