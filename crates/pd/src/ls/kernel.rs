//! Connections that stay on the kernel, with reasons: of unattached processes of known network namespaces and containers, and of attached
//! ones. Known are the namespaces of `pd run`'s containers and of clients, and the control groups of containers of other engines.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;

use anyhow::Result;
use pd_abi::KernelReason;
use pd_driver::admin::{KernelReport, Report};
use pd_driver::containers::{self, Container, Engine};
use pd_harness::container::state::Record;
use pd_harness::known::Names;
use procfs::process::{all_processes, Process};
use rustix::fs::{statx, AtFlags, StatxFlags, CWD};
use rustix::io::Errno;
use serde::Serialize;

use super::apart::{Apart, Facts};
use super::sockets::{held, namespace, Ends, Sockets};
use super::{few, table};
use crate::foreign::{add_row, printable};

/// The reason shown for a connection that its client does not report.
const UNTOLD: &str = "not told: older than the library, made past it, or one of too many";

/// See the module.
#[derive(Debug, Default, Serialize)]
pub struct Kernel {
    processes: Vec<KernelProcess>,
    connections: Vec<KernelConnection>,
    /// Connections by reason, of all clients that there are or were.
    connections_by_reason: BTreeMap<String, u64>,
}

/// A process that is not attached, and holds stream sockets.
#[derive(Debug, Serialize)]
struct KernelProcess {
    pid: i32,
    container: Option<String>,
    image: Option<String>,
    pod: Option<String>,
    /// As far as a client of the container, or `pd run`, tells.
    tenant: Option<String>,
    user: Option<u32>,
    command: String,
    listening: Vec<String>,
    connections: usize,
    reason: String,
}

/// A connection of an attached process.
#[derive(Debug, Serialize)]
struct KernelConnection {
    pid: i32,
    container: Option<String>,
    local: String,
    peer: String,
    /// Label of the reason; none if the client does not report it.
    label: Option<&'static str>,
    reason: &'static str,
}

impl Kernel {
    /// Looks at all processes of the host that this one can see.
    pub fn look(
        containers: &[Record],
        driver: Option<(&Report, &KernelReport)>,
        engines: &mut Names,
    ) -> Result<Kernel> {
        let (none, nothing) = (Vec::new(), KernelReport::default());
        let clients = driver.map_or(&none, |(report, _)| &report.clients);
        let told = driver.map_or(&nothing, |(_, told)| told);
        let mut names: HashMap<u64, Option<String>> = HashMap::new();
        for client in clients {
            let space = namespace(client.pid as i32);
            names.extend(space.map(|space| (space, client.container.clone())));
        }
        names.extend(containers.iter().map(|record| (record.netns_inode, Some(record.name.clone()))));
        let reasons = Reasons::new(told);
        let mut apart = Apart::new(&told.refused)?;
        let attached: HashSet<i32> = clients.iter().map(|client| client.pid as i32).collect();
        let counts = driver.map(|(report, _)| report.kernel_connections_by_reason.clone());
        let mut kernel = Kernel { connections_by_reason: counts.unwrap_or_default(), ..Kernel::default() };
        let (mut sockets, mut known) = (Sockets::default(), HashSet::new());
        let mut those = Vec::new();
        for process in all_processes().into_iter().flatten().flatten() {
            let Some(space) = namespace(process.pid()) else { continue };
            let by_space = names.get(&space);
            let by_group = of_engine(process.pid());
            let is_too_deep =
                by_group.as_ref().is_err_and(|error| Errno::from_io_error(error) == Some(Errno::NAMETOOLONG));
            let by_group = by_group.ok().flatten().map(|container| engines.of(&container));
            let whose = match (by_space, by_group) {
                (_, Some(known)) => Whose { container: Some(known.name), image: known.image, pod: known.pod },
                (Some(container), None) => Whose { container: container.clone(), ..Whose::default() },
                // A process whose container cannot be told is listed, too.
                (None, None) if is_too_deep => Whose::default(),
                (None, None) => continue,
            };
            if known.insert(space) {
                sockets.add(&process);
            }
            if !is_own_program(process.pid()) {
                those.push((process, whose));
            }
        }
        let mut tenants: HashMap<String, String> =
            containers.iter().map(|record| (record.name.clone(), record.tenant.clone())).collect();
        tenants.extend(clients.iter().filter_map(|c| Some((c.container.clone()?, c.tenant.clone()?))));
        for (process, whose) in those {
            let ends = held(&process).into_iter().filter(|inode| !reasons.on_fabric.contains(inode));
            let ends: Vec<(u64, Ends)> =
                ends.filter_map(|inode| Some((inode, sockets.find(inode)?))).collect();
            let pid = process.pid();
            match attached.contains(&pid) {
                true => kernel.add_connections(&process, &whose.container, ends, &reasons),
                false if ends.is_empty() => {}
                false => {
                    let tenant = whose.container.as_ref().and_then(|name| tenants.get(name)).cloned();
                    let facts = apart.facts(pid, (whose.container.clone(), process.uid().ok()));
                    kernel.add_process(pid, whose, tenant, ends, facts);
                }
            }
        }
        Ok(kernel)
    }

