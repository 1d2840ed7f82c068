//! Settings of kernel TCP while it is measured. A machine's own settings are no baseline: its kernel may have been built with
//! another congestion control than Linux's. Measurements therefore report the settings of both ends, with their name.
//!
//! Everything but [`Tuning::zero_copy`] is set in a container's own network namespace and on its own link. Both end with the
//! container, so there is nothing to restore, and nothing else on the machine changes.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use rustix::fs::{flock, FlockOperation};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use serde::{Deserialize, Serialize};

use crate::container::netlink;

/// Linux's default congestion control, as its `Kconfig` has it.
pub const LINUX_CONGESTION_CONTROL: &str = "cubic";
/// The other congestion controls that kernels have built in, or load when they are asked for.
const CONGESTION_CONTROLS: [&str; 3] = ["reno", "dctcp", "bbr"];
/// The largest packet of a virtual Ethernet link, and that of networks with jumbo frames.
const MTUS: [u32; 2] = [65_535, 9_000];
/// BIG TCP: a piece of TCP that goes through the stack at once, otherwise 64 KB. The last is the most that the kernel allows.
const GSO_BYTES: [u32; 4] = [131_072, 185_000, 262_144, 524_280];
/// Most that a socket's buffers grow to: about the size of caches, and more than the kernel's own limits.
const BUFFER_BYTES: [u64; 4] = [256 << 10, 1 << 20, 4 << 20, 64 << 20];

/// The caller's network namespace.
pub const OWN_NETWORK: &str = "/proc/thread-self/ns/net";
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// The congestion controls that namespaces of containers may have, in the machine's own namespace.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// The link of a container.
const LINK: &str = "eth0";

/// Settings of a container's network namespace and link. `None` leaves the machine's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// `net.ipv4.tcp_congestion_control`.
    pub congestion_control: Option<String>,
    /// Largest packet of the link, both ends.
    pub mtu: Option<u32>,
    /// Largest piece of TCP that goes through the link at once, both ends.
    pub gso_bytes_max: Option<u32>,
    /// The last figure of `net.ipv4.tcp_rmem` and `net.ipv4.tcp_wmem`.
    pub buffer_bytes_max: Option<u64>,
}

impl Network {
    /// Sets the caller's own namespace and the link in it. `outside` is the machine's namespace.
    pub fn apply_inside(&self, outside: &File) -> Result<()> {
        if let Some(name) = &self.congestion_control {
            let wanted =
                || format!("cannot have the congestion control {name}; the kernel has: {}", available());
            match fs::write(CONGESTION_CONTROL, name) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => set_as_allowed(name, outside),
                result => result.map_err(Into::into),
            }
            .with_context(wanted)?;
        }
        if let Some(most) = self.buffer_bytes_max {
            for name in ["tcp_rmem", "tcp_wmem"] {
                let now = setting(name);
                let mut sizes: Vec<u64> = now.split(' ').filter_map(|word| word.parse().ok()).collect();
                sizes.iter_mut().for_each(|size| *size = most.min(*size));
                if let Some(last) = sizes.last_mut() {
                    *last = most;
                }
                let text = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
                let path = format!("/proc/sys/net/ipv4/{name}");
                fs::write(&path, &text).with_context(|| format!("cannot write {text} to {path}"))?;
            }
        }
        self.apply_to_link(LINK)
    }

    /// Sets one end of the link.
    pub fn apply_to_link(&self, link: &str) -> Result<()> {
        if let Some(mtu) = self.mtu {
            crate::container::links::set_mtu(link, mtu)?;
        }
        self.gso_bytes_max.map_or(Ok(()), |bytes| netlink::set_gso_bytes(link, bytes))
    }
}

/// Settings of kernel TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Both ends' network.
    pub network: Network,
    /// Tells whether programs that can send without a copy: `MSG_ZEROCOPY`, `sendfile`.
    pub zero_copy: bool,
}

impl Tuning {
    /// Returns Linux's settings without any tuning.
    pub fn linux() -> Tuning {
        let congestion_control = Some(LINUX_CONGESTION_CONTROL.to_owned());
        Tuning { network: Network { congestion_control, ..Network::default() }, zero_copy: false }
    }

    /// Returns the best of [`Tuning::candidates`] that `pd bench tune` has found. See `docs/results/baseline.md` for figures.
    pub fn tuned() -> Tuning {
        Tuning::linux().with_mtu(MTUS[0]).with_gso_bytes(GSO_BYTES[3])
    }

    /// Sets another congestion control.
    pub fn with_congestion_control(mut self, name: &str) -> Tuning {
        self.network.congestion_control = Some(name.to_owned());
        self
    }

    /// Sets another largest packet.
    pub fn with_mtu(mut self, mtu: u32) -> Tuning {
        self.network.mtu = Some(mtu);
        self
    }

