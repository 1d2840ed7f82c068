//! The ways to move bytes that are compared, each a real implementation behind one trait.
//!
//! A scheme ([`Scheme`]) has two ends, in two processes. [`listen`] and [`connect`] make them. An [`End`] sends
//! messages that the caller writes in memory which the scheme sends from, and lends received bytes in place. Both
//! sides thus touch every byte, and no scheme copies more than it must. All waits block, after a short spin where the
//! scheme's documentation advises one, or where [`crate::waiting`] says otherwise. Local schemes are limits that need
//! no second process; [`local`] has them.

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

use crate::catalogue::Scheme;
use crate::files::Source;
use crate::protocol::Open;

/// An end of a set of connections.
pub trait End {
    /// Sends one message of `len` bytes on `connection`; `fill` writes it.
    fn send(&mut self, connection: usize, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()>;

    /// Sends the first `bytes` of `source`, begun anew at its end. Calls `touch` with all of them in order, each before it is sent.
    fn send_files(&mut self, _source: &Source, _bytes: u64, _touch: &mut dyn FnMut(&[u8])) -> Result<()> {
        bail!("the scheme sends no files")
    }

    /// Sends the bytes that earlier sends have held back.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Tells how many bytes come next, so that the last of them are lent although they are no whole message.
    fn expect(&mut self, _bytes: u64) {}

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

    /// Returns the congestion control or the path, as the end's sockets or driver report it. Empty if neither applies.
    fn described(&self) -> String {
        String::new()
    }

    /// Prepares for single messages to and fro.
    fn prefer_latency(&mut self) -> Result<()> {
        Ok(())
    }

    /// Splits into an end for each connection, to be used in threads.
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
    /// Returns the address to connect to.
    fn address(&self) -> Result<String>;

    /// Waits for all connections. `from` is the connecting end's address, where the scheme has one.
    fn accept(self: Box<Self>, from: &str) -> Result<Box<dyn End>>;

    /// Accepts and closes `connections` connections, as many at a time as it was opened with. Unless the message size is 0,
    /// each brings a message that goes back.
    fn accept_and_close(&mut self, _connections: u64) -> Result<()> {
        bail!("the scheme's connection rate is not measured")
    }
}

/// Calls `work` with the size of each group of `connections`, at most `at_a_time` each.
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
        Scheme::Tcp
        | Scheme::TcpSendfile
        | Scheme::TcpSendfileUntouched
        | Scheme::TcpTuned
        | Scheme::TcpTunedSendfile
        | Scheme::TcpLoopback
        | Scheme::Preload
        | Scheme::PreloadShort => Box::new(socket::Listening::tcp(open)?),
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

/// Connects to a [`Listening`] at `to`. Also returns the own address, if the scheme has one.
pub fn connect(open: &Open, to: &str) -> Result<(Box<dyn End>, String)> {
    let end: Box<dyn End> = match open.scheme {
        Scheme::Pipedevice | Scheme::PipedeviceDefault | Scheme::PipedeviceDirect => {
            pipedevice::connect(open, to)?
        }
        Scheme::Tcp
        | Scheme::TcpSendfile
        | Scheme::TcpSendfileUntouched
        | Scheme::TcpTuned
        | Scheme::TcpTunedSendfile
        | Scheme::TcpLoopback
        | Scheme::Unix => socket::connect(open, to)?,
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
        // Rust's streams would bypass the library: they make some calls without the C library.
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

/// Refuses more than one connection, for schemes in which a second one would be a separate object.
fn single(open: &Open) -> Result<()> {
    if open.connections != 1 {
        bail!("{} is measured with one connection only", open.scheme.name());
    }
    Ok(())
}
