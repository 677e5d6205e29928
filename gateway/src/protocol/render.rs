//! The answer to an inference request: JSON, and the outputs that were asked for as bytes behind it.

use std::io::Write as _;

use baton_client::{ElementType, TensorRef, TensorSpec};

use super::problem::{Kind, Problem};
use super::request::{Asked, Form};

/// The one version of every model.
pub const VERSION: &str = "1";

/// What an answer says beside its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The model's name.
    pub model: &'a str,
    /// The request's.
    pub id: Option<&'a str>,
    /// An answer of a task came after its deadline.
    pub is_late: bool,
    /// A task of it waited for a LOAD.
    pub is_cold: bool,
    /// The variant of the least accurate answer: its name, and how many of its answers are right, in per cent. `None` if the
    /// model has no variants.
    pub variant: Option<(&'a str, f64)>,
}

/// An answer's body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rendered {
    /// JSON, then bytes.
    pub body: Vec<u8>,
    /// Bytes of the JSON, if others follow.
    pub json_bytes: Option<usize>,
}

/// The answer of `rows`, each a task's outputs in the order of the model's.
///
/// # Errors
/// The tasks' outputs differ in shape, or one is no number and was asked for as JSON.
pub fn infer(
    head: &Head<'_>,
    specs: &[TensorSpec],
    asked: &[Asked],
    rows: &[Vec<TensorRef<'_>>],
) -> Result<Rendered, Problem> {
    let mut json = Vec::with_capacity(256);
    json.extend_from_slice(b"{");
    if let Some(id) = head.id {
        json.extend_from_slice(b"\"id\":");
        string(&mut json, id);
        json.extend_from_slice(b",");
    }
    json.extend_from_slice(b"\"model_name\":");
    string(&mut json, head.model);
    json.extend_from_slice(b",\"model_version\":\"");
    json.extend_from_slice(VERSION.as_bytes());
    json.extend_from_slice(b"\"");
    parameters(&mut json, head);
    json.extend_from_slice(b",\"outputs\":[");
    for (at, asked) in asked.iter().enumerate() {
        if at > 0 {
            json.extend_from_slice(b",");
        }
        output(&mut json, &specs[asked.index], *asked, rows)?;
    }
    json.extend_from_slice(b"]}");
    let binary = || asked.iter().filter(|asked| asked.form == Form::Binary);
    let json_bytes = binary().next().map(|_| json.len());
    for asked in binary() {
        rows.iter().for_each(|row| json.extend_from_slice(row[asked.index].bytes));
    }
    Ok(Rendered { body: json, json_bytes })
}

fn parameters(json: &mut Vec<u8>, head: &Head<'_>) {
    let late = head.is_late.then(|| "\"baton_late\":true".to_owned());
    let cold = head.is_cold.then(|| "\"baton_cold\":true".to_owned());
    let variant = head.variant.map(|(name, accuracy)| {
        let name = serde_json::Value::from(name);
        format!("\"baton_variant\":{name},\"baton_accuracy\":{accuracy}")
    });
    let all: Vec<String> = late.into_iter().chain(cold).chain(variant).collect();
    if !all.is_empty() {
        json.extend_from_slice(format!(",\"parameters\":{{{}}}", all.join(",")).as_bytes());
    }
}

fn output(
    json: &mut Vec<u8>,
    spec: &TensorSpec,
    asked: Asked,
    rows: &[Vec<TensorRef<'_>>],
) -> Result<(), Problem> {
    let tensors = || rows.iter().map(|row| &row[asked.index]);
    let extents = shape(spec, tensors())?;
    json.extend_from_slice(b"{\"name\":");
    string(json, &spec.name);
    let kind = spec.element.oip_name();
    let written = write!(json, ",\"datatype\":\"{kind}\",\"shape\":{extents:?}");
    written.expect("a Vec takes everything");
    match asked.form {
        Form::Json => numbers(json, spec, tensors())?,
        Form::Binary => {
            let bytes: usize = tensors().map(|tensor| tensor.bytes.len()).sum();
            let written = write!(json, ",\"parameters\":{{\"binary_data_size\":{bytes}}}");
            written.expect("a Vec takes everything");
        }
        // Triton's client in C++ takes any `parameters` for those of bytes that follow.
        Form::Shared => {}
    }
    json.extend_from_slice(b"}");
    Ok(())
}

fn numbers<'a>(
    json: &mut Vec<u8>,
    spec: &TensorSpec,
    tensors: impl Iterator<Item = &'a TensorRef<'a>>,
) -> Result<(), Problem> {
    json.extend_from_slice(b",\"data\":[");
    let mut is_first = true;
    for element in tensors.flat_map(|tensor| tensor.bytes.chunks_exact(spec.element.bytes())) {
        if !std::mem::take(&mut is_first) {
            json.push(b',');
        }
        number(json, spec.element, element).ok_or_else(|| {
            let text = format!("output {:?} has an element that is no number", spec.name);
            Problem::new(Kind::Internal, format!("{text}, which JSON has not: ask for binary_data"))
        })?;
    }
    json.extend_from_slice(b"]");
    Ok(())
}

/// The batch dimension, and the extents that all tasks have.
pub fn shape<'a>(
    spec: &TensorSpec,
    mut tensors: impl Iterator<Item = &'a TensorRef<'a>>,
) -> Result<Vec<u32>, Problem> {
    let first = tensors.next().map_or(&[][..], |tensor| &tensor.shape[..]);
    let mut batch = 1;
    for tensor in tensors {
        if tensor.shape != first {
            let (name, one, other) = (&spec.name, first, &tensor.shape);
            let text = format!("output {name:?} has shapes {one:?} and {other:?} in this batch");
            return Err(Problem::new(Kind::Internal, format!("{text}: send its rows one by one")));
        }
        batch += 1;
    }
    Ok([&[batch], first].concat())
}

