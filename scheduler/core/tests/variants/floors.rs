//! Tasks that ask for an accuracy.

use super::*;

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
            let least = if choice == 0 { sealed.variant } else { highest };
            let with = floor(TaskId(next as u64)).map(|floor| floor.max(least.into()));
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

/// It never waited: no head is given up for it, and it says nothing of what the model loses.
#[test]
fn what_no_variant_would_end_in_time_is_refused_when_it_comes() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let mut out = Sealed::default();
    for deadline_us in [4_599, 4_600] {
        let request = Request::new(TaskId(deadline_us), Nanos::from_micros(deadline_us));
        model.on_request(Nanos::ZERO, Request { accuracy_min: 80_160, ..request }, &mut out);
    }
    assert_eq!(out.ended, [(TaskId(4_599), DropReason::Accuracy)]);
    assert_eq!((model.counters().given_up, model.waiting()), (0, 1));
}

#[test]
fn what_comes_back_too_late_for_its_variant_ends_with_that_reason() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let mut out = Sealed::default();
    for deadline_us in [1_399, 4_599, 4_600] {
        let request = Request::new(TaskId(deadline_us), Nanos::from_micros(deadline_us));
        let request = Request { accuracy_min: 80_160, ..request };
        model.on_requeue(Nanos::ZERO, request, Unserved::Dropped(DropReason::NoBackend), &mut out);
    }
    let ends = [(1_399, DropReason::NoBackend), (4_599, DropReason::Accuracy)];
    assert_eq!(out.ended, ends.map(|(task, why)| (TaskId(task), why)));
    assert_eq!(model.waiting(), 1);
}

/// With the dearest variant, for which the last three ask, five tasks take 11.56 ms, and six 13.3.
#[test]
fn a_candidate_is_no_larger_than_its_variant_is_in_time_for() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let mut out = Sealed::default();
    for task in 0..8 {
        let accuracy_min = if task < 5 { 0 } else { 80_160 };
        let request = Request::new(TaskId(task), Nanos::from_micros(12_000 + task));
        model.on_request(Nanos::ZERO, Request { accuracy_min, ..request }, &mut out);
    }
    let batch = |model: &ModelState| model.candidate().map(|candidate| candidate.batch);
    assert_eq!(batch(&model), Some(5), "the sixth would make it six of the dearest");
    for task in 0..5 {
        model.on_cancel(Nanos::ZERO, TaskId(task), &mut out);
    }
    assert_eq!(batch(&model), Some(3));
}

/// What counts is how long the head can wait, not what the time is.
#[test]
fn every_choice_is_the_same_at_any_moment() {
    let width = Nanos::from_millis(2);
    let choices =
        [Choice::QueueFit, Choice::SlackFit { width }, Choice::MaxAccuracy, Choice::MaxBatch];
    for choice in choices {
        let sealed = [0, 50, 900].map(|ms| {
            let (now, mut out) = (Nanos::from_millis(ms), Sealed::default());
            let mut model = model(Policy::Baton, &variants(&P0, 16), choice);
            for task in 0..6 {
                let deadline = now + Nanos::from_micros(9_000 + task);
                model.on_request(now, Request::new(TaskId(task), deadline), &mut out);
            }
            model.on_grant(now, Grant { free_at: now, ..grant(4, Slowdown::NONE) }, &mut out);
            (out.variant, out.tasks.len())
        });
        assert!(sealed.iter().all(|one| *one == sealed[0]), "{choice:?}: {sealed:?}");
    }
}

/// Three tasks would take 12 ms on the slow slot, because the third asks for the dearest variant; the first two take 2.7 ms.
#[test]
fn a_slow_slot_gets_the_tasks_that_ask_for_less() {
    let model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let slowdown = Slowdown::from_256ths(384);
    let tasks = [(9_200, 0), (9_201, 0), (9_202, 80_160)];
    assert_eq!(seal_asking(&model, &tasks, 0, Slowdown::NONE).tasks.len(), 3);
    assert_eq!(seal_asking(&model, &tasks, 0, slowdown).tasks.len(), 2);
}

