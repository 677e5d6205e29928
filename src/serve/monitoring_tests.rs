//! The alerts and the dashboard of `examples/monitoring/` name only what processes show, and what the documentation has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use baton_metrics::{Kind, Metric};
use serde_json::Value;

use super::exposed::tests::registry;

const RULES: &str = include_str!("../../examples/monitoring/baton-alerts.yml");
const RULES_TEST: &str = include_str!("../../examples/monitoring/baton-alerts-test.yml");
const SCRAPES: &str = include_str!("../../examples/monitoring/prometheus.yml");
const DASHBOARD: &str = include_str!("../../examples/monitoring/baton-dashboard.json");

/// What Prometheus adds to what it scrapes, and what `prometheus.yml` does.
const OF_TARGETS: [&str; 3] = ["job", "instance", "cluster"];

/// The labels that each name may have.
struct Known(BTreeMap<String, BTreeSet<String>>);

impl Known {
    fn new() -> Self {
        let mut known = Self(BTreeMap::new());
        for metric in registry() {
            match metric.kind {
                Kind::Histogram => {
                    known.add(format!("{}_bucket", metric.name), &metric, &["le"]);
                    known.add(format!("{}_count", metric.name), &metric, &[]);
                    known.add(format!("{}_sum", metric.name), &metric, &[]);
                }
                Kind::Counter | Kind::Gauge => known.add(metric.full_name(), &metric, &[]),
            }
        }
        let mut prometheus = |name: &str, labels: &[&str]| {
            let labels = labels.iter().chain(&OF_TARGETS).map(|&label| label.to_owned());
            known.0.insert(name.to_owned(), labels.collect());
        };
        prometheus("up", &[]);
        prometheus("ALERTS", &["alertname", "alertstate", "severity"]);
        for rule in rules().into_iter().filter(|rule| !rule.is_alert) {
            prometheus(&rule.name, &["model"]);
        }
        known
    }

    fn add(&mut self, name: String, metric: &Metric, more: &[&str]) {
        let labels = metric.labels.iter().chain(more).chain(&OF_TARGETS);
        self.0.insert(name, labels.map(|&label| label.to_owned()).collect());
    }

    /// The labels of everything that an expression names, or what is wrong with it.
    fn labels(&self, expression: &str) -> Result<BTreeSet<String>, String> {
        let (mut all, mut grouping) = (BTreeSet::new(), Vec::new());
        let mut rest = expression;
        while let Some(at) = rest.find(starts_word) {
            let (word, behind) = word(&rest[at..]);
            rest = behind;
            if let Some(labels) = self.0.get(word) {
                if let Some(inner) = enclosed(rest, '{', '}') {
                    unknown(selected(inner), labels).map_or(Ok(()), Err)?;
                    rest = &rest[inner.len() + 2..];
                }
                all.extend(labels.iter().cloned());
            } else if ["by", "on"].contains(&word) {
                let inner = enclosed(rest.trim_start(), '(', ')').unwrap_or_default();
                grouping.extend(inner.split(',').map(str::trim).filter(|label| !label.is_empty()));
                rest = &rest[rest.find(')').unwrap_or_default()..];
            } else if word.contains("baton") {
                return Err(format!("no process shows {word}"));
            }
        }
        unknown(grouping.into_iter(), &all).map_or(Ok(all), Err)
    }
}

/// `a="x", b=~"y"` selects by `a` and `b`.
fn selected(inner: &str) -> impl Iterator<Item = &str> {
    let words = inner.split('"').step_by(2);
    let names = words.map(|word| word.trim_matches([',', ' ', '=', '~', '!']));
    names.filter(|name| !name.is_empty())
}

fn unknown<'a>(
    mut labels: impl Iterator<Item = &'a str>,
    known: &BTreeSet<String>,
) -> Option<String> {
    let label = labels.find(|label| !known.contains(*label))?;
    Some(format!("there is no label {label} among {known:?}"))
}

fn starts_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

/// The first word, and what is behind it.
fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(starts_word(c) || c.is_ascii_digit() || c == ':'));
    text.split_at(end.unwrap_or(text.len()))
}

/// What stands between these, if the text begins with the first.
fn enclosed(text: &str, begin: char, end: char) -> Option<&str> {
    Some(text.strip_prefix(begin)?.split_once(end)?.0)
}

/// A rule of the file.
struct Rule {
    name: String,
    is_alert: bool,
    /// Its lines behind the first, by their keys.
    keys: BTreeMap<String, String>,
}

impl Rule {
    fn of(&self, key: &str) -> &str {
        self.keys.get(key).unwrap_or_else(|| panic!("{} has no {key}", self.name))
    }
}

/// As the file is written: one key a line, and `>-` before lines that belong together.
fn rules() -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut key = String::new();
    for line in
        RULES.lines().map(str::trim).filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        if let Some((kind, name)) = line.strip_prefix("- ").and_then(|item| item.split_once(": ")) {
            let is_alert = kind == "alert";
            rules.push(Rule { name: name.to_owned(), is_alert, keys: BTreeMap::new() });
            key.clear();
            continue;
        }
        let Some(rule) = rules.last_mut() else { continue };
        let keys = ["expr", "for", "labels", "annotations", "summary", "description", "runbook"];
        match line.split_once(':').filter(|(word, _)| keys.contains(word)) {
            Some((word, value)) => {
                word.clone_into(&mut key);
                rule.keys.insert(key.clone(), value.replace(">-", "").trim().to_owned());
            }
            None => {
                let text = rule.keys.entry(key.clone()).or_default();
                *text = format!("{text} {line}");
            }
        }
    }
    rules.retain(|rule| rule.keys.contains_key("expr"));
    rules
}

