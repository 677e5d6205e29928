//! One table of the cluster file, read key by key.
//!
//! Every reader returns `None` both for a key that is absent and for one that it refuses. The
//! refusal is in the [`Findings`], so callers continue with a default and find the next problem.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use baton_types::Nanos;
use serde::Deserialize;
use serde::de::value::{Error as WordError, StrDeserializer};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use crate::cluster_file::problem::{Findings, Place};
use crate::machine::CpuSet;

/// Longest name of a model, backend or sub-cluster: it travels in catalogue messages.
const NAME_BYTES_MAX: usize = 64;
/// What is wrong with a key that no reader knows.
pub(super) const NOT_A_KEY: &str = "is not a key of this table";

type Value<'a> = Spanned<DeValue<'a>>;
type ByName<T> = BTreeMap<String, T>;

/// A table, or the absence of one: then every key is absent.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    /// How problems name the table: `scheduler`, `model[2]`; empty for the file's top level.
    name: String,
    span: Range<usize>,
    entries: Option<&'a DeTable<'a>>,
    /// The keys that the readers have asked for. All others are unknown at the end.
    asked: RefCell<Vec<&'static str>>,
    findings: &'a Findings<'a>,
}

impl<'a> Section<'a> {
    /// The file's top level.
    pub(crate) fn root(entries: &'a DeTable<'a>, findings: &'a Findings<'a>) -> Self {
        Self::new(String::new(), 0..0, Some(entries), findings)
    }

    fn new(
        name: String,
        span: Range<usize>,
        entries: Option<&'a DeTable<'a>>,
        findings: &'a Findings<'a>,
    ) -> Self {
        Self { name, span, entries, asked: RefCell::default(), findings }
    }

