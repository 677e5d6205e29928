//! The `baton` command: arguments in, the right crate called, an exit status out.
//!
//! Results go to stdout, everything else to stderr. Exit status: 0 success, 1 failure, 2 wrong
//! usage.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod certificates;
mod config;
mod demo;
mod doctor;
mod extents;
mod gateway;
mod import;
mod live;
mod load;
mod model;
mod output;
mod process;
mod profile;
mod reload;
mod reproduce;
mod serve;
mod sim;
mod status;
mod supernet;
mod topo_show;

use std::error::Error;
use std::process::ExitCode;

use args::{BenchCommand, Command, ConfigCommand, TopoCommand};

/// What a command comes to: an exit status, or an error to be printed.
type CommandResult = Result<ExitCode, Box<dyn Error>>;

fn main() -> ExitCode {
    let args = args::parse();
    process::prepare(args.die_with_parent);
    run(args.command).unwrap_or_else(|error| {
        if !output::is_cut_short(&*error) {
            output::complain(&error.to_string());
        }
        ExitCode::FAILURE
    })
}

fn run(command: Command) -> CommandResult {
    match command {
        Command::Scheduler(args) => serve::scheduler(&args),
        Command::Backend(args) => serve::backend(&args),
        Command::Gateway(args) => gateway::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Explain(args) => load::explain(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench { command } => match command {
            BenchCommand::Sched(args) => bench::sched(&args),
            BenchCommand::Overload(args) => bench::overload(&args),
            BenchCommand::Path(args) => bench::path(&args),
            BenchCommand::Gpu(args) => bench::gpu(&args),
            BenchCommand::Gateway(args) => bench::gateway(&args),
            BenchCommand::GatewayEnd => bench::gateway_end(),
            BenchCommand::PathEnd(args) => bench::path_end(&args),
            BenchCommand::Chaos(args) => bench::chaos(&args),
            BenchCommand::Soak(args) => bench::soak(&args),
            BenchCommand::ReadLat(args) => bench::pull("read-lat", &args),
            BenchCommand::ReadBw(args) => bench::pull("read-bw", &args),
            BenchCommand::Incast(args) => bench::pull("incast", &args),
            BenchCommand::SendRate(args) => bench::send_rate(&args),
            BenchCommand::TlsCost(args) => bench::tls_cost(&args),
            BenchCommand::Matrix(args) => bench::matrix(&args),
            BenchCommand::Responder(args) => bench::responder(&args),
        },
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Sim { command } => sim::run(&command),
        Command::Supernet { command } => supernet::run(&command),
        Command::Status(args) => status::run(&args),
        Command::Model { command } => model::run(&command),
        Command::Doctor(args) => doctor::run(&args),
        Command::Topo { command: TopoCommand::Show(args) } => topo_show::run(&args),
        Command::Config { command: ConfigCommand::Check { file } } => config::check(&file),
    }
}
