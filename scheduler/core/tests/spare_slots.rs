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
    grants: [u32; 3],
}

fn slot(id: u32) -> Gpu {
    Gpu { id: GpuId(id), life: 0 }
}

impl Stage {
    fn new() -> Self {
        Self::with(GPUS)
    }

    fn with(gpus: u32) -> Self {
        let limits = RankLimits { gpus, subclusters: 1, copies: 0 };
        let mut stage =
            Self { rank: RankState::new(limits, &[HERE; 3]), out: Out::default(), grants: [0; 3] };
        for id in 0..gpus {
            stage.rank.on_gpu_join(Nanos::ZERO, slot(id), HERE, &mut stage.out);
        }
        stage
    }

    /// A batch of one task that is granted a slot at once.
    fn granted(&mut self, now: Nanos, model: u32) -> Grant {
        let grants = self.offered(model, now, Self::candidate(now));
        assert_eq!(grants.len(), 1, "a slot is idle");
        grants[0]
    }

    /// What the model is granted at once for its candidate.
    fn offered(&mut self, model: u32, now: Nanos, candidate: Candidate) -> Vec<Grant> {
        let seen = self.grants[model as usize];
        self.rank.on_candidate(now, ModelId(model), Some(candidate), seen, &mut self.out);
        self.taken(model)
    }

    /// What has been granted since, all of it to this model.
    fn taken(&mut self, model: u32) -> Vec<Grant> {
        let granted: Vec<_> = self.out.0.drain(..).collect();
        self.grants[model as usize] += granted.len() as u32;
        assert!(granted.iter().all(|&(whose, _)| whose == model));
        granted.into_iter().map(|(_, grant)| grant).collect()
    }

    /// One task that cannot wait.
    fn candidate(now: Nanos) -> Candidate {
        Candidate {
            batch: 1,
            exec_at: now,
            invalid_after: now + MS.times(40),
            urgency: now + MS.times(40),
            bad_rate: 0,
            delay: Nanos::ZERO,
            latest: now,
            latency: MS,
            alone: MS,
            slack: Nanos::ZERO,
            dispersion: 16,
            excess: Candidate::NOT_EARLY,
            run: 0,
        }
    }

