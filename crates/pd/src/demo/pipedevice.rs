//! PipeDevice as the demo uses it: two small traits over the client library, and the sender and
//! receiver written against them.
//!
//! The sender has the files mapped, for its checksum. On the offloaded path it sends them by `send_file`, and the driver reads
//! them. On the direct path it writes each message from the mapping, while the checksum has it in the cache: the
//! kernel's copy would be the second look at memory. The bulk part rewrites messages in place: in send-buffer memory, or on the
//! direct path where they are sent from.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::ops::Range;

use anyhow::{ensure, Context, Result};
use memmap2::Mmap;
use pd_client::{Listener, ListenerOptions, Path, SendBuffer, Shutdown, Stream};
use pd_harness::digest::{rewrite, Digest};
use pd_harness::peer::own_address;

use super::ends::{EndpointArgs, Listening, Receiving, Sending};
use super::protocol::{Order, Part};
use super::source::{Cursor, Source};

/// Listens on the endpoint's own address.
pub fn listen(args: &EndpointArgs) -> Result<Box<dyn Listening>> {
    let address = SocketAddr::from((own_address()?, 0));
    // The receiver looks at each byte once.
    let options = ListenerOptions { recv_shared: true, ..ListenerOptions::default() };
    let listener =
        Listener::bind_with(address, options).with_context(|| format!("cannot listen on {address}"))?;
    Ok(Box::new(PipedeviceListening { listener, recv_bytes: args.message_bytes }))
}

/// Connects to the receiver.
pub fn connect(args: &EndpointArgs, to: SocketAddr) -> Result<Box<dyn Sending>> {
    let stream = Stream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
    Ok(Box::new(PipedeviceSending::new(stream, args.message_bytes, args.window_bytes, args.read_bytes)))
}

struct PipedeviceListening {
    listener: Listener,
    recv_bytes: usize,
}

impl Listening for PipedeviceListening {
    fn port(&self) -> Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    fn accept(self: Box<Self>) -> Result<Box<dyn Receiving>> {
        let stream = self.listener.accept().context("cannot accept")?;
        Ok(Box::new(PipedeviceReceiving::new(stream, self.recv_bytes)))
    }
}

fn has(stream: &Stream) -> String {
    format!("{} path", stream.path().name())
}

impl PdSender for Stream {
    type Buffer = SendBuffer;
    fn has(&self) -> String {
        has(self)
    }
    fn is_in_place(&self) -> bool {
        self.path() == Path::Direct
    }
    fn send_with(&mut self, len: usize, mut f: impl FnMut(&mut [u8])) -> Result<()> {
        let sent = Stream::send_with(self, len, |place| {
            f(place);
            place.len()
        })?;
        ensure!(sent == len, "{sent} of {len} bytes were sent");
        Ok(())
    }
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.write_all(bytes)?)
    }
    fn buffer(&mut self, len: usize) -> Result<SendBuffer> {
        Ok(SendBuffer::new(len)?)
    }
    fn with_mut<R>(&mut self, buffer: &mut SendBuffer, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        Ok(f(buffer.wait_mut()?))
    }
    fn send(&mut self, buffer: &SendBuffer, range: Range<usize>) -> Result<()> {
        Stream::send(self, buffer, range)?;
        Ok(())
    }
    fn send_file(&mut self, file: &File, offset: u64, len: usize) -> Result<()> {
        ensure!(
            Stream::send_file(self, file, offset, len)? == len,
            "a file became shorter while it was sent"
        );
        Ok(())
    }
    fn finish(self) -> Result<()> {
        Ok(self.shutdown(Shutdown::Write)?)
    }
}

impl PdReceiver for Stream {
    fn has(&self) -> String {
        has(self)
    }
    fn recv(&mut self, max: usize, mut f: impl FnMut(&[u8])) -> Result<usize> {
        let received = Stream::recv(self, max)?;
        f(&received);
        Ok(received.len())
    }
}

/// One end of a connection that sends from memory of the region.
pub trait PdSender {
    /// Memory in the send ring.
    type Buffer;
    /// The path.
    fn has(&self) -> String;
    /// Returns whether messages are best written where they are sent from.
    fn is_in_place(&self) -> bool;
    /// Has `f` write a message where it is sent from.
    fn send_with(&mut self, len: usize, f: impl FnMut(&mut [u8])) -> Result<()>;
    /// Sends a copy of `bytes`.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;
    /// Allocates `len` contiguous bytes.
    fn buffer(&mut self, len: usize) -> Result<Self::Buffer>;
    /// Waits until everything sent from `buffer` is out of it, then lets `f` write to it.
    fn with_mut<R>(&mut self, buffer: &mut Self::Buffer, f: impl FnOnce(&mut [u8]) -> R) -> Result<R>;
    /// Sends a part of `buffer`, without a copy.
    fn send(&mut self, buffer: &Self::Buffer, range: Range<usize>) -> Result<()>;
    /// Sends a piece of a file.
    fn send_file(&mut self, file: &File, offset: u64, len: usize) -> Result<()>;
    /// Ends the connection in order.
    fn finish(self) -> Result<()>;
}

