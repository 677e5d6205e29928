//! Memory of other devices, which comes as a dma-buf.

use std::fs::File;
use std::os::fd::AsFd;

use baton_rdma::{VerbsError, probe_device_memory};

use crate::common::{rdma_here, verbs_config};

/// Soft-RoCE takes no dma-buf either, so this is how a host without a fit card refuses one.
#[test]
fn a_file_that_is_no_dma_buf_is_refused_by_name() {
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let refused = probe_device_memory(&verbs_config(), file.as_fd(), 4096).unwrap_err();
    if !rdma_here() {
        let words = refused.to_string();
        return assert!(!matches!(refused, VerbsError::Refused { .. }), "no device: {words}");
    }
    let VerbsError::Refused { what, device, source } = &refused else { panic!("{refused}") };
    assert_eq!(*what, "registering a dma-buf");
    assert!(!device.is_empty() && source.raw_os_error().is_some_and(|code| code != 0), "{refused}");
    eprintln!("{refused}");
}
