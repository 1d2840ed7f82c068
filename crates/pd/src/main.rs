//! `pd`, the one program of PipeDevice: the driver, containers, the demo and diagnosis.
//!
//! Each subcommand is a module with a `main` that returns the status to exit with. Hidden subcommands
//! are this program's own helpers: it starts copies of itself inside the namespaces it makes.
#![deny(unsafe_code)]

mod container;
mod demo;
mod doctor;
mod driver_cmd;
mod hugepages;
mod ls;
mod measure;
mod policy_cmd;
mod signals;
mod size;
mod sys;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Run(container::run_cmd::RunArgs),
    Ls(ls::LsArgs),
    Policy(policy_cmd::PolicyArgs),
    Demo(demo::DemoArgs),
    Doctor(doctor::DoctorArgs),
    #[command(hide = true)]
    InternalContainer(container::stage::StageArgs),
    #[command(hide = true)]
    InternalInit(container::init::InitArgs),
    #[command(hide = true)]
    InternalEndpoint(demo::endpoint::EndpointArgs),
    #[command(hide = true)]
    InternalTied(demo::tied::TiedArgs),
}

/// This program's file, to start copies of it.
fn own_exe() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        // Replaced since it was started; the kernel still has it.
        _ => PathBuf::from("/proc/self/exe"),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let failed = match cli.command {
        Command::Run(_) => 125,
        _ => 1,
    };
    let result = match cli.command {
        Command::Driver(args) => driver_cmd::main(&args),
        Command::Run(args) => container::run_cmd::main(args),
        Command::Ls(args) => ls::main(&args),
        Command::Policy(args) => policy_cmd::main(&args),
        Command::Demo(args) => demo::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::InternalContainer(args) => container::stage::main(&args),
        Command::InternalInit(args) => container::init::main(&args),
        Command::InternalEndpoint(args) => demo::endpoint::main(&args),
        Command::InternalTied(args) => demo::tied::main(&args),
    };
    match result {
        Ok(status) => ExitCode::from(status as u8),
        Err(e) => {
            eprintln!("pd: {e:#}");
            ExitCode::from(failed)
        }
    }
}
