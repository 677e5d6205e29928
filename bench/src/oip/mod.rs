//! The load generator, against any server of the Open Inference Protocol v2, over HTTP or gRPC: Baton's gateway, Triton,
//! KServe, MLServer.
//!
//! One thread dispatches each task when it is due and has its latency from then on: a task that finds no connection free
//! waits, and its wait counts. Errors are results. `load` says what is offered and what it amounts to.

mod answer;
mod cost;
mod deadline;
mod describe;
mod generator;
mod link;
mod messages;
mod outcome;
mod request;
mod security;
mod statistics;
mod timer;
mod url;

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use baton_core::Nanos;
use baton_topo::{Clock, Cluster};
use bytes::Bytes;
use hyper::HeaderMap;
use prost::Message;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

pub use cost::{
    GatewayBench, GatewayBenchError, GatewayCancels, GatewayReport, GatewayRow, measure_cost,
    serve_bare,
};
pub use deadline::SendDeadline;
pub use describe::Shape;
pub use request::Encoding;
pub use security::{SecurityError, Token};
pub use url::{Protocol, Url};

use crate::load::{
    Expect, Finished, Inputs, InputsError, LoadError, Offered, Progress, ServerTimes, Supply,
    Tally, say_unchecked,
};
use describe::Described;
use generator::{Load, Target};
use link::{Call, Link};
use messages::{Metadata, Named, Statistics};
use request::Encoder;
use security::Server;

/// Requests under way on a gRPC connection; servers allow a hundred or more.
const STREAMS: usize = 100;

/// What load to offer to which server.
#[derive(Clone, Debug)]
pub struct OipConfig {
    /// The server.
    pub url: Url,
    /// PEM: the authority whose certificates the server's must be of. With TLS only, and then needed.
    pub ca: Option<PathBuf>,
    /// What it wants to be shown.
    pub token: Option<Token>,
    /// Send numbers as JSON instead of bytes. HTTP only.
    pub json_tensors: bool,
    /// What to offer.
    pub offered: Offered,
    /// For how long.
    pub seconds: f64,
    /// Same seed, same arrivals and inputs.
    pub seed: u64,
    /// How long a task may take whose arrival does not say, and whose model has no objective in a cluster file.
    pub within: Option<Nanos>,
    /// What requests say of it.
    pub send_deadline: SendDeadline,
    /// Connections; over HTTP as many requests are under way at a time, over gRPC a hundred for each.
    pub connections: usize,
    /// Inputs and answers that are known from files.
    pub expect: Expect,
    /// Extents that the server leaves open.
    pub shapes: Vec<Shape>,
    /// Time between two calls of `progress`.
    pub progress_every: Nanos,
}