/// Twelve tasks, of which every second asks for that much, at a moment after one that asked for nothing, or for the same, was
/// lost, if any was: who is executed, and why others ended.
fn after_a_loss(
    lost_ms_ago: Option<u64>,
    accuracy_min: u32,
    lost_asked: bool,
) -> (usize, u16, Vec<DropReason>) {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    if lost_ms_ago.is_some() {
        let (budget_us, asked) = if lost_asked { (4_700, accuracy_min) } else { (1_500, 0) };
        let hopeless = Request::new(TaskId(99), Nanos::from_micros(budget_us));
        let hopeless = Request { accuracy_min: asked, ..hopeless };
        model.on_request(Nanos::ZERO, hopeless, &mut Sealed::default());
        model.on_timer(Nanos::from_micros(200), &mut Sealed::default());
    }
    let now = Nanos::from_micros(200) + Nanos::from_millis(lost_ms_ago.unwrap_or(0));
    let mut out = Sealed::default();
    for task in 0..12 {
        let accuracy_min = if task % 2 == 0 { 0 } else { accuracy_min };
        let request = Request { accuracy_min, ..Request::new(TaskId(task), now + SLO) };
        model.on_request(now, request, &mut out);
    }
    model.on_grant(now, Grant { free_at: now, ..grant(0, Slowdown::NONE) }, &mut out);
    (out.tasks.len(), out.variant, out.ended.into_iter().map(|ended| ended.1).collect())
}

/// Twelve take 23.7 ms by the most accurate variant, and six take 3.4 ms by the cheapest.
#[test]
fn while_others_are_lost_those_that_ask_for_much_are_given_up() {
    let given_up = vec![DropReason::Window; 6];
    assert_eq!(after_a_loss(None, 80_160, false), (12, 5, vec![]));
    assert_eq!(after_a_loss(Some(1), 80_160, false), (6, 0, given_up.clone()));
    assert_eq!(after_a_loss(Some(36), 80_160, false), (6, 0, given_up), "within an objective");
    assert_eq!(after_a_loss(Some(37), 80_160, false), (12, 5, vec![]));
    assert_eq!(after_a_loss(Some(1), 80_160, true), (12, 5, vec![]), "what asks costs itself");
    // Twelve take 8.6 ms by the second variant: six in 3.4 ms are hardly more.
    assert_eq!(after_a_loss(Some(1), 76_690, false), (12, 1, vec![]));
}

/// Twelve tasks with one deadline, nine of which ask for what takes 8.1 ms for three of them. Where the other three stand among
/// them makes no difference: they are served, and the nine are not.
#[test]
fn those_that_ask_are_given_up_wherever_they_stand_in_the_window() {
    let asking = |rank: u64| if rank % 12 < 9 { 80_160 } else { 0 };
    for first in 0..12 {
        let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
        let hopeless = Request::new(TaskId(99), Nanos::from_micros(1_500));
        model.on_request(Nanos::ZERO, hopeless, &mut Sealed::default());
        let now = Nanos::from_millis(1);
        model.on_timer(now, &mut Sealed::default());
        let mut out = Sealed::default();
        for rank in 0..12 {
            let request = Request::new(TaskId(rank), now + Nanos::from_micros(8_200 + rank));
            let request = Request { accuracy_min: asking(first + rank), ..request };
            model.on_request(now, request, &mut out);
        }
        model.on_grant(now, Grant { free_at: now, ..grant(0, Slowdown::NONE) }, &mut out);
        let served: Vec<u32> = out.tasks.iter().map(|task| task.accuracy_min).collect();
        assert_eq!(served, [0; 3], "the first is {first}");
    }
}

/// Twelve tasks come, half of which ask, and find this slot.
fn ask_on(model: &mut ModelState, now: Nanos, grant: Grant) -> Sealed {
    let mut out = Sealed::default();
    for task in 0..12 {
        let accuracy_min = if task % 2 == 0 { 0 } else { 80_160 };
        let request = Request { accuracy_min, ..Request::new(TaskId(task), now + SLO) };
        model.on_request(now, request, &mut out);
    }
    model.on_grant(now, Grant { free_at: now, ..grant }, &mut out);
    out
}

#[test]
fn those_that_ask_for_much_are_given_up_for_other_models_that_lose_tasks() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let grant = grant(0, Slowdown::NONE);
    let out = ask_on(&mut model, Nanos::ZERO, grant);
    assert_eq!((out.tasks.len(), out.variant), (12, 5));
    let out = ask_on(&mut model, SLO, Grant { others_lose: true, ..grant });
    assert_eq!((out.tasks.len(), out.variant, out.ended.len()), (6, 0, 6));
}

#[test]
fn a_model_that_gave_up_what_asks_spends_what_there_is_to_spare() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let wanted = Grant { others_lose: true, ..grant(0, Slowdown::NONE) };
    assert_eq!(ask_on(&mut model, Nanos::ZERO, wanted).ended.len(), 6);
    let (now, mut out) = (Nanos::from_millis(150), Sealed::default());
    model.on_request(now, Request::new(TaskId(99), now + SLO), &mut out);
    model.on_grant(now, Grant { free_at: now, ..grant(8, Slowdown::NONE) }, &mut out);
    assert_eq!(out.variant, 5, "the model loses nothing by its own fault");
}
