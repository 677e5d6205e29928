//! `baton bench`.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use baton_backend::execute::{Graphs, HostStore};
use baton_bench::chaos::{self, ChaosConfig};
use baton_bench::dataplane::{self, Matrix, Pull, Responder, SendRate, TlsCost};
use baton_bench::gpu::{self, GpuBench, GpuModel, LibraryRig, Rig as _, SimRig};
use baton_bench::oip::{self, GatewayBench};
use baton_bench::overload::{self, Overload};
use baton_bench::path::{self, Pace, PathBench, PathReport};
use baton_bench::sched::{self, Points, Shape};
use baton_bench::soak::{self, Soak};
use baton_core::Nanos;
use baton_topo::{Clock, Device, ModelSpec, TlsSpec};
use toml::Table;

use crate::CommandResult;
use crate::args::{
    BenchChaosArgs, BenchGatewayArgs, BenchGpuArgs, BenchMatrixArgs, BenchOverloadArgs,
    BenchPathArgs, BenchPathEndArgs, BenchPullArgs, BenchResponderArgs, BenchSchedArgs,
    BenchSendRateArgs, BenchSoakArgs, BenchTlsCostArgs, DemoEngine, PathMode,
};
use crate::live::Live;
use crate::output::{complain, load_cluster, say, scheduler_addr};
use crate::process::{children, fake_driver, stop_flag};
use crate::profile;

