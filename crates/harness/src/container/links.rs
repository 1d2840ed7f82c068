//! Bridges and virtual Ethernet pairs, made with `ip` from iproute2.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;

use super::address::Subnet;

const REMEDY: &str = "install iproute2 (Debian: apt-get install iproute2)";

/// Returns the path of `ip`, if it is installed.
pub fn ip_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join("ip")).find(|p| p.is_file())
}

fn ip() -> Result<Command> {
    let program = ip_program().with_context(|| format!("the program 'ip' is missing; {REMEDY}"))?;
    Ok(Command::new(program))
}

/// Runs several `ip` commands, one a line, in one process; the first failure ends them.
pub fn batch(lines: &[String]) -> Result<()> {
    let mut child = ip()?
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start 'ip'")?;
    child.stdin.take().expect("piped").write_all((lines.join("\n") + "\n").as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!("'ip' failed: {} (asked: {})", message.trim().replace('\n', "; "), lines.join("; "));
    }
    Ok(())
}

#[derive(Deserialize)]
struct Link {
    ifname: String,
    #[serde(default)]
    addr_info: Vec<LinkAddress>,
}

#[derive(Deserialize)]
struct LinkAddress {
    family: String,
    local: String,
    prefixlen: u8,
}

/// Returns the IPv4 subnets of every interface of this machine.
fn subnets_in_use() -> Result<Vec<(String, Subnet)>> {
    let output = ip()?.args(["-j", "addr", "show"]).output().context("cannot start 'ip'")?;
    ensure!(output.status.success(), "'ip -j addr show' failed; {REMEDY}");
    let links: Vec<Link> = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("'ip -j addr show' printed no JSON; {REMEDY}"))?;
    Ok(links
        .into_iter()
        .flat_map(|link| {
            let name = link.ifname;
            link.addr_info
                .into_iter()
                .filter(|a| a.family == "inet")
                .filter_map(move |a| Some((name.clone(), Subnet::around(a.local.parse().ok()?, a.prefixlen))))
        })
        .collect())
}

/// Returns whether an interface of this name exists.
pub fn exists(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

/// Returns the subnet of `bridge`, which is created with `wanted` if absent, and whether it was created.
pub fn ensure_bridge(bridge: &str, wanted: Subnet) -> Result<(Subnet, bool)> {
    let in_use = subnets_in_use()?;
    if exists(bridge) {
        ensure!(
            Path::new("/sys/class/net").join(bridge).join("bridge").exists(),
            "interface {bridge} exists and is no bridge; choose another --bridge"
        );
        let subnet = in_use.iter().find(|(name, _)| name == bridge).map(|(_, subnet)| *subnet);
        let subnet = subnet.with_context(|| {
            format!("bridge {bridge} has no IPv4 address; give it one, or delete it and let pd make it")
        })?;
        return Ok((subnet, false));
    }
    if let Some((name, subnet)) = in_use.iter().find(|(_, subnet)| subnet.overlaps(wanted)) {
        bail!("subnet {wanted} overlaps {subnet} of interface {name}; choose another with --ip and --bridge");
    }
    let gateway = wanted.gateway();
    let mut lines = vec![
        format!("link add {bridge} type bridge stp_state 0 forward_delay 0"),
        format!("addr add {gateway} dev {bridge}"),
    ];
    if has_ipv6() {
        lines.push(format!("addr add {}/64 dev {bridge} nodad", wanted.address6(gateway.address)));
    }
    lines.push(format!("link set {bridge} up"));
    if let Err(e) = batch(&lines) {
        delete(bridge);
        return Err(e.context(format!("cannot create bridge {bridge}")));
    }
    Ok((wanted, true))
}

/// Makes a bridge on which the host has no address, if it is absent. Returns whether it was made.
pub fn ensure_bare_bridge(bridge: &str) -> Result<bool> {
    if exists(bridge) {
        return Ok(false);
    }
    let made = batch(&[
        format!("link add {bridge} type bridge stp_state 0 forward_delay 0"),
        format!("link set {bridge} addrgenmode none"),
        format!("link set {bridge} up"),
    ]);
    match made {
        Ok(()) => Ok(true),
        Err(e) => {
            delete(bridge);
            Err(e.context(format!("cannot create bridge {bridge}")))
        }
    }
}

/// Makes a veth pair: `host` on `bridge`, the other end `eth0` in the namespace of process `pid`.
pub fn create_pair(host: &str, bridge: &str, pid: u32) -> Result<()> {
    batch(&[
        format!("link add {host} type veth peer name eth0 netns {pid}"),
        format!("link set {host} master {bridge}"),
        format!("link set {host} up"),
    ])
}

/// Sets the largest packet of a link.
pub fn set_mtu(link: &str, mtu: u32) -> Result<()> {
    batch(&[format!("link set {link} mtu {mtu}")])
}

/// Brings up loopback and `eth0` of the caller's own namespace, with both addresses. `routes`: further networks on its bridge.
pub fn configure_inside(address: &str, address6: &str, routes: &[String]) -> Result<()> {
    let mut lines = vec!["link set lo up".to_owned(), format!("addr add {address} dev eth0")];
    if has_ipv6() {
        lines.push(format!("addr add {address6} dev eth0 nodad"));
    }
    lines.push("link set eth0 up".to_owned());
    let usable = routes.iter().filter(|route| has_ipv6() || !route.contains(':'));
    lines.extend(usable.map(|route| format!("route add {route} dev eth0")));
    batch(&lines)
}

fn has_ipv6() -> bool {
    Path::new("/proc/self/net/if_inet6").exists()
}

/// Deletes an interface; a missing one is no error.
pub fn delete(name: &str) {
    if exists(name) {
        if let Err(e) = batch(&[format!("link delete {name}")]) {
            if exists(name) {
                eprintln!("pd: warning: interface {name} could not be removed: {e:#}");
            }
        }
    }
}

/// Returns the host end's name for a container: short enough for the kernel, the same for the same name.
pub fn host_name(container: &str) -> String {
    format!("pd{:08x}", twox_hash::XxHash3_64::oneshot(container.as_bytes()) as u32)
}

/// Returns whether `name` can name a bridge.
pub fn check_bridge_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    ensure!(
        (1..=15).contains(&name.len()) && name.chars().all(good) && !name.starts_with('-'),
        "bridge name '{name}' is not usable; use 1 to 15 letters, digits, '-' or '_'"
    );
    Ok(())
}
