//! Inputs and the answers that they must get, from a file: perf_analyzer's input data with `validation_data`.
//!
//! ```json
//! {"data": [{"x": [1, 2]}, {"x": {"b64": "AACAPwAAAEA="}}],
//!  "validation_data": [{"y": [0.5]}, {"y": {"content": [0.25], "shape": [1]}}]}
//! ```
//!
//! Tensors are lists of numbers, nested or flat, or base64 of their bytes. `validation_data` may be left out: then
//! answers go unchecked.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use baton_topo::signature::{ElementType, Extent, Row, TensorRef, TensorSpec};
use serde::Deserialize;
use serde_json::Value;

/// Numbers that are not whole may differ this much from what is expected, or by this part of it: other kernels and other
/// batch sizes add in another order.
const TOLERANCE: f64 = 1e-3;

/// The examples of one model.
#[derive(Debug)]
pub(crate) struct Examples {
    /// Each a row of the model.
    inputs: Vec<Vec<u8>>,
    /// For each input, the tensors of its answer, end to end; or none at all.
    answers: Vec<Vec<u8>>,
    outputs: Vec<ElementType>,
    /// Bytes of each output.
    output_bytes: Vec<usize>,
}

/// Why a file holds no examples of a model.
#[derive(Debug, thiserror::Error)]
pub enum ExamplesError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{}: {what}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong and what to do.
        what: String,
    },
}

/// One example's tensors, by name.
type Tensors = BTreeMap<String, Value>;

#[derive(Deserialize)]
struct File {
    data: Vec<Tensors>,
    #[serde(default)]
    validation_data: Vec<Tensors>,
}

impl Examples {
    /// Reads a file for a model with these tensors.
    pub(crate) fn read(
        file: &Path,
        input: &Row,
        outputs: &[TensorSpec],
    ) -> Result<Self, ExamplesError> {
        let text = std::fs::read(file)
            .map_err(|source| ExamplesError::Read { file: file.to_owned(), source })?;
        Self::parse(&text, input, outputs)
            .map_err(|what| ExamplesError::Malformed { file: file.to_owned(), what })
    }

    fn parse(text: &[u8], input: &Row, outputs: &[TensorSpec]) -> Result<Self, String> {
        let File { data, validation_data } = serde_json::from_slice(text).map_err(|error| {
            format!("{error}; give {{\"data\": […], \"validation_data\": […]}}")
        })?;
        if data.is_empty() {
            return Err("`data` is empty; give at least one example".to_owned());
        }
        if !validation_data.is_empty() && validation_data.len() != data.len() {
            let (inputs, answers) = (data.len(), validation_data.len());
            return Err(format!(
                "{inputs} examples and {answers} in `validation_data`; give one each"
            ));
        }
        let rows = data
            .iter()
            .enumerate()
            .map(|(at, tensors)| row(tensors, input).map_err(|what| format!("data[{at}]: {what}")));
        let inputs = rows.collect::<Result<_, _>>()?;
        let mut output_bytes = Vec::new();
        let mut answers = Vec::new();
        for (at, tensors) in validation_data.iter().enumerate() {
            let place = |what| format!("validation_data[{at}]: {what}");
            let of = |spec: &TensorSpec| tensor(tensors, &spec.name, spec.element);
            let parts: Vec<Vec<u8>> =
                outputs.iter().map(of).collect::<Result<_, _>>().map_err(place)?;
            let bytes: Vec<usize> = parts.iter().map(Vec::len).collect();
            if at > 0 && bytes != output_bytes {
                return Err(place("its tensors are not as long as those of the first".to_owned()));
            }
            output_bytes = bytes;
            answers.push(parts.concat());
        }
        let outputs = outputs.iter().map(|spec| spec.element).collect();
        Ok(Self { inputs, answers, outputs, output_bytes })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.inputs.len()
    }

    /// The row of an example.
    pub(crate) fn input(&self, example: usize) -> &[u8] {
        &self.inputs[example]
    }

    /// Whether the tensors of an answer, end to end, are the expected ones; `None` where none are.
    pub(crate) fn judge(&self, example: usize, answer: &[u8]) -> Option<bool> {
        let expected = self.answers.get(example)?;
        if answer.len() != expected.len() {
            return Some(false);
        }
        let mut at = 0;
        Some(self.outputs.iter().zip(&self.output_bytes).all(|(&element, &bytes)| {
            let place = at..at + bytes;
            at += bytes;
            is_close(element, &answer[place.clone()], &expected[place])
        }))
    }
}

