//! What a request costs a gateway, beside the same request at a server that does nothing with it: hyper over HTTP, tonic over gRPC.
//!
//! A cluster with an emulated backend that answers at once, its gateway and the bare server are processes. Requests of one kind at a
//! time, always as many under way; bare server and gateway take turns. What counts is their CPU time, as the kernel tells it. Then
//! requests are given up, and what counts is when their slots are free.

mod bare;
mod cancel;
mod report;

use std::io;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use baton_core::Nanos;
use baton_topo::Clock;
use baton_topo::signature::TensorRef;
use hyper::HeaderMap;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{self, LocalSet};

use super::describe::Described;
use super::link::{Call, JSON_LENGTH, Link, digits};
use super::messages::{Metadata, Tensor};
use super::request::{Encoder, Encoding};
use super::security::Server;
use super::url::{Protocol, Url};
use crate::machine::StealMeter;
use crate::processes::{ChildConfig, Folder, Note, ONE_HOST, ProcessError, Processes};

pub use bare::serve_bare;
pub use cancel::GatewayCancels;
use report::{Costs, Stretch};
pub use report::{GatewayReport, GatewayRow};

const BACKEND: &str = "emulated";
/// Connections that gRPC's requests share.
const GRPC_CONNECTIONS: usize = 4;
/// Times that requests are given up over each protocol, for each round.
const CANCELS: u32 = 10;
/// How long either server is warmed up, of a stretch.
const WARM_UP: f64 = 0.25;

/// What to do.
#[derive(Clone, Debug)]
pub struct GatewayBench {
    /// The processes.
    pub children: ChildConfig,
    /// Bytes of an input: one measurement over each protocol for each.
    pub bytes: Vec<u32>,
    /// Requests under way.
    pub outstanding: u32,
    /// Length of each stretch.
    pub seconds: f64,
    /// Turns of bare server and gateway.
    pub rounds: u32,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum GatewayBenchError {
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The system.
    #[error("cannot start the requests: {0}")]
    Start(#[from] io::Error),
    /// Requests had no slots, or kept them.
    #[error(
        "requests that were started or given up changed nothing: {used:?} of the gateway's slots are in use"
    )]
    Slots {
        /// By its metrics; `None` if these do not say.
        used: Option<u64>,
    },
    /// Nothing was measured.
    #[error("{server} answered none of the {protocol} requests of {bytes} bytes ({why})")]
    Nothing {
        /// The bare server or the gateway.
        server: &'static str,
        /// HTTP or gRPC.
        protocol: &'static str,
        /// Of an input.
        bytes: u32,
        /// The first refusal.
        why: String,
    },
}

/// A server as a process.
struct Process {
    name: &'static str,
    /// Among the children.
    number: usize,
    addr: String,
}

/// Their order.
const BARE: usize = 0;
const GATEWAY: usize = 1;

