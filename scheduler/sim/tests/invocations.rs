//! Replays of counts per minute, as the public traces of Azure Functions have them.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::path::{Path, PathBuf};

use baton_core::Nanos;
use baton_sim::{Arrivals, Arrived, Minutes, Replay, ReplayOptions, Scenario};

const MODELS: [&str; 2] = ["a", "b"];
/// Four functions and four minutes. By their counts: third, first, fourth, second.
const FILE: &str = "\u{feff}HashOwner,HashApp,HashFunction,Trigger,1,2,3,4\r\n\
                    o,p,\"f\",http,0,20,0,0\r\n\
                    # a comment\n\
                    o,p,g,timer,40,0,0,60\n\
                    o,p,h,queue,0,0,0,10\n\
                    o,p,i,http,30,0,0,0\n";

fn read(text: &str, minutes: Option<Minutes>) -> Result<Replay, String> {
    let options = ReplayOptions::new(&MODELS).of_minutes(minutes);
    let read = Replay::read(Path::new("f.csv"), text.as_bytes(), &options);
    read.map_err(|error| error.to_string())
}

/// The minute, of the file's own speed, and the model of every task of some laps at `speed`.
fn played(replay: Replay, speed: f64, laps: u64, seed: u64) -> Vec<(u64, u32)> {
    let (rate_rps, lap) = (replay.rate_rps() * speed, replay.lasts().0 as f64 / speed);
    let mut arrivals = Arrivals::replayed(replay.into(), 2, rate_rps, seed);
    let end = Nanos((lap * laps as f64) as u64);
    let mut last = Nanos::ZERO;
    std::iter::from_fn(|| {
        let Arrived { at, model, deadline } = arrivals.take()?;
        assert!(last <= at && deadline == Nanos::MAX, "in the order of time, without objectives");
        last = at;
        let minute = (at.0 as f64 * speed / 60e9) as u64;
        (at < end).then_some((minute, model))
    })
    .collect()
}

fn count(played: &[(u64, u32)], minute: u64, model: u32) -> usize {
    played.iter().filter(|&&at| at == (minute, model)).count()
}

#[test]
fn each_minute_has_its_counts_and_busy_functions_go_to_the_models_in_turn() {
    let replay = read(FILE, None).unwrap();
    assert_eq!((replay.len(), replay.lasts()), (160, Nanos::from_millis(240_000)));
    for speed in [1.0, 600.0] {
        let tasks = played(replay.clone(), speed, 2, 1);
        assert_eq!(tasks.len(), 320, "two laps");
        for lap in [0, 4] {
            // g and f to a, i and h to b.
            for (minute, of) in [[40, 30], [20, 0], [0, 0], [60, 10]].into_iter().enumerate() {
                let minute = lap + minute as u64;
                assert_eq!([0, 1].map(|m| count(&tasks, minute, m)), of, "{speed} {minute}");
            }
        }
    }
    assert_eq!(played(replay.clone(), 9.0, 1, 1), played(replay, 9.0, 1, 1), "the same seed");
}

#[test]
fn tasks_are_spread_over_their_minute_by_the_seed() {
    let replay = std::sync::Arc::new(read(FILE, None).unwrap());
    let first = |seed| {
        let mut arrivals =
            Arrivals::replayed(std::sync::Arc::clone(&replay), 2, replay.rate_rps(), seed);
        let tasks = std::iter::from_fn(|| arrivals.take().map(|task| task.at)).take(70);
        tasks.collect::<Vec<_>>()
    };
    let (one, other) = (first(1), first(2));
    assert_ne!(one, other);
    for tasks in [one, other] {
        let early = tasks.iter().filter(|at| **at < Nanos::from_millis(30_000)).count();
        assert!((20..50).contains(&early), "{early} of 70 in the first half");
    }
}

#[test]
fn some_minutes_are_replayed_alone() {
    let replay = read(FILE, Some("1:3".parse().unwrap())).unwrap();
    assert_eq!((replay.len(), replay.lasts()), (90, Nanos::from_millis(180_000)));
    let tasks = played(replay, 60.0, 1, 1);
    // g, f and h are the busiest of these minutes: a, b, a.
    assert_eq!([0, 1].map(|model| count(&tasks, 0, model)), [0, 20]);
    assert_eq!([0, 1].map(|model| count(&tasks, 2, model)), [70, 0]);
}

#[test]
fn a_scenarios_copies_get_functions_in_turn_and_their_shares() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("invocations");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("f.csv"), FILE).unwrap();
    let file = folder.join("s.toml");
    let text = "gpus = 1\nduration_s = 9\n\
                arrival = { process = 'replay', file = 'f.csv', minutes = [0, 4] }\n\
                [[model]]\nname = 'a'\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9\ncopies = 2\n\
                [[model]]\nname = 'b'\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9\n";
    std::fs::write(&file, text).unwrap();
    let scenario = Scenario::load(&file).unwrap();
    let shares = scenario.models.iter().map(|model| (model.share * 160.0).round());
    // a-1 has g and h, b has i, and a-2 f: first copies come first.
    assert_eq!(shares.collect::<Vec<_>>(), [110.0, 20.0, 30.0]);
}

#[test]
fn what_has_no_counts_is_refused_with_its_line() {
    let head = "HashOwner,HashApp,HashFunction,Trigger,1,2\n";
    for (rows, minutes, at, why) in [
        ("o,p,f,http,1,2\no,p,f,http,1\n", None, ":3:", "5 fields, and the header has 6"),
        ("o,p,f,http,1,2.5\n", None, ":2:", "\"2.5\" is no count"),
        ("o,p,f,http,1,-1\n", None, ":2:", "\"-1\" is no count"),
        ("o,p,f,http,1,30000000\n", None, ":2:", "is no count"),
        ("o,p,f,http,15000000,0\no,p,g,http,9000000,0\n", None, ":", "24000000 tasks in a minute"),
        ("o,p,f,http,0,0\n", None, ":", "no function runs"),
        ("", None, ":", "no function runs"),
        ("o,p,f,http,1,2\n", Some("1:2"), ":1:", "the file has 2 minutes"),
        ("o,p,f,http,1,2\n", Some("0:0"), ":1:", "the file has 2 minutes"),
    ] {
        let minutes = minutes.map(|minutes| minutes.parse().unwrap());
        let error = read(&format!("{head}{rows}"), minutes).unwrap_err();
        assert!(error.starts_with(&format!("f.csv{at}")) && error.contains(why), "{rows}: {error}");
    }
    let stamps = read("1\n2\n", Some("0:1".parse().unwrap())).unwrap_err();
    assert!(stamps.contains("this one has timestamps"), "{stamps}");
    for text in ["", "1", "1:", "a:1", "1:2:3"] {
        assert!(text.parse::<Minutes>().is_err(), "{text}");
    }
}
