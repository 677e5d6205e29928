//! Held-out images with reference answers: `heldout.bin` beside an ONNX model.
//!
//! Layout, little endian: magic `BDIG`, u32 version 1, u32 images, u32 floats per input, u32
//! classes; then per image the input (f32 each), the reference logits (f32 each) and the label
//! (u32). The logits were computed by ONNX Runtime from Python. The file of a supernet has the magic `BDGS`, the
//! number of variants behind the classes, and per image the reference logits of each variant, the cheapest first.

use std::io;
use std::path::{Path, PathBuf};

/// First four bytes: of a model, and of one with variants.
const MAGICS: [&[u8; 4]; 2] = [b"BDIG", b"BDGS"];
/// The one version there is of either.
const VERSION: usize = 1;
/// Bytes before the first image, by magic.
const HEADER_BYTES: [usize; 2] = [20, 24];
/// An answer may differ this much from the reference: other kernels and other batch sizes add in
/// another order.
const LOGIT_TOLERANCE: f32 = 1e-3;

/// The images of one file.
#[derive(Debug)]
pub(crate) struct ReferenceAnswers {
    bytes: Vec<u8>,
    count: usize,
    input_bytes: usize,
    logit_bytes: usize,
    /// 1 without any.
    variants: usize,
    header_bytes: usize,
}

/// What an answer is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Judgement {
    /// The logits are the reference's.
    pub(crate) right: bool,
    /// The largest logit is the label's.
    pub(crate) label_hit: bool,
}

/// Why a file holds no images.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceAnswersError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The content is not what the layout says.
    #[error("{}: {what}; run examples/digits/train.py again", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
}

impl ReferenceAnswers {
    /// Reads a file.
    pub(crate) fn read(file: &Path) -> Result<Self, ReferenceAnswersError> {
        let bytes = std::fs::read(file)
            .map_err(|source| ReferenceAnswersError::Read { file: file.to_owned(), source })?;
        Self::parse(bytes)
            .map_err(|what| ReferenceAnswersError::Malformed { file: file.to_owned(), what })
    }