    /// The table `[key]`.
    pub(crate) fn table(&self, key: &'static str) -> Section<'a> {
        let entries = self.value(key).and_then(|value| match value.get_ref() {
            DeValue::Table(entries) => Some(entries),
            other => {
                self.refuse(key, format!("is {}", describe(other)), format!("write [{key}]"));
                None
            }
        });
        let span = self.place(key).span;
        Section::new(key.to_owned(), span, entries, self.findings)
    }

    /// The tables `[[key]]`.
    pub(crate) fn tables(&self, key: &'static str) -> Vec<Section<'a>> {
        let parent = self.name.split('[').next().unwrap_or_default();
        let table = if parent.is_empty() { key.to_owned() } else { format!("{parent}.{key}") };
        let fix = || format!("write [[{table}]] once for every {key}");
        match self.value(key).map(Spanned::get_ref) {
            None => Vec::new(),
            Some(DeValue::Array(items)) => items
                .iter()
                .enumerate()
                .filter_map(|(i, item)| {
                    let DeValue::Table(entries) = item.get_ref() else {
                        self.refuse(key, format!("holds {}", describe(item.get_ref())), fix());
                        return None;
                    };
                    let name = self.full_name(&format!("{key}[{i}]"));
                    Some(Section::new(name, item.span(), Some(entries), self.findings))
                })
                .collect(),
            Some(other) => {
                self.refuse(key, format!("is {}", describe(other)), fix());
                Vec::new()
            }
        }
    }

    /// True if the key is there, whatever its value.
    pub(crate) fn has(&self, key: &'static str) -> bool {
        self.value(key).is_some()
    }

    /// False, and a problem, if the key is absent.
    pub(crate) fn require(&self, key: &'static str, fix: &str) -> bool {
        let present = self.has(key);
        if !present {
            self.refuse(key, "is missing", fix);
        }
        present
    }

    /// `true` or `false`.
    pub(crate) fn truth(&self, key: &'static str) -> Option<bool> {
        let value = self.value(key)?.get_ref();
        let truth = value.as_bool();
        if truth.is_none() {
            self.refuse(key, format!("is {}", describe(value)), "give true or false");
        }
        truth
    }

    /// A whole number within `range`.
    pub(crate) fn integer(&self, key: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let found = integer(self.value(key)?.get_ref(), &range);
        self.accept(key, found)
    }

    /// A number within `range`, whole or not.
    pub(crate) fn number(&self, key: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        let found = number(self.value(key)?.get_ref(), &range);
        self.accept(key, found)
    }

    /// Milliseconds within `range`, with a fraction if need be.
    pub(crate) fn millis(&self, key: &'static str, range: RangeInclusive<f64>) -> Option<Nanos> {
        self.number(key, range).map(Nanos::from_millis_f64)
    }

    /// A string.
    pub(crate) fn text(&self, key: &'static str) -> Option<&'a str> {
        let value = self.value(key)?.get_ref();
        let text = value.as_str();
        if text.is_none() {
            self.refuse(key, format!("is {}", describe(value)), "give a string in quotes");
        }
        text
    }

    /// A name: short, and free of what shells, logs and `MODEL=RATE` arguments trip over.
    pub(crate) fn name(&self, key: &'static str) -> Option<&'a str> {
        let text = self.text(key)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
        if (1..=NAME_BYTES_MAX).contains(&text.len()) && text.chars().all(plain) {
            return Some(text);
        }
        let fix = format!("use 1 to {NAME_BYTES_MAX} letters, digits and any of . _ - / :");
        self.refuse(key, format!("\"{}\" is not a name", shorten(text)), fix);
        None
    }

    /// One of `all`, by its name.
    pub(crate) fn choice<T: FromStr + Display>(&self, key: &'static str, all: &[T]) -> Option<T> {
        let text = self.text(key)?;
        let chosen = text.parse().ok();
        if chosen.is_none() {
            let names: Vec<String> = all.iter().map(|one| format!("`{one}`")).collect();
            let fix = format!("write one of {}", names.join(", "));
            self.refuse(key, format!("is \"{}\"", shorten(text)), fix);
        }
        chosen
    }

    /// One of the words `T` knows.
    pub(crate) fn word<T: Deserialize<'a>>(&self, key: &'static str) -> Option<T> {
        let text = self.text(key)?;
        match T::deserialize(StrDeserializer::<WordError>::new(text)) {
            Ok(word) => Some(word),
            Err(error) => {
                // serde words it "unknown variant `x`, expected one of `a`, `b`".
                let error = error.to_string();
                let choices = error.split_once("expected ").map_or("", |(_, choices)| choices);
                self.refuse(key, format!("is \"{}\"", shorten(text)), format!("write {choices}"));
                None
            }
        }
    }

    /// A list of whole numbers, each within `range`.
    pub(crate) fn integers(
        &self,
        key: &'static str,
        range: RangeInclusive<u32>,
    ) -> Option<Vec<u32>> {
        self.list(key, |value| integer(value, &range))
    }

    /// A list of numbers, each within `range`.
    pub(crate) fn numbers(
        &self,
        key: &'static str,
        range: RangeInclusive<f64>,
    ) -> Option<Vec<f64>> {
        self.list(key, |value| number(value, &range))
    }

    /// A table of whole numbers, each within `range`, by their names.
    pub(crate) fn integers_by_name(
        &self,
        key: &'static str,
        range: RangeInclusive<u32>,
        example: &str,
    ) -> Option<ByName<u32>> {
        self.by_name(key, example, |value| integer(value, &range))
    }

    /// A table of values by their names.
    pub(super) fn by_name<T>(
        &self,
        key: &'static str,
        example: &str,
        item: impl Fn(&DeValue<'_>) -> Result<T, Refusal>,
    ) -> Option<ByName<T>> {
        match self.value(key)?.get_ref() {
            DeValue::Table(entries) => {
                let entry = |(name, value): (&Spanned<Cow<'_, str>>, &Value<'_>)| {
                    Ok((name.get_ref().to_string(), item(value.get_ref())?))
                };
                let found: Result<ByName<T>, Refusal> = entries.iter().map(entry).collect();
                self.accept(key, found.map_err(Refusal::of_item))
            }
            other => {
                let fix = format!("give a table: {{ {example} }}");
                self.refuse(key, format!("is {}", describe(other)), fix);
                None
            }
        }
    }

    /// A list of strings.
    pub(crate) fn texts(&self, key: &'static str) -> Option<Vec<String>> {
        self.list(key, |value| {
            let text = value.as_str().map(str::to_owned);
            text.ok_or_else(|| Refusal::new(value, "give strings in quotes".to_owned()))
        })
    }

    /// A list of certificate names: DNS names, of which the first part may be `*`. Never empty.
    pub(crate) fn names(&self, key: &'static str) -> Option<Vec<String>> {
        let names = self.list(key, certificate_name)?;
        if names.is_empty() {
            self.refuse(key, "is empty: it allows no member", "list a name, or remove the key");
        }
        Some(names)
    }

    /// Every key that no reader has asked for is a mistake, most likely a misspelt key.
    pub(crate) fn refuse_unread(&self) {
        let asked = self.asked.borrow();
        for key in self.entries.into_iter().flat_map(DeTable::keys) {
            let name: &str = key.get_ref();
            if !asked.contains(&name) {
                let place = Place { span: key.span(), key: self.full_name(&shorten(name)) };
                let known = asked.join(", ");
                let elsewhere = stray(name).filter(|_| self.name.is_empty());
                let fix = match (elsewhere, nearest_word(name, &asked)) {
                    (Some(fix), _) => fix.to_owned(),
                    (None, Some(key)) => format!("write {key}, or another of: {known}"),
                    (None, None) => format!("remove it, or use one of: {known}"),
                };
                self.findings.problem(place, NOT_A_KEY, fix);
            }
        }
    }

    /// The CPUs of the host that the file is checked for, if it is for one.
    pub(crate) fn host_cpus(&self) -> Option<&'a CpuSet> {
        self.findings.host_cpus
    }

    /// Records a problem at the key, or at the table if the key is absent.
    pub(crate) fn refuse(&self, key: &str, what: impl Into<String>, fix: impl Into<String>) {
        self.findings.problem(self.place(key), what, fix);
    }

    /// Records a warning in the same place.
    pub(crate) fn warn(&self, key: &str, what: impl Into<String>, fix: impl Into<String>) {
        self.findings.warning(self.place(key), what, fix);
    }

    /// The line of the key, or of the table if the key is absent; counted from 1.
    pub(crate) fn line(&self, key: &str) -> usize {
        self.findings.line(&self.place(key))
    }

    fn value(&self, key: &'static str) -> Option<&'a Value<'a>> {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&key) {
            asked.push(key);
        }
        self.entries?.get(key)
    }

    fn place(&self, key: &str) -> Place {
        let entry = self.entries.and_then(|entries| entries.get_key_value(key));
        let span = entry.map_or_else(|| self.span.clone(), |(key, _)| key.span());
        Place { span, key: self.full_name(key) }
    }

    fn full_name(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn list<T>(
        &self,
        key: &'static str,
        item: impl Fn(&DeValue<'_>) -> Result<T, Refusal>,
    ) -> Option<Vec<T>> {
        match self.value(key)?.get_ref() {
            DeValue::Array(items) => {
                let found: Result<Vec<T>, Refusal> =
                    items.iter().map(|value| item(value.get_ref())).collect();
                self.accept(key, found.map_err(Refusal::of_item))
            }
            other => {
                self.refuse(key, format!("is {}", describe(other)), "give a list: [1, 2]");
                None
            }
        }
    }

    fn accept<T>(&self, key: &str, found: Result<T, Refusal>) -> Option<T> {
        found.map_err(|refusal| self.refuse(key, refusal.what, refusal.fix)).ok()
    }
}

/// The word that a misspelt one was meant to be: the one that only has a unit besides, or the most alike. `None` if there is none.
pub fn nearest_word<'w>(misspelt: &str, words: &[&'w str]) -> Option<&'w str> {
    const LIKENESS_MIN: f64 = 0.6;
    const UNITS: [&str; 7] = ["_ms", "_us", "_s", "_mib", "_mb", "_rps", "_bytes"];
    let likeness = |word: &&str| strsim::normalized_damerau_levenshtein(misspelt, word);
    let lacks_unit =
        |word: &&str| word.strip_prefix(misspelt).is_some_and(|rest| UNITS.contains(&rest));
    let nearest = words.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let alike = || nearest.filter(|word| likeness(word) >= LIKENESS_MIN);
    words.iter().copied().find(lacks_unit).or_else(alike)
}

/// What to do about a key that belongs elsewhere.
fn stray(key: &str) -> Option<&'static str> {
    match key {
        "variant" => Some("write [[model.variant]] behind its [[model]]"),
        "duration_s" | "warmup_s" | "gpus" | "arrival" => {
            Some("it is a scenario's; give that file with --scenario")
        }
        _ => None,
    }
}

