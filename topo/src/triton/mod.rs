//! Reads a Triton model repository, and writes a cluster file that serves its models.
//!
//! `text.rs` reads `config.pbtxt`, `model.rs` says what it means, `table.rs` writes a `[[model]]` table, and this file looks at
//! folders. Whatever is not carried over becomes a [`Note`] with its line.

mod model;
mod table;
mod text;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::cluster_file::{Problem, check_text};
use model::{Config, Place};

/// A longer configuration is not read.
const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// Folders of a repository: more than a scheduler has models.
const FOLDERS_MAX: usize = crate::MODELS_MAX as usize;

/// Models that a line names.
const NAMES_MAX: usize = 8;

/// What is written where the repository does not say it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Defaults {
    /// The latency objective, ms: Triton's models have none.
    pub slo_ms: f64,
    /// Serve every model on the CPU, wherever Triton executes it.
    pub cpu: bool,
}

/// A repository, read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imported {
    /// A cluster file that `baton config check` accepts.
    pub text: String,
    /// Names of the models in it.
    pub models: Vec<String>,
    /// What is not carried over or must be looked at, model by model.
    pub notes: Vec<Note>,
}

/// Something that is not carried over, or that must be looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The model's name.
    pub model: String,
    /// The line in its `config.pbtxt`; `None`: of no line.
    pub line: Option<usize>,
    /// What, and what to do.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, line, text } = self;
        match line {
            Some(line) => write!(f, "{model}: config.pbtxt:{line}: {text}"),
            None => write!(f, "{model}: {text}"),
        }
    }
}

/// Why there is nothing to import.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The folder cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The folder has more folders than a cluster may have models.
    #[error("{}: it has more than {FOLDERS_MAX} folders; import them in parts", path.display())]
    TooMany {
        /// The folder.
        path: PathBuf,
    },
    /// No model in it can be served.
    #[error("{}: no model of it can be served{}", path.display(), listed(notes))]
    Nothing {
        /// The folder.
        path: PathBuf,
        /// Why.
        notes: Vec<Note>,
    },
}

fn listed(notes: &[Note]) -> String {
    lines(notes).iter().map(|line| format!("\n  {line}")).collect()
}

/// The notes as lines. What is true of several models and of no line is one, at the place of the first.
pub fn lines(notes: &[Note]) -> Vec<String> {
    let is_same = |a: &Note, b: &Note| a.line.is_none() && b.line.is_none() && a.text == b.text;
    let line = |(at, note): (usize, &Note)| {
        if notes[..at].iter().any(|before| is_same(before, note)) {
            return None;
        }
        if note.line.is_some() {
            return Some(note.to_string());
        }
        let same = notes[at..].iter().filter(|other| is_same(note, other));
        let names: Vec<&str> = same.map(|same| same.model.as_str()).collect();
        let (named, more) = names.split_at(names.len().min(NAMES_MAX));
        let more = match more.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        Some(format!("{}{more}: {}", named.join(", "), note.text))
    };
    notes.iter().enumerate().filter_map(line).collect()
}

/// Reads the repository in `dir`. A model that cannot be served is left out, and a note says why.
///
/// # Errors
/// See [`ImportError`].
pub fn import(dir: &Path, defaults: Defaults) -> Result<Imported, ImportError> {
    let unreadable = |source| ImportError::Unreadable { path: dir.to_owned(), source };
    let dir = std::path::absolute(dir).map_err(unreadable)?;
    let folders = folders(&dir).map_err(unreadable)?;
    if folders.len() > FOLDERS_MAX {
        return Err(ImportError::TooMany { path: dir });
    }
    let mut written = Written {
        defaults,
        tables: String::new(),
        slots: BTreeMap::new(),
        models: Vec::new(),
        notes: Vec::new(),
    };
    for folder in &folders {
        written.folder(folder);
    }
    let Written { tables, slots, models, notes, .. } = written;
    if models.is_empty() {
        return Err(ImportError::Nothing { path: dir, notes });
    }
    let head = format!("# From the Triton model repository {}\n\n", dir.display());
    let text = head + &cluster(&tables, &slots);
    Ok(Imported { text, models, notes })
}

