use super::*;
use crate::{BatchShape, ModelId, ModelState, NetworkDelay, Policy, Prefer, Profile, SplitMix64};
use alloc::vec;

const US: Nanos = Nanos(1_000);

fn model(id: u32, (alpha_us, beta_us): (u64, u64), slo_us: u64) -> Replica {
    let config = ModelConfig {
        id: ModelId(id),
        profile: Profile::linear(US.times(alpha_us), US.times(beta_us), 64).unwrap(),
        slo: US.times(slo_us),
        queue_capacity: 1_024,
        policy: Policy::Baton,
        prefer: Prefer::Latency,
        network: NetworkDelay::default(),
    };
    Replica::exact(config)
}

impl Replica {
    /// Of a model without variants whose batches take as long as planned.
    pub(super) fn exact(config: ModelConfig) -> Self {
        let patience = Patience::new(&config.profile);
        let margins = vec![Nanos::ZERO; config.profile.batch_max() as usize].into();
        Self { config, patience, margins, has_variants: false }
    }
}

/// Poisson arrivals of as many models as there are `budgets_us`.
fn arrivals(count: usize, gap_us: f64, budgets_us: &[u64]) -> Vec<Recorded> {
    let mut random = SplitMix64::new(11);
    let mut unit = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut at = 0.0;
    let arrival = |_| {
        at -= gap_us * (1.0 - unit()).ln();
        let model = (unit() * budgets_us.len() as f64) as usize;
        let budget = US.times(budgets_us[model]);
        Recorded { at: Nanos((at * 1e3) as u64), model: ModelId(model as u32), budget }
    };
    (0..count).map(arrival).collect()
}

/// For one model.
fn evenly(gap_us: u64, budget_us: u64) -> Vec<Recorded> {
    let [gap, budget] = [gap_us, budget_us].map(|us| US.times(us));
    (0..500).map(|i| Recorded { at: gap.times(i), model: ModelId(0), budget }).collect()
}

/// Recorded by one ModelThread until the last of them had come.
fn record(arrivals: Vec<Recorded>) -> Record {
    let until = arrivals.last().map_or(US.times(1_000_000), |last| last.at + Nanos(1));
    Record { arrivals, from: Nanos::ZERO, until }
}

fn usual(slots: u32) -> Vec<Slowdown> {
    vec![Slowdown::NONE; slots as usize]
}

fn trial(models: &[Replica], slots: u32, arrivals: Vec<Recorded>) -> Trial {
    Trial::new(models.to_vec(), usual(slots), vec![record(arrivals)])
}

fn verdict(trial: &Trial, present: Alternative) -> Verdict {
    trial.verdict(present).expect("there are slots, and time passes")
}

/// Two slots, batches of which one takes more than half of the objective: who starts a lone task at once has no slot for
/// those that come while it executes.
#[test]
fn deferral_to_the_last_moment_is_found_where_it_pays() {
    let models = [model(0, (457, 3_163), 5_751)];
    let trial = trial(&models, 2, arrivals(4_000, 3_450.0, &[5_751]));
    let found = verdict(&trial, Alternative::Own);
    assert!(found.is_better && !found.is_calm, "{found:?}");
    assert!(matches!(found.least, Alternative::Part | Alternative::Frontrun), "{found:?}");
    assert!(found.lost_least * 5 < found.lost * 4, "{found:?}");
    let again = verdict(&trial, found.least);
    assert!(!again.is_better && again.lost == found.lost_least, "{again:?}");
}

/// Twenty-seven models on thirty-one slots: batches that start at once are small, and once tasks wait everywhere they stay
/// small. From an idle start the own rules lose as little as any.
#[test]
fn rules_that_do_not_come_out_of_an_overload_are_not_taken_for_good_ones() {
    let models: Vec<_> = (0..27).map(|id| model(id, (898, 11_430), 18_470)).collect();
    let trial = trial(&models, 31, arrivals(3_200, 312.0, &[18_470; 27]));
    let found = verdict(&trial, Alternative::Own);
    assert!(found.is_better && found.lost > 3 * found.lost_least, "{found:?}");
}

/// Five slots serve pairs but not single tasks, and a head that has waited has no room for another.
#[test]
fn heads_that_had_to_wait_are_given_up_where_only_pairs_can_be_served() {
    let pairs = trial(&[model(0, (4_577, 7_483), 19_430)], 5, evenly(2_040, 19_430));
    let found = verdict(&pairs, Alternative::Own);
    assert!(found.is_better && found.lost > 50 && found.lost_least == 0, "{found:?}");
}

/// Planned are 10 ms and tasks come every 7 ms: it depends on when batches really end whether one slot is enough.
#[test]
fn batches_end_earlier_than_planned_by_the_margin() {
    let mut alone = model(0, (10_000, 0), 18_000);
    alone.config.profile = Profile::from_table(&[US.times(10_000)]).unwrap();
    let lost = |margin_us| {
        let model = Replica { margins: [US.times(margin_us)].into(), ..alone.clone() };
        trial(&[model], 1, evenly(7_000, 18_000)).lost(Alternative::Own)[0].lost
    };
    assert_eq!(lost(4_000), 0);
    assert!(lost(0) > 100);
}

