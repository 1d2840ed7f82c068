//! Questions and reports of administrators on ports and pipes.
use super::steer::Steering;
use pd_pipe::{Device, Gen, Memif, Pcap, Port, Recipe, Sink, TapDevice, Xsk};
use rustix::fs::{open, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Largest capture. The whole file is read before the port exists, so that no pipe waits for a disk.
const CAPTURE_BYTES_MAX: u64 = 256 << 20;

/// Longest name of a port.
pub const NAME_BYTES_MAX: usize = 15;

/// Returns whether a port, or a link, may have this name.
pub fn is_port_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(good)
}

/// Kind of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortSpec {
    /// Generator of frames, which checks frames that come back.
    Gen {
        /// Sizes of frames, which take turns.
        sizes: Vec<usize>,
        /// Flows, which take turns.
        flows: usize,
        /// Frames to make; 0 for no limit.
        frames: u64,
    },
    /// Counter of sent frames.
    Sink,
    /// Player of a capture.
    Pcap {
        /// The file, as the driver sees it.
        file: PathBuf,
    },
    /// Two ports, `NAME.0` and `NAME.1`: frames sent at one are received at the other.
    Link,
    /// An interface of the kernel, by a socket of `AF_XDP`. Takes frames of flows that pipes are bound to, and leaves others to the
    /// kernel.
    Veth {
        /// The interface's name, in the network namespace of the process that opens it.
        interface: String,
    },
    /// A TAP interface of the kernel, with the port at its other end. The interface ends with the port.
    Tap {
        /// The interface's name, in the network namespace of the process that makes it.
        interface: String,
    },
    /// Copies of another port's frames, both ways, or of bytes of connections. A pipe needs a binding that says `mirror = true`.
    Mirror {
        /// The other port. `connections:` and a tenant mean its connections; `connections:` alone means all.
        of: String,
    },
    /// Frames of a program with memif, which connects to a socket.
    Memif {
        /// The socket.
        socket: PathBuf,
        /// Number of the interface.
        id: u32,
    },
}

impl PortSpec {
    /// Returns the word for the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Gen { .. } => "gen",
            Self::Sink => "sink",
            Self::Pcap { .. } => "pcap",
            Self::Link => "link",
            Self::Veth { .. } => "veth",
            Self::Tap { .. } => "tap",
            Self::Mirror { .. } => "mirror",
            Self::Memif { .. } => "memif",
        }
    }

    /// Returns whether the port is made of descriptors that an administrator's process has opened ([`crate::openers`]).
    pub fn takes_descriptors(&self) -> bool {
        matches!(self, Self::Veth { .. } | Self::Tap { .. } | Self::Memif { .. })
    }

    /// Makes the port; none of a link or a mirror, which the agent makes. May read a file. `opened`: the descriptors of
    /// [`crate::openers`].
    ///
    /// # Errors
    /// A sentence that names the fault.
    pub fn make(&self, opened: Vec<OwnedFd>) -> Result<Option<Port>, String> {
        Ok(Some(match self {
            Self::Veth { .. } => {
                let [socket, memory, which, flows, link] = of(opened)?;
                let steer = Box::new(Steering::new(which, flows, link));
                device("a socket of AF_XDP", Xsk::new(socket, memory, steer))?
            }
            Self::Tap { .. } => {
                let [fd] = of(opened)?;
                device("a TAP device", TapDevice::new(fd))?
            }
            Self::Memif { id, .. } => {
                let [listener] = of(opened)?;
                device("a socket of memif", Memif::new(listener, *id))?
            }
            Self::Link | Self::Mirror { .. } => return Ok(None),
            Self::Sink => Port::Sink(Sink::default()),
            Self::Gen { sizes, flows, frames } => {
                let (sizes, flows, frames) = (sizes.clone(), *flows, *frames);
                let made = Gen::new(Recipe { sizes, flows, frames });
                Port::Gen(made.map_err(|_| "frames have 50 to 9216 bytes, and 1 to 65536 flows".to_owned())?)
            }
            Self::Pcap { file } => {
                let wrong = |why: &dyn std::fmt::Display| format!("capture {}: {why}", file.display());
                // The end of a pipe is opened without a wait for the other one, and then refused.
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let opened = File::from(open(file, flags, Mode::empty()).map_err(|why| wrong(&why))?);
                let facts = opened.metadata().map_err(|why| wrong(&why))?;
                if !facts.is_file() || facts.len() > CAPTURE_BYTES_MAX {
                    return Err(wrong(&format!("not a file of at most {CAPTURE_BYTES_MAX} bytes")));
                }
                let mut bytes = Vec::new();
                opened.take(CAPTURE_BYTES_MAX).read_to_end(&mut bytes).map_err(|why| wrong(&why))?;
                let (capture, counts) = Pcap::whole(bytes).map_err(|why| wrong(&why))?;
                tracing::info!(file = %file.display(), frames = counts.read, skipped = counts.skipped, "capture read");
                Port::Pcap(capture)
            }
        }))
    }
}

/// Returns the descriptors, if they are as many as the port needs.
fn of<const N: usize>(opened: Vec<OwnedFd>) -> Result<[OwnedFd; N], String> {
    opened.try_into().map_err(|_| "pd is of another version, and passed other descriptors".to_owned())
}

