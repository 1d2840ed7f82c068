//! `pd ls`: the running containers of a driver, and its clients: sockets, connections, rings. With `--all`
//! also connections that stay on the kernel, with reasons.

mod apart;
mod attaching;
mod kernel;
mod sockets;

use std::path::PathBuf;

use anyhow::Result;
use comfy_table::{presets, Table};
use pd_driver::admin::{ask, Answer, Ask, KernelReport, Report};
use pd_driver::Bytes;
use pd_harness::container::state::{self, Record};
use pd_harness::known::Names;
use pd_harness::sys::unshare;
use rustix::mount::{mount, mount_change, MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

use crate::foreign::{add_row, json};
use crate::live::{fill_in, no_answer};
use crate::{refused, services, sidecars};
pub use apart::{main as look, LookArgs};
use kernel::Kernel;

/// Lists a driver's containers, clients, sockets and connections.
///
/// Exits with 1 if no driver answers; containers of `pd run --no-driver` are listed all the same.
#[derive(Debug, clap::Args)]
pub struct LsArgs {
    /// Also list processes and connections that are on the kernel, each with its reason; needs root
    #[arg(long)]
    all: bool,
    /// List the policy's services instead, with the state and the counts of each backend; and the proxies that its rules lead through
    #[arg(long, conflicts_with = "all")]
    services: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Admin socket of the driver
    #[arg(long, default_value = pd_harness::config::DEFAULT_ADMIN_SOCKET)]
    admin_socket: PathBuf,
}

/// Runs the subcommand; returns the status to exit with.
pub fn main(args: &LsArgs) -> Result<i32> {
    pd_harness::sys::end_on_closed_output();
    let runs = |record: &Record| record.owner.is_alive() && record.is_of(&args.admin_socket);
    let containers: Vec<Record> = state::records()?.into_iter().filter(runs).collect();
    let (mut names, mut driver) = (Names::default(), ask(&args.admin_socket, &Ask::List));
    if let Ok(Answer::Report(report)) = &mut driver {
        fill_in(report, &mut names);
    }
    let report = match &driver {
        Ok(Answer::Report(report)) => Some(&**report),
        _ => None,
    };
    if args.services {
        return list_services(args, &driver, report);
    }
    let kernel = args.all.then(|| look_at_kernel(args, &containers, report, &mut names)).transpose()?;
    if args.json {
        let mut all = serde_json::json!({ "containers": containers, "driver": report });
        if let Some(kernel) = &kernel {
            all["kernel"] = serde_json::to_value(kernel)?;
        }
        println!("{}", json(&all)?);
        return Ok(i32::from(report.is_none()));
    }
    print_containers(containers);
    match (report, driver.as_ref().err()) {
        (Some(report), _) => print_driver(report),
        (None, Some(error)) => {
            eprintln!("pd: {}", no_answer(&args.admin_socket, error));
        }
        (None, None) => eprintln!("pd: the driver at {} is of another version", args.admin_socket.display()),
    }
    if let Some(kernel) = &kernel {
        kernel.print();
    }
    Ok(i32::from(report.is_none()))
}

fn list_services(args: &LsArgs, driver: &std::io::Result<Answer>, report: Option<&Report>) -> Result<i32> {
    match (report, driver) {
        (Some(report), _) if args.json => println!("{}", json(&report.services)?),
        (Some(report), _) => {
            println!("{}", services::table(&report.services));
            if !report.sidecars.is_empty() {
                println!("\n{}", sidecars::table(&report.sidecars));
            }
        }
        (None, Err(error)) => eprintln!("pd: {}", no_answer(&args.admin_socket, error)),
        (None, Ok(_)) => eprintln!("pd: the driver at {} is of another version", args.admin_socket.display()),
    }
    Ok(i32::from(report.is_none()))
}

fn look_at_kernel(
    args: &LsArgs,
    containers: &[Record],
    report: Option<&Report>,
    names: &mut Names,
) -> Result<Kernel> {
    // Others look at the processes by the mount that there is, with their locks.
    let _ = look_by_own_mount();
    let told = match ask(&args.admin_socket, &Ask::Kernel) {
        Ok(Answer::Kernel(told)) => *told,
        _ => KernelReport::default(),
    };
    Kernel::look(containers, report.map(|report| (report, &told)), names)
}

/// Puts a mount of `/proc` that no other process has over the present one, for this process alone. A process that lists a folder of a mount
/// into memory that does not come keeps all others of that mount from listing it.
fn look_by_own_mount() -> Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM)?;
    Ok(mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?)
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}