    fn add_process(
        &mut self,
        pid: i32,
        whose: Whose,
        tenant: Option<String>,
        ends: Vec<(u64, Ends)>,
        facts: Facts,
    ) {
        let mut listening = Vec::new();
        let mut connections = 0;
        for (_, ends) in ends {
            match ends {
                Ends::Listens(at) => listening.push(at),
                Ends::Connected(..) => connections += 1,
            }
        }
        self.processes.push(KernelProcess {
            pid,
            container: whose.container,
            image: whose.image,
            pod: whose.pod,
            tenant,
            user: facts.user,
            command: facts.command,
            listening,
            connections,
            reason: facts.reason,
        });
    }

    fn add_connections(
        &mut self,
        process: &Process,
        container: &Option<String>,
        ends: Vec<(u64, Ends)>,
        reasons: &Reasons,
    ) {
        for (inode, ends) in ends {
            let Ends::Connected(local, peer) = ends else { continue };
            let reason = reasons.of(process.pid(), inode);
            self.connections.push(KernelConnection {
                pid: process.pid(),
                container: container.clone(),
                local,
                peer,
                label: reason.map(KernelReason::label),
                reason: reason.map_or(UNTOLD, KernelReason::text),
            });
        }
    }

    /// Prints it for people.
    pub fn print(&self) {
        let mut rows =
            table(["PROCESS", "CONTAINER", "TENANT", "USER", "COMMAND", "SOCKETS", "WHY ON THE KERNEL"]);
        for process in &self.processes {
            let mut held = few(process.listening.iter().map(|at| format!("listens on {at}")));
            if process.connections > 0 {
                let comma = if held.is_empty() { "" } else { ", " };
                held += &format!("{comma}{} connected", process.connections);
            }
            add_row(
                &mut rows,
                [
                    process.pid.to_string(),
                    process.container.clone().unwrap_or_default(),
                    process.tenant.clone().unwrap_or_default(),
                    process.user.map(|user| user.to_string()).unwrap_or_default(),
                    short(&process.command),
                    held,
                    process.reason.clone(),
                ],
            );
        }
        println!("\n{rows}");
        let mut rows = table(["PROCESS", "CONTAINER", "FROM", "TO", "WHY ON THE KERNEL"]);
        for connection in &self.connections {
            add_row(
                &mut rows,
                [
                    connection.pid.to_string(),
                    connection.container.clone().unwrap_or_default(),
                    connection.local.clone(),
                    connection.peer.clone(),
                    connection.reason.to_owned(),
                ],
            );
        }
        println!("\n{rows}");
        let mut rows = table(["CONNECTIONS ON THE KERNEL SO FAR", "WHY"]);
        for (label, count) in &self.connections_by_reason {
            let reason = KernelReason::ALL.into_iter().find(|reason| reason.label() == label);
            let reason = reason.map_or_else(|| label.clone(), |reason| reason.text().to_owned());
            add_row(&mut rows, [count.to_string(), reason]);
        }
        println!("\n{rows}");
    }
}

