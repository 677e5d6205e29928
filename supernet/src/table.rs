//! The variant table: what `[[model.variant]]` of a cluster file takes.

use serde::{Deserialize, Serialize};

use crate::pareto::Measured;

/// What begins each table that we wrote.
const FIRST_LINE: &str =
    "# Variants of a supernet, for its [[model]] in a cluster file. Written by `baton supernet`.\n";

/// What to do about another file.
const FIX: &str = "name a table that `baton supernet profile` wrote: a [[model.variant]] with name, accuracy and latency_ms for each variant";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    model: Model,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    variant: Vec<Measured>,
}

/// The table's text: a `[[model.variant]]` for each, behind the remarks.
///
/// # Panics
/// A file's path is not UTF-8.
pub fn table_text(variants: &[Measured], remarks: &[String]) -> String {
    let remarks: String = remarks.iter().map(|remark| format!("# {remark}\n")).collect();
    let file = File { model: Model { variant: variants.to_vec() } };
    let tables = toml::to_string(&file).expect("names, numbers and UTF-8 paths are TOML");
    format!("{FIRST_LINE}{remarks}\n{tables}")
}

/// Whether `baton supernet` wrote this text.
pub fn is_table(text: &str) -> bool {
    text.starts_with(FIRST_LINE)
}

/// Reads a table that [`table_text`] wrote, or one by hand.
///
/// # Errors
/// It is none; has no variant, two of one name, an accuracy that is not from 0 to 100, or a time that is not above 0.
pub fn read_table(text: &str) -> Result<Vec<Measured>, String> {
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line}: {}; {FIX}", error.message().trim())
    })?;
    let variants = file.model.variant;
    if variants.is_empty() {
        return Err(format!("has no [[model.variant]]; {FIX}"));
    }
    for (at, variant) in variants.iter().enumerate() {
        check(variant, &variants[..at])
            .map_err(|what| format!("variant {}: {what}", variant.name))?;
    }
    Ok(variants)
}

fn check(variant: &Measured, before: &[Measured]) -> Result<(), &'static str> {
    if before.iter().any(|other| other.name == variant.name) {
        return Err("there are two of this name; rename one");
    }
    if !(0.0..=100.0).contains(&variant.accuracy) {
        return Err("accuracy is in per cent, from 0 to 100");
    }
    let is_time = |&ms: &f64| ms.is_finite() && ms > 0.0;
    if variant.latency_ms.is_empty() || !variant.latency_ms.iter().all(is_time) {
        return Err("latency_ms lists ℓ(1), ℓ(2), … in ms, each above 0");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let variant = |name: &str, file: Option<&str>| Measured {
            name: name.into(),
            accuracy: 70.25,
            file: file.map(Into::into),
            latency_ms: vec![0.5, 1.25],
        };
        let variants = vec![variant("a", None), variant("b", Some("b.onnx"))];
        let text = table_text(&variants, &["measured on: cpu".into()]);
        assert!(is_table(&text) && text.contains("# measured on: cpu\n"), "{text}");
        assert_eq!(text.matches("[[model.variant]]").count(), 2);
        assert_eq!(read_table(&text).unwrap(), variants);
    }

    #[test]
    fn another_file_is_refused_with_what_to_name_instead() {
        for text in ["", "[scheduler]\n", "[model]\nvariant = []\n", "gpus = 3", "name = "] {
            let error = read_table(text).unwrap_err();
            assert!(error.ends_with(FIX), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_no_table_is_refused_with_its_place() {
        let variant = "[[model.variant]]\nname = \"a\"\naccuracy = 70\nlatency_ms = [1.0]\n";
        let cases = [
            ("", "line 1: missing field `model`"),
            ("[[model.variant]]\nname = \"a\"\nsize = 3\n", "line 3: unknown field `size`"),
            (&variant.replace("70", "170"), "variant a: accuracy is in per cent"),
            (&variant.replace("1.0", "0.0"), "variant a: latency_ms lists"),
            (&variant.repeat(2), "variant a: there are two of this name"),
            (
                &[variant, &variant.replace("\"a\"", "\"b\""), variant].concat(),
                "variant a: there are two",
            ),
        ];
        for (text, said) in cases {
            let error = read_table(text).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
