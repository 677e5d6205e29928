//! Rows by their tensors: where each lies, written and read.

use std::ops::Range;

use super::{Extent, Row, TensorSpec};

/// What tensors and the header are aligned to within a row.
const ALIGNMENT: usize = 8;
const EXTENT_BYTES: usize = 4;

/// A tensor of one task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorRef<'a> {
    /// Its extents without the batch dimension.
    pub shape: Vec<u32>,
    /// Its elements, row major, little endian.
    pub bytes: &'a [u8],
}

/// Why bytes are not a row, or tensors do not make one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RowError {
    /// Not as many tensors as the row has.
    #[error("{got} tensors are given; the model has {expected}")]
    Tensors {
        /// The row's.
        expected: usize,
        /// Those given.
        got: usize,
    },
    /// A tensor is not one of the row's.
    #[error("there is no tensor `{name}`; the model has {known}")]
    Unknown {
        /// The one given.
        name: String,
        /// The row's.
        known: String,
    },
    /// A tensor of the row is not given.
    #[error("the tensor {tensor} is missing")]
    Missing {
        /// As the signature prints it.
        tensor: String,
    },
    /// A tensor has a shape that the model does not take.
    #[error("tensor `{name}` has shape {got:?}; the model has {expected}, without the batch")]
    Shape {
        /// The tensor.
        name: String,
        /// As the signature prints it.
        expected: String,
        /// The one given.
        got: Vec<u32>,
    },
    /// A tensor's bytes do not fit its shape.
    #[error("tensor `{name}` has {got} bytes; its shape makes {expected}")]
    Bytes {
        /// The tensor.
        name: String,
        /// By its shape.
        expected: usize,
        /// Those given.
        got: usize,
    },
    /// The row is not as long as its header and the signature say.
    #[error("the row has {got} bytes; its tensors make {expected}")]
    Length {
        /// By header and signature.
        expected: usize,
        /// The row's.
        got: usize,
    },
}

/// Bytes of a tensor with these extents; `None` if they are too many to count.
fn tensor_bytes(spec: &TensorSpec, mut extents: impl Iterator<Item = u32>) -> Option<usize> {
    extents.try_fold(spec.element.bytes(), |bytes, extent| bytes.checked_mul(extent as usize))
}

/// Bytes of the extents that stand at the beginning of a row.
fn header_bytes(tensors: &[TensorSpec]) -> usize {
    let dynamic = tensors.iter().flat_map(|tensor| &tensor.shape).filter(|e| !e.is_fixed());
    (dynamic.count() * EXTENT_BYTES).next_multiple_of(ALIGNMENT)
}

/// Bytes of the longest row of these tensors; `None` if it has more than `u32::MAX`.
pub(super) fn bytes_max(tensors: &[TensorSpec]) -> Option<usize> {
    let end = tensors.iter().try_fold(header_bytes(tensors), |end, tensor| {
        let bytes = tensor_bytes(tensor, tensor.shape.iter().map(|extent| extent.max()))?;
        end.checked_next_multiple_of(ALIGNMENT)?.checked_add(bytes)
    })?;
    u32::try_from(end).is_ok().then_some(end)
}

impl Row {
    /// Tensors that are given by their names, in the order of the row.
    ///
    /// # Errors
    /// They are not those of the signature, each once.
    pub fn in_order<'a>(
        &self,
        named: &[(&str, TensorRef<'a>)],
    ) -> Result<Vec<TensorRef<'a>>, RowError> {
        let is_known = |name: &str| self.tensors.iter().any(|spec| spec.name == name);
        if let Some((name, _)) = named.iter().find(|(name, _)| !is_known(name)) {
            return Err(RowError::Unknown { name: (*name).to_owned(), known: self.to_string() });
        }
        let given = |spec: &TensorSpec| {
            let tensor = named.iter().find(|(name, _)| *name == spec.name);
            let missing = || RowError::Missing { tensor: spec.to_string() };
            tensor.map(|(_, tensor)| tensor.clone()).ok_or_else(missing)
        };
        let in_order: Vec<TensorRef<'a>> =
            self.tensors.iter().map(given).collect::<Result<_, _>>()?;
        let (expected, got) = (in_order.len(), named.len());
        (expected == got).then_some(in_order).ok_or(RowError::Tensors { expected, got })
    }

