//! What TLS costs: processor time, because on a busy machine nothing else can be compared. No check, a
//! measurement: `cargo test --release -p baton-rdma --test tls_cost -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;

use std::sync::Arc;

use baton_rdma::wire::Role;
use baton_rdma::{TcpConfig, Transport};
use common::{Fabric, Node, Tcp, Tls, landing, open, read, slabs, submit};
use rustix::time::{ClockId, clock_gettime};

/// Stretches of each; the quickest counts.
const STRETCHES: usize = 6;
const STRETCH_US: f64 = 3e5;

/// Processor time of this thread, µs.
fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// µs per READ of `bytes`, `depth` at a time, both ends together.
fn per_read<F: Fabric>(fabric: &F, bytes: u32, depth: u32) -> f64 {
    let mut backend = Node::new(fabric.endpoint(Role::Backend, 0, TcpConfig::default()));
    let mut frontend = Node::new(fabric.endpoint(Role::Frontend, 0, TcpConfig::default()));
    let set = slabs(9, depth, bytes);
    frontend.transport.expose(Arc::clone(&set)).unwrap();
    let buffer = landing(&mut backend, (depth * bytes) as usize);
    let (conn, _) = open(&mut backend, &mut frontend);
    let tasks: Vec<_> = (0..depth).map(|row| submit(&set, row.into())).collect();
    let (start, mut reads_done) = (cpu_us(), 0.0);
    while cpu_us() - start < STRETCH_US {
        let row = |(row, &task)| read(conn, task, &buffer, row, bytes);
        backend.transport.post_reads(&mut (0..).zip(&tasks).map(row).collect());
        backend.transport.flush();
        while backend.reads().len() < tasks.len() {
            frontend.poll();
            backend.poll();
        }
        reads_done += f64::from(depth);
        backend.seen.clear();
    }
    (cpu_us() - start) / reads_done
}

/// µs from nothing to an open connection, both ends together.
fn per_handshake<F: Fabric>(fabric: &F) -> f64 {
    let mut backend = Node::new(fabric.endpoint(Role::Backend, 0, TcpConfig::default()));
    let mut frontend = Node::new(fabric.endpoint(Role::Frontend, 0, TcpConfig::default()));
    let start = cpu_us();
    open(&mut backend, &mut frontend);
    cpu_us() - start
}

fn quickest(measure: impl Fn() -> f64) -> f64 {
    (0..STRETCHES).map(|_| measure()).fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "a measurement of some 15 s, for release builds"]
fn cost() {
    let (plain, tls) = (Tcp, Tls::default());
    for (bytes, depth) in [(150_528, 1), (150_528, 16), (4_096, 1), (4_096, 32)] {
        let plain = quickest(|| per_read(&plain, bytes, depth));
        let tls = quickest(|| per_read(&tls, bytes, depth));
        eprintln!("READ of {bytes} bytes, {depth} at a time: {plain:.1} us, with TLS {tls:.1} us");
    }
    let (plain, tls) = (quickest(|| per_handshake(&plain)), quickest(|| per_handshake(&tls)));
    eprintln!("handshake: {plain:.0} us, with TLS {tls:.0} us");
}