    fn parse(bytes: Vec<u8>) -> Result<Self, &'static str> {
        let magic = MAGICS.iter().position(|magic| bytes.starts_with(*magic));
        let Some(layout) = magic.filter(|_| bytes.len() >= HEADER_BYTES[1]) else {
            return Err("is not a file of held-out images");
        };
        let word = |i: usize| u32_at(&bytes, 4 * i) as usize;
        let (version, count, floats, classes) = (word(1), word(2), word(3), word(4));
        if version != VERSION {
            return Err("has another version");
        }
        let (header_bytes, variants) = (HEADER_BYTES[layout], [1, word(5)][layout]);
        if count == 0 || floats == 0 || classes == 0 || variants == 0 {
            return Err("holds nothing");
        }
        let image_bytes = classes
            .checked_mul(variants)
            .and_then(|logits| logits.checked_add(floats)?.checked_add(1)?.checked_mul(4));
        let body_bytes = image_bytes.and_then(|bytes| bytes.checked_mul(count));
        if body_bytes != Some(bytes.len() - header_bytes) {
            return Err("has another length than its header says");
        }
        let (input_bytes, logit_bytes) = (4 * floats, 4 * classes);
        Ok(Self { count, input_bytes, logit_bytes, variants, header_bytes, bytes })
    }

    /// Images.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Bytes of one input and of one answer.
    pub(crate) fn row_bytes(&self) -> (usize, usize) {
        (self.input_bytes, self.logit_bytes)
    }

    /// The input of an image.
    pub(crate) fn input(&self, image: usize) -> &[u8] {
        &self.image(image)[..self.input_bytes]
    }

    /// Compares the answer of a variant with the reference and the label.
    pub(crate) fn judge(&self, image: usize, variant: u16, answer: &[u8]) -> Judgement {
        let references = &self.image(image)[self.input_bytes..];
        let (references, label) = references.split_at(self.logit_bytes * self.variants);
        // What has one reference has it for every variant.
        let at = if self.variants > 1 { usize::from(variant) } else { 0 };
        let reference = references.chunks(self.logit_bytes).nth(at).unwrap_or_default();
        let right = answer.len() == reference.len()
            && floats(answer)
                .zip(floats(reference))
                .all(|(got, expected)| (got - expected).abs() <= LOGIT_TOLERANCE);
        let best = floats(answer).enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        let label = u32_at(label, 0) as usize;
        Judgement { right, label_hit: best.is_some_and(|(class, _)| class == label) }
    }

    fn image(&self, image: usize) -> &[u8] {
        let bytes = self.input_bytes + self.logit_bytes * self.variants + 4;
        &self.bytes[self.header_bytes + image * bytes..][..bytes]
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|chunk| f32::from_bits(u32_at(chunk, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed() -> ReferenceAnswers {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        ReferenceAnswers::read(&root.join("../examples/digits/heldout.bin")).unwrap()
    }

    fn reference(answers: &ReferenceAnswers, image: usize) -> Vec<u8> {
        answers.image(image)[answers.input_bytes..][..answers.logit_bytes].to_vec()
    }

    #[test]
    fn the_committed_images_are_there_and_the_reference_is_accurate() {
        let answers = committed();
        assert_eq!(answers.row_bytes(), (256, 40));
        let judged = |image| answers.judge(image, 0, &reference(&answers, image));
        assert!((0..answers.count()).all(|image| judged(image).right));
        let hits = (0..answers.count()).filter(|&image| judged(image).label_hit).count();
        assert!(hits * 100 >= answers.count() * 95, "{hits} of {}", answers.count());
    }

    #[test]
    fn an_answer_that_is_off_short_or_not_a_number_is_wrong() {
        let answers = committed();
        let good = reference(&answers, 3);
        for bad_float in [1.0f32, f32::NAN] {
            let mut bad = good.clone();
            let moved = f32::from_bits(u32_at(&bad, 8)) + bad_float;
            bad[8..12].copy_from_slice(&moved.to_le_bytes());
            assert!(!answers.judge(3, 0, &bad).right, "{bad_float}");
        }
        assert!(!answers.judge(3, 0, &good[..36]).right);
        assert!(!answers.judge(3, 0, &[]).right);
        assert!(!answers.judge(4, 0, &good).right, "another image's answer");
    }

    #[test]
    fn a_file_of_a_supernet_has_the_logits_of_each_variant() {
        // One image of one float, two classes, three variants, label 1.
        let words = [1u32, 1, 1, 2, 3];
        let image = [0.5f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut bytes = MAGICS[1].to_vec();
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(image.iter().flat_map(|float| float.to_le_bytes()));
        bytes.extend(1u32.to_le_bytes());
        let answers = ReferenceAnswers::parse(bytes).unwrap();
        assert_eq!((answers.count(), answers.row_bytes()), (1, (4, 8)));
        let answer = |logits: [f32; 2]| logits.map(f32::to_le_bytes).concat();
        for (variant, logits) in [(0, [1.0, 2.0]), (1, [3.0, 4.0]), (2, [5.0, 6.0])] {
            for of in 0..4 {
                let judged = answers.judge(0, of, &answer(logits));
                assert_eq!(judged, Judgement { right: of == variant, label_hit: true });
            }
        }
    }

    #[test]
    fn malformed_files_are_refused() {
        let good = committed().bytes;
        let edited = |at: usize, value: u32| {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bytes
        };
        let cases = [
            (Vec::new(), "is not a file of held-out images"),
            (edited(0, 0), "is not a file of held-out images"),
            (edited(4, 2), "has another version"),
            (edited(8, 0), "holds nothing"),
            (edited(8, u32::MAX), "has another length than its header says"),
            (edited(12, u32::MAX), "has another length than its header says"),
            (good[..good.len() - 1].to_vec(), "has another length than its header says"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(ReferenceAnswers::parse(bytes).unwrap_err(), expected);
        }
    }
}
