//! The ways to move bytes that are compared, each a real implementation behind one trait.
//!
//! A scheme has two ends, in two processes. [`listen`] and [`connect`] make them; an [`End`] sends
//! messages that the caller writes in memory which the scheme sends from, and lends received bytes
//! where the scheme has them. So both sides touch every byte, and no scheme copies more than it must.
//! All waits block (after a short spin where the scheme's documentation advises one, or where [`crate::waiting`] says
//! otherwise). Local schemes are limits that need no second process; [`local`] has them.

#[cfg(feature = "peers")]
mod iceoryx;
pub mod local;
pub mod memory;
pub mod pipedevice;
pub mod shim;
pub mod shm_ring;
pub mod socket;
pub mod sockmap;
pub mod uring;
pub mod vm_readv;
mod zero_copy;

use std::path::Path;

use anyhow::{bail, Result};
use clap::ValueEnum;
use pd_harness::tuning::Tuning;
use serde::{Deserialize, Serialize};

use crate::protocol::Open;

/// A way to move the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// PipeDevice through its Rust client library, mediated by a rule of the policy: the engine copies between two containers'
    /// memories.
    Pipedevice,
    /// The same between two containers that no policy mentions: whatever path they get.
    PipedeviceDefault,
    /// The same between containers of one tenant, which share rings: the direct path.
    PipedeviceDirect,
    /// Kernel TCP over a bridge between two network namespaces, as Linux has it: the baseline.
    Tcp,
    /// The same, tuned as well as documentation advises: the other baseline.
    TcpTuned,
    /// The same of programs that have the preload library and no driver.
    TcpPreload,
    /// The program of `tcp`, unmodified, with `libpd_preload.so`.
    Preload,
    /// The same in the mode for short connections.
    PreloadShort,
    /// Kernel TCP over the loopback device.
    TcpLoopback,
    /// AF_UNIX stream sockets.
    Unix,
    /// io_uring over kernel TCP on the bridge: registered buffers, zero-copy sends.
    #[value(name = "io_uring")]
    #[serde(rename = "io_uring")]
    IoUring,
    /// Kernel TCP on the bridge whose messages an eBPF program redirects to the peer's socket.
    Sockmap,
    /// One copy by the receiver out of the sender's memory.
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
    /// One thread that writes each message, copies it and reads the copy: the limit.
    Memcpy,
    /// The copy engine alone: a queue pair driven on two rings, nobody touching the bytes.
    Engine,
    /// The copy engine between two threads that touch the bytes, without clients or driver.
    EnginePipeline,
}

/// Where the ends of a scheme live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In two containers.
    Containers,
    /// In two processes of the host, because the scheme crosses no namespace.
    Host,
    /// In one process.
    Local,
}

