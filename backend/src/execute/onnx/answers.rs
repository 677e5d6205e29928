//! What graphs leave as answers, dealt to the rows of a batch. Pure, but for a warning.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use baton_topo::signature::{Row, Signature};
use baton_types::FailReason;

use super::super::Outputs;
use super::finite::{Watch, is_finite};

/// How the answers of a model's graphs become those of a batch's rows.
pub(super) struct Answers {
    /// What an answer consists of, all of it of fixed extents.
    answer: Row,
    /// Between its tensors, where the device leaves whatever was there before.
    gaps: Vec<Range<usize>>,
    /// Bytes of a row.
    row_bytes: u32,
    /// Looks through answers for numbers that are not finite; `None`: nothing does.
    finite: Option<Mutex<Watch>>,
}

impl Answers {
    pub(super) fn new(signature: &Signature, finite: Option<Watch>) -> Self {
        let (answer, row_bytes) = (signature.output.clone(), signature.input.bytes_max());
        let places = answer.places();
        let gaps = places.windows(2).map(|pair| pair[0].end..pair[1].start);
        let gaps = gaps.filter(|gap| !gap.is_empty()).collect();
        Self { answer, gaps, row_bytes, finite: finite.map(Mutex::new) }
    }

    /// Bytes of an answer.
    pub(super) fn bytes(&self) -> u32 {
        self.answer.bytes_max()
    }

    /// Deals the answers, one behind the other, to a batch's rows, which were that long.
    pub(super) fn deal(&self, lens: &[u32], answers: &[u8], outputs: &mut Outputs) {
        let (bytes, mut refused) = (self.bytes() as usize, 0);
        for (row, (len, answer)) in lens.iter().zip(answers.chunks_exact(bytes)).enumerate() {
            let row = row as u32;
            if *len != self.row_bytes {
                outputs.set(row, Err(FailReason::WrongSize));
            } else if self.finite.is_some() && !self.is_finite(answer) {
                outputs.set(row, Err(FailReason::Engine));
                refused += 1;
            } else {
                let room = &mut outputs.row_mut(row)[..bytes];
                room.copy_from_slice(answer);
                self.gaps.iter().for_each(|gap| room[gap.clone()].fill(0));
                outputs.set(row, Ok(bytes as u32));
            }
        }
        if let Some(finite) = &self.finite {
            finite.lock().unwrap_or_else(PoisonError::into_inner).note(refused);
        }
    }

    fn is_finite(&self, answer: &[u8]) -> bool {
        let tensors = self.answer.unpack(answer).expect("an answer is as long as its extents say");
        let mut typed = self.answer.tensors().iter().zip(&tensors);
        typed.all(|(spec, tensor)| is_finite(spec.element, tensor.bytes))
    }
}

#[cfg(test)]
mod tests {
    use baton_topo::signature::{ElementType, Extent, TensorSpec};

    use super::*;

    /// Rows of six bytes. An answer is three i32 at 0 and two f32 at 16; nothing is between them.
    fn answers(check_finite: bool) -> Answers {
        let tensor = |element, extent| TensorSpec {
            name: "tensor".into(),
            element,
            shape: vec![Extent::Fixed(extent)],
        };
        let output = Row::new(vec![tensor(ElementType::I32, 3), tensor(ElementType::F32, 2)]);
        let signature = Signature { input: Row::opaque("input", 6), output: output.unwrap() };
        let made = Answers::new(&signature, check_finite.then(|| Watch::new("model")));
        assert_eq!(made.bytes(), 24);
        made
    }

    /// An answer with these numbers, whose integers have all bits set.
    fn answer(numbers: [f32; 2]) -> Vec<u8> {
        let mut answer = vec![0xff; 12];
        answer.extend([0; 4]);
        numbers.iter().for_each(|number| answer.extend(number.to_le_bytes()));
        answer
    }

    /// Room for more than an answer in each row, as a model with larger answers before it left.
    fn outputs(rows: usize) -> Outputs {
        let mut outputs = Outputs::default();
        outputs.reset(rows as u32, 32);
        outputs
    }

    fn dealt(answers: &Answers, lens: &[u32], bytes: &[u8]) -> Vec<Result<Vec<u8>, FailReason>> {
        let mut outputs = outputs(lens.len());
        answers.deal(lens, bytes, &mut outputs);
        (0..outputs.len()).map(|row| outputs.row(row).map(<[u8]>::to_vec)).collect()
    }

    #[test]
    fn each_row_gets_its_own_answer() {
        let own: Vec<_> = (0..3_u8).map(|row| answer([row.into(), 1.0])).collect();
        let dealt = dealt(&answers(true), &[6; 3], &own.concat());
        assert_eq!(dealt, own.into_iter().map(Ok).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_left_between_tensors_goes_to_nobody() {
        let (own, mut left) = (answer([1.0, 2.0]), answer([1.0, 2.0]));
        left[12..16].fill(0xcd);
        assert_eq!(dealt(&answers(false), &[6], &left), [Ok(own)]);
    }

    #[test]
    fn a_row_of_another_length_has_no_answer_and_the_next_has_its_own() {
        let own: Vec<_> = (0..4_u8).map(|row| answer([row.into(), 1.0])).collect();
        let dealt = dealt(&answers(false), &[5, 6, 7, 6], &own.concat());
        let wrong = Err(FailReason::WrongSize);
        assert_eq!(dealt, [wrong.clone(), Ok(own[1].clone()), wrong, Ok(own[3].clone())]);
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused_where_they_are_looked_for() {
        for bad in [[f32::NAN, 0.0], [0.0, f32::NEG_INFINITY]] {
            let own = [answer([1.0, 2.0]), answer(bad), answer([3.0, 4.0])];
            let looked = dealt(&answers(true), &[6; 3], &own.concat());
            let [first, _, last] = own.clone();
            assert_eq!(looked, [Ok(first), Err(FailReason::Engine), Ok(last)], "{bad:?}");
            let kept = dealt(&answers(false), &[6; 3], &own.concat());
            assert_eq!(kept, own.map(Ok));
        }
    }
}
