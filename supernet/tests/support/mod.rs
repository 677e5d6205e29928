//! ONNX Runtime for tests.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::Path;

use ort::environment::Environment;
use ort::session::{Session, SessionInputValue};
use ort::value::Tensor;

/// A model's input.
pub(crate) enum Input<'a> {
    Floats { name: &'a str, shape: &'a [usize] },
    Integers { name: &'a str, shape: &'a [usize] },
}

/// The library that `ORT_DYLIB_PATH` names.
pub(crate) struct Runtime(Environment);

impl Runtime {
    /// `None`: there is none, and the test says so.
    pub(crate) fn find() -> Option<Self> {
        let library = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty());
        let Some(library) = library else {
            eprintln!("SKIPPED: ORT_DYLIB_PATH is not set; export it: $(./x onnxruntime)");
            return None;
        };
        let environment = ort::init_from(Path::new(&library)).unwrap();
        Some(Self(environment.with_telemetry(false).build().unwrap()))
    }

    pub(crate) fn open(&self, file: &[u8]) -> Session {
        let builder = Session::builder(&self.0).unwrap();
        let mut builder = builder.with_intra_threads(1).unwrap();
        builder.commit_from_memory(file).unwrap()
    }

    /// The first output of a batch of rows, which lie one behind the other.
    pub(crate) fn run(
        &self,
        session: &mut Session,
        input: &Input<'_>,
        rows: &[u8],
        variant: Option<usize>,
    ) -> Vec<f32> {
        let extents = |shape: &[usize], bytes: usize| {
            let batch = rows.len() / (bytes * shape.iter().product::<usize>());
            [&[batch], shape].concat()
        };
        let (name, value): (_, SessionInputValue<'_>) = match input {
            Input::Floats { name, shape } => {
                let numbers =
                    rows.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
                let data: Vec<f32> = numbers.collect();
                (*name, Tensor::from_array((extents(shape, 4), data)).unwrap().into())
            }
            Input::Integers { name, shape } => {
                let numbers =
                    rows.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
                let data: Vec<i64> = numbers.collect();
                (*name, Tensor::from_array((extents(shape, 8), data)).unwrap().into())
            }
        };
        let mut inputs = vec![(name.to_owned(), value)];
        inputs.extend(variant.map(|variant| {
            let none: [usize; 0] = [];
            let value = Tensor::from_array((none, vec![i64::try_from(variant).unwrap()])).unwrap();
            ("variant".to_owned(), value.into())
        }));
        let outputs = session.run(inputs).unwrap();
        outputs[0].try_extract_tensor::<f32>().unwrap().1.to_vec()
    }
}
