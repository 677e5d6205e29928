//! Which variant a batch gets, against a search through all of them that reads the rules word for word.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_core::{
    Alternative, Batch, Candidate, Choice, DropReason, Gpu, GpuId, GpuUpdate, Grant, ModelConfig,
    ModelId, ModelSink, ModelState, Nanos, NetworkDelay, Policy, Prefer, Profile, Request,
    Slowdown, TaskId, Unserved, Variant, Variants,
};
use proptest::prelude::*;

const SLO: Nanos = Nanos::from_millis(36);
const GPU: Gpu = Gpu { id: GpuId(0), life: 0 };

/// Accuracy in 1/1,000 per cent, α and β in µs: the stand-in P0 of `docs/supernets.md`.
const P0: [(u32, u64, u64); 6] = [
    (73_820, 400, 1_000),
    (76_690, 607, 1_293),
    (77_640, 747, 1_553),
    (78_250, 953, 1_747),
    (79_440, 1_327, 2_273),
    (80_160, 1_740, 2_860),
];

fn variants(of: &[(u32, u64, u64)], batch_max: u32) -> Variants {
    let us = Nanos::from_micros;
    let variant = |&(accuracy, alpha, beta): &(u32, u64, u64)| Variant {
        accuracy,
        profile: Profile::linear(us(alpha), us(beta), batch_max).unwrap(),
    };
    Variants::new(of.iter().map(variant).collect()).unwrap()
}

fn config(policy: Policy, profile: Profile) -> ModelConfig {
    ModelConfig {
        id: ModelId(0),
        profile,
        slo: SLO,
        queue_capacity: 1_024,
        policy,
        prefer: Prefer::Latency,
        network: NetworkDelay::default(),
    }
}

fn model(policy: Policy, variants: &Variants, choice: Choice) -> ModelState {
    let cheapest = variants.all()[0].profile.clone();
    ModelState::new(config(policy, cheapest)).with_variants(variants, choice)
}

/// Ours, where plans and inputs take time to arrive.
fn model_behind(network: NetworkDelay, variants: &Variants) -> ModelState {
    let config = config(Policy::Baton, variants.all()[0].profile.clone());
    ModelState::new(ModelConfig { network, ..config }).with_variants(variants, Choice::QueueFit)
}

/// The sealed batch: its variant and its tasks.
#[derive(Default)]
struct Sealed {
    variant: u16,
    floor: u16,
    tasks: Vec<Request>,
    ended: Vec<(TaskId, DropReason)>,
}

impl ModelSink for Sealed {
    fn candidate(&mut self, _: ModelId, _: Option<Candidate>, _: u32) {}
    fn dispatch(&mut self, batch: &Batch<'_>) {
        (self.variant, self.floor) = (batch.shape.variant, batch.floor);
        self.tasks = batch.requests().collect();
        let head = self.tasks[0].deadline;
        let in_time = batch.exec_at <= batch.invalid_after;
        // A slow slot gets one task even if it is late for that: another slot may be later.
        let late_but_one = batch.grant.slowdown != Slowdown::NONE && self.tasks.len() == 1;
        assert!(in_time || late_but_one, "it ends in time");
        assert!(batch.invalid_after < head);
    }
    fn gpu(&mut self, _: GpuUpdate) {}
    fn end_task(&mut self, task: TaskId, why: Unserved) {
        let Unserved::Dropped(why) = why else { panic!("nothing fails here") };
        self.ended.push((task, why));
    }
}

/// What the model does with a slot at 0 when tasks with these deadlines wait.
fn seal(model: &ModelState, deadlines: &[u64], spare: u32, slowdown: Slowdown) -> Sealed {
    let nothing: Vec<(u64, u32)> = deadlines.iter().map(|&deadline| (deadline, 0)).collect();
    seal_asking(model, &nothing, spare, slowdown)
}

/// The same of tasks with these deadlines that ask for these accuracies.
fn seal_asking(model: &ModelState, tasks: &[(u64, u32)], spare: u32, slowdown: Slowdown) -> Sealed {
    let (mut model, mut out) = (model.clone(), Sealed::default());
    for (task, &(deadline_us, accuracy_min)) in (0..).zip(tasks) {
        let request = Request::new(TaskId(task), Nanos::from_micros(deadline_us));
        let request = Request { accuracy_min, ..request };
        model.on_request(Nanos::ZERO, request, &mut out);
    }
    model.on_grant(Nanos::ZERO, grant(spare, slowdown), &mut out);
    out
}