fn row(tensors: &Tensors, input: &Row) -> Result<Vec<u8>, String> {
    let specs = input.tensors();
    let bytes: Vec<Vec<u8>> = specs
        .iter()
        .map(|spec| tensor(tensors, &spec.name, spec.element))
        .collect::<Result<_, _>>()?;
    let shaped = |(spec, bytes): (&TensorSpec, &Vec<u8>)| shape(tensors, spec, bytes.len());
    let shapes: Vec<Vec<u32>> = specs.iter().zip(&bytes).map(shaped).collect::<Result<_, _>>()?;
    let parts: Vec<TensorRef<'_>> =
        shapes.into_iter().zip(&bytes).map(|(shape, bytes)| TensorRef { shape, bytes }).collect();
    let mut row = vec![0; input.bytes_max() as usize];
    let len = input.pack(&parts, &mut row).map_err(|error| error.to_string())?;
    row.truncate(len);
    Ok(row)
}

/// As the example says; else the model's, in which one open extent may follow from the bytes.
fn shape(tensors: &Tensors, spec: &TensorSpec, bytes: usize) -> Result<Vec<u32>, String> {
    if let Some(stated) = tensors.get(&spec.name).and_then(|value| value.get("shape")) {
        return serde_json::from_value(stated.clone())
            .map_err(|error| format!("{}: {error}", spec.name));
    }
    let mut shape: Vec<u32> = spec.shape.iter().map(|extent| extent.max()).collect();
    let is_open = |extent: &Extent| matches!(extent, Extent::UpTo(_));
    let open: Vec<usize> = (0..shape.len()).filter(|&at| is_open(&spec.shape[at])).collect();
    if let [one] = open[..] {
        shape[one] = 1;
        let rest =
            shape.iter().map(|&extent| extent as usize).product::<usize>() * spec.element.bytes();
        shape[one] = (bytes / rest.max(1)) as u32;
    }
    Ok(shape)
}

/// The bytes of a tensor.
fn tensor(tensors: &Tensors, name: &str, element: ElementType) -> Result<Vec<u8>, String> {
    let value = tensors.get(name).ok_or_else(|| format!("there is no tensor {name:?}"))?;
    if let Some(text) = value.get("b64").and_then(Value::as_str) {
        return BASE64_STANDARD.decode(text).map_err(|error| format!("{name}: {error}"));
    }
    let mut bytes = Vec::new();
    write(value.get("content").unwrap_or(value), element, &mut bytes).ok_or_else(|| {
        format!("{name}: its content is no list of numbers of the type {element}")
    })?;
    Ok(bytes)
}

/// Writes numbers, in lists or not, as a tensor has them.
pub(crate) fn write(value: &Value, element: ElementType, to: &mut Vec<u8>) -> Option<()> {
    if let Value::Array(list) = value {
        return list.iter().try_for_each(|value| write(value, element, to));
    }
    macro_rules! whole {
        ($of:ident, $type:ty) => {
            to.extend(<$type>::try_from(value.$of()?).ok()?.to_le_bytes())
        };
    }
    match element {
        ElementType::F32 => to.extend((value.as_f64()? as f32).to_le_bytes()),
        ElementType::F64 => to.extend(value.as_f64()?.to_le_bytes()),
        ElementType::I8 => whole!(as_i64, i8),
        ElementType::I16 => whole!(as_i64, i16),
        ElementType::I32 => whole!(as_i64, i32),
        ElementType::I64 => whole!(as_i64, i64),
        ElementType::U8 => whole!(as_u64, u8),
        ElementType::U16 => whole!(as_u64, u16),
        ElementType::U32 => whole!(as_u64, u32),
        ElementType::U64 => whole!(as_u64, u64),
        ElementType::Bool => to.push(match value {
            Value::Bool(flag) => u8::from(*flag),
            number => u8::try_from(number.as_u64()?).ok().filter(|flag| *flag <= 1)?,
        }),
        // JSON has no numbers of these; give their bytes.
        ElementType::F16 | ElementType::Bf16 => return None,
    }
    Some(())
}

