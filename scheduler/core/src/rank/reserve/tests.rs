use super::*;
use alloc::vec;
use alloc::vec::Vec;

const MS: u64 = 1_000_000;
const POISSON: Demand = Demand { slack: Nanos::ZERO, dispersion: 16, bad_rate: 0 };

/// Slots that do, for eight seconds, what is given as (slack in ms, busy slots).
fn loaded(slots: u32, loads: &[(u64, f64)]) -> Reserve {
    let demand = |slack_ms| Demand { slack: Nanos(slack_ms * MS), ..POISSON };
    let loads: Vec<(Demand, f64)> =
        loads.iter().map(|&(slack_ms, busy)| (demand(slack_ms), busy)).collect();
    asked(slots, &loads).0
}

/// The same for any demand, one model each, and what each model's share is. All batch well.
fn asked(slots: u32, loads: &[(Demand, f64)]) -> (Reserve, Vec<OwnWork>) {
    asked_in(slots, loads, 64)
}

/// The same in batches of this size.
fn asked_in(slots: u32, loads: &[(Demand, f64)], batch: u32) -> (Reserve, Vec<OwnWork>) {
    let (mut reserve, mut own) = (Reserve::new(), vec![OwnWork::default(); loads.len()]);
    for step in 0..8_000 {
        let now = Nanos(step * MS);
        reserve.refresh(now, slots);
        for ((demand, busy), own) in loads.iter().zip(&mut own) {
            let work = Nanos((busy * MS as f64) as u64);
            reserve.planned(demand, batch, work);
            own.planned(&mut reserve, demand, batch, (work, work));
        }
    }
    reserve.refresh(Nanos(8_000 * MS), slots);
    (reserve, own)
}

fn candidate(latency_ms: u64, slack_ms: u64, excess: u16) -> Candidate {
    let [exec_at, invalid_after, urgency, latest] = [Nanos(9 * MS); 4];
    let (latency, slack) = (Nanos(latency_ms * MS), Nanos(slack_ms * MS));
    let (batch, bad_rate, delay) = (1, 0, Nanos::ZERO);
    Candidate {
        batch,
        exec_at,
        invalid_after,
        urgency,
        bad_rate,
        delay,
        latest,
        latency,
        alone: latency,
        slack,
        dispersion: 16,
        excess,
        run: 0,
    }
}

/// Twice the cost of an efficient batch.
const TWICE: u16 = Candidate::EXCESS_ONE as u16;

#[test]
fn without_load_nothing_is_kept() {
    let reserve = loaded(8, &[]);
    assert_eq!(reserve.before_due(&candidate(50, 200, TWICE * 9)), Some(0));
    assert_eq!(reserve.before_due(&candidate(50, 200, Candidate::NOT_EARLY)), None);
}

#[test]
fn small_batches_leave_slots_to_larger_ones_as_load_grows() {
    // 10 slots; a batch that is twice as dear would need twice the load.
    let kept = |busy: f64| loaded(10, &[(100, busy)]).before_due(&candidate(5, 100, TWICE));
    assert_eq!([2.0, 3.4, 4.2, 6.6, 9.9].map(kept), [0, 0, 1, 7, 9].map(Some));
    let efficient = |busy: f64| loaded(10, &[(100, busy)]).before_due(&candidate(5, 100, 0));
    assert_eq!([6.0, 9.9].map(efficient), [0, 3].map(Some));
    let single = loaded(1, &[(100, 0.9)]).before_due(&candidate(5, 100, TWICE * 9));
    assert_eq!(single, Some(0), "one slot batches while it executes");
}

#[test]
fn losses_raise_how_much_the_demand_of_shorter_objectives_varies() {
    let raised = |bad_rate, dispersion| {
        let losing = Candidate { bad_rate, dispersion, ..candidate(5, 100, 0) };
        Demand::of(&losing).dispersion
    };
    assert_eq!([0, LOSING].map(|bad_rate| raised(bad_rate, 40)), [40, 40]);
    assert_eq!(raised(LOSING + 655, 40), 5 * 40, "four times for one per cent");
    assert_eq!(raised(1 << 16, 1024), u16::MAX);
}

