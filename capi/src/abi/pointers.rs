//! Pointers that a C program gives. `baton.h` asks that each is null or points to what its type says, for the time of the
//! call, and that no other thread writes there; a null is refused with the name of the argument.

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use super::structs::Versioned;
use crate::status::{Refusal, Result};

/// Larger than any struct will be: what is above was not set.
const STRUCT_SIZE_MAX: u32 = 4096;

/// Where a value is to be written.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(super) fn given(self, argument: &str) -> Result<Self> {
        match self.0.is_null() {
            true => Err(null(argument)),
            false => Ok(self),
        }
    }

    /// Of a pointer that was [`Out::given`].
    pub(super) fn put(self, value: T) {
        // SAFETY: not null, and so a place for a `T`, as `baton.h` asks.
        unsafe { self.0.write(value) }
    }

    /// To those who want it.
    pub(super) fn put_if_given(self, value: T) {
        if !self.0.is_null() {
            self.put(value);
        }
    }
}

/// Where a struct is to be written whose size the program has set.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct OutStruct<T>(*mut T);

impl<T: Versioned> OutStruct<T> {
    pub(super) fn given(self) -> Result<Sized<T>> {
        Ok(Sized { at: self.0, bytes: struct_size(self.0)?, of: PhantomData })
    }
}

/// A place for a struct of the bytes that the program knows of.
pub(super) struct Sized<T> {
    at: *mut T,
    bytes: u32,
    of: PhantomData<T>,
}

impl<T: Versioned> Sized<T> {
    /// Fields that this library does not know are zero.
    pub(super) fn put(self, mut value: T) {
        value.set_struct_size(self.bytes);
        let (at, all) = (self.at.cast::<u8>(), self.bytes as usize);
        // SAFETY: `baton.h` asks that `struct_size` bytes lie there, and a struct of zeros is a value of its type in C.
        unsafe { ptr::write_bytes(at, 0, all) };
        // SAFETY: as above, and a `T` has at least so many bytes as are copied.
        unsafe {
            ptr::copy_nonoverlapping(ptr::from_ref(&value).cast(), at, all.min(size_of::<T>()));
        }
    }
}

/// A struct that the program has filled.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct InStruct<T>(*const T);

impl<T: Versioned> InStruct<T> {
    pub(super) fn given(self) -> Result<T> {
        let bytes = struct_size(self.0)? as usize;
        // SAFETY: not null, and so many bytes lie there, as `baton.h` asks.
        Ok(unsafe { read(self.0, bytes) })
    }

    /// `count` of them, one behind the other.
    pub(super) fn array(self, count: usize) -> Result<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let stride = struct_size(self.0)? as usize;
        let all = (0..count).map(|at| {
            let place = self.0.wrapping_byte_add(at * stride);
            if struct_size(place)? as usize != stride {
                return Err(wrong_size(T::NAME, size_of::<T>()));
            }
            // SAFETY: `baton.h` asks for `count` structs of this size.
            Ok(unsafe { read(place, stride) })
        });
        all.collect()
    }
}

/// Fields that the program does not know are zero.
///
/// # Safety
/// `bytes` lie there.
unsafe fn read<T: Versioned>(at: *const T, bytes: usize) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller says that `bytes` lie there; no more are copied than a `T` has.
    unsafe {
        ptr::copy_nonoverlapping(
            at.cast::<u8>(),
            value.as_mut_ptr().cast(),
            bytes.min(size_of::<T>()),
        );
    };
    // SAFETY: its fields are numbers and pointers, of which every value is one, zero too.
    unsafe { value.assume_init() }
}

/// What the program says that it knows: of this version, or of a later or an earlier one.
fn struct_size<T: Versioned>(at: *const T) -> Result<u32> {
    if at.is_null() {
        return Err(null(T::NAME));
    }
    // SAFETY: not null; the first field of each such struct is its size.
    let bytes = unsafe { at.cast::<u32>().read() };
    let known = T::FIRST_BYTES;
    match (known..=STRUCT_SIZE_MAX as usize).contains(&(bytes as usize)) {
        true => Ok(bytes),
        false => Err(wrong_size(T::NAME, size_of::<T>())),
    }
}

