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
use common::{Fabric, Inproc, Node, SameHost, Tcp, Tls, Verbs};

/// Each function becomes a test in the module of each transport.
macro_rules! over {
    (@ $module:ident $fabric:ident { $($subject:ident::$name:ident)* }) => {
        mod $module {
            $(#[test] fn $name() {
                if <super::$fabric as super::Fabric>::is_here() {
                    crate::$subject::$name::<super::$fabric>();
                }
            })*
        }
    };
    ($names:tt $($module:ident: $fabric:ident),*) => { $(over! { @ $module $fabric $names })* };
}

over! {
    {
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
        answers::answers_that_are_long
        answers::answers_that_do_not_belong
        sets::slabs_exposed_while_connected
        sets::withdrawn_slabs
        sets::slots_of_withdrawn_slabs_serve_again
        waits::waker_ends_a_wait
        waits::wait_keeps_time
        waits::two_threads
    }
    tcp: Tcp, tls: Tls, inproc: Inproc, same_host: SameHost, verbs: Verbs
}

// Out of shared memory nothing is on its way: no window, and no peer that is lost before its inputs are here.
over! {
    {
        reads::pull_through_a_tiny_window
        reads::peer_dies_under_reads
        reads::aborted_reads
        reads::an_abort_names_its_read
    }
    on_tcp: Tcp, on_tls: Tls, on_inproc: Inproc, on_verbs: Verbs
}

// Over verbs a peer learns the slabs once, when it is linked; the device serves READs: `verbs.rs`.
over! {
    {
        reads::refused_reads
        reads::credit_is_held_until_the_input_is_here
    }
    over_tcp: Tcp, over_tls: Tls, over_inproc: Inproc
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
