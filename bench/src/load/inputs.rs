//! What goes into a task and what must come out of it.
//!
//! Every input differs from the one before, so that an answer to another task's input is a wrong
//! answer.

use std::path::{Path, PathBuf};

use baton_client::ModelHandle;
use baton_topo::EngineSpec;
use baton_topo::signature::{Row, TensorSpec};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::examples::{Examples, ExamplesError};
use super::reference_answers::{ReferenceAnswers, ReferenceAnswersError};

/// Random pages per model; the task's number is stamped into a copy of one of them.
const PAGES: usize = 8;

/// Makes one model's inputs and judges its answers.
#[derive(Debug)]
pub(crate) enum Inputs {
    /// Random bytes; the answer must be their CRC-32 as a little-endian u64, with the variant in the upper half (emulated
    /// engines).
    Pages(Vec<Vec<u8>>),
    /// Real images with reference answers.
    ReferenceAnswers(ReferenceAnswers),
    /// Inputs of a file, with their answers if it has them.
    Examples(Examples),
    /// A model without reference answers: inputs are zeros, answers cannot be judged.
    Unchecked(Vec<u8>),
}

/// What the answer to one task must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    Checksum(u32),
    Image(usize),
    /// As the file of examples says.
    Example(usize),
    Unknown,
}

/// How an answer compares with what was expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Right,
    Wrong,
    /// Nothing is known about the right answer.
    Unchecked,
    /// The logits are right; whether the label is, too, is the model's affair.
    Classified {
        label_hit: bool,
    },
}

/// Why inputs for a model cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum InputsError {
    /// The held-out file is there but broken.
    #[error(transparent)]
    ReferenceAnswers(#[from] ReferenceAnswersError),
    /// The file of examples is broken, or another model's.
    #[error(transparent)]
    Examples(#[from] ExamplesError),
    /// The held-out images are another model's.
    #[error("{}: made for a model with {got:?} input and output bytes, not {expected:?}; remove it or make it anew", file.display())]
    Size {
        /// The file.
        file: PathBuf,
        /// Its input and output bytes.
        got: (usize, usize),
        /// The model's.
        expected: (usize, usize),
    },
}

/// Models that a message names before it only counts them.
const NAMES_MAX: usize = 8;

/// Says once of all models of whose right answers nothing is known.
pub(crate) fn say_unchecked<'a>(models: impl Iterator<Item = (&'a str, &'a Inputs)>) {
    if let Some(models) = unchecked(models) {
        tracing::info!(
            models,
            "inputs are zeros, answers unchecked: no heldout.bin lies beside these models' files; --expect names other inputs and their answers"
        );
    }
}

fn unchecked<'a>(models: impl Iterator<Item = (&'a str, &'a Inputs)>) -> Option<String> {
    let is_unchecked = |(_, inputs): &(&str, &Inputs)| matches!(inputs, Inputs::Unchecked(_));
    let names: Vec<&str> = models.filter(is_unchecked).map(|(name, _)| name).collect();
    let (shown, left_out) = names.split_at(names.len().min(NAMES_MAX));
    let shown = shown.join(", ");
    match (names.len(), left_out.len()) {
        (0, _) => None,
        (_, 0) => Some(shown),
        (_, count) => Some(format!("{shown} and {count} more")),
    }
}

impl Inputs {
    /// Inputs for a model with this engine and these input and output sizes.
    pub(crate) fn new(
        engine: &EngineSpec,
        row_bytes: (usize, usize),
        seed: u64,
    ) -> Result<Self, InputsError> {
        let EngineSpec::Onnx { file, signature, .. } = engine else {
            return Ok(Self::Pages(pages(row_bytes.0, seed)));
        };
        let file = file.with_file_name("heldout.bin");
        if !file.is_file() {
            return Ok(Self::Unchecked(signature.input.zeros()));
        }
        Self::held_out(file, row_bytes)
    }

