//! Inputs that all rows of a batch share: the key `constants` gives their values.

use std::collections::BTreeMap;
use std::fmt;

use half::{bf16, f16};
use toml::de::DeValue;

use super::batch::toml_key;
use super::extents::described;
use super::file::{Dim, OnnxFile, Tensor};
use super::{Refusal, Section, no_such};
use crate::cluster_file::literal::Literal;
use crate::cluster_file::section;
use crate::signature::ElementType;

/// Most numbers of a constant: what stands in a cluster file is short.
const COUNT_MAX: usize = 1024;

/// An input with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Constant {
    /// Its name in the model.
    pub name: String,
    /// What it consists of.
    pub element: ElementType,
    /// All its extents; empty for one number.
    pub shape: Vec<u32>,
    /// Its elements, row major, little endian.
    pub bytes: Vec<u8>,
    /// As the cluster file gives it.
    pub text: String,
}

impl fmt::Display for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.name, self.text)
    }
}

/// By the input's name.
pub(super) type Values = BTreeMap<String, Vec<Literal>>;

pub(super) fn key(section: &Section<'_>) -> Values {
    let fix = "give a number, or a list of numbers";
    let values = |value: &DeValue<'_>| {
        Literal::all(value).ok_or_else(|| section::Refusal::new(value, fix.to_owned()))
    };
    section.by_name("constants", "rate = 16000", values).unwrap_or_default()
}

/// Takes the inputs that have a value out of the file.
pub(super) fn take(file: &mut OnnxFile, stated: &Values) -> Result<Vec<Constant>, Refusal> {
    let mut constants = Vec::new();
    for (name, values) in stated {
        let Some(at) = file.inputs.iter().position(|input| input.name == *name) else {
            return Err(no_such("constants", name, "input", &file.inputs));
        };
        constants.push(constant(&file.inputs[at], values)?);
        file.inputs.remove(at);
    }
    Ok(constants)
}

fn constant(input: &Tensor, values: &[Literal]) -> Result<Constant, Refusal> {
    let (name, element) = (input.name.clone(), input.element);
    let refused = |what: String, fix: String| ("constants", what, fix);
    let shape = shape(input, values.len()).map_err(|fix| {
        refused(format!("gives {} number(s) for {}", values.len(), described(input)), fix)
    })?;
    let mut bytes = Vec::new();
    for value in values {
        let encoded = encoded(element, *value).ok_or_else(|| {
            let what = format!("gives {value} for {}", described(input));
            refused(what, format!("give what is {element}"))
        })?;
        bytes.extend(encoded);
    }
    let listed: Vec<String> = values.iter().map(Literal::to_string).collect();
    let text = if shape.is_empty() { listed.concat() } else { format!("[{}]", listed.join(", ")) };
    Ok(Constant { name, element, shape, bytes, text })
}

/// The extents of an input with that many elements: one that the file leaves open follows from the others. An error: what to
/// give instead.
fn shape(input: &Tensor, count: usize) -> Result<Vec<u32>, String> {
    let fixed = input.dims.iter().map(|dim| match dim {
        Dim::Fixed(extent) => Some(*extent as usize),
        Dim::Symbol(_) => None,
    });
    let fixed: Vec<Option<usize>> = fixed.collect();
    let known: usize = fixed.iter().flatten().fold(1, |all, extent| all.saturating_mul(*extent));
    let open = fixed.iter().filter(|extent| extent.is_none()).count();
    let rest = count.checked_div(known).unwrap_or(0);
    if known > COUNT_MAX || count > COUNT_MAX {
        return Err(format!("a constant has {COUNT_MAX} numbers at most"));
    }
    match open {
        0 if known == count => {}
        0 => return Err(format!("give {known}")),
        1 if count > 0 && known * rest == count => {}
        1 => return Err(format!("give a multiple of {known}")),
        _ => return Err("a constant has one dimension of open length at most".to_owned()),
    }
    Ok(fixed.into_iter().map(|extent| extent.unwrap_or(rest) as u32).collect())
}

/// `None`: the type has no such number.
fn encoded(element: ElementType, value: Literal) -> Option<Vec<u8>> {
    macro_rules! integer {
        ($of:ty) => {
            match value {
                Literal::Integer(number) => <$of>::try_from(number).ok()?.to_le_bytes().into(),
                _ => return None,
            }
        };
    }
    macro_rules! float {
        ($narrow:expr) => {{
            let number = match value {
                Literal::Integer(number) => number as f64,
                Literal::Float(number) => number,
                Literal::Truth(_) => return None,
            };
            let narrow = $narrow(number);
            let is_lost = number.is_finite() && !f64::from(narrow).is_finite();
            (!is_lost).then(|| narrow.to_le_bytes().to_vec())?
        }};
    }
    Some(match element {
        ElementType::F32 => float!(|number: f64| number as f32),
        ElementType::F64 => float!(|number: f64| number),
        ElementType::F16 => float!(f16::from_f64),
        ElementType::Bf16 => float!(bf16::from_f64),
        ElementType::I8 => integer!(i8),
        ElementType::I16 => integer!(i16),
        ElementType::I32 => integer!(i32),
        ElementType::I64 => integer!(i64),
        ElementType::U8 => integer!(u8),
        ElementType::U16 => integer!(u16),
        ElementType::U32 => integer!(u32),
        ElementType::U64 => integer!(u64),
        ElementType::Bool => match value {
            Literal::Truth(truth) => vec![truth.into()],
            _ => return None,
        },
    })
}

