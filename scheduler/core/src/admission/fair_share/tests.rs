//! Who is over its share, and what the queue may hold: ticks that pass by hand.

use super::queue_limit::FACTOR_FIRST;
use super::*;

/// `ticks` in each of which frontend f asks `asked[f]` times, and `done` happens to all.
fn run(fair_share: &mut FairShare, ticks: u64, asked: &[u64], done: TaskCounts) {
    let mut counts = fair_share.seen;
    for _ in 0..ticks {
        fair_share.close_ticks(fair_share.tick_ends, counts);
        for (frontend, &tasks) in asked.iter().enumerate() {
            (0..tasks).for_each(|_| fair_share.on_task(FrontendId(frontend as u16)));
        }
        fair_share.set_room(64);
        fair_share.on_dispatch(Nanos::ZERO, Nanos::ZERO);
        counts.dispatched += done.dispatched;
        counts.given_up += done.given_up;
    }
}

fn over(fair_share: &FairShare) -> Vec<u16> {
    (0..8).filter(|&frontend| fair_share.is_over(FrontendId(frontend))).collect()
}

#[test]
fn a_frontend_that_asks_for_more_than_its_share_is_over_while_one_in_64_is_lost() {
    for (given_up, limited) in [(1, false), (3, true)] {
        let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
        run(&mut fair_share, 100, &[20, 60, 90], TaskCounts { dispatched: 127, given_up });
        assert_eq!(fair_share.queue_limit().is_some(), limited, "{given_up} of 128");
        assert_eq!(over(&fair_share), if limited { &[1, 2][..] } else { &[] });
    }
}

#[test]
fn a_frontend_that_asks_for_exactly_its_share_is_not_over() {
    let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
    run(&mut fair_share, 100, &[20, 60, 90], TaskCounts { dispatched: 127, given_up: 3 });
    assert_eq!(over(&fair_share), [1, 2]);
    fair_share.fair_level = Some(fair_share.tenants[1].demand.now());
    assert_eq!(over(&fair_share), [2]);
}

#[test]
fn a_frontend_that_leaves_takes_only_itself_away() {
    let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
    let done = TaskCounts { dispatched: 80, given_up: 20 };
    run(&mut fair_share, 100, &[20, 25, 50], done);
    assert_eq!(over(&fair_share), [2]);
    fair_share.forget(FrontendId(0));
    assert_eq!(over(&fair_share), [2]);
    run(&mut fair_share, 200, &[0, 90, 10], done);
    assert_eq!(over(&fair_share), [1]);
    assert_eq!(fair_share.tenants.len(), 2);
    run(&mut fair_share, u64::from(REMEMBERED) + 1, &[0, 90], done);
    assert_eq!(fair_share.tenants.len(), 1, "who has not asked for long is forgotten");
}

#[test]
fn a_newcomer_that_has_settled_counts_once() {
    let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
    let done = TaskCounts { dispatched: 120, given_up: 20 };
    run(&mut fair_share, 100, &[35, 400], done);
    for ticks in [15, 30, 60] {
        run(&mut fair_share, ticks, &[35, 400, 400], done);
        assert_eq!(over(&fair_share), [1, 2], "35 is less than a third of 120");
    }
}

#[test]
fn after_a_silence_nothing_of_a_rush_is_left() {
    let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
    run(&mut fair_share, 50, &[35, 400], TaskCounts { dispatched: 120, given_up: 20 });
    assert!(fair_share.queue_limit().is_some());
    let silence = |fair_share: &mut FairShare, ticks| {
        let end = fair_share.tick_ends + fair_share.tick.times(ticks);
        fair_share.close_ticks(end, fair_share.seen);
    };
    let mut shorter = fair_share.clone();
    let before = u64::from(fair_share.ticks);
    silence(&mut shorter, MEMORY - 1);
    assert_eq!(u64::from(shorter.ticks), before + MEMORY);
    assert!(shorter.served.sum > 0 && shorter.tenants[1].demand.now() > 0, "it fades");
    silence(&mut fair_share, MEMORY);
    assert_eq!(u64::from(fair_share.ticks), before + MEMORY + 1, "each tick counts");
    assert_eq!((fair_share.queue_limit(), fair_share.tenants.len()), (None, 2));
    assert_eq!((fair_share.served.sum, fair_share.lost.sum), (0, 0));
    assert!(fair_share.tenants.iter().all(|tenant| tenant.demand.now() == 0));
    silence(&mut fair_share, u64::from(REMEMBERED));
    silence(&mut fair_share, 0);
    assert_eq!(fair_share.tenants.len(), 0, "who has not asked for long is forgotten");
}

