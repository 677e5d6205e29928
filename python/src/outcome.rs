//! How tasks ended, as values for `match`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_client::signature::{Row, Signature};
use baton_client::{DropReason, EndRecord, EndedBy, FailReason, Nanos, Outcome, Timing};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::errors::TensorError;
use crate::fork::Local;
use crate::memory::Reply;
use crate::tensors::{array, arrays, is_fixed};

/// The outcome as Python has it.
pub(crate) fn to_python(py: Python<'_>, outcome: Outcome) -> PyResult<Py<PyAny>> {
    Ok(match outcome {
        Outcome::Completed(reply) => Completed::new(py, reply)?.into_any(),
        Outcome::Dropped(why, record) => Py::new(py, Dropped { why, record })?.into_any(),
        Outcome::Failed(why, record) => Py::new(py, Failed { why, record })?.into_any(),
    })
}

fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}

/// The model's answer, in time or late.
#[pyclass(frozen, module = "baton")]
pub(crate) struct Completed {
    timing: Timing,
    /// Its name and its accuracy.
    variant: Option<(String, f64)>,
    signature: Arc<Signature>,
    content: Mutex<Content>,
}

enum Content {
    /// In its slot.
    Reply(Py<Reply>),
    /// Copied out of it.
    Bytes(Py<PyBytes>),
}

impl Content {
    fn clone_ref(&self, py: Python<'_>) -> Self {
        match self {
            Self::Reply(reply) => Self::Reply(reply.clone_ref(py)),
            Self::Bytes(bytes) => Self::Bytes(bytes.clone_ref(py)),
        }
    }

    fn object<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        match self {
            Self::Reply(reply) => reply.bind(py).clone().into_any(),
            Self::Bytes(bytes) => bytes.bind(py).clone().into_any(),
        }
    }

    fn bytes<'a>(&'a self, py: Python<'a>) -> PyResult<&'a [u8]> {
        match self {
            Self::Reply(reply) => Ok(reply.get().reply.get()?.bytes()),
            Self::Bytes(bytes) => Ok(bytes.bind(py).as_bytes()),
        }
    }
}

impl Completed {
    fn new(py: Python<'_>, reply: baton_client::Reply) -> PyResult<Py<Self>> {
        let (timing, signature) = (*reply.timing(), Arc::clone(reply.signature()));
        let variant = reply.variant().map(|one| (one.name().to_owned(), one.accuracy()));
        let reply = Py::new(py, Reply { reply: Local::new(reply) })?;
        Py::new(py, Self { timing, variant, signature, content: Mutex::new(Content::Reply(reply)) })
    }

    /// Nothing of Python's runs while this is held: it might come back here.
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn content(&self, py: Python<'_>) -> Content {
        self.lock().clone_ref(py)
    }

    fn row(&self) -> &Row {
        &self.signature.output
    }
}

#[pymethods]
impl Completed {
    #[classattr]
    fn __match_args__(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        PyTuple::new(py, ["output"])
    }