    /// One task of a model with variants, which can wait for 30 ms.
    fn of_variants(now: Nanos) -> Candidate {
        let latest = now + MS.times(30);
        Candidate { latest, excess: Candidate::WITHIN_SPARE, ..Self::candidate(now) }
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
        assert_eq!((grant.spare, grant.is_short_of_slots), (GPUS, false), "with {taken} taken");
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
    assert_eq!((second.spare, second.is_short_of_slots), (0, false), "it has its one");
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
    let life = Gpu { life: 1, ..first.gpu };
    stage.rank.on_gpu_join(now, life, HERE, &mut stage.out);
    for _ in 0..2 {
        let grant = stage.granted(now, 0);
        assert_eq!(grant.spare, 1, "neither the lost batch counts nor the returned grant");
        stage.rank.on_gpu(now, GpuUpdate::Returned { gpu: grant.gpu }, &mut stage.out);
    }
    stage.rank.on_gpu_leave(life);
    let grant = stage.granted(now, 0);
    assert_eq!(grant.spare, 0, "three slots, and model 1 may need them all");
}

#[test]
fn what_a_model_needed_long_ago_is_free_again() {
    let mut stage = Stage::new();
    let now = stage.busy(Nanos::ZERO, 1) + MS.times(20_000);
    let grant = stage.granted(now, 0);
    stage.planned(now, grant.gpu, MS, MS);
    assert_eq!(stage.granted(now, 0).spare, GPUS);
}

#[test]
fn a_batch_behind_another_of_its_model_takes_no_further_slot() {
    let mut stage = Stage::new();
    let now = stage.busy(Nanos::ZERO, 1);
    let first = stage.granted(now, 0);
    stage.planned(now, first.gpu, MS, MS);
    for other in 1..GPUS {
        let grant = stage.granted(now, 1);
        stage.planned(now, grant.gpu, MS.times(9 + u64::from(other)), MS);
    }
    // No slot is idle: the next batch of model 0 is planned behind its first.
    let ahead = Candidate { delay: MS, exec_at: now + MS, ..Stage::candidate(now) };
    for _ in 0..2 {
        let behind = stage.offered(0, now, ahead);
        assert_eq!((behind[0].gpu, behind[0].spare), (first.gpu, 1), "it still has its one");
        stage.rank.on_gpu(now, GpuUpdate::Returned { gpu: first.gpu }, &mut stage.out);
    }
    let behind = stage.offered(0, now, ahead);
    stage.planned(now + MS, behind[0].gpu, MS.times(30), MS);
    stage.finished(now + MS, first.gpu);
    let ahead = Candidate { delay: MS.times(9), exec_at: now + MS.times(10), ..ahead };
    let second = stage.offered(0, now + MS, ahead);
    assert_ne!(second[0].gpu, first.gpu);
    assert_eq!(second[0].spare, 0, "behind a batch of model 1 it would have a second");
}

#[test]
fn a_model_with_variants_waits_for_the_slots_that_it_is_left() {
    let mut stage = Stage::new();
    let now = stage.busy(Nanos::ZERO, 1);
    let first = stage.offered(0, now, Stage::of_variants(now));
    assert_eq!(first[0].spare, 1);
    stage.planned(now, first[0].gpu, MS.times(20), MS);
    assert_eq!(stage.offered(0, now, Stage::of_variants(now)), [], "three slots are idle");
    let now = now + MS.times(20);
    stage.finished(now, first[0].gpu);
    let second = stage.taken(0);
    assert_eq!((second[0].gpu, second[0].spare), (first[0].gpu, 1), "its own is free again");
    stage.planned(now, second[0].gpu, MS.times(40), MS);
    assert_eq!(stage.offered(0, now, Stage::of_variants(now)), []);
    let latest = Stage::of_variants(now).latest;
    stage.rank.on_timer(latest, &mut stage.out);
    assert_eq!(stage.taken(0)[0].spare, 0, "its head can wait no longer");
}

#[test]
fn a_model_that_is_left_no_slot_does_not_wait() {
    let mut stage = Stage::new();
    let mut now = Nanos::ZERO;
    for _ in 0..500 {
        let grants = [0; 3].map(|_| stage.granted(now, 1));
        grants.iter().for_each(|grant| stage.planned(now, grant.gpu, MS, MS));
        now = now + MS;
        grants.iter().for_each(|grant| stage.finished(now, grant.gpu));
    }
    for _ in 0..2 {
        let grant = stage.offered(0, now, Stage::of_variants(now));
        assert!(grant[0].spare == 0 && grant[0].is_short_of_slots, "model 1 may need all");
        stage.planned(now, grant[0].gpu, MS, MS);
    }
}

#[test]
fn what_all_models_need_together_leaves_nothing_for_accuracy() {
    let mut stage = Stage::new();
    let mut now = Nanos::ZERO;
    for _ in 0..500 {
        // Model 1 keeps a slot busy, and model 0 with its cheapest variant two.
        let grants = [0, 0, 1].map(|model| stage.granted(now, model));
        grants.iter().for_each(|grant| stage.planned(now, grant.gpu, MS, MS));
        now = now + MS;
        grants.iter().for_each(|grant| stage.finished(now, grant.gpu));
    }
    let grant = stage.granted(now, 0);
    assert_eq!((grant.spare, grant.is_short_of_slots), (0, true), "model 1 leaves one");
    stage.rank.on_gpu(now, GpuUpdate::Returned { gpu: grant.gpu }, &mut stage.out);
    for tick in 0..5_000 {
        // Two thirds of a slot would do now, and one is left: too little to go back and forth.
        let models = if tick % 3 == 0 { &[1][..] } else { &[0, 1] };
        let grants: Vec<Grant> = models.iter().map(|&model| stage.granted(now, model)).collect();
        grants.iter().for_each(|grant| stage.planned(now, grant.gpu, MS, MS));
        now = now + MS;
        grants.iter().for_each(|grant| stage.finished(now, grant.gpu));
        assert!(models[0] == 1 || grants[0].is_short_of_slots);
    }
    let now = stage.busy(now, 0).max(now + MS.times(20_000));
    assert!(!stage.granted(now, 0).is_short_of_slots, "model 1 has been gone for long");
}

/// Models 0 and 1 lose these parts of their tasks, in 1/65536. What model 0 hears that is granted a slot when its candidate falls
/// due, and that of model 1 with it: one of as many slots.
fn others_lose(bad_rates: [u32; 2], slots: u32, models: &[usize]) -> bool {
    let mut stage = Stage::with(slots);
    let of = |model: usize, now| Candidate { bad_rate: bad_rates[model], ..Stage::candidate(now) };
    let mut now = Nanos::ZERO;
    for tick in 0..500 {
        let model = tick % 2;
        let gpu = stage.offered(model, now, of(model as usize, now))[0].gpu;
        stage.planned(now, gpu, MS, MS);
        now = now + MS;
        stage.finished(now, gpu);
    }
    let due = now + MS;
    for &model in models {
        let candidate = Candidate { urgency: due + MS.times(30 * model as u64), ..of(model, due) };
        let seen = stage.grants[model];
        stage.rank.on_candidate(now, ModelId(model as u32), Some(candidate), seen, &mut stage.out);
    }
    stage.rank.on_timer(due, &mut stage.out);
    assert_eq!(stage.out.0.len(), models.len().min(slots as usize));
    let (model, grant) = stage.out.0[0];
    assert_eq!(model, 0, "the most urgent");
    grant.others_lose
}

#[test]
fn a_model_hears_that_others_wait_for_its_slot_and_lose_tasks() {
    // A quarter of a per cent is no loss.
    let of_others = [164, 166].map(|bad_rate| others_lose([0, bad_rate], 1, &[0, 1]));
    assert_eq!(of_others, [false, true]);
    assert!(!others_lose([9_000, 0], 1, &[0, 1]), "its own losses");
    assert!(!others_lose([0, 9_000], 1, &[0]), "no other waits");
    assert!(!others_lose([0, 9_000], 2, &[0, 1]), "a slot is idle");
}

#[test]
fn slots_are_offered_until_they_leave_or_drain() {
    let mut stage = Stage::new();
    assert_eq!(stage.rank.gpus_offered(), GPUS as usize);
    stage.rank.on_gpu_leave(slot(0));
    stage.rank.on_gpu_drain(slot(1), &mut stage.out);
    assert_eq!(stage.rank.gpus_offered(), GPUS as usize - 2);
}

/// It cannot have more than all, and there is no other to leave them to.
#[test]
fn a_model_alone_that_needs_more_slots_than_there_are_may_have_all() {
    let mut stage = Stage::new();
    let mut now = Nanos::ZERO;
    for _ in 0..500 {
        let grants: Vec<Grant> = (0..GPUS).map(|_| stage.granted(now, 0)).collect();
        grants.iter().for_each(|grant| stage.planned(now, grant.gpu, MS, MS.times(2)));
        now = now + MS;
        grants.iter().for_each(|grant| stage.finished(now, grant.gpu));
    }
    let grant = stage.granted(now, 0);
    assert_eq!((grant.spare, grant.is_short_of_slots), (GPUS, false));
}

#[test]
fn what_was_granted_and_not_reported_is_outstanding() {
    let mut stage = Stage::new();
    let grants = [0; 3].map(|model| stage.granted(MS, model));
    grants.iter().for_each(|grant| stage.planned(MS, grant.gpu, MS, MS));
    assert_eq!(stage.rank.outstanding(), 3);
    stage.finished(MS.times(2), grants[0].gpu);
    assert_eq!(stage.rank.outstanding(), 2);
    stage.rank.on_gpu_leave(grants[1].gpu);
    assert_eq!(stage.rank.outstanding(), 1, "a slot that is gone has none");
}

/// One slot. In each 4 ms model 1, whose tasks can wait for 60 ms, executes for 1 ms, model 0, whose tasks can wait for 20 ms,
/// for half as long, and model 2, whose tasks can wait for 3 ms, for 5 µs.
#[test]
fn on_one_slot_models_take_turns_that_others_can_wait_for() {
    let us = Nanos::from_micros;
    let turn = |with_short: bool| {
        let mut stage = Stage::with(1);
        let waits = |slack: Nanos| Candidate { slack, ..Stage::candidate(Nanos::ZERO) };
        let mut now = Nanos::ZERO;
        let execute = |stage: &mut Stage, model, now, slack, takes| {
            let candidate = Candidate { latency: takes, ..waits(slack) };
            let candidate = Candidate { exec_at: now, invalid_after: now + slack, ..candidate };
            let grant = stage.offered(model, now, Candidate { latest: now, ..candidate })[0];
            stage.planned(now, grant.gpu, takes, takes);
            stage.finished(now + takes, grant.gpu);
            grant
        };
        for _ in 0..500 {
            execute(&mut stage, 1, now, MS.times(60), MS);
            execute(&mut stage, 0, now + MS, MS.times(20), us(500));
            if with_short {
                execute(&mut stage, 2, now + MS.times(2), MS.times(3), us(5));
            }
            now = now + MS.times(4);
        }
        let grant = execute(&mut stage, 0, now, MS.times(20), us(500));
        assert_eq!((grant.spare, grant.is_short_of_slots), (0, false));
        grant.part
    };
    let part = turn(false);
    // A quarter, and two deviations of what can wait for 60 times as long as it takes: 0.38 of the slot.
    assert_eq!(part.in_32nds(), 19);
    assert!(part.longest() <= MS.times(30) && part.longest() > MS.times(24), "{part:?}");
    let part = turn(true);
    assert!(part.longest() <= us(1_500) && part.longest() > us(1_100), "{part:?}");
}
