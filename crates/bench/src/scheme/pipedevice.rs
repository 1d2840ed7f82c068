//! PipeDevice through its Rust client library. Messages are written in send memory and read where the engine put them. On
//! the direct path they are written and read in the connection's ring. Neither program copies payload.
//!
//! Files are mapped for the checksum. On the offloaded path the driver reads them (`send_file`). On the direct path each message is
//! copied from the mapping to where it is sent from, while the checksum has it in the cache.

use std::io::Write as _;
use std::net::SocketAddr;

use anyhow::{ensure, Context, Result};
use pd_client::{Epoll, Event, Interest, Listener, ListenerOptions, Path, SendBuffer, Shutdown, Stream};
use pd_harness::peer::own_address;

use super::{in_groups, End, Scheme};
use crate::files::{Cursor, Source};
use crate::protocol::Open;

/// Bytes of memory in which messages are written in turn.
const WINDOW_BYTES: usize = 2 << 20;
/// The least and the most messages of that memory, whatever their size.
const WINDOW_MESSAGES: (usize, usize) = (2, 1024);
/// The receiver takes at most this much at a time, in whole messages.
const RECV_BYTES: usize = 64 << 10;
/// Events taken at a time.
const EVENTS: usize = 1024;

/// A listener.
pub struct Listening {
    listener: Listener,
    open: Open,
}

impl Listening {
    /// Listens on the own address.
    pub fn new(open: &Open) -> Result<Listening> {
        let address = SocketAddr::from((own_address()?, 0));
        let listener =
            Listener::bind_with(address, shared()).with_context(|| format!("cannot listen on {address}"))?;
        Ok(Listening { listener, open: *open })
    }
}

impl super::Listening for Listening {
    fn address(&self) -> Result<String> {
        Ok(SocketAddr::from((own_address()?, self.listener.local_addr()?.port())).to_string())
    }

    fn accept(self: Box<Self>, _from: &str) -> Result<Box<dyn End>> {
        let accept = |n| self.listener.accept().with_context(|| format!("cannot accept connection {n}"));
        let streams = (0..self.open.connections).map(accept).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(PipedeviceEnd::new(streams, &self.open)?))
    }

    fn accept_and_close(&mut self, connections: u64) -> Result<()> {
        let message = message(&self.open)?;
        in_groups(connections, self.open.connections, |group| {
            let accept = || self.listener.accept().context("cannot accept");
            let streams = (0..group).map(|_| accept()).collect::<Result<Vec<_>>>()?;
            if let Some(message) = &message {
                for stream in &streams {
                    receive(stream, self.open.message_bytes)?;
                    stream.send(message, ..)?;
                }
            }
            for stream in streams {
                let _end = stream.recv(1)?;
            }
            Ok(())
        })
    }
}

/// Makes the connecting end.
pub fn connect(open: &Open, to: &str) -> Result<Box<dyn End>> {
    let to: SocketAddr = to.parse()?;
    let connect = |n| -> Result<Stream> {
        let stream = Stream::connect(to).with_context(|| format!("cannot make connection {n} to {to}"))?;
        if open.scheme != Scheme::Pipedevice {
            stream.set_recv_shared()?;
        }
        check_path(open.scheme, &stream)?;
        Ok(stream)
    };
    let streams = (0..open.connections).map(connect).collect::<Result<Vec<_>>>()?;
    Ok(Box::new(PipedeviceEnd::new(streams, open)?))
}

/// As [`super::connect_and_close`].
pub fn connect_and_close(open: &Open, to: &str, connections: u64) -> Result<()> {
    let to: SocketAddr = to.parse()?;
    let message = message(open)?;
    in_groups(connections, open.connections, |group| {
        let streams = match group {
            1 => Stream::connect(to).map(|stream| vec![stream]),
            _ => Stream::connect_several(to, group),
        };
        let streams = streams.with_context(|| format!("cannot connect to {to}"))?;
        check_path(open.scheme, &streams[0])?;
        if let Some(message) = &message {
            for stream in &streams {
                stream.send(message, ..)?;
            }
            for stream in &streams {
                receive(stream, open.message_bytes)?;
            }
        } else {
            streams.iter().try_for_each(|stream| stream.shutdown(Shutdown::Write))?;
            for stream in &streams {
                let _end = stream.recv(1)?;
            }
        }
        Ok(())
    })
}

/// Makes the message of a short connection.
fn message(open: &Open) -> Result<Option<SendBuffer>> {
    Ok(match open.message_bytes {
        0 => None,
        bytes => Some(SendBuffer::new(bytes)?),
    })
}

fn receive(stream: &Stream, mut bytes: usize) -> Result<()> {
    while bytes > 0 {
        let part = stream.recv(bytes)?.len();
        ensure!(part > 0, "the connection ended early");
        bytes -= part;
    }
    Ok(())
}

/// Checks that the connection has the path that its scheme names. `pipedevice-default` may have either.
fn check_path(scheme: Scheme, stream: &Stream) -> Result<()> {
    let wanted = match scheme {
        Scheme::PipedeviceDefault => return Ok(()),
        Scheme::PipedeviceDirect => Path::Direct,
        _ => Path::Offloaded,
    };
    ensure!(stream.path() == wanted, "the driver chose the {} path for the connection", stream.path().name());
    Ok(())
}

