//! What the batches of a bench execute: Baton's kernel, or the CUDA graphs of an ONNX model.

use baton_core::Nanos;
use baton_cuda::{CHECKSUM_BYTES, Program, Room};

use super::{ROW_BYTES, ROWS};

/// By how much answers to one row may differ from batch to batch, as a share of the largest number.
const TOLERANCE: f32 = 1e-2;

/// The graph that executes a batch of that many rows.
pub(super) type Programs<'a, G> = &'a dyn Fn(u32) -> &'a Program<G>;

/// What is executed.
pub(super) struct Subject<'a, G> {
    /// Bytes of a row.
    pub(super) row_bytes: u32,
    /// Bytes of an answer.
    pub(super) answer_bytes: usize,
    /// Rows of a batch at full load.
    pub(super) rows: u32,
    /// `None`: the kernel.
    pub(super) programs: Option<Programs<'a, G>>,
    /// The answer to a row of zeros: known of the kernel, of a model the first that comes.
    pub(super) right: Option<Vec<u8>>,
}

impl<'a, G> Subject<'a, G> {
    /// The kernel, whose answer is known.
    pub(super) fn kernel(right: [u8; 8]) -> Self {
        let right = Some(right.to_vec());
        Self {
            row_bytes: ROW_BYTES,
            answer_bytes: CHECKSUM_BYTES,
            rows: ROWS,
            programs: None,
            right,
        }
    }

    pub(super) fn program(&self, rows: u32) -> Option<&'a Program<G>> {
        self.programs.map(|program| program(rows))
    }

    /// Room for any batch.
    pub(super) fn room(&self) -> Room {
        let row_bytes = (self.rows * self.row_bytes) as usize;
        Room { row_bytes, rows: self.rows, answer_bytes: self.rows as usize * self.answer_bytes }
    }

    /// Whether as many rows have the right answer.
    pub(super) fn is_right(&mut self, rows: u32, answers: &[u8]) -> bool {
        let each = answers.chunks_exact(self.answer_bytes);
        if each.len() != rows as usize || !each.remainder().is_empty() {
            return false;
        }
        let right = self.right.get_or_insert_with(|| answers[..self.answer_bytes].to_vec());
        let is_kernel = self.programs.is_none();
        each.into_iter().all(|answer| answer == right || !is_kernel && is_near(right, answer))
    }
}

fn is_near(one: &[u8], other: &[u8]) -> bool {
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect()
    };
    let (one, other) = (numbers(one), numbers(other));
    let largest = one.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    one.iter().zip(&other).all(|(a, b)| (a - b).abs() <= TOLERANCE * largest)
}

/// How long a batch of the kernel is to last; what a graph takes is its own.
pub(super) type Plan = (u32, Nanos);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_answers_are_exact_and_a_models_alike() {
        let mut kernel = Subject::<()>::kernel([1; 8]);
        assert!(kernel.is_right(2, &[1; 16]));
        assert!(!kernel.is_right(2, &[1; 8]) && !kernel.is_right(1, &[2; 8]));
        let none: Programs<'_, ()> = &|_| unreachable!("nothing is executed");
        let mut model = Subject { programs: Some(none), right: None, answer_bytes: 4, ..kernel };
        let rows = |numbers: &[f32]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
        };
        assert!(model.is_right(2, &rows(&[1.0, 1.001])), "the first is right");
        assert!(model.is_right(1, &rows(&[0.995])) && !model.is_right(1, &rows(&[2.0])));
        assert!(!model.is_right(1, &rows(&[f32::NAN])));
    }
}
