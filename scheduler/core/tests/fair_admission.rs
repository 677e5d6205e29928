//! Frontends that share a model: one that asks for less than its share is served as if it were
//! alone, and the GPUs are as busy as without it.
mod world;

use baton_core::{
    DropReason, FrontendId, ModelConfig, ModelState, Policy, Prefer, Request, TaskId, Unserved,
};
use world::{End, Load, Outbox, Rng, World, linear, ms, profile};

const SLO_MS: f64 = 30.0;
/// What two GPUs do at best with ℓ(b) = b + 4 ms while batches take turns: 15 tasks in 19 ms each.
const CAPACITY_RPS: f64 = 1_579.0;
const SECONDS: f64 = 6.0;
const FRONTENDS: u32 = 64;

fn world(shared: bool) -> World {
    let mut config = linear(Policy::Baton, 1.0, 4.0, SLO_MS);
    (config.network.ctrl, config.network.response) = (ms(0.05), ms(0.05));
    let world = World::new(vec![config], 2);
    if shared { world.shared(FRONTENDS) } else { world }
}

fn first(frontend: u16) -> u64 {
    TaskId::new(FrontendId(frontend), 0, 0).0
}

/// Tasks of one frontend that were offered in some seconds, and how many were answered in time.
#[derive(Clone, Copy, Debug)]
struct Offered {
    tasks: u64,
    good: u64,
    seconds: f64,
}

impl Offered {
    fn bad_rate(self) -> f64 {
        1.0 - self.good as f64 / self.tasks as f64
    }

    fn good_rps(self) -> f64 {
        self.good as f64 / self.seconds
    }
}

/// Offers Poisson load from now on, each frontend its part of [`CAPACITY_RPS`], and counts what was
/// sent after `from_s` seconds. `life` tells one run's task numbers from the next one's.
fn offer(world: &mut World, life: u64, parts: &[f64], seconds: f64, from_s: f64) -> Vec<Offered> {
    let mut rng = Rng::new(5 + life);
    let begin = |frontend: usize| first(frontend as u16) + (life << 32);
    let mut spans = Vec::new();
    for (frontend, part) in parts.iter().enumerate() {
        let load = |first, seconds| Load {
            model: 0,
            first,
            per_second: part * CAPACITY_RPS,
            seconds,
            slo_ms: SLO_MS,
        };
        let end = world.poisson(&mut rng, load(begin(frontend), seconds));
        let skip = ((end - begin(frontend)) as f64 * from_s / seconds) as u64;
        spans.push(begin(frontend) + skip..end);
    }
    world.run(seconds * 1e3 + SLO_MS);
    let count = |span: &std::ops::Range<u64>| Offered {
        tasks: span.end - span.start,
        good: span.clone().filter(|&task| world.is_good(task)).count() as u64,
        seconds: seconds - from_s,
    };
    spans.iter().map(count).collect()
}

fn total_rps(offered: &[Offered]) -> f64 {
    offered.iter().map(|frontend| frontend.good_rps()).sum()
}

#[test]
fn a_frontend_within_its_share_hardly_notices_a_flood() {
    let alike = offer(&mut world(false), 0, &[0.3, 4.0], SECONDS, 0.0);
    assert!(alike[0].bad_rate() > 0.7, "this is what it is for: {alike:?}");
    for part in [0.02, 0.3, 0.45] {
        let all = offer(&mut world(true), 0, &[part, 4.0], SECONDS, 0.0);
        assert!(all[0].bad_rate() < 0.045, "from its first moment: {all:?}");
        let later = offer(&mut world(true), 0, &[part, 4.0], SECONDS, 1.0);
        // Of 146 tasks one is more than that.
        let lost = later[0].tasks - later[0].good;
        assert!(lost <= 1 || later[0].bad_rate() < 0.005, "{later:?}");
        assert!(total_rps(&later) > 0.95 * total_rps(&alike), "{later:?}");
    }
}

#[test]
fn those_who_ask_for_more_share_the_rest_alike() {
    let [modest, a, b] = offer(&mut world(true), 0, &[0.1, 2.0, 3.0], SECONDS, 1.0)[..] else {
        unreachable!()
    };
    assert!(modest.bad_rate() < 0.005, "{modest:?}");
    assert!((0.85..1.15).contains(&(a.good_rps() / b.good_rps())), "{a:?} {b:?}");
}

#[test]
fn a_little_too_much_is_borne_by_who_asks_for_most() {
    let alike = offer(&mut world(false), 0, &[0.3, 0.8], SECONDS, 1.0);
    let fair = offer(&mut world(true), 0, &[0.3, 0.8], SECONDS, 1.0);
    assert!(alike[0].bad_rate() > 0.05, "{alike:?}");
    assert!(fair[0].bad_rate() < 0.01, "{fair:?}");
    // A short queue of which everybody believes that more is to come would leave the GPUs idle.
    assert!(total_rps(&fair) > 0.93 * total_rps(&alike), "{fair:?} {alike:?}");
}

