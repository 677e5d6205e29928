//! What a model takes and gives: named tensors, and how those of one task lie in its slot.
//!
//! A [`Row`] is one task's input or output. The scheduler knows only its largest size. Clients write and read it by
//! tensor, and an engine takes it apart.

mod row;

use std::fmt;

pub use row::{RowError, TensorRef};

/// Longest input row, bytes. An input travels with its trailer of eight bytes, and both together are one payload, of
/// 64 MiB at most (`docs/wire.md`).
pub const INPUT_BYTES_MAX: u32 = (64 << 20) - 8;
/// Longest answer, bytes: a map of 2,048 × 2,048 f32. It is one payload, too; more would keep a link for too long.
pub const OUTPUT_BYTES_MAX: u32 = (16 << 20) + 64;
/// Most dimensions of a tensor, without the batch dimension.
pub const RANK_MAX: usize = 8;
/// Most tensors of a row.
pub const TENSORS_MAX: usize = 32;

macro_rules! element_types {
    ($($code:literal $name:ident $text:literal $oip:literal $bytes:literal,)*) => {
        /// What a tensor's elements are. Little endian; a `Bool` is a byte, 0 or 1.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum ElementType { $(#[doc = $text] $name = $code,)* }

        impl ElementType {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// As it is written.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// As the Open Inference Protocol writes it: `FP32`.
            pub const fn oip_name(self) -> &'static str {
                match self { $(Self::$name => $oip,)* }
            }

            /// The type that the Open Inference Protocol writes so.
            pub fn from_oip_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|element| element.oip_name() == name)
            }

            /// Bytes of an element.
            pub const fn bytes(self) -> usize {
                match self { $(Self::$name => $bytes,)* }
            }

            /// The type with this code on the wire.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
        }
    };
}

element_types! {
    1 F32 "f32" "FP32" 4,
    2 F64 "f64" "FP64" 8,
    3 F16 "f16" "FP16" 2,
    4 Bf16 "bf16" "BF16" 2,
    5 I8 "i8" "INT8" 1,
    6 I16 "i16" "INT16" 2,
    7 I32 "i32" "INT32" 4,
    8 I64 "i64" "INT64" 8,
    9 U8 "u8" "UINT8" 1,
    10 U16 "u16" "UINT16" 2,
    11 U32 "u32" "UINT32" 4,
    12 U64 "u64" "UINT64" 8,
    13 Bool "bool" "BOOL" 1,
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How long a tensor is in one dimension.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Extent {
    /// This long in every task.
    Fixed(u32),
    /// As long as the task says, at most this.
    UpTo(u32),
}

impl Extent {
    /// The longest it can be.
    pub const fn max(self) -> u32 {
        match self {
            Self::Fixed(extent) | Self::UpTo(extent) => extent,
        }
    }

    /// Whether a task may have this many.
    pub const fn allows(self, extent: u32) -> bool {
        match self {
            Self::Fixed(fixed) => extent == fixed,
            Self::UpTo(max) => extent <= max,
        }
    }

    const fn is_fixed(self) -> bool {
        matches!(self, Self::Fixed(_))
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(extent) => write!(f, "{extent}"),
            Self::UpTo(max) => write!(f, "≤{max}"),
        }
    }
}

/// One tensor of a row.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorSpec {
    /// Its name in the model.
    pub name: String,
    /// What it consists of.
    pub element: ElementType,
    /// Its extents without the batch dimension; empty for one number per task. At most [`RANK_MAX`].
    pub shape: Vec<Extent>,
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<String> = self.shape.iter().map(Extent::to_string).collect();
        write!(f, "{} {}[{}]", self.name, self.element, shape.join(", "))
    }
}

/// The tensors of one task, in the order in which they lie in its slot.
///
/// A row whose extents are all fixed has no header. Otherwise it begins with one u32, little endian, for each extent that
/// is not fixed, in the order of tensors and dimensions, filled up with zeros to a multiple of 8 bytes. The tensors
/// follow, row major, each at a multiple of 8 bytes from the beginning of the row and as long as its extents say. So a
/// row of one tensor with fixed extents is that tensor's bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Row {
    tensors: Vec<TensorSpec>,
    bytes_max: usize,
}

impl Row {
    /// A row of these tensors; `None` if there are none or more than [`TENSORS_MAX`], if one has more than [`RANK_MAX`]
    /// dimensions, or if the row can be longer than `u32::MAX` bytes or has none.
    pub fn new(tensors: Vec<TensorSpec>) -> Option<Self> {
        let few = (1..=TENSORS_MAX).contains(&tensors.len());
        if !few || tensors.iter().any(|tensor| tensor.shape.len() > RANK_MAX) {
            return None;
        }
        let bytes_max = row::bytes_max(&tensors)?;
        (bytes_max > 0).then_some(Self { tensors, bytes_max })
    }

    /// One tensor of `bytes` bytes, of which no more is known.
    pub fn opaque(name: &str, bytes: u32) -> Self {
        let (name, shape) = (name.to_owned(), vec![Extent::Fixed(bytes)]);
        let tensors = vec![TensorSpec { name, element: ElementType::U8, shape }];
        Self { tensors, bytes_max: bytes as usize }
    }

    /// The tensors.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Bytes of the longest row.
    pub fn bytes_max(&self) -> u32 {
        self.bytes_max as u32
    }

    /// Whether all rows are equally long.
    pub fn is_fixed(&self) -> bool {
        self.tensors.iter().all(|tensor| tensor.shape.iter().all(|extent| extent.is_fixed()))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors: Vec<String> = self.tensors.iter().map(TensorSpec::to_string).collect();
        f.write_str(&tensors.join(", "))
    }
}

/// What a model takes and gives.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Signature {
    /// A task's input.
    pub input: Row,
    /// A task's answer.
    pub output: Row,
}