/// Of a slot that is idle at 0.
fn grant(spare: u32, slowdown: Slowdown) -> Grant {
    Grant {
        gpu: GPU,
        free_at: Nanos::ZERO,
        port_wait: Nanos::ZERO,
        slowdown,
        slot_wait: Nanos::ZERO,
        longest: Nanos::MAX,
        spare,
        is_short_of_slots: spare == 0,
    }
}

fn ms_slack(deadline_ms: u64, tasks: usize) -> Vec<u64> {
    vec![deadline_ms * 1_000; tasks]
}

/// Queue-fit as it is written down: the last variant with which the batch, and everything behind it in full batches,
/// ends in time.
fn expected(
    variants: &Variants,
    sealed: &Sealed,
    waiting: &[u64],
    slots: u64,
    (slow, network): (Slowdown, NetworkDelay),
) -> u16 {
    let head = sealed.tasks[0].deadline;
    let batch = sealed.tasks.len() as u32;
    let start = network.ctrl + network.data_per_task.times(batch.into());
    let fits = |profile: &Profile| {
        let full = profile.batch_max();
        let rest = waiting.chunks(full as usize);
        start + slow.applied(profile.latency(batch)) <= head
            && (1..).zip(rest).all(|(nth, tasks): (u64, _)| {
                let spacing = Nanos(profile.latency(full).0 / slots);
                let end = start + spacing.times(nth) + profile.latency(tasks.len() as u32);
                end <= Nanos::from_micros(tasks[0])
            })
    };
    let last = variants.all().iter().rposition(|variant| fits(&variant.profile));
    last.unwrap_or(0) as u16
}

/// Deadlines that lie close together: a long queue then decides, and not its head.
fn deadlines() -> impl Strategy<Value = Vec<u64>> {
    (1_500..36_000u64, 1..200usize).prop_flat_map(|(first, tasks)| {
        prop::collection::vec(first..40_000u64.min(2 * first), tasks)
    })
}

proptest! {
    #[test]
    fn the_variant_is_the_most_accurate_that_leaves_time_for_the_queue(
        deadlines in deadlines(),
        spare in 1..9u32,
        slowness in prop_oneof![Just(256u64), 256..700u64],
        variants_used in 1..7usize,
        (ctrl_us, data_us) in prop_oneof![Just((0u64, 0u64)), (0..300u64, 0..300u64)],
    ) {
        let mut deadlines = deadlines;
        deadlines.sort_unstable();
        let variants = variants(&P0[..variants_used], 16);
        let slowdown = Slowdown::from_256ths(slowness);
        let [ctrl, data_per_task] = [ctrl_us, data_us].map(Nanos::from_micros);
        let network = NetworkDelay { ctrl, data_per_task, ..NetworkDelay::default() };
        let model = model_behind(network, &variants);
        let sealed = seal(&model, &deadlines, spare, slowdown);
        prop_assume!(!sealed.tasks.is_empty());
        let first_behind = sealed.tasks.last().unwrap().task.0 as usize + 1;
        let behind = &deadlines[first_behind..];
        let wanted = expected(&variants, &sealed, behind, spare.into(), (slowdown, network));
        prop_assert_eq!(sealed.variant, wanted);
    }

    #[test]
    fn more_tasks_behind_never_raise_the_variant(
        waiting in 1..60usize, more in 0..60usize, spare in 1..9u32, head_ms in 8..36u64,
    ) {
        let model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
        let variant = |behind: usize| {
            let mut deadlines = ms_slack(head_ms, 16);
            deadlines.extend(ms_slack(36, behind));
            seal(&model, &deadlines, spare, Slowdown::NONE).variant
        };
        prop_assert!(variant(waiting + more) <= variant(waiting));
    }

    #[test]
    fn one_variant_is_no_choice(deadlines in prop::collection::vec(1_500..40_000u64, 1..60)) {
        let one = variants(&P0[..1], 16);
        let plain = ModelState::new(config(Policy::Baton, one.all()[0].profile.clone()));
        let with = seal(&model(Policy::Baton, &one, Choice::QueueFit), &deadlines, 1, Slowdown::NONE);
        let without = seal(&plain, &deadlines, 1, Slowdown::NONE);
        prop_assert_eq!(with.variant, 0);
        prop_assert_eq!(with.tasks, without.tasks);
        prop_assert_eq!(with.ended, without.ended);
    }
}

