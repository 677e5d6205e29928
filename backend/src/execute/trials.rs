//! Measuring the models that LOADs bring: each is loaded before the backend joins, measured, and given up again.

use baton_topo::ModelSpec;

use super::aside::load_within;
use super::budget::Budget;
use super::measure::{Measured, Profiles};
use super::{Engine, EngineError, HostStore, measure};

/// ℓ(b) of each model, and the proof that it executes. Of models whose files have the same content one is measured for all.
///
/// # Errors
/// A model cannot be loaded or does not execute.
pub(super) fn measure_each(
    engine: &mut dyn Engine,
    (budget, store): (&Budget, &HostStore),
    models: &[ModelSpec],
) -> Result<Measured, EngineError> {
    let mut measured: Vec<(&ModelSpec, Profiles)> = Vec::new();
    for model in models {
        let like = measured.iter().find(|(other, _)| is_same(store, other, model));
        let profiles = match like {
            Some((_, profiles)) => profiles.clone(),
            None => measure_alone(engine, budget, model)?,
        };
        measured.push((model, profiles));
    }
    Ok(measured.into_iter().map(|(model, profiles)| (model.id, profiles)).collect())
}

fn measure_alone(
    engine: &mut dyn Engine,
    budget: &Budget,
    model: &ModelSpec,
) -> Result<Profiles, EngineError> {
    let _share = load_within(engine, budget, model)?;
    let profiles = measure(engine, model);
    engine.unload(model.id);
    profiles
}

/// Whether both do the same work under two names.
fn is_same(store: &HostStore, a: &ModelSpec, b: &ModelSpec) -> bool {
    let (files, others) = (a.files(), b.files());
    let mut pairs = files.iter().zip(&others);
    let same_files = files.len() == others.len() && pairs.all(|(a, b)| store.is_same(a, b));
    same_files && is_same_but_for_files(a, b)
}

fn is_same_but_for_files(a: &ModelSpec, b: &ModelSpec) -> bool {
    a.profile.batch_max() == b.profile.batch_max()
        && a.variant_count() == b.variant_count()
        && a.signature() == b.signature()
        && a.layout() == b.layout()
}

#[cfg(test)]
mod tests {
    use baton_topo::EngineSpec;

    use super::*;
    use crate::test_models::{captured, emulated, supernet};

    #[test]
    fn models_do_the_same_work_if_nothing_but_their_names_differs() {
        let store = HostStore::default();
        let model = emulated("one", 0, 4, 2);
        let does_the_same = |other| is_same(&store, &model, &other);
        assert!(does_the_same(emulated("other", 1, 4, 2)));
        assert!(!does_the_same(emulated("other", 1, 4, 3)), "other batches");
        assert!(!does_the_same(emulated("other", 1, 8, 2)), "other inputs");
        assert!(!does_the_same(supernet("other", 1, 4, 2)), "other variants");
        let (one, mut two) = (supernet("one", 0, 4, 2), supernet("two", 1, 4, 2));
        assert!(is_same(&store, &one, &two));
        two.variants[0].file = Some("small.onnx".into());
        assert!(!is_same(&store, &one, &two), "more files");
        let (alike, mut other) = (captured(0), captured(0));
        let EngineSpec::Onnx { layout, .. } = &mut other.engine else { unreachable!() };
        layout.others.insert("x".to_owned(), Some(1));
        let is_alike = |other: &ModelSpec| is_same_but_for_files(&alike, other);
        assert!(is_alike(&captured(0)) && !is_alike(&other), "the batch is elsewhere");
        assert!(!is_same(&store, &captured(0), &captured(0)), "files that are not in memory");
    }
}
