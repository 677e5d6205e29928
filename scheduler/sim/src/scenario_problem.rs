//! A mistake in a scenario file, told as those of a cluster file are: file, line, key, what is wrong, and the fix.

use std::path::Path;

use baton_topo::{Problem, nearest_word};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::scenario_file::ScenarioError;

const UNREADABLE_FIX: &str = "name a readable scenario file";

/// The error with its place in the file. One that names its file already stays as it is.
pub(crate) fn located(path: &Path, text: &str, error: ScenarioError) -> ScenarioError {
    let (line, key, what, fix) = match &error {
        ScenarioError::Unreadable { error, .. } => {
            (None, String::new(), format!("cannot be read: {error}"), UNREADABLE_FIX.to_owned())
        }
        ScenarioError::Syntax(error) => syntax(text, error),
        ScenarioError::ModelTwice { name, first, second } => twice(text, name, *first, *second),
        other => {
            let Some((key, what, fix)) = of_key(other) else { return error };
            (line_of(text, &key), key, what, fix)
        }
    };
    ScenarioError::InFile(Problem { file: path.to_owned(), line, key, what, fix })
}

fn of_key(error: &ScenarioError) -> Option<(String, String, String)> {
    use ScenarioError as E;
    let (key, what, fix): (&str, String, String) = match error {
        E::Range { key, value, min, max } => {
            (key, format!("is {value}"), format!("give a number from {min} to {max}"))
        }
        E::NoModel => {
            let fix = "name a zoo (\"1080ti\", \"a100\" or \"clockwork\"), or add a [[model]]";
            ("model", "there is no model".into(), fix.into())
        }
        E::FilterWithoutZoo => {
            ("zoo_filter", "has no effect without zoo".into(), "remove it, or name a zoo".into())
        }
        E::Silence { key } => {
            let what = "nothing arrives in the measured span";
            (key, what.into(), "give a factor above 0 there".into())
        }
        E::GpuEvent { at_s, gpu } => {
            let what = format!("at {at_s} s, slot {gpu} is in that state already");
            ("gpu_event", what, "remove the event, or correct its slot or kind".into())
        }
        E::ReplaySays { key } => {
            (key, "has no effect on a replay that says it all".into(), "remove it".into())
        }
        E::SubclusterGpus { sum, gpus } => {
            let what = format!("is {gpus}, and the [[subcluster]] have {sum} together");
            ("gpus", what, "make them the same".into())
        }
        E::SubclusterTwice { name } => {
            ("subcluster", format!("there are two named \"{name}\""), "rename one".into())
        }
        E::NoEffect { key, why } => (key, format!("has no effect {why}"), "remove it".into()),
        other => return of_model(other),
    };
    Some((key.to_owned(), what, fix))
}

/// As [`of_key`], of a mistake in one model.
fn of_model(error: &ScenarioError) -> Option<(String, String, String)> {
    use ScenarioError as E;
    Some(match error {
        E::Subcluster { model, name } => {
            let what = format!("there is no [[subcluster]] named \"{name}\"");
            (format!("{model}.subcluster"), what, "add it".into())
        }
        E::NoWeights { model } => {
            let (what, fix) = ("there are pages, and it takes an unknown number", "add weights_mb");
            (format!("{model}.name"), what.into(), fix.into())
        }
        E::Latency { model } => {
            let (what, fix) =
                ("has not one latency profile", "give alpha_ms and beta_ms, or latency_ms");
            (format!("{model}.name"), what.into(), fix.into())
        }
        E::Profile { name, error, is_table } => {
            let (key, fix) = match is_table {
                true => ("latency_ms", "correct it"),
                false => ("alpha_ms", "correct alpha_ms and beta_ms"),
            };
            (format!("{name}.{key}"), error.to_string(), fix.into())
        }
        E::Weights { model, weights_mb, pages, most_mb } => {
            let what =
                format!("is {weights_mb}, and the pages of a slot, {pages}, hold {most_mb:.1} MB");
            (format!("{model}.weights_mb"), what, "correct it, or give more pages".into())
        }
        E::Variants { model, problem } => {
            (format!("{model}.variant"), problem.what.clone(), problem.fix.into())
        }
        _ => return None,
    })
}

type Found = (Option<usize>, String, String, String);

/// At the second model of a name: where the first is.
fn twice(text: &str, name: &str, first: Option<usize>, second: usize) -> Found {
    let line = |at: usize| {
        let tree = DeTable::parse(text).ok()?;
        let table = tree.get_ref().get("model")?.get_ref().as_array()?.get(at)?;
        Some(line_at(text, table.span().start))
    };
    let other = match first {
        Some(first) => format!("line {}", line(first).unwrap_or(1)),
        None => "the zoo".to_owned(),
    };
    let what = format!("\"{name}\" is the name of another model too, of {other}");
    (line(second), format!("model[{second}].name"), what, "rename one".to_owned())
}

