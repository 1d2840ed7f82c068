//! Confinement of a container's processes. They keep the capabilities that container engines leave. Devices are the unowned
//! ones. The kernel's switches are read-only, and this program's own state is hidden.
//!
//! The file system is the host's, and root in a container owns root's files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use pd_driver::mounts::{mounts, Mount};
use rustix::fs::{chmod, Mode};
use rustix::mount::{
    mount, mount_bind, mount_bind_recursive, mount_move, mount_remount, unmount, MountFlags, UnmountFlags,
};
use rustix::thread::{
    capability_is_in_bounding_set, clear_ambient_capability_set, remove_capability_from_bounding_set,
    CapabilitySet,
};
use serde::{Deserialize, Serialize};

use super::jobs::Terminal;
use super::state::{OF_ALL, RUN_DIR};
use super::{filter, hosts};
use crate::sys;

/// Work of a container's first process before it starts the command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// The file that it sees as `/etc/hosts`.
    pub hosts: PathBuf,
    /// The driver's admin socket, which is the host's.
    pub admin_socket: PathBuf,
    /// Tells whether the container keeps the rights of this program.
    pub privileged: bool,
    /// Environment variables beside this program's.
    pub environment: Vec<(String, String)>,
    /// The command's relation to the terminal.
    pub terminal: Terminal,
}

/// Capabilities that container engines leave to root in a container, but for making device nodes.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::AUDIT_WRITE);

/// Makes a command begin with the rights of a container's processes, and with no descriptor of the caller's but the standard streams.
pub fn confine_command(command: &mut Command) -> Result<()> {
    drop_capabilities()?;
    sys::keep_standard_streams_only().context("cannot close descriptors")?;
    sys::under_filter(command, filter::program());
    Ok(())
}

/// Makes the calling thread start programs without other capabilities from now on, of any owner. The thread's own stay.
fn drop_capabilities() -> Result<()> {
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        // The first number that the kernel does not know ends them.
        let Ok(has) = capability_is_in_bounding_set(one) else { break };
        if has && !KEPT.contains(one) {
            remove_capability_from_bounding_set(one).context("cannot give up capabilities")?;
        }
    }
    clear_ambient_capability_set().context("cannot give up capabilities")
}

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Folders and files of the kernel's that tell of the host or change it.
const HIDDEN: [&str; 16] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/bpf",
    "/sys/kernel/debug",
    "/sys/kernel/tracing",
];

/// File systems that show the kernel, its processes or its devices, and let root change them.
const KERNELS: [&str; 14] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "proc",
    "pstore",
    "securityfs",
    "sysfs",
    "tracefs",
];
/// Folders whose mounts are confined one by one, or are the container's own.
const USUAL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Changes the calling process's mount namespace, which is its own.
pub fn confine(inside: &Inside) -> Result<()> {
    if !inside.hosts.as_os_str().is_empty() && Path::new("/etc/hosts").exists() {
        read_only_file(&inside.hosts, Path::new("/etc/hosts")).context("cannot set /etc/hosts")?;
        ask_hosts_first().context("cannot set /etc/nsswitch.conf")?;
    }
    if inside.privileged {
        return Ok(());
    }
    devices().context("cannot make /dev")?;
    for path in ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"] {
        read_only(Path::new(path)).with_context(|| format!("cannot protect {path}"))?;
    }
    for Mount { place, kind, .. } in mounts().context("cannot read the mounts")? {
        if place.starts_with("/sys") {
            mount_remount(&place, MountFlags::BIND | MountFlags::RDONLY | PLAIN, "")
                .with_context(|| format!("cannot protect {}", place.display()))?;
        } else if KERNELS.contains(&&*kind) && !USUAL.iter().any(|usual| place.starts_with(usual)) {
            // That of a chroot, a build or another program, with the host's processes and switches.
            hide(&place).with_context(|| format!("cannot hide {}", place.display()))?;
        }
    }
    let hidden = HIDDEN.iter().map(PathBuf::from);
    let own = OF_ALL.into_iter().chain(["lock"]).map(|name| Path::new(RUN_DIR).join(name));
    for path in hidden.chain(own).chain([inside.admin_socket.clone()]) {
        hide(&path).with_context(|| format!("cannot hide {}", path.display()))?;
    }
    Ok(())
}

/// Returns the calling process's working directory to the folder of that path, as it is by now: it may be one that is covered, or a `/proc` of
/// the host's.
pub fn return_to(folder: std::io::Result<PathBuf>) -> Result<()> {
    match folder.and_then(std::env::set_current_dir) {
        Ok(()) => Ok(()),
        Err(_) => std::env::set_current_dir("/").context("cannot leave the folder of the caller"),
    }
}

/// Covers `path` by an empty folder or file, if it exists.
fn hide(path: &Path) -> rustix::io::Result<()> {
    match fs::metadata(path) {
        Ok(what) if what.is_dir() => {
            mount("tmpfs", path, "tmpfs", PLAIN | MountFlags::RDONLY, c"size=0,mode=555")
        }
        Ok(_) => mount_bind("/dev/null", path),
        Err(_) => Ok(()),
    }
}

fn read_only(path: &Path) -> rustix::io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    mount_bind_recursive(path, path)?;
    mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | PLAIN, "")
}

fn read_only_file(from: &Path, at: &Path) -> rustix::io::Result<()> {
    mount_bind(from, at)?;
    mount_remount(at, MountFlags::BIND | MountFlags::RDONLY | PLAIN, "")
}

/// Makes a small file system of the container's own, to be moved or unmounted.
fn fresh_folder() -> Result<PathBuf> {
    let fresh = Path::new(RUN_DIR).join("dev");
    fs::create_dir_all(&fresh)?;
    mount("tmpfs", &fresh, "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, c"size=64k,mode=755")?;
    Ok(fresh)
}

/// Names of hosts are looked for in `/etc/hosts` before anywhere else.
fn ask_hosts_first() -> Result<()> {
    let switch = Path::new("/etc/nsswitch.conf");
    let Ok(text) = fs::read_to_string(switch) else { return Ok(()) };
    let Some(text) = hosts::files_first(&text) else { return Ok(()) };
    let fresh = fresh_folder()?;
    let file = fresh.join("nsswitch.conf");
    fs::write(&file, text)?;
    read_only_file(&file, switch)?;
    // The file stays where it was mounted.
    unmount(&fresh, UnmountFlags::DETACH)?;
    Ok(())
}

/// Makes a `/dev` with the unowned devices, and terminals and shared memory of its own.
fn devices() -> Result<()> {
    let fresh = fresh_folder()?;
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        let (from, to) = (Path::new("/dev").join(name), fresh.join(name));
        if from.exists() {
            fs::File::create(&to)?;
            mount_bind(&from, &to)?;
        }
    }
    for name in ["pts", "shm"] {
        fs::create_dir(fresh.join(name))?;
    }
    let terminals = c"newinstance,ptmxmode=0666,mode=0620";
    mount("devpts", fresh.join("pts"), "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, terminals)?;
    mount("tmpfs", fresh.join("shm"), "tmpfs", PLAIN, c"mode=1777")?;
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, fresh.join(name))?;
    }
    chmod(fresh.join("shm"), Mode::from_raw_mode(0o1777))?;
    mount_move(&fresh, "/dev")?;
    Ok(())
}
