//! `baton gateway`.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use baton_client::{Client, ClientConfig, ConnectError, Driver, LeaveError, Operator};
use baton_gateway::{Gateway, GatewayConfig, GatewayError, ImageStep, Limits, Repository};
use baton_metrics::MetricsServer;
use baton_topo::{Clock, Cluster, ImageSpec};

use crate::CommandResult;
use crate::args::GatewayArgs;
use crate::certificates::Certificates;
use crate::model::{CONNECT, tables_of};
use crate::output::{load_cluster, locator, say};
use crate::process::Signals;
use crate::reload::{Reload, access};
use crate::serve::exposed::of_process;

/// How often to look whether the gateway has died.
const LOOK_INTERVAL: Duration = Duration::from_millis(1_000);

/// Prints `http ADDR`, and `grpc ADDR` if that is asked for, once requests may come, and `left` after having answered those under way.
pub(crate) fn run(args: &GatewayArgs) -> CommandResult {
    let cluster = load_cluster(&args.config)?;
    let clock = Clock::start();
    let mut signals = Signals::starting()?;
    let of_client = ClientConfig::from_cluster(&cluster, locator(&cluster, args.scheduler)?);
    let threads = args.threads.map_or_else(cores, |threads| threads as usize);
    let slots_per_model = cluster.frontend.slots_per_model;
    let listen = [args.http].into_iter().chain(args.grpc).collect();
    let repository = args.model_control.then(|| repository(args, &cluster)).transpose()?;
    let certificates = Certificates::new(cluster.fabric.tls.as_ref());
    let mut reload = Reload::new(&args.config, &cluster.gateway, certificates.clone());
    let images = cluster.gateway.images.iter().cloned().map(image).collect();
    let shared_memory_bytes = cluster.gateway.shared_memory_mib.map(|mib| u64::from(mib) << 20);
    let (tls, tokens) = access(cluster.gateway);
    let config = GatewayConfig {
        listen,
        slots_per_model,
        limits: limits(args),
        threads,
        tls,
        tokens,
        images,
        repository,
        shared_memory_bytes,
    };
    // Before it joins: the scheduler would take it for lost.
    Gateway::try_addresses(&config)?;
    let (client, driver) = connect(of_client.clock(clock), threads)?;
    signals.started();
    let gateway = Gateway::start(client, driver, clock, &config)?;
    let _metrics = serve_metrics(args, &gateway, certificates)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), addrs = ?gateway.addrs(), "gateway serves");
    for (name, addr) in ["http", "grpc"].iter().zip(gateway.addrs()) {
        say(&format!("{name} {addr}"))?;
    }
    while signals.wait(LOOK_INTERVAL) {
        signals.log_if_asked(|| gateway.client_counters());
        reload.look(&gateway);
        if gateway.has_died() {
            break;
        }
    }
    drain(gateway)?;
    say("left")?;
    Ok(ExitCode::SUCCESS)
}

/// The client, and what makes its passes if that is to be the only thread that serves: others would have to wait for that thread.
fn connect(config: ClientConfig, threads: usize) -> Result<(Client, Option<Driver>), ConnectError> {
    if threads == 1 {
        let (client, driver) = Client::driven(config)?;
        return Ok((client, Some(driver)));
    }
    Ok((Client::connect(config)?, None))
}

fn limits(args: &GatewayArgs) -> Limits {
    let (bytes, defaults) = (u64::from(args.body_mib) << 20, Limits::default());
    Limits {
        body_bytes: bytes,
        held_bytes: defaults.held_bytes.max(2 * bytes),
        connections: args.connections as usize,
        ..defaults
    }
}

/// Threads unless the command line says otherwise.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get).min(64)
}

/// What clients may load: the models of the cluster file.
fn repository(
    args: &GatewayArgs,
    cluster: &Cluster,
) -> Result<Repository, Box<dyn std::error::Error>> {
    let (locator, tls) = (locator(cluster, args.scheduler)?, cluster.fabric.tls.clone());
    let connect = move || Operator::connect(&locator, tls.as_ref(), CONNECT);
    Ok(Repository { tables: tables_of(&args.config)?, connect: Arc::new(connect) })
}

fn image(spec: ImageSpec) -> ImageStep {
    let narrow = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
    ImageStep { model: spec.model, mean: narrow(spec.mean), std: narrow(spec.std) }
}

/// Says where they are.
fn serve_metrics(
    args: &GatewayArgs,
    gateway: &Gateway,
    certificates: Certificates,
) -> Result<Option<MetricsServer>, Box<dyn std::error::Error>> {
    let read = gateway.metrics();
    let read = move || read().into_iter().chain(of_process(&certificates)).collect();
    let Some(addr) = args.metrics else { return Ok(None) };
    let metrics = MetricsServer::start(addr, read)?;
    say(&format!("metrics {}", metrics.addr()))?;
    Ok(Some(metrics))
}

/// A scheduler that is gone needs no farewell.
fn drain(gateway: Gateway) -> Result<(), GatewayError> {
    match gateway.drain() {
        Err(GatewayError::Leave(LeaveError::SchedulerLost(loss))) => {
            tracing::warn!(%loss, "left without the scheduler");
            Ok(())
        }
        drained => drained,
    }
}
