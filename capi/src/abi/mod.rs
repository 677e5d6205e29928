//! What C sees: functions, structs, constants. The only unsafe code of the package: pointers are read and written in
//! `pointers.rs`, under the promises that `baton.h` asks for; elsewhere the attribute that exports a name is all.
#![expect(unsafe_code, reason = "C's calling convention")]
#![allow(missing_docs, reason = "capi/include/baton.h is the manual")]
#![allow(clippy::must_use_candidate, reason = "C has no such thing")]

mod client;
mod fork;
mod input;
mod model;
mod outcome;
mod pointers;
mod queue;
mod reply;
mod structs;
mod ticket;

pub use client::*;
pub use input::*;
pub use model::*;
pub use outcome::*;
pub use queue::*;
pub use reply::*;
pub use structs::*;
pub use ticket::*;

use std::ffi::{CStr, c_char};

use baton_client::{DropReason, ElementType, FailReason, signature};

use crate::status::{STATUSES, last_error};

/// Raised when programs must be compiled again.
const ABI_VERSION: u32 = 1;

#[unsafe(no_mangle)]
pub extern "C" fn baton_abi_version() -> u32 {
    ABI_VERSION
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_error() -> *const c_char {
    last_error()
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_status_name(status: i32) -> *const c_char {
    let name = match status {
        0 => c"ok",
        1 => c"pending",
        2 => c"empty",
        -1 => c"argument",
        -2 => c"handle",
        -3 => c"busy",
        -4 => c"connect",
        -5 => c"unknown_model",
        -6 => c"no_slot",
        -7 => c"model_removed",
        -8 => c"client_closed",
        -9 => c"deadline_passed",
        -10 => c"scheduler_lost",
        -11 => c"queue_full",
        -12 => c"leave",
        -13 => c"tensors",
        -14 => c"system",
        -15 => c"forked",
        -16 => c"internal",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// Every number that `baton.h` gives a name, without `BATON_`.
pub fn constants() -> Vec<(String, i64)> {
    let statuses = STATUSES.iter().map(|(name, code)| ((*name).to_owned(), i64::from(*code)));
    let dropped = DropReason::ALL.iter().map(|why| named("DROPPED", why.as_str(), why.code()));
    let failed = FailReason::ALL.iter().map(|why| named("FAILED", why.as_str(), why.code()));
    let elements = ElementType::ALL.iter().map(|kind| (kind.name().to_uppercase(), *kind as i64));
    let others = [
        ("ABI_VERSION", i64::from(ABI_VERSION)),
        ("RANK_MAX", i64::from(signature::RANK_MAX as u32)),
        ("COMPLETED", i64::from(COMPLETED)),
        ("DROPPED", i64::from(DROPPED)),
        ("FAILED", i64::from(FAILED)),
        ("BY_SCHEDULER", i64::from(BY_SCHEDULER)),
        ("BY_BACKEND", i64::from(BY_BACKEND)),
        ("BY_CLIENT", i64::from(BY_CLIENT)),
        ("INPUTS", i64::from(model::INPUTS)),
        ("OUTPUTS", i64::from(OUTPUTS)),
    ];
    let others = others.map(|(name, code)| (name.to_owned(), code));
    statuses.chain(dropped).chain(failed).chain(elements).chain(others).collect()
}

fn named(kind: &str, word: &str, code: u8) -> (String, i64) {
    (format!("{kind}_{}", word.to_uppercase()), i64::from(code))
}

/// For texts that live as long as the library.
fn text(text: Option<&'static CStr>) -> *const c_char {
    text.unwrap_or(c"unknown").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a text that a call has returned.
    pub(super) fn read(text: *const c_char) -> &'static str {
        // SAFETY: what is given here ends with a zero byte and lives as long as the library.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default()
    }

    #[test]
    fn every_status_has_the_name_of_its_constant() {
        for (constant, status) in STATUSES {
            let name = constant.trim_start_matches("E_").to_lowercase();
            assert_eq!(read(baton_status_name(*status)), name);
        }
        assert_eq!(read(baton_status_name(i32::MIN)), "unknown");
    }
}
