//! Which variant a batch gets, against a search through all of them that reads the rules word for word.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod floors;
mod spending;

use baton_core::{
    Batch, Candidate, Choice, DropReason, Gpu, GpuId, GpuUpdate, Grant, ModelConfig, ModelId,
    ModelSink, ModelState, Nanos, NetworkDelay, Policy, Prefer, Profile, Request, SlotPart,
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

/// Tasks come and are executed at once, evenly spaced, from 0 on and before `until`. Returns how many came.
fn evenly(model: &mut ModelState, gap: Nanos, spare: u32, until: Nanos) -> u64 {
    let (mut now, mut count) = (Nanos::ZERO, 0);
    while now < until {
        model.on_request(now, Request::new(TaskId(count), now + SLO), &mut Sealed::default());
        let grant = Grant { free_at: now, ..grant(spare, Slowdown::NONE) };
        model.on_grant(now, grant, &mut Sealed::default());
        (now, count) = (now + gap, count + 1);
    }
    count
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
        part: SlotPart::NONE,
        is_short_of_slots: spare == 0,
        others_lose: false,
    }
}

fn ms_slack(deadline_ms: u64, tasks: usize) -> Vec<u64> {
    vec![deadline_ms * 1_000; tasks]
}

/// At its deadline a task is still in time, whichever slot executes it.
#[test]
fn a_batch_is_as_large_as_ends_at_the_deadline_itself() {
    let model = model(Policy::Baton, &variants(&P0[..1], 16), Choice::QueueFit);
    for (slowdown, batch) in [Slowdown::NONE, Slowdown::from_256ths(384)]
        .into_iter()
        .flat_map(|slowdown| (2..16).map(move |batch| (slowdown, batch)))
    {
        let deadline_us = slowdown.applied(Nanos(1_000 + 400 * batch)).0;
        let tasks = |deadline_us| seal(&model, &[deadline_us; 16], 0, slowdown).tasks.len() as u64;
        assert_eq!([deadline_us - 1, deadline_us].map(tasks), [batch - 1, batch], "{slowdown:?}");
    }
}

/// What an observer of the rule needs to know besides the queue.
#[derive(Clone, Copy)]
struct Slots {
    now: Nanos,
    count: u64,
    slowdown: Slowdown,
    network: NetworkDelay,
    /// Tasks that come in a second.
    coming: u64,
}

/// Queue-fit as it is written down: the last variant with which as many tasks of the window as end in time, and everything
/// behind them in full batches, and what comes until the next slot is free, end in time. Else the whole window with the
/// cheapest. `waiting` begins with the window.
fn expected(variants: &Variants, waiting: &[u64], window: u32, slots: Slots) -> (u32, u16) {
    let Slots { now, count, slowdown, network, coming } = slots;
    let start = |batch: u32| now + network.ctrl + network.data_per_task.times(batch.into());
    let fits = |profile: &Profile| {
        let took = |batch: u32| slowdown.applied(profile.latency(batch));
        let is_in_time =
            |&batch: &u32| start(batch) + took(batch) <= Nanos::from_micros(waiting[0]);
        let batch = (1..=window).rev().find(is_in_time)?;
        let to_next = Nanos(took(batch).0 / count);
        let arrivals = (2 * to_next.0 * coming / 1_000_000_000).div_ceil(2);
        let arrives = |nth| now + Nanos(to_next.0 * nth / arrivals);
        let deadlines: Vec<Nanos> = (0..arrivals).map(|nth| arrives(nth) + SLO).collect();
        let behind = (&waiting[batch as usize..], &deadlines[..]);
        rest_fits(profile, start(batch) + to_next, behind, count).then_some(batch)
    };
    let last = variants.all().iter().enumerate().rev();
    let mut last = last.filter_map(|(at, variant)| Some((fits(&variant.profile)?, at as u16)));
    last.next().unwrap_or((window, 0))
}

/// How many of the waiting tasks the slot could take by the cheapest variant.
fn window(model: &ModelState, now: Nanos, slowdown: Slowdown) -> u32 {
    let (mut model, mut out) = (model.clone(), Sealed::default());
    model.on_grant(now, Grant { free_at: now, ..grant(0, slowdown) }, &mut out);
    out.tasks.len() as u32
}