#[test]
fn a_frontend_by_itself_and_a_model_that_keeps_up_are_as_without() {
    for parts in [&[4.0][..], &[0.5, 0.3]] {
        let (mut fair, mut alike) = (world(true), world(false));
        offer(&mut fair, 0, parts, SECONDS, 0.0);
        offer(&mut alike, 0, parts, SECONDS, 0.0);
        assert_eq!(fair.out.ends, alike.out.ends);
        assert_eq!(fair.models[0].counters().over_share, 0);
    }
}

#[test]
fn leaving_and_joining_again_gains_nothing() {
    let mut world = world(true);
    let mut modest = Offered { tasks: 0, good: 0, seconds: 0.0 };
    offer(&mut world, 0, &[0.3, 4.0], 1.0, 0.0);
    for life in 1..60_u16 {
        let mut parts = vec![0.0; 2 + usize::from(life)];
        (parts[0], parts[1 + usize::from(life)]) = (0.3, 4.0);
        let now = offer(&mut world, u64::from(life), &parts, 0.1, 0.0);
        modest.tasks += now[0].tasks;
        modest.good += now[0].good;
        world.lose_frontend(FrontendId(1 + life));
    }
    assert!(modest.bad_rate() < 0.02, "{modest:?}");
}

#[test]
fn who_gets_a_lost_frontends_number_is_not_taken_for_it() {
    let mut world = world(true);
    offer(&mut world, 0, &[0.3, 4.0, 4.0], 1.0, 0.0);
    world.lose_frontend(FrontendId(1));
    let [_, next, _] = offer(&mut world, 1, &[0.3, 0.3, 4.0], 0.3, 0.0)[..] else { unreachable!() };
    assert!(next.bad_rate() < 0.2, "{next:?}");
}

#[test]
fn after_the_flood_everybody_is_served_again_within_half_a_second() {
    let mut world = world(true);
    offer(&mut world, 0, &[0.3, 4.0], 2.0, 0.0);
    offer(&mut world, 1, &[0.3, 0.5], 0.5, 0.0);
    let limited = world.models[0].counters().over_share;
    let after = offer(&mut world, 2, &[0.3, 0.5], 2.0, 0.0);
    for frontend in &after {
        assert!(frontend.bad_rate() < 0.0075, "{after:?}");
    }
    assert_eq!(world.models[0].counters().over_share, limited, "no frontend is limited any more");
}

/// λ counts the tasks that are let in. If batches that are small for want of tasks meant a short queue, a limit would
/// keep itself.
#[test]
fn after_an_outage_a_limit_does_not_keep_itself() {
    let policies = Policy::ALL.map(|policy| (policy, Prefer::Latency));
    for (policy, prefer) in policies.into_iter().chain([(Policy::Baton, Prefer::FewestGpus)]) {
        let profile = profile(1.0, 12.0, 8);
        let config = ModelConfig { prefer, profile, ..linear(policy, 1.0, 12.0, SLO_MS) };
        let mut world = World::new(vec![config], 2).shared(2);
        let parts = [0.08, 0.08];
        offer(&mut world, 0, &parts, 1.0, 0.0);
        (0..2).for_each(|gpu| world.kill_gpu(gpu));
        offer(&mut world, 1, &parts, 0.5, 0.0);
        (0..2).for_each(|gpu| world.join_gpu(gpu));
        let after = offer(&mut world, 2, &parts, 4.0, 1.0);
        let good = after.iter().all(|frontend| frontend.bad_rate() < 0.015);
        assert!(good, "{policy:?}, {prefer:?}: {after:?}");
    }
}

/// Three models on two slots: two whose batches fill the objective, and one whose batches may have three tasks at most.
fn with_small_batches(policy: Policy) -> World {
    let config = |alpha_ms, beta_ms, slo_ms, most| ModelConfig {
        profile: profile(alpha_ms, beta_ms, most),
        ..linear(policy, alpha_ms, beta_ms, slo_ms)
    };
    let small = config(0.33, 2.7, 28.8, 3);
    let others = [config(0.56, 4.0, 27.5, 11), config(1.25, 2.4, 32.8, 13)];
    World::new([small].into_iter().chain(others).collect(), 2).shared(2)
}