    /// The bytes of the answer, as a buffer.
    #[getter]
    fn buffer<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.content(py).object(py)
    }

    /// The model's only output as a read-only numpy array: no copy.
    #[getter]
    fn output<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.row().tensors() {
            [spec] if is_fixed(spec) => {
                let shape: Vec<u32> = spec.shape.iter().map(|extent| extent.max()).collect();
                array(&self.buffer(py), spec.element, &shape, 0)
            }
            [spec] => Ok(self.outputs(py)?.get_item(&spec.name)?.ok_or_else(no_tensor)?),
            _ => Err(TensorError::new_err("the model gives several tensors: use outputs")),
        }
    }

    /// The model's outputs by their names, as read-only numpy arrays.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let content = self.content(py);
        let outputs = PyDict::new(py);
        let named = named(&content.object(py), self.row(), content.bytes(py)?)?;
        named.into_iter().try_for_each(|(name, array)| outputs.set_item(name, array))?;
        Ok(outputs)
    }

    /// Copies the answer out of its slot, which is free from then on, unless arrays made before still look at it.
    pub(crate) fn detach(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
        let py = slf.py();
        let content = slf.get().content(py);
        if let Content::Reply(_) = content {
            let bytes = PyBytes::new(py, content.bytes(py)?).unbind();
            let former = std::mem::replace(&mut *slf.get().lock(), Content::Bytes(bytes));
            drop(former);
        }
        Ok(slf.clone().unbind())
    }

    /// Whether the answer came after its deadline.
    #[getter]
    fn late(&self) -> bool {
        self.timing.late()
    }

    /// Whether no GPU slot held the model's weights when the task came, so that it waited for a LOAD.
    #[getter]
    fn cold(&self) -> bool {
        self.timing.cold
    }

    /// From submit to answer.
    #[getter]
    fn latency_s(&self) -> f64 {
        seconds(self.timing.latency())
    }

    /// From submit to the start of its execution.
    #[getter]
    fn waited_s(&self) -> f64 {
        seconds(self.timing.waited())
    }

    /// The execution of its batch.
    #[getter]
    fn execution_s(&self) -> f64 {
        seconds(self.timing.execution())
    }

    /// Tasks in its batch.
    #[getter]
    fn batch_size(&self) -> u32 {
        self.timing.batch_size
    }

    /// The GPU slot that executed it.
    #[getter]
    fn gpu(&self) -> u32 {
        self.timing.gpu.0
    }

    /// The name of the variant that answered, if the model has variants.
    #[getter]
    fn variant(&self) -> Option<&str> {
        self.variant.as_ref().map(|(name, _)| &**name)
    }

    /// How many of that variant's answers are right, in per cent.
    #[getter]
    fn accuracy(&self) -> Option<f64> {
        self.variant.as_ref().map(|&(_, accuracy)| accuracy)
    }

    /// What happened, and when.
    fn explain(&self) -> String {
        self.timing.explain().to_string()
    }

    fn __repr__(&self) -> String {
        let late = if self.late() { ", late" } else { "" };
        format!("<Completed in {:.3} ms{late}>", self.latency_s() * 1e3)
    }
}

fn named<'py>(
    buffer: &Bound<'py, PyAny>,
    row: &Row,
    bytes: &[u8],
) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let tensors = row.unpack(bytes).map_err(|problem| TensorError::new_err(problem.to_string()))?;
    arrays(buffer, row.tensors(), bytes, &tensors)
}

fn no_tensor() -> PyErr {
    TensorError::new_err("the answer has no tensor")
}

/// The task was not executed. Expected under overload.
#[pyclass(frozen, module = "baton")]
pub(crate) struct Dropped {
    why: DropReason,
    record: EndRecord,
}

/// Something broke.
#[pyclass(frozen, module = "baton")]
pub(crate) struct Failed {
    why: FailReason,
    record: EndRecord,
}

fn ended_by(record: &EndRecord) -> &'static str {
    match record.by {
        EndedBy::Scheduler => "scheduler",
        EndedBy::Backend => "backend",
        EndedBy::Client => "client",
    }
}

fn after(record: &EndRecord) -> f64 {
    (record.ended - record.submitted).0 as f64 / 1e9
}

#[pymethods]
impl Dropped {
    #[classattr]
    fn __match_args__(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        PyTuple::new(py, ["reason"])
    }

    /// A word, one of `DROP_REASONS`.
    #[getter]
    fn reason(&self) -> &'static str {
        self.why.as_str()
    }

    /// How long to wait before another submit, if the scheduler said so.
    #[getter]
    fn retry_after_s(&self) -> Option<f64> {
        let Nanos(wait) = self.record.retry_after;
        (wait > 0).then_some(wait as f64 / 1e9)
    }

    /// `scheduler`, `backend` or `client`.
    #[getter]
    fn ended_by(&self) -> &'static str {
        ended_by(&self.record)
    }

    /// From submit to the end.
    #[getter]
    fn latency_s(&self) -> f64 {
        after(&self.record)
    }

    /// What happened, and when.
    fn explain(&self) -> String {
        Outcome::Dropped(self.why, self.record).explain().to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Dropped: {}>", self.why)
    }
}

#[pymethods]
impl Failed {
    #[classattr]
    fn __match_args__(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        PyTuple::new(py, ["reason"])
    }

    /// A word, one of `FAIL_REASONS`.
    #[getter]
    fn reason(&self) -> &'static str {
        self.why.as_str()
    }

    /// `scheduler`, `backend` or `client`.
    #[getter]
    fn ended_by(&self) -> &'static str {
        ended_by(&self.record)
    }

    /// From submit to the end.
    #[getter]
    fn latency_s(&self) -> f64 {
        after(&self.record)
    }

    /// What happened, and when.
    fn explain(&self) -> String {
        Outcome::Failed(self.why, self.record).explain().to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Failed: {}>", self.why)
    }
}
