//! All schemes, with name, place of the ends, transport and tuning.

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

/// The carrier of a scheme's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    /// PipeDevice, through its client library.
    Pipedevice,
    /// PipeDevice beside kernel TCP, through the preload library: settings of the program's environment.
    Preload(&'static [&'static str]),
    /// Kernel TCP.
    Tcp,
    /// AF_UNIX.
    Unix,
    /// Anything else.
    Other,
}

/// A scheme's line of the catalogue.
struct Entry {
    name: &'static str,
    place: Place,
    carrier: Carrier,
    tuning: &'static str,
}

fn entry(name: &'static str, place: Place, carrier: Carrier, tuning: &'static str) -> Entry {
    Entry { name, place, carrier, tuning }
}

impl Scheme {
    fn entry(self) -> Entry {
        match self {
            Scheme::Pipedevice => entry(
                "pipedevice",
                Place::Containers,
                Carrier::Pipedevice,
                "a rule of the policy says offloaded; messages written in send memory, read where the engine put them; \
                 rings of 4 MB",
            ),
            Scheme::PipedeviceDefault => entry(
                "pipedevice-default",
                Place::Containers,
                Carrier::Pipedevice,
                "the same program in two containers that no policy mentions",
            ),
            Scheme::PipedeviceDirect => entry(
                "pipedevice-direct",
                Place::Containers,
                Carrier::Pipedevice,
                "messages written in send memory, copied into a shared ring, read there; spin then futex",
            ),
            Scheme::Tcp => entry(
                "tcp",
                Place::Containers,
                Carrier::Tcp,
                "one reused buffer a message; receives up to 256 KB at a time; buffers autotuned by the kernel",
            ),
            Scheme::TcpTuned => entry(
                "tcp-tuned",
                Place::Containers,
                Carrier::Tcp,
                "one reused buffer a message; receives up to 256 KB at a time; buffers autotuned by the kernel",
            ),
            Scheme::TcpSendfile => entry(
                "tcp-sendfile",
                Place::Containers,
                Carrier::Tcp,
                "sendfile() of 64 KB at a time, the sender's checksum through a mapping; receives as tcp",
            ),
            Scheme::TcpSendfileUntouched => entry(
                "tcp-sendfile-untouched",
                Place::Containers,
                Carrier::Tcp,
                "sendfile() of 64 KB at a time, without the sender's checksum; receives as tcp",
            ),
            Scheme::TcpTunedSendfile => entry(
                "tcp-tuned-sendfile",
                Place::Containers,
                Carrier::Tcp,
                "sendfile() of 64 KB at a time, the sender's checksum through a mapping; receives as tcp",
            ),
            Scheme::TcpPreload => entry(
                "tcp-preload",
                Place::Containers,
                Carrier::Tcp,
                "programs with the preload library and no driver to attach to",
            ),
            Scheme::Preload => entry(
                "preload",
                Place::Containers,
                Carrier::Preload(&[]),
                "the program of tcp with libpd_preload.so; connections have twins",
            ),
            Scheme::PreloadShort => entry(
                "preload-short",
                Place::Containers,
                Carrier::Preload(&["PD_PRELOAD=short"]),
                "the program of tcp with libpd_preload.so, PD_PRELOAD=short",
            ),
            Scheme::TcpLoopback => entry(
                "tcp-loopback",
                Place::Host,
                Carrier::Tcp,
                "one reused buffer a message; receives up to 256 KB at a time; buffers autotuned by the kernel",
            ),
            Scheme::Unix => entry(
                "unix",
                Place::Containers,
                Carrier::Unix,
                "one reused buffer a message; receives up to 256 KB at a time; SO_SNDBUF raised",
            ),
            Scheme::IoUring => entry(
                "io_uring",
                Place::Containers,
                Carrier::Tcp,
                "sends linked and submitted in batches, plain ones, for SEND_ZC is copied on delivery; receives into \
                 registered buffers",
            ),
            Scheme::Sockmap => entry(
                "sockmap",
                Place::Containers,
                Carrier::Tcp,
                "sk_msg program with BPF_F_INGRESS redirect between the two sockets",
            ),
            Scheme::ProcessVmReadv => entry(
                "process_vm_readv",
                Place::Host,
                Carrier::Other,
                "descriptors in a shared ring, spin then futex; one process_vm_readv a batch",
            ),
            Scheme::ShmRing => entry(
                "shm-ring",
                Place::Host,
                Carrier::Other,
                "messages written and read in place in a ring of 4 MB; spin then futex",
            ),
            Scheme::Ucx => entry(
                "ucx",
                Place::Host,
                Carrier::Other,
                "tagged messages over posix, without cma, which is slower; progress, then sleep on the worker's descriptor",
            ),
            Scheme::Libfabric => entry(
                "libfabric",
                Place::Host,
                Carrier::Other,
                "shm provider without cma, which is slower; messages between pre-posted buffers; yields while it waits",
            ),
            Scheme::Iceoryx2 => entry(
                "iceoryx2",
                Place::Host,
                Carrier::Other,
                "publish-subscribe of loaned slices; an event wakes the receiver",
            ),
            Scheme::Memcpy => entry(
                "memcpy",
                Place::Local,
                Carrier::Other,
                "one thread: rewrite, checksum, copy, checksum",
            ),
            Scheme::Engine => entry(
                "engine",
                Place::Local,
                Carrier::Other,
                "cpu engine's queue pair in batches of 64 between two rings of 4 MB",
            ),
            Scheme::EnginePipeline => entry(
                "engine-pipeline",
                Place::Local,
                Carrier::Other,
                "producer, cpu engine's queue pair and consumer in three threads",
            ),
        }
    }

    /// Returns its name on the command line and in results.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// Returns where its ends live.
    pub fn place(self) -> Place {
        self.entry().place
    }

    /// Returns whether it needs a driver.
    pub fn has_driver(self) -> bool {
        self.is_pipedevice() || self.preload().is_some()
    }

    /// Returns whether it is PipeDevice through its client library.
    pub fn is_pipedevice(self) -> bool {
        self.entry().carrier == Carrier::Pipedevice
    }

    /// Returns whether kernel TCP carries its bytes, or some of its connections.
    pub fn is_over_tcp(self) -> bool {
        matches!(self.entry().carrier, Carrier::Tcp | Carrier::Preload(_))
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
        self.entry().carrier == Carrier::Unix
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
        match self.entry().carrier {
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
        let Entry { carrier, tuning, .. } = self.entry();
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
