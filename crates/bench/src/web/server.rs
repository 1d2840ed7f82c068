//! The server: answers `GET /BYTES` with that many bytes, others each time.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use anyhow::{bail, ensure, Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pd_harness::digest::{rewrite, Blocks};

use super::{head_end, BLOCK_BYTES, DIGEST};

/// The listener's number; connections have those from 1 on.
const LISTENER: u64 = 0;
/// Events taken at a time.
const EVENTS: usize = 64;
/// Most bytes of one read.
const PIECE_BYTES: usize = 1024;
/// Most bytes of a request.
const REQUEST_BYTES_MAX: usize = 8192;
/// Most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;

struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    body: Vec<u8>,
    /// The answer under way: head and body, and the bytes of it that are sent.
    answer: Vec<u8>,
    sent: usize,
    waits_to_write: bool,
    laps: u64,
}

/// Listens on all addresses.
pub(super) fn listen(port: u16) -> Result<TcpListener> {
    Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?)
}

/// Serves until it is killed.
pub(super) fn run(port: u16) -> Result<()> {
    serve(&listen(port)?)
}

pub(super) fn serve(listener: &TcpListener) -> Result<()> {
    listener.set_nonblocking(true)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    let (mut connections, mut next) = (HashMap::new(), LISTENER + 1);
    let mut events = [EpollEvent::empty(); EVENTS];
    loop {
        let count = match epoll.wait(&mut events, EpollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            count => count?,
        };
        for event in &events[..count] {
            let number = event.data();
            if number == LISTENER {
                while let Some(stream) = accept(listener)? {
                    epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, next))?;
                    connections.insert(next, Connection::new(stream));
                    next += 1;
                }
                continue;
            }
            let Some(connection) = connections.get_mut(&number) else { continue };
            // A client that is gone is no error of the server.
            if !connection.go_on(&epoll, number).unwrap_or(false) {
                connections.remove(&number);
            }
        }
    }
}

fn accept(listener: &TcpListener) -> Result<Option<TcpStream>> {
    match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            Ok(Some(stream))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == ErrorKind::ConnectionAborted => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            request: Vec::new(),
            body: Vec::new(),
            answer: Vec::new(),
            sent: 0,
            waits_to_write: false,
            laps: 0,
        }
    }

    /// Goes on with the answer, or reads more of a request. Returns whether the connection stays.
    fn go_on(&mut self, epoll: &Epoll, number: u64) -> Result<bool> {
        if self.answer.is_empty() {
            let mut piece = [0; PIECE_BYTES];
            match self.stream.read(&mut piece) {
                Ok(0) => return Ok(false),
                Ok(n) => self.request.extend_from_slice(&piece[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error.into()),
            }
            ensure!(self.request.len() <= REQUEST_BYTES_MAX, "a request is too long");
            let Some(end) = head_end(&self.request) else { return Ok(true) };
            ensure!(end == self.request.len(), "one request at a time");
            self.prepare()?;
            self.request.clear();
        }
        let is_sent = self.send()?;
        self.wait_to_write(epoll, number, !is_sent)?;
        Ok(true)
    }

    /// Makes the answer to the request.
    fn prepare(&mut self) -> Result<()> {
        let text = std::str::from_utf8(&self.request)?;
        let path = text.split(' ').nth(1).context("no request line")?;
        let bytes: usize = path.trim_start_matches('/').parse()?;
        if bytes > ANSWER_BYTES_MAX {
            bail!("too long an answer is asked for");
        }
        self.body.resize(bytes, 0);
        rewrite(&mut self.body, self.laps);
        self.laps += 1;
        let mut digest = Blocks::new(BLOCK_BYTES);
        digest.update(&self.body);
        let digest = digest.finish();
        self.answer.clear();
        write!(self.answer, "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n{DIGEST}: {digest:016x}\r\n\r\n")?;
        self.sent = 0;
        Ok(())
    }

    /// Sends the rest of the answer. Returns whether all of it is sent.
    fn send(&mut self) -> Result<bool> {
        let all = self.answer.len() + if self.answer.is_empty() { 0 } else { self.body.len() };
        while self.sent < all {
            let head = &self.answer[self.sent.min(self.answer.len())..];
            let body = &self.body[self.sent.saturating_sub(self.answer.len())..];
            let parts = [std::io::IoSlice::new(head), std::io::IoSlice::new(body)];
            // Programs that have sent the head send the body alone.
            let parts = if head.is_empty() { &parts[1..] } else { &parts[..] };
            match self.stream.write_vectored(parts) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        self.answer.clear();
        self.sent = 0;
        Ok(true)
    }

    fn wait_to_write(&mut self, epoll: &Epoll, number: u64, waits: bool) -> Result<()> {
        if self.waits_to_write != waits {
            let flags = if waits { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
            epoll.modify(&self.stream, &mut EpollEvent::new(flags, number))?;
            self.waits_to_write = waits;
        }
        Ok(())
    }
}