    fn held_out(file: PathBuf, row_bytes: (usize, usize)) -> Result<Self, InputsError> {
        let answers = ReferenceAnswers::read(&file)?;
        if answers.row_bytes() != row_bytes {
            return Err(InputsError::Size { file, got: answers.row_bytes(), expected: row_bytes });
        }
        Ok(Self::ReferenceAnswers(answers))
    }

    /// Inputs of a file, for a model with these tensors: examples as JSON, or held-out images.
    pub(crate) fn of_file(
        file: &Path,
        input: &Row,
        outputs: &[TensorSpec],
    ) -> Result<Self, InputsError> {
        if file.extension().is_some_and(|ending| ending == "json") {
            return Ok(Self::Examples(Examples::read(file, input, outputs)?));
        }
        let output_bytes = Row::new(outputs.to_vec()).map_or(0, |row| row.bytes_max() as usize);
        Self::held_out(file.to_owned(), (input.bytes_max() as usize, output_bytes))
    }

    /// Random bytes whose checksum is the answer, for an emulated model.
    pub(crate) fn checksummed(bytes: usize, seed: u64) -> Self {
        Self::Pages(pages(bytes, seed))
    }

    /// Inputs for a model of which no cluster file says more than the handle: zeros if it takes tensors, random bytes if it
    /// takes bytes, as emulated ones do.
    pub(crate) fn by_handle(handle: &ModelHandle, seed: u64) -> Self {
        match Row::new(handle.inputs().to_vec()) {
            Some(row) if !row.tensors().is_empty() => Self::Unchecked(row.zeros()),
            _ => Self::Pages(pages(handle.input_bytes(), seed)),
        }
    }

    /// Bytes of the model's `number`th input, where its longest has `bytes_max`.
    pub(crate) fn bytes(&self, number: u64, bytes_max: usize) -> usize {
        match self {
            Self::Examples(examples) => {
                examples.input(number as usize % examples.count()).len().min(bytes_max)
            }
            Self::Pages(_) | Self::ReferenceAnswers(_) | Self::Unchecked(_) => bytes_max,
        }
    }

    /// Answers are compared tensor by tensor, end to end, and not as the row that they make.
    pub(crate) const fn compares_tensors(&self) -> bool {
        matches!(self, Self::Examples(_))
    }

    /// Writes the input of the model's `number`th task and says what its answer must be.
    pub(crate) fn fill(&self, number: u64, input: &mut [u8]) -> Expected {
        match self {
            Self::Pages(pages) => {
                input.copy_from_slice(&pages[number as usize % pages.len()]);
                let stamp = number.to_le_bytes();
                let stamped = input.len().min(stamp.len());
                input[..stamped].copy_from_slice(&stamp[..stamped]);
                Expected::Checksum(crc32fast::hash(input))
            }
            Self::ReferenceAnswers(answers) => {
                let image = number as usize % answers.count();
                input.copy_from_slice(answers.input(image));
                Expected::Image(image)
            }
            Self::Examples(examples) => {
                let example = number as usize % examples.count();
                input[..examples.input(example).len()].copy_from_slice(examples.input(example));
                Expected::Example(example)
            }
            Self::Unchecked(row) => {
                input.copy_from_slice(row);
                Expected::Unknown
            }
        }
    }

    /// Compares the answer of a variant, 0 if the model has none, with what was expected.
    pub(crate) fn judge(&self, expected: Expected, variant: u16, answer: &[u8]) -> Verdict {
        match (self, expected) {
            (Self::ReferenceAnswers(answers), Expected::Image(image)) => {
                let judgement = answers.judge(image, variant, answer);
                if !judgement.right {
                    return Verdict::Wrong;
                }
                Verdict::Classified { label_hit: judgement.label_hit }
            }
            (Self::Examples(examples), Expected::Example(example)) => {
                match examples.judge(example, answer) {
                    Some(true) => Verdict::Right,
                    Some(false) => Verdict::Wrong,
                    None => Verdict::Unchecked,
                }
            }
            (_, Expected::Checksum(crc)) => {
                let expected = u64::from(crc) | u64::from(variant) << 32;
                if answer == expected.to_le_bytes() { Verdict::Right } else { Verdict::Wrong }
            }
            (_, Expected::Unknown) => Verdict::Unchecked,
            _ => Verdict::Wrong,
        }
    }
}