/// Writes an element; `None` if JSON cannot.
fn number(json: &mut Vec<u8>, element: ElementType, bytes: &[u8]) -> Option<()> {
    macro_rules! put {
        ($type:ty) => {
            serde_json::to_writer(json, &<$type>::from_le_bytes(bytes.try_into().ok()?)).ok()
        };
    }
    match element {
        ElementType::F32 => {
            let value = f32::from_le_bytes(bytes.try_into().ok()?);
            value.is_finite().then(|| serde_json::to_writer(json, &value).ok())?
        }
        ElementType::F64 => {
            let value = f64::from_le_bytes(bytes.try_into().ok()?);
            value.is_finite().then(|| serde_json::to_writer(json, &value).ok())?
        }
        ElementType::I8 => put!(i8),
        ElementType::I16 => put!(i16),
        ElementType::I32 => put!(i32),
        ElementType::I64 => put!(i64),
        ElementType::U8 => put!(u8),
        ElementType::U16 => put!(u16),
        ElementType::U32 => put!(u32),
        ElementType::U64 => put!(u64),
        ElementType::Bool => {
            json.extend_from_slice(if bytes == [0] { b"false" } else { b"true" });
            Some(())
        }
        ElementType::F16 | ElementType::Bf16 => None,
    }
}

fn string(json: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(json, text).expect("a Vec takes everything");
}

#[cfg(test)]
mod tests {
    use baton_client::Extent;
    use serde_json::{Value, json};

    use super::*;

    fn specs() -> Vec<TensorSpec> {
        let spec = |name: &str, element| TensorSpec {
            name: name.into(),
            element,
            shape: vec![Extent::UpTo(2)],
        };
        vec![spec("y", ElementType::F32), spec("raw", ElementType::F16)]
    }

    fn tensor(bytes: &[u8], element: usize) -> TensorRef<'_> {
        TensorRef { shape: vec![(bytes.len() / element) as u32], bytes }
    }

    const BOTH: [Asked; 2] =
        [Asked { index: 1, form: Form::Binary }, Asked { index: 0, form: Form::Json }];

    #[test]
    fn rows_are_one_batch_and_bytes_follow_the_json() {
        let numbers: Vec<u8> =
            [1.5f32, -2.0, 0.1, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let row = |y, raw| vec![tensor(y, 4), tensor(raw, 2)];
        let rows = [row(&numbers[..8], &[1, 2, 3, 4]), row(&numbers[8..], &[5, 6, 7, 8])];
        let head = Head {
            model: "a \"b\"",
            id: Some("7"),
            is_late: true,
            is_cold: true,
            variant: Some(("s\"m", 73.82)),
        };
        let Rendered { body, json_bytes } = infer(&head, &specs(), &BOTH, &rows).unwrap();
        let (text, bytes) = body.split_at(json_bytes.unwrap());
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        let parsed: Value = serde_json::from_slice(text).unwrap();
        let expected = json!({
            "id": "7", "model_name": "a \"b\"", "model_version": "1", "parameters": {"baton_late": true, "baton_cold": true, "baton_variant": "s\"m", "baton_accuracy": 73.82},
            "outputs": [
                {"name": "raw", "datatype": "FP16", "shape": [2, 2], "parameters": {"binary_data_size": 8}},
                {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [1.5, -2.0, 0.1, 4.0]},
            ],
        });
        assert_eq!(parsed, expected);
    }

    #[test]
    fn an_answer_without_bytes_is_all_json() {
        let head = Head { model: "m", id: None, is_late: false, is_cold: false, variant: None };
        let bytes = 1f32.to_le_bytes();
        let rows = [vec![tensor(&bytes, 4), tensor(&[], 2)]];
        let Rendered { body, json_bytes } = infer(&head, &specs(), &BOTH[1..], &rows).unwrap();
        assert_eq!(json_bytes, None);
        let text = r#"{"model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1, 1],"data":[1.0]}]}"#;
        assert_eq!(String::from_utf8(body).unwrap(), text);
    }

    #[test]
    fn an_output_in_shared_memory_is_its_shape_and_has_no_parameters() {
        let head = Head { model: "m", id: None, is_late: false, is_cold: false, variant: None };
        let bytes = 1f32.to_le_bytes();
        let rows = [vec![tensor(&bytes, 4), tensor(&[], 2)]];
        let asked = [Asked { index: 0, form: Form::Shared }];
        let Rendered { body, json_bytes } = infer(&head, &specs(), &asked, &rows).unwrap();
        assert_eq!(json_bytes, None);
        let said: Value = serde_json::from_slice(&body).unwrap();
        let output = json!({"name": "y", "datatype": "FP32", "shape": [1, 1]});
        assert_eq!(said["outputs"], json!([output]));
    }

    #[test]
    fn what_cannot_be_said_is_an_error() {
        let head = Head { model: "m", id: None, is_late: false, is_cold: false, variant: None };
        let (nan, one) = (f32::NAN.to_le_bytes(), 1f32.to_le_bytes());
        let rows = [vec![tensor(&nan, 4), tensor(&[], 2)]];
        let error = infer(&head, &specs(), &BOTH[1..], &rows).unwrap_err();
        assert!(error.text.contains("no number"), "{error:?}");
        let rows = [vec![tensor(&one, 4), tensor(&[], 2)], vec![tensor(&[], 4), tensor(&[], 2)]];
        let error = infer(&head, &specs(), &BOTH[1..], &rows).unwrap_err();
        assert!(error.text.contains("shapes [1] and [0]"), "{error:?}");
    }
}