/// Why there was no load.
#[derive(Debug, thiserror::Error)]
pub enum OipError {
    /// The system gives no runtime or timer.
    #[error("cannot start the load generator: {0}")]
    Start(#[from] io::Error),
    /// A rate that is no rate.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// TLS or the token.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// No metadata.
    #[error("{url}: no metadata of model {model} ({why}); {}", fix(why))]
    NoMetadata {
        /// The server.
        url: Box<Url>,
        /// The model.
        model: String,
        /// In a word.
        why: String,
    },
    /// The model cannot be put under load.
    #[error("model {model}: {what}")]
    Model {
        /// The model.
        model: String,
        /// What is wrong and what to do.
        what: String,
    },
    /// No inputs for a model.
    #[error("model {model}: {source}")]
    Inputs {
        /// The model.
        model: String,
        /// What is wrong.
        source: InputsError,
    },
}

/// Offers the load and waits for every outcome. `stop` ends the offering early. `cluster` says more of models that are in
/// its file: their objectives, and which answers are right. Also returns what the server says of its time.
///
/// # Errors
/// Nothing was offered; see [`OipError`].
pub fn run(
    cluster: Option<&Cluster>,
    config: &OipConfig,
    clock: Clock,
    stop: &AtomicBool,
    mut progress: impl FnMut(&Progress),
) -> Result<(Finished, Option<ServerTimes>), OipError> {
    config.offered.check()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let offer = offer(cluster, config, clock, stop, &mut progress);
    LocalSet::new().block_on(&runtime, offer)
}

async fn offer(
    cluster: Option<&Cluster>,
    config: &OipConfig,
    clock: Clock,
    stop: &AtomicBool,
    progress: &mut impl FnMut(&Progress),
) -> Result<(Finished, Option<ServerTimes>), OipError> {
    let server = Server::new(&config.url, config.ca.as_deref(), config.token.as_ref())?;
    let server = Rc::new(server);
    let asking = Link::new(&server);
    asking.check().await?;
    let names: Vec<String> = config.offered.models().map(str::to_owned).collect();
    let mut targets = Vec::with_capacity(names.len());
    for (index, name) in (0..).zip(&names) {
        let said = metadata(&asking, config, name).await?;
        targets.push(target(cluster, config, name, index, &said)?);
    }
    say_unchecked(targets.iter().map(|target| (target.name.as_str(), &target.inputs)));
    let before = statistics(&asking, config, &names).await;
    let start = clock.now();
    let end = start + Nanos::from_millis_f64(config.seconds * 1e3);
    for target in &mut targets {
        let slo = std::time::Duration::from_nanos(target.within.0);
        target.tally = Tally::new(&target.name, slo).with_timeline(start, config.seconds);
    }
    let supply = Supply::new(&config.offered, config.seed, start, end);
    let (protocol, encoding) = (config.url.protocol, config.encoding());
    let load = Load::new(clock, (protocol, encoding), config.send_deadline, targets, supply);
    let every = config.progress_every;
    let until = load.run(links(&server, config), (start, end), every, stop, progress).await?;
    let after = statistics(&asking, config, &names).await;
    let times = statistics::between(&before, &after);
    let targets = load.take_targets();
    Ok((finished(config, until - start, targets), times))
}

/// What to do about metadata that did not come.
fn fix(why: &str) -> &'static str {
    let is_any = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if is_any(&["http_401", "unauthenticated"]) {
        return "the server wants a token that it knows: give --token @FILE";
    }
    if is_any(&["http_403", "permission_denied"]) {
        return "the token does not allow it";
    }
    if is_any(&["connection_lost"]) {
        return "if the server speaks TLS, write https:// or grpcs:// and give --ca FILE";
    }
    if is_any(&["connect_failed"]) {
        return "nothing answers there: start the server, or correct the address";
    }
    if is_any(&["http_404", "not_found"]) {
        return "it has no such model";
    }
    "is the server there, and does it have the model?"
}

fn finished(config: &OipConfig, offered: Nanos, targets: Vec<Target>) -> Finished {
    let answered = targets.iter().filter(|target| target.tally.completed > 0);
    let mut engines: Vec<String> = answered.map(|target| target.platform.clone()).collect();
    engines.sort();
    engines.dedup();
    let carrier = match config.encoding() {
        Encoding::Json => "http, json",
        Encoding::Binary => "http, binary",
        Encoding::Grpc => "grpc",
    };
    Finished {
        seconds: offered.as_millis_f64() / 1e3,
        transport: carrier.to_owned(),
        engines,
        tallies: targets.into_iter().map(|target| target.tally).collect(),
    }
}

impl OipConfig {
    fn encoding(&self) -> Encoding {
        match (self.url.protocol, self.json_tensors) {
            (Protocol::Grpc, _) => Encoding::Grpc,
            (Protocol::Http, true) => Encoding::Json,
            (Protocol::Http, false) => Encoding::Binary,
        }
    }
}

/// One for each request that may be under way.
fn links(server: &Rc<Server>, config: &OipConfig) -> Vec<Link> {
    let connections = (0..config.connections).map(|_| Link::new(server));
    match config.url.protocol {
        Protocol::Http => connections.collect(),
        Protocol::Grpc => {
            let connections: Vec<Link> = connections.collect();
            (0..STREAMS).flat_map(|_| connections.iter().cloned()).collect()
        }
    }
}

