//! Regions as clients register them, and objects that change under the gateway.

use std::fs;
use std::os::unix::fs::symlink;

use rustix::fs::{CWD, Mode, mkfifoat};

use super::*;
use crate::protocol::request::Wanted;

/// A folder in place of the system's.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let name = format!("baton-memory-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn object(&self, key: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(key);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn memory(&self, bytes_max: u64) -> Option<Memory> {
        Some(Memory { folder: self.0.clone(), ..Memory::new(bytes_max) })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn register(memory: &Option<Memory>, region: (&str, &str, u64, u64)) -> Result<(), Problem> {
    let (name, key, offset, byte_size) = region;
    let registration = Registration { name: name.into(), key: key.into(), offset, byte_size };
    Memory::of(memory)?.register(registration)
}

fn unregister(memory: &Option<Memory>, name: Option<&str>) -> Result<(), Problem> {
    Memory::of(memory)?.unregister(name)
}

fn names(memory: &Option<Memory>) -> Vec<String> {
    let known = Memory::of(memory).unwrap().status(None).unwrap();
    known.into_iter().map(|region| region.name).collect()
}

fn part(region: &str, offset: u64, bytes: usize) -> Part {
    Part { region: region.into(), offset, bytes }
}

/// What a request uses that names this part.
fn used(memory: &Option<Memory>, part: &Part) -> Result<Used, Problem> {
    let (inputs, outputs, places) = (Vec::new(), Vec::new(), vec![(0, part.clone())]);
    let wanted = Wanted { id: None, outputs, places };
    Used::by(memory, &Request { timeout: None, batch: 1, inputs, wanted })
}

fn read(memory: &Option<Memory>, part: &Part) -> Result<Vec<u8>, Problem> {
    let mut bytes = vec![0; part.bytes];
    used(memory, part)?.read(part, 0, &mut bytes).map(|()| bytes)
}

fn write(memory: &Option<Memory>, part: &Part, rows: &[&[u8]]) -> Result<(), Problem> {
    let tensor = |bytes| TensorRef { shape: Vec::new(), bytes };
    let rows: Vec<TensorRef<'_>> = rows.iter().copied().map(tensor).collect();
    used(memory, part)?.write(part, rows.iter())
}

fn refused(result: Result<impl std::fmt::Debug, Problem>, words: &str) {
    let problem = result.unwrap_err();
    assert!(problem.text.contains(words), "{problem:?}");
}

#[test]
fn tensors_are_read_and_written_where_they_lie() {
    let folder = Folder::new("place");
    let object = folder.object("k", &(0..40).collect::<Vec<u8>>());
    let memory = folder.memory(1 << 20);
    register(&memory, ("in", "/k", 10, 20)).unwrap();
    assert_eq!(read(&memory, &part("in", 5, 3)).unwrap(), [15, 16, 17]);
    let rows = part("in", 0, 6);
    let mut second = [0; 3];
    used(&memory, &rows).unwrap().read(&rows, 3, &mut second).unwrap();
    assert_eq!(second, [13, 14, 15]);
    write(&memory, &part("in", 16, 4), &[&[90, 91], &[92]]).unwrap();
    assert_eq!(fs::read(&object).unwrap()[25..30], [25, 90, 91, 92, 29]);
    refused(write(&memory, &part("in", 16, 4), &[&[1; 3], &[2; 2]]), "5 bytes and room for 4");
    refused(read(&memory, &part("in", 18, 3)), "not within its 20 bytes");
    refused(read(&memory, &part("out", 0, 3)), "no shared memory is registered as \"out\"");
    refused(read(&None, &part("in", 0, 3)), "shared_memory_mib");
}

#[test]
fn an_object_that_is_shortened_is_an_error_and_stays_short() {
    let folder = Folder::new("short");
    let object = folder.object("k", &[7; 32]);
    let memory = folder.memory(1 << 20);
    register(&memory, ("r", "k", 0, 32)).unwrap();
    File::options().write(true).open(&object).unwrap().set_len(20).unwrap();
    refused(read(&memory, &part("r", 16, 8)), "shorter than when it was registered");
    refused(write(&memory, &part("r", 16, 8), &[&[1; 8]]), "shorter than when it was registered");
    assert_eq!(fs::metadata(&object).unwrap().len(), 20);
    assert_eq!(read(&memory, &part("r", 12, 8)).unwrap(), [7; 8]);
}

