//! A model: what it takes and gives, and where inputs come from.

use std::sync::Arc;

use baton_client::{InputError, ModelHandle, TensorSpec as Spec};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{NoSlotError, of_input};
use crate::fork::Local;
use crate::input::Input;
use crate::tensors::TensorSpec;
use crate::ticket::Ticket;
use crate::wait::{for_future, span};

/// One model of a client.
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Model {
    handle: Local<ModelHandle>,
    inputs: Arc<[Spec]>,
}

impl Model {
    pub(crate) fn new(handle: ModelHandle) -> Self {
        Self { inputs: handle.inputs().into(), handle: Local::new(handle) }
    }

    /// A free slot with these values.
    fn written<'py>(
        slf: &Bound<'py, Self>,
        values: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Input>> {
        let model = slf.get();
        let slot = model.handle()?.input().map_err(|error| of_input(&error))?;
        let input = Bound::new(slf.py(), Input::new(slot, &model.inputs))?;
        Input::write(&input, values)?;
        Ok(input)
    }

    pub(crate) fn handle(&self) -> PyResult<&ModelHandle> {
        self.handle.get()
    }

    pub(crate) fn specs(&self) -> &Arc<[Spec]> {
        &self.inputs
    }
}

#[pymethods]
impl Model {
    #[getter]
    fn name(&self) -> PyResult<&str> {
        Ok(self.handle()?.name())
    }

    /// Its latency objective, seconds.
    #[getter]
    fn slo_s(&self) -> PyResult<f64> {
        Ok(self.handle()?.slo().as_secs_f64())
    }

    #[getter]
    fn inputs(&self) -> Vec<TensorSpec> {
        self.inputs.iter().map(TensorSpec::new).collect()
    }

    #[getter]
    fn outputs(&self) -> PyResult<Vec<TensorSpec>> {
        Ok(self.handle()?.outputs().iter().map(TensorSpec::new).collect())
    }

    #[getter]
    fn input_bytes(&self) -> PyResult<usize> {
        Ok(self.handle()?.input_bytes())
    }

    #[getter]
    fn output_bytes(&self) -> PyResult<usize> {
        Ok(self.handle()?.output_bytes())
    }

    /// Its variants, the cheapest first: names, and how many of their answers are right, in per cent. Empty for a model without any.
    #[getter]
    fn variants<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let variants = PyDict::new(py);
        for variant in self.handle()?.variants() {
            variants.set_item(variant.name(), variant.accuracy())?;
        }
        Ok(variants)
    }

    /// An operator has removed it: it gives no inputs any more.
    #[getter]
    fn is_removed(&self) -> PyResult<bool> {
        Ok(self.handle()?.is_removed())
    }

    /// How long to wait before another submit, as the scheduler last said.
    #[getter]
    fn retry_after_s(&self) -> PyResult<Option<f64>> {
        Ok(self.handle()?.retry_after().map(|wait| wait.as_secs_f64()))
    }

    /// A free slot's input, to be written in place. Waits for one for `timeout` seconds.
    #[pyo3(signature = (timeout = 0.0))]
    fn input(&self, py: Python<'_>, timeout: f64) -> PyResult<Input> {
        let (handle, span) = (self.handle()?, span(timeout, "timeout")?);
        let slot = match handle.input() {
            Err(error @ InputError::SlabExhausted { .. }) if !span.is_zero() => {
                let handle = handle.clone();
                let waits = Box::pin(async move { handle.input_ready().await });
                for_future(py, span, waits)?.unwrap_or(Err(error))
            }
            other => other,
        };
        Ok(Input::new(slot.map_err(|error| of_input(&error))?, &self.inputs))
    }

    /// An input of these tensors, by their names.
    fn input_of<'py>(
        slf: &Bound<'py, Self>,
        tensors: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, Input>> {
        Self::written(slf, tensors)
    }

    /// Copies values into a free slot and submits it: `input`, `write` and `submit` in one.
    #[pyo3(signature = (values, *, within = None, cost = None, accuracy_min = None))]
    fn submit(
        slf: &Bound<'_, Self>,
        values: &Bound<'_, PyAny>,
        within: Option<f64>,
        cost: Option<u32>,
        accuracy_min: Option<f64>,
    ) -> PyResult<Ticket> {
        Self::written(slf, values)?.get().submit(within, cost, accuracy_min)
    }

    /// As `submit`; `None` if no slot is free.
    #[pyo3(signature = (values, within, cost, accuracy_min))]
    fn _try_submit(
        slf: &Bound<'_, Self>,
        values: &Bound<'_, PyAny>,
        within: Option<f64>,
        cost: Option<u32>,
        accuracy_min: Option<f64>,
    ) -> PyResult<Option<Ticket>> {
        match Self::submit(slf, values, within, cost, accuracy_min) {
            Ok(ticket) => Ok(Some(ticket)),
            Err(error) if error.is_instance_of::<NoSlotError>(slf.py()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A free slot's input, awaited: those that wait get slots in the order in which they began.
    fn input_ready<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let aio = slf.py().import("baton._aio")?;
        aio.call_method1("input_ready", (slf,))
    }

    /// Copies values into a slot, waits for a free one if need be, submits, and awaits the outcome, which no longer holds its slot.
    #[pyo3(signature = (values, *, within = None, cost = None, accuracy_min = None))]
    fn infer<'py>(
        slf: &Bound<'py, Self>,
        values: &Bound<'py, PyAny>,
        within: Option<f64>,
        cost: Option<u32>,
        accuracy_min: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static INFER: pyo3::sync::PyOnceLock<Py<PyAny>> = pyo3::sync::PyOnceLock::new();
        let py = slf.py();
        let infer = INFER.get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("baton._aio")?.getattr("infer")?.unbind())
        })?;
        infer.bind(py).call1((slf, values, within, cost, accuracy_min))
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("<Model {:?}>", self.name()?))
    }
}