/// Both have the same length.
fn is_close(element: ElementType, got: &[u8], expected: &[u8]) -> bool {
    let near = |got: f64, expected: f64| {
        (got - expected).abs() <= TOLERANCE.max(TOLERANCE * expected.abs())
    };
    match element {
        ElementType::F32 => {
            got.chunks_exact(4).zip(expected.chunks_exact(4)).all(|(got, expected)| {
                let of =
                    |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().expect("four")));
                near(of(got), of(expected))
            })
        }
        ElementType::F64 => {
            got.chunks_exact(8).zip(expected.chunks_exact(8)).all(|(got, expected)| {
                let of = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().expect("eight"));
                near(of(got), of(expected))
            })
        }
        _ => got == expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, element: ElementType, shape: &[Extent]) -> TensorSpec {
        TensorSpec { name: name.into(), element, shape: shape.to_vec() }
    }

    fn parse(text: &str) -> Result<Examples, String> {
        let input = Row::new(vec![
            spec("x", ElementType::F32, &[Extent::Fixed(2)]),
            spec("n", ElementType::I16, &[]),
        ]);
        let outputs = [
            spec("y", ElementType::F32, &[Extent::Fixed(1)]),
            spec("label", ElementType::I32, &[]),
        ];
        Examples::parse(text.as_bytes(), &input.unwrap(), &outputs)
    }

    const GOOD: &str = r#"{"data": [{"x": [1, 2], "n": [3]}, {"x": {"b64": "AACAPwAAAEA="}, "n": {"content": [-3]}}],
        "validation_data": [{"y": [0.5], "label": [7]}, {"y": {"content": [[0.25]]}, "label": 8}]}"#;

    #[test]
    fn tensors_are_numbers_or_bytes_and_a_row_has_them_as_the_model_does() {
        let examples = parse(GOOD).unwrap();
        assert_eq!(examples.count(), 2);
        assert_eq!(examples.input(0), [0, 0, 128, 63, 0, 0, 0, 64, 3, 0]);
        assert_eq!(examples.input(1), [0, 0, 128, 63, 0, 0, 0, 64, 253, 255]);
    }

    #[test]
    fn an_answer_is_right_within_rounding_and_whole_numbers_exactly() {
        let examples = parse(GOOD).unwrap();
        let answer = |y: f32, label: i32| [y.to_le_bytes(), label.to_le_bytes()].concat();
        let judge = |y, label| examples.judge(0, &answer(y, label));
        assert_eq!((judge(0.5, 7), judge(0.500_9, 7)), (Some(true), Some(true)));
        assert_eq!((judge(0.502, 7), judge(0.5, 8)), (Some(false), Some(false)));
        assert_eq!((judge(f32::NAN, 7), examples.judge(0, &[0; 4])), (Some(false), Some(false)));
        let unchecked = parse(r#"{"data": [{"x": [1, 2], "n": 3}]}"#).unwrap();
        assert_eq!(unchecked.judge(0, &answer(0.5, 7)), None);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_its_place() {
        for (text, words) in [
            ("[]", "give {\"data\""),
            (r#"{"data": []}"#, "is empty"),
            (r#"{"data": [{"x": [1, 2]}]}"#, "data[0]: there is no tensor \"n\""),
            (r#"{"data": [{"x": [1], "n": 3}]}"#, "data[0]: tensor `x` has 4 bytes"),
            (r#"{"data": [{"x": ["a"], "n": 3}]}"#, "no list of numbers of the type f32"),
            (r#"{"data": [{"x": [1, 2], "n": 70000}]}"#, "n: its content"),
            (r#"{"data": [{"x": [1, 2], "n": 3}], "validation_data": [{}, {}]}"#, "give one each"),
            (r#"{"data": [{"x": [1, 2], "n": 3}], "validation_data": [{}]}"#, "validation_data[0]"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn one_open_extent_follows_from_the_bytes() {
        let tokens = Row::new(vec![spec("ids", ElementType::I64, &[Extent::UpTo(4)])]).unwrap();
        let text = br#"{"data": [{"ids": [1, 2, 3]}]}"#;
        let examples = Examples::parse(text, &tokens, &[]).unwrap();
        assert_eq!(examples.input(0).len(), 8 + 24);
        assert_eq!(examples.input(0)[..4], [3, 0, 0, 0]);
    }
}
