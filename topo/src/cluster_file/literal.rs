//! Numbers of a cluster file whose type something else says, such as a model file.

use std::fmt;

use toml::de::DeValue;

use super::section::parse;

/// A number or truth as it is written, for whatever type it becomes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Literal {
    Integer(i128),
    Float(f64),
    Truth(bool),
}

impl Literal {
    /// The elements of a list, or one. `None`: it is something else.
    pub(super) fn all(value: &DeValue<'_>) -> Option<Vec<Self>> {
        match value {
            DeValue::Array(items) => items.iter().map(|item| Self::one(item.get_ref())).collect(),
            one => Some(vec![Self::one(one)?]),
        }
    }

    fn one(value: &DeValue<'_>) -> Option<Self> {
        match value {
            DeValue::Integer(integer) => parse(integer).map(Self::Integer),
            DeValue::Float(float) => float.as_str().parse().ok().map(Self::Float),
            DeValue::Boolean(truth) => Some(Self::Truth(*truth)),
            _ => None,
        }
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Truth(truth) => truth.fmt(f),
        }
    }
}
