//! The changes that operators made to a catalogue, in a file of the scheduler's: the next scheduler makes them again.
//!
//! The file is TOML. Each `[[change]]` has a kind (`add`, `set` or `remove`), the model's name, and except for a removal its
//! `[[model]]` table. It holds what still counts: a removal takes what was said of the model before with it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use baton_types::{ModelId, Profile, SubclusterId};
use serde::{Deserialize, Serialize};

use crate::cluster_file::cluster::{Cluster, ModelSpec};
use crate::cluster_file::{Problem, read_change, read_model, read_text};

/// What was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalKind {
    /// A model was added.
    Add,
    /// Keys of a model were changed.
    Set,
    /// A model was removed.
    Remove,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Entry {
    kind: JournalKind,
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    table: String,
}

#[derive(Default, Serialize, Deserialize)]
struct Entries {
    #[serde(default)]
    change: Vec<Entry>,
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(Problem),
    /// It is none.
    #[error("{} is no journal of changes: {problem}; mend it, or move it away", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Journal {
    file: PathBuf,
    changes: Vec<Entry>,
}

/// A cluster after the changes of a journal.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Its models are those that are served.
    pub cluster: Cluster,
    /// The `[[model]]` tables of those that the cluster file does not have, by name.
    pub tables: BTreeMap<String, String>,
}

impl Journal {
    /// Reads the journal; one that is not there has no changes.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn open(file: &Path) -> Result<Self, JournalError> {
        let file = file.to_owned();
        if !file.exists() {
            return Ok(Self { file, changes: Vec::new() });
        }
        let text = read_text(&file).map_err(JournalError::Unreadable)?;
        match toml::from_str(&text) {
            Ok(Entries { change }) => Ok(Self { file, changes: change }),
            Err(error) => Err(JournalError::Malformed { file, problem: error.to_string() }),
        }
    }

    /// Where it is.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Writes the journal to its file. The file is exchanged as a whole: a process or a host that dies meanwhile leaves the
    /// former one.
    ///
    /// # Errors
    /// The system's, in words. What was written before stays.
    pub fn write(&self) -> io::Result<()> {
        let entries = Entries { change: self.changes.clone() };
        let text = toml::to_string(&entries).map_err(io::Error::other)?;
        let next = self.file.with_extension("next");
        let mut file = File::create(&next)?;
        file.write_all(b"# Changes by `baton model`. The scheduler writes this file.\n\n")?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&next, &self.file)?;
        // The exchange too outlasts a power failure.
        let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
    }

    /// Takes a change down, as far as it counts.
    pub fn note(&mut self, kind: JournalKind, name: &str, table: &str) {
        let change = Entry { kind, name: name.to_owned(), table: table.to_owned() };
        let of_it = |kind, entry: &Entry| entry.kind == kind && entry.name == change.name;
        let has = |kind| self.changes.iter().any(|entry| of_it(kind, entry));
        let keeps = match change.kind {
            // Of a model that the cluster file never had, nothing is left.
            JournalKind::Remove => {
                let is_ours = has(JournalKind::Add) && !has(JournalKind::Remove);
                self.changes.retain(|entry| entry.name != change.name);
                !is_ours
            }
            JournalKind::Set => {
                let keys = keys(&change.table);
                let is_overruled = |entry: &Entry| {
                    of_it(JournalKind::Set, entry) && self::keys(&entry.table).is_subset(&keys)
                };
                self.changes.retain(|entry| !is_overruled(entry));
                true
            }
            JournalKind::Add => true,
        };
        if keeps {
            self.changes.push(change);
        }
    }

    /// Makes the changes again. One that cannot be made is logged and left out.
    pub fn replay(&self, cluster: &Cluster) -> Replayed {
        let mut replayed = Replayed { cluster: cluster.clone(), tables: BTreeMap::new() };
        for change in &self.changes {
            if let Err(problem) = replayed.make(change) {
                let (file, model, kind) = (self.file.display(), &change.name, change.kind);
                tracing::error!(%file, model, ?kind, problem, "a change of the journal cannot be made");
            }
        }
        for (id, model) in (0..).zip(&mut replayed.cluster.models) {
            model.id = ModelId(id);
        }
        replayed
    }
}

