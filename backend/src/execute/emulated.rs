//! The emulated GPU: takes ℓ(b), and answers with a checksum of every input.
//!
//! The checksum is computed from the batch's rows, so a right answer proves that these bytes were
//! pulled, landed in this row and went back to this task. It is part of the ℓ(b) waited for. Above the checksum is the variant
//! that executed.

use baton_topo::{Clock, EngineSpec, ModelSpec};
use baton_types::{ModelId, Nanos, SplitMix64};

use super::delay::Delay;
use super::engines::Loose;
use super::measure::{Profiles, profiles_of};
use super::{BlockingEngine, EngineError, Inputs, LooseModel, Outputs};

/// Bytes of an emulated model's output row.
pub(super) const OUTPUT_BYTES: usize = 8;

/// Executes emulated models.
#[derive(Debug)]
pub struct Emulated {
    delay: Delay,
    jitter: Jitter,
    /// By [`ModelId`]; `None` where the model is not emulated.
    models: Vec<Option<Model>>,
}

/// A model that is loaded.
#[derive(Clone, Debug)]
pub(super) struct Model {
    /// Of each variant.
    profiles: Profiles,
    /// Standard deviation of the delay, as a fraction of ℓ(b).
    jitter: f64,
}

/// The answer to an input: its CRC-32, zero-extended, little endian.
pub fn checksum(input: &[u8]) -> [u8; OUTPUT_BYTES] {
    u64::from(crc32fast::hash(input)).to_le_bytes()
}

/// The answer of a variant to an input: the checksum, with the variant in the upper half.
pub fn answer_of(input: &[u8], variant: u16) -> [u8; OUTPUT_BYTES] {
    let checksum = u64::from_le_bytes(checksum(input));
    (checksum | u64::from(variant) << 32).to_le_bytes()
}

impl Emulated {
    /// An engine without models. `seed` decides the jitter, if a model has any.
    pub fn new(clock: Clock, seed: u64) -> Self {
        Self { delay: Delay::new(clock), jitter: Jitter(SplitMix64::new(seed)), models: Vec::new() }
    }

    fn add(&mut self, spec: &ModelSpec, jitter: f64) -> Result<(), EngineError> {
        if spec.output_bytes as usize != OUTPUT_BYTES {
            return Err(EngineError::Load {
                model: spec.name.clone(),
                file: "emulated".into(),
                problem: format!("output_bytes is {}", spec.output_bytes),
                fix: format!("emulated models answer with {OUTPUT_BYTES} bytes; remove the key"),
            });
        }
        self.insert(spec.id, Model { profiles: profiles_of(spec), jitter });
        Ok(())
    }

    fn insert(&mut self, id: ModelId, model: Model) {
        let index = id.0 as usize;
        self.models.resize(self.models.len().max(index + 1), None);
        self.models[index] = Some(model);
    }
}

impl BlockingEngine for Emulated {
    fn model_bytes(&mut self, _: &ModelSpec) -> u64 {
        0
    }

    fn load(&mut self, spec: &ModelSpec) -> Result<(), EngineError> {
        let EngineSpec::Emulated { jitter } = spec.engine else {
            unreachable!("each engine gets its own kind of model");
        };
        if let Some(weights) = spec.weights {
            // As long as the copy would take.
            self.delay.wait_until(self.delay.clock.now() + weights.load);
        }
        self.add(spec, jitter)
    }

    fn take(&mut self, model: ModelId) -> Option<LooseModel> {
        let model = self.models.get_mut(model.0 as usize)?.take()?;
        Some(LooseModel(Loose::Emulated(model)))
    }

    fn put(&mut self, id: ModelId, LooseModel(model): LooseModel) {
        let Loose::Emulated(model) = model else {
            unreachable!("each engine gets its own kind of model");
        };
        self.insert(id, model);
    }

    fn execute(
        &mut self,
        model: ModelId,
        variant: u16,
        inputs: Inputs<'_>,
        outputs: &mut Outputs,
    ) -> Result<(), EngineError> {
        let (started, batch) = (self.delay.clock.now(), inputs.len());
        let Some(Some(loaded)) = self.models.get(model.0 as usize) else {
            return Err(EngineError::Execute { model, batch, problem: "not loaded".into() });
        };
        let Some(profile) = loaded.profiles.get(usize::from(variant)) else {
            let problem = format!("it has no variant {variant}");
            return Err(EngineError::Execute { model, batch, problem });
        };
        let latency = self.jitter.around(profile.latency(batch), loaded.jitter);
        for row in 0..batch {
            outputs.row_mut(row).copy_from_slice(&answer_of(inputs.row(row), variant));
        }
        self.delay.wait_until(started + latency);
        Ok(())
    }
}

/// Shakes delays.
#[derive(Debug)]
struct Jitter(SplitMix64);

