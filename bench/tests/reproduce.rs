//! Every experiment of `baton reproduce`, in a size that means nothing but runs all of its code.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_core::Policy;
use std::fs;
use std::path::{Path, PathBuf};

use baton_bench::reproduce::{ALL, Precision, ReproduceError, Reproduced, names, reproduce};
use baton_sim::{PolicyName, Run, Scenario, analytic_bound_rps, goodput, run_distributions};
use serde_json::Value;

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
        _ => folder,
    }
}

fn smoke(name: &str, out: &Path) -> Vec<Reproduced> {
    reproduce(name, Precision::Smoke, out).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Rows of a table have as many cells as its head, and no cell is empty.
fn check_tables(name: &str, markdown: &str) -> usize {
    let cells = |line: &str| line.trim().matches('|').count();
    let lines: Vec<&str> = markdown.lines().collect();
    let mut tables = 0;
    for (i, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with('|')) {
        tables += usize::from(line.starts_with("|---"));
        if let Some(above) =
            i.checked_sub(1).map(|i| lines[i]).filter(|above| above.starts_with('|'))
        {
            assert_eq!(cells(above), cells(line), "{name}: {line}");
        }
        for bad in ["|  |", "NaN", "inf"] {
            assert!(!line.contains(bad), "{name}: {bad} in {line}");
        }
    }
    tables
}

/// Well-formed, and every text and line is on the canvas.
fn check_svg(name: &str, svg: &str) {
    let document =
        roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{name}: {error}"));
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "svg", "{name}");
    let number =
        |node: roxmltree::Node<'_, '_>, key| node.attribute(key).unwrap().parse::<f64>().unwrap();
    let (width, height) = (number(root, "width"), number(root, "height"));
    let texts = root.descendants().filter(|node| node.has_tag_name("text"));
    let mut words = String::new();
    for text in texts {
        let (x, y) = (number(text, "x"), number(text, "y"));
        assert!((0.0..width).contains(&x) && (0.0..height).contains(&y), "{name}: {text:?}");
        words.push_str(text.text().unwrap());
    }
    let mut drawn = 0;
    for line in root.descendants().filter(|node| node.has_tag_name("polyline")) {
        for point in line.attribute("points").unwrap().split_whitespace() {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((0.0..=width).contains(&x) && (0.0..=height).contains(&y), "{name}: {point}");
            drawn += 1;
        }
    }
    assert!(drawn > 20, "{name}: {drawn} points");
    assert!(words.contains("SMOKE RUN"), "{name} is not marked as what it is");
    assert!(svg.len() < 200_000, "{name}: {} bytes", svg.len());
}