    /// Writes a row to the beginning of `row`, which has room for the longest; returns its length.
    ///
    /// # Errors
    /// The tensors are not those of the signature, in number, shape or length.
    pub fn pack(&self, tensors: &[TensorRef<'_>], row: &mut [u8]) -> Result<usize, RowError> {
        let shapes: Vec<&[u32]> = tensors.iter().map(|tensor| &tensor.shape[..]).collect();
        let places = self.lay_out(&shapes, row)?;
        for ((spec, tensor), place) in self.tensors.iter().zip(tensors).zip(&places) {
            let (expected, got) = (place.len(), tensor.bytes.len());
            if got != expected {
                return Err(RowError::Bytes { name: spec.name.clone(), expected, got });
            }
            row[place.clone()].copy_from_slice(tensor.bytes);
        }
        Ok(places.last().map_or(0, |last| last.end))
    }

    /// Writes what stands before and between tensors of these shapes, and returns where the bytes of each belong: for
    /// callers that write tensors in place. `row` has room for the longest row. The row ends with its last tensor.
    ///
    /// # Errors
    /// The shapes are not those of the signature, or not as many.
    pub fn lay_out(
        &self,
        shapes: &[&[u32]],
        row: &mut [u8],
    ) -> Result<Vec<Range<usize>>, RowError> {
        if shapes.len() != self.tensors.len() {
            let (expected, got) = (self.tensors.len(), shapes.len());
            return Err(RowError::Tensors { expected, got });
        }
        let mut header = 0;
        let mut end = header_bytes(&self.tensors);
        row[..end].fill(0);
        let mut places = Vec::with_capacity(shapes.len());
        for (spec, shape) in self.tensors.iter().zip(shapes) {
            let bytes = check(spec, shape)?;
            for (_, extent) in spec.shape.iter().zip(*shape).filter(|(e, _)| !e.is_fixed()) {
                row[header..header + EXTENT_BYTES].copy_from_slice(&extent.to_le_bytes());
                header += EXTENT_BYTES;
            }
            let at = end.next_multiple_of(ALIGNMENT);
            row[end..at].fill(0);
            end = at + bytes;
            places.push(at..end);
        }
        Ok(places)
    }

    /// Where the bytes of each tensor lie in the longest row.
    pub fn places(&self) -> Vec<Range<usize>> {
        let mut end = header_bytes(&self.tensors);
        let place = |spec: &TensorSpec| {
            let bytes = tensor_bytes(spec, spec.shape.iter().map(|extent| extent.max()));
            let at = end.next_multiple_of(ALIGNMENT);
            end = at + bytes.expect("counted when the row was made");
            at..end
        };
        self.tensors.iter().map(place).collect()
    }

    /// The tensors of a row.
    ///
    /// # Errors
    /// An extent is larger than the signature allows, or the row is not as long as its extents say.
    pub fn unpack<'a>(&self, row: &'a [u8]) -> Result<Vec<TensorRef<'a>>, RowError> {
        let shapes = self.shapes(row)?;
        let mut end = header_bytes(&self.tensors);
        let mut places: Vec<Range<usize>> = Vec::with_capacity(shapes.len());
        for (spec, shape) in self.tensors.iter().zip(&shapes) {
            let at = end.next_multiple_of(ALIGNMENT);
            end = at + check(spec, shape)?;
            places.push(at..end);
        }
        if end != row.len() {
            return Err(RowError::Length { expected: end, got: row.len() });
        }
        let tensor = |(shape, place)| TensorRef { shape, bytes: &row[place] };
        Ok(shapes.into_iter().zip(places).map(tensor).collect())
    }

    /// A row of zeros with the largest extents.
    pub fn zeros(&self) -> Vec<u8> {
        let mut row = vec![0; self.bytes_max];
        let dynamic =
            self.tensors.iter().flat_map(|tensor| &tensor.shape).filter(|e| !e.is_fixed());
        for (place, extent) in row.chunks_exact_mut(EXTENT_BYTES).zip(dynamic) {
            place.copy_from_slice(&extent.max().to_le_bytes());
        }
        row
    }

    /// Whether a row may have this many bytes, as far as its length alone tells.
    pub fn allows(&self, bytes: usize) -> bool {
        let least = if self.is_fixed() { self.bytes_max } else { header_bytes(&self.tensors) };
        (least..=self.bytes_max).contains(&bytes)
    }

    /// What the header and the signature say.
    fn shapes(&self, row: &[u8]) -> Result<Vec<Vec<u32>>, RowError> {
        let bytes = header_bytes(&self.tensors);
        let short = RowError::Length { expected: bytes, got: row.len() };
        let header = row.get(..bytes).ok_or(short)?;
        let mut stated = header
            .chunks_exact(EXTENT_BYTES)
            .map(|extent| u32::from_le_bytes(extent.try_into().expect("four bytes")));
        let mut extent = |extent: &Extent| match extent {
            Extent::Fixed(extent) => *extent,
            Extent::UpTo(_) => stated.next().expect("the header has each"),
        };
        Ok(self.tensors.iter().map(|spec| spec.shape.iter().map(&mut extent).collect()).collect())
    }
}

