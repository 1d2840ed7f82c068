//! `pd doctor`: checks of this machine, with remedies.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use comfy_table::{presets, Table};
use pd_driver::admin::{ask, Answer, Ask};
use pd_driver::mounts::unified_hierarchy;
use pd_driver::{openers, Nodes, Refusal};
use pd_harness::container::links;
use pd_harness::engines;
use pd_harness::hugepages::Pool;
use pd_harness::machine::bridge_netfilter;
use rustix::fs::{memfd_create, MemfdFlags};
use serde::Serialize;

/// Checks what PipeDevice needs from this machine.
///
/// Exits with 1 if a check fails.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Admin socket of the driver
    #[arg(long, default_value = pd_harness::config::DEFAULT_ADMIN_SOCKET)]
    admin_socket: PathBuf,
}

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Ok,
    /// PipeDevice works without it, but less well.
    Warn,
    /// A part of PipeDevice does not work.
    Fail,
}

#[derive(Debug, Serialize)]
struct Row {
    check: &'static str,
    verdict: Verdict,
    found: String,
    remedy: String,
}

fn ok(check: &'static str, found: impl Into<String>) -> Row {
    Row { check, verdict: Verdict::Ok, found: found.into(), remedy: String::new() }
}

fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Row {
    Row { check, verdict: Verdict::Warn, found: found.into(), remedy: remedy.into() }
}

fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Row {
    Row { check, verdict: Verdict::Fail, found: found.into(), remedy: remedy.into() }
}

/// Runs the subcommand; returns the status to exit with.
pub fn main(args: &DoctorArgs) -> Result<i32> {
    pd_harness::sys::end_on_closed_output();
    let mut rows = vec![kernel(), permissions()];
    rows.extend(rights());
    rows.extend([
        cores(),
        nodes(),
        hugepages(),
        memfd(),
        namespaces(),
        cgroups(),
        iproute2(),
        bridge_filter(),
        engines(),
        ports(),
    ]);
    rows.extend(driver(&args.admin_socket));
    if args.json {
        println!("{}", serde_json::to_string_pretty(&serde_json::json!({ "checks": rows }))?);
    } else {
        print_table(&rows);
    }
    Ok(i32::from(rows.iter().any(|row| row.verdict == Verdict::Fail)))
}

fn print_table(rows: &[Row]) {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["", "CHECK", "FOUND", "WHAT TO DO"]);
    for row in rows {
        let verdict = match row.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        table.add_row([verdict, row.check, &row.found, &row.remedy]);
    }
    println!("{table}");
}

fn kernel() -> Row {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (5, 14) {
        return fail("kernel", format!("Linux {release}"), "use Linux 5.14 or later");
    }
    let missing: &[(_, &str)] = &[
        ((6, 5), "a client is known by number, user and group, not by SO_PEERPIDFD"),
        (
            (6, 16),
            "descriptors passed to the driver are closed by it, not refused by the kernel (SO_PASSRIGHTS)",
        ),
    ];
    match missing.iter().find(|(since, _)| version < *since) {
        Some(((major, minor), lack)) => {
            warn("kernel", format!("Linux {release}: {lack}"), format!("use Linux {major}.{minor} or later"))
        }
        None => ok("kernel", format!("Linux {release}")),
    }
}

fn permissions() -> Row {
    if rustix::process::getuid().is_root() {
        return ok("permissions", "root");
    }
    let found = format!("user {}", rustix::process::getuid().as_raw());
    warn("permissions", found, "pd run, pd demo and hugepages need root: use sudo")
}

/// Returns the missing rights of a driver started by the same user, in the same place, and the functions that it would lack.
fn rights() -> Vec<Row> {
    let check = "driver's rights";
    let settings = pd_driver::Settings::default();
    let lacks = [pd_driver::rights::missing(&settings), pd_driver::rights::limits(&settings)].concat();
    if lacks.is_empty() {
        return vec![ok(check, "all")];
    }
    // The missing part, and the remedy.
    let row = |sentence: String| match sentence.split_once(": ") {
        Some((found, remedy)) => warn(check, found, remedy),
        None => warn(check, sentence, "see docs/guides/container.md"),
    };
    lacks.into_iter().map(row).collect()
}

fn cores() -> Row {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => warn("cores", "1", "two or more let sender, driver and receiver overlap"),
        n => ok("cores", n.to_string()),
    }
}

fn nodes() -> Row {
    ok("memory nodes", Nodes::system().to_string())
}

fn hugepages() -> Row {
    match Pool::system().counts() {
        Err(_) => warn("hugepages", "no pool of 2 MB pages", "ordinary pages are used, which is slower"),
        Ok(counts) if counts.free == 0 => warn(
            "hugepages",
            format!("{} of 2 MB, none free", counts.total),
            "sysctl vm.nr_hugepages=512 (1 GiB); pd demo adds what it needs for itself",
        ),
        Ok(counts) => ok("hugepages", format!("{} of 2 MB, {} free", counts.total, counts.free)),
    }
}