fn pages(bytes: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut page = || {
        let mut page = vec![0; bytes];
        random.fill_bytes(&mut page);
        page
    };
    (0..PAGES).map(|_| page()).collect()
}

#[cfg(test)]
mod tests {
    use baton_topo::signature::Signature;
    use baton_topo::{BatchLayout, OnnxPlace};

    use super::*;

    const EMULATED: EngineSpec = EngineSpec::Emulated { jitter: 0.0 };

    fn digits(folder: &str) -> EngineSpec {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join("digits.onnx");
        let row = |bytes| Row::opaque("row", bytes);
        let signature = Signature { input: row(256), output: row(40) };
        let (sha256, layout, place) = (None, BatchLayout::default(), OnnxPlace::CPU);
        EngineSpec::Onnx { file, sha256, signature, layout, is_measured: true, place }
    }

    #[test]
    fn models_without_right_answers_are_named_together() {
        let (zeros, pages) = (Inputs::Unchecked(vec![0]), Inputs::checksummed(1, 1));
        let of = |zeros_count: usize| {
            let names = (0..zeros_count).map(|_| ("z", &zeros));
            unchecked([("p", &pages)].into_iter().chain(names))
        };
        assert_eq!((of(0), of(2).as_deref()), (None, Some("z, z")));
        assert_eq!(of(500).as_deref(), Some("z, z, z, z, z, z, z, z and 492 more"));
    }

    #[test]
    fn every_task_has_its_own_checksum() {
        let inputs = Inputs::new(&EMULATED, (64, 8), 1).unwrap();
        let mut input = [0; 64];
        let expected: Vec<Expected> = (0..100).map(|n| inputs.fill(n, &mut input)).collect();
        for (n, one) in expected.iter().enumerate() {
            assert_eq!(expected.iter().filter(|other| *other == one).count(), 1, "task {n}");
        }
    }

    #[test]
    fn only_the_checksum_of_the_bytes_is_a_right_answer() {
        let inputs = Inputs::new(&EMULATED, (64, 8), 1).unwrap();
        let mut input = [0; 64];
        let expected = inputs.fill(5, &mut input);
        let answer = u64::from(crc32fast::hash(&input)).to_le_bytes();
        assert_eq!(inputs.judge(expected, 0, &answer), Verdict::Right);
        assert_eq!(inputs.judge(expected, 1, &answer), Verdict::Wrong, "the variant is part of it");
        assert_eq!(inputs.judge(inputs.fill(6, &mut input), 0, &answer), Verdict::Wrong);
        assert_eq!(inputs.judge(expected, 0, &answer[..4]), Verdict::Wrong);
    }

    #[test]
    fn inputs_smaller_than_the_stamp_still_work() {
        let inputs = Inputs::new(&EMULATED, (1, 8), 1).unwrap();
        let mut input = [0; 1];
        assert_eq!(inputs.fill(0x1234, &mut input), Expected::Checksum(crc32fast::hash(&[0x34])));
    }

    #[test]
    fn digits_come_with_reference_answers_and_other_models_do_not() {
        let inputs = Inputs::new(&digits("../examples/digits"), (256, 40), 1).unwrap();
        let mut input = [0; 256];
        assert_eq!(inputs.fill(450 + 7, &mut input), Expected::Image(7));
        assert_eq!(inputs.judge(Expected::Image(7), 0, &[0; 40]), Verdict::Wrong);
        let size = Inputs::new(&digits("../examples/digits"), (256, 44), 1).unwrap_err();
        assert!(
            size.to_string().contains("(256, 40) input and output bytes, not (256, 44)"),
            "{size}"
        );
        let other = Inputs::new(&digits("src"), (256, 40), 1).unwrap();
        assert_eq!(other.judge(other.fill(0, &mut input), 0, &[1]), Verdict::Unchecked);
    }
}
