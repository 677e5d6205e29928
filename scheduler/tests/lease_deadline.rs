//! A scheduler with its threads and sockets, whose lease deadline ends.

use std::io::Read as _;
use std::net::TcpStream;
use std::time::Duration;

use baton_core::Nanos;
use baton_scheduler::start_within;
use baton_topo::{Clock, LeaseDeadline};

const CLUSTER: &str = r#"
[scheduler]
listen = "127.0.0.1:0"
[[model]]
name = "m"
alpha_ms = 1
beta_ms = 5
slo_ms = 50
"#;

#[test]
fn at_its_lease_deadline_a_scheduler_lets_go_of_everybody_by_itself() {
    let checked = baton_topo::check_text("c.toml".as_ref(), CLUSTER);
    let (clock, lease_deadline) = (Clock::start(), LeaseDeadline::until(Nanos::MAX));
    let scheduler = start_within(&checked.cluster.unwrap(), clock, &lease_deadline).unwrap();
    let mut member = TcpStream::connect(scheduler.addr()).unwrap();
    member.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    assert!(!scheduler.has_died());
    lease_deadline.end();
    // Before a handshake would have timed out, and without anybody stopping the threads.
    let ended = member.read(&mut [0; 64]);
    assert!(matches!(ended, Ok(0)) || ended.is_err_and(|error| !is_timeout(&error)));
    assert!(TcpStream::connect(scheduler.addr()).is_err(), "it listens still");
    // A thread that has closed its listener is about to end.
    let bound = clock.now() + Nanos::from_millis(30_000);
    while !scheduler.has_died() && clock.now() < bound {
        std::thread::yield_now();
    }
    assert!(scheduler.has_died(), "its owner can tell");
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}
