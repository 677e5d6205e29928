//! Weights caches: what the policies serve of more models than fit into memory. Long forms: `docs/cache.md`.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_sim::{PolicyName, Report, Run, Scenario, run, run_traced};

const MODEL: &str = "
    [[model]]
    name = 'm'
    latency_ms = [2.61, 3.78, 4.695, 5.61, 6.49, 7.37, 8.25, 9.13]
    slo_ms = 100.0
    weights_mb = 102.3
    load_ms = 8.33";

const POLICIES: [&str; 7] =
    ["baton", "symphony", "eager", "clockwork", "clockwork:0", "naive", "pinned"];

fn scenario(head: &str, model: &str) -> Scenario {
    Scenario::parse(&format!("{head}\n{MODEL}\n{model}")).unwrap()
}

fn at(scenario: &Scenario, policy: &str, rate_rps: f64) -> Report {
    let policy: PolicyName = policy.parse().unwrap();
    run(scenario, Run { policy, rate_rps, seed: 1 }).unwrap()
}

/// The committed scenario with some of its text replaced.
fn committed(name: &str, changes: &[(&str, &str)]) -> Scenario {
    let path = format!("{}/../../scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let mut text = std::fs::read_to_string(path).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{name}: {from}");
        text = text.replace(from, to);
    }
    Scenario::parse(&text).unwrap()
}

/// The run itself checks pages, that no batch executes where its model is not, and that each task ends once.
#[test]
fn nothing_is_lost_and_no_batch_executes_without_its_weights() {
    let faults = "[[gpu_event]]\nat_s = 1.0\ngpus = [1]\nkind = 'loss'\n\
                  [[gpu_event]]\nat_s = 2.0\ngpus = [1]\nkind = 'join'\n";
    for head in [
        "gpus = 2\nduration_s = 3\npages = 35\npopularity = { kind = 'zipf', s = 0.9 }",
        "gpus = 2\nduration_s = 3\npages = 21\nload_error = 1.7\nnetwork = { ctrl_us = 300 }",
        "gpus = 3\nduration_s = 3\npages = 60\nmessage_lag_us = 50\noverrun_ms = 0.3",
    ] {
        for rate_rps in [30.0, 400.0, 3_000.0] {
            for policy in POLICIES {
                let scenario = scenario(&format!("{head}\n{faults}"), "copies = 40");
                let report = at(&scenario, policy, rate_rps);
                let ended = report.models.iter().all(|m| m.submitted == m.completed + m.dropped);
                assert!(ended, "{policy}: {report:?}");
                let loads = report.loads_per_s.unwrap();
                assert!((loads > 0.0) == (policy != "pinned"), "{policy}: {loads} LOADs/s");
            }
        }
    }
}

#[test]
fn a_run_with_memory_repeats_itself() {
    let scenario = scenario("gpus = 2\nduration_s = 2\npages = 35", "copies = 40");
    for policy in POLICIES {
        let traced = || {
            let policy = policy.parse().unwrap();
            run_traced(&scenario, Run { policy, rate_rps: 900.0, seed: 4 }).unwrap()
        };
        assert!(traced() == traced(), "{policy}");
    }
}

/// With room for everything and nothing cold after the warm-up, memory changes nothing.
#[test]
fn memory_for_all_models_serves_as_if_there_were_no_memory() {
    let head = "gpus = 2\nduration_s = 10\nwarmup_s = 5";
    let cached = scenario(&format!("{head}\npages = 70"), "copies = 10");
    let plain = scenario(head, "copies = 10");
    for policy in ["baton", "symphony"] {
        let (cached, plain) = (at(&cached, policy, 600.0), at(&plain, policy, 600.0));
        assert_eq!(cached.cold_rps, Some(0.0), "{policy}");
        assert!(cached.satisfied > plain.satisfied - 0.005, "{policy}: {cached:?} {plain:?}");
        assert_eq!((plain.cold_rps, plain.loads_per_s), (None, None));
    }
}

/// C5 and B3 (4 GPUs with a tenth of all weights) at a fifth of the time.
#[test]
fn under_memory_pressure_on_time_loads_beat_priorities_and_both_beat_the_baselines() {
    let changes = [("duration_s = 60", "duration_s = 12"), ("warmup_s = 30", "warmup_s = 10")];
    let scenario = committed("cache-memory", &changes);
    let of = |policy| at(&scenario, policy, 1_800.0).satisfied;
    let (baton, clockwork) = (of("baton"), of("clockwork"));
    assert!(baton > 0.86, "{baton}");
    assert!((0.77..0.83).contains(&clockwork), "{clockwork}");
    assert!(baton > clockwork + 0.04, "{baton} {clockwork}");
    assert!(of("naive") < 0.6 && of("pinned") < 0.7);
}

