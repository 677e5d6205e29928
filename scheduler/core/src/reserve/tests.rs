use super::*;

const MS: u64 = 1_000_000;

/// Slots that do, for eight seconds, what is given as (slack in ms, busy slots).
fn loaded(slots: u32, loads: &[(u64, f64)]) -> Reserve {
    let mut reserve = Reserve::new();
    for step in 0..8_000 {
        let now = Nanos(step * MS);
        reserve.refresh(now, slots);
        for &(slack_ms, busy) in loads {
            reserve.planned(Nanos(slack_ms * MS), Nanos((busy * MS as f64) as u64));
        }
    }
    reserve.refresh(Nanos(8_000 * MS), slots);
    reserve
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
        slack,
        excess,
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
    assert_eq!([2.0, 3.4, 4.2, 6.6, 9.9].map(kept), [0, 0, 1, 7, 10].map(Some));
    let efficient = |busy: f64| loaded(10, &[(100, busy)]).before_due(&candidate(5, 100, 0));
    assert_eq!([6.0, 9.9].map(efficient), [0, 3].map(Some));
}

#[test]
fn long_batches_leave_slots_to_shorter_objectives() {
    let reserve = loaded(20, &[(2, 4.0), (100, 1.0)]);
    // Mean 4, standard deviation 2: ten.
    assert_eq!(reserve.for_shorter(&candidate(40, 100, 0)), 10);
    assert_eq!(reserve.for_shorter(&candidate(1, 100, 0)), 0, "it ends soon");
    assert_eq!(reserve.for_shorter(&candidate(40, 3, 0)), 0, "its own objective is short");
}

#[test]
fn a_little_load_keeps_three_and_a_few_slots_are_not_all_kept() {
    let kept = |slots| loaded(slots, &[(2, 0.001)]).for_shorter(&candidate(400, 900, 0));
    assert_eq!([20, 5, 4, 3, 2, 1].map(kept), [3, 3, 3, 2, 1, 0]);
}

#[test]
fn where_slots_become_free_often_none_is_kept() {
    let kept = |slots| loaded(slots, &[(20, 1.0)]).for_shorter(&candidate(100, 900, 0));
    assert_eq!([20, 30, 60, 100].map(kept), [4, 4, 0, 0], "one in 100 ms / 60 · 8 = 13 ms");
}

#[test]
fn what_falls_silent_is_forgotten() {
    let mut reserve = loaded(8, &[(2, 3.0)]);
    let long = candidate(400, 900, 0);
    assert!(reserve.for_shorter(&long) > 3);
    assert!(!reserve.refresh(reserve.faded_at, 8), "no tick has passed");
    assert!(reserve.refresh(Nanos(60_000 * MS), 8));
    assert_eq!((reserve.for_shorter(&long), reserve.load), (0, 0));
}

#[test]
fn lengths_are_told_apart_by_a_quarter_of_an_octave() {
    let lengths = [0, 1, 4_095, 4_096, 5_119, 5_120, 8_191, 8_192, u64::MAX];
    assert_eq!(lengths.map(|ns| class_of(Nanos(ns))), [0, 0, 0, 0, 0, 1, 3, 4, 95]);
}
