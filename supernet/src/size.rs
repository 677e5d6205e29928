//! How long a tensor is in one dimension, for each variant.

use std::collections::BTreeMap;
use std::fmt;

use crate::checkpoint::Extent;

/// A number, or a dimension of the checkpoint times a number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Size {
    pub(crate) dim: Option<String>,
    pub(crate) each: usize,
}

impl Size {
    pub(crate) fn fixed(each: usize) -> Self {
        Self { dim: None, each }
    }

    pub(crate) fn of(extent: &Extent) -> Self {
        match extent {
            Extent::Fixed(each) => Self::fixed(*each),
            Extent::Dim(dim) => Self { dim: Some(dim.clone()), each: 1 },
        }
    }

    pub(crate) fn times(&self, factor: usize) -> Self {
        Self { dim: self.dim.clone(), each: self.each * factor }
    }

    /// Its length where dimensions have these lengths.
    pub(crate) fn at(&self, dims: &BTreeMap<String, usize>) -> usize {
        self.dim.as_ref().map_or(1, |dim| dims[dim]) * self.each
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.dim {
            None => write!(f, "{}", self.each),
            Some(dim) if self.each == 1 => write!(f, "{dim}"),
            Some(dim) => write!(f, "{}·{dim}", self.each),
        }
    }
}

/// `[a, b, c]`
pub(crate) fn shape_text(shape: &[Size]) -> String {
    let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", sizes.join(", "))
}
