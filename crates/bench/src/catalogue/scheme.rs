//! All schemes, with name, place of the ends, transport and tuning.

use super::lines::{Carrier, Line};
use clap::ValueEnum;
use pd_harness::digest::Touch;
use pd_harness::tuning::Tuning;
use serde::{Deserialize, Serialize};

/// A way to move the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// PipeDevice through its Rust client library, mediated by a rule of the policy: the engine copies between two containers'
    /// memories.
    Pipedevice,
    /// PipeDevice between two containers that no policy mentions, on whichever path the driver chooses.
    PipedeviceDefault,
    /// PipeDevice between containers of one tenant, which share rings: the direct path.
    PipedeviceDirect,
    /// Kernel TCP over a bridge between two network namespaces, as Linux has it: the baseline.
    Tcp,
    /// Kernel TCP as `tcp` with sendfile(), for files: the sender's checksum is taken through a mapping.
    TcpSendfile,
    /// Kernel TCP as `tcp-sendfile` without the sender's checksum: for information, because it does less than the others.
    TcpSendfileUntouched,
    /// The one of `tcp`, tuned as well as documentation advises: the other baseline.
    TcpTuned,
    /// Kernel TCP as `tcp-tuned` with sendfile(), for files.
    TcpTunedSendfile,
    /// Kernel TCP as `tcp`, of programs that have the preload library and no driver.
    TcpPreload,
    /// The program of `tcp`, unmodified, with `libpd_preload.so`.
    Preload,
    /// The program of `preload` in the mode for short connections.
    PreloadShort,
    /// Kernel TCP over the loopback device.
    TcpLoopback,
    /// AF_UNIX stream sockets.
    Unix,
    /// io_uring over kernel TCP on the bridge: registered buffers, zero-copy sends.
    #[value(name = "io_uring")]
    #[serde(rename = "io_uring")]
    IoUring,
    /// Kernel TCP on the bridge, with an eBPF program that redirects messages to the peer's socket.
    Sockmap,
    /// Receiver that copies once out of the sender's memory, by process_vm_readv().
    #[value(name = "process_vm_readv")]
    #[serde(rename = "process_vm_readv")]
    ProcessVmReadv,
    /// A ring in memory that both sides map.
    ShmRing,
    /// UCX over its shared-memory transports.
    Ucx,
    /// libfabric over its shared-memory provider.
    Libfabric,
    /// iceoryx2 publish-subscribe with events.
    Iceoryx2,
    /// Thread that writes each message, copies it and reads the copy: the limit.
    Memcpy,
    /// The copy engine alone: a queue pair driven on two rings, nobody touching the bytes.
    Engine,
    /// The copy engine between two threads that touch the bytes, without clients or driver.
    EnginePipeline,
}

/// Place of the ends of a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In two containers.
    Containers,
    /// In two processes of the host, because the scheme crosses no namespace.
    Host,
    /// In one process.
    Local,
}

/// Every scheme that moves bytes between two processes.
pub const PEERS: [Scheme; 14] = [
    Scheme::Pipedevice,
    Scheme::PipedeviceDefault,
    Scheme::PipedeviceDirect,
    Scheme::Tcp,
    Scheme::TcpTuned,
    Scheme::TcpLoopback,
    Scheme::Unix,
    Scheme::IoUring,
    Scheme::Sockmap,
    Scheme::ProcessVmReadv,
    Scheme::ShmRing,
    Scheme::Ucx,
    Scheme::Libfabric,
    Scheme::Iceoryx2,
];

/// The limits.
pub const LIMITS: [Scheme; 3] = [Scheme::Memcpy, Scheme::Engine, Scheme::EnginePipeline];

impl Scheme {
    /// Returns its name on the command line and in results.
    pub fn name(self) -> &'static str {
        Line::of(self).name
    }

    /// Returns where its ends live.
    pub fn place(self) -> Place {
        Line::of(self).place
    }

    /// Returns whether it needs a driver.
    pub fn has_driver(self) -> bool {
        self.is_pipedevice() || self.preload().is_some()
    }

    /// Returns whether it is PipeDevice through its client library.
    pub fn is_pipedevice(self) -> bool {
        Line::of(self).carrier == Carrier::Pipedevice
    }

    /// Returns whether kernel TCP carries its bytes, or some of its connections.
    pub fn is_over_tcp(self) -> bool {
        matches!(Line::of(self).carrier, Carrier::Tcp | Carrier::Preload(_))
    }

    /// Returns whether it is kernel TCP that ratios are to: the better of those with the same parameters.
    pub fn is_baseline(self) -> bool {
        matches!(self, Scheme::Tcp | Scheme::TcpTuned | Scheme::TcpSendfile | Scheme::TcpTunedSendfile)
    }

    /// Returns whether the kernel takes the bytes of files out of its page cache.
    pub fn sends_files(self) -> bool {
        matches!(self, Scheme::TcpSendfile | Scheme::TcpSendfileUntouched | Scheme::TcpTunedSendfile)
    }

    /// Returns the sender's work on the bytes of a timed round.
    pub fn sender_touch(self) -> Touch {
        match self {
            Scheme::TcpSendfileUntouched => Touch::Nothing,
            _ => Touch::Checksum,
        }
    }

    /// Returns whether the scheme of this name does less than others, so that it wins nothing: it isolates nobody, or leaves work out.
    pub fn is_limit(name: &str) -> bool {
        let more = [Scheme::ShmRing, Scheme::TcpSendfileUntouched];
        LIMITS.iter().chain(&more).any(|scheme| scheme.name() == name)
    }

    /// Returns whether it is AF_UNIX.
    pub fn is_unix(self) -> bool {
        Line::of(self).carrier == Carrier::Unix
    }

    /// Returns how kernel TCP in its containers is set up, whatever carries the scheme's bytes.
    pub fn tcp(self) -> Tuning {
        match self {
            Scheme::TcpTuned | Scheme::TcpTunedSendfile => Tuning::tuned(),
            _ => Tuning::linux(),
        }
    }

    /// Returns settings of the environment that an unmodified program runs with; none without the preload library.
    pub fn preload(self) -> Option<&'static [&'static str]> {
        match Line::of(self).carrier {
            Carrier::Preload(settings) => Some(settings),
            _ => None,
        }
    }

    /// Returns whether the listening end needs the connecting one's address before it accepts.
    pub fn exchanges_addresses(self) -> bool {
        matches!(self, Scheme::Ucx | Scheme::Libfabric)
    }

    /// Returns how its implementation is tuned, for the report.
    pub fn tuning(self) -> String {
        let &Line { carrier, tuning, .. } = Line::of(self);
        match carrier {
            Carrier::Tcp => format!("{tuning}; {}", self.tcp()),
            _ => tuning.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_has_one_name_everywhere() {
        for scheme in Scheme::value_variants() {
            let json = serde_json::to_value(scheme).unwrap();
            assert_eq!(json, scheme.name());
            assert_eq!(scheme.to_possible_value().unwrap().get_name(), scheme.name());
        }
    }
}
