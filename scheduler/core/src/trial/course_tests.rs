use super::*;

const SECOND: Nanos = Nanos::from_millis(1_000);

fn at(seconds: u64) -> Nanos {
    SECOND.times(seconds)
}

fn better(least: Alternative) -> Verdict {
    let none = Verdict { least, is_calm: false, ..calm(500) };
    Verdict { lost: 9, lost_least: 1, is_better: true, ..none }
}

fn calm(tasks: u64) -> Verdict {
    Verdict {
        tasks,
        span: SECOND,
        lost: 0,
        least: Alternative::Own,
        lost_least: 0,
        is_better: false,
        is_calm: true,
        is_sooner: false,
    }
}

/// Of models for which GPU time is spared while nothing is lost.
fn trials(models: usize) -> Trials {
    Trials::new(models, Prefer::FewestGpus)
}

fn record(look: Option<Look>) -> Option<Enough> {
    look.map(|look| match look {
        Look::Record(enough) => enough,
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_trial_is_due_once_a_model_has_lost_a_few_tasks_within_ten_seconds() {
    let mut trials = trials(2);
    let mut look = |second: u64, second_model| {
        trials.look(at(second), [(9_000, 0), second_model].into_iter(), false).is_some()
    };
    assert!(!look(10, (400, 0)), "nothing is lost");
    assert!(!look(11, (500, 2)), "two tasks are no sign");
    assert!(look(12, (600, 3)), "rare losses count together");
    assert!(!look(20, (3_000, 5)), "five of 2,600 are 0.2 %");
    assert!(!look(21, (3_100, 7)), "and another span");
    assert!(!look(22, (4_600, 9)), "four of 1,600 of this span are one in 400");
    assert!(look(23, (4_599, 9)));
    assert_eq!(Trials::LOOK_EVERY.times(16), SECOND, "it is looked often enough for crowds");
}

/// Of rare tasks no model loses a few in ten seconds.
#[test]
fn a_trial_is_due_once_all_models_together_have_lost_a_few_tasks() {
    let mut trials = trials(3);
    let mut look = |second: u64, lost: [u64; 3], came| {
        trials.look(at(second), lost.map(|lost| (came, lost)).into_iter(), false).is_some()
    };
    assert!(!look(1, [1, 0, 1], 100), "two tasks are no sign");
    assert!(look(2, [1, 1, 1], 110));
    assert!(look(3, [1, 1, 1], 399));
    assert!(!look(4, [1, 1, 1], 400), "three of 1,200 are one in 400");
}

/// A minute, until 512 have come.
#[test]
fn losses_of_few_tasks_are_counted_for_longer() {
    let after = |second: u64, came: u64| {
        let mut trials = trials(1);
        for (second, count) in [(1, (0, 0)), (9, (came, 2)), (second, (came, 2))] {
            assert_eq!(trials.look(at(second), [count].into_iter(), false), None);
        }
        trials.look(at(second + 1), [(came + 9, 3)].into_iter(), false).is_some()
    };
    assert_eq!([58, 60].map(|second| after(second, 511)), [true, false]);
    assert_eq!([8, 10].map(|second| after(second.max(9), 512)), [true, false]);
    let mut trials = trials(1);
    let counts = [(10, (9_000, 0)), (25, (9_100, 2)), (40, (9_200, 3))];
    let due =
        counts.map(|(second, count)| trials.look(at(second), [count].into_iter(), false).is_some());
    assert_eq!(due, [false, false, true], "what came before the span makes it no shorter");
}

#[test]
fn where_tasks_are_lost_what_came_in_the_last_minute_counts() {
    let since = |second, lost| {
        let mut trials = Trials::new(1, Prefer::FewestGpus);
        trials.look(at(7), [(100, 0)].into_iter(), false);
        trials.rules = Alternative::Fill;
        let look = trials.look(at(second), [(200, lost)].into_iter(), false);
        record(look).expect("other rules are followed").since
    };
    assert_eq!(since(20, 9), at(7), "of what came before the first look not all is known");
    assert_eq!(since(90, 9), at(30));
    assert_eq!(since(90, 0), at(90), "what was recorded for the last trial would speak twice");
}

#[test]
fn a_model_that_has_been_replaced_counts_from_nothing() {
    let mut trials = trials(1);
    let counts = [(9_000, 9), (100, 0), (200, 11), (300, 12)];
    let due = (10..)
        .zip(counts)
        .map(|(second, count)| trials.look(at(second), [count].into_iter(), false).is_some());
    assert_eq!(due.collect::<Vec<_>>(), [false, false, false, true]);
}

#[test]
fn trials_that_change_nothing_become_rare_and_large() {
    let mut trials = trials(1);
    let (mut due, mut recorded) = (Vec::new(), Vec::new());
    for look in 1..900 {
        let counts = [(100 * look, 10 * look)].into_iter();
        if let Some(enough) = record(trials.look(Trials::LOOK_EVERY.times(look), counts, false)) {
            due.push(look);
            recorded.push(enough.tasks);
            assert_eq!(trials.conclude(Trials::LOOK_EVERY.times(look), None), None);
        }
    }
    assert_eq!(due, [1, 3, 7, 15, 31, 63, 127, 255, 511, 767], "sixteen seconds in the end");
    assert_eq!(recorded[..4], [2_048, 4_096, 8_192, 16_384]);
    assert_eq!(recorded[4..], [16_384; 6]);
}

#[test]
fn trials_are_quick_while_tasks_are_being_lost() {
    let mut trials = trials(1);
    let mut lasts = |second: u64, lost| {
        record(trials.look(at(second), [(1_000, lost)].into_iter(), false))
            .map(|enough| enough.lasts)
    };
    assert_eq!([lasts(1, 0), lasts(2, 3)], [None, Some(Trials::LOOK_EVERY)]);
    trials.conclude(at(3), Some(&better(Alternative::Fill)));
    let enough = record(trials.look(at(4), [(2_000, 3)].into_iter(), false));
    let enough = enough.expect("the own rules may do again");
    assert_eq!(enough.lasts, SECOND, "bursts should be among what comes");
}

#[test]
fn better_rules_are_followed_until_the_own_ones_would_do() {
    let mut trials = trials(1);
    let frontrun = Alternative::Frontrun;
    assert_eq!(trials.conclude(at(1), Some(&better(frontrun))), Some(frontrun));
    assert_eq!(trials.rules(), frontrun);
    assert_eq!(trials.conclude(at(2), Some(&better(frontrun))), None, "it is followed already");
    let due = record(trials.look(at(60), [(9, 0)].into_iter(), false));
    let due = due.expect("nothing is lost, but it may do without");
    assert_eq!(due.tasks, 8_192, "a third trial, whatever the first two found");
    assert_eq!(trials.conclude(at(61), Some(&calm(600))), None);
    assert_eq!(trials.conclude(at(62), Some(&better(Alternative::Part))), Some(Alternative::Part));
    let calms = [600, 5, 5, 5].map(calm);
    let ends = calms.map(|verdict| trials.conclude(at(63), Some(&verdict)));
    assert_eq!(ends, [None; 4], "what was calm before has been forgotten");
    assert_eq!(trials.conclude(at(64), Some(&calm(100))), Some(Alternative::Own));
    assert_eq!(trials.rules(), Alternative::Own);
    assert_eq!(trials.conclude(at(65), Some(&calm(5_000))), None);
}

#[test]
fn a_recording_that_is_not_calm_ends_the_row_of_those_that_are() {
    let mut trials = trials(1);
    let mut verdict =
        |verdict: Verdict| trials.conclude(at(60), Some(&verdict)).map(|_| trials.rules());
    assert!(verdict(better(Alternative::Fill)).is_some());
    let lossy = Verdict { is_calm: false, ..calm(600) };
    let ends = [calm(600), lossy, calm(600)].map(&mut verdict);
    assert_eq!(ends, [None; 3]);
    assert_eq!(verdict(calm(400)), Some(Alternative::Own));
}

#[test]
fn what_was_lost_under_the_former_rules_is_no_reason_for_another_trial() {
    let mut trials = trials(1);
    let look = |trials: &mut Trials, ms, lost| {
        let now = Nanos::from_millis(ms);
        trials.look(now, [(ms, lost)].into_iter(), false).is_some()
    };
    assert!(look(&mut trials, 20_000, 900));
    trials.conclude(at(21), Some(&better(Alternative::Fill)));
    assert!(look(&mut trials, 22_000, 990));
    trials.conclude(at(23), Some(&calm(1_000)));
    assert_eq!(trials.rules(), Alternative::Own);
    assert!(!look(&mut trials, 23_050, 990), "it is too early for another one");
    assert!(!look(&mut trials, 23_100, 990));
}

fn sooner(tasks: u64) -> Verdict {
    Verdict { is_sooner: true, ..calm(tasks) }
}

/// One whose batches begin at once since the second second.
fn followed() -> Trials {
    let mut trials = Trials::new(1, Prefer::Latency);
    for (second, tasks, follows) in [(1, 3_000, None), (2, 1_096, Some(Alternative::AtOnce))] {
        let look = trials.look(at(second), [(9_000, 2)].into_iter(), false);
        assert_eq!(look, Some(Look::Record(Sooner::enough(at(second)))));
        assert_eq!(trials.conclude(at(second), Some(&sooner(tasks))), follows);
    }
    trials
}

#[test]
fn batches_begin_at_once_after_four_thousand_tasks_of_which_none_would_be_lost() {
    let mut trials = followed();
    assert_eq!(trials.rules(), Alternative::AtOnce);
    assert!(trials.look(at(3), [(9_500, 2)].into_iter(), false).is_some(), "it may not stay so");
    assert_eq!(trials.conclude(at(3), Some(&sooner(2_000))), None, "they are followed already");
    assert!(trials.look(at(4), [(9_900, 2)].into_iter(), false).is_some());
    assert_eq!(trials.conclude(at(4), Some(&calm(2_000))), Some(Alternative::Own));
}

#[test]
fn nothing_begins_at_once_where_gpu_time_is_spared() {
    let mut trials = trials(1);
    assert_eq!(trials.look(at(60), [(9_000, 0)].into_iter(), false), None);
}

#[test]
fn the_own_rules_come_back_without_a_trial_where_tasks_are_lost_that_would_not_have_waited() {
    let mut trials = followed();
    trials.look(at(3), [(9_400, 2)].into_iter(), false);
    assert_eq!(trials.conclude(at(3), Some(&sooner(2_000))), None);
    let look = trials.look(at(4), [(9_500, 5)].into_iter(), false);
    assert_eq!(look, Some(Look::Follow(Alternative::Own)));
    assert_eq!(trials.rules(), Alternative::Own);
    assert_eq!(trials.look(at(4), [(9_600, 5)].into_iter(), false), None, "what was lost is over");
}

/// What was recorded to serve tasks sooner has none of the size and the pause of what is recorded because they are lost.
#[test]
fn a_trial_that_only_asks_for_speed_does_not_delay_one_of_losses() {
    let mut trials = Trials::new(1, Prefer::Latency);
    for second in 1..105 {
        if trials.look(at(second), [(90 * second, 0)].into_iter(), false).is_some() {
            assert_eq!(trials.conclude(at(second), Some(&calm(2_000))), None);
        }
    }
    let enough = record(trials.look(at(105), [(9_450, 90)].into_iter(), false));
    assert_eq!(enough.map(|enough| (enough.tasks, enough.lasts)), Some((RECORDED, SHORTEST)));
    assert!(trials.conclude(at(106), Some(&better(Alternative::AtOnce))).is_some());
    trials.look(at(107), [(9_800, 90)].into_iter(), false);
    let look = trials.look(at(108), [(9_900, 99)].into_iter(), false);
    assert!(record(look).is_some(), "these rules serve tasks that were lost: a trial decides");
}

#[test]
fn nothing_is_recorded_where_nothing_comes() {
    let mut trials = Trials::new(1, Prefer::Latency);
    let mut look = |second: u64, came| trials.look(at(second), [(came, 0)].into_iter(), false);
    assert_eq!(look(1, 0), None);
    assert!(look(2, 7).is_some());
    assert!(look(61, 7).is_some(), "they came in the span that ends");
    assert_eq!([look(62, 7), look(90, 7)], [None; 2]);
}

#[test]
fn what_is_recorded_to_serve_tasks_sooner_is_not_in_the_way_of_a_trial_of_losses() {
    let mut trials = Trials::new(1, Prefer::Latency);
    let mut look =
        |second, lost, is_trying| trials.look(at(second), [(9_000, lost)].into_iter(), is_trying);
    assert_eq!(look(1, 0, false), Some(Look::Record(Sooner::enough(at(1)))));
    assert_eq!(look(2, 40, true), Some(Look::Discard));
    assert_eq!(look(3, 40, true), None, "once is enough");
    let since = at(1);
    let losses = Enough { tasks: RECORDED, most: RECORDED_MAX, lasts: SHORTEST, since };
    assert_eq!(look(4, 40, false), Some(Look::Record(losses)));
}

/// A recording that lasts does not hide what batches that begin at once lose.
#[test]
fn the_own_rules_come_back_while_arrivals_are_recorded() {
    let mut trials = followed();
    assert!(trials.look(at(3), [(9_400, 2)].into_iter(), false).is_some());
    let look = trials.look(at(4), [(9_500, 5)].into_iter(), true);
    assert_eq!(look, Some(Look::Follow(Alternative::Own)));
    assert_eq!(trials.conclude(at(4), Some(&sooner(9_000))), None, "of before the losses");
    assert_eq!(trials.rules(), Alternative::Own);
}

#[test]
fn the_own_rules_come_back_before_a_crowd_has_lost_a_task() {
    let mut trials = followed();
    let mut look = |ms, came| trials.look(Nanos::from_millis(ms), [(came, 2)].into_iter(), true);
    assert_eq!(look(2_063, 9_100), None);
    assert_eq!(look(2_125, 9_500), Some(Look::Follow(Alternative::Own)));
    assert_eq!(trials.rules(), Alternative::Own);
}

#[test]
fn one_task_that_is_lost_is_enough_for_the_own_rules_to_come_back() {
    let mut trials = followed();
    let mut look =
        |ms, came, lost| trials.look(Nanos::from_millis(ms), [(came, lost)].into_iter(), true);
    assert_eq!(look(3_000, 9_100, 2), None);
    assert_eq!(look(6_000, 13_196, 3), None, "one in 4,096");
    assert_eq!(look(9_000, 17_291, 4), Some(Look::Follow(Alternative::Own)));
}

#[test]
fn nothing_is_recorded_to_serve_tasks_sooner_while_some_are_lost() {
    let mut trials = Trials::new(1, Prefer::Latency);
    let mut look =
        |second, came, lost| trials.look(at(second), [(came, lost)].into_iter(), false).is_some();
    assert!(!look(1, 4_095, 1));
    assert!(look(2, 4_096, 1));
}
