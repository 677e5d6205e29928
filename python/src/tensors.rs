//! Tensors as Python's libraries describe them.

use baton_client::{ElementType, Extent, TensorRef, TensorSpec as Spec};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::TensorError;
use crate::memory::bytes_of;

/// A tensor that a model takes or gives.
#[pyclass(frozen, module = "baton", eq, hash)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct TensorSpec {
    spec: Spec,
}

impl TensorSpec {
    pub(crate) fn new(spec: &Spec) -> Self {
        Self { spec: spec.clone() }
    }
}

#[pymethods]
impl TensorSpec {
    #[getter]
    fn name(&self) -> &str {
        &self.spec.name
    }

    /// The element type by numpy's name: `float32`, `int64`, ...
    #[getter]
    fn dtype(&self) -> &'static str {
        dtype(self.spec.element)
    }

    /// Extents without the batch; the most of those that differ from task to task.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.spec.shape.iter().map(|extent| extent.max()))
    }

    /// Whether all tasks have this shape.
    #[getter]
    fn is_fixed(&self) -> bool {
        is_fixed(&self.spec)
    }

    fn __repr__(&self) -> String {
        format!("<tensor {}>", self.spec)
    }
}

/// A tensor's name, shape and bytes.
pub(crate) type Named = (String, Vec<u32>, Vec<u8>);

/// Tensors that are given by their names, converted as numpy does.
pub(crate) fn named(tensors: &Bound<'_, PyDict>, specs: &[Spec]) -> PyResult<Vec<Named>> {
    let mut owned = Vec::with_capacity(tensors.len());
    for (name, values) in tensors {
        let name: String = name.extract()?;
        let spec = specs.iter().find(|spec| spec.name == name).ok_or_else(|| {
            let known: Vec<&str> = specs.iter().map(|spec| &*spec.name).collect();
            let known = known.join(", ");
            TensorError::new_err(format!("the model has no input {name:?}; it has: {known}"))
        })?;
        let values = contiguous(&values, spec.element)?;
        let shape: Vec<u32> = values.getattr("shape")?.extract()?;
        let buffer = PyUntypedBuffer::get(&values)?;
        owned.push((name, shape, bytes_of(values.py(), &buffer)));
    }
    Ok(owned)
}

pub(crate) fn is_fixed(spec: &Spec) -> bool {
    spec.shape.iter().all(|extent| matches!(extent, Extent::Fixed(_)))
}

/// numpy's name.
fn dtype(element: ElementType) -> &'static str {
    match element {
        ElementType::F32 => "float32",
        ElementType::F64 => "float64",
        ElementType::F16 => "float16",
        ElementType::Bf16 => "bfloat16",
        ElementType::I8 => "int8",
        ElementType::I16 => "int16",
        ElementType::I32 => "int32",
        ElementType::I64 => "int64",
        ElementType::U8 => "uint8",
        ElementType::U16 => "uint16",
        ElementType::U32 => "uint32",
        ElementType::U64 => "uint64",
        ElementType::Bool => "bool",
    }
}

fn numpy<'py>(py: Python<'py>) -> PyResult<&'py Bound<'py, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = NUMPY.get_or_try_init(py, || {
        let module = py.import("numpy").map_err(|_| {
            let words = "numpy is not installed: install it, or use memoryview() on the object";
            pyo3::exceptions::PyImportError::new_err(words)
        })?;
        Ok::<_, PyErr>(module.unbind())
    })?;
    Ok(module.bind(py))
}

/// An array over the bytes of `buffer`, from `offset`, of this type and shape. It keeps `buffer` alive.
pub(crate) fn array<'py>(
    buffer: &Bound<'py, PyAny>,
    element: ElementType,
    shape: &[u32],
    offset: usize,
) -> PyResult<Bound<'py, PyAny>> {
    static FROMBUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static DTYPES: PyOnceLock<Vec<Py<PyAny>>> = PyOnceLock::new();
    let py = buffer.py();
    let count: usize = shape.iter().map(|&extent| extent as usize).product();
    let dtypes = DTYPES.get_or_try_init(py, || dtypes(py))?;
    let dtype = dtypes[element as usize].bind(py);
    if dtype.is_none() {
        return Err(TensorError::new_err(
            "numpy has no bfloat16: use memoryview() on the object, for torch.frombuffer or ml_dtypes",
        ));
    }
    let frombuffer = FROMBUFFER
        .get_or_try_init(py, || Ok::<_, PyErr>(numpy(py)?.getattr("frombuffer")?.unbind()))?;
    let flat = frombuffer.bind(py).call1((buffer, dtype, count, offset))?;
    match shape.len() {
        1 => Ok(flat),
        _ => flat.call_method1("reshape", (PyTuple::new(py, shape)?,)),
    }
}

/// By the code of the element type.
fn dtypes(py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
    let class = numpy(py)?.getattr("dtype")?;
    let codes = ElementType::ALL.iter().map(|element| *element as usize);
    let mut found: Vec<Py<PyAny>> = (0..=codes.max().unwrap_or(0)).map(|_| py.None()).collect();
    for &element in ElementType::ALL.iter().filter(|&&element| element != ElementType::Bf16) {
        found[element as usize] = class.call1((dtype(element),))?.unbind();
    }
    Ok(found)
}

/// Named tensors out of a row that lies in `buffer`.
pub(crate) fn arrays<'py>(
    buffer: &Bound<'py, PyAny>,
    specs: &[Spec],
    row: &[u8],
    tensors: &[TensorRef<'_>],
) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let each = specs.iter().zip(tensors).map(|(spec, tensor)| {
        let offset = tensor.bytes.as_ptr().addr() - row.as_ptr().addr();
        Ok((spec.name.clone(), array(buffer, spec.element, &tensor.shape, offset)?))
    });
    each.collect()
}

/// Contiguous bytes of `values` in this type and shape; numpy converts what it converts in an assignment.
pub(crate) fn contiguous<'py>(
    values: &Bound<'py, PyAny>,
    element: ElementType,
) -> PyResult<Bound<'py, PyAny>> {
    let py = values.py();
    let kwargs = pyo3::types::PyDict::new(py);
    if element != ElementType::Bf16 {
        kwargs.set_item("dtype", dtype(element))?;
    }
    numpy(py)?.getattr("ascontiguousarray")?.call((values,), Some(&kwargs))
}
