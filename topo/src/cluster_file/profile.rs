//! What a `[[model]]` says of ℓ(b): α and β, a table, or the file that `baton profile` wrote.

use std::path::Path;

use baton_types::{BATCH_MAX, Nanos, Profile, ProfileError};

use crate::cluster_file::cluster::EngineSpec;
use crate::cluster_file::model::MS_MAX;
use crate::cluster_file::profile_file::ProfileFile;
use crate::cluster_file::section::Section;

/// Largest batch of an α, β profile unless the model sets it.
const LINEAR_BATCH_MAX: u32 = 64;
/// Largest batch of a model whose backends measure it, unless the model sets it.
const MEASURED_BATCH_MAX: u32 = 16;
/// Why a model's batches are no larger.
const OF_FILE: &str = "the most that its file or batched = false allows";

/// Whether the file says anything of ℓ(b).
pub(super) fn has_profile(section: &Section<'_>) -> bool {
    ["profile", "latency_ms", "alpha_ms", "beta_ms"].map(|key| section.has(key)).contains(&true)
}

/// ℓ(b) of a model that its backends will measure: until then a quarter of the objective, whatever the batch.
pub(super) fn unmeasured(
    section: &Section<'_>,
    largest: u32,
    slo: Option<Nanos>,
) -> Option<Profile> {
    let usual = MEASURED_BATCH_MAX.min(largest);
    let batch_max = largest_of(section, largest, OF_FILE).unwrap_or(usual);
    let until_then = Nanos((slo?.0 / 4).max(1));
    accept(section, "slo_ms", Profile::from_table(&vec![until_then; batch_max as usize]))
}

/// ℓ(b), from `latency_ms` or from `alpha_ms` and `beta_ms`. `batch_max` is a key of `model`, the same section unless this is
/// one of its variants; without it a line goes up to `usual`.
pub(super) fn of_keys(
    section: &Section<'_>,
    (model, usual): (&Section<'_>, Option<u32>),
    largest: u32,
) -> Option<Profile> {
    if section.has("latency_ms") {
        return tabulated(section, model, largest);
    }
    let fix = "give alpha_ms and beta_ms (ℓ(b) = α·b + β), or a table: latency_ms = [6.1, 7.2]";
    section.require("alpha_ms", fix);
    section.require("beta_ms", fix);
    let alpha = section.millis("alpha_ms", 0.0..=MS_MAX);
    let beta = section.millis("beta_ms", 0.0..=MS_MAX);
    let usual = usual.unwrap_or(LINEAR_BATCH_MAX).min(largest);
    let batch_max = largest_of(model, largest, OF_FILE);
    let profile = Profile::linear(alpha?, beta?, batch_max.unwrap_or(usual));
    accept(section, "alpha_ms", profile)
}

/// ℓ(b), from the file that `profile` names. `engine` is what executes the model; `None`: its own keys are wrong.
pub(super) fn from_file(
    section: &Section<'_>,
    largest: u32,
    engine: Option<&EngineSpec>,
    folder: &Path,
) -> Option<Profile> {
    for key in ["latency_ms", "alpha_ms", "beta_ms"] {
        if section.has(key) {
            let fix = format!("remove {key} or profile");
            section.refuse(key, "the file of `profile` gives ℓ(b) already", fix);
        }
    }
    let path = folder.join(section.text("profile")?);
    let refuse = |what: String| {
        let fix = "measure the model anew with `baton profile`, or remove the key";
        section.refuse("profile", format!("{}: {what}", path.display()), fix);
    };
    let file = ProfileFile::read(&path).map_err(refuse).ok()?;
    if let Some(engine) = engine {
        file.check(engine).map_err(refuse).ok()?;
        let warnings = file.warnings(engine).into_iter();
        let fix = "measure the model anew with `baton profile`";
        warnings.for_each(|what| section.warn("profile", what, fix));
    }
    limited(section, (section, "profile"), file.table(), largest)
}

fn tabulated(section: &Section<'_>, model: &Section<'_>, largest: u32) -> Option<Profile> {
    for key in ["alpha_ms", "beta_ms"] {
        if section.has(key) {
            section.refuse(
                key,
                "latency_ms gives ℓ(b) already",
                format!("remove {key} or latency_ms"),
            );
        }
    }
    let table = section.numbers("latency_ms", 0.0..=MS_MAX)?;
    let table = table.into_iter().map(Nanos::from_millis_f64).collect();
    limited(model, (section, "latency_ms"), table, largest)
}

/// A table, the value of a key, of which the engine and `batch_max` may leave the beginning.
fn limited(
    model: &Section<'_>,
    (section, key): (&Section<'_>, &str),
    mut table: Vec<Nanos>,
    largest: u32,
) -> Option<Profile> {
    let is_of_file = table.len() > largest as usize;
    table.truncate(largest as usize);
    let entries = (table.len() as u32).max(1);
    let why = if is_of_file { OF_FILE } else { "the largest batch whose time is given" };
    if let Some(batch_max) = largest_of(model, entries, why) {
        table.truncate(batch_max as usize);
    }
    accept(section, key, Profile::from_table(&table))
}

/// `batch_max`, if it is there. `why` says what bounds it, where that is less than the largest of all.
fn largest_of(model: &Section<'_>, bound: u32, why: &str) -> Option<u32> {
    let given = model.integer("batch_max", 1..=BATCH_MAX)?;
    if given > bound {
        let fix = format!("give a whole number from 1 to {bound}, {why}");
        model.refuse("batch_max", format!("is {given}"), fix);
    }
    (given <= bound).then_some(given)
}

fn accept(
    section: &Section<'_>,
    key: &str,
    profile: Result<Profile, ProfileError>,
) -> Option<Profile> {
    let refuse = |error: ProfileError| {
        let fix = match error {
            ProfileError::Empty => "measure at least ℓ(1)",
            ProfileError::TooLarge => "give fewer entries",
            ProfileError::ZeroLatency => "give ℓ(1) a latency above zero",
            ProfileError::TooLong => "give milliseconds",
            ProfileError::NotMonotone { .. } => "raise that entry to the one before it",
        };
        section.refuse(key, error.to_string(), fix);
    };
    profile.map_err(refuse).ok()
}
