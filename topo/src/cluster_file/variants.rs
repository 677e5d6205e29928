//! `[[model.variant]]`: the variants of a supernet (`docs/supernets.md`). Scenario files are checked by the same rules.

use std::path::{Path, PathBuf};

use baton_types::{Nanos, Profile, Variant, Variants, VariantsError};

use crate::cluster_file::onnx::{self, OnnxModel};
use crate::cluster_file::profile::{self, has_profile};
use crate::cluster_file::section::Section;
use crate::cluster_file::sha256::{self, Sha256};

/// 1/100,000 in each per cent.
const PER_CENT: f64 = 1_000.0;
/// Execution times that a backend reports of a model at most: they fit into a message.
const MEASURED_MAX: u32 = 4_000;
/// What is wrong with ℓ(b) of a model that has variants.
pub const BESIDE_VARIANTS: &str = "beside [[model.variant]], which has its own";

/// One of a model's variants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariantSpec {
    /// Its name; no other variant of the model has it.
    pub name: String,
    /// How often its answers are right, in 1/100,000.
    pub accuracy: u32,
    /// ℓ(b).
    pub profile: Profile,
    /// Its own ONNX file; `None`: the model's file takes the variant as an input, or the engine needs no file.
    pub file: Option<PathBuf>,
    /// What that file's content must have, if the cluster file says so.
    pub sha256: Option<Sha256>,
}

/// Why variants do not make a model, and what their author is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariantsProblem {
    /// The variant's place in the list, from 0; `None` if it is no one in particular.
    pub at: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub fix: &'static str,
}

/// An accuracy in per cent as the scheduler counts it.
pub fn accuracy_of(per_cent: f64) -> u32 {
    (per_cent * PER_CENT).round() as u32
}

/// An accuracy as the scheduler counts it, in per cent.
pub fn per_cent(accuracy: u32) -> f64 {
    f64::from(accuracy) / PER_CENT
}

/// The variants as the scheduler has them: their names, accuracies and ℓ(b), the cheapest first.
///
/// # Errors
/// Two have one name, or [`VariantsError`].
pub fn checked_variants<'a>(
    named: impl Iterator<Item = (&'a str, u32, &'a Profile)>,
) -> Result<Variants, VariantsProblem> {
    let (mut names, mut variants) = (Vec::new(), Vec::new());
    for (name, accuracy, profile) in named {
        if names.contains(&name) {
            let what = format!("there are two named \"{name}\"");
            return Err(VariantsProblem { at: Some(names.len()), what, fix: "rename one" });
        }
        names.push(name);
        variants.push(Variant { accuracy, profile: profile.clone() });
    }
    Variants::new(variants).map_err(|error| {
        let at = error.variant();
        let what =
            at.map_or_else(|| error.to_string(), |at| format!("variant {} {error}", names[at]));
        VariantsProblem { at, what, fix: fix_of(&error) }
    })
}

fn fix_of(error: &VariantsError) -> &'static str {
    match error {
        VariantsError::Empty => "add a [[model.variant]]",
        VariantsError::TooMany => "keep those that differ most in accuracy",
        VariantsError::NotMoreAccurate { .. } | VariantsError::Faster { .. } => {
            "list the cheapest variant first; leave out one that takes longer and is not more accurate"
        }
        VariantsError::BatchMax { .. } => {
            "give every latency_ms the same number of entries, or alpha_ms and beta_ms"
        }
    }
}

/// The tables of a model's variants; empty if it has none.
pub(super) fn sections<'a>(model: &Section<'a>) -> Vec<Section<'a>> {
    if model.has("variant") { model.tables("variant") } else { Vec::new() }
}