fn device<D: Device + 'static>(what: &str, made: rustix::io::Result<D>) -> Result<Port, String> {
    made.map(|device| Port::Device(Box::new(device))).map_err(|why| format!("{what}: {why}"))
}

/// Source of a tap's copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TapOf {
    /// Frames of a port, both ways.
    Port {
        /// The port's name.
        name: String,
    },
    /// Frames of a pipe, both ways.
    Pipe {
        /// The client's number.
        client: u16,
        /// The pipe's number within the client.
        number: u32,
    },
}

impl std::fmt::Display for TapOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port { name } => write!(f, "port {name}"),
            Self::Pipe { client, number } => write!(f, "pipe {client}:{number}"),
        }
    }
}

/// A tap.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TapReport {
    /// Source of the copies.
    pub of: TapOf,
    /// Frames copied.
    pub frames: u64,
    /// Frames for which its ring had no room.
    pub frames_lost: u64,
}

/// Ports and pipes of a driver. Counts begin when the port, pipe or tenant came.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PipesReport {
    /// Ports.
    pub ports: Vec<PortReport>,
    /// Pipes.
    pub pipes: Vec<PipeReport>,
    /// Tenants that have or had pipes.
    pub tenants: Vec<TenantPipes>,
    /// Taps of administrators.
    #[serde(default)]
    pub taps: Vec<TapReport>,
}

/// A port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortReport {
    /// The port's name.
    pub name: String,
    /// `gen`, `sink`, `pcap`, `link`, `veth`, `tap`, `mirror` or `memif`.
    pub kind: String,
    /// `direct` if its frames go from a sender's ring to the receiver without the agent, else `agent`.
    #[serde(default)]
    pub path: String,
    /// Pipes that belong to it.
    pub pipes: usize,
    /// Frames that its pipes received.
    pub frames_received: u64,
    /// Bytes of these.
    pub bytes_received: u64,
    /// Frames that pipes sent to it.
    pub frames_sent: u64,
    /// Bytes of these.
    pub bytes_sent: u64,
    /// Frames for which no pipe is bound, dropped.
    pub frames_unbound: u64,
    /// Of a port that leads out: received frames that were lost, since a pipe or the kernel's ring was full.
    #[serde(default)]
    pub frames_lost: u64,
    /// Of a port that leads out: frames that pipes sent and that could not leave.
    #[serde(default)]
    pub frames_unsent: u64,
    /// Of a generator: frames that came back twice, out of order or changed.
    pub frames_wrong: u64,
    /// Of a generator: frames missing between those that came back.
    pub frames_missing: u64,
}

/// A pipe.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PipeReport {
    /// The client's number.
    pub client: u16,
    /// The pipe's number within the client.
    pub number: u32,
    /// The client's tenant.
    pub tenant: String,
    /// The pipe's own port, then those that its verdicts may name.
    pub ports: Vec<String>,
    /// `receive`, `send` or `forward`.
    pub direction: String,
    /// `frames` or `bytes`.
    pub unit: String,
    /// Size of its ring.
    pub ring_bytes: u64,
    /// Reason of the pipe's end, if it has ended.
    pub ended: Option<String>,
    /// `direct` if its frames go without the agent, else `agent`.
    #[serde(default)]
    pub path: String,
    /// Counts.
    #[serde(flatten)]
    pub counts: TenantCounts,
}

/// Counts of pipes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantCounts {
    /// Frames, or pieces of bytes, received.
    pub frames_received: u64,
    /// Bytes of these.
    pub bytes_received: u64,
    /// Frames, or pieces of bytes, sent and delivered.
    pub frames_sent: u64,
    /// Bytes of these.
    pub bytes_sent: u64,
    /// Frames dropped by verdict.
    pub frames_dropped: u64,
    /// Frames sent and refused: a verdict names no port, or the source address is not in the lease.
    pub frames_refused: u64,
    /// Frames sent to which no pipe is bound.
    pub frames_unbound: u64,
    /// Frames of ports that lead out for which a ring had no room.
    #[serde(default)]
    pub frames_lost: u64,
    /// Frames sent to ports that lead out and that could not leave.
    #[serde(default)]
    pub frames_unsent: u64,
    /// Times that programs were notified of bytes.
    pub notifications: u64,
}

/// Pipes of a tenant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TenantPipes {
    /// The tenant's name.
    pub name: String,
    /// Pipes that it has.
    pub pipes_open: u64,
    /// Pipes that it opened.
    pub pipes_opened: u64,
    /// Pipes that the tenant was refused.
    pub pipes_refused: u64,
    /// Pipes that ended because their client broke the protocol.
    pub pipes_cut_off: u64,
    /// Counts of all the tenant's pipes.
    #[serde(flatten)]
    pub counts: TenantCounts,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{mknodat, FileType, CWD};

    #[test]
    fn a_capture_is_a_file_and_nothing_that_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for file in [fifo, folder.path().to_owned(), "/dev/zero".into(), "/dev/tty".into(), "/nowhere".into()]
        {
            assert!(PortSpec::Pcap { file }.make(Vec::new()).is_err());
        }
    }
}