impl Scheme {
    /// As it is written on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Pipedevice => "pipedevice",
            Scheme::PipedeviceDefault => "pipedevice-default",
            Scheme::PipedeviceDirect => "pipedevice-direct",
            Scheme::Tcp => "tcp",
            Scheme::TcpTuned => "tcp-tuned",
            Scheme::TcpPreload => "tcp-preload",
            Scheme::Preload => "preload",
            Scheme::PreloadShort => "preload-short",
            Scheme::TcpLoopback => "tcp-loopback",
            Scheme::Unix => "unix",
            Scheme::IoUring => "io_uring",
            Scheme::Sockmap => "sockmap",
            Scheme::ProcessVmReadv => "process_vm_readv",
            Scheme::ShmRing => "shm-ring",
            Scheme::Ucx => "ucx",
            Scheme::Libfabric => "libfabric",
            Scheme::Iceoryx2 => "iceoryx2",
            Scheme::Memcpy => "memcpy",
            Scheme::Engine => "engine",
            Scheme::EnginePipeline => "engine-pipeline",
        }
    }

    /// Where its ends live.
    pub fn place(self) -> Place {
        match self {
            Scheme::Pipedevice
            | Scheme::PipedeviceDefault
            | Scheme::PipedeviceDirect
            | Scheme::Tcp
            | Scheme::TcpTuned
            | Scheme::TcpPreload
            | Scheme::Preload
            | Scheme::PreloadShort
            | Scheme::Unix
            | Scheme::IoUring
            | Scheme::Sockmap => Place::Containers,
            Scheme::Memcpy | Scheme::Engine | Scheme::EnginePipeline => Place::Local,
            _ => Place::Host,
        }
    }

    /// Returns whether it needs a driver.
    pub fn has_driver(self) -> bool {
        self.is_pipedevice() || self.preload().is_some()
    }

    /// Returns whether it is PipeDevice: through its client library, or in the benchmark `programs` through the preload library.
    pub fn is_pipedevice(self) -> bool {
        matches!(self, Scheme::Pipedevice | Scheme::PipedeviceDefault | Scheme::PipedeviceDirect)
    }

    /// Returns whether kernel TCP carries its bytes, or some of its connections.
    pub fn is_over_tcp(self) -> bool {
        matches!(
            self,
            Scheme::Tcp
                | Scheme::TcpTuned
                | Scheme::TcpPreload
                | Scheme::TcpLoopback
                | Scheme::Preload
                | Scheme::PreloadShort
                | Scheme::IoUring
                | Scheme::Sockmap
        )
    }

    /// Returns whether it is kernel TCP that ratios are to: the better of the two.
    pub fn is_baseline(self) -> bool {
        matches!(self, Scheme::Tcp | Scheme::TcpTuned)
    }

    /// Returns whether it is AF_UNIX.
    pub fn is_unix(self) -> bool {
        matches!(self, Scheme::Unix)
    }

    /// How kernel TCP in its containers is set up, whether it is what carries the bytes or not.
    pub fn tcp(self) -> Tuning {
        match self {
            Scheme::TcpTuned => Tuning::tuned(),
            _ => Tuning::linux(),
        }
    }

    /// Settings of the environment that its program runs with, where the program is unmodified.
    pub fn preload(self) -> Option<&'static [&'static str]> {
        match self {
            Scheme::Preload => Some(&[]),
            Scheme::PreloadShort => Some(&["PD_PRELOAD=short"]),
            _ => None,
        }
    }

    /// Returns whether the listening end needs the connecting one's address before it accepts.
    pub fn exchanges_addresses(self) -> bool {
        matches!(self, Scheme::Ucx | Scheme::Libfabric)
    }

    /// How its implementation is tuned, for the report.
    pub fn tuning(self) -> String {
        let own = self.own_tuning();
        match self {
            Scheme::Tcp | Scheme::TcpTuned | Scheme::TcpPreload => {
                format!("{own}; {}", self.tcp())
            }
            Scheme::TcpLoopback | Scheme::IoUring | Scheme::Sockmap => format!("{own}; {}", self.tcp()),
            _ => own.to_owned(),
        }
    }

    fn own_tuning(self) -> &'static str {
        match self {
            Scheme::Pipedevice => {
                "a rule of the policy says offloaded; messages written in send memory, read where the engine put them; rings \
                 of 4 MB"
            }
            Scheme::PipedeviceDefault => "the same program in two containers that no policy mentions",
            Scheme::PipedeviceDirect => {
                "messages written in send memory, copied into a shared ring, read there; spin then futex"
            }
            Scheme::Tcp | Scheme::TcpTuned | Scheme::TcpLoopback => {
                "one reused buffer a message; receives up to 256 KB at a time; buffers autotuned by the kernel"
            }
            Scheme::TcpPreload => "programs with the preload library and no driver to attach to",
            Scheme::Preload => "the program of tcp with libpd_preload.so; connections have twins",
            Scheme::PreloadShort => "the program of tcp with libpd_preload.so, PD_PRELOAD=short",
            Scheme::Unix => "one reused buffer a message; receives up to 256 KB at a time; SO_SNDBUF raised",
            Scheme::IoUring => {
                "sends linked and submitted in batches, plain ones, for SEND_ZC is copied on delivery; receives into registered \
                 buffers"
            }
            Scheme::Sockmap => "sk_msg program with BPF_F_INGRESS redirect between the two sockets",
            Scheme::ProcessVmReadv => "descriptors in a shared ring, spin then futex; one process_vm_readv a batch",
            Scheme::ShmRing => "messages written and read in place in a ring of 4 MB; spin then futex",
            Scheme::Ucx => "tagged messages over posix, without cma, which is slower; progress, then sleep on the worker's descriptor",
            Scheme::Libfabric => "shm provider without cma, which is slower; messages between pre-posted buffers; yields while it waits",
            Scheme::Iceoryx2 => "publish-subscribe of loaned slices; an event wakes the receiver",
            Scheme::Memcpy => "one thread: rewrite, checksum, copy, checksum",
            Scheme::Engine => "cpu engine's queue pair in batches of 64 between two rings of 4 MB",
            Scheme::EnginePipeline => "producer, cpu engine's queue pair and consumer in three threads",
        }
    }
}