#[test]
fn a_slot_that_others_may_need_gets_the_cheapest() {
    let model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    assert_eq!(seal(&model, &ms_slack(36, 4), 8, Slowdown::NONE).variant, 5);
    assert_eq!(seal(&model, &ms_slack(36, 4), 0, Slowdown::NONE).variant, 0);
}

#[test]
fn the_candidate_is_that_of_the_cheapest_and_does_not_wait() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let request = Request::new(TaskId(0), SLO);
    model.on_request(Nanos::ZERO, request, &mut Sealed::default());
    let candidate = model.candidate().unwrap();
    assert_eq!((candidate.batch, candidate.due()), (1, Nanos::ZERO));
    assert_eq!(candidate.latency, Nanos::from_micros(1_400));
    assert_eq!(candidate.invalid_after, SLO - Nanos::from_micros(1_400));
}

/// How the model's next batch waits after a grant that said this, with the traffic known: until when, and its claim to slots.
fn next_after(model: &mut ModelState, is_short_of_slots: bool, from: Nanos) -> (Nanos, u16) {
    let mut out = Sealed::default();
    let grant = Grant { is_short_of_slots, ..grant(u32::from(!is_short_of_slots), Slowdown::NONE) };
    for tick in 0..2_000 {
        let now = from + Nanos::from_micros(500 * tick);
        model.on_request(now, Request::new(TaskId(tick), now + SLO), &mut out);
        model.on_grant(now, Grant { free_at: now, ..grant }, &mut out);
    }
    let now = from + Nanos::from_millis(1_000);
    model.on_request(now, Request::new(TaskId(0), now + SLO), &mut out);
    let candidate = model.candidate().unwrap();
    (candidate.due() - now, candidate.excess)
}

#[test]
fn without_a_slot_to_spare_batches_wait_as_if_there_were_no_variants() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let mut plain =
        ModelState::new(config(Policy::Baton, variants(&P0, 16).all()[0].profile.clone()));
    let second = Nanos::from_millis(1_000);
    let as_plain = next_after(&mut plain, true, Nanos::ZERO);
    assert!(as_plain.0 > Nanos::ZERO, "it waits for more tasks");
    assert_eq!(next_after(&mut model, true, Nanos::ZERO), as_plain);
    let (wait, excess) = next_after(&mut model, false, second);
    assert_eq!((wait, excess), (Nanos::ZERO, Candidate::WITHIN_SPARE));
    assert_eq!(
        next_after(&mut model, true, second.times(2)).1,
        next_after(&mut plain, true, second.times(2)).1
    );
}

#[test]
fn rules_that_a_trial_found_hold_where_no_slot_is_to_spare() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    model.set_rules(Alternative::AtOnce.rules());
    assert_eq!(next_after(&mut model, true, Nanos::ZERO).0, Nanos::ZERO);
    model.set_rules(Alternative::Own.rules());
    assert!(next_after(&mut model, true, Nanos::from_millis(1_000)).0 > Nanos::ZERO);
}

#[test]
fn a_single_variant_is_a_model_without_any() {
    let one = variants(&P0[..1], 16);
    let mut single = model(Policy::Baton, &one, Choice::QueueFit);
    let mut plain = ModelState::new(config(Policy::Baton, one.all()[0].profile.clone()));
    let expected = next_after(&mut plain, false, Nanos::ZERO);
    assert!(expected.0 > Nanos::ZERO, "it waits for more tasks");
    assert_eq!(next_after(&mut single, false, Nanos::ZERO), expected);
}

#[test]
fn each_variant_learns_from_its_own_measurements() {
    let variants = variants(&P0, 16);
    let mut model = model(Policy::Baton, &variants, Choice::QueueFit);
    let of = |variant| baton_core::BatchShape { size: 16, variant, class: 0 };
    for _ in 0..500 {
        let took = Nanos::from_millis(60);
        assert!(model.on_measured(of(5), took, Slowdown::NONE).is_some());
    }
    // Twice as long, the most accurate does not fit any more; the others are as they were.
    let sealed = seal(&model, &ms_slack(36, 16), 8, Slowdown::NONE);
    assert_eq!((sealed.variant, sealed.tasks.len()), (4, 16));
}

