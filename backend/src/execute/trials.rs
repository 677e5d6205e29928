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
    let same_shape = a.profile.batch_max() == b.profile.batch_max()
        && a.variant_count() == b.variant_count()
        && a.signature() == b.signature();
    let mut pairs = files.iter().zip(&others);
    same_shape && files.len() == others.len() && pairs.all(|(a, b)| store.is_same(a, b))
}
