//! Memory of slots that Python sees through the buffer protocol, and memory of Python's that is copied into slots. The only
//! unsafe code of this package.
#![expect(unsafe_code, reason = "Python's buffer protocol")]

use std::ffi::{c_int, c_void};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::fork::Local;

/// Fills in a view of bytes that `owner` keeps valid, and no one else writes, until it has released the view.
pub(crate) fn fill(
    owner: &Bound<'_, PyAny>,
    at: *mut c_void,
    len: usize,
    is_read_only: bool,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("there is no place for the view"));
    }
    let len = ffi::Py_ssize_t::try_from(len)?;
    // SAFETY: `view` is a place for a view, as the interpreter promises to `__getbuffer__`, and not null; `owner` is an
    // object; the callers say why `at` is valid for `len` bytes until the view is released.
    let failed = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), at, len, c_int::from(is_read_only), flags)
    };
    if failed != 0 { Err(PyErr::fetch(owner.py())) } else { Ok(()) }
}

/// An answer, in the slot where it landed: a read-only buffer. The slot is used again once this object, and every view of it, is gone.
#[pyclass(frozen, module = "baton")]
pub(crate) struct Reply {
    pub(crate) reply: Local<baton_client::Reply>,
}

#[pymethods]
impl Reply {
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // The reply lives as long as this object, which each view keeps alive. No one writes to it, as `true` says.
        let bytes = slf.get().reply.get()?.bytes();
        fill(slf.as_any(), bytes.as_ptr().cast_mut().cast(), bytes.len(), true, view, flags)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.reply.get()?.bytes().len())
    }
}

/// The bytes of an object of Python's, if they lie in one piece, are of elements that `fits` takes, and are as many as `to` has.
/// They are copied there. False if they are not so.
pub(crate) fn copy_into(
    py: Python<'_>,
    from: &PyUntypedBuffer,
    fits: impl FnOnce(&PyUntypedBuffer) -> bool,
    to: &mut [u8],
) -> bool {
    let is_whole = from.is_c_contiguous() && from.len_bytes() == to.len();
    if !is_whole || !fits(from) {
        return false;
    }
    // `py` is what keeps other threads of Python's from writing there meanwhile.
    let _: Python<'_> = py;
    // SAFETY: the buffer is contiguous, so its `len_bytes` bytes lie there as long as `from` does; `to` is a slot's memory and
    // as long, and does not overlap, because a slot with views is not written by this function (`Input::write`).
    unsafe { std::ptr::copy_nonoverlapping(from.buf_ptr().cast::<u8>(), to.as_mut_ptr(), to.len()) }
    true
}

/// The bytes of an object of Python's, copied.
pub(crate) fn bytes_of(py: Python<'_>, from: &PyUntypedBuffer) -> Vec<u8> {
    let mut bytes = vec![0; from.len_bytes()];
    copy_into(py, from, |_| true, &mut bytes);
    bytes
}