/// Variant and size that a policy of SuperServe takes.
fn chosen(choice: Choice, deadline_ms: u64, waiting: usize) -> (u16, usize) {
    let model = model(Policy::Eager, &variants(&P0, 16), choice);
    let sealed = seal(&model, &ms_slack(deadline_ms, waiting), 8, Slowdown::NONE);
    (sealed.variant, sealed.tasks.len())
}

#[test]
fn slackfit_takes_the_largest_batch_of_the_last_bucket_below_the_slack() {
    let two_ms = Choice::SlackFit { width: Nanos::from_millis(2) };
    // Below 36 ms is the bucket from 30 to 32 ms: (5, 16) takes 30.7. Below 30 ms the next that is not empty is from
    // 22 to 24 ms: (4, 16) takes 23.5.
    assert_eq!(chosen(two_ms, 36, 40), (5, 16));
    assert_eq!(chosen(two_ms, 31, 40), (4, 16));
    // Below 8 ms: (0, 16) takes 7.4, (2, 8) 7.5, (4, 4) 7.6, (5, 2) 6.3; the largest size wins.
    assert_eq!(chosen(two_ms, 8, 40), (0, 16));
    assert_eq!(chosen(two_ms, 9, 40), (0, 16));
    // Below 6 ms: (0, 8) takes 4.2, (3, 4) 5.6, (4, 2) 4.9, (5, 1) 4.6.
    assert_eq!(chosen(two_ms, 7, 40), (0, 8));
    // The bucket from 4 to 6 ms is not below 5 ms. That from 2 to 4 ms has (1, 4) at 3.7 and (0, 4) at 2.6.
    assert_eq!(chosen(two_ms, 5, 40), (1, 4));
    // Nothing is below 1 ms after rounding: the largest size of the cheapest that fits.
    assert_eq!(chosen(Choice::SlackFit { width: Nanos::from_millis(10) }, 9, 40), (0, 16));
    assert_eq!(chosen(two_ms, 36, 3), (5, 3), "what is there");
}

#[test]
fn maxacc_and_maxbatch_take_the_one_and_then_the_other() {
    // 9 ms: the most accurate alone takes 4.6, three of it 8.08.
    assert_eq!(chosen(Choice::MaxAccuracy, 9, 40), (5, 3));
    assert_eq!(chosen(Choice::MaxAccuracy, 4, 40), (4, 1));
    // 16 of the cheapest take 7.4 ms, of the next one 11.0.
    assert_eq!(chosen(Choice::MaxBatch, 9, 40), (0, 16));
    assert_eq!(chosen(Choice::MaxBatch, 12, 40), (1, 16));
    assert_eq!(chosen(Choice::MaxBatch, 12, 4), (5, 4), "9.82 ms");
}

/// What tasks of the property ask for: mostly nothing.
fn asking() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let accuracy = prop_oneof![4 => Just(0), 3 => 73_000..80_161u32, 1 => Just(99_000)];
    prop::collection::vec((1_500..40_000u64, accuracy), 1..80)
}

