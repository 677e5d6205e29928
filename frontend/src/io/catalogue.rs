//! What the scheduler announces before a member joins, its ModelThreads and its models, and the models that it
//! adds later.
//!
//! In: catalogue messages. Out: the models, checked and sorted by name.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use baton_core::{ModelId, Nanos};
use baton_rdma::wire::{ModelDesc, TensorDesc, ThreadDesc};
use baton_topo::signature::{Row, Signature, TENSORS_MAX, TensorSpec};

use crate::error::ConnectError;
use crate::served::Announced;

/// More than any scheduler runs; bounds what a broken one can make us store.
const THREADS_MAX: usize = 1_024;
const MODELS_MAX: usize = 65_536;

/// One ModelThread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    pub(super) number: u32,
    pub(super) addr: SocketAddr,
}

#[derive(Default, Debug)]
pub(super) struct Catalogue {
    threads: Vec<Thread>,
    models: Vec<Announced>,
    /// Of the models whose tensors are announced: input, output.
    tensors: BTreeMap<ModelId, [Vec<TensorSpec>; 2]>,
}

impl Catalogue {
    /// `observed` is where the control connection leads.
    pub(super) fn add_thread(
        &mut self,
        desc: &ThreadDesc,
        observed: IpAddr,
    ) -> Result<(), ConnectError> {
        let number = desc.thread.get();
        if self.threads.len() == THREADS_MAX {
            return Err(bad(format!("more than {THREADS_MAX} ModelThreads")));
        }
        if self.threads.iter().any(|thread| thread.number == number) {
            return Err(bad(format!("ModelThread {number} is announced twice")));
        }
        self.threads.push(Thread { number, addr: desc.addr.resolve(observed) });
        Ok(())
    }

    /// The ModelThreads are these, which are known from the join.
    pub(super) fn set_threads(&mut self, threads: impl Iterator<Item = Thread>) {
        self.threads.clear();
        self.threads.extend(threads);
    }

    pub(super) fn add_model(&mut self, desc: &ModelDesc, name: &str) -> Result<(), ConnectError> {
        if self.models.len() == MODELS_MAX {
            return Err(bad(format!("more than {MODELS_MAX} models")));
        }
        let number = desc.thread.get();
        let thread = self.threads.iter().position(|thread| thread.number == number);
        let thread =
            thread.ok_or_else(|| bad(format!("{name} lives on unknown ModelThread {number}")))?;
        self.models.push(Announced {
            id: ModelId(desc.model.get()),
            name: name.into(),
            slo: Nanos(desc.slo_ns.get()),
            input_bytes: desc.input_bytes.get(),
            output_bytes: desc.output_bytes.get(),
            signature: Arc::new(Signature {
                input: Row::opaque("input", desc.input_bytes.get()),
                output: Row::opaque("output", desc.output_bytes.get()),
            }),
            thread,
        });
        Ok(())
    }

    /// Takes a model out that is gone again. False if it is not here.
    pub(super) fn remove_model(&mut self, id: ModelId) -> bool {
        self.tensors.remove(&id);
        let before = self.models.len();
        self.models.retain(|model| model.id != id);
        self.models.len() < before
    }

    /// A tensor of a model.
    pub(super) fn add_tensor(&mut self, desc: &TensorDesc, name: &str) -> Result<(), ConnectError> {
        let id = ModelId(desc.model.get());
        let cannot_be = || bad(format!("tensor {name} of model {} cannot be", id.0));
        if self.tensors.len() == MODELS_MAX {
            return Err(bad(format!("tensors of more than {MODELS_MAX} models")));
        }
        let side = self.tensors.entry(id).or_default().get_mut(usize::from(desc.side));
        let side = side.filter(|side| side.len() < TENSORS_MAX).ok_or_else(cannot_be)?;
        side.push(desc.spec(name).ok_or_else(cannot_be)?);
        Ok(())
    }