/// One end of a set of connections.
pub trait End {
    /// Sends one message of `len` bytes on `connection`; `fill` writes it.
    fn send(&mut self, connection: usize, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()>;

    /// Lets out what earlier sends have held back.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Waits for bytes on `connection` and lends them to `take`, in whole messages if there is but one
    /// connection. Returns how many; zero at the end of the stream.
    fn recv(&mut self, connection: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize>;

    /// Waits until connections have bytes and replaces the contents of `ready` by them. With one
    /// connection [`End::recv`] waits as well.
    fn readable(&mut self, ready: &mut Vec<usize>) -> Result<()> {
        ready.clear();
        ready.push(0);
        Ok(())
    }

    /// Returns what it has, as its sockets and its driver say: a congestion control, a path. Empty where there is nothing to say.
    fn described(&self) -> String {
        String::new()
    }

    /// Single messages will go to and fro from now on.
    fn prefer_latency(&mut self) -> Result<()> {
        Ok(())
    }

    /// An end for each connection, to be used in threads.
    fn split(self: Box<Self>) -> Result<Vec<Box<dyn End + Send>>> {
        bail!("the scheme's connections cannot be used from several threads")
    }

    /// Ends all streams in order.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// An end that waits for its connections.
pub trait Listening {
    /// Where to connect to.
    fn address(&self) -> Result<String>;

    /// Waits for all connections. `from` is the connecting end's address, where the scheme has one.
    fn accept(self: Box<Self>, from: &str) -> Result<Box<dyn End>>;

    /// Accepts and closes so many connections, as many at a time as were opened with. Each brings a message of the size opened
    /// with, if that is not 0, which goes back.
    fn accept_and_close(&mut self, _connections: u64) -> Result<()> {
        bail!("the scheme's connection rate is not measured")
    }
}

/// Calls `work` with the size of each group when `connections` are dealt with so many at a time.
fn in_groups(connections: u64, at_a_time: usize, mut work: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let mut left = connections as usize;
    while left > 0 {
        let group = left.min(at_a_time);
        work(group)?;
        left -= group;
    }
    Ok(())
}

/// Listens; files that the two ends share go to `dir`.
pub fn listen(open: &Open, dir: &Path) -> Result<Box<dyn Listening>> {
    Ok(match open.scheme {
        Scheme::Pipedevice | Scheme::PipedeviceDefault | Scheme::PipedeviceDirect => {
            Box::new(pipedevice::Listening::new(open)?)
        }
        Scheme::Tcp | Scheme::TcpTuned | Scheme::TcpLoopback | Scheme::Preload | Scheme::PreloadShort => {
            Box::new(socket::Listening::tcp(open)?)
        }
        Scheme::Unix => Box::new(socket::Listening::unix(open, dir)?),
        Scheme::IoUring => Box::new(uring::Listening::new(open)?),
        Scheme::Sockmap => Box::new(sockmap::Listening::new(open)?),
        Scheme::ProcessVmReadv => Box::new(vm_readv::listen(open, dir)?),
        Scheme::ShmRing => Box::new(shm_ring::listen(open, dir)?),
        Scheme::Ucx | Scheme::Libfabric => Box::new(shim::Listening::new(open)?),
        #[cfg(feature = "peers")]
        Scheme::Iceoryx2 => Box::new(iceoryx::Listening::new(open)?),
        #[cfg(not(feature = "peers"))]
        Scheme::Iceoryx2 => bail!("this pd was built without iceoryx2; build it with make bench"),
        Scheme::TcpPreload => bail!("the scheme is one of programs"),
        Scheme::Memcpy | Scheme::Engine | Scheme::EnginePipeline => bail!("the scheme is local"),
    })
}

/// Connects to a [`Listening`] at `to`; also returns the own address where the scheme has one.
pub fn connect(open: &Open, to: &str) -> Result<(Box<dyn End>, String)> {
    let end: Box<dyn End> = match open.scheme {
        Scheme::Pipedevice | Scheme::PipedeviceDefault | Scheme::PipedeviceDirect => {
            pipedevice::connect(open, to)?
        }
        Scheme::Tcp | Scheme::TcpTuned | Scheme::TcpLoopback | Scheme::Unix => socket::connect(open, to)?,
        Scheme::IoUring => uring::connect(open, to)?,
        Scheme::Sockmap => sockmap::connect(open, to)?,
        Scheme::ProcessVmReadv => vm_readv::connect(open, to)?,
        Scheme::ShmRing => shm_ring::connect(open, to)?,
        Scheme::Ucx | Scheme::Libfabric => return shim::connect(open, to),
        #[cfg(feature = "peers")]
        Scheme::Iceoryx2 => iceoryx::connect(open, to)?,
        #[cfg(not(feature = "peers"))]
        Scheme::Iceoryx2 => bail!("this pd was built without iceoryx2; build it with make bench"),
        Scheme::TcpPreload => bail!("the scheme is one of programs"),
        Scheme::Memcpy | Scheme::Engine | Scheme::EnginePipeline => bail!("the scheme is local"),
        // Its streams would go past the library: they make system calls without the C library.
        Scheme::Preload | Scheme::PreloadShort => bail!("measured by the benchmark setup only"),
    };
    Ok((end, String::new()))
}

/// Opens connections to `to` and closes them, as many at a time as `open` says; see [`Listening::accept_and_close`].
pub fn connect_and_close(open: &Open, to: &str, connections: u64) -> Result<()> {
    match open.scheme {
        Scheme::Pipedevice | Scheme::PipedeviceDefault | Scheme::PipedeviceDirect => {
            pipedevice::connect_and_close(open, to, connections)
        }
        Scheme::Tcp
        | Scheme::TcpTuned
        | Scheme::TcpLoopback
        | Scheme::Unix
        | Scheme::Preload
        | Scheme::PreloadShort => socket::connect_and_close(open, to, connections),
        _ => bail!("the scheme's connection rate is not measured"),
    }
}

/// Refuses more than one connection, for schemes whose second one would be another object altogether.
fn single(open: &Open) -> Result<()> {
    if open.connections != 1 {
        bail!("{} is measured with one connection only", open.scheme.name());
    }
    Ok(())
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
