//! How soon the slots of requests are free again whose clients have gone away.
//!
//! One GPU executes requests that take long, two of which are always under way, so that the others wait. Then some are given up at a
//! time: their HTTP connections are closed, or their gRPC streams reset. The gateway's metrics say when their slots are free.

use std::fmt;

use baton_core::Nanos;
use baton_topo::Clock;
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{self, JoinHandle};

use super::{GatewayBenchError, call, links, report};
use crate::oip::link::{Call, Link};
use crate::oip::url::Protocol;

/// The model that executes for long.
const MODEL: &str = "long";
/// Of an input.
const BYTES: u32 = 64;
/// Requests that are given up at a time.
const AT_A_TIME: usize = 8;
/// Requests that are always under way: one executes, and one is due before all that are given up.
const LASTING: usize = 2;
/// Slots that must be free.
pub(super) const SLOTS: u32 = (AT_A_TIME + 2 * LASTING) as u32;
/// The most that it may take, ms.
const GOAL_MS: f64 = 10.0;
/// For requests to have slots, or to let go of them.
const PATIENCE: Nanos = Nanos::from_millis(5_000);
const IN_USE: &str = "baton_client_slots_in_use";

/// What was measured over one protocol.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GatewayCancels {
    /// `http, binary` or `grpc`.
    pub protocol: &'static str,
    /// Requests that were given up, eight at a time.
    pub requests: u32,
    /// From the moment at which they were given up until all eight slots were free, ms: the middle one. It counts the request for the
    /// metrics that shows it.
    pub p50_ms: f64,
    /// Of ten, nine were free sooner.
    pub p90_ms: f64,
    /// The latest.
    pub max_ms: f64,
    /// The most that it is to take.
    pub goal_ms: f64,
}

/// The table of the model in the cluster file.
pub(super) fn model() -> String {
    format!(
        "[[model]]\nname = \"{MODEL}\"\nalpha_ms = 0.001\nbeta_ms = 300\nslo_ms = 60000\ninput_bytes = {BYTES}\nbatch_max = 1\n\n"
    )
}

/// Gives requests up `times` times, at a gateway whose metrics the second address has.
pub(super) async fn measure(
    protocol: Protocol,
    [gateway, metrics]: [&str; 2],
    times: u32,
    clock: Clock,
) -> Result<GatewayCancels, GatewayBenchError> {
    let call = call(protocol, MODEL, BYTES);
    let lasting = links(protocol, gateway, LASTING as u32);
    let lasting: Vec<_> = lasting.into_iter().map(|link| keep(link, call.clone())).collect();
    // They are due before what is given up: none of that executes, which would keep its slot.
    await_slots(metrics, clock, |used| used == LASTING as u64).await?;
    let given_up = links(protocol, gateway, AT_A_TIME as u32);
    let mut spans = Histogram::new(3).expect("three digits are possible");
    for _ in 0..times {
        let start = |link: &Link| once(link.clone(), call.clone());
        let requests: Vec<_> = given_up.iter().map(start).collect();
        await_slots(metrics, clock, |used| used > AT_A_TIME as u64).await?;
        let began = clock.now();
        requests.iter().for_each(JoinHandle::abort);
        await_slots(metrics, clock, |used| used <= LASTING as u64).await?;
        spans.record((clock.now() - began).0).expect("it grows");
    }
    lasting.iter().for_each(JoinHandle::abort);
    await_slots(metrics, clock, |used| used == 0).await?;
    Ok(GatewayCancels::new(protocol, &spans))
}

/// Always one request under way, until it is aborted.
fn keep(link: Link, call: Call) -> JoinHandle<()> {
    task::spawn_local(async move { while link.call(call.clone()).await.is_ok() {} })
}

fn once(link: Link, call: Call) -> JoinHandle<()> {
    task::spawn_local(async move {
        let _ = link.call(call).await;
    })
}

/// Asks for the metrics until the number of slots in use is right.
async fn await_slots(
    metrics: &str,
    clock: Clock,
    is_so: impl Fn(u64) -> bool,
) -> Result<(), GatewayBenchError> {
    let end = clock.now() + PATIENCE;
    loop {
        let used = in_use(&scrape(metrics).await?);
        match used {
            Some(used) if is_so(used) => return Ok(()),
            _ if clock.now() > end => return Err(GatewayBenchError::Slots { used }),
            _ => task::yield_now().await,
        }
    }
}

async fn scrape(metrics: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(metrics).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {metrics}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

/// Slots in use, of all models together.
fn in_use(text: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(IN_USE)?.strip_prefix(' '))?;
    value.parse::<f64>().ok().map(|slots| slots as u64)
}

impl GatewayCancels {
    /// `spans` are in ns.
    fn new(protocol: Protocol, spans: &Histogram<u64>) -> Self {
        let at = |share| Nanos(spans.value_at_quantile(share)).as_millis_f64();
        Self {
            protocol: report::name(protocol),
            requests: spans.len() as u32 * AT_A_TIME as u32,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            max_ms: at(1.0),
            goal_ms: GOAL_MS,
        }
    }
}

impl fmt::Display for GatewayCancels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, requests, p50_ms, p90_ms, max_ms, goal_ms } = self;
        write!(
            f,
            "{protocol:12} {requests} given up, slots free after {p50_ms:.2} ms (p50), {p90_ms:.2} (p90), "
        )?;
        write!(f, "{max_ms:.2} at most  goal {goal_ms:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slots_in_use_are_one_line_of_the_metrics() {
        let text = "# TYPE baton_client_slots_in_use gauge\nbaton_client_slots 9\nbaton_client_slots_in_use 7.0\n";
        assert_eq!(in_use(text), Some(7));
        assert_eq!(in_use("baton_client_slots_in_use many\n"), None);
        assert_eq!(in_use("baton_client_slots 9\n"), None);
    }

    #[test]
    fn the_report_has_milliseconds_and_counts_requests() {
        let mut spans = Histogram::new(3).unwrap();
        (1..=10u64).rev().for_each(|ms| spans.record(1_000_000 * ms).unwrap());
        let cancels = GatewayCancels::new(Protocol::Grpc, &spans);
        let ms = [cancels.p50_ms, cancels.p90_ms, cancels.max_ms].map(f64::round);
        assert_eq!(ms, [5.0, 9.0, 10.0]);
        assert_eq!((cancels.protocol, cancels.requests), ("grpc", 80));
    }
}
