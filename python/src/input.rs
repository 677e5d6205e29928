//! An input: a slot that Python writes in place, before its task is submitted or while it queues.

use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_client::{
    CostHint, Deadline, ElementType, InputAhead, SubmitError, TensorRef, TensorSpec,
};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{TensorError, of_submit};
use crate::fork::Local;
use crate::memory::{copy_into, fill};
use crate::tensors::{Named, array, contiguous, is_fixed, named};
use crate::ticket::Ticket;
use crate::wait::span;

/// A slot's input: yours to write until it is submitted.
#[pyclass(frozen, module = "baton")]
pub(crate) struct Input {
    inputs: Arc<[TensorSpec]>,
    state: Mutex<State>,
}

/// A slot that is Python's to write.
enum Slot {
    /// To be submitted.
    Free(baton_client::Input),
    /// Of a task that queues already.
    Ahead(InputAhead),
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Free(input) => input,
            Self::Ahead(input) => input,
        }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Free(input) => input,
            Self::Ahead(input) => input,
        }
    }
}

struct State {
    slot: Local<Slot>,
    /// Arrays and memoryviews that look at the slot.
    views: usize,
}

impl Input {
    pub(crate) fn new(slot: baton_client::Input, inputs: &Arc<[TensorSpec]>) -> Self {
        let state = Mutex::new(State { slot: Local::new(Slot::Free(slot)), views: 0 });
        Self { inputs: Arc::clone(inputs), state }
    }

    /// Nothing of Python's runs while this is held: it might come back here.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the slot is, for a view that must end before anything else happens to it.
    pub(crate) fn begin_view(&self) -> PyResult<(*mut u8, usize)> {
        let mut state = self.state();
        let slot =
            state.slot.get_mut().map_err(|error| PyBufferError::new_err(error.to_string()))?;
        let view = (slot.as_mut_ptr(), slot.len());
        state.views += 1;
        Ok(view)
    }

    pub(crate) fn end_view(&self) {
        self.state().views -= 1;
    }

    /// Copies the bytes of a buffer that is as the model takes it. False if it is not, or if views look at the slot: it may be
    /// one of them.
    fn copy_from(&self, py: Python<'_>, buffer: &PyUntypedBuffer) -> PyResult<bool> {
        let element = match &self.inputs[..] {
            [spec] => spec.element,
            _ => ElementType::U8,
        };
        let mut state = self.state();
        let is_alone = state.views == 0;
        let slot = state.slot.get_mut()?;
        Ok(is_alone && copy_into(py, buffer, |buffer| is_of(buffer, element), slot))
    }

    /// Writes the whole input.
    fn write_tensors(&self, tensors: &[Named]) -> PyResult<()> {
        let tensors: Vec<_> = tensors
            .iter()
            .map(|(name, shape, bytes)| (&**name, TensorRef { shape: shape.clone(), bytes }))
            .collect();
        let mut state = self.state();
        if state.views > 0 {
            return Err(still_looked_at());
        }
        match state.slot.get_mut()? {
            Slot::Free(input) => input
                .write_tensors(&tensors)
                .map_err(|problem| TensorError::new_err(problem.to_string())),
            Slot::Ahead(_) => Err(is_ahead()),
        }
    }

    /// Hands the input over, and keeps what of it is still to be written.
    fn submit_by(
        &self,
        (cost, accuracy_min): (Option<u32>, Option<f64>),
        submit: impl FnOnce(
            baton_client::Input,
        ) -> Result<(Option<InputAhead>, baton_client::Ticket), SubmitError>,
    ) -> PyResult<Ticket> {
        let accuracy_min = per_cent(accuracy_min)?;
        let mut state = self.state();
        let input = state.take_free()?.with_cost(cost.map_or(CostHint::NONE, CostHint::of_units));
        match submit(input.with_accuracy_min(accuracy_min)) {
            Ok((ahead, ticket)) => {
                ahead.into_iter().for_each(|ahead| state.slot.put_back(Slot::Ahead(ahead)));
                Ok(Ticket::new(ticket))
            }
            Err(refused) => {
                state.slot.put_back(Slot::Free(refused.input));
                Err(of_submit(refused.reason))
            }
        }
    }

    /// The only tensor, if all inputs have its shape.
    fn only_tensor(&self) -> PyResult<&TensorSpec> {
        match &self.inputs[..] {
            [spec] if is_fixed(spec) => Ok(spec),
            _ => Err(TensorError::new_err(
                "the model takes several tensors, or their lengths differ from task to task: give a dict of arrays by their names, or use model.input_of()",
            )),
        }
    }
}

impl State {
    /// The slot, on its way to somewhere else.
    fn take(&mut self) -> PyResult<Slot> {
        match self.views {
            0 => self.slot.take(),
            views => Err(PyBufferError::new_err(format!(
                "{views} arrays or memoryviews still look at this input: del them, or write with input[...] = values"
            ))),
        }
    }

    /// The input, if it is still to be submitted.
    fn take_free(&mut self) -> PyResult<baton_client::Input> {
        match self.take()? {
            Slot::Free(input) => Ok(input),
            ahead @ Slot::Ahead(_) => {
                self.slot.put_back(ahead);
                Err(is_ahead())
            }
        }
    }
}

fn still_looked_at() -> PyErr {
    PyBufferError::new_err("arrays still look at this input: del them")
}

fn is_ahead() -> PyErr {
    PyValueError::new_err("the input is submitted already: write it, and call finish() or close()")
}