/// One end of a connection that reads bytes where the engine put them.
pub trait PdReceiver {
    /// The path.
    fn has(&self) -> String;
    /// Calls `f` with the next bytes, at most `max`, contiguous, and gives them back. Zero at the end.
    fn recv(&mut self, max: usize, f: impl FnMut(&[u8])) -> Result<usize>;
}

/// The demo's sender over a [`PdSender`].
pub struct PipedeviceSending<S: PdSender> {
    sender: S,
    message_bytes: usize,
    window_bytes: usize,
    read_bytes: usize,
    buffers: Vec<S::Buffer>,
    maps: Vec<Mmap>,
}

impl<S: PdSender> PipedeviceSending<S> {
    /// Sends messages of `message_bytes` from a window of `window_bytes`; files are sent `read_bytes`
    /// at a time.
    pub fn new(sender: S, message_bytes: usize, window_bytes: usize, read_bytes: usize) -> Self {
        PipedeviceSending {
            sender,
            message_bytes,
            window_bytes,
            read_bytes,
            buffers: Vec::new(),
            maps: Vec::new(),
        }
    }

    fn send_bulk(&mut self, bytes: u64, digest: &mut Digest) -> Result<()> {
        let mut left = bytes;
        if self.sender.is_in_place() {
            return self.send_bulk_in_place(bytes, digest);
        }
        for lap in 0.. {
            for buffer in &mut self.buffers {
                let len = self.message_bytes.min(usize::try_from(left).unwrap_or(usize::MAX));
                self.sender.with_mut(buffer, |memory| {
                    let message = &mut memory[..len];
                    rewrite(message, lap);
                    digest.update(message);
                })?;
                self.sender.send(buffer, 0..len)?;
                left -= len as u64;
                if left == 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn send_bulk_in_place(&mut self, bytes: u64, digest: &mut Digest) -> Result<()> {
        let (mut left, mut lap) = (bytes, 0);
        while left > 0 {
            let len = self.message_bytes.min(usize::try_from(left).unwrap_or(usize::MAX));
            self.sender.send_with(len, |message| {
                rewrite(message, lap);
                digest.update(message);
            })?;
            left -= len as u64;
            lap += 1;
        }
        Ok(())
    }

    fn send_file(&mut self, bytes: u64, source: &Source, digest: &mut Digest) -> Result<()> {
        let (mut left, mut at) = (bytes, Cursor::default());
        let in_place = self.sender.is_in_place();
        let piece_bytes = if in_place { self.message_bytes } else { self.read_bytes };
        while left > 0 {
            let some = source.contiguous(at, left.min(piece_bytes as u64));
            let (start, end) = (at.offset as usize, (at.offset + some) as usize);
            let piece = &self.maps[at.file][start..end];
            digest.update(piece);
            if in_place {
                self.sender.write(piece)?;
            } else {
                self.sender.send_file(&source.files()[at.file].file, at.offset, end - start)?;
            }
            source.advance(&mut at, some);
            left -= some;
        }
        Ok(())
    }
}

impl<S: PdSender> Sending for PipedeviceSending<S> {
    fn has(&self) -> String {
        self.sender.has()
    }

    fn prepare(&mut self, order: &Order, source: &Source) -> Result<()> {
        if order.part == Part::File {
            if self.maps.is_empty() {
                self.maps = source.map()?;
            }
            return Ok(());
        }
        let mut at = Cursor::default();
        self.buffers.clear();
        for _ in 0..(self.window_bytes / self.message_bytes).max(2) {
            let mut buffer = self.sender.buffer(self.message_bytes)?;
            self.sender
                .with_mut(&mut buffer, |memory| source.fill(&mut at, &mut memory[..self.message_bytes]))??;
            self.buffers.push(buffer);
        }
        Ok(())
    }

    fn stream(&mut self, order: &Order, source: &Source, digest: &mut Digest) -> Result<()> {
        match order.part {
            Part::File => self.send_file(order.bytes, source, digest),
            Part::Bulk => self.send_bulk(order.bytes, digest),
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let PipedeviceSending { sender, buffers, .. } = *self;
        drop(buffers);
        sender.finish()
    }
}

/// The demo's receiver over a [`PdReceiver`].
pub struct PipedeviceReceiving<R: PdReceiver> {
    receiver: R,
    recv_bytes: usize,
}

impl<R: PdReceiver> PipedeviceReceiving<R> {
    /// Takes at most `recv_bytes` at a time.
    pub fn new(receiver: R, recv_bytes: usize) -> Self {
        PipedeviceReceiving { receiver, recv_bytes }
    }
}

impl<R: PdReceiver> Receiving for PipedeviceReceiving<R> {
    fn has(&self) -> String {
        self.receiver.has()
    }

    fn stream(&mut self, bytes: u64, digest: &mut Digest) -> Result<()> {
        let mut left = bytes;
        while left > 0 {
            let max = self.recv_bytes.min(usize::try_from(left).unwrap_or(usize::MAX));
            let n = self.receiver.recv(max, |bytes| digest.update(bytes))?;
            ensure!(n > 0, "the sender closed the connection with {left} bytes missing");
            left -= n as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::demo::protocol::Scheme;
    use pd_harness::digest::Touch;

    /// Keeps what is sent; refuses to lend a buffer larger than asked for. Whether messages are written in place.
    struct Kept(VecDeque<Vec<u8>>, bool);

    impl PdSender for &mut Kept {
        type Buffer = Vec<u8>;
        fn has(&self) -> String {
            String::new()
        }
        fn is_in_place(&self) -> bool {
            self.1
        }
        fn send_with(&mut self, len: usize, mut f: impl FnMut(&mut [u8])) -> Result<()> {
            let mut bytes = vec![7; len];
            f(&mut bytes);
            self.0.push_back(bytes);
            Ok(())
        }
        fn write(&mut self, bytes: &[u8]) -> Result<()> {
            self.0.push_back(bytes.to_vec());
            Ok(())
        }
        fn buffer(&mut self, len: usize) -> Result<Vec<u8>> {
            Ok(vec![0; len])
        }
        fn with_mut<R>(&mut self, buffer: &mut Vec<u8>, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
            Ok(f(buffer))
        }
        fn send(&mut self, buffer: &Vec<u8>, range: Range<usize>) -> Result<()> {
            self.0.push_back(buffer[range].to_vec());
            Ok(())
        }
        fn send_file(&mut self, file: &File, offset: u64, len: usize) -> Result<()> {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, offset)?;
            self.0.push_back(bytes);
            Ok(())
        }
        fn finish(self) -> Result<()> {
            Ok(())
        }
    }

    impl PdReceiver for &mut Kept {
        fn has(&self) -> String {
            String::new()
        }
        fn recv(&mut self, max: usize, mut f: impl FnMut(&[u8])) -> Result<usize> {
            let Some(mut message) = self.0.pop_front() else { return Ok(0) };
            if message.len() > max {
                self.0.push_front(message.split_off(max));
            }
            f(&message);
            Ok(message.len())
        }
    }

    fn round(part: Part, in_place: bool, bytes: u64, recv_bytes: usize) -> (String, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, (0..10_007u32).map(|n| (n >> 2) as u8).collect::<Vec<_>>()).unwrap();
        let source = Source::open(&[path]).unwrap();
        let order = Order { scheme: Scheme::Pipedevice, part, bytes, touch: Touch::Checksum };
        let mut kept = Kept(VecDeque::new(), in_place);
        let mut sent = Digest::new(Touch::Checksum, 1024);
        let mut sending = PipedeviceSending::new(&mut kept, 1024, 8192, 4096);
        sending.prepare(&order, &source).unwrap();
        sending.stream(&order, &source, &mut sent).unwrap();
        Box::new(sending).finish().unwrap();
        let mut received = Digest::new(Touch::Checksum, 1024);
        let mut receiving = PipedeviceReceiving::new(&mut kept, recv_bytes);
        receiving.stream(bytes, &mut received).unwrap();
        assert!(receiving.stream(1, &mut Digest::Nothing).is_err());
        (sent.finish(), received.finish())
    }

    #[test]
    fn both_sides_agree_on_every_part_and_split() {
        for (part, in_place) in [(Part::File, false), (Part::Bulk, false), (Part::Bulk, true)] {
            for (bytes, recv_bytes) in [(1, 1024), (20_480, 1024), (20_481, 700), (9_999, 65536)] {
                let (sent, received) = round(part, in_place, bytes, recv_bytes);
                assert_eq!(sent, received, "{part:?} {in_place} {bytes} {recv_bytes}");
            }
        }
    }
}