/// The folders in `dir`, in the order of their names, without hidden ones such as `.git`.
fn folders(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if !is_hidden && path.is_dir() && folders.len() <= FOLDERS_MAX {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}

/// A whole cluster file of these `[[model]]` tables.
fn cluster(tables: &str, slots: &BTreeMap<Place, u32>) -> String {
    let mut text = format!("[scheduler]\nlisten = \"127.0.0.1:7700\"\n\n{tables}");
    for (place, slots) in slots {
        let name = place.name();
        let _ = write!(
            text,
            "[[backend]]\nname = \"{name}\"\nsubcluster = \"{name}\"\ngpus = {slots}\n\n"
        );
    }
    text.trim_end().to_owned() + "\n"
}

struct Written {
    defaults: Defaults,
    tables: String,
    /// The most that a model asks for: all models of a place share its slots.
    slots: BTreeMap<Place, u32>,
    models: Vec<String>,
    notes: Vec<Note>,
}

impl Written {
    /// Adds a folder's model, or a note of what is wrong with it.
    fn folder(&mut self, folder: &Path) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (models, notes) = (self.models.len(), self.notes.len());
        if let Err((line, text)) = self.model(folder, &name) {
            self.notes.push(Note { model: name, line, text: format!("left out: {text}") });
        }
        if self.models.len() == models {
            // How it would be served helps as little as what of it would be lost.
            let of_it = self.notes.split_off(notes);
            self.notes.extend(of_it.into_iter().filter(|note| note.text.starts_with("left out")));
        }
    }

    fn model(&mut self, folder: &Path, name: &str) -> Result<(), (Option<usize>, String)> {
        let config = read_config(folder)
            .map_err(|error| (None, format!("config.pbtxt cannot be read: {error}")))?;
        let fields = text::parse(&config).map_err(|broken| (Some(broken.line), broken.what))?;
        let (config, notes) = model::read(&fields, name, self.defaults.cpu);
        self.notes.extend(notes);
        // Its notes say why.
        let Some(config) = config else { return Ok(()) };
        if self.models.contains(&config.name) {
            let text = format!("another folder has a model `{}`", config.name);
            return Err((None, text));
        }
        let (table, notes) =
            table::of(folder, &config, self.defaults).map_err(|text| (None, text))?;
        check(&table, &config).map_err(|text| (None, text))?;
        self.tables += &table;
        let slots = self.slots.entry(config.place).or_default();
        *slots = config.slots.max(*slots);
        self.models.push(config.name);
        self.notes.extend(notes);
        Ok(())
    }
}

/// Whether a cluster of this model alone is a good one.
fn check(table: &str, config: &Config) -> Result<(), String> {
    let alone = cluster(table, &BTreeMap::from([(config.place, config.slots)]));
    match check_text(Path::new("cluster.toml"), &alone).cluster {
        Ok(_) => Ok(()),
        Err(problems) => {
            let said = |problem: &Problem| {
                let Problem { key, what, fix, .. } = problem;
                format!("{key}: {what}; fix: {fix}")
            };
            Err(problems.iter().map(said).collect::<Vec<_>>().join("; "))
        }
    }
}

/// Without a file it is empty: Triton reads the rest from the ONNX file then, as Baton does.
fn read_config(folder: &Path) -> io::Result<String> {
    let file = match std::fs::File::open(folder.join("config.pbtxt")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        file => file?,
    };
    let mut text = String::new();
    file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        return Err(io::Error::other("it is longer than 16 MiB"));
    }
    Ok(text)
}

/// What a `config.pbtxt` amounts to without its folder; `None` if it is none. For the fuzzer.
pub fn understand(config: &str) -> Option<Vec<Note>> {
    let fields = text::parse(config).ok()?;
    Some(model::read(&fields, "folder", false).1)
}

#[cfg(test)]
mod tests;