    /// Sets other largest pieces.
    pub fn with_gso_bytes(mut self, bytes: u32) -> Tuning {
        self.network.gso_bytes_max = Some(bytes);
        self
    }

    /// Sets another size to which buffers grow.
    pub fn with_buffer_bytes(mut self, bytes: u64) -> Tuning {
        self.network.buffer_bytes_max = Some(bytes);
        self
    }

    /// Sets sends without a copy.
    pub fn with_zero_copy(mut self) -> Tuning {
        self.zero_copy = true;
        self
    }

    /// Returns the candidates that documentation advises: Linux's default first, then one change at a time, then combinations.
    pub fn candidates() -> Vec<Tuning> {
        let linux = Tuning::linux;
        let large = || linux().with_mtu(MTUS[0]).with_gso_bytes(GSO_BYTES[3]);
        let mut all = vec![linux()];
        all.extend(CONGESTION_CONTROLS.map(|name| linux().with_congestion_control(name)));
        all.extend(MTUS.map(|mtu| linux().with_mtu(mtu)));
        all.extend(GSO_BYTES.map(|bytes| linux().with_gso_bytes(bytes)));
        all.extend(BUFFER_BYTES.map(|bytes| linux().with_buffer_bytes(bytes)));
        all.push(linux().with_zero_copy());
        all.extend(GSO_BYTES.map(|bytes| linux().with_mtu(MTUS[0]).with_gso_bytes(bytes)));
        all.extend(CONGESTION_CONTROLS.map(|name| large().with_congestion_control(name)));
        all.extend(BUFFER_BYTES.map(|bytes| large().with_buffer_bytes(bytes)));
        all.push(linux().with_gso_bytes(GSO_BYTES[3]).with_buffer_bytes(BUFFER_BYTES[2]));
        all.push(large().with_zero_copy());
        all
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = &self.network;
        f.write_str(network.congestion_control.as_deref().unwrap_or("the machine's congestion control"))?;
        if let Some(mtu) = network.mtu {
            write!(f, ", MTU {mtu}")?;
        }
        if let Some(bytes) = network.gso_bytes_max {
            write!(f, ", BIG TCP {bytes}")?;
        }
        if let Some(bytes) = network.buffer_bytes_max {
            write!(f, ", buffers to {} KB", bytes >> 10)?;
        }
        f.write_str(if self.zero_copy { ", zero copy" } else { "" })
    }
}

/// Gives the caller's namespace a congestion control that the machine has and does not allow namespaces to have. It is
/// allowed for that moment only: a namespace keeps its own.
fn set_as_allowed(name: &str, outside: &File) -> Result<()> {
    let inside = File::open(OWN_NETWORK)?;
    let enter = |namespace: &File| -> io::Result<()> {
        Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
    };
    // The lock admits one process at a time. Closing the last descriptor of this opening releases it.
    flock(outside, FlockOperation::LockExclusive)?;
    enter(outside)?;
    let allowed = fs::read_to_string(ALLOWED);
    let set = allowed.and_then(|allowed| {
        fs::write(ALLOWED, format!("{} {name}", allowed.trim()))?;
        let set = enter(&inside).and_then(|()| fs::write(CONGESTION_CONTROL, name));
        enter(outside)?;
        fs::write(ALLOWED, allowed)?;
        set
    });
    enter(&inside)?;
    flock(outside, FlockOperation::Unlock)?;
    set.with_context(|| format!("the machine does not allow it to namespaces; add it to {ALLOWED}"))
}

/// Returns the congestion controls that the kernel has.
pub fn available() -> String {
    setting("tcp_available_congestion_control")
}

fn setting(name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the actual settings of TCP in the caller's namespace.
pub fn in_force() -> String {
    let last = |name| setting(name).split(' ').next_back().unwrap_or_default().to_owned();
    let link = match netlink::sizes(LINK) {
        Ok(sizes) => format!("MTU {}, pieces to {}", sizes.mtu, sizes.gso_bytes_max),
        Err(_) => "no link".to_owned(),
    };
    format!(
        "{}, {link}, buffers to {} and {}",
        setting("tcp_congestion_control"),
        last("tcp_rmem"),
        last("tcp_wmem")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_called_tuned_is_one_of_the_candidates_and_linux_is_the_first() {
        let candidates = Tuning::candidates();
        assert!(candidates.contains(&Tuning::tuned()));
        assert_eq!(candidates[0], Tuning::linux());
        assert_eq!(Tuning::linux().to_string(), LINUX_CONGESTION_CONTROL);
    }

    #[test]
    fn every_candidate_is_called_something_else() {
        let mut names: Vec<String> = Tuning::candidates().iter().map(Tuning::to_string).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn what_is_in_force_names_a_congestion_control_that_the_kernel_has() {
        let text = in_force();
        let name = text.split(',').next().unwrap();
        assert!(available().split(' ').any(|known| known == name), "{text}");
    }
}