fn target(
    cluster: Option<&Cluster>,
    config: &OipConfig,
    name: &str,
    index: u64,
    said: &Metadata,
) -> Result<Target, OipError> {
    let wrong = |what| OipError::Model { model: name.to_owned(), what };
    let described = Described::new(said, &config.shapes).map_err(wrong)?;
    let spec = cluster.and_then(|cluster| cluster.models.iter().find(|model| model.name == name));
    let objective = config.within.or_else(|| spec.map(|spec| spec.slo));
    let within = objective.or_else(|| config.offered.has_objectives().then_some(Nanos::MAX));
    let within = within.ok_or_else(|| {
        wrong(
            "by when should an answer be there? Give --deadline-ms, or --config with its slo_ms"
                .to_owned(),
        )
    })?;
    let refused = |source| OipError::Inputs { model: name.to_owned(), source };
    let seed = config.seed.wrapping_add(index);
    let bytes = described.input.bytes_max() as usize;
    let inputs = match (config.expect.of(name), spec) {
        (Some(file), _) => Inputs::of_file(file, &described.input, &described.outputs),
        (None, Some(spec)) => {
            let answer = baton_topo::signature::Row::new(described.outputs.clone());
            let answer_bytes = answer.map_or(0, |row| row.bytes_max() as usize);
            Inputs::new(&spec.engine, (bytes, answer_bytes), seed)
        }
        (None, None) if described.is_emulated() => Ok(Inputs::checksummed(bytes, seed)),
        (None, None) => Ok(Inputs::Unchecked(described.input.zeros())),
    };
    let encoding = config.encoding();
    let path = match encoding {
        Encoding::Grpc => "ModelInfer".to_owned(),
        Encoding::Json | Encoding::Binary => format!("/models/{name}/infer"),
    };
    Ok(Target {
        name: name.to_owned(),
        path,
        encoder: Encoder::new(encoding, name, &described).map_err(wrong)?,
        inputs: inputs.map_err(refused)?,
        within,
        tally: Tally::default(),
        platform: described.platform,
        row: described.input,
        outputs: described.outputs,
    })
}

async fn metadata(link: &Link, config: &OipConfig, name: &str) -> Result<Metadata, OipError> {
    let said = ask(link, config, "ModelMetadata", name, "").await.and_then(|body| {
        match config.url.protocol {
            Protocol::Grpc => Metadata::decode(body).map_err(|error| error.to_string()),
            Protocol::Http => serde_json::from_slice(&body).map_err(|error| error.to_string()),
        }
    });
    let (url, model) = (Box::new(config.url.clone()), name.to_owned());
    said.map_err(|why| OipError::NoMetadata { url, model, why })
}

/// A server need not say it.
async fn statistics(link: &Link, config: &OipConfig, names: &[String]) -> statistics::Reading {
    let mut reading = Vec::with_capacity(names.len());
    for name in names {
        let body = ask(link, config, "ModelStatistics", name, "/stats").await.ok();
        let said = body.and_then(|body| match config.url.protocol {
            Protocol::Grpc => Statistics::decode(body).ok(),
            Protocol::Http => serde_json::from_slice(&body).ok(),
        });
        reading.push(said.and_then(statistics::spans));
    }
    reading
}

/// The answer to a question about a model: gRPC's method, or what stands behind the model's path.
async fn ask(
    link: &Link,
    config: &OipConfig,
    method: &str,
    name: &str,
    path: &str,
) -> Result<Bytes, String> {
    let headers = HeaderMap::new();
    let call = match config.url.protocol {
        Protocol::Grpc => {
            let body = framed(&Named { name: name.to_owned() }.encode_to_vec());
            Call { path: method.to_owned(), is_get: false, headers, body }
        }
        Protocol::Http => {
            let path = format!("/models/{name}{path}");
            Call { path, is_get: true, headers, body: Bytes::new() }
        }
    };
    let answer = link.call(call).await.map_err(|refused| match refused {
        outcome::Refused::Shed(reason) | outcome::Refused::Failed(reason) => reason,
    })?;
    match config.url.protocol {
        Protocol::Http => Ok(answer.body),
        Protocol::Grpc if answer.body.len() < 5 => Err("an answer without a message".to_owned()),
        Protocol::Grpc => Ok(answer.body.slice(5..)),
    }
}

/// A message of gRPC's behind its prefix: not compressed, and its length.
fn framed(message: &[u8]) -> Bytes {
    let bytes = (message.len() as u32).to_be_bytes();
    [&[0][..], &bytes, message].concat().into()
}
