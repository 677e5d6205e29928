//! What the scheduler's catalogue means to a client: its models, with what each takes and gives.

use std::sync::Arc;

use baton_membership::{Catalogue, DescribedModel, DescribedVariant, MembershipError};
use baton_topo::signature::{Row, Signature};
use baton_types::{ModelId, Nanos};

use crate::outcome::ModelVariant;
use crate::served::Announced;

/// Takes the models out of a complete catalogue, sorted by name. Each lives on one of `threads` ModelThreads.
///
/// # Errors
/// The catalogue contradicts itself.
pub(super) fn take_announced(
    catalogue: &mut Catalogue,
    threads: usize,
) -> Result<Vec<Announced>, MembershipError> {
    let models = catalogue.take_models(threads)?.into_iter().map(announced);
    let mut models = models.collect::<Result<Vec<_>, _>>()?;
    models.sort_by(|a, b| a.name.cmp(&b.name));
    match models.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => Err(bad(format!("two models are called {}", pair[0].name))),
        None => Ok(models),
    }
}

fn announced(model: DescribedModel) -> Result<Announced, MembershipError> {
    let DescribedModel { desc, name, tensors, variants, .. } = model;
    let (input_bytes, output_bytes) = (desc.input_bytes.get(), desc.output_bytes.get());
    let signature = match tensors {
        [input, output] if input.is_empty() && output.is_empty() => Some(Signature {
            input: Row::opaque("input", input_bytes),
            output: Row::opaque("output", output_bytes),
        }),
        [input, output] => {
            let row = |tensors, bytes| Row::new(tensors).filter(|row| row.bytes_max() == bytes);
            let rows = row(input, input_bytes).zip(row(output, output_bytes));
            rows.map(|(input, output)| Signature { input, output })
        }
    };
    let problem = || bad(format!("the tensors of {name} do not make its rows"));
    Ok(Announced {
        id: ModelId(desc.model.get()),
        slo: Nanos(desc.slo_ns.get()),
        input_bytes,
        output_bytes,
        signature: Arc::new(signature.ok_or_else(problem)?),
        variants: (!variants.is_empty()).then(|| (0..).zip(variants).map(variant).collect()),
        thread: desc.thread.get(),
        name: name.into(),
    })
}

fn variant((index, variant): (u16, DescribedVariant)) -> ModelVariant {
    ModelVariant { name: variant.name, accuracy: variant.accuracy, index }
}

fn bad(what: String) -> MembershipError {
    MembershipError::BadCatalogue(what)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use baton_rdma::wire::{Message, ModelDesc, TensorDesc};
    use baton_topo::signature::{ElementType, Extent, TensorSpec};

    fn model(id: u32, thread: u32) -> ModelDesc {
        ModelDesc {
            model: id.into(),
            thread: thread.into(),
            subcluster: 0.into(),
            batch_max: 8.into(),
            input_bytes: 16.into(),
            output_bytes: 4.into(),
            slo_ns: 1.into(),
        }
    }

    fn add(catalogue: &mut Catalogue, message: &Message<'_>) -> Result<(), MembershipError> {
        let taken = catalogue.take_in(message, IpAddr::V4(Ipv4Addr::LOCALHOST))?;
        assert!(taken);
        Ok(())
    }

    fn two_models() -> Catalogue {
        let mut catalogue = Catalogue::default();
        add(&mut catalogue, &Message::ModelDesc(&model(0, 1), "resnet")).unwrap();
        add(&mut catalogue, &Message::ModelDesc(&model(1, 1), "digits")).unwrap();
        catalogue
    }

    #[test]
    fn models_come_by_name() {
        let models = take_announced(&mut two_models(), 2).unwrap();
        let names: Vec<_> = models.iter().map(|model| &*model.name).collect();
        assert_eq!(names, ["digits", "resnet"]);
        assert!(take_announced(&mut two_models(), 1).is_err(), "ModelThread 1 of one");
        let mut catalogue = two_models();
        add(&mut catalogue, &Message::ModelDesc(&model(2, 1), "digits")).unwrap();
        assert!(take_announced(&mut catalogue, 2).is_err(), "two of one name");
    }

    #[test]
    fn tensors_make_a_models_rows() {
        let spec = |name: &str, shape: &[Extent]| TensorSpec {
            name: name.into(),
            element: ElementType::F32,
            shape: shape.to_vec(),
        };
        let [x, y] = [spec("x", &[Extent::Fixed(4)]), spec("y", &[])];
        let announced = |output: Option<&TensorSpec>| {
            let mut catalogue = two_models();
            add(&mut catalogue, &Message::TensorDesc(&TensorDesc::new(1, false, &x), "x")).unwrap();
            if let Some(spec) = output {
                let desc = TensorDesc::new(1, true, spec);
                add(&mut catalogue, &Message::TensorDesc(&desc, &spec.name)).unwrap();
            }
            take_announced(&mut catalogue, 2).map(|models| models[0].signature.output.to_string())
        };
        assert_eq!(announced(Some(&y)).unwrap(), "y f32[]");
        assert!(announced(Some(&x)).is_err(), "longer than the model's rows");
        assert!(announced(None).is_err(), "no output");
        let mut catalogue = two_models();
        add(&mut catalogue, &Message::TensorDesc(&TensorDesc::new(1, true, &y), "y")).unwrap();
        assert!(take_announced(&mut catalogue, 2).is_err(), "no input");
    }
}
