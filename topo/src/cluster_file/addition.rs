//! A `[[model]]` table on its own: a model that is added to a running cluster, or keys of one that change.

use std::path::{Path, PathBuf};

use baton_types::{Nanos, Profile, QuotaLimits};
use toml::de::DeTable;

use crate::cluster_file::check;
use crate::cluster_file::cluster::{ModelSpec, NetworkSpec};
use crate::cluster_file::model;
use crate::cluster_file::problem::{Findings, Problem};
use crate::cluster_file::section::{NOT_A_KEY, Section};
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
    pub max_rps: Option<Option<baton_types::RateLimit>>,
    /// The same for each frontend.
    pub frontend_max_rps: Option<Option<baton_types::RateLimit>>,
    /// Its ℓ(b), of the batch sizes it had.
    pub profile: Option<Profile>,
}

impl ModelChange {
    /// What changes, as an operator writes it: `slo_ms=20 max_rps=0`.
    pub fn in_words(&self) -> String {
        let limit = |key, limit: Option<Option<baton_types::RateLimit>>| {
            limit.map(|limit| format!("{key}={}", limit.map_or(0.0, |limit| limit.rps())))
        };
        let words = [
            self.slo.map(|slo| format!("slo_ms={}", slo.as_millis_f64())),
            limit("max_rps", self.max_rps),
            limit("frontend_max_rps", self.frontend_max_rps),
            self.profile.as_ref().map(|_| "another profile".to_owned()),
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

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
    let (read, warnings) = model_and_warnings(text, folder, network);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    read
}

/// Reads the table of a model that is only to be executed here, and not served. Nothing is said of what a cluster should not do
/// with it.
///
/// # Errors
/// As [`read_model`].
pub fn read_measured_model(text: &str) -> Result<ModelTable, Vec<Problem>> {
    model_and_warnings(text, Path::new(""), None).0
}

fn model_and_warnings(
    text: &str,
    folder: &Path,
    network: Option<&NetworkSpec>,
) -> (Result<ModelTable, Vec<Problem>>, Vec<Problem>) {
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

/// Keys that change while a model is served; with any other one it is replaced.
const IN_PLACE: [&str; 7] =
    ["name", "slo_ms", "max_rps", "frontend_max_rps", "latency_ms", "alpha_ms", "beta_ms"];

/// The name in the `[[model]]` table of a change that replaces the model: one with a key, such as `file`, that cannot change
/// while the model is served. `None` for any other text.
pub fn name_of_replaced(text: &str) -> Option<String> {
    let model = only_table(text)?;
    let name = model.get("name")?.as_str()?.to_owned();
    model.keys().any(|key| !IN_PLACE.contains(&key.as_str())).then_some(name)
}

/// The table of the model that replaces `former`: what `text` says, and for the rest the former objective, limits and
/// sub-cluster. `mark` distinguishes it from every other table, also where the file has the same path.
///
/// # Errors
/// `text` has no `[[model]]` table.
pub fn replacement(
    text: &str,
    former: &ModelSpec,
    subcluster: &str,
    mark: &str,
) -> Result<String, String> {
    let mut model = only_table(text).ok_or("give one [[model]] table")?;
    let mut keep = |key: &str, value: toml::Value| _ = model.entry(key).or_insert(value);
    keep("slo_ms", former.slo.as_millis_f64().into());
    keep("subcluster", subcluster.into());
    let limits = [("max_rps", former.quota.model), ("frontend_max_rps", former.quota.frontend)];
    for (key, limit) in limits {
        limit.into_iter().for_each(|limit| keep(key, limit.rps().into()));
    }
    let models = toml::Value::Array(vec![model.into()]);
    let table = toml::Table::from_iter([("model".to_owned(), models)]);
    let table = toml::to_string(&table).map_err(|error| error.to_string())?;
    Ok(format!("# {mark}\n{table}"))
}

fn only_table(text: &str) -> Option<toml::Table> {
    let root: toml::Table = toml::from_str(text).ok()?;
    let models = root.get("model")?.as_array()?;
    models.first()?.as_table().filter(|_| models.len() == 1).cloned()
}

/// Reads the `[[model]]` table of a change: the model's `name` and the keys that change.
///
/// # Errors
/// As [`read_model`].
pub fn read_change(text: &str) -> Result<ModelChange, Vec<Problem>> {
    let (read, warnings) = read_one(text, |_, section| model::change(&section));
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    read
}

/// Reads a text of one `[[model]]` table and nothing else: what it says, and the warnings.
fn read_one<T>(
    text: &str,
    read: impl FnOnce(&Section<'_>, Section<'_>) -> Option<T>,
) -> (Result<T, Vec<Problem>>, Vec<Problem>) {
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
    let mut problems: Vec<Problem> = problems.into_iter().map(without_place).collect();
    // A misspelt key is also why others seem to be missing, and without lines only the order says so.
    problems.sort_by_key(|problem| problem.what != NOT_A_KEY);
    match found {
        Some(found) if problems.is_empty() => (Ok(found), warnings),
        _ => (Err(problems), warnings),
    }
}

/// The writer of a command sees no file: the key says where.
fn without_place(mut problem: Problem) -> Problem {
    let key = problem.key.strip_prefix("model[0].").map(str::to_owned);
    problem.key = key.unwrap_or(problem.key);
    Problem { file: PathBuf::new(), line: None, ..problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_types::RateLimit;

    fn problems(text: &str) -> String {
        let problems = read_model(text, Path::new(""), None).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_is_wrong_is_said_by_its_key_alone() {
        let text =
            "[[model]]\nname = \"a\"\nalpha_ms = 1.0\nbeta_ms = 5.0\nslo_ms = 25\nbatchmax = 3\n";
        let said = problems(text);
        assert!(
            said.starts_with("batchmax: is not a key of this table; fix: write batch_max"),
            "{said}"
        );
        let said = problems("[[model]]\nname = \"a\"\nslo = 25\n");
        assert!(said.starts_with("slo: is not a key"), "it explains what is missing: {said}");
    }

    #[test]
    fn a_change_says_what_changes_and_only_what_is_wrong() {
        let change = |keys: &str| read_change(&format!("[[model]]\nname = \"a\"\n{keys}"));
        let words = |keys| change(keys).unwrap().in_words();
        assert_eq!(words("slo_ms = 20\nmax_rps = 0\n"), "slo_ms=20 max_rps=0");
        assert_eq!(words("frontend_max_rps = 2.5\n"), "frontend_max_rps=2.5");
        assert_eq!(words("alpha_ms = 1\nbeta_ms = 2\n"), "another profile");
        let wrong = |keys| Problem::lines(&change(keys).unwrap_err());
        assert_eq!(wrong("slo_ms = 0\n"), "slo_ms: is 0; fix: give a number from 0.001 to 600000");
        assert!(wrong("").starts_with("name: names a model of which nothing changes"));
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
    fn what_is_wrong_is_reported_as_for_a_cluster_file() {
        let text = "[[model]]\nname = \"a\"\nalpha_ms = 1.0\nbeta_ms = 5.0\nslo_ms = 2\ngpus = 3\n";
        let told = problems(text);
        assert!(told.contains("slo_ms: 2 ms cannot be met") && told.contains("gpus"), "{told}");
        assert!(problems("name = \"a\"").contains("give one [[model]] table"));
        assert!(problems(&format!("{text}{text}")).contains("give one [[model]] table"));
        assert!(problems(&format!("{text}[scheduler]\n")).contains("scheduler"));
    }

    #[test]
    fn what_changes_in_place_is_read_as_a_change() {
        let value = |key| match key {
            "name" => "\"b\"",
            "latency_ms" => "[1.0, 2.0]",
            _ => "20",
        };
        for key in IN_PLACE.into_iter().filter(|&key| key != "name") {
            let more = match key {
                "alpha_ms" => "beta_ms = 1\n",
                "beta_ms" => "alpha_ms = 1\n",
                _ => "",
            };
            let text = format!("[[model]]\nname = \"a\"\n{key} = {}\n{more}", value(key));
            assert_eq!(name_of_replaced(&text), None, "{key}");
            assert!(read_change(&text).is_ok(), "{key}: {:?}", read_change(&text));
        }
    }

    #[test]
    fn a_replacement_keeps_the_objective_the_limits_and_the_sub_cluster() {
        let text = "[[model]]\nname = \"a\"\nalpha_ms = 1\nbeta_ms = 5\nslo_ms = 25\nmax_rps = 7\n";
        let former = read_model(text, Path::new(""), None).unwrap().spec;
        assert_eq!(name_of_replaced("[[model]]\nname = \"a\"\nslo_ms = 30\n"), None);
        let change = "[[model]]\nname = \"a\"\nalpha_ms = 2\nbeta_ms = 4\nbatch_max = 3\n";
        assert_eq!(name_of_replaced(change).as_deref(), Some("a"));
        let text = replacement(change, &former, "gpu", "the second").unwrap();
        let ModelTable { spec, subcluster } = read_model(&text, Path::new(""), None).unwrap();
        assert_eq!((spec.slo, spec.quota), (former.slo, former.quota));
        assert_eq!((spec.profile.batch_max(), subcluster.as_deref()), (3, Some("gpu")));
        assert_ne!(text, replacement(change, &former, "gpu", "the third").unwrap());
        let other = replacement(&format!("{change}slo_ms = 40\n"), &former, "gpu", "").unwrap();
        let other = read_model(&other, Path::new(""), None).unwrap().spec;
        assert_eq!(other.slo, Nanos::from_millis(40));
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