/// Returns options for receivers that read each byte once.
fn shared() -> ListenerOptions {
    ListenerOptions { recv_shared: true, ..ListenerOptions::default() }
}

struct PipedeviceEnd {
    streams: Vec<Stream>,
    message_bytes: usize,
    window_bytes: Option<usize>,
    /// On the direct path.
    in_place: bool,
    /// Made at the first send from it: a receiver needs none.
    window: Vec<SendBuffer>,
    next: usize,
    epoll: Option<Epoll>,
    events: Vec<Event>,
}

impl PipedeviceEnd {
    fn new(streams: Vec<Stream>, open: &Open) -> Result<PipedeviceEnd> {
        PipedeviceEnd::over(streams, open.message_bytes, open.window_bytes)
    }

    fn over(
        streams: Vec<Stream>,
        message_bytes: usize,
        window_bytes: Option<usize>,
    ) -> Result<PipedeviceEnd> {
        let epoll = match streams.len() {
            1 => None,
            _ => {
                let epoll = Epoll::new();
                for (n, stream) in streams.iter().enumerate() {
                    epoll.add(stream, Interest::READ, n as u64)?;
                }
                Some(epoll)
            }
        };
        let in_place = streams[0].path() == Path::Direct;
        let (window, events) = (Vec::new(), Vec::new());
        Ok(PipedeviceEnd { streams, message_bytes, window_bytes, in_place, window, next: 0, epoll, events })
    }

    fn make_window(&mut self) -> Result<()> {
        let messages = match self.window_bytes {
            Some(bytes) => (bytes / self.message_bytes).max(WINDOW_MESSAGES.0),
            None => (WINDOW_BYTES / self.message_bytes).clamp(WINDOW_MESSAGES.0, WINDOW_MESSAGES.1),
        };
        for _ in 0..messages {
            self.window.push(SendBuffer::new(self.message_bytes).context("no send memory")?);
        }
        Ok(())
    }
}

impl End for PipedeviceEnd {
    fn send(&mut self, connection: usize, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        if self.in_place {
            let filled = self.streams[connection].send_with(len, |place| {
                fill(place);
                place.len()
            });
            filled.context("cannot send")?;
            return Ok(());
        }
        if self.window.is_empty() {
            self.make_window()?;
        }
        let slot = self.next % self.window.len();
        self.next += 1;
        let buffer = &mut self.window[slot];
        let buffer_bytes = buffer.wait_mut().context("cannot wait for send memory")?;
        fill(&mut buffer_bytes[..len]);
        self.streams[connection].send(buffer, ..len).context("cannot send")?;
        Ok(())
    }

    fn send_files(&mut self, source: &Source, bytes: u64, touch: &mut dyn FnMut(&[u8])) -> Result<()> {
        let (stream, in_place) = (&self.streams[0], self.in_place);
        let piece_bytes = if in_place { self.message_bytes } else { source.read_bytes() } as u64;
        let (mut left, mut at) = (bytes, Cursor::default());
        while left > 0 {
            let some = source.contiguous(at, left.min(piece_bytes));
            let piece = source.mapped(at, some);
            touch(piece);
            let sent = if in_place {
                (&*stream).write_all(piece).map(|()| piece.len()).context("cannot send")?
            } else {
                let file = &source.files()[at.file].file;
                stream.send_file(file, at.offset, piece.len()).context("cannot send")?
            };
            ensure!(sent == piece.len(), "{sent} of {some} bytes were sent; did a file become shorter?");
            source.advance(&mut at, some);
            left -= some;
        }
        Ok(())
    }

    fn recv(&mut self, connection: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        let max = (RECV_BYTES / self.message_bytes).max(1) * self.message_bytes;
        let received = self.streams[connection].recv(max).context("cannot receive")?;
        take(&received);
        Ok(received.len())
    }

    fn readable(&mut self, ready: &mut Vec<usize>) -> Result<()> {
        ready.clear();
        let Some(epoll) = &self.epoll else {
            ready.push(0);
            return Ok(());
        };
        epoll.wait(&mut self.events, EVENTS, None).context("cannot wait")?;
        ready.extend(self.events.iter().map(|event| event.data as usize));
        Ok(())
    }

    fn described(&self) -> String {
        format!("{} path", self.streams[0].path().name())
    }

    fn split(self: Box<Self>) -> Result<Vec<Box<dyn End + Send>>> {
        let (message_bytes, window_bytes) = (self.message_bytes, self.window_bytes);
        // An epoll would keep telling of streams that nobody asks it about any more.
        drop(self.epoll);
        let ends = self.streams.into_iter().map(|stream| {
            let end: Box<dyn End + Send> =
                Box::new(PipedeviceEnd::over(vec![stream], message_bytes, window_bytes)?);
            Ok(end)
        });
        ends.collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        for stream in &self.streams {
            // The peer may have gone first.
            let _ = stream.shutdown(Shutdown::Write);
        }
        Ok(())
    }
}