/// The keys of a `[[model]]` table, the name not among them.
fn keys(table: &str) -> std::collections::BTreeSet<String> {
    let parsed: Option<toml::Table> = toml::from_str(table).ok();
    let model = parsed.as_ref().and_then(|root| root.get("model")?.get(0)?.as_table());
    let keys = model.into_iter().flat_map(|model| model.keys().cloned());
    keys.filter(|key| key != "name").collect()
}

impl Replayed {
    fn make(&mut self, change: &Entry) -> Result<(), String> {
        match change.kind {
            JournalKind::Add => self.add(&change.table),
            JournalKind::Set => self.set(&change.table),
            JournalKind::Remove => {
                self.cluster.models.retain(|model| model.name != change.name);
                self.tables.remove(&change.name);
                Ok(())
            }
        }
    }

    fn add(&mut self, table: &str) -> Result<(), String> {
        let read = read_model(table, Path::new(""), Some(&self.cluster.network));
        let read = read.map_err(|problems| Problem::lines(&problems))?;
        let mut spec = read.spec;
        if self.cluster.models.iter().any(|model| model.name == spec.name) {
            // The operator has put it into the cluster file.
            return Ok(());
        }
        let named = |name: &String| {
            let at = self.cluster.subclusters.iter().position(|known| known == name);
            at.ok_or_else(|| format!("there is no sub-cluster `{name}`"))
        };
        let subcluster = read.subcluster.as_ref().map_or(Ok(0), named)?;
        spec.subcluster = SubclusterId(subcluster as u32);
        self.tables.insert(spec.name.clone(), table.to_owned());
        self.cluster.models.push(spec);
        Ok(())
    }

    fn set(&mut self, table: &str) -> Result<(), String> {
        let change = read_change(table).map_err(|problems| Problem::lines(&problems))?;
        let model = self.cluster.models.iter_mut().find(|model| model.name == change.name);
        let model = model.ok_or("there is no such model")?;
        model.slo = change.slo.unwrap_or(model.slo);
        model.quota = change.quota(model.quota);
        if let Some(profile) = &change.profile {
            model.profile = model.fitting(profile)?;
        }
        Ok(())
    }
}

