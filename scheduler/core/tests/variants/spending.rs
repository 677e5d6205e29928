//! Whether a model has slots to spend on accuracy, and what it is if it has none.

use super::*;
use baton_core::Alternative;

/// How the model's next batch waits after a grant that said this, with the traffic known: until when, and its claim to slots.
fn next_after(model: &mut ModelState, is_short_of_slots: bool, from: Nanos) -> (Nanos, u16) {
    let spare = u32::from(!is_short_of_slots);
    next_after_grants(model, Grant { is_short_of_slots, ..grant(spare, Slowdown::NONE) }, from)
}

fn next_after_grants(model: &mut ModelState, grant: Grant, from: Nanos) -> (Nanos, u16) {
    let mut out = Sealed::default();
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

/// One task in ten comes too late for any variant, for as long as the traffic is looked at.
#[test]
fn a_model_that_loses_tasks_is_one_without_variants_until_it_loses_none() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let us = Nanos::from_micros;
    let mut offer = |from_ms: u64, until_ms: u64, loses: bool| {
        let mut out = Sealed::default();
        for now in (from_ms..until_ms).map(Nanos::from_millis) {
            let budget = if loses && now.0 / 1_000_000 % 10 == 0 { us(1_500) } else { SLO };
            model.on_request(now, Request::new(TaskId(now.0), now + budget), &mut out);
            if budget != SLO {
                model.on_timer(now + us(200), &mut out);
            }
            let at = now + us(300);
            model.on_grant(at, Grant { free_at: at, ..grant(8, Slowdown::NONE) }, &mut out);
        }
        let now = Nanos::from_millis(until_ms);
        model.on_request(now, Request::new(TaskId(now.0), now + SLO), &mut out);
        let is_spending = model.candidate().unwrap().excess == Candidate::WITHIN_SPARE;
        model.on_grant(now, Grant { free_at: now, ..grant(8, Slowdown::NONE) }, &mut out);
        (out.variant, is_spending)
    };
    assert_eq!(offer(0, 1_000, false), (5, true));
    assert_eq!(offer(1_001, 1_500, true), (0, false));
    assert_eq!(offer(1_501, 6_000, false), (0, false), "what was lost in five seconds counts");
    assert_eq!(offer(6_001, 7_000, false), (5, true));
}

/// It would miss its own variant's start while it waits for the others' batch.
#[test]
fn what_asks_for_accuracy_waits_for_no_others() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    assert!(next_after(&mut model, true, Nanos::ZERO).0 > Nanos::ZERO, "others wait");
    let now = Nanos::from_millis(1_001);
    let request = Request { accuracy_min: 80_160, ..Request::new(TaskId(1), now + SLO) };
    model.on_request(now, request, &mut Sealed::default());
    assert!(model.candidate().unwrap().due() <= now);
}

#[test]
fn under_rules_that_a_trial_found_no_slot_is_to_spare() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    assert_eq!(seal(&model, &ms_slack(36, 4), 8, Slowdown::NONE).variant, 5);
    model.set_rules(Alternative::KeepHeads.rules());
    assert_eq!(seal(&model, &ms_slack(36, 4), 8, Slowdown::NONE).variant, 0);
    model.set_rules(Alternative::Own.rules());
    assert_eq!(seal(&model, &ms_slack(36, 4), 8, Slowdown::NONE).variant, 5);
}

#[test]
fn rules_that_a_trial_found_hold_where_no_slot_is_to_spare() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    model.set_rules(Alternative::AtOnce.rules());
    assert_eq!(next_after(&mut model, true, Nanos::ZERO).0, Nanos::ZERO);
    model.set_rules(Alternative::Own.rules());
    assert!(next_after(&mut model, true, Nanos::from_millis(1_000)).0 > Nanos::ZERO);
}

/// A turn on a slot that others need.
fn turn(in_32nds: u32, longest_us: u64) -> Grant {
    let part = SlotPart::new(in_32nds, Nanos::from_micros(longest_us));
    Grant { part, is_short_of_slots: false, ..grant(0, Slowdown::NONE) }
}

#[test]
fn a_turn_on_a_shared_slot_is_no_longer_than_others_can_wait() {
    let model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    let seal = |tasks: u64, grant: Grant| {
        let (mut model, mut out) = (model.clone(), Sealed::default());
        for task in 0..tasks {
            model.on_request(Nanos::ZERO, Request::new(TaskId(task), SLO), &mut out);
        }
        model.on_grant(Nanos::ZERO, grant, &mut out);
        (out.tasks.len(), out.variant)
    };
    // Four take 2.6, 3.7, 4.5, 5.6, 7.6 and 9.8 ms.
    assert_eq!(seal(4, turn(16, 40_000)), (4, 5));
    assert_eq!(seal(4, turn(16, 5_600)), (4, 2), "at most 5.24 ms, as the length is told");
    assert_eq!(seal(4, turn(0, 40_000)), (4, 0));
    // With a sixteenth of a slot, those behind these sixteen start after sixteen times as long.
    assert!(seal(20, turn(31, 40_000)).1 > 0);
    assert_eq!(seal(20, turn(2, 40_000)), (16, 0));
}

#[test]
fn a_turn_too_short_for_the_second_variant_is_no_slot_to_spare() {
    let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
    // Alone the second variant takes 1.9 ms.
    let (wait, _) = next_after_grants(&mut model, turn(16, 1_500), Nanos::ZERO);
    assert!(wait > Nanos::ZERO, "it waits for more tasks");
    let from = Nanos::from_millis(1_000);
    let (wait, excess) = next_after_grants(&mut model, turn(16, 2_400), from);
    assert_eq!((wait, excess), (Nanos::ZERO, Candidate::WITHIN_SPARE));
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

/// 36 tasks wait, and the first can share a batch with one more. At 500 tasks/s on one slot single tasks keep up, and no head is
/// given up for a larger batch; at 2,000 batches of ten do.
#[test]
fn heads_are_given_up_for_no_larger_batch_than_keeps_up_with_the_traffic() {
    let seal_behind = |gap_us: u64, spare: u32| {
        let mut model = model(Policy::Baton, &variants(&P0, 16), Choice::QueueFit);
        let second = Nanos::from_millis(1_000);
        evenly(&mut model, Nanos::from_micros(gap_us), spare, second);
        let mut out = Sealed::default();
        for task in 0..36 {
            let deadline = second + if task == 0 { Nanos::from_micros(1_900) } else { SLO };
            model.on_request(second, Request::new(TaskId(task), deadline), &mut out);
        }
        let grant = Grant { free_at: second, ..grant(spare, Slowdown::NONE) };
        model.on_grant(second, grant, &mut out);
        (out.tasks.len(), out.ended.len())
    };
    assert_eq!(seal_behind(2_000, 1), (1, 0), "alone, with the variant after the cheapest");
    assert_eq!(seal_behind(500, 1), (16, 1));
    assert_eq!(seal_behind(500, 4), (1, 0), "four slots keep up with single tasks");
    assert_eq!(seal_behind(2_000, 0), (16, 1), "no slot is to spare");
}
