//! RankState by itself: messages that cross on their way, and who wins a tie. Models and backends
//! are played by hand; times are milliseconds.
mod world;

use baton_core::{
    Candidate, Gpu, GpuId, GpuUpdate, Grant, ModelId, Nanos, RankLimits, RankSink, RankState,
    SlotPart, Slowdown, SubclusterId,
};
use world::ms;

const GPU: Gpu = Gpu { id: GpuId(0), life: 1 };
const HERE: SubclusterId = SubclusterId(0);

#[derive(Default)]
struct Out {
    grants: Vec<(u32, Grant)>,
    drained: Vec<Gpu>,
}

impl RankSink for Out {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.grants.push((model.0, grant));
    }
    fn drained(&mut self, gpu: Gpu) {
        self.drained.push(gpu);
    }
}

/// Three models, one slot, joined at 0.
fn one_slot() -> (RankState, Out) {
    let mut out = Out::default();
    let mut rank = RankState::new(RankLimits { gpus: 2, subclusters: 1, copies: 0 }, &[HERE; 3]);
    rank.on_gpu_join(ms(0.0), GPU, HERE, &mut out);
    (rank, out)
}

/// One task that may start from `exec_at` on and must by `urgency` + 1.
fn candidate(exec_at: f64, urgency: f64) -> Option<Candidate> {
    Some(Candidate {
        batch: 1,
        exec_at: ms(exec_at),
        invalid_after: ms(urgency + 1.0),
        urgency: ms(urgency),
        bad_rate: 0,
        delay: Nanos::ZERO,
        latest: ms(urgency),
        latency: ms(5.0),
        alone: ms(5.0),
        slack: Nanos::ZERO,
        dispersion: 16,
        excess: Candidate::NOT_EARLY,
        run: 0,
    })
}

fn planned(start: f64, latency: f64) -> GpuUpdate {
    GpuUpdate::Planned {
        gpu: GPU,
        start: ms(start),
        latency: ms(latency),
        work: ms(latency),
        fetched_at: None,
    }
}

fn finished(at: f64) -> GpuUpdate {
    GpuUpdate::Finished { gpu: GPU, at: ms(at), pace: None, fetched_at: None }
}

/// Grants the slot to model 0 for a batch from `at` on that takes `latency`.
fn occupied(at: f64, latency: f64) -> (RankState, Out) {
    let (mut rank, mut out) = one_slot();
    rank.on_candidate(ms(at), ModelId(0), candidate(at, 50.0), 0, &mut out);
    rank.on_gpu(ms(at), planned(at, latency), &mut out);
    assert_eq!(std::mem::take(&mut out.grants).len(), 1);
    (rank, out)
}

