//! Openers: an administrator's process opens descriptors for a port that leads out, and passes them to the driver.
//!
//! Opening takes rights that the driver does not keep: sockets of `AF_XDP`, programs of interfaces, devices, names of sockets. The
//! process that asks for the port has them, and opens the descriptors in the network namespace of its choice ([`open`]). The
//! driver receives descriptors. None of this code runs in the driver.
mod bpf;
mod memif;
mod tap;
mod veth;

use crate::pipes::report::PortSpec;
use rustix::fs::{open as open_file, Mode, OFlags};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Folder of the namespaces that `ip netns` has named.
const NAMED: &str = "/run/netns";

/// Returns the file of a network namespace, given by its name in `ip netns`, or by a path.
pub fn namespace_file(name: &str) -> PathBuf {
    if name.contains('/') {
        PathBuf::from(name)
    } else {
        Path::new(NAMED).join(name)
    }
}

/// Opens the descriptors of a port, in a network namespace or in that of the process.
///
/// # Errors
/// A sentence that names the missing thing.
pub fn open(port: &PortSpec, namespace: Option<&Path>) -> Result<Vec<OwnedFd>, String> {
    let opened = || match port {
        PortSpec::Veth { interface } => veth::open(interface),
        PortSpec::Tap { interface } => tap::open(interface),
        PortSpec::Memif { socket, .. } => memif::open(socket),
        _ => Ok(Vec::new()),
    };
    let Some(path) = namespace else { return opened() };
    let wrong = |why: &dyn std::fmt::Display| format!("network namespace {}: {why}", path.display());
    let file = open_file(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|why| wrong(&why))?;
    // A thread of its own: the process stays in the namespace that the driver knows.
    let inside = || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|why| wrong(&why))?;
        opened()
    };
    std::thread::scope(|scope| scope.spawn(inside).join())
        .unwrap_or_else(|_| Err(wrong(&"the thread that entered it ended")))
}

/// Kinds of ports that need descriptors of the kernel.
pub const KINDS: [&str; 3] = ["veth", "tap", "memif"];

/// Tells whether ports of a kind can be opened here.
///
/// # Errors
/// A sentence that names the missing thing.
pub fn check(kind: &str) -> Result<(), String> {
    match kind {
        "veth" => veth::check(),
        "tap" => tap::check(),
        _ => Ok(()),
    }
}