#[test]
fn long_batches_leave_slots_to_shorter_objectives() {
    let reserve = loaded(20, &[(2, 4.0), (100, 1.0)]);
    // Mean 4, standard deviation 2.
    assert_eq!(reserve.when_due(&candidate(40, 100, 0)), 6);
    assert_eq!(reserve.when_due(&candidate(1, 100, 0)), 0, "it ends soon");
    assert_eq!(reserve.when_due(&candidate(40, 3, 0)), 0, "its own objective is short");
}

#[test]
fn a_little_load_keeps_two_slots_and_a_few_slots_are_not_all_kept() {
    let kept = |slots| loaded(slots, &[(2, 0.001)]).when_due(&candidate(400, 900, 0));
    assert_eq!([20, 5, 4, 3, 2, 1].map(kept), [2, 2, 2, 2, 1, 0]);
}

#[test]
fn where_slots_become_free_often_none_is_kept() {
    let kept = |slots| loaded(slots, &[(20, 1.0)]).when_due(&candidate(100, 900, 0));
    assert_eq!([20, 30, 60, 100].map(kept), [2, 2, 0, 0], "one in 100 ms / 60 · 8 = 13 ms");
}

#[test]
fn what_is_left_carries_the_rest() {
    // Mean 4 and two above it are wanted.
    let kept = |others| loaded(20, &[(2, 4.0), (100, others)]).when_due(&candidate(40, 100, 0));
    assert_eq!([9.9, 14.9, 15.5, 19.9].map(kept), [6, 6, 5, 1]);
}

#[test]
fn variable_demand_is_kept_more_before_a_batch_is_due() {
    let short = Demand { slack: Nanos(2 * MS), ..POISSON };
    let kept = |dispersion, bad_rate| {
        let (reserve, _) = asked(20, &[(Demand { dispersion, bad_rate, ..short }, 1.0)]);
        let long = candidate(40, 100, 0);
        (reserve.before_due(&long), reserve.when_due(&long))
    };
    assert_eq!(kept(16, 0), (Some(2), 2));
    assert_eq!(kept(64, 0), (Some(3), 2), "twice the standard deviation");
    assert_eq!(kept(16 * 400, 0), (Some(19), 2), "all but one");
    assert_eq!(kept(16, 164 + 328), (Some(10), 10), "eight for half a per cent");
    assert_eq!(kept(16, 6_550), (Some(19), 16), "at most");
}

#[test]
fn a_model_that_loses_more_than_shorter_objectives_leaves_them_nothing() {
    let short = Demand { slack: Nanos(2 * MS), ..POISSON };
    let kept = |theirs, bad_rate| {
        let (reserve, _) = asked(20, &[(Demand { bad_rate: theirs, ..short }, 1.0)]);
        reserve.when_due(&Candidate { bad_rate, ..candidate(40, 100, 0) })
    };
    assert_eq!([0, 160, 164, 165, 900].map(|own| kept(0, own)), [2, 2, 2, 0, 0]);
    assert_eq!([164, 295, 305, 900].map(|own| kept(300, own)), [5, 5, 0, 0]);
}

#[test]
fn a_task_that_is_lost_counts_however_short_its_execution_is() {
    let demand = |bad_rate| Demand { slack: Nanos(4 * MS), bad_rate, ..POISSON };
    let kept = |short, long| {
        // As many tasks each.
        let (reserve, _) = asked(40, &[(demand(short), 0.01), (demand(long), 0.99)]);
        reserve.when_due(&candidate(60, 900, 0))
    };
    assert_eq!(kept(0, 0), 2);
    assert_eq!([kept(1_310, 0), kept(0, 1_310)], [13, 13], "two per cent of half of the tasks");
}

#[test]
fn what_becomes_no_larger_leaves_slots_to_shorter_objectives_alone() {
    let complete = |latency_ms| candidate(latency_ms, 90, Candidate::COMPLETE);
    let reserve = loaded(8, &[(100, 7.9)]);
    assert_eq!((reserve.before_due(&complete(60)), reserve.when_due(&complete(60))), (Some(0), 0));
    let shorter = loaded(8, &[(4, 0.01)]);
    assert_eq!(
        [3, 60].map(|ms| shorter.when_due(&complete(ms))),
        [0, 2],
        "what cannot wait as long"
    );
}

