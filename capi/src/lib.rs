//! `libbaton`: the client library with C's calling convention.
//!
//! `capi/include/baton.h` is the interface and its manual; it is written by hand, and `capi/tests/header.rs` compares it
//! with the sources here. `capi/include/baton.hpp` wraps it for C++.
//!
//! In: calls of a C program, which may be wrong in every way. Out: calls of [`baton_client`], and a status.
//!
//! | room | holds |
//! |---|---|
//! | `handles.rs` | what handles stand for; a handle that was freed is recognised |
//! | `status.rs` | statuses, the last error of each thread, and the border that no panic crosses |
//! | `abi/` | the functions and structs that C sees: the only unsafe code |
#![deny(unsafe_code)]

pub mod abi;
mod handles;
mod status;

use rustix as _; // for its feature: see Cargo.toml