#[test]
fn water_is_level() {
    let of = |demands: &[u64], total| fair_level(|| demands.iter().copied(), total);
    assert_eq!(of(&[10, 20, 30], 60), u64::MAX);
    assert_eq!(of(&[10, 20, 30], 50), 20);
    assert_eq!(of(&[90, 90, 5, 0], 65), 30);
}

fn rush() -> FairShare {
    let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
    let done = TaskCounts { dispatched: 100, given_up: 50 };
    run(&mut fair_share, 4, &[50, 100], done);
    assert_eq!(fair_share.queue_limit(), Some(56));
    fair_share
}

/// How many times as much as `before`.
fn grown(fair_share: &FairShare, before: u64) -> f64 {
    fair_share.queue_limit.factor as f64 / before as f64
}

#[test]
fn the_room_shrinks_by_what_is_given_up_of_what_was_let_in_and_grows_otherwise() {
    let (lossy, good) =
        (TaskCounts { dispatched: 100, given_up: 50 }, TaskCounts { dispatched: 100, given_up: 0 });
    let mut fair_share = rush();
    run(&mut fair_share, SETTLING - 4, &[50, 100], lossy);
    assert_eq!(fair_share.queue_limit(), Some(56), "they had been let in before");
    run(&mut fair_share, 41, &[50, 100], good);
    assert!(
        (1.02..1.08).contains(&grown(&fair_share, FACTOR_FIRST)),
        "{}",
        fair_share.queue_limit.factor
    );

    let before = fair_share.queue_limit.factor;
    run(&mut fair_share, 8, &[50, 100], lossy);
    assert!((0.7..0.9).contains(&grown(&fair_share, before)), "{}", fair_share.queue_limit.factor);
    run(&mut fair_share, 5, &[50, 100], good);
    let before = fair_share.queue_limit.factor;
    run(&mut fair_share, 8, &[50, 100], good);
    assert!(grown(&fair_share, before) > 1.0, "what is past was adjusted");
}

#[test]
fn the_room_is_half_a_batch_at_least_and_four_at_most() {
    let mut fair_share = rush();
    run(&mut fair_share, 400, &[50, 100], TaskCounts { dispatched: 100, given_up: 50 });
    assert_eq!(fair_share.queue_limit(), Some(32));
    for _ in 0..1_500 {
        (0..100).for_each(|_| fair_share.on_refused());
        run(&mut fair_share, 2, &[50, 100], TaskCounts { dispatched: 100, given_up: 0 });
    }
    assert_eq!(fair_share.queue_limit(), Some(256));
}

#[test]
fn there_is_no_limit_any_more_once_next_to_nothing_is_lost() {
    let mut fair_share = rush();
    let all = TaskCounts { dispatched: 150, given_up: 0 };
    run(&mut fair_share, 20, &[50, 100], all);
    assert!(fair_share.queue_limit().is_some(), "not yet");
    run(&mut fair_share, 280, &[50, 100], all);
    assert_eq!(fair_share.queue_limit(), None);
}

/// The limit begins anew with what it measures, but not with what made it necessary.
#[test]
fn a_tick_without_a_loss_does_not_end_a_limit_that_has_just_begun() {
    let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
    let (lossy, good) =
        (TaskCounts { dispatched: 30, given_up: 120 }, TaskCounts { dispatched: 90, given_up: 0 });
    let begun = (2..10).find(|&ticks| {
        fair_share = FairShare::new(Nanos::from_millis(30), 8);
        run(&mut fair_share, ticks, &[50, 100], lossy);
        fair_share.queue_limit().is_some()
    });
    assert!(begun.is_some(), "most are lost");
    run(&mut fair_share, 2, &[50, 100], good);
    assert!(fair_share.queue_limit().is_some());
}

/// It could come again at once, and its share is kept for it as long as it would be new.
#[test]
fn a_model_is_shared_for_a_while_after_the_other_has_left() {
    let mut fair_share = rush();
    let done = TaskCounts { dispatched: 60, given_up: 20 };
    run(&mut fair_share, 60, &[50, 100], done);
    fair_share.forget(FrontendId(0));
    run(&mut fair_share, u64::from(JOINED_RECENTLY) - 2, &[0, 100], done);
    assert!(fair_share.queue_limit().is_some());
    run(&mut fair_share, 4, &[0, 100], done);
    assert_eq!(fair_share.queue_limit(), None);
}

#[test]
fn a_frontend_that_goes_on_asking_stays_a_tenant() {
    let mut fair_share = rush();
    let tenants = |fair_share: &FairShare| -> Vec<(FrontendId, u32)> {
        fair_share.tenants.iter().map(|tenant| (tenant.frontend, tenant.since)).collect()
    };
    let before = tenants(&fair_share);
    let done = TaskCounts { dispatched: 100, given_up: 50 };
    run(&mut fair_share, 2 * u64::from(REMEMBERED), &[50, 100], done);
    run(&mut fair_share, 2, &[], done);
    assert_eq!(tenants(&fair_share), before);
}