/// Bytes of a tensor of this shape, if the model takes it.
fn check(spec: &TensorSpec, shape: &[u32]) -> Result<usize, RowError> {
    let fits = shape.len() == spec.shape.len()
        && spec.shape.iter().zip(shape).all(|(extent, &given)| extent.allows(given));
    if !fits {
        let (name, expected) = (spec.name.clone(), spec.to_string());
        return Err(RowError::Shape { name, expected, got: shape.to_vec() });
    }
    Ok(tensor_bytes(spec, shape.iter().copied()).expect("no more than the longest"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::{ElementType, RANK_MAX, TENSORS_MAX};

    fn tensor(name: &str, element: ElementType, shape: &[Extent]) -> TensorSpec {
        TensorSpec { name: name.into(), element, shape: shape.to_vec() }
    }

    /// Tokens of any number up to four, a flag for each, and a fixed pair.
    fn tokens() -> Row {
        let some = Extent::UpTo(4);
        let pair = tensor("pair", ElementType::I16, &[Extent::Fixed(2)]);
        let ids = tensor("ids", ElementType::I64, &[some]);
        Row::new(vec![ids, tensor("mask", ElementType::Bool, &[some]), pair]).unwrap()
    }

    fn given(tokens: usize) -> [(Vec<u32>, Vec<u8>); 3] {
        let n = tokens as u32;
        [(vec![n], vec![1; 8 * tokens]), (vec![n], vec![2; tokens]), (vec![2], vec![3; 4])]
    }

    fn refs(given: &[(Vec<u32>, Vec<u8>)]) -> Vec<TensorRef<'_>> {
        given.iter().map(|(shape, bytes)| TensorRef { shape: shape.clone(), bytes }).collect()
    }

    #[test]
    fn one_tensor_of_fixed_extents_is_its_bytes() {
        let shape = [3, 2].map(Extent::Fixed);
        let row = Row::new(vec![tensor("x", ElementType::F32, &shape)]).unwrap();
        assert_eq!((row.bytes_max(), row.is_fixed()), (24, true));
        let bytes: Vec<u8> = (0..24).collect();
        let [x] = &row.unpack(&bytes).unwrap()[..] else { panic!("one tensor") };
        assert_eq!((x.bytes, &x.shape[..]), (&bytes[..], &[3, 2][..]));
        assert!(row.unpack(&bytes[..23]).is_err());
        assert_eq!([23, 24, 25].map(|bytes| row.allows(bytes)), [false, true, false]);
    }

    #[test]
    fn a_row_is_as_long_as_its_tensors_and_reads_as_it_was_written() {
        let row = tokens();
        // Extents 8; ids 32; mask 4, filled up to 8; pair 4.
        assert_eq!((row.bytes_max(), row.is_fixed()), (8 + 32 + 8 + 4, false));
        for (count, expected) in [(4, 52), (3, 8 + 24 + 8 + 4), (0, 8 + 4)] {
            let given = given(count);
            let mut bytes = vec![0xff; 52];
            let len = row.pack(&refs(&given), &mut bytes).unwrap();
            assert_eq!(len, expected, "{count} tokens");
            assert_eq!(row.unpack(&bytes[..len]).unwrap(), refs(&given));
            let mut fresh = vec![0; 52];
            row.pack(&refs(&given), &mut fresh).unwrap();
            assert_eq!(bytes[..len], fresh[..len], "nothing is left of what was there");
        }
        let longest = row.zeros();
        assert_eq!(row.unpack(&longest).unwrap()[0].shape, [4]);
        assert_eq!(
            [0, 7, 8, 52, 53].map(|bytes| row.allows(bytes)),
            [false, false, true, true, false]
        );
    }

    #[test]
    fn the_tensors_of_the_longest_row_have_their_places() {
        let row = tokens();
        assert_eq!(row.places(), [8..40, 40..44, 48..52]);
        let shapes: [&[u32]; 3] = [&[4], &[4], &[2]];
        assert_eq!(row.places(), row.lay_out(&shapes, &mut [0; 52]).unwrap());
    }

    #[test]
    fn tensors_given_by_name_come_in_the_order_of_the_row_and_each_once() {
        let (row, given) = (tokens(), given(2));
        let [ids, mask, pair] = &refs(&given)[..] else { panic!("three tensors") };
        let named = |names: &[&'static str]| {
            let of = |name| match name {
                "ids" => ids.clone(),
                "mask" => mask.clone(),
                _ => pair.clone(),
            };
            let named: Vec<_> = names.iter().map(|&name| (name, of(name))).collect();
            row.in_order(&named).map_err(|error| error.to_string())
        };
        assert_eq!(named(&["pair", "mask", "ids"]), Ok(refs(&given)));
        assert_eq!(
            named(&["ids", "musk", "pair"]),
            Err("there is no tensor `musk`; the model has ids i64[≤4], mask bool[≤4], pair i16[2]"
                .into())
        );
        assert_eq!(named(&["ids", "mask"]), Err("the tensor pair i16[2] is missing".into()));
        let twice = named(&["ids", "mask", "pair", "ids"]);
        assert_eq!(twice, Err("4 tensors are given; the model has 3".into()));
    }

    #[test]
    fn what_the_signature_does_not_allow_is_refused() {
        let row = tokens();
        let mut bytes = vec![0; 52];
        let five = given(5);
        assert!(matches!(row.pack(&refs(&five), &mut bytes), Err(RowError::Shape { .. })));
        let mut flat = given(2);
        flat[0].0.pop();
        assert!(matches!(row.pack(&refs(&flat), &mut bytes), Err(RowError::Shape { .. })));
        let mut short = given(2);
        short[0].1.pop();
        assert!(matches!(row.pack(&refs(&short), &mut bytes), Err(RowError::Bytes { .. })));
        let two = given(2);
        let missing = row.pack(&refs(&two)[..2], &mut bytes);
        assert_eq!(missing, Err(RowError::Tensors { expected: 3, got: 2 }));
        let len = row.pack(&refs(&two), &mut bytes).unwrap();
        assert!(matches!(row.unpack(&bytes[..len - 1]), Err(RowError::Length { .. })));
        assert!(matches!(row.unpack(&bytes[..3]), Err(RowError::Length { .. })));
        bytes[0] = 200;
        assert!(matches!(row.unpack(&bytes[..len]), Err(RowError::Shape { .. })));
    }

    #[test]
    fn rows_that_cannot_be_are_none() {
        let huge = [Extent::UpTo(u32::MAX), Extent::Fixed(2)];
        assert_eq!(Row::new(vec![tensor("x", ElementType::F64, &huge)]), None);
        assert_eq!(Row::new(vec![]), None);
        let many = |count| Row::new(vec![tensor("x", ElementType::U8, &[]); count]);
        assert!(many(TENSORS_MAX).is_some() && many(TENSORS_MAX + 1).is_none());
        assert_eq!(Row::new(vec![tensor("x", ElementType::U8, &[Extent::Fixed(0)])]), None);
        let deep = |rank| {
            let shape = vec![Extent::Fixed(1); rank];
            Row::new(vec![tensor("x", ElementType::U8, &shape)])
        };
        assert!(deep(RANK_MAX).is_some() && deep(RANK_MAX + 1).is_none());
    }
}
