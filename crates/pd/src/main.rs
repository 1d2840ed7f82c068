//! `pd`, the one program of PipeDevice: the driver, containers, the demo and diagnosis.
//!
//! Each subcommand is a module with a `main` that returns the status to exit with. Hidden subcommands
//! are this program's own helpers: it starts copies of itself inside the namespaces it makes.
#![forbid(unsafe_code)]

mod cdi;
mod demo;
mod doctor;
mod dpdk;
mod driver_cmd;
mod dump;
mod enter_cmd;
mod exporter;
mod foreign;
mod gen;
mod live;
mod ls;
mod output;
mod pipes;
mod policy_cmd;
mod probe_cmd;
mod program;
mod refused;
mod run_cmd;
mod services;
mod sidecars;
mod stats;
mod top;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pd_harness::{container, tied};

/// Moves bulk data between containers of one host without kernel TCP.
#[derive(Parser)]
#[command(name = "pd", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Driver(driver_cmd::DriverArgs),
    Run(run_cmd::RunArgs),
    Exec(enter_cmd::ExecArgs),
    Stop(enter_cmd::StopArgs),
    Ls(ls::LsArgs),
    Top(top::TopArgs),
    Stats(stats::StatsArgs),
    Policy(policy_cmd::PolicyArgs),
    Port(pipes::PortArgs),
    Pipe(pipes::PipeArgs),
    Gen(gen::GenArgs),
    Cdi(cdi::CdiArgs),
    Demo(demo::DemoArgs),
    Bench(pd_bench::cli::BenchArgs),
    Doctor(doctor::DoctorArgs),
    #[command(hide = true)]
    InternalContainer(container::stage::StageArgs),
    #[command(hide = true)]
    InternalInit(container::init::InitArgs),
    #[command(hide = true)]
    InternalBenchPeer(pd_bench::run::peer::PeerArgs),
    #[command(hide = true)]
    InternalBenchWeb(pd_bench::web::WebArgs),
    #[command(hide = true)]
    InternalProbe(probe_cmd::ProbeArgs),
    #[command(hide = true)]
    InternalLook(ls::LookArgs),
    #[command(hide = true)]
    InternalTied(tied::TiedArgs),
}

fn main() -> ExitCode {
    if let Some(complaint) = pd_harness::processor::complaint() {
        eprintln!("pd: {complaint}");
        return ExitCode::from(1);
    }
    output::or_failed(run)
}

/// Runs a command. Separate from `main`, which has to run on any processor.
#[inline(never)]
fn run() -> ExitCode {
    let cli = Cli::parse();
    let failed = match cli.command {
        Command::Run(_) | Command::Exec(_) => pd_harness::container::NOT_STARTED,
        _ => 1,
    };
    let result = match cli.command {
        Command::Driver(args) => driver_cmd::main(&args),
        Command::Run(args) => run_cmd::main(args),
        Command::Exec(args) => enter_cmd::exec(args),
        Command::Stop(args) => enter_cmd::stop(&args),
        Command::Ls(args) => ls::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Stats(args) => stats::main(&args),
        Command::Policy(args) => policy_cmd::main(&args),
        Command::Port(args) => pipes::port(args),
        Command::Pipe(args) => pipes::pipe(args),
        Command::Gen(args) => gen::main(&args),
        Command::Cdi(args) => cdi::main(&args),
        Command::Demo(args) => demo::main(&args),
        Command::Bench(args) => pd_bench::cli::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::InternalContainer(args) => container::stage::main(&args),
        Command::InternalInit(args) => container::init::main(&args),
        Command::InternalBenchPeer(args) => pd_bench::run::peer::main(&args),
        Command::InternalBenchWeb(args) => pd_bench::web::main(&args),
        Command::InternalProbe(args) => probe_cmd::main(&args),
        Command::InternalLook(args) => ls::look(&args),
        Command::InternalTied(args) => tied::main(&args),
    };
    match result {
        Ok(status) => ExitCode::from(status as u8),
        Err(e) => {
            eprintln!("pd: {e:#}");
            ExitCode::from(failed)
        }
    }
}