#[test]
fn of_what_arrives_together_the_most_urgent_is_served() {
    let (mut rank, mut out) = occupied(0.0, 10.0);
    rank.note_gpu(ms(8.0), finished(8.0), &mut out);
    rank.note_candidate(ms(8.0), ModelId(1), candidate(8.0, 40.0), 0);
    rank.note_candidate(ms(8.0), ModelId(2), candidate(8.0, 30.0), 0);
    assert!(out.grants.is_empty(), "noted only");
    assert_eq!(rank.next_timer(), Some(ms(0.0)), "there is something to decide");
    rank.on_timer(ms(8.0), &mut out);
    assert_eq!(out.grants.iter().map(|grant| grant.0).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_candidate_from_before_a_grant_is_ignored() {
    let (mut rank, mut out) = occupied(0.0, 10.0);
    // Computed before model 0 saw the grant: the tasks in it are in the batch already.
    rank.on_candidate(ms(1.0), ModelId(0), candidate(1.0, 50.0), 0, &mut out);
    rank.on_timer(ms(20.0), &mut out);
    assert_eq!((rank.counters().superseded, out.grants.len()), (1, 0));
    rank.on_candidate(ms(20.0), ModelId(0), candidate(20.0, 50.0), 1, &mut out);
    assert_eq!(out.grants.len(), 1, "one that has seen the grant counts");
    assert_eq!((rank.counters().superseded, rank.counters().candidates), (1, 2));
}

#[test]
fn a_withdrawn_candidate_gets_no_slot() {
    let (mut rank, mut out) = one_slot();
    rank.on_candidate(ms(0.0), ModelId(0), candidate(5.0, 50.0), 0, &mut out);
    assert_eq!(rank.next_timer(), Some(ms(5.0)));
    rank.on_candidate(ms(1.0), ModelId(0), None, 0, &mut out);
    assert_eq!(rank.next_timer(), None);
    rank.on_timer(ms(9.0), &mut out);
    assert_eq!(out.grants, []);
}

#[test]
fn what_falls_due_as_a_slot_frees_does_not_overtake_the_more_urgent() {
    let (mut rank, mut out) = occupied(0.0, 10.0);
    rank.on_candidate(ms(1.0), ModelId(1), candidate(1.0, 11.0), 0, &mut out); // ready since 1
    rank.on_candidate(ms(1.0), ModelId(2), candidate(10.0, 12.0), 0, &mut out); // due at 10
    rank.on_timer(ms(10.0), &mut out);
    assert_eq!(out.grants.iter().map(|g| g.0).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_late_look_at_the_clock_grants_by_urgency_not_by_timer() {
    let (mut rank, mut out) = one_slot();
    rank.on_candidate(ms(0.0), ModelId(1), candidate(2.0, 30.0), 0, &mut out);
    rank.on_candidate(ms(0.0), ModelId(2), candidate(3.0, 20.0), 0, &mut out);
    rank.on_timer(ms(4.0), &mut out);
    assert_eq!(out.grants.iter().map(|g| g.0).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_candidate_whose_window_has_closed_makes_room_for_the_next() {
    let (mut rank, mut out) = occupied(0.0, 10.0);
    rank.on_candidate(ms(1.0), ModelId(1), candidate(1.0, 5.0), 0, &mut out);
    rank.on_candidate(ms(1.0), ModelId(2), candidate(1.0, 20.0), 0, &mut out);
    rank.on_timer(ms(10.0), &mut out);
    assert_eq!(out.grants.iter().map(|g| g.0).collect::<Vec<_>>(), [2]);
    assert_eq!(rank.counters().expired, 1);
}

/// The slot's first batch was planned for 0 to 10. It is granted again at 10, and the report of the
/// end arrives before the answer to that grant: a plan from 10 to 15.
fn free_after_report_crossing_a_grant(ended_at: f64) -> Option<Nanos> {
    let (mut rank, mut out) = occupied(0.0, 10.0);
    rank.on_candidate(ms(1.0), ModelId(1), candidate(1.0, 30.0), 0, &mut out);
    rank.on_timer(ms(10.0), &mut out);
    assert_eq!(out.grants.len(), 1);
    rank.on_gpu(ms(13.0), finished(ended_at), &mut out);
    rank.on_gpu(ms(13.0), planned(10.0, 5.0), &mut out);
    rank.on_candidate(ms(13.0), ModelId(2), candidate(13.0, 30.0), 0, &mut out);
    rank.next_timer()
}

#[test]
fn a_late_end_reported_during_a_grant_is_not_forgotten() {
    assert_eq!(free_after_report_crossing_a_grant(12.0), Some(ms(17.0)));
}

#[test]
fn an_early_end_reported_during_a_grant_does_not_start_the_next_batch_early() {
    assert_eq!(free_after_report_crossing_a_grant(9.0), Some(ms(15.0)));
}

#[test]
fn a_slot_given_back_serves_the_next_model_at_once() {
    let (mut rank, mut out) = one_slot();
    rank.on_candidate(ms(0.0), ModelId(0), candidate(0.0, 50.0), 0, &mut out);
    rank.on_candidate(ms(0.0), ModelId(1), candidate(0.0, 60.0), 0, &mut out);
    rank.on_gpu(ms(0.0), GpuUpdate::Returned { gpu: GPU }, &mut out);
    assert_eq!(out.grants.iter().map(|g| g.0).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_slot_that_drains_during_a_grant_says_so_after_that_batch() {
    let (mut rank, mut out) = one_slot();
    rank.on_candidate(ms(0.0), ModelId(0), candidate(0.0, 50.0), 0, &mut out);
    rank.on_gpu_drain(GPU, &mut out);
    rank.on_gpu(ms(0.0), planned(0.0, 5.0), &mut out);
    assert_eq!((out.drained.len(), rank.gpus_present(HERE)), (0, 0));
    rank.on_gpu(ms(5.0), finished(5.0), &mut out);
    rank.on_gpu_drain(GPU, &mut out);
    assert_eq!(out.drained, [GPU], "once");
    rank.on_gpu_leave(GPU);
    assert_eq!(rank.gpus_present(HERE), 0);
}

#[test]
fn a_slot_that_joins_again_without_having_left_is_counted_once() {
    let (mut rank, mut out) = occupied(0.0, 1_000.0);
    let next = Gpu { life: 2, ..GPU };
    rank.on_gpu_join(ms(1.0), next, HERE, &mut out);
    assert_eq!(rank.gpus_present(HERE), 1);
    rank.on_candidate(ms(1.0), ModelId(1), candidate(1.0, 50.0), 0, &mut out);
    let (slot_wait, longest) = (Nanos::ZERO, Nanos::MAX);
    assert_eq!(
        out.grants,
        [(
            1,
            Grant {
                gpu: next,
                free_at: ms(1.0),
                port_wait: Nanos::ZERO,
                slowdown: Slowdown::NONE,
                slot_wait,
                longest,
                // Model 0 may need the only one.
                spare: 0,
                part: SlotPart::NONE,
                is_short_of_slots: true,
                others_lose: false,
            }
        )]
    );
    rank.on_gpu(ms(2.0), finished(2.0), &mut out); // of the earlier life
    rank.on_gpu_leave(GPU);
    assert_eq!(rank.gpus_present(HERE), 1);
}

/// One that may start before it is due, if more than `run` slots are idle.
fn early(exec_at: f64, urgency: f64, run: u16) -> Option<Candidate> {
    candidate(exec_at, urgency).map(|due| Candidate { excess: 0, run, ..due })
}

#[test]
fn who_may_start_early_does_not_take_the_last_slot_from_who_must_start_before_it_ends() {
    // Model 1 waits for others of its run until 30, and must start by 31. A batch of model 2 takes 5.
    let granted = |at: f64, slots: u32, delay: f64| {
        let (mut rank, mut out) = one_slot();
        if slots == 2 {
            rank.on_gpu_join(ms(0.0), Gpu { id: GpuId(1), life: 1 }, HERE, &mut out);
        }
        rank.on_candidate(ms(0.0), ModelId(1), early(30.0, 30.0, 9), 0, &mut out);
        assert_eq!(out.grants, []);
        let next = early(90.0, 90.0, 0).map(|next| Candidate { delay: ms(delay), ..next });
        rank.on_candidate(ms(at), ModelId(2), next, 0, &mut out);
        out.grants.iter().map(|grant| grant.0).collect::<Vec<_>>()
    };
    assert_eq!(granted(26.0, 1, 0.0), [2], "it ends at 31");
    assert_eq!(granted(27.0, 1, 0.0), [1], "instead");
    assert_eq!(granted(27.0, 2, 0.0), [2], "one is left to it");
    assert_eq!([25.0, 25.5].map(|at| granted(at, 1, 1.0)), [[2], [1]], "its inputs take 1");
}

#[test]
fn what_may_start_early_is_looked_at_as_soon_as_it_or_a_slot_is_noted() {
    // Model 0's batch, planned at 16, has just refreshed what is kept: the next tick is far away.
    let (mut rank, mut out) = one_slot();
    rank.on_candidate(ms(0.0), ModelId(0), early(90.0, 90.0, 0), 0, &mut out);
    rank.on_gpu(ms(16.0), planned(16.0, 2.0), &mut out);
    rank.note_candidate(ms(17.0), ModelId(1), early(90.0, 90.0, 0), 0);
    assert!(rank.next_timer() > Some(ms(17.0)), "the slot executes");
    rank.note_gpu(ms(18.0), finished(18.0), &mut out);
    assert_eq!(rank.next_timer(), Some(ms(0.0)), "a slot has become idle");
    rank.on_timer(ms(18.0), &mut out);
    rank.on_gpu(ms(18.0), planned(18.0, 2.0), &mut out);
    rank.on_gpu(ms(20.0), finished(20.0), &mut out);
    assert_eq!((out.grants.len(), rank.next_timer()), (2, None), "nothing waits");
    rank.note_candidate(ms(21.0), ModelId(2), early(90.0, 90.0, 0), 0);
    assert_eq!(rank.next_timer(), Some(ms(0.0)), "a candidate has come");
    rank.on_timer(ms(21.0), &mut out);
    assert_eq!((out.grants.len(), rank.next_timer()), (3, None));
}

#[test]
fn a_removed_model_gets_no_grant_and_its_number_counts_on() {
    let (mut rank, mut out) = occupied(0.0, 10.0);
    rank.on_candidate(ms(1.0), ModelId(0), candidate(1.0, 50.0), 1, &mut out); // ready
    rank.on_candidate(ms(1.0), ModelId(1), candidate(5.0, 60.0), 0, &mut out); // waits
    assert_eq!([ModelId(0), ModelId(1)].map(|model| rank.forget(model)), [1, 0]);
    rank.on_gpu(ms(10.0), finished(10.0), &mut out);
    rank.on_timer(ms(10.0), &mut out);
    assert_eq!((out.grants.len(), rank.next_timer()), (0, None));
    rank.serve(ModelId(0), HERE);
    // What the model before had on its way is of no grant that this one has seen.
    rank.on_candidate(ms(11.0), ModelId(0), candidate(11.0, 50.0), 0, &mut out);
    assert_eq!((out.grants.len(), rank.counters().superseded), (0, 1));
    rank.on_candidate(ms(11.0), ModelId(0), candidate(11.0, 50.0), 1, &mut out);
    assert_eq!(out.grants.len(), 1, "the next model's counts");
}

#[test]
fn weights_on_a_slot_of_another_subcluster_are_no_copy() {
    let (now, gpu) = (Nanos::ZERO, Gpu { id: GpuId(0), life: 0 });
    for (subcluster, is_copy) in [(HERE, true), (SubclusterId(1), false)] {
        let limits = RankLimits { gpus: 1, subclusters: 2, copies: 1 };
        // The number was another sub-cluster's.
        let mut rank = RankState::new(limits, &[SubclusterId(1)]);
        rank.serve_where_resident(ModelId(0), HERE);
        rank.on_gpu_join(now, gpu, subcluster, &mut Out::default());
        assert_eq!(rank.on_resident(now, ModelId(0), gpu, &mut Out::default()), is_copy);
        assert_eq!(rank.may_run(ModelId(0), gpu), is_copy);
    }
}