impl Jitter {
    /// `latency` times 1 + `deviation` · (about standard normal), not below a tenth of `latency`.
    fn around(&mut self, latency: Nanos, deviation: f64) -> Nanos {
        if deviation == 0.0 {
            return latency;
        }
        let factor = (1.0 + deviation * self.normal()).max(0.1);
        Nanos((latency.0 as f64 * factor) as u64)
    }

    /// The sum of twelve uniform numbers, centred: variance 1, within ±6.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.0.unit()).sum::<f64>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{emulated, supernet};

    #[test]
    fn answers_are_the_checksums_of_the_rows_and_take_the_profiles_time() {
        let clock = Clock::start();
        let spec = emulated("toy", 0, 4, 3);
        let latency = spec.profile.latency(2);
        let mut engine = Emulated::new(clock, 1);
        engine.load(&spec).unwrap();
        let mut outputs = Outputs::default();
        outputs.reset(2, 8);
        let started = clock.now();
        engine.execute(ModelId(0), 0, Inputs::new(b"abcdwxyz", 4, &[4, 4]), &mut outputs).unwrap();
        let took = clock.now() - started;
        assert_eq!(outputs.row(0), Ok(&checksum(b"abcd")[..]));
        assert_eq!(outputs.row(1), Ok(&checksum(b"wxyz")[..]));
        assert_ne!(outputs.row(0), outputs.row(1));
        assert!(took >= latency, "{took:?} is shorter than the profile's {latency:?}");
    }

    #[test]
    fn a_variant_takes_its_own_time_and_its_answer_says_which_it_was() {
        let clock = Clock::start();
        let mut engine = Emulated::new(clock, 1);
        let spec = supernet("toy", 0, 4, 3);
        engine.load(&spec).unwrap();
        let mut outputs = Outputs::default();
        outputs.reset(1, 8);
        for variant in 0..2 {
            let started = clock.now();
            let inputs = Inputs::new(b"abcd", 4, &[4]);
            engine.execute(ModelId(0), variant, inputs, &mut outputs).unwrap();
            assert!(clock.now() - started >= spec.profile_of(variant).latency(1));
            assert_eq!(outputs.row(0), Ok(&answer_of(b"abcd", variant)[..]));
        }
        assert_eq!(answer_of(b"abcd", 0), checksum(b"abcd"));
        assert_ne!(answer_of(b"abcd", 1), checksum(b"abcd"));
        let none = engine.execute(ModelId(0), 2, Inputs::new(b"abcd", 4, &[4]), &mut outputs);
        assert!(none.unwrap_err().to_string().contains("no variant 2"));
    }

    #[test]
    fn a_model_with_a_lower_number_takes_no_place_from_the_others() {
        let mut engine = Emulated::new(Clock::start(), 1);
        for id in [7, 2] {
            engine.load(&emulated("toy", id, 4, 3)).unwrap();
        }
        let mut outputs = Outputs::default();
        outputs.reset(1, 8);
        for id in [2, 7] {
            let inputs = Inputs::new(b"abcd", 4, &[4]);
            assert_eq!(engine.execute(ModelId(id), 0, inputs, &mut outputs), Ok(()), "model {id}");
        }
    }

    #[test]
    fn a_model_that_is_not_loaded_is_an_error() {
        let mut engine = Emulated::new(Clock::start(), 1);
        let spec = emulated("toy", 7, 4, 3);
        let execute = |engine: &mut Emulated| {
            let mut outputs = Outputs::default();
            outputs.reset(1, 8);
            engine.execute(ModelId(7), 0, Inputs::new(b"abcd", 4, &[4]), &mut outputs)
        };
        let refused =
            Err(EngineError::Execute { model: ModelId(7), batch: 1, problem: "not loaded".into() });
        assert_eq!(execute(&mut engine), refused);
        engine.load(&spec).unwrap();
        assert_eq!(execute(&mut engine), Ok(()));
        engine.unload(ModelId(7));
        assert_eq!(execute(&mut engine), refused);
    }

    #[test]
    fn jitter_is_centred_on_the_profile_and_as_wide_as_asked() {
        let seed = 42;
        let mut jitter = Jitter(SplitMix64::new(seed));
        let latency = Nanos::from_millis(1);
        let n = 20_000;
        let factors: Vec<f64> =
            (0..n).map(|_| jitter.around(latency, 0.1).0 as f64 / latency.0 as f64).collect();
        let mean = factors.iter().sum::<f64>() / f64::from(n);
        let variance = factors.iter().map(|f| (f - mean).powi(2)).sum::<f64>() / f64::from(n);
        assert!((mean - 1.0).abs() < 0.005, "seed {seed}: mean {mean}");
        assert!(
            (variance.sqrt() - 0.1).abs() < 0.005,
            "seed {seed}: deviation {}",
            variance.sqrt()
        );
        assert_eq!(jitter.around(latency, 0.0), latency, "no jitter is exact");
    }
}