#[test]
fn only_regular_files_of_the_folder_are_objects_and_only_as_far_as_they_go() {
    let folder = Folder::new("files");
    folder.object("k", &[0; 16]);
    let memory = folder.memory(1 << 20);
    let outside = std::env::temp_dir().join(format!("baton-memory-{}-outside", std::process::id()));
    fs::write(&outside, [1; 16]).unwrap();
    symlink(&outside, folder.0.join("link")).unwrap();
    fs::create_dir(folder.0.join("folder")).unwrap();
    mkfifoat(CWD, folder.0.join("pipe"), Mode::RWXU).unwrap();
    for key in ["link", "folder", "pipe", "none"] {
        refused(register(&memory, ("r", key, 0, 8)), "names no shared-memory object");
    }
    let up = format!("../{}", outside.file_name().unwrap().to_str().unwrap());
    refused(register(&memory, ("r", &up, 0, 8)), "without a path");
    refused(register(&memory, ("r", "k", 9, 8)), "ends at byte 17; the object has 16");
    refused(register(&memory, ("r", "k", u64::MAX, 8)), "part of no object");
    assert!(names(&memory).is_empty());
    fs::remove_file(outside).unwrap();
}

#[test]
fn a_client_may_repeat_itself_and_begin_again() {
    let folder = Folder::new("again");
    let object = folder.object("k", &[1; 16]);
    let memory = folder.memory(16);
    register(&memory, ("r", "k", 0, 16)).unwrap();
    register(&memory, ("r", "k", 0, 16)).unwrap();
    refused(register(&memory, ("r", "k", 0, 8)), "unregister it first");
    // A client that ended without a word makes its object anew.
    fs::remove_file(object).unwrap();
    folder.object("k", &[2; 16]);
    register(&memory, ("r", "k", 0, 16)).unwrap();
    assert_eq!(read(&memory, &part("r", 0, 2)).unwrap(), [2, 2]);
    unregister(&memory, Some("r")).unwrap();
    unregister(&memory, Some("r")).unwrap();
    refused(Memory::of(&memory).unwrap().status(Some("r")), "no shared memory is registered");
}

#[test]
fn regions_are_bounded_and_those_whose_objects_are_gone_make_room() {
    let folder = Folder::new("bounds");
    folder.object("k", &[0; 64]);
    let object = folder.object("gone", &[0; 64]);
    let memory = folder.memory(100);
    register(&memory, ("gone", "gone", 0, 60)).unwrap();
    refused(register(&memory, ("big", "k", 0, 41)), "1 of 256 regions with 60 of 100 bytes");
    fs::remove_file(object).unwrap();
    let busy = used(&memory, &part("gone", 0, 1)).unwrap();
    refused(register(&memory, ("big", "k", 0, 41)), "with 60 of 100 bytes");
    drop(busy);
    register(&memory, ("big", "k", 0, 41)).unwrap();
    assert_eq!(names(&memory), ["big"]);
    unregister(&memory, None).unwrap();
    for number in 0..64 {
        register(&memory, (&number.to_string(), "k", number, 1)).unwrap();
    }
    let memory = folder.memory(1 << 20);
    (0..256).for_each(|number| register(&memory, (&number.to_string(), "k", 0, 1)).unwrap());
    refused(register(&memory, ("more", "k", 0, 1)), "256 of 256 regions");
}

#[test]
fn what_a_request_uses_stays_registered() {
    let folder = Folder::new("used");
    let object = folder.object("k", &[0; 16]);
    let memory = folder.memory(100);
    register(&memory, ("idle", "k", 0, 8)).unwrap();
    register(&memory, ("busy", "k", 4, 8)).unwrap();
    let busy = used(&memory, &part("busy", 0, 1)).unwrap();
    for name in [Some("busy"), None] {
        let problem = unregister(&memory, name).unwrap_err();
        assert_eq!((problem.kind, problem.retry_after), (Kind::Shed, Some(RETRY)));
    }
    assert_eq!(names(&memory), ["busy", "idle"]);
    // Nor does another object take its place.
    fs::remove_file(object).unwrap();
    folder.object("k", &[2; 16]);
    let problem = register(&memory, ("busy", "k", 4, 8)).unwrap_err();
    assert_eq!((problem.kind, problem.retry_after), (Kind::Shed, Some(RETRY)));
    unregister(&memory, Some("idle")).unwrap();
    drop(busy);
    unregister(&memory, None).unwrap();
    assert!(names(&memory).is_empty());
}
