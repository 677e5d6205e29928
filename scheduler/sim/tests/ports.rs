//! Backends whose ports carry less than their GPUs could execute: what is beyond that is shed, and the rest is in time.

use baton_core::Policy;
use baton_sim::{PolicyName, Report, Run, Scenario, run};

/// Two backends with four GPU slots each. `models` are ten, or one.
fn report(key: &str, copies: u32, policy: Policy, rate_rps: f64) -> Report {
    let text = format!(
        "gpus = 8\nduration_s = 4\nwarmup_s = 2\nnetwork = {{ ctrl_us = 100, data_us_per_task = 20 }}\n{key}\n\
         [[model]]\nname = 'm'\nalpha_ms = 0.68\nbeta_ms = 13.68\nslo_ms = 191.1\ncopies = {copies}"
    );
    let policy = PolicyName::Production(policy);
    let scenario = Scenario::parse(&text).expect("a scenario");
    run(&scenario, Run { policy, rate_rps, seed: 1 }).expect("it can be simulated")
}

/// Each input takes 0.6 ms of a port, thirty times what the file says first: 3,339 in a second, of both.
const PORT: &str = "port = { slots = 4, us_per_task = 599 }";
const CARRIED_RPS: f64 = 2e6 / 599.0;

#[test]
fn a_port_is_used_to_the_full_whatever_the_overload() {
    for (copies, policy) in [(1, Policy::Baton), (10, Policy::Baton), (10, Policy::Symphony)] {
        let below = report(PORT, copies, policy, 0.9 * CARRIED_RPS);
        assert!(below.bad_rate < 0.01, "{copies} {policy:?}: {below:?}");
        for factor in [1.2, 2.0, 5.0] {
            let above = report(PORT, copies, policy, factor * CARRIED_RPS);
            let used = above.goodput_rps / CARRIED_RPS;
            assert!(used > 0.96, "{copies} {policy:?}, {factor} times: {used}");
        }
    }
}

#[test]
fn without_a_port_the_gpus_serve_more() {
    let free = report("", 10, Policy::Baton, 1.5 * CARRIED_RPS);
    assert!(free.bad_rate < 0.01, "{free:?}");
}

#[test]
fn other_policies_do_not_know_of_ports() {
    let text = format!(
        "gpus = 8\nduration_s = 1\n{PORT}\n[[model]]\nname = 'm'\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 20"
    );
    let policy: PolicyName = "clockwork".parse().unwrap();
    let asked = Run { policy, rate_rps: 100.0, seed: 1 };
    let refused = run(&Scenario::parse(&text).unwrap(), asked).unwrap_err().to_string();
    assert!(refused.contains("port"), "{refused}");
    for wrong in
        ["{ slots = 0, us_per_task = 1 }", "{ slots = 1, us_per_task = 0 }", "{ slots = 1 }"]
    {
        let text = text.replace("{ slots = 4, us_per_task = 599 }", wrong);
        assert!(Scenario::parse(&text).is_err(), "{wrong}");
    }
}