impl ModelSpec {
    /// A new profile, for the batch sizes that the model has.
    ///
    /// # Errors
    /// It ends before the largest batch.
    pub fn fitting(&self, new: &Profile) -> Result<Profile, String> {
        let batch_max = self.profile.batch_max() as usize;
        let Some(table) = new.table().get(..batch_max) else {
            return Err(format!(
                "`{}` has batches of up to {batch_max} tasks, and the new profile ends at {}; \
                 to serve smaller batches, give a smaller batch_max too, which exchanges the model",
                self.name,
                new.batch_max()
            ));
        };
        Ok(Profile::from_table(table).expect("a part of a profile is one"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_text;
    use baton_types::Nanos;

    fn cluster() -> Cluster {
        let text = "[[model]]\nname = \"a\"\nalpha_ms = 1.0\nbeta_ms = 5.0\nslo_ms = 25\n\
                    [[model]]\nname = \"b\"\nalpha_ms = 1.0\nbeta_ms = 5.0\nslo_ms = 25\n";
        check_text(Path::new("cluster.toml"), text).cluster.unwrap()
    }

    fn added(name: &str, slo_ms: u32) -> String {
        format!("[[model]]\nname = \"{name}\"\nalpha_ms = 1\nbeta_ms = 4\nslo_ms = {slo_ms}\n")
    }

    fn set(name: &str, keys: &str) -> String {
        format!("[[model]]\nname = \"{name}\"\n{keys}\n")
    }

    fn journal(test: &str) -> Journal {
        let file = std::env::temp_dir().join(format!("baton-{}-{test}.toml", std::process::id()));
        Journal::open(&file).unwrap()
    }

    /// Names and objectives in ms of the models that the journal's file makes of the cluster.
    fn models(journal: &Journal) -> Vec<(String, u64)> {
        journal.write().unwrap();
        let replayed = Journal::open(journal.file()).unwrap().replay(&cluster());
        let ids: Vec<u32> = replayed.cluster.models.iter().map(|model| model.id.0).collect();
        assert_eq!(ids, (0..ids.len() as u32).collect::<Vec<_>>());
        let ms = |slo: Nanos| slo.0 / 1_000_000;
        replayed.cluster.models.iter().map(|m| (m.name.clone(), ms(m.slo))).collect()
    }

    #[test]
    fn what_was_changed_is_so_again_and_what_does_not_count_is_gone() {
        let mut journal = journal("again");
        let mut record = |kind, name: &str, table: &str| journal.note(kind, name, table);
        record(JournalKind::Add, "x", &added("x", 30));
        record(JournalKind::Set, "x", &set("x", "slo_ms = 40"));
        record(JournalKind::Set, "x", &set("x", "slo_ms = 50\nmax_rps = 5"));
        record(JournalKind::Remove, "a", "");
        record(JournalKind::Add, "y", &added("y", 60));
        record(JournalKind::Remove, "y", "");
        assert_eq!(models(&journal), [("b".to_owned(), 25), ("x".to_owned(), 50)]);
        assert_eq!(journal.changes.len(), 3, "{:?}", journal.changes);
        // A model of the file that was removed comes back as another one.
        journal.note(JournalKind::Add, "a", &added("a", 70));
        assert_eq!(models(&journal).last(), Some(&("a".to_owned(), 70)));
        journal.note(JournalKind::Remove, "a", "");
        assert_eq!(models(&journal).len(), 2, "nor does it come back with the file");
        fs::remove_file(journal.file()).unwrap();
    }

    #[test]
    fn a_change_of_one_key_leaves_what_an_earlier_one_says_of_others() {
        let mut journal = journal("keys");
        journal.note(JournalKind::Set, "b", &set("b", "slo_ms = 70"));
        journal.note(JournalKind::Set, "a", &set("a", "slo_ms = 50\nmax_rps = 5"));
        journal.note(JournalKind::Set, "a", &set("a", "slo_ms = 60"));
        let [model, other] = &journal.replay(&cluster()).cluster.models[..] else { panic!("two") };
        assert_eq!([model.slo, other.slo], [60, 70].map(Nanos::from_millis));
        assert!(model.quota.model.is_some(), "5 tasks a second, as before");
        journal.note(JournalKind::Set, "a", &set("a", "alpha_ms = 2.0\nbeta_ms = 7.0"));
        let one = |at: usize| journal.replay(&cluster()).cluster.models[at].profile.latency(1);
        assert_eq!([one(0), one(1)], [9, 6].map(Nanos::from_millis));
    }

    #[test]
    fn a_change_that_cannot_be_made_is_left_out() {
        let mut journal = journal("left-out");
        journal.note(JournalKind::Add, "x", "[[model]]\nname = \"x\"\n");
        journal.note(JournalKind::Set, "gone", &set("gone", "slo_ms = 9"));
        journal.note(JournalKind::Add, "b", &added("b", 30));
        assert_eq!(
            models(&journal),
            [("a".to_owned(), 25), ("b".to_owned(), 25)],
            "the file's own"
        );
        fs::write(journal.file(), "change = 3").unwrap();
        let error = Journal::open(journal.file()).unwrap_err().to_string();
        assert!(error.contains("no journal of changes"), "{error}");
        fs::remove_file(journal.file()).unwrap();
    }

    #[test]
    fn a_model_that_was_added_is_in_its_sub_cluster_again() {
        let of = |name, subcluster| added(name, 25) + &format!("subcluster = \"{subcluster}\"\n");
        let text = of("a", "east") + &of("b", "west");
        let file = check_text(Path::new("cluster.toml"), &text);
        let mut journal = journal("sub-cluster");
        journal.note(JournalKind::Add, "x", &of("x", "west"));
        let replayed = journal.replay(&file.cluster.expect("a cluster")).cluster;
        let subclusters: Vec<u32> =
            replayed.models.iter().map(|model| model.subcluster.0).collect();
        assert_eq!(subclusters, [0, 1, 1]);
    }
}