/// Which of the three.
pub(crate) fn pull(bench: &'static str, args: &BenchPullArgs) -> CommandResult {
    let pull = Pull {
        bench,
        transport: args.transport,
        senders: args.senders,
        objects: args.objects,
        bytes: args.bytes,
        stream: bench == "read-bw",
        seconds: args.seconds,
        idle: args.idle,
        link_gbps: args.link_gbps,
    };
    let report = dataplane::run(&pull, Clock::start())?;
    say(&if args.json { serde_json::to_string(&report)? } else { report.to_string() })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn send_rate(args: &BenchSendRateArgs) -> CommandResult {
    let BenchSendRateArgs { transport, depth, bytes, seconds, idle, json } = *args;
    let run = SendRate { transport, depth, bytes, seconds, idle };
    let report = dataplane::send_rate(&run, Clock::start())?;
    say(&if json { serde_json::to_string(&report)? } else { report.to_string() })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn tls_cost(args: &BenchTlsCostArgs) -> CommandResult {
    let run = TlsCost {
        tls: TlsSpec::new(args.ca.clone(), args.cert.clone(), args.key.clone()),
        objects: args.objects,
        bytes: args.bytes,
        length: Nanos::from_millis_f64(args.seconds * 1e3),
    };
    let report = dataplane::tls_cost(&run, Clock::start())?;
    say(&if args.json { serde_json::to_string(&report)? } else { report.to_string() })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn matrix(args: &BenchMatrixArgs) -> CommandResult {
    let cluster = load_cluster(&args.config)?;
    let matrix = Matrix {
        listen: cluster.scheduler.listen,
        hosts: args.hosts.unwrap_or(cluster.backends.len()),
        wait: Nanos::from_millis_f64(args.wait_seconds * 1e3),
        objects: args.objects,
        bytes: args.bytes,
        seconds: args.seconds,
        link_gbps: args.link_gbps,
    };
    let report = dataplane::matrix(&matrix, Clock::start())?;
    say(&if args.json { serde_json::to_string(&report)? } else { report.to_string() })?;
    Ok(if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn responder(args: &BenchResponderArgs) -> CommandResult {
    let cluster = load_cluster(&args.config)?;
    let responder = Responder {
        name: args.name.clone(),
        driver: scheduler_addr(&cluster, args.scheduler),
        wait: Nanos::from_millis_f64(args.wait_seconds * 1e3),
        listen: args.listen,
        fabric: cluster.fabric,
        idle: args.idle,
    };
    dataplane::respond(&responder, Clock::start())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn sched(args: &BenchSchedArgs) -> CommandResult {
    let shape = Shape {
        policy: args.policy,
        model_threads: args.model_threads,
        models: args.models,
        gpus: args.gpus,
        variants: args.variants,
        seconds: args.seconds,
        rate: args.rate,
        seed: args.seed,
    };
    let text = match args.overload {
        Some(factor) => {
            let report = sched::overload(shape, factor)?;
            if args.json { serde_json::to_string(&report)? } else { report.to_string() }
        }
        None if args.soak => {
            let report = sched::soak(shape)?;
            if args.json { serde_json::to_string(&report)? } else { report.to_string() }
        }
        None if args.sweep => sweep(shape, args)?,
        None if args.tcp => {
            let report = sched::tcp(shape)?;
            if args.json { serde_json::to_string(&report)? } else { report.to_string() }
        }
        None => {
            let report = sched::run(shape)?;
            if args.json { serde_json::to_string(&report)? } else { report.to_string() }
        }
    };
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn overload(args: &BenchOverloadArgs) -> CommandResult {
    let config = Overload {
        children: children()?,
        factor: args.factor,
        seconds: args.seconds,
        step_s: args.step,
        quota_rps: args.quota,
        one: args.one,
        seed: args.seed,
    };
    let mut live = Live::new();
    let report = overload::run(&config, Clock::start(), &*stop_flag()?, |note| live.note(&note));
    live.finish();
    let report = report?;
    say(&if args.json { serde_json::to_string(&report)? } else { report.to_string() })?;
    Ok(if report.ending.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn soak(args: &BenchSoakArgs) -> CommandResult {
    let config = Soak {
        children: children()?,
        load: args.load,
        seconds: args.seconds,
        every_s: args.every,
        seed: args.seed,
    };
    let mut live = Live::new();
    let report = soak::run(&config, Clock::start(), &*stop_flag()?, |note| live.note(&note));
    live.finish();
    let report = report?;
    let json = serde_json::to_string(&report)?;
    std::fs::create_dir_all(&args.out)?;
    std::fs::write(args.out.join("soak.svg"), report.svg()?)?;
    std::fs::write(args.out.join("soak.json"), format!("{json}\n"))?;
    say(&if args.json { json } else { report.to_string() })?;
    Ok(if report.ending.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn path(args: &BenchPathArgs) -> CommandResult {
    let bench = PathBench {
        children: children()?,
        bytes: args.bytes,
        batch: args.batch,
        paces: paces(args)?,
        seconds: args.seconds,
        slots: args.slots,
        engine: (engine_name(args.engine), [0.001, args.latency_ms]),
        idle: args.idle,
        transport: args.transport,
        seed: args.seed,
    };
    let mut live = Live::new();
    let reports = path::run(&bench, Clock::start(), &*stop_flag()?, |note| live.note(&note));
    live.finish();
    let reports = reports?;
    if let Some(file) = &args.plot {
        std::fs::write(file, path::svg(&reports)?)
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let text = match &reports[..] {
        [report] if args.json => serde_json::to_string(report)?,
        several if args.json => serde_json::to_string(several)?,
        all => all.iter().map(PathReport::to_string).collect::<Vec<_>>().join("\n"),
    };
    say(&text)?;
    let is_good = reports.iter().all(PathReport::is_good);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn engine_name(engine: DemoEngine) -> &'static str {
    match engine {
        DemoEngine::Emulated => "emulated",
        DemoEngine::Cuda => "cuda",
    }
}

fn paces(args: &BenchPathArgs) -> Result<Vec<Pace>, &'static str> {
    let closed = Pace::Closed { outstanding: args.outstanding };
    match args.mode {
        Some(PathMode::Closed) if !args.rate.is_empty() => {
            Err("a closed loop has no rate; leave out --rate or --mode closed")
        }
        _ if args.rate.is_empty() => Ok(vec![closed]),
        _ => Ok(args.rate.iter().map(|&rate| Pace::Poisson { rate }).collect()),
    }
}

/// On the machine's device, on the fake one, or in virtual time.
pub(crate) fn gpu(args: &BenchGpuArgs) -> CommandResult {
    let (bench, stop) = (GpuBench { batches: args.batches }, stop_flag()?);
    let mut live = Live::new();
    let mut note = |step: &str| live.line(step);
    let report = match args.simulated {
        true => gpu::run(&mut SimRig::default(), bench, &stop, &mut note),
        false => {
            let fake = args.fake.then(fake_driver).transpose()?;
            let mut rig = LibraryRig::open(fake.as_deref(), args.device, Clock::start())?;
            match &args.model {
                None => gpu::run(&mut rig, bench, &stop, &mut note),
                Some(file) => {
                    let model = gpu_model(file, args)?;
                    note("loading the model, and capturing a graph for each size of batch");
                    let graphs =
                        Graphs::load(&mut rig.driver()?, &model, (0, &HostStore::default()))?;
                    let model = GpuModel {
                        row_bytes: model.input_bytes,
                        answer_bytes: graphs.answer_bytes(),
                        batch_max: model.profile.batch_max(),
                        program: &|rows| graphs.program(0, rows),
                    };
                    gpu::run_model(&mut rig, &model, bench, &stop, &mut note)
                }
            }
        }
    };
    live.finish();
    let report = report?;
    match args.json {
        true => report.lines()?.iter().try_for_each(|line| say(line))?,
        false => say(&report.to_string())?,
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The model of an ONNX file, on that device.
fn gpu_model(file: &Path, args: &BenchGpuArgs) -> Result<ModelSpec, Box<dyn Error>> {
    let mut keys = Table::new();
    keys.insert("device".into(), Device::Cuda(args.device).to_string().into());
    let model = profile::of_file(file, (None, &args.keys), (None, keys))?.model;
    match model.is_captured() {
        true => Ok(model),
        false => Err("its shapes are not all fixed, or a key keeps it from CUDA graphs".into()),
    }
}

pub(crate) fn path_end(args: &BenchPathEndArgs) -> CommandResult {
    path::respond(args.bytes, |addr| say(&format!("listening {addr}")))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn gateway(args: &BenchGatewayArgs) -> CommandResult {
    let bench = GatewayBench {
        children: children()?,
        bytes: args.bytes.clone(),
        outstanding: args.outstanding,
        seconds: args.seconds,
        rounds: args.rounds,
    };
    let mut live = Live::new();
    let report = oip::measure_cost(&bench, Clock::start(), &*stop_flag()?, |note| live.note(&note));
    live.finish();
    let report = report?;
    say(&if args.json { serde_json::to_string(&report)? } else { report.to_string() })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn gateway_end() -> CommandResult {
    oip::serve_bare(|addr| say(&format!("listening {addr}")))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn chaos(args: &BenchChaosArgs) -> CommandResult {
    let config = ChaosConfig {
        children: children()?,
        processes: args.processes,
        seconds: args.seconds,
        seed: args.seed,
        faults_min: args.faults,
        recovery_bound: Nanos::from_millis_f64(args.within * 1e3),
        keep_dir: args.keep_dir,
    };
    let mut live = Live::new();
    let report = chaos::run(&config, Clock::start(), &*stop_flag()?, |note| live.note(&note));
    live.finish();
    let report = report.inspect_err(|_| complain(&format!("seed {} ended early", args.seed)))?;
    say(&if args.json { serde_json::to_string(&report)? } else { report.to_string() })?;
    if !report.is_good() {
        complain(&format!("again: {}", report.replay));
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn sweep(shape: Shape, args: &BenchSchedArgs) -> Result<String, Box<dyn Error>> {
    let report = sched::sweep(shape, Points::FULL)?;
    let json = serde_json::to_string(&report)?;
    std::fs::create_dir_all(&args.out)?;
    std::fs::write(args.out.join("sweep.svg"), report.svg(&Points::FULL)?)?;
    std::fs::write(args.out.join("sweep.json"), format!("{json}\n"))?;
    Ok(if args.json { json } else { report.to_string() })
}
