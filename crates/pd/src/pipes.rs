//! `pd port` and `pd pipe`: ports of the driver's agent, and the pipes of clients.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, Result};
use comfy_table::{presets, Table};
use pd_driver::admin::{add_port, ask, Answer, Ask, PipesReport, PortSpec};
use pd_driver::openers::namespace_file;
use pd_harness::config::DEFAULT_ADMIN_SOCKET;

use crate::dpdk::{self, DpdkArgs};
use crate::dump::{self, DumpArgs};
use crate::live::no_answer;

/// Makes and removes ports for pipes, and lists them.
#[derive(Debug, clap::Args)]
pub struct PortArgs {
    #[command(subcommand)]
    command: PortCommand,
    /// Admin socket of the driver
    #[arg(long, global = true, default_value = DEFAULT_ADMIN_SOCKET)]
    admin_socket: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum PortCommand {
    /// Make a port
    Add {
        /// Its name: 1 to 15 letters, digits, '-' or '_'
        name: String,
        #[command(subcommand)]
        kind: Kind,
    },
    /// Show the ports, and what went through them
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a port; its pipes end with ENODEV
    Rm {
        /// Its name; of a link without the end
        name: String,
    },
}

#[derive(Debug, clap::Subcommand)]
enum Kind {
    /// Makes numbered frames of UDP, and checks those that come back
    Gen {
        /// Sizes of frames in bytes, which take turns
        #[arg(long, value_delimiter = ',', default_value = "64")]
        sizes: Vec<usize>,
        /// Flows, which take turns
        #[arg(long, default_value_t = 1)]
        flows: usize,
        /// Frames to make; 0 for as many as are taken
        #[arg(long, default_value_t = 0)]
        frames: u64,
    },
    /// Counts what is sent to it
    Sink,
    /// Plays a capture, pcap or pcapng, once
    Pcap {
        /// The file, as the driver sees it
        file: PathBuf,
    },
    /// Two ports, NAME.0 and NAME.1: what is sent at one is received at the other
    Link,
    /// An interface: frames of flows that pipes are bound to; others stay with the kernel
    Veth {
        /// Name of the interface
        #[arg(long)]
        interface: String,
        /// Network namespace that it is in: a name of `ip netns`, or a path
        #[arg(long)]
        netns: Option<String>,
    },
    /// A TAP device, which is made and goes with the port
    Tap {
        /// Name of the interface
        #[arg(long)]
        interface: String,
        /// Network namespace to make it in: a name of `ip netns`, or a path
        #[arg(long)]
        netns: Option<String>,
    },
    /// Copies of another port's frames, or of what sockets' connections carry, for pipes of tenants that a [[bind]] with mirror = true names
    Mirror {
        /// The other port; connections:TENANT for a tenant's connections, connections: for all
        #[arg(long)]
        of: String,
    },
    /// A program with memif, such as one of DPDK, which connects to a socket
    Memif {
        /// Socket to make; root alone may connect until chmod says otherwise
        #[arg(long)]
        socket: PathBuf,
        /// Number of the interface
        #[arg(long, default_value_t = 0)]
        id: u32,
    },
    /// A device of DPDK: stays in the foreground, and passes frames on by dpdk-testpmd and memif
    Dpdk(DpdkArgs),
}

/// Lists pipes of clients, and copies their frames.
#[derive(Debug, clap::Args)]
pub struct PipeArgs {
    #[command(subcommand)]
    command: PipeCommand,
    /// Admin socket of the driver
    #[arg(long, global = true, default_value = DEFAULT_ADMIN_SOCKET)]
    admin_socket: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum PipeCommand {
    /// Show the pipes, and what went through them
    Ls {
        /// Print JSON, with ports and tenants
        #[arg(long)]
        json: bool,
    },
    /// Write the frames of a port or of a pipe as pcapng, as they pass
    Dump(DumpArgs),
}

/// Runs `pd port`; returns the status to exit with.
pub fn port(args: PortArgs) -> Result<i32> {
    pd_harness::sys::end_on_closed_output();
    let socket = &args.admin_socket;
    match args.command {
        PortCommand::Add { name, kind } => {
            let (port, netns) = match kind {
                Kind::Gen { sizes, flows, frames } => (PortSpec::Gen { sizes, flows, frames }, None),
                Kind::Sink => (PortSpec::Sink, None),
                Kind::Pcap { file } => (PortSpec::Pcap { file: std::path::absolute(file)? }, None),
                Kind::Link => (PortSpec::Link, None),
                Kind::Veth { interface, netns } => (PortSpec::Veth { interface }, netns),
                Kind::Tap { interface, netns } => (PortSpec::Tap { interface }, netns),
                Kind::Mirror { of } => (PortSpec::Mirror { of }, None),
                Kind::Memif { socket, id } => {
                    (PortSpec::Memif { socket: std::path::absolute(socket)?, id }, None)
                }
                Kind::Dpdk(args) => return dpdk_port(socket, &name, &args),
            };
            let namespace = netns.as_deref().map(namespace_file);
            let added = add_port(socket, &name, port, namespace.as_deref());
            added.map_err(|error| anyhow!(no_answer(socket, &error)))?;
        }
        PortCommand::Rm { name } => tell(socket, &Ask::PortRemove { name })?,
        PortCommand::Ls { json: true } => {
            println!("{}", serde_json::to_string_pretty(&report(socket)?.ports)?)
        }
        PortCommand::Ls { json: false } => {
            let mut table = table([
                "port", "kind", "path", "pipes", "received", "bytes", "sent", "bytes", "dropped", "lost",
                "wrong",
            ]);
            for port in report(socket)?.ports {
                table.add_row([
                    port.name,
                    port.kind,
                    port.path,
                    port.pipes.to_string(),
                    port.frames_received.to_string(),
                    port.bytes_received.to_string(),
                    port.frames_sent.to_string(),
                    port.bytes_sent.to_string(),
                    port.frames_unbound.to_string(),
                    (port.frames_lost + port.frames_unsent).to_string(),
                    port.frames_wrong.to_string(),
                ]);
            }
            println!("{table}");
        }
    }
    Ok(0)
}

fn dpdk_port(socket: &Path, name: &str, args: &DpdkArgs) -> Result<i32> {
    let is_there = || report(socket).is_ok_and(|report| report.ports.iter().any(|port| port.name == name));
    let remove = || drop(tell(socket, &Ask::PortRemove { name: name.to_owned() }));
    dpdk::run(socket, name, args, is_there, remove)
}

/// Runs `pd pipe`; returns the status to exit with.
pub fn pipe(args: PipeArgs) -> Result<i32> {
    let socket = &args.admin_socket;
    let json = match args.command {
        PipeCommand::Dump(dump) => return dump::dump(socket, dump),
        PipeCommand::Ls { json } => json,
    };
    pd_harness::sys::end_on_closed_output();
    let report = report(socket)?;
    match json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => {
            let mut table = table([
                "client",
                "pipe",
                "tenant",
                "ports",
                "direction",
                "path",
                "ring",
                "received",
                "sent",
                "dropped",
                "refused",
                "lost",
                "ended",
            ]);
            for pipe in report.pipes {
                let counts = pipe.counts;
                table.add_row([
                    pipe.client.to_string(),
                    pipe.number.to_string(),
                    pipe.tenant,
                    pipe.ports.join(","),
                    pipe.direction,
                    pipe.path,
                    pipe.ring_bytes.to_string(),
                    counts.frames_received.to_string(),
                    counts.frames_sent.to_string(),
                    counts.frames_dropped.to_string(),
                    (counts.frames_refused + counts.frames_unbound).to_string(),
                    (counts.frames_lost + counts.frames_unsent).to_string(),
                    pipe.ended.unwrap_or_default(),
                ]);
            }
            println!("{table}");
        }
    }
    Ok(0)
}

fn answer(socket: &Path, what: &Ask) -> Result<Answer> {
    ask(socket, what).map_err(|error| anyhow!(no_answer(socket, &error)))
}

fn tell(socket: &Path, what: &Ask) -> Result<()> {
    match answer(socket, what)? {
        Answer::Done => Ok(()),
        _ => bail!("the driver at {} is of another version", socket.display()),
    }
}

fn report(socket: &Path) -> Result<PipesReport> {
    match answer(socket, &Ask::Pipes)? {
        Answer::Pipes(report) => Ok(*report),
        _ => bail!("the driver at {} is of another version", socket.display()),
    }
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}
