//! One host of a matrix: offers objects, and pulls others' when told to.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_core::Nanos;
use baton_topo::{Clock, FabricSpec, Idle, park_thread};

use super::super::harness::{Harness, Sender, Source, patient};
use super::super::report::{PullReport, Recorder};
use super::super::{Pull, PullError};
use super::MatrixError;
use super::line::{Line, Order, Said};
use super::report::Measured;

/// The driver measures the other pairs meanwhile.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// Between attempts to reach the driver.
const AGAIN: Nanos = Nanos::from_millis(200);

/// What a responder takes from its command line and the cluster file.
#[derive(Clone, PartialEq, Debug)]
pub struct Responder {
    /// What the driver is to call it.
    pub name: String,
    /// The driver's address: the scheduler's in the cluster file.
    pub driver: SocketAddr,
    /// How long to wait for the driver.
    pub wait: Nanos,
    /// Where to offer objects; `None`: on any address and port.
    pub listen: Option<SocketAddr>,
    /// Transport and device.
    pub fabric: FabricSpec,
    /// What the puller does without work.
    pub idle: Idle,
}

/// Serves until the driver says that it is over.
///
/// # Errors
/// See [`MatrixError`]. A pair that fails is the driver's to report.
pub fn respond(responder: &Responder, clock: Clock) -> Result<(), MatrixError> {
    let broken = |source| MatrixError::Line { with: "the driver".into(), source };
    let stream = reach(responder, clock)?;
    let mut line = Line::new(stream, PATIENCE).map_err(broken)?;
    line.say(&Said::Hello { name: responder.name.clone() }).map_err(broken)?;
    let Order::Serve { number, objects, bytes } = line.hear().map_err(broken)? else {
        return Err(broken(io::ErrorKind::InvalidData.into()));
    };
    let shape = Pull {
        bench: "matrix",
        transport: responder.fabric.transport,
        senders: 1,
        objects,
        bytes,
        stream: false,
        seconds: 0.0,
        idle: responder.idle,
        link_gbps: None,
    };
    shape.check()?;
    let here = responder.listen.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
    let verbs = patient(responder.fabric.verbs.clone());
    let stop = Arc::<AtomicBool>::default();
    let sender = Sender::start(&shape, number, here, &verbs, clock, &stop)?;
    let served = line
        .say(&Said::Serving { addr: sender.source().addr })
        .and_then(|()| obey(responder, &shape, &mut line, clock));
    stop.store(true, Ordering::Relaxed);
    sender.thread.join().map_err(|_| PullError::Panicked)?;
    served.map_err(broken)
}

fn reach(responder: &Responder, clock: Clock) -> Result<TcpStream, MatrixError> {
    let until = clock.now() + responder.wait;
    loop {
        match TcpStream::connect(responder.driver) {
            Ok(stream) => return Ok(stream),
            Err(source) if clock.now() > until => {
                return Err(MatrixError::NoDriver { addr: responder.driver, source });
            }
            Err(_) => park_thread(Some(AGAIN)),
        }
    }
}

fn obey(responder: &Responder, shape: &Pull, line: &mut Line, clock: Clock) -> io::Result<()> {
    loop {
        match line.hear()? {
            Order::End => return Ok(()),
            Order::Serve { .. } => return Err(io::ErrorKind::InvalidData.into()),
            Order::Pull { addr, number, seconds } => {
                let pull = Pull { seconds, ..*shape };
                let measured = measure(responder, &pull, Source { addr, number }, clock);
                line.say(&Said::Done(measured.map_err(|error| error.to_string())))?;
            }
        }
    }
}

fn measure(
    responder: &Responder,
    pull: &Pull,
    source: Source,
    clock: Clock,
) -> Result<Measured, PullError> {
    let (single, rdma) = run(responder, &Pull { objects: 1, ..*pull }, source, clock)?;
    let (stream, _) = run(responder, &Pull { stream: true, ..*pull }, source, clock)?;
    Ok(Measured {
        transport: if rdma { "rdma" } else { "tcp" }.to_owned(),
        rounds: single.rounds,
        latency_us: single.total_us,
        gigabytes_per_s: stream.gigabytes_per_s,
    })
}

/// One measurement over a connection of its own, and whether that was RDMA.
fn run(
    responder: &Responder,
    pull: &Pull,
    source: Source,
    clock: Clock,
) -> Result<(PullReport, bool), PullError> {
    let verbs = patient(responder.fabric.verbs.clone());
    let mut harness = Harness::towards(pull, &[source], &verbs, clock)?;
    harness.round()?;
    harness.check()?;
    let mut took = Recorder::new();
    let end = clock.now() + Nanos::from_millis_f64(pull.seconds * 1e3);
    while clock.now() < end {
        let began = clock.now();
        let count = if pull.stream { harness.stream()? } else { harness.round()? };
        took.record(clock.now() - began, count);
    }
    harness.check()?;
    Ok((PullReport::new(pull, &took, None, None), harness.is_rdma()))
}
