//! Memory of a device that is given out, over the fake driver.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use baton_cuda::{Driver, ExportError, Gpu, Library, OpenError};

/// Built as a dependency of this test, and beside it.
fn fake() -> Arc<Library> {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    Arc::new(Library::open_at(&folder.join("libbaton_cuda_fake.so")).unwrap())
}

/// Files of this process that the fake has given memory out as.
fn open_files() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    names.filter(|name| name.to_string_lossy().contains("baton-fake-dma-buf")).count()
}

#[test]
fn memory_that_is_given_out_is_the_devices_and_comes_back() {
    let library = fake();
    let mut gpu = Gpu::open(Arc::clone(&library), 0).unwrap();
    let free = gpu.free_bytes().unwrap();
    let export = library.export(0, 100_000).unwrap();
    assert_eq!(export.bytes(), 131_072, "whole pages of any host");
    assert!(gpu.free_bytes().unwrap() <= free - 131_072);
    assert_eq!(open_files(), 1);
    let link = format!("/proc/self/fd/{}", export.as_fd().as_raw_fd());
    let mut held = Vec::new();
    File::open(&link).unwrap().read_to_end(&mut held).unwrap();
    assert_eq!(held, vec![0xee; 131_072], "what the fake's new memory holds");
    drop(export);
    assert_eq!(gpu.free_bytes().unwrap(), free);
    assert_eq!(open_files(), 0);
}

#[test]
fn what_the_device_does_not_have_is_not_given_out() {
    let library = fake();
    let refused = library.export(0, 2 << 30).unwrap_err();
    let ExportError::Refused(error) = &refused else { panic!("{refused}") };
    assert!(error.is_out_of_memory(), "{error}");
    let refused = library.export(8, 1).unwrap_err();
    assert_eq!(refused, ExportError::Open(OpenError::Device { device: 8, count: 8 }));
}