/// Returns the first of some words, and the number of the others. A client chooses how many there are.
fn few(words: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 8;
    let others = words.len().saturating_sub(SHOWN);
    let shown = words.take(SHOWN).collect::<Vec<_>>().join(", ");
    match others {
        0 => shown,
        others => format!("{shown} and {others} more"),
    }
}

fn print_containers(containers: Vec<Record>) {
    let mut rows = table(["CONTAINER", "TENANT", "NETWORK", "BRIDGE", "ADDRESS", "IPV6", "PID", "COMMAND"]);
    for c in containers {
        let pid = c.init.pid.to_string();
        let network = c.network.unwrap_or_default();
        let command = c.command.join(" ");
        add_row(&mut rows, [c.name, c.tenant, network, c.bridge, c.address, c.address6, pid, command]);
    }
    println!("{rows}");
}

fn print_driver(report: &Report) {
    println!(
        "\nmemory {} of {}, {} rings waiting for some",
        Bytes(report.memory_used_bytes),
        Bytes(report.memory_budget_bytes),
        report.rings_waiting
    );
    for line in refused::lines(&report.attaches_refused_by_reason) {
        println!("{line}");
    }
    if let Some(why) = &report.policy_on_kernel.why_not {
        println!("the policy does not bind connections on the kernel: {why}");
    }
    let mut clients = table([
        "CLIENT",
        "PID",
        "CONTAINER",
        "IMAGE",
        "TENANT",
        "SOCKETS",
        "REGIONS",
        "MEMORY",
        "RINGS",
        "LISTENING",
    ]);
    for c in &report.clients {
        let listening = c.listening.iter().map(|(at, waiting)| format!("{at} ({waiting} waiting)"));
        add_row(
            &mut clients,
            [
                c.client.to_string(),
                c.pid.to_string(),
                c.container.clone().unwrap_or_default(),
                c.image.clone().unwrap_or_default(),
                c.tenant.clone().unwrap_or_default(),
                c.sockets.to_string(),
                c.regions.to_string(),
                Bytes(c.region_bytes).to_string(),
                Bytes(c.ring_bytes).to_string(),
                few(listening),
            ],
        );
    }
    println!("\n{clients}");
    let mut connections = table(["CONNECTION", "FROM", "TO", "PATH", "BYTES", "BACK", "MESSAGES", "BACK"]);
    for c in &report.connections {
        let side = |side: &Option<(u16, std::net::SocketAddr)>| match side {
            Some((client, at)) => format!("{at} (client {client})"),
            None => "gone".to_owned(),
        };
        let numbers = [c.bytes[0], c.bytes[1], c.messages[0], c.messages[1]].map(|n| n.to_string());
        let [there, back, messages, messages_back] = numbers;
        add_row(
            &mut connections,
            [
                c.connection.to_string(),
                side(&c.from),
                match c.asked {
                    Some(asked) => format!("{}, asked for {asked}", side(&c.to)),
                    None => side(&c.to),
                },
                c.path.to_string(),
                there,
                back,
                messages,
                messages_back,
            ],
        );
    }
    println!("\n{connections}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_few_of_many_words() {
        let words = |count: usize| few((0..count).map(|word| word.to_string()));
        assert_eq!((words(0), words(3)), (String::new(), "0, 1, 2".to_owned()));
        assert_eq!(words(65_536), "0, 1, 2, 3, 4, 5, 6, 7 and 65528 more");
    }
}