#[pymethods]
impl Input {
    /// A numpy array over the slot: no copy. It must be gone before the submit.
    fn array<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let spec = slf.get().only_tensor()?;
        let shape: Vec<u32> = spec.shape.iter().map(|extent| extent.max()).collect();
        array(slf.as_any(), spec.element, &shape, 0)
    }

    /// `input[...] = values` writes as into an array, and leaves none behind.
    fn __setitem__(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        Self::array(slf)?.set_item(key, values)
    }

    /// Copies values into the slot: an array of the model's type, or its bytes; a dict of arrays by the tensors' names; anything
    /// else as numpy converts it.
    pub(crate) fn write(slf: &Bound<'_, Self>, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let (input, py) = (slf.get(), slf.py());
        if let Ok(tensors) = values.cast::<PyDict>() {
            return input.write_tensors(&named(tensors, &input.inputs)?);
        }
        // Code of Python's may run here, so it comes before the lock.
        let buffer = PyUntypedBuffer::get(values);
        if buffer.is_ok_and(|buffer| input.copy_from(py, &buffer).unwrap_or(false)) {
            return Ok(());
        }
        let spec = input.only_tensor()?;
        let values = contiguous(values, spec.element)?;
        Self::array(slf)?.set_item(py.Ellipsis(), values)
    }

    /// The input is the first `bytes` bytes, for models whose inputs differ in length.
    fn truncate(&self, bytes: usize) -> PyResult<()> {
        let mut state = self.state();
        if state.views > 0 {
            return Err(still_looked_at());
        }
        match state.slot.get_mut()? {
            Slot::Free(input) => input.truncate(bytes),
            Slot::Ahead(_) => return Err(is_ahead()),
        }
        Ok(())
    }

    /// Hands the input over: the answer is due `within` seconds, or by the model's own objective. `cost` is what the task will
    /// cost, in units such as tokens. `accuracy_min`, in per cent, is for models with variants.
    #[pyo3(signature = (*, within = None, cost = None, accuracy_min = None))]
    pub(crate) fn submit(
        &self,
        within: Option<f64>,
        cost: Option<u32>,
        accuracy_min: Option<f64>,
    ) -> PyResult<Ticket> {
        let deadline = deadline(within)?;
        self.submit_by((cost, accuracy_min), |input| Ok((None, input.submit(deadline)?)))
    }

    /// Submits the task before its input is written: write it while the task queues, then call `finish`. Truncate before.
    /// Otherwise as `submit`.
    #[pyo3(signature = (*, within = None, cost = None, accuracy_min = None))]
    fn submit_ahead(
        &self,
        within: Option<f64>,
        cost: Option<u32>,
        accuracy_min: Option<f64>,
    ) -> PyResult<Ticket> {
        let deadline = deadline(within)?;
        self.submit_by((cost, accuracy_min), |input| {
            let (ahead, ticket) = input.submit_ahead(deadline)?;
            Ok((Some(ahead), ticket))
        })
    }

    /// The input of a task that was submitted ahead is written: backends may read it from now on.
    fn finish(&self) -> PyResult<()> {
        let mut state = self.state();
        match state.take()? {
            Slot::Ahead(ahead) => {
                ahead.finish();
                Ok(())
            }
            free @ Slot::Free(_) => {
                state.slot.put_back(free);
                Err(PyValueError::new_err(
                    "the input is not submitted yet: submit_ahead() comes first, or submit() does both",
                ))
            }
        }
    }

    /// Frees the slot, unless the input was handed over. A task that was submitted ahead is cancelled.
    fn close(&self) -> PyResult<()> {
        let mut state = self.state();
        match state.slot.get() {
            Ok(_) => state.take().map(drop),
            Err(_) => Ok(()),
        }
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.state().slot.get()?.len())
    }

    // The slot is exclusively Python's while it has views: it is not submitted, closed or freed before they end.
    #[allow(unsafe_code, reason = "the signature that PyO3 asks for; `fill` does the work")]
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (at, len) = slf.get().begin_view()?;
        fill(slf.as_any(), at.cast(), len, false, view, flags).inspect_err(|_| slf.get().end_view())
    }

    #[allow(unsafe_code, reason = "the signature that PyO3 asks for")]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.end_view();
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close()
    }
}

/// Bytes are taken for any element; others must have its format.
fn is_of(buffer: &PyUntypedBuffer, element: ElementType) -> bool {
    let format = buffer.format().to_bytes();
    let format = format.strip_prefix(b"<").or_else(|| format.strip_prefix(b"@")).unwrap_or(format);
    if buffer.item_size() == 1 && matches!(format, b"B" | b"c") {
        return true;
    }
    let formats: &[u8] = match element {
        ElementType::F32 => b"f",
        ElementType::F64 => b"d",
        ElementType::F16 => b"e",
        ElementType::Bf16 => b"",
        ElementType::I8 => b"b",
        ElementType::I16 => b"h",
        ElementType::I32 => b"il",
        ElementType::I64 => b"lq",
        ElementType::U8 => b"B",
        ElementType::U16 => b"H",
        ElementType::U32 => b"IL",
        ElementType::U64 => b"LQ",
        ElementType::Bool => b"?",
    };
    matches!(format, [letter] if formats.contains(letter)) && buffer.item_size() == element.bytes()
}

fn deadline(within: Option<f64>) -> PyResult<Deadline> {
    within.map_or(Ok(Deadline::Slo), |seconds| Ok(Deadline::within(span(seconds, "within")?)))
}

fn per_cent(accuracy_min: Option<f64>) -> PyResult<f64> {
    match accuracy_min.unwrap_or(0.0) {
        valid if (0.0..=100.0).contains(&valid) => Ok(valid),
        wrong => Err(PyValueError::new_err(format!(
            "accuracy_min is {wrong}: give per cent, from 0 to 100"
        ))),
    }
}