/// C2 at k = 3,600: the link is full, and most that is served of the major models is cold.
#[test]
fn thousands_of_active_models_fill_the_link() {
    let changes = [("duration_s = 30", "duration_s = 15")];
    let report = at(&committed("cache-active", &changes), "clockwork", 1_200.0);
    let minor = report.models.last().unwrap();
    let minor_rps = (minor.completed - minor.late) as f64 / 15.0;
    let major_rps = report.goodput_rps - minor_rps;
    assert!((183.0..203.0).contains(&major_rps), "{major_rps}");
    assert!(minor_rps > 195.0, "{minor_rps}");
    assert!((119.0..121.0).contains(&report.loads_per_s.unwrap()), "{report:?}");
    let cold = report.cold_rps.unwrap() * report.cold_satisfied.unwrap();
    assert!((0.66..0.78).contains(&(cold / major_rps)), "{}", cold / major_rps);
    assert!(report.models.iter().all(|model| model.late == 0));
}

/// C1 (15 models in a closed loop) at a quarter of the time: strategies that are made anew at each look would serve 813 a second,
/// because those that must start first are those of the smallest batches.
#[test]
fn clockworks_strategies_are_kept_until_a_batch_is_formed() {
    let changes = [
        ("duration_s = 20", "duration_s = 5"),
        ("warmup_s = 10", "warmup_s = 2"),
        ("slo_ms = 100.0", "slo_ms = 50.0"),
    ];
    let report = at(&committed("cache-closed-loop", &changes), "clockwork", 1.0);
    assert!(report.goodput_rps > 950.0, "{report:?}");
}

#[test]
fn the_link_that_is_slower_than_the_file_says_is_learnt() {
    let head = "gpus = 2\nduration_s = 20\nwarmup_s = 20\npages = 70\nload_error = 3.0";
    let report = at(&scenario(head, "copies = 60"), "baton", 60.0);
    let late: u64 = report.models.iter().map(|model| model.late).sum();
    assert!(late * 100 < 20 * 60, "{late} tasks are late");
    assert!(report.cold_satisfied.unwrap() > 0.9, "{:?}", report.cold_satisfied);
}

#[test]
fn clients_in_a_closed_loop_have_as_many_tasks_as_clients() {
    let changes = [("duration_s = 20", "duration_s = 5"), ("slo_ms = 100.0", "slo_ms = 250.0")];
    let scenario = committed("cache-closed-loop", &changes);
    for policy in ["clockwork", "baton"] {
        // 16 tasks in 15.67 ms, C1.
        let report = at(&scenario, policy, 1.0);
        assert!((1_015.0..1_025.0).contains(&report.goodput_rps), "{policy}: {report:?}");
        assert_eq!(report.mean_batch, 16.0, "{policy}");
    }
}

#[test]
fn rarely_used_functions_are_cold_and_served() {
    let changes = [
        ("gpus = 12", "gpus = 2"),
        ("functions = 46000", "functions = 4600, rate_rps = 960"),
        ("copies = 671", "copies = 67"),
        ("duration_s = 180", "duration_s = 20"),
        ("warmup_s = 120", "warmup_s = 20"),
        ("pages = 1376", "pages = 500"),
    ];
    let report = at(&committed("cache-azure", &changes), "baton", 960.0);
    assert!(report.satisfied > 0.98, "{report:?}");
    assert!(report.cold_rps.unwrap() > 1.0, "{:?}", report.cold_rps);
    let naive = at(&committed("cache-azure", &changes), "naive", 960.0);
    assert!(naive.satisfied < report.satisfied, "{}", naive.satisfied);
}

#[test]
fn what_cannot_be_simulated_with_memory_is_refused() {
    let memory = scenario("gpus = 2\nduration_s = 1\npages = 14", "copies = 3");
    let refused = |policy: &str| {
        let policy = policy.parse().unwrap();
        run(&memory, Run { policy, rate_rps: 10.0, seed: 1 }).unwrap_err().to_string()
    };
    assert!(refused("frontrun").contains("pages"), "{}", refused("frontrun"));
    assert!(refused("naive").contains("give more"), "{}", refused("naive"));
    let plain = scenario("gpus = 2\nduration_s = 1", "");
    let policy = "pinned".parse().unwrap();
    let error = run(&plain, Run { policy, rate_rps: 10.0, seed: 1 }).unwrap_err().to_string();
    assert!(error.contains("weights_mb"), "{error}");
    let naive = run(&plain, Run { policy: "naive".parse().unwrap(), rate_rps: 10.0, seed: 1 });
    assert!(
        naive.unwrap_err().to_string().contains("weights_mb"),
        "it has no pages to be short of"
    );
}

