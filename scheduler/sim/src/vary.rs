//! A scenario file with one key changed.

use std::fmt;
use std::str::FromStr;

use toml::{Table, Value};

/// A key of the scenario file and the values to try: `KEY=VALUE,VALUE,…`.
#[derive(Clone, PartialEq, Debug)]
pub struct Vary {
    /// Dotted; `model.` stands for every `[[model]]`.
    key: String,
    /// As written.
    values: Vec<String>,
}

/// Keys that are known without their table.
const SHORT: [(&str, &str); 9] = [
    ("alpha_ms", "model"),
    ("beta_ms", "model"),
    ("slo_ms", "model"),
    ("copies", "model"),
    ("ctrl_us", "network"),
    ("data_us_per_task", "network"),
    ("shape", "arrival"),
    ("base_rps", "arrival"),
    ("s", "popularity"),
];

impl Vary {
    /// The key with its table.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The values in the order given.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// The scenario file's text with the key set to the value.
    pub(crate) fn set(&self, text: &str, value: &str) -> Result<String, VaryError> {
        let mut file: Table = text.parse()?;
        let (tables, key) = match self.key.rsplit_once('.') {
            Some((tables, key)) => (Some(tables), key),
            None => (None, self.key.as_str()),
        };
        let value = read(value);
        match tables {
            None => drop(file.insert(key.to_owned(), value)),
            Some("model") => self.set_in_models(&mut file, key, &value)?,
            Some(table) => {
                let entry = file.entry(table).or_insert_with(|| Value::Table(Table::new()));
                let Value::Table(entry) = entry else { return Err(self.no_table()) };
                entry.insert(key.to_owned(), value);
            }
        }
        Ok(file.to_string())
    }

    fn set_in_models(&self, file: &mut Table, key: &str, value: &Value) -> Result<(), VaryError> {
        let Some(Value::Array(models)) = file.get_mut("model") else { return Err(self.no_table()) };
        for model in models {
            let Value::Table(model) = model else { return Err(self.no_table()) };
            model.insert(key.to_owned(), value.clone());
        }
        Ok(())
    }

    fn no_table(&self) -> VaryError {
        VaryError::NoTable { key: self.key.clone() }
    }
}

/// A number, a table or whatever TOML has; else the word itself.
fn read(value: &str) -> Value {
    value.parse().unwrap_or_else(|_| Value::String(value.to_owned()))
}

/// Why a key cannot be changed.
#[derive(thiserror::Error, Debug)]
pub enum VaryError {
    /// The file is not TOML.
    #[error("the scenario file cannot be read: {0}")]
    Syntax(#[from] toml::de::Error),
    /// What the key is part of is missing or no table.
    #[error("{key}: the scenario file has no such table to set it in")]
    NoTable {
        /// The key.
        key: String,
    },
}

impl FromStr for Vary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write KEY=VALUE,VALUE,…, for example gpus=8,16,32";
        let (key, values) = text.split_once('=').ok_or(form)?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        if key.is_empty() || values.iter().any(String::is_empty) {
            return Err(form.to_owned());
        }
        let table = SHORT.iter().find(|(short, _)| *short == key);
        let key = table.map_or_else(|| key.to_owned(), |(_, table)| format!("{table}.{key}"));
        Ok(Self { key, values })
    }
}

impl fmt::Display for Vary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.values.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "gpus = 8\nnetwork = { ctrl_us = 5.0 }\n[[model]]\nname = 'a'\nslo_ms = 25.0\n\
                        [[model]]\nname = 'b'\nslo_ms = 30.0\n";

    fn with(vary: &str) -> Table {
        let vary: Vary = vary.parse().unwrap();
        vary.set(FILE, &vary.values()[0]).unwrap().parse().unwrap()
    }

    #[test]
    fn the_key_is_set_and_the_rest_stays() {
        let before: Table = FILE.parse().unwrap();
        let mut gpus = with("gpus=16");
        assert_eq!(gpus.insert("gpus".to_owned(), Value::Integer(8)), Some(Value::Integer(16)));
        assert_eq!(gpus, before);
        let network = &with("data_us_per_task=2.5")["network"];
        assert_eq!(
            (network["ctrl_us"].as_float(), network["data_us_per_task"].as_float()),
            (Some(5.0), Some(2.5))
        );
        assert_eq!(with("network.ctrl_us=7")["network"]["ctrl_us"].as_integer(), Some(7));
    }

    #[test]
    fn a_models_key_is_set_in_every_model() {
        for key in ["slo_ms", "model.slo_ms"] {
            let file = with(&format!("{key}=40"));
            let slos = file["model"].as_array().unwrap().iter().map(|m| m["slo_ms"].as_integer());
            assert_eq!(slos.collect::<Vec<_>>(), [Some(40); 2], "{key}");
        }
    }

    #[test]
    fn missing_tables_are_made_and_words_need_no_quotes() {
        assert_eq!(with("shape=0.1")["arrival"]["shape"].as_float(), Some(0.1));
        assert_eq!(with("zoo=a100")["zoo"].as_str(), Some("a100"));
        assert_eq!(with("zoo=1080ti")["zoo"].as_str(), Some("1080ti"));
    }

    #[test]
    fn what_cannot_be_set_is_refused() {
        for text in ["gpus", "=8", "gpus=", "gpus=8,,9"] {
            assert!(text.parse::<Vary>().is_err(), "{text}");
        }
        let set = |vary: &str, file: &str| vary.parse::<Vary>().unwrap().set(file, "1");
        assert!(set("slo_ms=1", "gpus = 1").unwrap_err().to_string().contains("model.slo_ms"));
        assert!(set("gpus.x=1", "gpus = 1").unwrap_err().to_string().contains("gpus.x"));
        assert!(matches!(set("gpus=1", "gpus ="), Err(VaryError::Syntax(_))));
    }
}