proptest! {
    #[test]
    fn a_batch_suits_each_of_its_tasks_and_is_as_large_as_that_allows(
        tasks in asking(), spare in 0..9u32, choice in 0..4usize,
    ) {
        let mut tasks = tasks;
        tasks.sort_by_key(|task| task.0);
        let variants = variants(&P0, 16);
        let width = Nanos::from_millis(2);
        let choices =
            [Choice::QueueFit, Choice::SlackFit { width }, Choice::MaxAccuracy, Choice::MaxBatch];
        let model = model(Policy::Baton, &variants, choices[choice]);
        let sealed = seal_asking(&model, &tasks, spare, Slowdown::NONE);
        let floor = |task: TaskId| {
            let asked = tasks[task.0 as usize].1;
            variants.all().iter().position(|variant| variant.accuracy >= asked)
        };
        let fits = |variant: usize, task: TaskId, batch: u32| {
            let latency = variants.all()[variant].profile.latency(batch);
            latency <= Nanos::from_micros(tasks[task.0 as usize].0)
        };
        for &(task, why) in &sealed.ended {
            let for_accuracy = floor(task).is_none_or(|floor| floor > 0 && !fits(floor, task, 1));
            match why {
                DropReason::Accuracy => prop_assert!(for_accuracy && fits(0, task, 1)),
                DropReason::Deadline | DropReason::DeadlinePassed => prop_assert!(!fits(0, task, 1)),
                _ => prop_assert_eq!(why, DropReason::Window),
            }
        }
        let Some(head) = sealed.tasks.first().map(|task| task.task) else { return Ok(()) };
        let floors = sealed.tasks.iter().map(|task| floor(task.task).unwrap() as u16);
        let highest = floors.max().unwrap();
        prop_assert_eq!(sealed.floor, highest);
        prop_assert!(sealed.variant >= highest);
        // One more task would miss the head's deadline, or none is left, or the rule takes no more.
        let size = sealed.tasks.len();
        let next = sealed.tasks[size - 1].task.0 as usize + 1;
        if matches!(choices[choice], Choice::QueueFit | Choice::MaxBatch) && size < 16 && next < tasks.len() {
            let with = floor(TaskId(next as u64)).map(|floor| floor.max(highest.into()));
            let waits = !sealed.ended.iter().any(|(task, _)| task.0 as usize == next);
            prop_assert!(!waits || with.is_none_or(|floor| !fits(floor, head, size as u32 + 1)));
        }
    }
}

#[test]
fn what_asks_for_more_than_the_time_allows_is_dropped_with_that_reason() {
    let model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let one = |deadline_us, accuracy| {
        let sealed = seal_asking(&model, &[(deadline_us, accuracy)], 0, Slowdown::NONE);
        (sealed.tasks.len(), sealed.variant, sealed.ended.first().map(|ended| ended.1))
    };
    // The most accurate takes 4.6 ms alone. A slot that is not to spare executes what is asked for, and no more.
    assert_eq!(one(4_600, 80_160), (1, 5, None));
    assert_eq!(one(4_599, 80_160), (0, 0, Some(DropReason::Accuracy)));
    assert_eq!(one(36_000, 78_000), (1, 3, None), "the cheapest that is so accurate");
    assert_eq!(one(36_000, 80_161), (0, 0, Some(DropReason::Accuracy)), "no variant is");
    assert_eq!(one(1_000, 80_160), (0, 0, Some(DropReason::DeadlinePassed)));
}

#[test]
fn a_task_that_asks_is_given_up_when_its_variant_is_too_late_and_not_before() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let mut out = Sealed::default();
    let request = Request { accuracy_min: 80_160, ..Request::new(TaskId(0), SLO) };
    model.on_request(Nanos::ZERO, request, &mut out);
    let latest = SLO - Nanos::from_micros(4_600);
    assert_eq!(model.candidate().unwrap().invalid_after, latest, "as RankState needs it");
    assert_eq!(model.next_timer(), Some(latest + Nanos(1)));
    model.on_timer(latest, &mut out);
    assert_eq!(out.ended, []);
    model.on_timer(latest + Nanos(1), &mut out);
    assert_eq!(out.ended, [(TaskId(0), DropReason::Accuracy)]);
}

#[test]
fn a_model_without_variants_is_asked_for_nothing() {
    let profile = variants(&P0[..1], 16).all()[0].profile.clone();
    let plain = ModelState::new(config(Policy::Baton, profile));
    let sealed = seal_asking(&plain, &[(36_000, 99_000)], 1, Slowdown::NONE);
    assert_eq!((sealed.tasks.len(), sealed.variant, sealed.ended.len()), (1, 0, 0));
}

/// A batch of two and a task behind it on one slot: 6,340 µs and 4,600 µs with the most accurate variant.
#[test]
fn what_waits_may_end_at_its_deadline_and_not_after() {
    let model = model(Policy::Baton, &variants(&P0, 2), Choice::QueueFit);
    let chosen = |last| seal(&model, &[10_000, 10_000, last], 1, Slowdown::NONE).variant;
    assert_eq!([10_939, 10_940].map(chosen), [4, 5]);
}