#[test]
fn what_was_let_in_before_the_limit_does_not_shorten_it() {
    let factor_at = |age| {
        let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
        fair_share.age = age;
        fair_share.seen = TaskCounts { dispatched: 64, given_up: 64 };
        fair_share.adjust_queue_limit();
        fair_share.queue_limit.factor
    };
    assert_eq!(factor_at(SETTLING - 1), FACTOR_FIRST);
    assert!(factor_at(SETTLING) < FACTOR_FIRST, "those that are given up now came after it");
}

#[test]
fn few_losses_are_no_reason_for_a_limit_however_few_tasks_there_are() {
    for (given_up, limited) in [(7, false), (8, true)] {
        let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
        run(&mut fair_share, 100, &[4, 8], TaskCounts { dispatched: 10, given_up: 0 });
        run(&mut fair_share, 2, &[4, 8], TaskCounts { dispatched: 10, given_up });
        assert_eq!(fair_share.queue_limit().is_some(), limited, "{given_up} lost");
    }
}

#[test]
fn a_frontend_that_pauses_for_hundreds_of_ticks_stays_a_tenant() {
    let mut fair_share = rush();
    run(
        &mut fair_share,
        u64::from(REMEMBERED) - 10,
        &[0, 150],
        TaskCounts { dispatched: 100, given_up: 50 },
    );
    assert_eq!(fair_share.tenants.len(), 2);
}

#[test]
fn to_forget_a_frontend_that_never_asked_changes_nothing() {
    let mut fair_share = rush();
    [5, 99].into_iter().for_each(|frontend| fair_share.forget(FrontendId(frontend)));
    assert_eq!(fair_share.tenants.len(), 2);
}

/// A frontend that floods a model is over its share at once, not when the tick is over.
#[test]
fn what_is_asked_for_in_this_tick_counts() {
    let mut fair_share = rush();
    fair_share.fair_level = Some(fair_share.tenants[0].demand.now() + 10 * SCALE);
    for asked in 1..=11 {
        fair_share.on_task(FrontendId(0));
        assert_eq!(fair_share.is_over(FrontendId(0)), asked > 10, "{asked} more");
    }
}

#[test]
fn a_tick_is_half_an_objective_within_bounds() {
    let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
    for (slo_ms, tick_ms) in [(30, 25), (200, 100), (2_000, 500)] {
        assert_eq!(tick(Nanos::from_millis(slo_ms)), Nanos::from_millis(tick_ms));
        fair_share.set_objective(Nanos::from_millis(slo_ms));
        assert_eq!(fair_share.tick, Nanos::from_millis(tick_ms), "another objective");
    }
}

#[test]
fn demand_is_looked_at_every_eighth_tick() {
    for (ticks, looked) in [(CALM_TICKS - 1, false), (CALM_TICKS, true)] {
        let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
        (fair_share.ticks, fair_share.served.sum) = (ticks, 100 * SCALE);
        assert_eq!(fair_share.is_calm(), looked);
    }
}

/// 1.5 slots count as two, so that 10 ms more for each batch are 5 ms more between two.
#[test]
fn turns_get_longer_by_the_difference_over_the_slots() {
    let gap = |gap, latency| Turns { gap: Nanos(gap), latency: Nanos(latency) };
    for (turns, expected) in [(gap(10, 15), 15), (gap(10, 14), 20), (gap(10, 3), 20)] {
        let longer = turns.latency + Nanos(10);
        assert_eq!(turns.gap_at(longer), Nanos(expected), "{turns:?}");
    }
}

/// Of what was served, an eighth less: seven tasks in eight ticks are as much, and six are less.
#[test]
fn a_model_is_calm_while_clearly_less_is_asked_for_than_was_served() {
    let calm = |asked| {
        let mut fair_share = FairShare::new(Nanos::from_millis(30), 8);
        (fair_share.ticks, fair_share.served.sum) = (8, 8 * SCALE * MEMORY / 8);
        fair_share.asked = asked;
        fair_share.is_calm()
    };
    assert_eq!([6, 7, 8].map(calm), [true, false, false]);
}

/// Tasks are still being lost when so little is asked for: those that came before.
#[test]
fn there_is_no_limit_from_the_moment_on_at_which_a_model_is_calm() {
    let mut fair_share = rush();
    let mut tick = || {
        run(&mut fair_share, 1, &[1, 1], TaskCounts { dispatched: 100, given_up: 50 });
        (fair_share.lost.sum == 0, fair_share.queue_limit().is_none())
    };
    let before = (0..2 * CALM_TICKS).map(|_| tick()).find(|&(is_forgotten, _)| is_forgotten);
    assert_eq!(before, Some((true, true)), "what was lost is forgotten with the limit");
}
