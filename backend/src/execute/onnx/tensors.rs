//! Bytes to ONNX Runtime's tensors and back, by element type. Both are little endian, as every host is that it runs on.

use baton_topo::Constant;
use baton_topo::signature::{ElementType, TensorRef};
use half::{bf16, f16};
use ort::value::{
    DynValue, IntoTensorElementType as _, Tensor, TensorElementType, TensorRef as OrtRef,
};
use zerocopy::{FromBytes, IntoBytes};

use super::{strided, text};

/// Calls `$do!(T)` with the Rust type of an element type; `$boolean` is for `bool`, which not every byte is.
macro_rules! by_type {
    ($element:expr, $do:ident, $boolean:expr) => {
        match $element {
            ElementType::F32 => $do!(f32),
            ElementType::F64 => $do!(f64),
            ElementType::F16 => $do!(f16),
            ElementType::Bf16 => $do!(bf16),
            ElementType::I8 => $do!(i8),
            ElementType::I16 => $do!(i16),
            ElementType::I32 => $do!(i32),
            ElementType::I64 => $do!(i64),
            ElementType::U8 => $do!(u8),
            ElementType::U16 => $do!(u16),
            ElementType::U32 => $do!(u32),
            ElementType::U64 => $do!(u64),
            ElementType::Bool => $boolean,
        }
    };
}

/// What ONNX Runtime calls it.
pub(super) fn kind_of(element: ElementType) -> TensorElementType {
    macro_rules! kind {
        ($of:ty) => {
            <$of>::into_tensor_element_type()
        };
    }
    by_type!(element, kind, TensorElementType::Bool)
}

/// One tensor of `batch` rows along this dimension: those given, of equal shapes, and zeros after them. Without such a
/// dimension it is the first row.
pub(super) fn gather(
    element: ElementType,
    rows: &[&TensorRef<'_>],
    (axis, batch): (Option<usize>, u32),
) -> Result<DynValue, String> {
    let mut shape: Vec<i64> = rows[0].shape.iter().map(|&extent| i64::from(extent)).collect();
    axis.iter().for_each(|&axis| shape.insert(axis, batch.into()));
    let outer = strided::blocks(&rows[0].shape, axis);
    let bytes: Vec<&[u8]> = rows.iter().map(|row| row.bytes).collect();
    filled(element, shape, |place| strided::into_batch(&bytes, outer, place))
}

/// An input that all rows share.
pub(super) fn constant(of: &Constant) -> Result<(String, DynValue), String> {
    let shape = of.shape.iter().map(|&extent| i64::from(extent)).collect();
    let value = filled(of.element, shape, |place| place.copy_from_slice(&of.bytes))?;
    Ok((of.name.clone(), value))
}

/// A tensor whose bytes are zeros but for what is written there.
fn filled(
    element: ElementType,
    shape: Vec<i64>,
    write: impl FnOnce(&mut [u8]),
) -> Result<DynValue, String> {
    let count = shape.iter().product::<i64>() as usize;
    macro_rules! made {
        ($of:ty) => {{
            let mut values = vec![<$of>::default(); count];
            write(values.as_mut_bytes());
            Tensor::from_array((shape, values)).map(Tensor::into_dyn)
        }};
    }
    by_type!(element, made, {
        let mut bytes = vec![0_u8; count];
        write(&mut bytes);
        let values: Vec<bool> = bytes.into_iter().map(|byte| byte != 0).collect();
        Tensor::from_array((shape, values)).map(Tensor::into_dyn)
    })
    .map_err(text)
}

/// A tensor of one integer, of shape `[]` or `[1]`.
pub(super) fn integer(shape: &[i64], value: i64) -> Result<DynValue, String> {
    Tensor::from_array((shape.to_vec(), vec![value])).map(Tensor::into_dyn).map_err(text)
}

/// Rows of f32 where they lie.
pub(super) fn floats_in_place<'a>(
    shape: &'a [i64],
    bytes: &'a [u8],
) -> Result<OrtRef<'a, f32>, String> {
    let floats = <[f32]>::ref_from_bytes(bytes).map_err(|_| "the rows are not whole floats")?;
    OrtRef::from_array_view((shape, floats)).map_err(text)
}

/// A tensor's shape, batch included, and its bytes.
pub(super) fn bytes_of(
    element: ElementType,
    value: &DynValue,
) -> Result<(Vec<u32>, &[u8]), String> {
    macro_rules! extracted {
        ($of:ty) => {{
            let (shape, values) = value.try_extract_tensor::<$of>().map_err(text)?;
            (shape, values.as_bytes())
        }};
    }
    let (shape, bytes) = by_type!(element, extracted, extracted!(bool));
    Ok((shape.iter().map(|&extent| extent as u32).collect(), bytes))
}