/// How the key would give a value to this input.
pub(super) fn example(input: &Tensor) -> String {
    let one = match input.element {
        ElementType::F32 | ElementType::F64 | ElementType::F16 | ElementType::Bf16 => "1.0",
        ElementType::Bool => "true",
        _ => "1",
    };
    let count = match input.dims.as_slice() {
        [] => None,
        [Dim::Fixed(count)] if *count <= 4 => Some(*count as usize),
        _ => Some(0),
    };
    let value = match count {
        None => one.to_owned(),
        Some(0) => format!("[{one}, …]"),
        Some(count) => format!("[{}]", vec![one; count].join(", ")),
    };
    format!("constants = {{ {} = {value} }}", toml_key(&input.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(element: ElementType, dims: &[Dim]) -> Tensor {
        Tensor { name: "c".into(), element, dims: dims.to_vec(), batch_axis: Some(0) }
    }

    const OPEN: fn() -> Dim = || Dim::Symbol("c.0".to_owned());

    #[test]
    fn the_shape_is_the_files_and_what_it_leaves_open_follows() {
        let of = |dims: &[Dim], count| {
            let values = vec![Literal::Integer(7); count];
            let made = constant(&input(ElementType::U8, dims), &values);
            made.map(|made| (made.shape.clone(), made.to_string()))
                .map_err(|(_, what, fix)| format!("{what}; {fix}"))
        };
        assert_eq!(of(&[], 1), Ok((vec![], "c = 7".into())));
        assert_eq!(of(&[Dim::Fixed(1)], 1), Ok((vec![1], "c = [7]".into())));
        assert_eq!(of(&[OPEN()], 3), Ok((vec![3], "c = [7, 7, 7]".into())));
        assert_eq!(of(&[Dim::Fixed(2), OPEN()], 4).map(|(shape, _)| shape), Ok(vec![2, 2]));
        let refused = [
            (vec![], 2, "gives 2 number(s) for `c` u8[]; give 1"),
            (vec![Dim::Fixed(3)], 1, "gives 1 number(s) for `c` u8[3]; give 3"),
            (
                vec![Dim::Fixed(2), OPEN()],
                3,
                "gives 3 number(s) for `c` u8[2, c.0]; give a multiple of 2",
            ),
            (vec![OPEN()], 0, "gives 0 number(s) for `c` u8[c.0]; give a multiple of 1"),
            (
                vec![Dim::Fixed(0), OPEN()],
                1,
                "gives 1 number(s) for `c` u8[0, c.0]; give a multiple of 0",
            ),
            (
                vec![OPEN(), OPEN()],
                4,
                "gives 4 number(s) for `c` u8[c.0, c.0]; a constant has one dimension of open length at most",
            ),
            (
                vec![Dim::Fixed(1025)],
                1,
                "gives 1 number(s) for `c` u8[1025]; a constant has 1024 numbers at most",
            ),
            (
                vec![OPEN()],
                1025,
                "gives 1025 number(s) for `c` u8[c.0]; a constant has 1024 numbers at most",
            ),
        ];
        for (dims, count, expected) in refused {
            assert_eq!(of(&dims, count), Err(expected.to_owned()));
        }
    }

    #[test]
    fn numbers_become_what_the_input_consists_of_or_are_refused() {
        use Literal::{Float, Integer, Truth};
        let (int, half) = (Integer(16_000), Float(0.5));
        assert_eq!(encoded(ElementType::I64, int), Some(16_000_i64.to_le_bytes().into()));
        assert_eq!(encoded(ElementType::F32, int), Some(16_000_f32.to_le_bytes().into()));
        assert_eq!(encoded(ElementType::F64, half), Some(0.5_f64.to_le_bytes().into()));
        assert_eq!(encoded(ElementType::F16, half), Some(vec![0x00, 0x38]));
        assert_eq!(encoded(ElementType::Bf16, half), Some(vec![0x00, 0x3f]));
        assert_eq!(encoded(ElementType::I8, Integer(-1)), Some(vec![0xff]));
        assert_eq!(encoded(ElementType::Bool, Truth(true)), Some(vec![1]));
        assert!(encoded(ElementType::F32, Float(f64::NEG_INFINITY)).is_some());
        let refused = [
            (ElementType::U8, Integer(256)),
            (ElementType::U64, Integer(-1)),
            (ElementType::I32, half),
            (ElementType::F32, Float(1e39)),
            (ElementType::F16, Integer(100_000)),
            (ElementType::F32, Truth(true)),
            (ElementType::Bool, Integer(1)),
        ];
        for (element, value) in refused {
            assert_eq!(encoded(element, value), None, "{value} as {element}");
        }
    }
}