#[test]
fn small_batches_wait_sooner_where_nothing_else_can() {
    // Ten slots; 10 − a = y √a at the load a up to which none is kept.
    let kept = |slack_ms, dispersion, busy| {
        let early = Candidate { dispersion, ..candidate(10, slack_ms, 0) };
        loaded(10, &[(slack_ms, busy)]).before_due(&early).unwrap()
    };
    assert_eq!([4.5, 7.4].map(|busy| kept(990, 16, busy)), [0, 0], "up to 7");
    assert_eq!([4.5, 7.4].map(|busy| kept(1, 16, busy)), [0, 3], "up to 5");
    assert_eq!([0.5, 4.5].map(|busy| kept(1, 640, busy)), [0, 9], "up to 0.5");
}

#[test]
fn a_run_that_may_need_more_slots_than_are_idle_gathers() {
    let in_run = |slack_ms| Candidate { run: 7, ..candidate(10, slack_ms, 0) };
    assert_eq!(loaded(20, &[]).before_due(&in_run(0)), Some(7));
    assert_eq!(loaded(20, &[]).before_due(&in_run(25)), Some(2), "they can take turns");
    assert_eq!(loaded(20, &[]).when_due(&in_run(0)), 0);
}

#[test]
fn models_compete_if_there_is_no_slot_for_each_of_their_batches() {
    let compete = |slots, busy: &[f64]| {
        let models: Vec<(Demand, f64)> = busy.iter().map(|&busy| (POISSON, busy)).collect();
        asked(slots, &models).0.models_compete()
    };
    assert!(!compete(8, &[0.9; 8]), "one batch each");
    assert!(compete(8, &[0.5; 9]), "nine models");
    assert!(!compete(6, &[2.4, 3.6]), "two of one and three of the other, and a bit");
    assert!(compete(6, &[2.6, 3.9]), "three and four");
    assert!(compete(1, &[0.5]), "the model's own batches have the only slot");
}

#[test]
fn a_model_that_has_gone_competes_no_more() {
    let (mut reserve, mut own) = asked(2, &[(POISSON, 0.1); 3]);
    assert!(reserve.models_compete());
    own[0].leave(&mut reserve);
    assert!(!reserve.models_compete());
    own[0].leave(&mut reserve);
    own[0].planned(&mut reserve, &POISSON, 64, (Nanos(MS), Nanos(MS)));
    assert!(reserve.models_compete(), "another has its number");
}

#[test]
fn models_that_do_not_batch_compete_sooner() {
    let compete =
        |slots, batch| asked_in(slots, &[(POISSON, 0.6), (POISSON, 0.7)], batch).0.models_compete();
    assert!(compete(2, 1), "tasks of one model may have both slots");
    assert!(!compete(2, 4), "batches of four follow each other");
    assert!(!compete(4, 1), "two slots for each");
}

#[test]
fn the_others_are_counted_by_what_they_ask_for() {
    let others = |slots, own: f64, other: f64| {
        let (reserve, mut works) = asked(slots, &[(POISSON, own), (POISSON, other)]);
        works[0].others(&reserve) as f64 / PARTS as f64
    };
    assert!((others(9, 0.5, 4.0) - 8.0).abs() < 0.1, "{}", others(9, 0.5, 4.0));
    assert!((others(9, 4.0, 1.0) - 0.25).abs() < 0.02, "{}", others(9, 4.0, 1.0));
    assert!((others(1, 0.4, 0.2) - 1.5).abs() < 0.02, "and itself: {}", others(1, 0.4, 0.2));
}

#[test]
fn what_can_wait_needs_fewer_slots_beside_its_mean() {
    let needed_in_32nds = |slack_ms, dispersion| {
        let other = Demand { slack: Nanos(slack_ms * MS), dispersion, bad_rate: 0 };
        let (reserve, mut works) = asked(40, &[(POISSON, 1.0), (other, 4.0)]);
        works[0].needed_by_others(&reserve)
    };
    let needed = |slack_ms, dispersion| needed_in_32nds(slack_ms, dispersion).div_ceil(32);
    // Each batch takes 4 ms. Two standard deviations above 4, and less as tasks can wait.
    assert_eq!([0, 4, 12, 60, 4_000].map(|slack_ms| needed(slack_ms, 16)), [8, 7, 6, 5, 4]);
    assert_eq!([0, 12].map(|slack_ms| needed(slack_ms, 64)), [12, 8], "twice the deviation");
    assert_eq!(needed_in_32nds(4_000, 16), 124, "as measured, less than four slots");
}

