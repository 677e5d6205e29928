//! How long answers are, for files that do not say it.

use baton_topo::{Clock, Device, ModelSpec};

use super::{ProfileError, loaded, placed};
use crate::execute::{OpenLibrary, Trial};

/// The shapes of the tensors that answer the longest input, in the order of the model's outputs and without the batch. `model`
/// allows for longer ones.
///
/// # Errors
/// See [`ProfileError`].
pub fn answer_shapes(
    model: &ModelSpec,
    device: Device,
    open: OpenLibrary,
) -> Result<Vec<Vec<u32>>, ProfileError> {
    let model = &placed(model, device);
    let mut engine = loaded(model, device, open, Clock::start())?;
    let mut trial = Trial::new(&mut *engine, model)?;
    trial.run(0, 1)?;
    let answer = trial.answer().expect("loading proved that it executes");
    let tensors = model.signature().output.unpack(answer).expect("the engine packed it");
    Ok(tensors.into_iter().map(|tensor| tensor.shape).collect())
}
