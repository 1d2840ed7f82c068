//! The lines of the catalogue, one for each scheme.
use super::scheme::{Place, Scheme};

/// The carrier of a scheme's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
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

/// A line of the catalogue.
pub(super) struct Line {
    scheme: Scheme,
    /// Name on the command line and in results.
    pub(super) name: &'static str,
    /// Place of its ends.
    pub(super) place: Place,
    /// Carrier of its bytes.
    pub(super) carrier: Carrier,
    /// Tuning of its implementation.
    pub(super) tuning: &'static str,
}

impl Line {
    /// Returns the line of `scheme`.
    pub(super) fn of(scheme: Scheme) -> &'static Self {
        &LINES[scheme as usize]
    }
}

const fn line(
    scheme: Scheme,
    name: &'static str,
    place: Place,
    carrier: Carrier,
    tuning: &'static str,
) -> Line {
    Line { scheme, name, place, carrier, tuning }
}

/// Tuning of programs that copy their messages into kernel TCP.
const COPIED: &str =
    "one reused buffer a message; receives up to 256 KB at a time; buffers autotuned by the kernel";

/// The catalogue, in the order of the schemes' declaration.
const LINES: &[Line; SCHEMES] = &[
    line(
        Scheme::Pipedevice,
        "pipedevice",
        Place::Containers,
        Carrier::Pipedevice,
        "a rule of the policy says offloaded; messages written in send memory, read where the engine put them; \
         rings of 4 MB",
    ),
    line(
        Scheme::PipedeviceDefault,
        "pipedevice-default",
        Place::Containers,
        Carrier::Pipedevice,
        "the same program in two containers that no policy mentions",
    ),
    line(
        Scheme::PipedeviceDirect,
        "pipedevice-direct",
        Place::Containers,
        Carrier::Pipedevice,
        "messages written in send memory, copied into a shared ring, read there; spin then futex",
    ),
    line(Scheme::Tcp, "tcp", Place::Containers, Carrier::Tcp, COPIED),
    line(
        Scheme::TcpSendfile,
        "tcp-sendfile",
        Place::Containers,
        Carrier::Tcp,
        "sendfile() of 64 KB at a time, the sender's checksum through a mapping; receives as tcp",
    ),
    line(
        Scheme::TcpSendfileUntouched,
        "tcp-sendfile-untouched",
        Place::Containers,
        Carrier::Tcp,
        "sendfile() of 64 KB at a time, without the sender's checksum; receives as tcp",
    ),
    line(Scheme::TcpTuned, "tcp-tuned", Place::Containers, Carrier::Tcp, COPIED),
    line(
        Scheme::TcpTunedSendfile,
        "tcp-tuned-sendfile",
        Place::Containers,
        Carrier::Tcp,
        "sendfile() of 64 KB at a time, the sender's checksum through a mapping; receives as tcp",
    ),
    line(
        Scheme::TcpPreload,
        "tcp-preload",
        Place::Containers,
        Carrier::Tcp,
        "programs with the preload library and no driver to attach to",
    ),
    line(
        Scheme::Preload,
        "preload",
        Place::Containers,
        Carrier::Preload(&[]),
        "the program of tcp with libpd_preload.so; connections have twins",
    ),
    line(
        Scheme::PreloadShort,
        "preload-short",
        Place::Containers,
        Carrier::Preload(&["PD_PRELOAD=short"]),
        "the program of tcp with libpd_preload.so, PD_PRELOAD=short",
    ),
    line(Scheme::TcpLoopback, "tcp-loopback", Place::Host, Carrier::Tcp, COPIED),
    line(
        Scheme::Unix,
        "unix",
        Place::Containers,
        Carrier::Unix,
        "one reused buffer a message; receives up to 256 KB at a time; SO_SNDBUF raised",
    ),
    line(
        Scheme::IoUring,
        "io_uring",
        Place::Containers,
        Carrier::Tcp,
        "sends linked and submitted in batches, plain ones, for SEND_ZC is copied on delivery; receives into \
         registered buffers",
    ),
    line(
        Scheme::Sockmap,
        "sockmap",
        Place::Containers,
        Carrier::Tcp,
        "sk_msg program with BPF_F_INGRESS redirect between the two sockets",
    ),
    line(
        Scheme::ProcessVmReadv,
        "process_vm_readv",
        Place::Host,
        Carrier::Other,
        "descriptors in a shared ring, spin then futex; one process_vm_readv a batch",
    ),
    line(
        Scheme::ShmRing,
        "shm-ring",
        Place::Host,
        Carrier::Other,
        "messages written and read in place in a ring of 4 MB; spin then futex",
    ),
    line(
        Scheme::Ucx,
        "ucx",
        Place::Host,
        Carrier::Other,
        "tagged messages over posix, without cma, which is slower; progress, then sleep on the worker's descriptor",
    ),
    line(
        Scheme::Libfabric,
        "libfabric",
        Place::Host,
        Carrier::Other,
        "shm provider without cma, which is slower; messages between pre-posted buffers; yields while it waits",
    ),
    line(
        Scheme::Iceoryx2,
        "iceoryx2",
        Place::Host,
        Carrier::Other,
        "publish-subscribe of loaned slices; an event wakes the receiver",
    ),
    line(
        Scheme::Memcpy,
        "memcpy",
        Place::Local,
        Carrier::Other,
        "one thread: rewrite, checksum, copy, checksum",
    ),
    line(
        Scheme::Engine,
        "engine",
        Place::Local,
        Carrier::Other,
        "cpu engine's queue pair in batches of 64 between two rings of 4 MB",
    ),
    line(
        Scheme::EnginePipeline,
        "engine-pipeline",
        Place::Local,
        Carrier::Other,
        "producer, cpu engine's queue pair and consumer in three threads",
    ),
];

/// Number of schemes.
const SCHEMES: usize = Scheme::EnginePipeline as usize + 1;

const _: () = {
    let mut at = 0;
    while at < SCHEMES {
        assert!(LINES[at].scheme as usize == at, "the catalogue's lines are in the order of the schemes");
        at += 1;
    }
};
