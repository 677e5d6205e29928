//! Waiting and being woken.

use baton_rdma::{ConnId, Transport};
use baton_topo::Clock;
use baton_types::Nanos;

use crate::common::{Fabric, Node, open};
use crate::pair;

/// A wake-up counts even if it comes just before the wait.
pub(crate) fn waker_ends_a_wait<F: Fabric>() {
    let (mut a, _b) = pair::<F>();
    a.poll();
    let (waker, clock) = (a.transport.waker(), Clock::start());
    for early in [true, false] {
        waker.prepare_sleep();
        let remote = waker.clone();
        let thread = std::thread::spawn(move || remote.wake());
        if early {
            thread.join().unwrap();
            a.transport.wait(Some(Nanos::from_millis(60_000)));
        } else {
            a.transport.wait(Some(Nanos::from_millis(60_000)));
            thread.join().unwrap();
        }
        waker.awake();
        a.poll();
    }
    assert!(clock.now() < Nanos::from_millis(50_000), "woken, not timed out");
}

pub(crate) fn wait_keeps_time<F: Fabric>() {
    let (mut a, _b) = pair::<F>();
    a.poll();
    let clock = Clock::start();
    let mut waits = (0..2_000).map(|_| {
        let before = clock.now();
        a.transport.wait(Some(Nanos::from_micros(300)));
        clock.now() - before
    });
    // The first that is, because the machine may be busy; a millisecond timer would never make it.
    let exact = waits.find(|wait| *wait < Nanos::from_micros(900));
    assert!(exact.is_some_and(|wait| wait >= Nanos::from_micros(300)), "{exact:?}");
}

/// A ball between two threads that block in `wait` and are woken by what arrives.
pub(crate) fn two_threads<F: Fabric>() {
    const ROUNDS: u64 = 500;
    let (mut a, mut b) = pair::<F>();
    let (conn, accepted) = open(&mut a, &mut b);
    let other = std::thread::spawn(move || rally(b, accepted, ROUNDS));
    a.ping(conn, 0);
    let returned = rally(a, conn, ROUNDS);
    assert!(other.join().unwrap() && returned);
}

/// Returns every ball with one more on it; true once the last ball has been sent or received.
fn rally<T: Transport>(mut node: Node<T>, conn: ConnId, rounds: u64) -> bool {
    node.transport.flush();
    for _ in 0..10 * rounds {
        let ball = if node.poll() > 0 { node.pings().pop() } else { None };
        node.seen.clear();
        let Some(ball) = ball else {
            node.transport.wait(Some(Nanos::from_millis(1_000)));
            continue;
        };
        if ball < rounds {
            node.ping(conn, ball + 1);
            node.transport.flush();
        }
        if ball + 1 >= rounds {
            return true;
        }
    }
    false
}
