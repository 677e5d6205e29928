//! Models whose files are on a server.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::thread::{JoinHandle, spawn};

use baton_rdma::TcpConfig;
use baton_rdma::wire::ReadyAck;
use baton_topo::{Agent, Sha256};
use baton_types::Nanos;

use crate::catalogue::{describe, load};
use crate::party::Said;
use crate::world::{ADDED, ADDED_BYTES, World};

const CONTENT: &[u8] = b"what a model's file has in it decides nothing here";

/// Gives one client the content.
fn server() -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/m.onnx", listener.local_addr().unwrap());
    let serving = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _request = stream.read(&mut [0; 4096]).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", CONTENT.len());
        stream.write_all(&[head.as_bytes(), CONTENT].concat()).unwrap();
    });
    (url, serving)
}

fn table(url: &str) -> String {
    let (sha256, bytes, len) = (Sha256::of(CONTENT), CONTENT.len(), ADDED_BYTES / 4);
    format!(
        "[[model]]\nname = \"added\"\nfile = \"{url}\"\nsha256 = \"{sha256}\"\nfile_bytes = {bytes}\n\
         tensors = [\"in f32[batch, {len}] x\", \"out f32[batch, 2] y\"]\nslo_ms = 25\nbatch_max = 8\n"
    )
}

/// A backend with a folder of its own for model files, to which the scheduler has described this model.
fn told(name: &str, url: &str) -> (World, PathBuf) {
    let folder = std::env::temp_dir().join(format!("baton-{}-{name}", std::process::id()));
    let path = folder.clone();
    let mut world = World::with(1, TcpConfig::default(), |config| {
        config.model_folder.path = Some(path);
    });
    world.let_in();
    // It serves, so that it waits for no server that is away.
    world.control.tell(&ReadyAck {}, &[]);
    world.steps(2);
    describe(&mut world.control, ADDED, "added", ADDED_BYTES, &table(url));
    (world, folder)
}

/// Steps until this counter is above zero. The pull's thread wakes the backend, which waits for nothing else.
fn await_count(world: &mut World, counter: &str) {
    for _ in 0..10 {
        world.worker.waker().prepare_sleep();
        world.step();
        if world.counter(counter) > 0 {
            return;
        }
        world.worker.wait(Some(Nanos::from_millis(2_000)));
    }
    panic!("in vain: {counter}");
}

#[test]
fn a_model_is_loaded_once_its_file_was_pulled_which_is_counted() {
    let (url, serving) = server();
    let (mut world, folder) = told("pull-counted", &url);
    await_count(&mut world, "model_files_pulled");
    let counted = ["model_files_pulled", "model_bytes_pulled", "model_pulls_failed"];
    assert_eq!(counted.map(|name| world.counter(name)), [1, CONTENT.len() as u64, 0]);
    load(&mut world);
    assert!(
        world.control.take().iter().any(|said| matches!(said, Said::Profile { model: ADDED, .. }))
    );
    serving.join().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_pull_that_fails_is_counted_and_told() {
    // The port is free again.
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (mut world, folder) = told("pull-failed", &format!("http://{addr}/m.onnx"));
    await_count(&mut world, "model_pulls_failed");
    assert_eq!((world.counter("model_pulls_failed"), world.counter("model_files_pulled")), (1, 0));
    world.steps(3);
    let told = world.control.take();
    assert!(told.iter().any(|said| matches!(said, Said::Failed { model: ADDED, .. })), "{told:?}");
    std::fs::remove_dir_all(folder).unwrap();
}