/// Why a value was not taken.
pub(super) struct Refusal {
    what: String,
    fix: String,
}

impl Refusal {
    pub(super) fn new(value: &DeValue<'_>, fix: String) -> Self {
        Self { what: format!("is {}", describe(value)), fix }
    }

    fn of_item(self) -> Self {
        Self { what: format!("has an entry that {}", self.what), fix: self.fix }
    }
}

pub(super) fn integer(value: &DeValue<'_>, range: &RangeInclusive<u32>) -> Result<u32, Refusal> {
    let found = match value {
        DeValue::Integer(integer) => parse(integer).and_then(|n| u32::try_from(n).ok()),
        _ => None,
    };
    found.filter(|n| range.contains(n)).ok_or_else(|| {
        let fix = format!("give a whole number from {} to {}", range.start(), range.end());
        Refusal::new(value, fix)
    })
}

fn certificate_name(value: &DeValue<'_>) -> Result<String, Refusal> {
    let plain = |name: &&str| {
        let rest = name.strip_prefix("*.").unwrap_or(name);
        let known = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        (1..=253).contains(&rest.len()) && rest.chars().all(known)
    };
    value.as_str().filter(plain).map(str::to_owned).ok_or_else(|| {
        let fix =
            "give DNS names as certificates have them: [\"gpu-1.example\", \"*.web.example\"]";
        Refusal::new(value, fix.to_owned())
    })
}