/// A text, ended by a zero byte.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Str(*const c_char);

impl Str {
    pub(super) fn given(self, argument: &str) -> Result<String> {
        optional(self.0, argument)?.ok_or_else(|| null(argument))
    }
}

/// The text, if there is one.
pub(super) fn optional(at: *const c_char, argument: &str) -> Result<Option<String>> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and so a text that a zero byte ends, as `baton.h` asks.
    let text = unsafe { CStr::from_ptr(at) };
    let text = text.to_str().map_err(|_| Refusal::argument(format!("{argument} is not UTF-8")))?;
    Ok(Some(text.to_owned()))
}

/// An array of texts.
pub(super) fn texts(at: *const *const c_char, count: usize, argument: &str) -> Result<Vec<String>> {
    if count > 0 && at.is_null() {
        return Err(null(argument));
    }
    let one = |index| {
        let place = at.wrapping_add(index);
        // SAFETY: `baton.h` asks for `count` pointers.
        let text = unsafe { place.read() };
        optional(text, argument)?.ok_or_else(|| null(argument))
    };
    (0..count).map(one).collect()
}

/// Bytes that the program lends for the time of the call.
pub(super) fn bytes<'a>(at: *const c_void, count: usize, argument: &str) -> Result<&'a [u8]> {
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(null(argument));
    }
    // SAFETY: `baton.h` asks for `count` bytes that stay for the time of the call, after which no caller keeps them.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), count) })
}

/// Room for a text.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Buffer(*mut c_char);

impl Buffer {
    /// Writes as much of the text as there is room for, and a zero byte behind it.
    pub(super) fn put(self, text: &str, room: usize) {
        if self.0.is_null() || room == 0 {
            return;
        }
        let len = text.len().min(room - 1);
        // SAFETY: `baton.h` asks for `room` bytes, and `len` is less.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), self.0, len) };
        // SAFETY: as above.
        let end = unsafe { self.0.add(len) };
        // SAFETY: as above; `len` is at most `room - 1`.
        unsafe { end.write(0) }
    }
}

#[cold]
fn null(argument: &str) -> Refusal {
    Refusal::argument(format!("{argument} is NULL: give a pointer"))
}

#[cold]
fn wrong_size(name: &str, known: usize) -> Refusal {
    Refusal::argument(format!(
        "struct_size of {name} is not set: set it to sizeof({name}), which is {known} here or more"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::structs::ModelInfo;
    use super::*;

    const INFO: ModelInfo = ModelInfo {
        struct_size: 0,
        is_removed: 1,
        name: ptr::null(),
        input_bytes: 2,
        output_bytes: 3,
        input_count: 4,
        output_count: 5,
        slo_ns: 6,
        retry_after_ns: 7,
    };

    /// The struct as a program knows it that was compiled with a later version of the library.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Later {
        info: ModelInfo,
        more: u64,
    }

    const LATER: u32 = size_of::<Later>() as u32;

    #[test]
    fn what_a_later_program_knows_beyond_this_library_is_zero() {
        let info = ModelInfo { struct_size: LATER, ..INFO };
        let mut later = [Later { info, more: u64::MAX }; 2];
        let out = OutStruct(ptr::from_mut(&mut later[0]).cast::<ModelInfo>());
        out.given().unwrap().put(ModelInfo { slo_ns: 60, ..INFO });
        assert_eq!(
            (later[0].info.struct_size, later[0].info.slo_ns, later[0].more),
            (LATER, 60, 0)
        );
        assert_eq!((later[1].info.slo_ns, later[1].more), (6, u64::MAX), "that is another one");
    }

    #[test]
    fn structs_of_a_later_program_lie_as_far_apart_as_it_says() {
        let info = |slo_ns| ModelInfo { struct_size: LATER, slo_ns, ..INFO };
        let later = [8, 9].map(|slo_ns| Later { info: info(slo_ns), more: u64::MAX });
        let array = InStruct(later.as_ptr().cast::<ModelInfo>()).array(2).unwrap();
        assert_eq!(array.iter().map(|info| info.slo_ns).collect::<Vec<_>>(), [8, 9]);
    }
}
