//! What a model takes and gives, as its server describes it.

use baton_topo::signature::{ElementType, Extent, Row, TensorSpec};

use super::messages::{Metadata, Tensor};

/// A model of a server.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Described {
    pub(super) platform: String,
    /// One task's input, without the batch dimension where the model has one.
    pub(super) input: Row,
    pub(super) outputs: Vec<TensorSpec>,
    /// Of each input: the first dimension of its tensors is the batch.
    pub(super) batched: Vec<bool>,
}

/// Extents that the user gives to an input, without the batch.
pub type Shape = (String, Vec<u32>);

impl Described {
    /// # Errors
    /// What the generator cannot send, and what to do.
    pub(super) fn new(said: &Metadata, shapes: &[Shape]) -> Result<Self, String> {
        if said.inputs.is_empty() {
            return Err("its server names no inputs; the model needs metadata for this".to_owned());
        }
        let input = |tensor: &Tensor| spec(tensor, shapes, true);
        let inputs: Vec<(TensorSpec, bool)> =
            said.inputs.iter().map(input).collect::<Result<_, _>>()?;
        let output = |tensor: &Tensor| spec(tensor, &[], false).map(|(spec, _)| spec);
        let outputs = said.outputs.iter().map(output).collect::<Result<_, _>>()?;
        let (specs, batched): (Vec<_>, Vec<_>) = inputs.into_iter().unzip();
        let input = Row::new(specs).ok_or("its inputs are too many, too deep or too large")?;
        Ok(Self { platform: said.platform.clone(), input, outputs, batched })
    }

    /// Whether it can be an emulated model of Baton's, whose answer is the checksum of its input.
    pub(super) fn is_emulated(&self) -> bool {
        let is_bytes = |specs: &[TensorSpec], name: &str| matches!(specs, [one] if one.name == name && one.element == ElementType::U8);
        self.platform == "baton"
            && is_bytes(self.input.tensors(), "input")
            && is_bytes(&self.outputs, "output")
    }
}

/// The tensor, and whether its first dimension is the batch: it is if the server leaves it open.
fn spec(
    tensor: &Tensor,
    shapes: &[Shape],
    must_be_known: bool,
) -> Result<(TensorSpec, bool), String> {
    let Tensor { name, datatype, shape } = tensor;
    let element = ElementType::from_oip_name(datatype).ok_or_else(|| {
        format!("{name} has the type {datatype}, which this cannot send or check")
    })?;
    let is_batched = shape.first() == Some(&-1);
    let own = &shape[usize::from(is_batched)..];
    let given = shapes.iter().find(|(of, _)| of == name).map(|(_, extents)| extents);
    let extents = match given {
        Some(extents) if extents.len() == own.len() => extents.clone(),
        Some(extents) => {
            return Err(format!(
                "--shape {name} has {} extents; its model has {own:?}",
                extents.len()
            ));
        }
        None => own
            .iter()
            .map(|&extent| u32::try_from(extent).or(if must_be_known { Err(()) } else { Ok(1) }))
            .collect::<Result<_, _>>()
            .map_err(|()| {
                let chosen =
                    own.iter().map(|&extent| if extent < 0 { 8 } else { extent }.to_string());
                let chosen = chosen.collect::<Vec<_>>().join(",");
                format!("{name} has open extents {own:?}; choose some: --shape {name}:{chosen}")
            })?,
    };
    let shape = extents.into_iter().map(Extent::Fixed).collect();
    Ok((TensorSpec { name: name.clone(), element, shape }, is_batched))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, datatype: &str, shape: &[i64]) -> Tensor {
        Tensor { name: name.into(), datatype: datatype.into(), shape: shape.to_vec() }
    }

    fn described(inputs: &[Tensor], shapes: &[Shape]) -> Result<Described, String> {
        let outputs = vec![tensor("y", "FP32", &[-1, -1, 10])];
        Described::new(&Metadata { platform: "p".into(), inputs: inputs.to_vec(), outputs }, shapes)
    }

    #[test]
    fn an_open_first_dimension_is_the_batch_and_others_must_be_given() {
        let inputs = [tensor("x", "FP32", &[-1, 3, 8]), tensor("k", "INT64", &[2])];
        let model = described(&inputs, &[]).unwrap();
        assert_eq!(model.input.to_string(), "x f32[3, 8], k i64[2]");
        assert_eq!(model.batched, [true, false]);
        assert_eq!(model.outputs[0].to_string(), "y f32[1, 10]");
        let open = [tensor("ids", "INT32", &[-1, -1])];
        assert!(described(&open, &[]).unwrap_err().ends_with("--shape ids:8"));
        let image = [tensor("x", "FP32", &[-1, 3, -1, -1])];
        assert!(described(&image, &[]).unwrap_err().ends_with("--shape x:3,8,8"));
        let given = described(&open, &[("ids".into(), vec![16])]).unwrap();
        assert_eq!(given.input.to_string(), "ids i32[16]");
        assert!(described(&open, &[("ids".into(), vec![16, 2])]).is_err());
    }

    #[test]
    fn what_cannot_be_sent_is_said() {
        assert!(described(&[], &[]).unwrap_err().contains("no inputs"));
        let text = [tensor("s", "BYTES", &[-1, 1])];
        assert!(described(&text, &[]).unwrap_err().contains("s has the type BYTES"));
        let none = [tensor("x", "FP32", &[-1, 0])];
        assert!(described(&none, &[]).unwrap_err().contains("too large"));
    }

    #[test]
    fn only_an_emulated_model_of_batons_answers_with_a_checksum() {
        let bytes = |name: &str| vec![tensor(name, "UINT8", &[-1, 8])];
        let of = |platform: &str, output: &str| {
            let (inputs, outputs) = (bytes("input"), bytes(output));
            Described::new(&Metadata { platform: platform.into(), inputs, outputs }, &[]).unwrap()
        };
        assert!(of("baton", "output").is_emulated());
        assert!(!of("onnx", "output").is_emulated() && !of("baton", "y").is_emulated());
    }
}