fn check_data(name: &str, data: &Value) {
    for key in
        ["experiment", "title", "effort", "duration_s", "seeds", "paper", "standings", "points"]
    {
        assert!(data.get(key).is_some(), "{name}: {key}");
    }
    assert_eq!((&data["experiment"], &data["effort"]), (&Value::from(name), &Value::from("smoke")));
    let list = |key: &str| data[key].as_array().unwrap_or_else(|| panic!("{name}: {key}")).clone();
    assert!(!list("points").is_empty(), "{name}");
    let is_ours = ["latency", "gpus"].contains(&name);
    assert_eq!(list("paper").is_empty(), is_ours, "{name}: what the paper says");
    for claim in list("paper") {
        for key in ["says", "place", "here"] {
            assert!(claim[key].as_str().is_some_and(|text| !text.is_empty()), "{name}: {claim}");
        }
    }
    for point in list("points") {
        for result in point["results"].as_array().into_iter().flatten() {
            for key in
                ["policy", "goodput_rps", "ratio", "mean_batch", "gpu_utilization", "seeds_rps"]
            {
                assert!(!result[key].is_null(), "{name}: {key} of {result}");
            }
            let (goodput, bound) = (&result["goodput_rps"], &point["analytic_bound_rps"]);
            let ratio = goodput.as_f64().unwrap() / bound.as_f64().unwrap();
            assert!((ratio - result["ratio"].as_f64().unwrap()).abs() < 1e-3, "{name}: {result}");
        }
        if let Some(text) = point["scenario"].as_str() {
            let scenario = Scenario::parse(text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"));
            let bound = point["analytic_bound_rps"].as_f64().unwrap();
            assert!((bound - analytic_bound_rps(&scenario)).abs() < 0.1, "{name}: {point}");
        }
    }
}

/// What a file says about a policy is what the simulator says about its scenario.
#[test]
fn a_point_can_be_measured_again_by_itself() {
    let parts = smoke("table4", &folder("reproduce-again"));
    for point in parts[0].data["points"].as_array().unwrap() {
        let scenario = Scenario::parse(point["scenario"].as_str().unwrap()).unwrap();
        let results = point["results"].as_array().unwrap();
        assert!(results.len() > 5);
        for result in results {
            let policy: PolicyName = result["policy"].as_str().unwrap().parse().unwrap();
            let again = goodput(&scenario, policy, 1).unwrap();
            let written = result["goodput_rps"].as_f64().unwrap();
            assert!((written - again.goodput_rps).abs() < 0.1, "{policy}: {result}");
        }
    }
}

/// The fewest GPUs suffice, and one less does not.
#[test]
fn the_fewest_gpus_are_the_fewest() {
    let parts = smoke("gpus", &folder("reproduce-fewest"));
    let mut fewer = 0;
    for point in parts[0].data["points"].as_array().unwrap() {
        let scenario = Scenario::parse(point["scenario"].as_str().unwrap()).unwrap();
        let worst = |gpus, rate_rps| {
            let scenario = Scenario { gpus, ..scenario.clone() };
            let run = Run {
                policy: PolicyName::Production(Policy::Baton),
                rate_rps,
                seed: scenario.seed,
            };
            run_distributions(&scenario, run).unwrap().0.worst_model_bad_rate
        };
        for run in point["runs"].as_array().unwrap() {
            let rate = run["load"].as_f64().unwrap() * point["goodput_rps"].as_f64().unwrap();
            let least = run["least"].as_u64().unwrap() as u32;
            assert!((1..=scenario.gpus).contains(&least), "{run}");
            assert!(least == scenario.gpus || worst(least, rate) <= 0.01, "{run}");
            assert!(least == 1 || worst(least - 1, rate) > 0.01, "{run}");
            fewer += u32::from(least < scenario.gpus);
        }
    }
    assert!(fewer > 0, "all loads need all GPUs");
}

#[test]
fn all_of_them_write_their_files_and_the_page() {
    let out = folder("reproduce-all");
    let parts = smoke(ALL, &out);
    assert_eq!(parts.iter().map(|part| part.name).collect::<Vec<_>>(), names());
    assert_eq!(names().len(), 14);
    let page = fs::read_to_string(out.join("reproduction.md")).unwrap();
    assert!(page.contains("This is a quick run") && page.contains("## Who wins where"));
    for Reproduced { name, data, section } in &parts {
        let figures = out.join("reproduction");
        let read = |ending| fs::read_to_string(figures.join(format!("{name}.{ending}"))).unwrap();
        let written: Value = serde_json::from_str(&read("json")).unwrap();
        assert_eq!(&written, data, "{name}");
        check_data(name, data);
        check_svg(name, &read("svg"));
        assert!(check_tables(name, section) >= 2, "{name}: what the paper says, and results");
        assert!(page.contains(section.trim_end()), "{name} is not on the page");
        assert!(section.contains(&format!("](reproduction/{name}.svg)")), "{name}");
    }
    check_tables("page", &page);
}

/// Two threads take turns as they like; the files must not show it.
#[test]
fn the_same_effort_gives_the_same_bytes() {
    let files = |out: &Path| {
        for name in ["table4", "fig1", "fig8", "fig9", "fig10"] {
            smoke(name, out);
        }
        let mut files: Vec<PathBuf> = fs::read_dir(out.join("reproduction"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        assert_eq!(files.len(), 10);
        files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>()
    };
    assert!(files(&folder("reproduce-once")) == files(&folder("reproduce-twice")));
}

#[test]
fn what_is_no_experiment_is_refused_before_anything_is_written() {
    let out = folder("reproduce-none");
    let error = reproduce("fig5", Precision::Smoke, &out).unwrap_err();
    assert!(matches!(&error, ReproduceError::Name { name } if name == "fig5"), "{error}");
    assert!(error.to_string().contains("table4, fig6"), "{error}");
    assert!(!out.exists());
}