/// One slot is enough for half of the tasks, and the other takes longer than they can wait.
#[test]
fn a_slow_slot_is_as_slow_in_the_copy() {
    let mut alone = model(0, (10_000, 0), 18_000);
    alone.config.profile = Profile::from_table(&[US.times(10_000)]).unwrap();
    let lost = |factor: u64| {
        let slots = vec![Slowdown::NONE, Slowdown::from_256ths(256 * factor)];
        let trial = Trial::new(vec![alone.clone()], slots, vec![record(evenly(5_000, 18_000))]);
        trial.lost(Alternative::AtOnce)[0].lost
    };
    assert!(lost(1) <= 1);
    assert!((200..=300).contains(&lost(3)), "{}", lost(3));
}

/// No task has the time. The first one comes at the very beginning of each replay.
#[test]
fn each_task_that_is_lost_counts_once() {
    let arrivals = arrivals(300, 3_000.0, &[500, 500]);
    let first = arrivals[0].at;
    let from_zero = |task: &Recorded| Recorded { at: task.at - first, ..*task };
    let arrivals = arrivals.iter().map(from_zero).collect();
    let models = [model(0, (100, 900), 18_000), model(1, (100, 900), 18_000)];
    let lost = trial(&models, 1, arrivals).lost(Alternative::Own);
    assert!(lost.iter().all(|model| model.lost == model.tasks), "{lost:?}");
}

/// ℓ(2) saves a little too little, as given, for a lone task to wait for a second one. With the margin it would save enough.
#[test]
fn a_replica_waits_as_the_model_does() {
    let config = model(0, (900, 50), 20_000).config;
    let mut original = ModelState::new(config.clone());
    let late = |batch| config.profile.latency(batch) + US.times(300);
    for _ in 0..50 {
        original.on_measured(BatchShape::of(1), late(1), Slowdown::NONE);
        original.on_measured(BatchShape::of(1), config.profile.latency(1), Slowdown::NONE);
    }
    let replica = original.replica();
    assert!(original.latency().margin() > US.times(100), "{:?}", original.latency());
    assert_eq!(replica.margins[0], original.latency().margin_of(1));
    assert_eq!(replica.config.profile.latency(1), original.latency().of(1));
    let content = |profile: &Profile| Patience::new(profile).content();
    assert_eq!(replica.patience.content(), content(&config.profile));
    assert_ne!(content(&replica.config.profile), content(&config.profile));
}

#[test]
fn the_own_rules_do_where_slots_are_to_spare() {
    let models = [model(0, (457, 3_163), 20_000), model(1, (100, 500), 9_000)];
    let trial = trial(&models, 4, arrivals(2_000, 4_000.0, &[20_000, 9_000]));
    let found = verdict(&trial, Alternative::Frontrun);
    assert!(found.is_calm && !found.is_better, "{found:?}");
    assert_eq!((found.lost, found.lost_least), (0, 0));
}

/// Under every alternative each task ends, and what cannot be served is lost.
#[test]
fn everything_is_lost_that_comes_too_late_and_nothing_else() {
    let models = [model(0, (100, 900), 10_000)];
    let mut arrivals = arrivals(900, 20_000.0, &[10_000]);
    arrivals.iter_mut().step_by(3).for_each(|task| task.budget = US.times(900));
    let trial = trial(&models, 3, arrivals);
    for rules in Alternative::ALL {
        let lost = trial.lost(rules)[0];
        assert_eq!((lost.tasks, lost.lost), (900, 300), "{rules:?}");
    }
}

/// Bursts of eight on two slots, 40 ms apart.
fn bursts(count: usize) -> Vec<Recorded> {
    let mut arrivals = arrivals(count, 1.0, &[5_751]);
    let burst = |i: usize| US.times(i as u64 / 8 * 40_000 + i as u64 % 8 * 600);
    arrivals.iter_mut().enumerate().for_each(|(i, task)| task.at = burst(i));
    arrivals
}

#[test]
fn little_is_concluded_from_few_tasks_and_nothing_from_none() {
    let models = [model(0, (457, 3_163), 5_751)];
    for (count, is_better) in [(0, false), (63, false), (64, true)] {
        let found = verdict(&trial(&models, 2, bursts(count)), Alternative::Own);
        assert_eq!((found.is_better, found.is_calm), (is_better, count == 0), "{found:?}");
    }
    assert_eq!(trial(&models, 0, bursts(64)).verdict(Alternative::Own), None);
}

/// A client may send all at once, and a ModelThread read it in one pass.
#[test]
fn nothing_is_concluded_from_what_came_at_one_moment() {
    let models = [model(0, (457, 3_163), 5_751)];
    let mut arrivals = arrivals(2_048, 1.0, &[5_751]);
    arrivals.iter_mut().for_each(|task| task.at = US);
    let (mut short, mut long) = (record(arrivals.clone()), record(arrivals));
    (short.from, short.until) = (US, US.times(15_626) - Nanos(1));
    (long.from, long.until) = (US, US.times(15_626));
    let concludes = |record| {
        Trial::new(models.to_vec(), usual(2), vec![record]).verdict(Alternative::Own).is_some()
    };
    assert_eq!([short, long].map(concludes), [false, true]);
}