/// The container of a process.
#[derive(Debug, Default)]
struct Whose {
    container: Option<String>,
    image: Option<String>,
    pod: Option<String>,
}

/// Returns the container of another engine than `pd run` that the control groups of a process name. A process that may make groups can give
/// them names that are no text.
///
/// # Errors
/// Errors of reading `/proc`: `ENAMETOOLONG` where such a process has made the path too long.
fn of_engine(pid: i32) -> io::Result<Option<Container>> {
    let text = fs::read(format!("/proc/{pid}/cgroup"))?;
    let (_, container) = containers::read(&String::from_utf8_lossy(&text));
    Ok(container.filter(|container| container.engine != Engine::Pd))
}

/// Reports of clients, and the driver's own knowledge.
struct Reasons {
    on_fabric: HashSet<u64>,
    of_process: HashMap<(i32, u64), KernelReason>,
}

impl Reasons {
    fn new(told: &KernelReport) -> Reasons {
        let all = told.clients.iter().flat_map(|client| {
            let pid = client.pid as i32;
            let known = move |&(inode, raw): &(u32, u32)| {
                Some(((pid, u64::from(inode)), KernelReason::from_raw(raw)?))
            };
            client.connections.iter().filter_map(known)
        });
        Reasons {
            of_process: all.collect(),
            on_fabric: told.twins.iter().map(|&inode| inode.into()).collect(),
        }
    }

    /// Returns the reason that the process itself reports; no process reports for another's sockets. A process with many does not
    /// say which they are.
    fn of(&self, pid: i32, inode: u64) -> Option<KernelReason> {
        self.of_process.get(&(pid, inode)).or_else(|| self.of_process.get(&(pid, 0))).copied()
    }
}

/// Returns whether it is this program: driver, holder or first process of a container. No file system is asked: that of a program may not
/// answer.
fn is_own_program(pid: i32) -> bool {
    let file = |path: String| {
        let wanted = StatxFlags::INO | StatxFlags::TYPE;
        let file = statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
        Some((file.stx_dev_major, file.stx_dev_minor, file.stx_ino))
    };
    let own = file("/proc/self/exe".to_owned());
    own.is_some() && file(format!("/proc/{pid}/exe")) == own
}

/// Returns the beginning of a command.
fn short(command: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    let line = printable(command);
    match line.char_indices().nth(CHARACTERS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pd_driver::admin::KernelClient;

    #[test]
    fn a_client_speaks_for_itself_and_in_codes_alone() {
        let urgent = KernelReason::Urgent as u32;
        let told = KernelReport {
            clients: vec![
                KernelClient { pid: 1, connections: vec![(10, urgent), (11, 0), (12, u32::MAX)] },
                KernelClient { pid: 2, connections: vec![(13, urgent)] },
                KernelClient {
                    pid: 3,
                    connections: vec![(14, urgent), (0, KernelReason::ShortLived as u32)],
                },
            ],
            twins: vec![20],
            refused: Vec::new(),
        };
        let reasons = Reasons::new(&told);
        assert_eq!(reasons.of(1, 10), Some(KernelReason::Urgent));
        for inode in [11, 12, 13] {
            assert_eq!(reasons.of(1, inode), None);
        }
        assert!(reasons.on_fabric.contains(&20));
        let (named, any) = (reasons.of(3, 14), reasons.of(3, 15));
        assert_eq!((named, any), (Some(KernelReason::Urgent), Some(KernelReason::ShortLived)));
    }

    #[test]
    fn commands_are_cut_and_cannot_move_the_cursor() {
        assert_eq!(short("echo \x1b[2J\nä"), "echo  [2J ä");
        assert_eq!(short(&"ä".repeat(50)), format!("{}…", "ä".repeat(40)));
    }
}