/// `{{ $labels.model }}` and `{{model}}` name `model`.
fn named_by(template: &str) -> impl Iterator<Item = &str> {
    let inside = template.split("{{").skip(1).filter_map(|part| Some(part.split_once("}}")?.0));
    inside.filter_map(|text| {
        let labels = text.split_once("$labels.").map(|(_, name)| word(name).0);
        labels.or_else(|| Some(text.trim()).filter(|text| word(text).1.is_empty()))
    })
}

#[test]
fn every_rule_names_what_is_shown_and_says_what_to_do() {
    let (known, rules) = (Known::new(), rules());
    assert_eq!(rules.len(), RULES.matches("expr:").count(), "the scan sees all of them");
    for rule in &rules {
        let labels = known.labels(rule.of("expr"));
        let labels = labels.unwrap_or_else(|wrong| panic!("{}: {wrong}", rule.name));
        if !rule.is_alert {
            continue;
        }
        let severity = rule.of("labels");
        assert!(
            ["critical", "warning", "info"].iter().any(|of| severity.contains(of)),
            "{severity}"
        );
        for text in [rule.of("summary"), rule.of("description")] {
            let control = ["else", "end", "."];
            let names = named_by(text).filter(|name| !control.contains(name));
            assert_eq!(unknown(names, &labels), None, "{}", rule.name);
        }
        let tested = RULES_TEST.contains(&format!("\"{}\"", rule.name));
        assert!(tested, "nothing in baton-alerts-test.yml expects {}", rule.name);
    }
}

#[test]
fn every_runbook_is_a_section_of_the_documentation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for rule in rules().into_iter().filter(|rule| rule.is_alert) {
        let (page, section) = rule.of("runbook").split_once('#').expect("a section");
        let text = fs::read_to_string(root.join(page)).expect(page);
        let plain = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        let slug = |title: &str| {
            title.to_lowercase().chars().filter(plain).collect::<String>().replace(' ', "-")
        };
        let titles = text.lines().filter(|line| line.starts_with('#'));
        let is_there = titles
            .map(|title| slug(title.trim_start_matches('#').trim()))
            .any(|title| title == section);
        assert!(is_there, "{}: {page} has no section #{section}", rule.name);
    }
}

#[test]
fn every_panel_names_what_is_shown_and_says_what_it_is() {
    let known = Known::new();
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let shown: Vec<&Value> = panels.iter().filter(|panel| panel["type"] != "row").collect();
    assert!(shown.len() > 20, "the scan sees them");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_i64()).collect();
    assert_eq!(ids.len(), panels.len(), "each has a number of its own");
    for panel in shown {
        let title = panel["title"].as_str().expect("a title");
        let text = panel["description"].as_str().unwrap_or_default();
        assert!(text.len() > 10, "{title} has no description");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
        let targets = panel["targets"].as_array().filter(|targets| !targets.is_empty());
        for target in targets.unwrap_or_else(|| panic!("{title} shows nothing")) {
            let expression = target["expr"].as_str().expect("an expression");
            let labels = known.labels(expression);
            let labels = labels.unwrap_or_else(|wrong| panic!("{title}: {wrong}"));
            let legend = target["legendFormat"].as_str().expect("a legend");
            assert_eq!(unknown(named_by(legend), &labels), None, "{title}");
        }
    }
    for list in [&dashboard["templating"]["list"], &dashboard["annotations"]["list"]] {
        for item in list.as_array().expect("a list") {
            for text in [&item["definition"], &item["expr"]].into_iter().filter_map(Value::as_str) {
                assert_eq!(known.labels(text).err(), None, "{text}");
            }
        }
    }
}

#[test]
fn the_addresses_that_are_scraped_are_those_of_the_example() {
    let cluster = include_str!("../../examples/cluster.toml");
    for target in SCRAPES.lines().filter(|line| line.contains("targets:") && !line.contains('#')) {
        for addr in target.split('"').skip(1).step_by(2) {
            assert!(cluster.contains(addr), "examples/cluster.toml does not name {addr}");
        }
    }
}

#[test]
fn what_no_process_shows_is_found() {
    let known = Known::new();
    for (expression, wrong) in [
        ("baton_leaders > 0", "baton_leaders"),
        ("rate(baton_backend_plans[5m])", "baton_backend_plans"),
        ("baton_leader{model=\"m\"}", "no label model"),
        ("sum by (model) (baton_gpus)", "no label model"),
        ("baton_gpus and on (variant) up", "no label variant"),
        ("baton_client_latency_seconds > 1", "baton_client_latency_seconds"),
    ] {
        let said = known.labels(expression).expect_err(expression);
        assert!(said.contains(wrong), "{expression}: {said}");
    }
    let fine = "sum by (cluster, le) (rate(baton_client_latency_seconds_bucket{job=~\"a,b\", le!=\"1\"}[5m]))";
    assert!(known.labels(fine).is_ok());
}
