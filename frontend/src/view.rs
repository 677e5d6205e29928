//! Rows as slices of their elements, without a copy.

use baton_topo::signature::{ElementType, Row, TensorRef};
use half::{bf16, f16};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Why a row cannot be seen as asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ViewError {
    /// The tensor has other elements.
    #[error("tensor `{tensor}` has elements of type {has}, not {asked}")]
    Type {
        /// The tensor.
        tensor: String,
        /// What it consists of.
        has: ElementType,
        /// What was asked for.
        asked: ElementType,
    },
    /// There is no tensor of this name.
    #[error("there is no tensor `{tensor}`; the model has {known}")]
    Unknown {
        /// The name.
        tensor: String,
        /// Those there are.
        known: String,
    },
    /// A view without a name is one of the only tensor.
    #[error("the row has the tensors {known}: name the one that is meant")]
    Several {
        /// Their names.
        known: String,
    },
    /// The lengths of an input's tensors are not known before it is written.
    #[error("the lengths of {known} differ from task to task: write them with input_of()")]
    NotFixed {
        /// The tensors.
        known: String,
    },
    /// The bytes are no row of the model, or not where such elements may lie.
    #[error("these {bytes} bytes are no row of {known}")]
    Layout {
        /// How many there are.
        bytes: usize,
        /// The tensors.
        known: String,
    },
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the element of a tensor. A `Bool` tensor has no view, because its bytes might be no `bool`.
pub trait Element: FromBytes + IntoBytes + Immutable + sealed::Sealed {
    /// What such a tensor is called.
    const TYPE: ElementType;
}

macro_rules! elements {
    ($($type:ty = $name:ident,)*) => {
        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const TYPE: ElementType = ElementType::$name;
            }
        )*
    };
}

elements! {
    f32 = F32, f64 = F64, f16 = F16, bf16 = Bf16,
    i8 = I8, i16 = I16, i32 = I32, i64 = I64,
    u8 = U8, u16 = U16, u32 = U32, u64 = U64,
}

/// The elements of one tensor of a row; without a name of its only one.
pub(crate) fn view<'a, T: Element>(
    row: &Row,
    bytes: &'a [u8],
    name: Option<&str>,
) -> Result<&'a [T], ViewError> {
    let at = place::<T>(row, name)?;
    let tensors = row.unpack(bytes).map_err(|_| layout(row, bytes))?;
    <[T]>::ref_from_bytes(tensors[at].bytes).map_err(|_| layout(row, bytes))
}

/// The elements of the only tensor of a row, to be written.
pub(crate) fn view_mut<'a, T: Element>(
    row: &Row,
    bytes: &'a mut [u8],
) -> Result<&'a mut [T], ViewError> {
    place::<T>(row, None)?;
    if !row.is_fixed() {
        return Err(ViewError::NotFixed { known: row.to_string() });
    }
    // Such a row is its tensor.
    let wrong = layout(row, bytes);
    if !row.allows(bytes.len()) {
        return Err(wrong);
    }
    <[T]>::mut_from_bytes(bytes).map_err(|_| wrong)
}

/// The tensor of this name, if its elements are these.
pub(crate) fn tensor<'a, T: Element>(
    row: &Row,
    name: &str,
    shape: &[u32],
    values: &'a [T],
) -> Result<TensorRef<'a>, ViewError> {
    place::<T>(row, Some(name))?;
    Ok(TensorRef { shape: shape.to_vec(), bytes: values.as_bytes() })
}

/// Which tensor is meant, if its elements are these.
fn place<T: Element>(row: &Row, name: Option<&str>) -> Result<usize, ViewError> {
    let tensors = row.tensors();
    let known = || row.to_string();
    let at = match name {
        Some(name) => tensors
            .iter()
            .position(|tensor| tensor.name == name)
            .ok_or_else(|| ViewError::Unknown { tensor: name.to_owned(), known: known() })?,
        None if tensors.len() == 1 => 0,
        None => return Err(ViewError::Several { known: known() }),
    };
    let (tensor, has) = (&tensors[at].name, tensors[at].element);
    let wrong = || ViewError::Type { tensor: tensor.clone(), has, asked: T::TYPE };
    (has == T::TYPE).then_some(at).ok_or_else(wrong)
}