/// Measures. It calls `note` with what happens meanwhile; `stop` ends it without a report.
///
/// # Errors
/// A process did not start or died, or a server answered nothing.
pub fn measure_cost(
    bench: &GatewayBench,
    clock: Clock,
    stop: &AtomicBool,
    mut note: impl FnMut(Note<'_>),
) -> Result<GatewayReport, GatewayBenchError> {
    let steal = StealMeter::start();
    let folder = Folder::create(false)?;
    let file = folder.write_cluster(&text(bench), vec![BACKEND.to_owned()])?;
    let mut processes = Processes::new(&bench.children, folder, clock, stop, &mut note);
    let scheduler = processes.start_cluster(&file)?.to_string();
    let gateway = processes.count();
    let path = file.path.display().to_string();
    let args = ["gateway", "--config", &path, "--scheduler", &scheduler, "--threads", "1"];
    let args = [&args[..], &["--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]].concat();
    let metrics = processes.start_speaker("gateway", &args, "metrics ")?;
    let addr = processes.await_lines(gateway..gateway + 1, "http ")?.remove(0);
    let bare = processes.count();
    let bare_addr = processes.start_listener("bare", &["bench", "gateway-end"])?;
    // The bare server ends with this connection.
    let ends = TcpStream::connect(&bare_addr)?;
    let servers = [
        Process { name: "the bare server", number: bare, addr: bare_addr },
        Process { name: "the gateway", number: gateway, addr },
    ];
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for protocol in [Protocol::Http, Protocol::Grpc] {
        for &bytes in &bench.bytes {
            let costs = measure(&mut processes, &runtime, bench, (protocol, bytes), &servers)?;
            let row = GatewayRow::new(protocol, bytes, &costs);
            processes.tell(Note::Step(&row.to_string()));
            rows.push(row);
        }
    }
    drop(ends);
    let mut cancels = Vec::new();
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let addrs = [servers[GATEWAY].addr.as_str(), metrics.as_str()];
        let measured = cancel::measure(protocol, addrs, bench.rounds * CANCELS, clock);
        let row = LocalSet::new().block_on(&runtime, measured)?;
        processes.tell(Note::Step(&row.to_string()));
        cancels.push(row);
    }
    processes.shut_down()?;
    Ok(GatewayReport::new(bench, rows, cancels, steal.fraction()))
}

/// Turns of one kind of request: what it cost the bare server and the gateway in each.
fn measure(
    processes: &mut Processes<'_>,
    runtime: &Runtime,
    bench: &GatewayBench,
    (protocol, bytes): (Protocol, u32),
    servers: &[Process; 2],
) -> Result<Vec<[Costs; 2]>, GatewayBenchError> {
    let call = call(protocol, &model(bytes), bytes);
    let links = servers.each_ref().map(|server| links(protocol, &server.addr, bench.outstanding));
    let turn = |at: usize, seconds: f64| {
        let Process { name: server, number, .. } = servers[at];
        let before = processes.threads(number);
        let end = processes.now() + Nanos::from_millis_f64(seconds * 1e3);
        let stretch = LocalSet::new().block_on(runtime, offer(&links[at], &call, end, processes));
        let protocol = report::name(protocol);
        match stretch.why {
            _ if processes.is_stopping() => Err(ProcessError::Interrupted.into()),
            why if stretch.answered == 0 => {
                let why = why.unwrap_or_default();
                Err(GatewayBenchError::Nothing { server, protocol, bytes, why })
            }
            _ => Ok(Costs::between(&before, &processes.threads(number), &stretch)),
        }
    };
    let warm = bench.seconds * WARM_UP;
    turn(BARE, warm)?;
    turn(GATEWAY, warm)?;
    let round = |_| Ok([turn(BARE, bench.seconds)?, turn(GATEWAY, bench.seconds)?]);
    (0..bench.rounds).map(round).collect()
}

/// Keeps a request under way on every link until then.
async fn offer(links: &[Link], call: &Call, end: Nanos, processes: &Processes<'_>) -> Stretch {
    let clock = processes.clock();
    let work = |link: Link, call: Call| async move {
        let mut stretch = Stretch::default();
        while clock.now() < end {
            match link.call(call.clone()).await {
                Ok(_) => stretch.answered += 1,
                Err(refused) => stretch.refuse(&refused),
            }
        }
        stretch
    };
    let all = links.iter().map(|link| task::spawn_local(work(link.clone(), call.clone())));
    let all: Vec<_> = all.collect();
    let mut stretch = Stretch::default();
    for one in all {
        stretch.add(one.await.expect("it does not panic"));
    }
    stretch
}

/// One for each request under way.
fn links(protocol: Protocol, addr: &str, outstanding: u32) -> Vec<Link> {
    let (authority, prefix) = (addr.to_owned(), String::new());
    let url = Url { protocol, is_secure: false, authority, prefix };
    let server = Rc::new(Server::new(&url, None, None).expect("it has neither TLS nor tokens"));
    let connections = match protocol {
        Protocol::Http => outstanding as usize,
        Protocol::Grpc => GRPC_CONNECTIONS.min(outstanding as usize),
    };
    let connections: Vec<Link> = (0..connections).map(|_| Link::new(&server)).collect();
    connections.iter().cycle().take(outstanding as usize).cloned().collect()
}

/// A request with one task, tensors as bytes.
fn call(protocol: Protocol, model: &str, bytes: u32) -> Call {
    let tensor = |name: &str, extent| Tensor {
        name: name.to_owned(),
        datatype: "UINT8".to_owned(),
        shape: vec![-1, extent],
    };
    let said = Metadata {
        platform: "baton".to_owned(),
        inputs: vec![tensor("input", i64::from(bytes))],
        outputs: vec![tensor("output", 8)],
    };
    let (encoding, path) = match protocol {
        Protocol::Http => (Encoding::Binary, format!("/models/{model}/infer")),
        Protocol::Grpc => (Encoding::Grpc, "ModelInfer".to_owned()),
    };
    let described = Described::new(&said, &[]).expect("one tensor of bytes");
    let encoder = Encoder::new(encoding, model, &described).expect("one tensor of bytes");
    let input = vec![7; bytes as usize];
    let encoded = encoder.encode(&[TensorRef { shape: Vec::new(), bytes: &input }], None);
    let mut headers = HeaderMap::new();
    if let Some(json_bytes) = encoded.json_bytes {
        headers.insert(JSON_LENGTH, digits(json_bytes as u64));
    }
    Call { path, is_get: false, headers, body: encoded.body }
}

fn model(bytes: u32) -> String {
    format!("m{bytes}")
}

/// The cluster file: a model for each length, which answers at once.
fn text(bench: &GatewayBench) -> String {
    let model = |&bytes: &u32| {
        let name = model(bytes);
        format!(
            "[[model]]\nname = \"{name}\"\nalpha_ms = 0.001\nbeta_ms = 0.02\nslo_ms = 2000\ninput_bytes = {bytes}\nbatch_max = 64\n\n"
        )
    };
    let models: String = bench.bytes.iter().map(model).collect();
    let slots = cancel::SLOTS.max(2 * bench.outstanding);
    let long = cancel::model();
    format!(
        "{HEADER}{ONE_HOST}\n[frontend]\nslots_per_model = {slots}\n\n{models}{long}[[backend]]\nname = \"{BACKEND}\"\n"
    )
}

const HEADER: &str = "\
# Written by `baton bench gateway`.
[scheduler]
idle = \"park\"
model_threads = 1

";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_a_good_cluster_file_without_warnings_at_either_end_of_the_options() {
        let children =
            ChildConfig { exe: "baton".into(), common_args: Vec::new(), variables: Vec::new() };
        for (bytes, outstanding) in [(vec![1], 1), (vec![256, 150_528, 1 << 20], 64)] {
            let children = children.clone();
            let bench = GatewayBench { children, bytes, outstanding, seconds: 1.0, rounds: 1 };
            let checked = baton_topo::check_text("cluster.toml".as_ref(), &text(&bench));
            assert_eq!(checked.warnings, []);
            let cluster = checked.cluster.unwrap();
            assert_eq!(cluster.models.len(), bench.bytes.len() + 1);
        }
    }
}