/// Whether backends measure ℓ(b), because no variant says it.
pub(super) fn are_measured(sections: &[Section<'_>]) -> bool {
    !sections.iter().any(has_profile)
}

/// Reads the variants of a model; `slo` is for those whose ℓ(b) is measured. Each variant that is wrong has its problem.
pub(super) fn read(
    model: &Section<'_>,
    sections: &[Section<'_>],
    largest: u32,
    (slo, may_be_measured): (Option<Nanos>, bool),
    folder: &Path,
) -> Option<Vec<VariantSpec>> {
    for key in ["profile", "latency_ms", "alpha_ms", "beta_ms"] {
        if model.has(key) {
            model.refuse(key, format!("has no effect {BESIDE_VARIANTS}"), "remove it");
        }
    }
    let is_measured = may_be_measured && are_measured(sections);
    let mut variants: Vec<Option<VariantSpec>> = Vec::new();
    for section in sections {
        let usual = variants.iter().flatten().next().map(|first| first.profile.batch_max());
        let profile = match is_measured {
            true => profile::unmeasured(model, largest, slo),
            false => profile::of_keys(section, (model, usual), largest),
        };
        variants.push(read_one(section, profile, folder));
    }
    let variants: Vec<VariantSpec> = variants.into_iter().collect::<Option<_>>()?;
    let sizes = variants.iter().map(|variant| variant.profile.batch_max()).sum::<u32>();
    if is_measured && sizes > MEASURED_MAX {
        let what = format!("gives {sizes} sizes of all variants to measure, above {MEASURED_MAX}");
        model.refuse("batch_max", what, "lower it, or give each variant its ℓ(b)");
    }
    let named = variants.iter().map(|v| (v.name.as_str(), v.accuracy, &v.profile));
    if let Err(problem) = checked_variants(named) {
        let key = if problem.fix == "rename one" { "name" } else { "accuracy" };
        match problem.at {
            Some(at) => sections[at].refuse(key, problem.what, problem.fix),
            None => model.refuse("variant", problem.what, problem.fix),
        }
        return None;
    }
    if let Some(section) = sections.last()
        && variants.last().is_some_and(|most| most.accuracy <= accuracy_of(1.0))
    {
        let what = "is at most 1 per cent, of the most accurate variant";
        section.warn("accuracy", what, "give per cent: 80.2 instead of 0.802");
    }
    Some(variants)
}

fn read_one(section: &Section<'_>, profile: Option<Profile>, folder: &Path) -> Option<VariantSpec> {
    section.require("name", "name the variant: name = \"small\"");
    let name = section.name("name");
    section.require("accuracy", "say how many of its answers are right, in per cent");
    let accuracy = section.number("accuracy", 0.0..=100.0);
    let file = section.has("file").then(|| section.text("file")).flatten();
    let sha256 = sha256::of_section(section);
    section.refuse_unread();
    Some(VariantSpec {
        name: name?.to_owned(),
        accuracy: accuracy_of(accuracy?),
        profile: profile?,
        file: file.map(|file| onnx::located(folder, file)),
        sha256,
    })
}

/// The file's input selects by place: tables that are not its variants, in its order, serve others than they name.
fn warn_of_others(model: &Section<'_>, sections: &[Section<'_>], of_file: &[String]) {
    let names = || sections.iter().map(|section| section.text("name").unwrap_or_default());
    let place = |name: &str| of_file.iter().position(|own| own == name);
    let is_misplaced =
        names().enumerate().any(|(at, name)| place(name).is_some_and(|own| own != at));
    if sections.is_empty()
        || of_file.is_empty()
        || (sections.len() == of_file.len() && !is_misplaced)
    {
        return;
    }
    let own = of_file.join(", ");
    let what = format!("the file selects its variants by place, and they are {own}");
    let fix = "list all of them in this order, or `baton supernet export --variants` those that are listed";
    model.warn("variant", what, fix);
}

/// What the file of a model with variants, or their files, say. `None`: there are problems.
pub(super) fn onnx_model(
    model: &Section<'_>,
    sections: &[Section<'_>],
    folder: &Path,
) -> Option<OnnxModel> {
    if !sections.iter().any(|section| section.has("file")) {
        let read = onnx::model(model, model, !sections.is_empty(), folder)?;
        warn_of_others(model, sections, &read.variants);
        return Some(read);
    }
    if model.has("file") {
        model.refuse("file", "has no effect beside the files of [[model.variant]]", "remove it");
        return None;
    }
    let (mut first, mut bytes) = (None::<OnnxModel>, 0);
    for section in sections {
        let read = onnx::model(model, section, false, folder)?;
        let like = first.get_or_insert_with(|| read.clone());
        if (&read.signature, &read.layout) != (&like.signature, &like.layout) {
            let fix = "export the variants with the same inputs and outputs";
            section.refuse("file", "takes or gives other tensors than the first variant's", fix);
            return None;
        }
        bytes += read.bytes;
    }
    first.map(|first| OnnxModel { bytes, ..first })
}