fn memfd() -> Row {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create("pd-doctor", flags) {
        Ok(_) => ok("memfd", "with seals"),
        Err(e) => fail("memfd", e.to_string(), "regions need memfd_create; allow it in the seccomp profile"),
    }
}

fn namespaces() -> Row {
    let missing: Vec<&str> = ["net", "pid", "mnt", "uts", "ipc"]
        .into_iter()
        .filter(|kind| !Path::new("/proc/self/ns").join(kind).exists())
        .collect();
    if missing.is_empty() {
        return ok("namespaces", "net, pid, mnt, uts, ipc");
    }
    fail("namespaces", format!("missing: {}", missing.join(", ")), "use a kernel with CONFIG_NAMESPACES")
}

fn cgroups() -> Row {
    let check = "cgroup2";
    let Some(path) = unified_hierarchy() else {
        let remedy =
            "mount -t cgroup2 none /sys/fs/cgroup/unified; until then CPU per container is not counted";
        return warn(check, "not mounted", remedy);
    };
    match rustix::fs::access(&path, rustix::fs::Access::WRITE_OK) {
        Ok(()) => ok(check, path.display().to_string()),
        Err(_) => warn(
            check,
            format!("{} is not writable", path.display()),
            "CPU per container is not counted; use root",
        ),
    }
}

fn iproute2() -> Row {
    let remedy = "pd run and pd demo need it: apt-get install iproute2";
    let Some(program) = links::ip_program() else {
        return fail("iproute2", "no program 'ip'", remedy);
    };
    match Command::new(&program).args(["-j", "link", "show", "lo"]).output() {
        Ok(output) if output.status.success() && output.stdout.starts_with(b"[") => {
            ok("iproute2", program.display().to_string())
        }
        _ => fail("iproute2", format!("{} lacks -j", program.display()), remedy),
    }
}

fn bridge_filter() -> Row {
    if !bridge_netfilter() {
        return ok("bridge filter", "off");
    }
    let remedy =
        "TCP between containers is slower and may be blocked: sysctl net.bridge.bridge-nf-call-iptables=0";
    warn("bridge filter", "iptables sees bridged packets", remedy)
}

fn engines() -> Row {
    // Every name that a configuration may have, as its error says it.
    let state = |name: &str| match engines::by_name(name) {
        Ok(_) => name.to_owned(),
        Err(error) => format!("not {name} ({error})"),
    };
    let all: Vec<String> = engines::names().map(state).collect();
    match engines::names().any(|name| engines::by_name(name).is_ok()) {
        true => ok("engines", all.join(", ")),
        false => fail("engines", all.join(", "), "build pd with the cpu engine"),
    }
}

/// Returns which kinds of ports can lead out of a driver here.
fn ports() -> Row {
    let checked: Vec<_> = openers::KINDS.iter().map(|kind| (*kind, openers::check(kind))).collect();
    let there: Vec<_> = checked.iter().filter(|(_, result)| result.is_ok()).map(|(kind, _)| *kind).collect();
    let lacks: Vec<_> = checked
        .iter()
        .filter_map(|(kind, result)| Some(format!("{kind}: {}", result.as_ref().err()?)))
        .collect();
    match lacks.is_empty() {
        true => ok("ports", there.join(", ")),
        false => warn(
            "ports",
            if there.is_empty() { "none lead out".to_owned() } else { there.join(", ") },
            lacks.join("; "),
        ),
    }
}

fn driver(socket: &Path) -> Vec<Row> {
    let row = match ask(socket, &Ask::List) {
        Ok(Answer::Report(report)) => {
            let found = format!("{} clients, {} connections", report.clients.len(), report.connections.len());
            let mut rows = vec![ok("driver", found)];
            rows.extend(refused(&report.attaches_refused_by_reason));
            return rows;
        }
        Ok(_) => {
            fail("driver", "an answer of another version", "stop it and start this version's: pd driver")
        }
        Err(_) if !socket.exists() => {
            warn("driver", format!("no {}", socket.display()), "start it: pd driver")
        }
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            warn("driver", format!("{}: {e}", socket.display()), "ask as root, or as its user")
        }
        Err(e) => fail("driver", format!("{}: {e}", socket.display()), "start it: pd driver"),
    };
    vec![row]
}

/// Returns a row for each reason for which processes were not let in.
fn refused(by_reason: &BTreeMap<String, u64>) -> Vec<Row> {
    let row = |(label, count): (&String, &u64)| {
        let refusal = Refusal::from_label(label);
        let (text, remedy) = refusal.map_or((label.as_str(), "see pd ls --all"), |r| (r.text(), r.remedy()));
        warn("attaching", format!("{count} processes were not let in: {text}"), remedy)
    };
    match by_reason.is_empty() {
        true => vec![ok("attaching", "no process was refused")],
        false => by_reason.iter().map(row).collect(),
    }
}