#[test]
fn keys_of_memory_say_what_is_wrong() {
    let error = |text: &str| Scenario::parse(text).unwrap_err().to_string();
    let head = "gpus = 1\nduration_s = 1";
    assert!(error(&format!("{head}\npage_mib = 4\n{MODEL}")).contains("without pages"));
    assert!(
        error(&format!("{head}\npages = 6\n{MODEL}"))
            .contains("weights_mb = 102.3, and 6 pages hold 100.7 MB")
    );
    let unknown = MODEL.replace("weights_mb = 102.3", "");
    assert!(error(&format!("{head}\npages = 9\n{unknown}")).contains("needs weights_mb"));
    let both = format!("{head}\n{MODEL}\nalpha_ms = 1.0\nbeta_ms = 1.0");
    assert!(error(&both).contains("either alpha_ms and beta_ms, or latency_ms"));
    let zoo = "gpus = 1\nduration_s = 1\npages = 1376\nzoo = 'clockwork'";
    assert!(Scenario::parse(zoo).is_ok(), "Table 1 has sizes");
    assert!(error(&zoo.replace("clockwork", "a100")).contains("needs weights_mb"));
}

/// 4.35 ms are half a LOAD: the first tasks are lost, and later ones find the model there.
#[test]
fn objectives_shorter_than_a_load_are_kept_once_models_are_there() {
    let model = MODEL.replace("slo_ms = 100.0", "slo_ms = 4.35");
    let text = format!(
        "gpus = 6\nduration_s = 10\nwarmup_s = 5\npages = 70\nnetwork = {{ ctrl_us = 300 }}\n{model}\ncopies = 12"
    );
    let report = at(&Scenario::parse(&text).unwrap(), "baton", 600.0);
    assert!(report.satisfied > 0.99, "{report:?}");
}

#[test]
fn models_that_were_popular_give_way_to_those_that_are() {
    let scenario = committed("cache-drift", &[("duration_s = 60", "duration_s = 20")]);
    let of = |policy| at(&scenario, policy, 1_500.0).satisfied;
    let (baton, clockwork) = (of("baton"), of("clockwork"));
    assert!(baton > clockwork + 0.02, "{baton} {clockwork}");
}

#[test]
fn a_goodput_search_over_a_closed_loop_is_refused() {
    let scenario =
        scenario("gpus = 1\nduration_s = 1\npages = 35", "closed_loop = { clients = 4 }");
    let error = baton_sim::goodput(&scenario, "baton".parse().unwrap(), 1).unwrap_err().to_string();
    assert!(error.contains("closed loop") && error.contains("baton sim run"), "{error}");
}

/// 300 models of which four GPUs hold 80, and for five seconds a crowd at two others, half as much again as the GPUs execute.
fn flash_crowd(head: &str) -> Scenario {
    let model = MODEL.replace("7.37, 8.25, 9.13", "7.37, 8.25, 9.13, 9.95, 10.77, 11.58, 12.4");
    let calm = format!("copies = 300\nweight = 1200\n{}", model.replace("'m'", "'crowd'"));
    let crowd = "copies = 2\nweight = 3000\n\
                 load = { shape = 'steps', points = [[0, 0.01], [8, 1], [13, 0.01]] }";
    let head = format!(
        "gpus = 4\nduration_s = 10\nwarmup_s = 5\npages = 140\nnetwork = {{ ctrl_us = 300 }}\n{head}"
    );
    Scenario::parse(&format!("{head}\n{model}\n{calm}\n{crowd}")).unwrap()
}

#[test]
fn a_crowd_finds_copies_while_the_loaders_are_full() {
    for head in ["", "slow_link = { gpu = 0, factor = 3.0 }"] {
        let scenario = flash_crowd(head);
        let of = |policy| at(&scenario, policy, 4_200.0).satisfied;
        let (baton, clockwork) = (of("baton"), of("clockwork"));
        assert!(baton > 0.515 && baton > clockwork - 0.02, "{head} {baton} {clockwork}");
    }
}

/// Tasks wait for every model, at any time, and a slot holds two of nine: they take turns.
#[test]
fn models_that_tasks_always_wait_for_take_turns() {
    let head = "gpus = 4\nduration_s = 10\nwarmup_s = 5\npages = 15\nnetwork = { ctrl_us = 300 }";
    let slo = MODEL.replace("slo_ms = 100.0", "slo_ms = 240.0");
    let scenario = Scenario::parse(&format!("{head}\n{slo}\ncopies = 36")).unwrap();
    let of = |policy| at(&scenario, policy, 3_000.0).satisfied;
    let (baton, clockwork) = (of("baton"), of("clockwork"));
    assert!(baton > 0.99 && baton > clockwork, "{baton} {clockwork}");
}