    /// What each model takes and gives, from its tensors.
    fn sign(&mut self) -> Result<(), ConnectError> {
        for model in &mut self.models {
            let Some([input, output]) = self.tensors.remove(&model.id) else { continue };
            let row = |tensors, bytes| Row::new(tensors).filter(|row| row.bytes_max() == bytes);
            let input = row(input, model.input_bytes);
            let signature = input.zip(row(output, model.output_bytes));
            let problem = || bad(format!("the tensors of {} do not make its rows", model.name));
            let (input, output) = signature.ok_or_else(problem)?;
            model.signature = Arc::new(Signature { input, output });
        }
        match self.tensors.keys().next() {
            Some(id) => Err(bad(format!("tensors of unknown model {}", id.0))),
            None => Ok(()),
        }
    }

    /// The ModelThreads, and the models by name.
    pub(super) fn complete(mut self) -> Result<(Vec<Thread>, Vec<Announced>), ConnectError> {
        self.sign()?;
        self.models.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = self.models.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(bad(format!("two models are called {}", pair[0].name)));
        }
        Ok((self.threads, self.models))
    }
}

fn bad(what: String) -> ConnectError {
    ConnectError::BadCatalogue(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_rdma::wire::WireAddr;
    use baton_topo::signature::{ElementType, Extent};

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn thread(number: u32) -> ThreadDesc {
        let addr = WireAddr::new("0.0.0.0:7701".parse().unwrap());
        ThreadDesc { thread: number.into(), addr }
    }

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

    fn two_models() -> Catalogue {
        let mut catalogue = Catalogue::default();
        catalogue.add_thread(&thread(3), HERE).unwrap();
        catalogue.add_model(&model(0, 3), "resnet").unwrap();
        catalogue.add_model(&model(1, 3), "digits").unwrap();
        catalogue
    }

    #[test]
    fn models_come_by_name() {
        let (threads, models) = two_models().complete().unwrap();
        assert_eq!(threads[0].addr, "127.0.0.1:7701".parse().unwrap());
        let names: Vec<_> = models.iter().map(|model| &*model.name).collect();
        assert_eq!(names, ["digits", "resnet"]);
        let mut catalogue = two_models();
        assert!(catalogue.remove_model(ModelId(0)) && !catalogue.remove_model(ModelId(0)));
        assert_eq!(catalogue.complete().unwrap().1.len(), 1);
    }

    #[test]
    fn tensors_make_a_models_rows() {
        let spec = |name: &str, shape: &[Extent]| TensorSpec {
            name: name.into(),
            element: ElementType::F32,
            shape: shape.to_vec(),
        };
        let [x, y] = [spec("x", &[Extent::Fixed(4)]), spec("y", &[])];
        let announced = |model, side, spec: &TensorSpec| {
            let mut catalogue = two_models();
            catalogue.add_tensor(&TensorDesc::new(1, false, &x), "x").unwrap();
            let desc = TensorDesc { side, ..TensorDesc::new(model, false, spec) };
            catalogue.add_tensor(&desc, &spec.name)?;
            catalogue.complete().map(|(_, models)| models[0].signature.output.to_string())
        };
        assert_eq!(announced(1, 1, &y).unwrap(), "y f32[]");
        assert!(announced(1, 1, &x).is_err(), "longer than the model's rows");
        assert!(announced(1, 0, &y).is_err(), "no output");
        assert!(announced(1, 2, &y).is_err(), "neither input nor output");
        assert!(announced(9, 1, &y).is_err(), "no such model");
    }

    #[test]
    fn contradictions_are_refused() {
        let mut catalogue = two_models();
        assert!(catalogue.add_thread(&thread(3), HERE).is_err());
        assert!(catalogue.add_model(&model(2, 9), "lost").is_err());
        catalogue.add_model(&model(2, 3), "digits").unwrap();
        assert!(matches!(catalogue.complete(), Err(ConnectError::BadCatalogue(_))));
    }
}
