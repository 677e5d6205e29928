//! Who is over its share, and what the queue may hold: ticks that pass by hand.

use super::*;

/// `ticks` in each of which frontend f asks `asked[f]` times, and `done` happens to all.
fn run(standings: &mut Standings, ticks: u64, asked: &[u64], done: Fate) {
    let mut fate = standings.seen;
    for _ in 0..ticks {
        standings.close_ticks(standings.tick_ends, fate);
        for (frontend, &tasks) in asked.iter().enumerate() {
            (0..tasks).for_each(|_| standings.on_task(FrontendId(frontend as u16)));
        }
        fate.dispatched += done.dispatched;
        fate.given_up += done.given_up;
    }
}

fn over(standings: &Standings) -> Vec<u16> {
    (0..8).filter(|&frontend| standings.is_over(FrontendId(frontend))).collect()
}

#[test]
fn whoever_asks_for_more_than_its_share_is_over_while_one_in_64_is_lost() {
    for (given_up, limited) in [(1, false), (3, true)] {
        let mut standings = Standings::new(Nanos::from_millis(30), 8);
        run(&mut standings, 100, &[20, 60, 90], Fate { dispatched: 127, given_up });
        assert_eq!(standings.room(64).is_some(), limited, "{given_up} of 128");
        assert_eq!(over(&standings), if limited { &[1, 2][..] } else { &[] });
    }
}

#[test]
fn a_frontend_that_leaves_takes_its_own_seat_only() {
    let mut standings = Standings::new(Nanos::from_millis(30), 8);
    let done = Fate { dispatched: 80, given_up: 20 };
    run(&mut standings, 100, &[20, 25, 50], done);
    assert_eq!(over(&standings), [2]);
    standings.forget(FrontendId(0));
    assert_eq!(over(&standings), [2]);
    run(&mut standings, 200, &[0, 90, 10], done);
    assert_eq!(over(&standings), [1]);
    assert_eq!(standings.seats.len(), 2);
    run(&mut standings, u64::from(SEATED) + 1, &[0, 90], done);
    assert_eq!(standings.seats.len(), 1, "who has not asked for long has no seat");
}

#[test]
fn a_newcomer_that_has_settled_counts_once() {
    let mut standings = Standings::new(Nanos::from_millis(30), 8);
    let done = Fate { dispatched: 120, given_up: 20 };
    run(&mut standings, 100, &[35, 400], done);
    for ticks in [15, 30, 60] {
        run(&mut standings, ticks, &[35, 400, 400], done);
        assert_eq!(over(&standings), [1, 2], "35 is less than a third of 120");
    }
}

#[test]
fn after_a_silence_nothing_of_a_rush_is_left() {
    let mut standings = Standings::new(Nanos::from_millis(30), 8);
    run(&mut standings, 50, &[35, 400], Fate { dispatched: 120, given_up: 20 });
    assert!(standings.room(64).is_some());
    let silence = |standings: &mut Standings, ticks| {
        let end = standings.tick_ends + standings.tick.times(ticks);
        standings.close_ticks(end, standings.seen);
    };
    silence(&mut standings, MEMORY);
    assert_eq!((standings.room(64), standings.seats.len()), (None, 2));
    assert_eq!((standings.served.sum, standings.lost.sum), (0, 0));
    assert!(standings.seats.iter().all(|seat| seat.demand.now() == 0));
    silence(&mut standings, u64::from(SEATED));
    silence(&mut standings, 0);
    assert_eq!(standings.seats.len(), 0, "who has not asked for long has no seat");
}

#[test]
fn water_is_level() {
    let of = |demands: &[u64], total| level(|| demands.iter().copied(), total);
    assert_eq!(of(&[10, 20, 30], 60), u64::MAX);
    assert_eq!(of(&[10, 20, 30], 50), 20);
    assert_eq!(of(&[90, 90, 5, 0], 65), 30);
}

fn rush() -> Standings {
    let mut standings = Standings::new(Nanos::from_millis(30), 8);
    let done = Fate { dispatched: 100, given_up: 50 };
    run(&mut standings, 4, &[50, 100], done);
    assert_eq!(standings.room(64), Some(56));
    standings
}

/// How many times as much as `before`.
fn grown(standings: &Standings, before: u64) -> f64 {
    standings.room as f64 / before as f64
}

#[test]
fn the_room_shrinks_by_what_is_given_up_of_what_was_let_in_and_grows_otherwise() {
    let (lossy, good) =
        (Fate { dispatched: 100, given_up: 50 }, Fate { dispatched: 100, given_up: 0 });
    let mut standings = rush();
    run(&mut standings, SETTLING - 4, &[50, 100], lossy);
    assert_eq!(standings.room(64), Some(56), "they had been let in before");
    run(&mut standings, 41, &[50, 100], good);
    assert!((1.02..1.08).contains(&grown(&standings, ROOM_FIRST)), "{}", standings.room);

    let before = standings.room;
    run(&mut standings, 8, &[50, 100], lossy);
    assert!((0.7..0.9).contains(&grown(&standings, before)), "{}", standings.room);
    run(&mut standings, 5, &[50, 100], good);
    let before = standings.room;
    run(&mut standings, 8, &[50, 100], good);
    assert!(grown(&standings, before) > 1.0, "what is past was judged");
}

#[test]
fn the_room_is_half_a_batch_at_least_and_four_at_most() {
    let mut standings = rush();
    run(&mut standings, 400, &[50, 100], Fate { dispatched: 100, given_up: 50 });
    assert_eq!(standings.room(64), Some(32));
    for _ in 0..1_500 {
        (0..100).for_each(|_| standings.on_refused());
        run(&mut standings, 2, &[50, 100], Fate { dispatched: 100, given_up: 0 });
    }
    assert_eq!(standings.room(64), Some(256));
}

#[test]
fn there_is_no_limit_any_more_once_next_to_nothing_is_lost() {
    let mut standings = rush();
    let all = Fate { dispatched: 150, given_up: 0 };
    run(&mut standings, 20, &[50, 100], all);
    assert!(standings.room(64).is_some(), "not yet");
    run(&mut standings, 280, &[50, 100], all);
    assert_eq!(standings.room(64), None);
}

/// It could come again at once, and its share is kept for it as long as it would be new.
#[test]
fn a_model_is_shared_for_a_while_after_the_other_has_left() {
    let mut standings = rush();
    let done = Fate { dispatched: 60, given_up: 20 };
    run(&mut standings, 60, &[50, 100], done);
    standings.forget(FrontendId(0));
    run(&mut standings, u64::from(NEWCOMER) - 2, &[0, 100], done);
    assert!(standings.room(64).is_some());
    run(&mut standings, 4, &[0, 100], done);
    assert_eq!(standings.room(64), None);
}

#[test]
fn whoever_goes_on_asking_keeps_its_seat() {
    let mut standings = rush();
    let seated = |standings: &Standings| -> Vec<(FrontendId, u32)> {
        standings.seats.iter().map(|seat| (seat.frontend, seat.since)).collect()
    };
    let before = seated(&standings);
    let done = Fate { dispatched: 100, given_up: 50 };
    run(&mut standings, 2 * u64::from(SEATED), &[50, 100], done);
    run(&mut standings, 2, &[], done);
    assert_eq!(seated(&standings), before);
}