/// Whether each batch ends in time if the first starts then. Tasks that come fill the last batch of those that wait.
fn rest_fits(
    profile: &Profile,
    mut start: Nanos,
    (waiting, mut coming): (&[u64], &[Nanos]),
    slots: u64,
) -> bool {
    let full = profile.batch_max();
    for tasks in waiting.chunks(full as usize) {
        let joined = coming.len().min(full as usize - tasks.len());
        let end = start + profile.latency((tasks.len() + joined) as u32);
        if end > Nanos::from_micros(tasks[0]) {
            return false;
        }
        coming = &coming[joined..];
        start = start + Nanos(profile.latency(full).0 / slots);
    }
    let turn = |size: u32| Nanos(profile.latency(size).0 / slots);
    let takes_turns = |&size: &u32| turn(size) + profile.latency(size) <= SLO;
    let size = (1..=full).rev().find(takes_turns).unwrap_or(1);
    coming.chunks(size as usize).all(|tasks| {
        let end = start + profile.latency(tasks.len() as u32);
        start = start + turn(size);
        end <= tasks[0]
    })
}

/// Deadlines that lie close together: a long queue then decides, and not its head.
fn deadlines() -> impl Strategy<Value = Vec<u64>> {
    (1_500..36_000u64, 1..200usize).prop_flat_map(|(first, tasks)| {
        prop::collection::vec(first..40_000u64.min(2 * first), tasks)
    })
}

/// Size and variant of a batch of tasks that came at once, while others come evenly spaced; and those that the rule says.
fn while_tasks_come(gap_us: u64, batch: u32, spare: u32) -> ((u32, u16), (u32, u16)) {
    let variants = variants(&P0, 16);
    let mut model = model(Policy::Baton, &variants, Choice::QueueFit);
    let second = Nanos::from_millis(1_000);
    let gap = Nanos(1_000_000_000 / (1_000_000 / gap_us));
    let coming = evenly(&mut model, gap, spare, second);
    let mut out = Sealed::default();
    for task in 0..batch {
        let deadline = second + SLO;
        model.on_request(second, Request::new(TaskId(task.into()), deadline), &mut out);
    }
    let window = window(&model, second, Slowdown::NONE);
    let grant = Grant { free_at: second, ..grant(spare, Slowdown::NONE) };
    model.on_grant(second, grant, &mut out);
    let waiting = vec![(second + SLO).0 / 1_000; batch as usize];
    let slots = Slots {
        now: second,
        count: spare.into(),
        slowdown: Slowdown::NONE,
        network: NetworkDelay::default(),
        coming,
    };
    let chosen = (out.tasks.len() as u32, out.variant);
    (chosen, expected(&variants, &waiting, window, slots))
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
        let whole = seal(&model, &deadlines, 0, slowdown);
        prop_assume!(!whole.tasks.is_empty());
        let window = whole.tasks.len() as u32;
        let waiting = &deadlines[whole.tasks[0].task.0 as usize..];
        let slots = Slots { now: Nanos::ZERO, count: spare.into(), slowdown, network, coming: 0 };
        let sealed = seal(&model, &deadlines, spare, slowdown);
        let chosen = (sealed.tasks.len() as u32, sealed.variant);
        prop_assert_eq!(chosen, expected(&variants, waiting, window, slots));
    }

    #[test]
    fn what_comes_until_the_next_slot_is_free_counts_as_waiting(
        gap_us in 20..3_000u64, batch in 1..40u32, spare in 1..9u32,
    ) {
        let (chosen, expected) = while_tasks_come(gap_us, batch, spare);
        prop_assert_eq!(chosen, expected);
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

/// One of few cases in which the largest batch that comers form decides.
#[test]
fn comers_form_batches_that_the_slots_can_take_turns_with() {
    let (chosen, expected) = while_tasks_come(209, 14, 5);
    assert_eq!(chosen, expected);
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

/// A batch of two and a task behind it on one slot: 6,340 µs and 4,600 µs with the most accurate variant.
#[test]
fn what_waits_may_end_at_its_deadline_and_not_after() {
    let model = model(Policy::Baton, &variants(&P0, 2), Choice::QueueFit);
    let chosen = |last| seal(&model, &[10_000, 10_000, last], 1, Slowdown::NONE).variant;
    assert_eq!([10_939, 10_940].map(chosen), [4, 5]);
}
