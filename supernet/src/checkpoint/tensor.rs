//! The numbers of a checkpoint.

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::Problem;

/// Numbers in rows.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    /// Extents, the slowest first.
    pub shape: Vec<usize>,
    /// As many numbers as the extents' product.
    pub data: Vec<f32>,
}

impl Tensor {
    pub(super) fn from_view(place: &str, view: &TensorView<'_>) -> Result<Self, Problem> {
        if view.dtype() != Dtype::F32 {
            let what = format!("has elements of type {:?}", view.dtype());
            return Err(Problem::new(place, what, "store it as float32"));
        }
        let number =
            |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("a chunk has four bytes"));
        let data: Vec<f32> = view.data().chunks_exact(4).map(number).collect();
        if let Some(at) = data.iter().position(|value| !value.is_finite()) {
            let what = format!("number {at} of it is {}", data[at]);
            return Err(Problem::new(place, what, "train again: it is no weight"));
        }
        Ok(Self { shape: view.shape().to_vec(), data })
    }

    /// The first `extents` of each dimension.
    pub(crate) fn cut(&self, extents: &[usize]) -> Self {
        if extents == self.shape {
            return self.clone();
        }
        let count: usize = extents.iter().product();
        let mut data = Vec::with_capacity(count);
        for place in 0..count {
            let (mut rest, mut at, mut stride) = (place, 0, 1);
            for (&extent, &whole) in extents.iter().zip(&self.shape).rev() {
                at += rest % extent * stride;
                rest /= extent;
                stride *= whole;
            }
            data.push(self.data[at]);
        }
        Self { shape: extents.to_vec(), data }
    }

    /// A matrix with rows and columns exchanged.
    pub(crate) fn transposed(&self) -> Self {
        let [rows, columns] = self.shape[..] else { unreachable!("it is a matrix") };
        let data = (0..columns)
            .flat_map(|column| (0..rows).map(move |row| self.data[row * columns + column]))
            .collect();
        Self { shape: vec![columns, rows], data }
    }

    /// These rows, in this order.
    pub(crate) fn rows(&self, chosen: &[usize]) -> Self {
        let width = self.data.len() / self.shape[0];
        let row = |&at: &usize| &self.data[at * width..(at + 1) * width];
        let data = chosen.iter().flat_map(row).copied().collect();
        Self { shape: [&[chosen.len()], &self.shape[1..]].concat(), data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_first_of_each_dimension() {
        let data = (0..24).map(|n| n as f32).collect();
        let tensor = Tensor { shape: vec![2, 3, 4], data };
        assert_eq!(tensor.cut(&[2, 3, 4]), tensor);
        assert_eq!(tensor.cut(&[1, 2, 3]).data, [0.0, 1.0, 2.0, 4.0, 5.0, 6.0]);
        assert_eq!(tensor.cut(&[2, 1, 2]).data, [0.0, 1.0, 12.0, 13.0]);
    }

    #[test]
    fn matrices_are_transposed_and_rows_chosen() {
        let data = (0..6).map(|n| n as f32).collect();
        let tensor = Tensor { shape: vec![2, 3], data };
        assert_eq!(tensor.transposed().data, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(tensor.rows(&[1]).data, [3.0, 4.0, 5.0]);
    }
}
