//! Bytes to ONNX Runtime's tensors and back, by element type.

use baton_topo::signature::{ElementType, TensorRef};
use half::{bf16, f16};
use ort::value::{DynValue, Tensor, TensorRef as OrtRef};
use zerocopy::FromBytes;

use super::text;

/// A tensor of a batch.
pub(super) type Value = DynValue;

/// Calls `$do!(T)` with the Rust type of an element type.
macro_rules! by_type {
    ($element:expr, $do:ident) => {
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
            ElementType::Bool => $do!(bool),
        }
    };
}

/// What of numbers is needed here, for `bool` too.
trait Element: Copy + Default {
    const BYTES: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut Vec<u8>);
}

macro_rules! elements {
    ($($name:ty)*) => { $(
        impl Element for $name {
            const BYTES: usize = size_of::<Self>();
            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("cut to size"))
            }
            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    )* };
}

elements!(f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64);

impl Element for bool {
    const BYTES: usize = 1;
    fn read(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
    fn write(self, bytes: &mut Vec<u8>) {
        bytes.push(self.into());
    }
}

/// One tensor of `batch` rows: those given, of equal shapes, and zeros after them.
pub(super) fn gather(
    element: ElementType,
    rows: &[&TensorRef<'_>],
    batch: u32,
) -> Result<Value, String> {
    let extents = rows[0].shape.iter().map(|&extent| i64::from(extent));
    let shape: Vec<i64> = std::iter::once(i64::from(batch)).chain(extents).collect();
    let count: i64 = shape.iter().product();
    macro_rules! gathered {
        ($of:ty) => {{
            let elements = rows.iter().flat_map(|row| row.bytes.chunks_exact(<$of>::BYTES));
            let mut values: Vec<$of> = Vec::with_capacity(count as usize);
            values.extend(elements.map(<$of as Element>::read));
            values.resize(count as usize, <$of>::default());
            Ok(Tensor::from_array((shape, values)).map_err(text)?.into_dyn())
        }};
    }
    by_type!(element, gathered)
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
pub(super) fn bytes_of(element: ElementType, value: &Value) -> Result<(Vec<u32>, Vec<u8>), String> {
    macro_rules! extracted {
        ($of:ty) => {{
            let (shape, values) = value.try_extract_tensor::<$of>().map_err(text)?;
            let shape = shape.iter().map(|&extent| extent as u32).collect();
            let mut bytes = Vec::with_capacity(values.len() * <$of>::BYTES);
            values.iter().for_each(|value| value.write(&mut bytes));
            Ok((shape, bytes))
        }};
    }
    by_type!(element, extracted)
}