/// What the reader of TOML says: "unknown field `x`, expected one of `a`, `b`".
fn syntax(text: &str, error: &toml::de::Error) -> Found {
    let line = error.span().map(|span| line_at(text, span.start));
    let message = error.message();
    if DeTable::parse(text).is_err() {
        let fix = "correct the syntax here (see https://toml.io)".to_owned();
        return (line, String::new(), format!("not TOML: {message}"), fix);
    }
    let (what, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    if what.starts_with("invalid type") {
        let key = error.span().map_or(String::new(), |span| key_at(text, span.start));
        let fix = of_kind(&key, expected);
        return (line, key, what.to_owned(), fix);
    }
    (line, String::new(), what.to_owned(), word_meant(what, expected))
}

/// What to write instead of a key or a word that is not known.
fn word_meant(what: &str, expected: &str) -> String {
    let quoted = |text: &str| -> Vec<String> {
        text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let known = quoted(expected);
    let words: Vec<&str> = known.iter().map(String::as_str).collect();
    let refused = quoted(what).into_iter().next().unwrap_or_default();
    let others = |meant: &str| -> String {
        words.iter().filter(|word| **word != meant).copied().collect::<Vec<_>>().join(", ")
    };
    match nearest_word(&refused, &words) {
        _ if what.starts_with("missing field") => "add it".to_owned(),
        _ if refused == "backend" || refused == "scheduler" => {
            "give a cluster file with --cluster instead of --scenario".to_owned()
        }
        _ if refused == "variant" => "write [[model.variant]] behind its [[model]]".to_owned(),
        _ if words.is_empty() => "correct it; docs/simulator.md lists the keys".to_owned(),
        Some(word) if words.len() == 1 => format!("write {word}"),
        Some(word) => format!("write {word}, or another of: {}", others(word)),
        None => format!("use one of: {}", others("")),
    }
}

/// How keys that take more than a number or a word are written.
const TABLES: [(&str, &str); 9] = [
    ("arrival", "{ process = \"gamma\", shape = 0.1 }"),
    ("load", "{ shape = \"steps\", points = [[0, 1], [10, 2]] }"),
    ("popularity", "{ kind = \"zipf\", s = 0.9 }"),
    ("network", "{ ctrl_us = 300, data_us_per_task = 20 }"),
    ("port", "{ slots = 2, us_per_task = 20 }"),
    ("stragglers", "{ factor = 2, fraction = 0.01 }"),
    ("profile_error", "{ factor = 1.1, spread = 0.2 }"),
    ("slow_link", "{ gpu = 0, factor = 3 }"),
    ("closed_loop", "{ clients = 16 }"),
];

/// What to write where a value is of another kind than `expected`.
fn of_kind(key: &str, expected: &str) -> String {
    if let Some((_, example)) = TABLES.iter().find(|(table, _)| *table == key) {
        return format!("write it like this: {key} = {example}");
    }
    let begins = |letters: &[char]| expected.starts_with(letters);
    match expected {
        "a sequence" => "give a list in brackets".to_owned(),
        "a string" => "give a text in quotation marks".to_owned(),
        _ if begins(&['u', 'i']) => "give a whole number, without a unit".to_owned(),
        _ if begins(&['f']) => "give a number, without a unit".to_owned(),
        _ => "correct it; docs/simulator.md lists the keys".to_owned(),
    }
}

/// The key of the line that this is in; empty without one.
fn key_at(text: &str, byte: usize) -> String {
    let start = text[..byte].rfind('\n').map_or(0, |at| at + 1);
    let line = text[start..].lines().next().unwrap_or_default();
    line.split_once('=').map_or("", |(key, _)| key.trim()).to_owned()
}

/// The line of a key such as `gpus`, `network.ctrl_us`, or with a model's name before the point; of its table if the key is
/// absent.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let tree = DeTable::parse(text).ok()?;
    let root = tree.get_ref();
    let (table, field) = key.rsplit_once('.').unwrap_or(("", key));
    let place = match root.get_key_value(table) {
        None if table.is_empty() => root.get_key_value(field).map(|(key, _)| key.span()),
        Some((key, value)) => Some(within(value, field).unwrap_or_else(|| key.span())),
        None => {
            named(root, table).map(|value| within(value, field).unwrap_or_else(|| value.span()))
        }
    };
    place.map(|span| line_at(text, span.start))
}

/// The key's place in a table, or in the first of several that has it.
fn within(value: &Spanned<DeValue<'_>>, field: &str) -> Option<std::ops::Range<usize>> {
    match value.get_ref() {
        DeValue::Table(table) => table.get_key_value(field).map(|(key, _)| key.span()),
        DeValue::Array(items) => items.iter().find_map(|item| within(item, field)),
        _ => None,
    }
}

/// The `[[model]]` of this name, that of a copy has a number behind it; or of `MODEL.variant.NAME` the variant.
fn named<'a>(root: &'a DeTable<'a>, name: &str) -> Option<&'a Spanned<DeValue<'a>>> {
    let (model, variant) = match name.rsplit_once(".variant.") {
        Some((model, variant)) => (model, Some(variant)),
        None => (name, None),
    };
    let is_its = |own: &str| {
        let rest = model.strip_prefix(own);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let model = item(root.get("model")?, is_its)?;
    let Some(variant) = variant else { return Some(model) };
    item(model.get_ref().get("variant")?, |own| own == variant)
}

/// The first of several tables whose name is such.
fn item<'a>(
    tables: &'a Spanned<DeValue<'a>>,
    is_such: impl Fn(&str) -> bool,
) -> Option<&'a Spanned<DeValue<'a>>> {
    tables.get_ref().as_array()?.iter().find(|table| {
        let name = table.get_ref().get("name").and_then(|name| name.get_ref().as_str());
        name.is_some_and(&is_such)
    })
}

/// Counted from 1.
fn line_at(text: &str, byte: usize) -> usize {
    text.as_bytes()[..byte.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}
