//! A request's tensors on their way into slots: each row of the batch goes to its task's slot, and is written there once.

use std::ops::{DerefMut, Range};

use baton_client::signature::Row;
use baton_client::{ElementType, TensorSpec};
use bytes::Buf;

use super::memory::Regions;
use super::numbers::Numbers;
use super::problem::Problem;
use super::request::{Request, Source, Tensor};

/// Writes the inputs of a request to `rows`, one for each task, each with room for the longest row. `binary` is what follows
/// the JSON, and `regions` have what lies in shared memory. Returns the length of the rows.
///
/// # Errors
/// The data is not that of the shapes.
pub fn fill<B: Buf, R: DerefMut<Target = [u8]>>(
    request: &Request<'_>,
    specs: &[TensorSpec],
    row: &Row,
    rows: &mut [R],
    binary: &mut B,
    regions: &impl Regions,
) -> Result<usize, Problem> {
    let (expected, got) = (request.binary_bytes(), binary.remaining());
    if expected != got {
        let text =
            format!("{got} bytes follow the JSON; the inputs' binary_data_size make {expected}");
        return Err(Problem::invalid(text));
    }
    let mut shapes: Vec<&[u32]> = vec![&[]; specs.len()];
    for input in &request.inputs {
        shapes[input.index] = &input.extents;
    }
    let mut places = Vec::new();
    for bytes in rows.iter_mut() {
        let laid_out = row.lay_out(&shapes, bytes);
        places = laid_out.map_err(|problem| Problem::invalid(problem.to_string()))?;
    }
    for input in &request.inputs {
        let (spec, place) = (&specs[input.index], places[input.index].clone());
        match &input.source {
            Source::Json(text) => numbers(text, spec.element, input, place, rows)
                .map_err(|error| error.of(&spec.name))?,
            Source::Binary(_) => {
                for row in rows.iter_mut() {
                    binary.copy_to_slice(&mut row[place.clone()]);
                }
            }
            Source::Shared(part) => {
                for (row, at) in rows.iter_mut().zip((0..).step_by(place.len().max(1))) {
                    regions.read(part, at, &mut row[place.clone()])?;
                }
            }
        }
    }
    Ok(places.last().map_or(0, |last| last.end))
}

fn numbers<R: DerefMut<Target = [u8]>>(
    text: &str,
    element: ElementType,
    input: &Tensor<'_>,
    place: Range<usize>,
    rows: &mut [R],
) -> Result<(), super::numbers::DataError> {
    let mut numbers = Numbers::new(text, element, &input.shape)?;
    for row in rows {
        numbers.read(&mut row[place.clone()])?;
    }
    numbers.finish()
}

#[cfg(test)]
mod tests {
    use baton_client::Extent;

    use super::super::memory::Part;
    use super::super::request::Model;
    use super::*;

    fn specs() -> Vec<TensorSpec> {
        let spec = |name: &str, element, shape: &[Extent]| TensorSpec {
            name: name.into(),
            element,
            shape: shape.to_vec(),
        };
        let mask = spec("mask", ElementType::Bool, &[Extent::UpTo(4)]);
        vec![spec("ids", ElementType::I16, &[Extent::UpTo(4)]), mask]
    }

    /// A region of five bytes.
    struct Five;

    impl Regions for Five {
        fn read(&self, part: &Part, at: u64, to: &mut [u8]) -> Result<(), Problem> {
            let begin = (part.offset + at) as usize;
            let bytes = [1, 0, 1, 1, 0].get(begin..begin + to.len());
            let bytes =
                bytes.filter(|_| part.region == "r").ok_or_else(|| Problem::invalid("cut"))?;
            to.copy_from_slice(bytes);
            Ok(())
        }
    }

    fn filled(json: &str, mut binary: &[u8]) -> Result<Vec<Vec<u8>>, Problem> {
        let specs = specs();
        let row = Row::new(specs.clone()).unwrap();
        let model = Model { name: "m", inputs: &specs, outputs: &[], batch_max: 8 };
        let request = Request::parse(json.as_bytes(), &model)?;
        let longest = row.bytes_max() as usize;
        let mut rows = vec![vec![0xee; longest]; request.batch];
        let len = fill(&request, &specs, &row, &mut rows, &mut binary, &Five)?;
        rows.iter_mut().for_each(|row| row.truncate(len));
        Ok(rows)
    }

    const IDS: &str = r#"{"name":"ids","shape":[2,2],"datatype":"INT16","data":[[1,2],[3,4]]}"#;
    const MASK: &str =
        r#"{"name":"mask","shape":[2,2],"datatype":"BOOL","parameters":{"binary_data_size":4}}"#;

    #[test]
    fn each_task_gets_its_row_of_every_tensor_whatever_their_order() {
        let row = |ids: [u8; 2], mask: [u8; 2]| {
            let head = [2, 0, 0, 0, 2, 0, 0, 0, ids[0], 0, ids[1], 0, 0, 0, 0, 0];
            [&head[..], &mask].concat()
        };
        for inputs in [[IDS, MASK], [MASK, IDS]] {
            let json = format!(r#"{{"inputs":[{}]}}"#, inputs.join(","));
            let rows = filled(&json, &[1, 0, 0, 1]).unwrap();
            assert_eq!(rows, [row([1, 2], [1, 0]), row([3, 4], [0, 1])]);
        }
    }

    #[test]
    fn rows_in_shared_memory_lie_one_behind_the_other() {
        let mask = |offset: u64| {
            let region = format!(
                r#""shared_memory_region":"r","shared_memory_offset":{offset},"shared_memory_byte_size":4"#
            );
            let mask = MASK.replace(r#""binary_data_size":4"#, &region);
            filled(&format!(r#"{{"inputs":[{mask},{IDS}]}}"#), &[])
        };
        let masks = |rows: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
            rows.iter().map(|row| row[row.len() - 2..].to_vec()).collect()
        };
        assert_eq!(masks(mask(0).unwrap()), [[1, 0], [1, 1]]);
        assert_eq!(masks(mask(1).unwrap()), [[0, 1], [1, 0]]);
        assert_eq!(mask(2).unwrap_err().text, "cut");
    }

    #[test]
    fn data_that_is_not_that_of_its_shape_is_refused() {
        let json = format!(r#"{{"inputs":[{IDS},{MASK}]}}"#);
        let refused = |json: &str, binary: &[u8]| filled(json, binary).unwrap_err().text;
        let words = "bytes follow the JSON; the inputs' binary_data_size make 4";
        assert_eq!(refused(&json, &[1; 3]), format!("3 {words}"));
        assert_eq!(refused(&json, &[1; 5]), format!("5 {words}"));
        let short = json.replace("[[1,2],[3,4]]", "[1,2,3]");
        assert_eq!(
            refused(&short, &[1; 4]),
            "input \"ids\": its data has fewer elements than its shape says"
        );
        let long = json.replace("[[1,2],[3,4]]", "[1,2,3,4,5]");
        assert!(refused(&long, &[1; 4]).contains("more elements"));
    }
}
