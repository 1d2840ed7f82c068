//! Kernel TCP at its best: the baseline.
//!
//! The sender reads and writes 64 KB messages; the receiver reads up to 256 KB at a time into one reused
//! buffer. Socket buffers are left to the kernel's autotuning. Congestion control and the like are those of the
//! containers, which the demo sets: Linux's own, and tuned. Measured under `bbr` on two cores at 2.5 GHz, Linux
//! 6.18, otherwise idle: reading the file 256 KB or 1 MB at a time gave 3 to 10 % less than 64 KB, and sendfile()
//! of 256 KB or 1 MB at a time no more than of 64 KB.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{ensure, Context, Result};
use memmap2::Mmap;
use pd_harness::digest::{rewrite, Digest};
use pd_harness::peer::own_address;
use pd_harness::tuning;
use rustix::fs::sendfile;
use rustix::net::sockopt;

use super::ends::{EndpointArgs, Listening, Receiving, Sending};
use super::protocol::{Order, Part};
use super::source::{Cursor, Source};

/// The receiver reads at most this much at a time, in whole messages.
const RECV_BYTES: usize = 256 << 10;
/// The sender calls sendfile() for this much at a time: more is not faster.
const SENDFILE_BYTES: u64 = 64 << 10;
const PAGE_BYTES: usize = 4096;

/// Memory that starts on a page.
struct PageAligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl PageAligned {
    fn new(len: usize) -> PageAligned {
        let bytes = vec![0; len + PAGE_BYTES];
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        PageAligned { bytes, start, len }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Listens on the endpoint's own address.
pub fn listen(args: &EndpointArgs) -> Result<Box<dyn Listening>> {
    let address = own_address()?;
    let listener = TcpListener::bind((address, 0)).with_context(|| format!("cannot listen on {address}"))?;
    Ok(Box::new(TcpListening { listener, message_bytes: args.message_bytes }))
}

struct TcpListening {
    listener: TcpListener,
    message_bytes: usize,
}

impl Listening for TcpListening {
    fn port(&self) -> Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    fn accept(self: Box<Self>) -> Result<Box<dyn Receiving>> {
        let (stream, _) = self.listener.accept().context("cannot accept")?;
        let messages = (RECV_BYTES / self.message_bytes).max(1);
        let buffer = PageAligned::new(messages * self.message_bytes);
        Ok(Box::new(TcpReceiving { stream, buffer, message_bytes: self.message_bytes }))
    }
}

struct TcpReceiving {
    stream: TcpStream,
    buffer: PageAligned,
    message_bytes: usize,
}

/// Returns what the connection has, and its network namespace.
fn has(stream: &TcpStream) -> String {
    let own = sockopt::tcp_congestion(stream).unwrap_or_default();
    format!("{own} (network namespace: {})", tuning::in_force())
}

impl Receiving for TcpReceiving {
    fn has(&self) -> String {
        has(&self.stream)
    }

    fn stream(&mut self, bytes: u64, digest: &mut Digest) -> Result<()> {
        let buffer = self.buffer.get();
        let (mut left, mut filled, mut digested) = (bytes, 0, 0);
        while left > 0 {
            let max = (buffer.len() - filled).min(usize::try_from(left).unwrap_or(usize::MAX));
            let n = self.stream.read(&mut buffer[filled..filled + max]).context("cannot receive")?;
            ensure!(n > 0, "the sender closed the connection with {left} bytes missing");
            filled += n;
            left -= n as u64;
            // Whole messages, each contiguous, for the buffer's size is a multiple of a message's.
            let whole = if left == 0 { filled } else { filled - filled % self.message_bytes };
            digest.update(&buffer[digested..whole]);
            digested = whole;
            if filled == buffer.len() {
                (filled, digested) = (0, 0);
            }
        }
        Ok(())
    }
}

/// Connects to the receiver.
pub fn connect(args: &EndpointArgs, to: SocketAddr) -> Result<Box<dyn Sending>> {
    let stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
    Ok(Box::new(TcpSending {
        stream,
        message_bytes: args.message_bytes,
        window_bytes: args.window_bytes,
        buffer: PageAligned::new(0),
        maps: Vec::new(),
    }))
}

struct TcpSending {
    stream: TcpStream,
    message_bytes: usize,
    window_bytes: usize,
    buffer: PageAligned,
    maps: Vec<Mmap>,
}

impl Sending for TcpSending {
    fn has(&self) -> String {
        has(&self.stream)
    }

    fn prepare(&mut self, order: &Order, source: &Source) -> Result<()> {
        match (order.part, order.scheme) {
            (Part::Bulk, _) => {
                self.buffer = PageAligned::new(self.window_bytes);
                source.fill(&mut Cursor::default(), self.buffer.get())?;
            }
            (Part::File, scheme) if !scheme.sends_files() => {
                self.buffer = PageAligned::new(self.message_bytes)
            }
            (Part::File, _) if self.maps.is_empty() => self.maps = source.map()?,
            (Part::File, _) => {}
        }
        Ok(())
    }

    fn stream(&mut self, order: &Order, source: &Source, digest: &mut Digest) -> Result<()> {
        match (order.part, order.scheme) {
            (Part::Bulk, _) => self.send_bulk(order.bytes, digest),
            (Part::File, scheme) if !scheme.sends_files() => self.send_file(order.bytes, source, digest),
            (Part::File, _) => self.sendfile(order.bytes, source, digest),
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl TcpSending {
    fn send_bulk(&mut self, bytes: u64, digest: &mut Digest) -> Result<()> {
        let mut left = bytes;
        for lap in 0.. {
            for message in self.buffer.get().chunks_mut(self.message_bytes) {
                let len = message.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let message = &mut message[..len];
                rewrite(message, lap);
                digest.update(message);
                self.stream.write_all(message).context("cannot send")?;
                left -= len as u64;
                if left == 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn send_file(&mut self, bytes: u64, source: &Source, digest: &mut Digest) -> Result<()> {
        let buffer = self.buffer.get();
        let (mut left, mut at) = (bytes, Cursor::default());
        while left > 0 {
            let len = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            source.fill(&mut at, &mut buffer[..len])?;
            for message in buffer[..len].chunks(self.message_bytes) {
                digest.update(message);
                self.stream.write_all(message).context("cannot send")?;
            }
            left -= len as u64;
        }
        Ok(())
    }

    fn sendfile(&mut self, bytes: u64, source: &Source, digest: &mut Digest) -> Result<()> {
        let (mut left, mut at) = (bytes, Cursor::default());
        while left > 0 {
            let some = source.contiguous(at, left.min(SENDFILE_BYTES));
            if !matches!(digest, Digest::Nothing) {
                let (start, end) = (at.offset as usize, (at.offset + some) as usize);
                digest.update(&self.maps[at.file][start..end]);
            }
            let file = &source.files()[at.file];
            let (mut offset, end) = (at.offset, at.offset + some);
            while offset < end {
                let max = (end - offset) as usize;
                let n =
                    sendfile(&self.stream, &file.file, Some(&mut offset), max).context("cannot sendfile")?;
                ensure!(n > 0, "{} became shorter while it was sent", file.path.display());
            }
            source.advance(&mut at, some);
            left -= some;
        }
        Ok(())
    }
}
