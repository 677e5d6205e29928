//! What every transport does, run over each of them.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "behaviour/answers.rs"]
mod answers;
mod common;
#[path = "behaviour/connections.rs"]
mod connections;
#[path = "behaviour/reads.rs"]
mod reads;
#[path = "behaviour/sets.rs"]
mod sets;
#[path = "behaviour/waits.rs"]
mod waits;

use baton_rdma::TcpConfig;
use baton_rdma::wire::Role;
use common::{Fabric, Inproc, Node, SameHost, Tcp, Tls, Verbs, rdma_here};

/// Each function becomes a test per transport.
macro_rules! on_every_transport {
    ($($subject:ident::$name:ident)*) => {
        mod tcp { $(#[test] fn $name() { crate::$subject::$name::<super::Tcp>(); })* }
        mod tls { $(#[test] fn $name() { crate::$subject::$name::<super::Tls>(); })* }
        mod inproc { $(#[test] fn $name() { crate::$subject::$name::<super::Inproc>(); })* }
        mod same_host { $(#[test] fn $name() { crate::$subject::$name::<super::SameHost>(); })* }
        mod verbs {
            $(#[test] fn $name() {
                if super::rdma_here() { crate::$subject::$name::<super::Verbs>(); }
            })*
        }
    };
}

on_every_transport! {
    connections::handshake
    connections::early_messages_follow_the_handshake
    connections::messages_arrive_in_order
    connections::what_cannot_be_sent
    connections::closing_says_why
    connections::nothing_listens
    connections::too_many_connections
    connections::no_answer_to_the_hello
    connections::a_peer_that_does_not_read
    reads::more_reads_than_the_depth
    reads::large_inputs
    reads::inputs_of_their_own_lengths
    reads::memory_that_is_exchanged
    answers::answers_land
    answers::answers_that_do_not_belong
    sets::slabs_exposed_while_connected
    sets::withdrawn_slabs
    sets::slots_of_withdrawn_slabs_serve_again
    waits::waker_ends_a_wait
    waits::wait_keeps_time
    waits::two_threads
}

/// Out of shared memory nothing is on its way: no window, and no peer that is lost before its inputs are here.
macro_rules! on_every_transport_but_shared_memory {
    ($($subject:ident::$name:ident)*) => {
        mod on_tcp { $(#[test] fn $name() { crate::$subject::$name::<super::Tcp>(); })* }
        mod on_tls { $(#[test] fn $name() { crate::$subject::$name::<super::Tls>(); })* }
        mod on_inproc { $(#[test] fn $name() { crate::$subject::$name::<super::Inproc>(); })* }
        mod on_verbs {
            $(#[test] fn $name() {
                if super::rdma_here() { crate::$subject::$name::<super::Verbs>(); }
            })*
        }
    };
}

on_every_transport_but_shared_memory! {
    reads::pull_through_a_tiny_window
    reads::peer_dies_under_reads
    reads::aborted_reads
}

/// Over verbs a peer learns the slabs once, when it is linked; the device serves READs: `verbs.rs`.
macro_rules! on_every_transport_but_verbs {
    ($($subject:ident::$name:ident)*) => {
        mod over_tcp { $(#[test] fn $name() { crate::$subject::$name::<super::Tcp>(); })* }
        mod over_tls { $(#[test] fn $name() { crate::$subject::$name::<super::Tls>(); })* }
        mod over_inproc { $(#[test] fn $name() { crate::$subject::$name::<super::Inproc>(); })* }
    };
}

on_every_transport_but_verbs! {
    reads::refused_reads
    reads::credit_is_held_until_the_input_is_here
}

type NodeOf<F> = Node<<F as Fabric>::Transport>;

fn nodes<F: Fabric>(a: TcpConfig, b: TcpConfig) -> (NodeOf<F>, NodeOf<F>) {
    let fabric = F::default();
    let backend = fabric.endpoint(Role::Backend, 5, a);
    (Node::new(backend), Node::new(fabric.endpoint(Role::Frontend, 9, b)))
}

fn pair<F: Fabric>() -> (NodeOf<F>, NodeOf<F>) {
    nodes::<F>(TcpConfig::default(), TcpConfig::default())
}