#[test]
fn after_a_rush_a_model_of_small_batches_is_served_as_before_it() {
    for policy in Policy::ALL {
        let mut world = with_small_batches(policy);
        let mut rng = Rng::new(11);
        let mut life = 0;
        let mut offer = |world: &mut World, per_second: f64, seconds: f64| {
            life += 1;
            let mut all = Vec::new();
            for (model, slo_ms) in [(0, 28.8), (1, 27.5), (2, 32.8)] {
                for frontend in 0..2 {
                    let first = first(frontend) + (life << 32) + (u64::from(model) << 20);
                    let load = Load { model, first, per_second, seconds, slo_ms };
                    all.push(first..world.poisson(&mut rng, load));
                }
            }
            world.run(seconds * 1e3 + 40.0);
            let (tasks, good) = all.into_iter().flatten().fold((0, 0), |(tasks, good), task| {
                (tasks + 1, good + u32::from(world.is_good(task)))
            });
            f64::from(tasks - good) / f64::from(tasks)
        };
        let before = offer(&mut world, 200.0, 3.0);
        offer(&mut world, 900.0, 0.5);
        offer(&mut world, 200.0, 4.0);
        let after = offer(&mut world, 200.0, 3.0);
        assert!(after < before + 0.005, "{policy:?}: {after} after the rush, {before} before it");
    }
}

#[test]
fn a_frontend_left_alone_is_not_limited_any_more() {
    let mut world = world(true);
    offer(&mut world, 0, &[0.3, 4.0], 2.0, 0.0);
    world.lose_frontend(FrontendId(0));
    offer(&mut world, 1, &[0.0, 4.0], 1.5, 0.0);
    let limited = world.models[0].counters().over_share;
    offer(&mut world, 2, &[0.0, 4.0], 1.0, 0.0);
    assert_eq!(world.models[0].counters().over_share, limited);
}

#[test]
fn no_task_leaves_for_one_that_cannot_run() {
    let mut model = ModelState::shared(linear(Policy::Baton, 1.0, 4.0, SLO_MS), FRONTENDS);
    let (mut out, mut now) = (Outbox::default(), ms(1000.0));
    // Nothing is ever granted, so all is lost.
    for round in 0..2_000 {
        now = now + ms(1.0);
        for task in [0, 1].map(|frontend| TaskId(first(frontend) + round)) {
            model.on_request(now, Request::new(task, now + ms(SLO_MS)), &mut out);
        }
    }
    let before = (model.waiting(), model.counters().over_share);
    assert!(before.0 > 0 && before.1 > 0, "the queue is full: {before:?}");
    let hopeless = Request::new(TaskId(first(2)), now + ms(2.0));
    model.on_request(now, hopeless, &mut out);
    assert_eq!((model.waiting(), model.counters().over_share), before);
    let passed = End::Unserved(Unserved::Dropped(DropReason::DeadlinePassed));
    assert_eq!(out.ends[&first(2)], passed);
}

/// Goodput with fair shares over that without, and the bad rate of a frontend that asks for 0.3 of
/// `capacity_rps` beside one that asks for four times all of it.
fn cost(alpha_ms: f64, beta_ms: f64, slo_ms: f64, gpus: usize, capacity_rps: f64) -> (f64, f64) {
    let run = |shared: bool| {
        let mut config = linear(Policy::Baton, alpha_ms, beta_ms, slo_ms);
        (config.network.ctrl, config.network.response) = (ms(0.05), ms(0.05));
        let mut world = World::new(vec![config], gpus);
        if shared {
            world = world.shared(FRONTENDS);
        }
        let mut rng = Rng::new(5);
        let good = [(0, 0.3), (1, 4.0)].map(|(frontend, part)| {
            let (first, per_second) = (first(frontend), part * capacity_rps);
            let load = Load { model: 0, first, per_second, seconds: SECONDS, slo_ms };
            first..world.poisson(&mut rng, load)
        });
        world.run_out();
        good.map(|mut tasks| {
            let offered = tasks.end - tasks.start;
            let good = tasks.by_ref().filter(|&task| world.is_good(task)).count();
            (good as f64, good as f64 / offered as f64)
        })
    };
    let (fair, alike) = (run(true), run(false));
    ((fair[0].0 + fair[1].0) / (alike[0].0 + alike[1].0), 1.0 - fair[0].1)
}

#[test]
fn more_gpus_lose_nothing_by_it_and_one_gpu_an_eighth() {
    let (goodput, bad_rate) = cost(1.053, 5.072, 25.0, 8, 5_839.0);
    assert!(goodput > 0.98 && bad_rate < 0.015, "eight: {goodput} {bad_rate}");
    let (goodput, bad_rate) = cost(1.053, 5.072, 25.0, 1, 563.0);
    assert!((0.8..0.95).contains(&goodput) && bad_rate < 0.03, "one: {goodput} {bad_rate}");
}

#[test]
fn batches_that_are_long_at_any_size_lose_a_quarter_by_it() {
    let (goodput, bad_rate) = cost(1.0, 12.0, 30.0, 2, 700.0);
    assert!((0.65..0.8).contains(&goodput) && bad_rate < 0.015, "{goodput} {bad_rate}");
}
