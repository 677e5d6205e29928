//! Symphony's Table 4 in virtual time: two models, eight GPUs, Poisson arrivals, no network delay.
//!
//! The paper reports 5,169 and 907 requests/s for Symphony. What the same rules attain with a perfect
//! clock, and where work-conserving batching collapses, is asserted here with margins; the exact
//! figures come from `baton sim goodput` on `scenarios/table4-*.toml`.
mod world;

use baton_core::{ModelConfig, Policy, Prefer};
use world::{Load, Rng, World, linear};

const GPUS: usize = 8;
const SEEDS: [u64; 3] = [1, 2, 3];

#[derive(Clone, Copy)]
struct Model {
    name: &'static str,
    alpha_ms: f64,
    beta_ms: f64,
    slo_ms: f64,
    /// Simulated seconds that give a stable answer.
    seconds: f64,
    prefer: Prefer,
}

const RESNET50: Model = Model {
    name: "ResNet50",
    alpha_ms: 1.053,
    beta_ms: 5.072,
    slo_ms: 25.0,
    seconds: 5.0,
    prefer: Prefer::Latency,
};
const INCEPTION_RESNET_V2: Model = Model {
    name: "InceptionResNetV2",
    alpha_ms: 5.09,
    beta_ms: 18.368,
    slo_ms: 70.0,
    seconds: 10.0,
    prefer: Prefer::Latency,
};

/// What came of some load, as fractions or per second.
#[derive(Default, Debug)]
struct Result {
    bad: f64,
    goodput: f64,
    utilization: f64,
    mean_batch: f64,
}

/// `models` copies share `gpus` slots and `per_second` tasks.
fn run(
    model: &Model,
    policy: Policy,
    (models, gpus): (u32, usize),
    per_second: f64,
    seed: u64,
) -> Result {
    let config = ModelConfig {
        prefer: model.prefer,
        ..linear(policy, model.alpha_ms, model.beta_ms, model.slo_ms)
    };
    let mut world = World::new(vec![config; models as usize], gpus);
    let mut rng = Rng::new(seed);
    let mut offered = 0;
    for m in 0..models {
        let first = u64::from(m) << 32;
        let per_second = per_second / f64::from(models);
        let (seconds, slo_ms) = (model.seconds, model.slo_ms);
        let load = Load { model: m, first, per_second, seconds, slo_ms };
        offered += world.poisson(&mut rng, load) - first;
    }
    world.run_out();
    let good = world.out.ends.keys().filter(|&&task| world.is_good(task)).count() as f64;
    let executed: usize = world.sizes().iter().sum();
    Result {
        bad: 1.0 - good / offered as f64,
        goodput: good / model.seconds,
        utilization: world.busy().as_millis_f64() / (model.seconds * 1e3 * gpus as f64),
        mean_batch: executed as f64 / world.batches.len() as f64,
    }
}

/// The mean over the seeds.
fn mean(model: &Model, policy: Policy, per_second: f64) -> Result {
    let share = 1.0 / SEEDS.len() as f64;
    SEEDS.iter().fold(Result::default(), |sum, &seed| {
        let one = run(model, policy, (1, GPUS), per_second, seed);
        Result {
            bad: sum.bad + share * one.bad,
            goodput: sum.goodput + share * one.goodput,
            utilization: sum.utilization + share * one.utilization,
            mean_batch: sum.mean_batch + share * one.mean_batch,
        }
    })
}

#[test]
fn symphony_serves_what_the_paper_reports() {
    for (model, per_second) in [(RESNET50, 5_150.0), (INCEPTION_RESNET_V2, 900.0)] {
        let result = mean(&model, Policy::Symphony, per_second);
        assert!(result.bad <= 0.01, "{} at {per_second}/s: {result:?}", model.name);
    }
}

#[test]
fn baton_serves_what_symphony_cannot() {
    for (model, per_second) in [(RESNET50, 5_440.0), (INCEPTION_RESNET_V2, 930.0)] {
        let ours = mean(&model, Policy::Baton, per_second);
        assert!(ours.bad <= 0.01, "{} at {per_second}/s: {ours:?}", model.name);
        let symphony = mean(&model, Policy::Symphony, per_second);
        assert!(symphony.bad > 1.25 * ours.bad, "{} at {per_second}/s: {symphony:?}", model.name);
    }
}

#[test]
fn symphonys_batches_are_near_the_efficient_size() {
    assert!((15.0..16.5).contains(&mean(&RESNET50, Policy::Symphony, 5_000.0).mean_batch));
    assert!((7.5..8.5).contains(&mean(&INCEPTION_RESNET_V2, Policy::Symphony, 880.0).mean_batch));
}

#[test]
fn eager_collapses_where_deferral_still_serves_everything() {
    for (model, serves, collapses) in
        [(RESNET50, 4_700.0, 5_100.0), (INCEPTION_RESNET_V2, 740.0, 900.0)]
    {
        let good = mean(&model, Policy::Eager, serves);
        assert!(good.bad <= 0.01, "{} at {serves}/s: {good:?}", model.name);
        let bad = mean(&model, Policy::Eager, collapses);
        assert!(bad.bad > 0.2, "{} at {collapses}/s: {bad:?}", model.name);
        let deferred = mean(&model, Policy::Symphony, collapses);
        assert!(deferred.bad <= 0.01, "{} at {collapses}/s: {deferred:?}", model.name);
    }
}

#[test]
fn twice_the_load_costs_no_goodput() {
    for policy in [Policy::Baton, Policy::Symphony] {
        for (model, peak) in [(RESNET50, 5_150.0), (INCEPTION_RESNET_V2, 900.0)] {
            let (at_peak, overload) =
                (mean(&model, policy, peak), mean(&model, policy, 2.0 * peak));
            assert!(overload.goodput >= 0.95 * at_peak.goodput, "{at_peak:?}, then {overload:?}");
        }
    }
}

#[test]
fn twice_the_load_costs_ten_models_no_goodput() {
    let model = Model { slo_ms: 100.0, seconds: 1.5, ..RESNET50 };
    for policy in [Policy::Baton, Policy::Symphony] {
        let at = |per_second| run(&model, policy, (10, 24), per_second, 1);
        let (at_peak, overload) = (at(19_000.0), at(38_000.0));
        assert!(at_peak.bad <= 0.01, "{policy:?} {at_peak:?}");
        assert!(overload.goodput >= 0.95 * at_peak.goodput, "{at_peak:?}, then {overload:?}");
    }
}

#[test]
fn only_deferral_leaves_gpus_idle_at_half_load() {
    for (model, half) in [(RESNET50, 2_575.0), (INCEPTION_RESNET_V2, 450.0)] {
        for policy in [Policy::Baton, Policy::Symphony] {
            let patient = Model { prefer: Prefer::FewestGpus, ..model };
            let deferred = mean(&patient, policy, half);
            assert!((0.4..0.55).contains(&deferred.utilization), "{} {deferred:?}", model.name);
        }
        let eager = mean(&model, Policy::Eager, half);
        assert!(eager.utilization > 0.9, "{} {eager:?}", model.name);
    }
}
