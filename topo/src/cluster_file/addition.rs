//! A `[[model]]` table on its own: a model that is added to a running cluster, or keys of one that change.

use std::path::Path;

use baton_core::{Nanos, Profile, QuotaLimits};
use toml::de::DeTable;

use crate::cluster_file::check;
use crate::cluster_file::cluster::{ModelSpec, NetworkSpec};
use crate::cluster_file::model;
use crate::cluster_file::problem::{Findings, Problem};
use crate::cluster_file::section::Section;
use crate::cluster_file::tables::{Entry, Subclusters};

/// A model that is added.
#[derive(Clone, Debug)]
pub struct ModelTable {
    /// The model. Its id and that of its sub-cluster are 0: who adds it gives them.
    pub spec: ModelSpec,
    /// The sub-cluster that the table names; `None`: the cluster's first.
    pub subcluster: Option<String>,
}

/// What changes of a model; `None` leaves it as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelChange {
    /// Which model.
    pub name: String,
    /// Its latency objective.
    pub slo: Option<Nanos>,
    /// Its limits: `Some(None)` lifts one.
    pub max_rps: Option<Option<baton_core::RateLimit>>,
    /// The same for each frontend.
    pub frontend_max_rps: Option<Option<baton_core::RateLimit>>,
    /// Its ℓ(b), of the batch sizes it had.
    pub profile: Option<Profile>,
}

impl ModelChange {
    /// The quota that it makes of another.
    pub fn quota(&self, before: QuotaLimits) -> QuotaLimits {
        QuotaLimits {
            model: self.max_rps.unwrap_or(before.model),
            frontend: self.frontend_max_rps.unwrap_or(before.frontend),
        }
    }
}

/// Stands for the file in problems: the text comes from a message.
const TEXT: &str = "model";

/// Reads the `[[model]]` table of a model that is added. Relative files are relative to `folder`. `network` are the delays
/// that the scheduler plans with; without them an objective is compared with ℓ(1) alone.
///
/// # Errors
/// Every problem found, in the order of the lines.
pub fn read_model(
    text: &str,
    folder: &Path,
    network: Option<&NetworkSpec>,
) -> Result<ModelTable, Vec<Problem>> {
    const NO_DELAYS: NetworkSpec = NetworkSpec {
        ctrl: Nanos::ZERO,
        data_per_task: Nanos::ZERO,
        response: Nanos::ZERO,
        jitter: Nanos::ZERO,
    };
    read_one(text, |root, section| {
        let subcluster = section.has("subcluster").then(|| section.name("subcluster")).flatten();
        let subcluster = subcluster.map(str::to_owned);
        let spec = model::model(&section, 0, &mut Subclusters::default(), folder);
        let entries = [Entry { section, spec }];
        check::models(root, &entries, network.unwrap_or(&NO_DELAYS));
        let [Entry { spec, .. }] = entries;
        Some(ModelTable { spec: spec?, subcluster })
    })
}

/// Reads the `[[model]]` table of a change: the model's `name` and the keys that change.
///
/// # Errors
/// As [`read_model`].
pub fn read_change(text: &str) -> Result<ModelChange, Vec<Problem>> {
    read_one(text, |_, section| model::change(&section))
}

/// Reads a text of one `[[model]]` table and nothing else.
fn read_one<T>(
    text: &str,
    read: impl FnOnce(&Section<'_>, Section<'_>) -> Option<T>,
) -> Result<T, Vec<Problem>> {
    let findings = Findings::new(Path::new(TEXT), text);
    let (tree, syntax_errors) = DeTable::parse_recoverable(text);
    syntax_errors.iter().for_each(|error| findings.syntax_error(error));
    let found = if syntax_errors.is_empty() {
        let root = Section::root(tree.get_ref(), &findings);
        let mut tables = root.tables("model");
        if tables.len() != 1 {
            root.refuse("model", "is not there exactly once", "give one [[model]] table");
        }
        root.refuse_unread();
        tables.pop().and_then(|section| read(&root, section))
    } else {
        None
    };
    let (problems, warnings) = findings.into_sorted();
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    match found {
        Some(found) if problems.is_empty() => Ok(found),
        _ => Err(problems),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::RateLimit;

    fn problems(text: &str) -> String {
        let problems = read_model(text, Path::new(""), None).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_table_makes_a_model_and_names_its_sub_cluster() {
        let text = "[[model]]\nname = \"a\"\nalpha_ms = 1.0\nbeta_ms = 5.0\nslo_ms = 25\n";
        let table = read_model(text, Path::new(""), None).unwrap();
        assert_eq!((table.spec.name.as_str(), table.subcluster), ("a", None));
        let text = format!("{text}subcluster = \"gpu\"\n");
        let table = read_model(&text, Path::new(""), None).unwrap();
        assert_eq!(table.subcluster.as_deref(), Some("gpu"));
    }

    #[test]
    fn what_is_wrong_is_told_as_for_a_cluster_file() {
        let text = "[[model]]\nname = \"a\"\nalpha_ms = 1.0\nbeta_ms = 5.0\nslo_ms = 2\ngpus = 3\n";
        let told = problems(text);
        assert!(told.contains("slo_ms: 2 ms cannot be met") && told.contains("gpus"), "{told}");
        assert!(problems("name = \"a\"").contains("give one [[model]] table"));
        assert!(problems(&format!("{text}{text}")).contains("give one [[model]] table"));
        assert!(problems(&format!("{text}[scheduler]\n")).contains("scheduler"));
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let text = "[[model]]\nname = \"a\"\nslo_ms = 30\nmax_rps = 0\n";
        let change = read_change(text).unwrap();
        assert_eq!((change.name.as_str(), change.slo), ("a", Some(Nanos::from_millis(30))));
        assert_eq!((change.max_rps, change.frontend_max_rps), (Some(None), None));
        let before = QuotaLimits {
            model: Some(RateLimit::per_second(10.0)),
            frontend: Some(RateLimit::per_second(5.0)),
        };
        let after = change.quota(before);
        assert_eq!((after.model, after.frontend), (None, before.frontend));
        assert!(read_change("[[model]]\nname = \"a\"\n").is_err(), "nothing changes");
        let other = read_change("[[model]]\nname = \"a\"\nfile = \"b.onnx\"\n").unwrap_err();
        assert!(other[0].to_string().contains("file"), "{other:?}");
    }
}