#[test]
fn what_two_threads_recorded_is_what_came_while_both_did() {
    let at = |us, model| Recorded { at: US.times(us), model: ModelId(model), budget: US };
    let part =
        |from, until, arrivals| Record { arrivals, from: US.times(from), until: US.times(until) };
    let first = part(10, 90, vec![at(10, 5), at(30, 5), at(80, 5)]);
    let second = part(20, 80, vec![at(20, 3), at(31, 4), at(79, 3)]);
    let models = vec![model(5, (1, 1), 9), model(3, (1, 1), 9)];
    let Trial { tasks, span, .. } = Trial::new(models, usual(1), vec![first, second]);
    let tasks: Vec<_> = tasks.iter().map(|task| (task.at, task.model)).collect();
    // Model 4 is on its way to another thread.
    assert_eq!(tasks, [(0, 0), (10, 1), (59, 0)].map(|(us, model)| (US.times(us), model)));
    assert_eq!(span, US.times(60));
}

#[test]
fn a_few_tasks_fewer_are_chance() {
    let lost = |lost| Lost { tasks: 1_000, lost, ..Lost::default() };
    let is_clear = |now: &[u64], then: &[u64]| {
        let [now, then] =
            [now, then].map(|lost_each| lost_each.iter().copied().map(lost).collect());
        let (now, then): (Vec<Lost>, Vec<Lost>) = (now, then);
        is_no_chance(&now, &then)
    };
    assert!(is_clear(&[25], &[15]) && !is_clear(&[25], &[16]));
    assert!(!is_clear(&[3], &[0]) && is_clear(&[4], &[0]));
    assert!(is_clear(&[25, 16], &[15, 26]), "the one that loses most counts");
    assert!(is_clear(&[3, 3, 3, 2], &[1, 1, 1, 1]), "so do all together");
    assert!(!is_clear(&[], &[]));
}

#[test]
fn other_rules_lose_less_than_half_by_weight() {
    assert!(is_clearly_less(3, 7) && !is_clearly_less(3, 6));
    assert!(!is_clearly_less(0, 0), "where nothing is lost nothing is better");
}

#[test]
fn one_large_loss_weighs_more_than_many_small_ones() {
    let lost = |lost| Lost { tasks: 10_000, lost, ..Lost::default() };
    assert!(weight(&[lost(300), lost(0)]) > weight(&[lost(200), lost(200)]));
    assert!(weight(&[lost(210)]) < weight(&[lost(150), lost(200)]));
}

/// Four models whose batches are mostly set-up time share six slots. Where these could not serve each task by itself, the own rules
/// gather.
fn gathering(gap_us: f64) -> Trial {
    let models: Vec<_> = (0..4).map(|id| model(id, (500, 8_000), 90_000)).collect();
    trial(&models, 6, arrivals(4_000, gap_us, &[90_000; 4]))
}

#[test]
fn tasks_end_sooner_where_batches_that_begin_at_once_lose_nothing() {
    let busy = gathering(1_300.0);
    assert!(verdict(&busy, Alternative::Own).is_sooner);
    assert!(verdict(&busy, Alternative::AtOnce).is_sooner, "as long as that is so, it stays");
    assert!(!verdict(&busy, Alternative::Fill).is_sooner, "these serve tasks that are being lost");
    let none_waits = gathering(4_000.0);
    assert!(!verdict(&none_waits, Alternative::Own).is_sooner, "there is nothing to gain");
    let busier = gathering(500.0);
    assert!(!verdict(&busier, Alternative::Own).is_sooner, "small batches keep others waiting");
}

/// Two slots serve pairs in time, and one task more of each model not.
#[test]
fn half_as_many_again_must_not_be_lost_either() {
    let sooner = |gap_us| {
        let models: Vec<_> = (0..2).map(|id| model(id, (457, 8_000), 20_000)).collect();
        let trial = trial(&models, 2, arrivals(4_000, gap_us, &[20_000; 2]));
        let [own, at_once] = [Alternative::Own, Alternative::AtOnce].map(|rules| trial.lost(rules));
        let denser = sum_lost(&trial.denser().lost(Alternative::AtOnce));
        (sum_lost(&own), sum_lost(&at_once), denser, trial.is_sooner(&own))
    };
    assert_eq!(sooner(4_000.0), (0, 0, 1, true));
    let (own, at_once, denser, is_sooner) = sooner(3_000.0);
    assert_eq!((own, at_once, is_sooner), (0, 0, false));
    assert!(denser > 10, "{denser}");
}

#[test]
fn a_model_that_could_be_more_accurate_does_not_begin_at_once_instead() {
    let mut trial = gathering(1_300.0);
    trial.models[2].has_variants = true;
    assert!(!verdict(&trial, Alternative::Own).is_sooner);
}