#[test]
fn on_a_single_slot_batches_are_no_longer_than_shorter_objectives_can_wait() {
    let ms = |ms| Nanos(ms * MS);
    let longest = |slots, loads: &[(u64, f64)]| loaded(slots, loads).longest(ms(100));
    let quarter_octave = |found: Nanos, slack| found <= slack && found.0 > slack.0 / 5 * 4;
    assert!(quarter_octave(longest(1, &[(7, 0.1), (100, 0.2)]), ms(7)));
    assert_eq!(longest(2, &[(7, 0.1), (100, 0.2)]), Nanos::MAX, "one of two is kept");
    assert_eq!(longest(1, &[(100, 0.2), (60, 0.2)]), Nanos::MAX, "not much shorter");
    assert_eq!(longest(1, &[(7, 0.001), (100, 0.2)]), Nanos::MAX, "not worth mentioning");
    assert!(quarter_octave(longest(1, &[(3, 0.001), (7, 0.1), (100, 0.2)]), ms(7)));
    // Tasks that cannot wait at all are of the shortest class.
    let of_none = longest(1, &[(0, 0.1), (100, 0.2)]);
    assert!(of_none < Nanos(MS / 100), "{of_none:?}");
    assert_eq!(loaded(1, &[(7, 0.1)]).longest(Nanos::ZERO), Nanos::MAX, "who keeps nothing");
}

#[test]
fn what_falls_silent_is_forgotten() {
    let mut reserve = loaded(8, &[(2, 3.0)]);
    let long = candidate(400, 900, 0);
    assert!(reserve.when_due(&long) > 3);
    assert!(!reserve.refresh(reserve.faded_at, 8), "no tick has passed");
    assert!(reserve.refresh(Nanos(60_000 * MS), 8));
    assert_eq!((reserve.when_due(&long), reserve.load), (0, 0));
}

#[test]
fn classes_of_length_are_a_quarter_of_an_octave_wide() {
    let lengths = [0, 1, 4_095, 4_096, 5_119, 5_120, 8_191, 8_192, u64::MAX];
    assert_eq!(lengths.map(|ns| class_of(Nanos(ns))), [0, 0, 0, 0, 0, 1, 3, 4, 95]);
}

#[test]
fn the_shortest_length_of_a_class_is_in_it() {
    for class in 0..CLASSES {
        let shortest = length_of(class);
        assert_eq!((class_of(shortest), shortest.0 % 1024), (class, 0));
        assert!(class == 0 || class_of(shortest - Nanos(1)) == class - 1);
    }
}

/// By their tasks: one that is lost beside 64 that are not.
#[test]
fn a_bad_rate_is_that_of_tasks_not_of_batches() {
    let mut work = Work::default();
    work.add(&POISSON, 64, MS);
    work.add(&Demand { bad_rate: 1 << 16, ..POISSON }, 1, MS);
    assert_eq!(work.bad_rate(), (1 << 16) / 65);
}

/// Two models whose tasks can wait as long execute small batches, which take twice what efficient ones would.
#[test]
fn what_others_can_wait_is_that_of_the_own_class_if_another_model_is_of_it() {
    let demand = Demand { slack: Nanos(20 * MS), ..POISSON };
    let (mut reserve, mut own) = (Reserve::new(), [OwnWork::default(); 2]);
    for step in 0..2_000 {
        reserve.refresh(Nanos(step * MS), 2);
        for own in &mut own {
            let (work, latency) = (Nanos(MS / 4), Nanos(MS / 2));
            reserve.planned(&demand, 1, work);
            own.planned(&mut reserve, &demand, 1, (work, latency));
        }
    }
    reserve.refresh(Nanos(2_000 * MS), 2);
    let half = Nanos(length_of(class_of(demand.slack)).0 / 2);
    assert_eq!(own.map(|own| reserve.others_can_wait(&own, demand.slack)), [half; 2]);
}