/// NaN and the infinities are in no range.
fn number(value: &DeValue<'_>, range: &RangeInclusive<f64>) -> Result<f64, Refusal> {
    let found = match value {
        DeValue::Float(float) => float.as_str().parse().ok(),
        DeValue::Integer(integer) => parse(integer).map(|n| n as f64),
        _ => None,
    };
    found.filter(|n| range.contains(n)).ok_or_else(|| {
        Refusal::new(value, format!("give a number from {} to {}", range.start(), range.end()))
    })
}

/// `None`: so large that no range of ours holds it.
pub(super) fn parse(integer: &DeInteger<'_>) -> Option<i128> {
    i128::from_str_radix(integer.as_str(), integer.radix()).ok()
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string \"{}\"", shorten(text)),
        DeValue::Integer(integer) => shorten(&integer.to_string()),
        DeValue::Float(float) => shorten(float.as_str()),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// Problems stay on one line of bearable length, whatever the file holds.
pub(crate) fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let shown: String = text.chars().take(CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(CHARS_MAX).is_some() { shown + "…" } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_that_was_meant_is_the_most_alike_or_has_a_unit_besides() {
        let words = ["slo_ms", "slots", "lease_ttl_s", "name", "gpus", "gpu_event"];
        let meant = ["slo_sm", "slo", "lease_ttl", "naem", "gpu", "x"]
            .map(|word| nearest_word(word, &words));
        let expected = ["slo_ms", "slo_ms", "lease_ttl_s", "name", "gpus"].map(Some);
        assert_eq!((&meant[..5], meant[5]), (&expected[..], None));
    }
}