#[cold]
fn layout(row: &Row, bytes: &[u8]) -> ViewError {
    ViewError::Layout { bytes: bytes.len(), known: row.to_string() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use baton_topo::signature::{Extent, TensorSpec};

    use super::*;

    fn tensor_spec(name: &str, element: ElementType, extent: Extent) -> TensorSpec {
        TensorSpec { name: name.into(), element, shape: vec![extent] }
    }

    fn one(element: ElementType, extent: Extent) -> Row {
        Row::new(vec![tensor_spec("x", element, extent)]).expect("a row")
    }

    /// Aligned as slots are.
    fn bytes_of(words: &[u64]) -> &[u8] {
        words.as_bytes()
    }

    fn said<T>(result: Result<T, ViewError>) -> String {
        result.map(drop).expect_err("it is refused").to_string()
    }

    #[test]
    fn each_type_is_seen_as_itself_and_as_no_other() {
        let row = one(ElementType::F32, Extent::Fixed(2));
        let bytes = [1.5_f32, -2.0].map(f32::to_le_bytes).concat();
        let words = [u64::from_le_bytes(bytes.try_into().unwrap())];
        assert_eq!(view::<f32>(&row, bytes_of(&words), None), Ok(&[1.5, -2.0][..]));
        assert_eq!(
            said(view::<i64>(&row, bytes_of(&words), None)),
            "tensor `x` has elements of type f32, not i64"
        );
        let halves = one(ElementType::F16, Extent::Fixed(4));
        let ones = f16::from_f32(1.0).to_bits();
        let words =
            [u64::from_le_bytes([ones; 4].map(u16::to_le_bytes).concat().try_into().unwrap())];
        assert_eq!(view::<f16>(&halves, bytes_of(&words), None).unwrap()[3].to_f32(), 1.0);
    }

    #[test]
    fn an_input_is_written_where_it_lies() {
        let row = one(ElementType::I64, Extent::Fixed(2));
        let mut words = [0_u64; 2];
        view_mut::<i64>(&row, words.as_mut_bytes()).unwrap().copy_from_slice(&[-1, 7]);
        assert_eq!(words, [u64::MAX, 7]);
        let cut = &mut words.as_mut_bytes()[..8];
        assert_eq!(said(view_mut::<i64>(&row, cut)), "these 8 bytes are no row of x i64[2]");
        let off = &mut [0_u64; 3];
        let off = &mut off.as_mut_bytes()[4..20];
        assert_eq!(said(view_mut::<i64>(&row, off)), "these 16 bytes are no row of x i64[2]");
    }

    #[test]
    fn lengths_that_differ_are_read_from_the_row_and_not_written_here() {
        let row = one(ElementType::U16, Extent::UpTo(4));
        let given = [7_u16, 8, 9].map(u16::to_le_bytes).concat();
        let mut words = [0_u64; 2];
        let tensor = TensorRef { shape: vec![3], bytes: &given };
        let len = row.pack(&[tensor], words.as_mut_bytes()).unwrap();
        assert_eq!(view::<u16>(&row, &bytes_of(&words)[..len], None), Ok(&[7, 8, 9][..]));
        assert!(said(view_mut::<u16>(&row, words.as_mut_bytes())).contains("input_of()"));
    }

    #[test]
    fn a_tensor_is_given_as_values_of_its_type() {
        let two = [("a", ElementType::I64), ("b", ElementType::F32)];
        let two = two.map(|(name, element)| tensor_spec(name, element, Extent::Fixed(2)));
        let row = Row::new(two.to_vec()).unwrap();
        let bytes = [1.5_f32, -2.0].map(f32::to_le_bytes).concat();
        let given = tensor(&row, "b", &[2], &[1.5_f32, -2.0]);
        assert_eq!(given, Ok(TensorRef { shape: vec![2], bytes: &bytes }));
        let other = tensor(&row, "b", &[2], &[1_i32, 2]);
        assert_eq!(said(other), "tensor `b` has elements of type f32, not i32");
        assert!(said(tensor(&row, "c", &[2], &[1_i64])).starts_with("there is no tensor `c`"));
    }

    #[test]
    fn of_several_tensors_one_is_named() {
        let two = [("a", ElementType::U8), ("b", ElementType::F32)];
        let two = two.map(|(name, element)| tensor_spec(name, element, Extent::Fixed(1)));
        let row = Row::new(two.to_vec()).unwrap();
        let words = [3, u64::from(2.5_f32.to_bits())];
        let bytes = &bytes_of(&words)[..12];
        assert_eq!(view::<f32>(&row, bytes, Some("b")), Ok(&[2.5][..]));
        assert_eq!(view::<u8>(&row, bytes, Some("a")), Ok(&[3][..]));
        assert_eq!(
            said(view::<u8>(&row, bytes, None)),
            "the row has the tensors a u8[1], b f32[1]: name the one that is meant"
        );
        assert!(said(view::<u8>(&row, bytes, Some("c"))).starts_with("there is no tensor `c`"));
    }
}
