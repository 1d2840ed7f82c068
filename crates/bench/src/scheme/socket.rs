//! Kernel stream sockets: TCP and AF_UNIX.
//!
//! The sender writes each message into one reused, page-aligned buffer, which stays in the cache, or in turn into a window of several. The
//! receiver reads up to 256 KB at a time. TCP's buffers are left to the kernel's autotuning: fixed ones are slower. AF_UNIX has no
//! autotuning, and its default of 208 KB holds three messages of 64 KB: it is raised for one connection. Many connections are waited for
//! with one epoll.
//!
//! [`Open::zero_copy`] has one connection send without a copy (`zero_copy`). Sockets block as shipped; peers that spin look first
//! ([`waiting`]).
//!
//! Streams make system calls of their own (`rustix`). Connections that are opened, used and closed go by the C library's
//! calls (`std`, `nix`), which a preloaded library can stand in for.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage};
use pd_harness::peer::own_address;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{sockopt, AddressFamily as Family, RecvFlags, SocketType};

use super::memory::{Inbox, PageAligned};
use super::zero_copy::{self, ZeroCopy};
use super::{in_groups, End, Scheme};
use crate::files::{Cursor, Source};
use crate::limits::raise_descriptors;
use crate::protocol::Open;
use crate::waiting;

/// Connections to one port: fewer than there are ephemeral ports.
const CONNECTIONS_PER_PORT: usize = 16_384;
/// Send buffer of a single AF_UNIX connection.
const UNIX_SEND_BYTES: usize = 1 << 20;
/// Bytes of one sendfile(): more is not faster.
const SENDFILE_BYTES: u64 = 64 << 10;
/// Events taken at a time.
const EVENTS: usize = 1024;

enum Listener {
    Tcp(Vec<TcpListener>),
    Unix(UnixListener, PathBuf),
}

/// Listening sockets.
pub struct Listening {
    listener: Listener,
    open: Open,
}

impl Listening {
    /// Listens on the own address, on as many ports as the connections need.
    pub fn tcp(open: &Open) -> Result<Listening> {
        raise_descriptors(open.connections)?;
        let address = own_address()?;
        let ports = open.connections.div_ceil(CONNECTIONS_PER_PORT);
        let listeners = (0..ports).map(|_| TcpListener::bind((address, 0))).collect::<Result<_, _>>();
        let listeners: Vec<TcpListener> = listeners.with_context(|| format!("cannot listen on {address}"))?;
        if open.scheme == Scheme::TcpLoopback {
            // Accepted sockets inherit it from the listener.
            listeners.iter().try_for_each(set_congestion_control)?;
        }
        Ok(Listening { listener: Listener::Tcp(listeners), open: *open })
    }

    /// Listens on a path in `dir`.
    pub fn unix(open: &Open, dir: &Path) -> Result<Listening> {
        raise_descriptors(open.connections)?;
        let path = dir.join("bench.unix");
        let _ = std::fs::remove_file(&path);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        Ok(Listening { listener: Listener::Unix(listener, path), open: *open })
    }

    /// Accepts the connection with this number.
    fn accept_one(&self, number: usize) -> Result<OwnedFd> {
        let socket: OwnedFd = match &self.listener {
            Listener::Tcp(listeners) => {
                let listener = &listeners[number / CONNECTIONS_PER_PORT % listeners.len()];
                listener.accept().map(|(stream, _)| stream.into()).context("cannot accept")?
            }
            Listener::Unix(listener, _) => {
                listener.accept().map(|(stream, _)| stream.into()).context("cannot accept")?
            }
        };
        Ok(socket)
    }

    /// Accepts all connections.
    pub fn accept_all(&self) -> Result<Vec<OwnedFd>> {
        (0..self.open.connections)
            .map(|n| self.accept_one(n).with_context(|| format!("connection {n}")))
            .collect()
    }
}

impl super::Listening for Listening {
    fn address(&self) -> Result<String> {
        match &self.listener {
            Listener::Tcp(listeners) => {
                let addresses = listeners.iter().map(|l| Ok(l.local_addr()?.to_string()));
                Ok(addresses.collect::<Result<Vec<_>>>()?.join(","))
            }
            Listener::Unix(_, path) => Ok(path.display().to_string()),
        }
    }

    fn accept(self: Box<Self>, _from: &str) -> Result<Box<dyn End>> {
        Ok(Box::new(SocketEnd::new(self.accept_all()?, &self.open)?))
    }

    fn accept_and_close(&mut self, connections: u64) -> Result<()> {
        let mut message = vec![0; self.open.message_bytes];
        in_groups(connections, self.open.connections, |group| {
            let accept = || self.accept_one(0).map(TcpStream::from);
            let mut sockets = (0..group).map(|_| accept()).collect::<Result<Vec<_>>>()?;
            for socket in &mut sockets {
                socket.read_exact(&mut message)?;
                socket.write_all(&message)?;
            }
            for mut socket in sockets {
                // The connecting side closes first, as clients do.
                let _end = socket.read(&mut [0])?;
            }
            Ok(())
        })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = &self.listener {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Sets on a socket of the host what containers have from their network namespace. To be called before it connects: a socket that has
/// once been paced stays so.
fn set_congestion_control(socket: &impl AsFd) -> Result<()> {
    let Some(name) = Scheme::TcpLoopback.tcp().network.congestion_control else { return Ok(()) };
    sockopt::set_tcp_congestion(socket, &name)
        .with_context(|| format!("cannot have the congestion control {name}"))
}

/// Gives a network namespace of its own nearly all ports as ephemeral ones, reusable a second after use. Otherwise a long run would
/// measure how the kernel looks for a free one.
fn widen_ports() {
    // Fails outside a container, where nobody needs it.
    for (setting, value) in [("ip_local_port_range", "1024 65535"), ("tcp_tw_reuse", "1")] {
        let _ = std::fs::write(Path::new("/proc/sys/net/ipv4").join(setting), value);
    }
}

/// Opens the connection with this number.
fn connect_one(scheme: Scheme, addresses: &[&str], number: usize) -> Result<OwnedFd> {
    if scheme.is_unix() {
        let socket = UnixStream::connect(addresses[0]);
        return Ok(socket.with_context(|| format!("cannot connect to {}", addresses[0]))?.into());
    }
    let address: SocketAddr = addresses[number / CONNECTIONS_PER_PORT % addresses.len()].parse()?;
    if scheme == Scheme::TcpLoopback {
        let socket = rustix::net::socket(Family::INET, SocketType::STREAM, None)?;
        set_congestion_control(&socket)?;
        rustix::net::connect(&socket, &address).with_context(|| format!("cannot connect to {address}"))?;
        return Ok(socket);
    }
    Ok(TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?.into())
}

/// Makes all connections.
pub fn connect_all(open: &Open, to: &str) -> Result<Vec<OwnedFd>> {
    raise_descriptors(open.connections)?;
    if open.scheme.is_baseline() {
        widen_ports();
    }
    let addresses: Vec<&str> = to.split(',').collect();
    (0..open.connections)
        .map(|n| connect_one(open.scheme, &addresses, n).with_context(|| format!("connection {n}")))
        .collect()
}

/// Makes the connecting end.
pub fn connect(open: &Open, to: &str) -> Result<Box<dyn End>> {
    Ok(Box::new(SocketEnd::new(connect_all(open, to)?, open)?))
}

/// As [`super::connect_and_close`].
pub fn connect_and_close(open: &Open, to: &str, connections: u64) -> Result<()> {
    if !open.scheme.is_unix() {
        widen_ports();
    }
    let addresses: Vec<&str> = to.split(',').collect();
    let mut message = vec![1; open.message_bytes];
    in_groups(connections, open.connections, |group| {
        let one = |_| -> Result<TcpStream> { Ok(connect_one(open.scheme, &addresses, 0)?.into()) };
        let mut sockets: Vec<TcpStream> = match (group, open.scheme) {
            (1, _) | (_, Scheme::Unix) => (0..group).map(one).collect::<Result<_>>()?,
            _ => connect_at_once(addresses[0].parse()?, group)?,
        };
        for socket in &mut sockets {
            socket.write_all(&message)?;
        }
        for socket in &mut sockets {
            socket.read_exact(&mut message)?;
        }
        if message.is_empty() {
            // Otherwise the connecting side would run ahead of the acceptor, until the kernel drops connections that the full
            // backlog cannot hold.
            sockets.iter().try_for_each(|socket| socket.shutdown(Shutdown::Write))?;
            for socket in &mut sockets {
                let _end = socket.read(&mut [0])?;
            }
        }
        Ok(())
    })
}

/// Makes TCP connections whose handshakes run at the same time.
fn connect_at_once(to: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let begin = || -> Result<TcpStream> {
        let socket = nix::sys::socket::socket(family, SockType::Stream, flags, None)?;
        match nix::sys::socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
            Ok(()) | Err(nix::Error::EINPROGRESS) => Ok(socket.into()),
            Err(error) => Err(error).with_context(|| format!("cannot connect to {to}")),
        }
    };
    let sockets = (0..count).map(|_| begin()).collect::<Result<Vec<_>>>()?;
    for socket in &sockets {
        poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE)?;
        socket.take_error()?.map_or(Ok(()), Err).with_context(|| format!("cannot connect to {to}"))?;
        socket.set_nonblocking(false)?;
    }
    Ok(sockets)
}

/// Connected sockets.
pub struct SocketEnd {
    sockets: Vec<OwnedFd>,
    open: Open,
    outbox: PageAligned,
    /// Offset in `outbox` of the next message.
    next: usize,
    inbox: Inbox,
    epoll: Option<OwnedFd>,
    zero_copy: Option<ZeroCopy>,
}

impl SocketEnd {
    /// Makes an end over `sockets`.
    pub fn new(sockets: Vec<OwnedFd>, open: &Open) -> Result<SocketEnd> {
        if let ([socket], true) = (&sockets[..], open.scheme.is_unix()) {
            // If the kernel refuses, the default remains.
            let _ = sockopt::set_socket_send_buffer_size_force(socket, UNIX_SEND_BYTES);
        }
        let epoll = match sockets.len() {
            1 => None,
            _ => Some(watch(&sockets)?),
        };
        let outbox = PageAligned::new(open.window_bytes.unwrap_or(0).max(open.message_bytes));
        let inbox = Inbox::new(open.message_bytes);
        let zero_copy = match &sockets[..] {
            [socket] if open.zero_copy && open.message_bytes >= zero_copy::BYTES_MIN => {
                Some(ZeroCopy::new(socket, open.message_bytes)?)
            }
            _ => None,
        };
        Ok(SocketEnd { sockets, open: *open, outbox, next: 0, inbox, epoll, zero_copy })
    }
}

/// Makes an epoll over all sockets, by their position.
fn watch(sockets: &[OwnedFd]) -> Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot make an epoll")?;
    for (n, socket) in sockets.iter().enumerate() {
        epoll::add(&epoll, socket, epoll::EventData::new_u64(n as u64), epoll::EventFlags::IN)
            .with_context(|| format!("cannot watch connection {n}"))?;
    }
    Ok(epoll)
}

/// Reads once; signals do not interrupt.
fn read(socket: &OwnedFd, memory: &mut [u8]) -> Result<usize> {
    loop {
        match rustix::io::read(socket, &mut *memory) {
            Ok(n) => return Ok(n),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e).context("cannot receive"),
        }
    }
}

/// Looks for bytes for as long as the peer is to, then waits for them.
fn read_spinning(socket: &OwnedFd, memory: &mut [u8]) -> Result<usize> {
    let mut came = Ok(0);
    let look = || match rustix::net::recv(socket, &mut *memory, RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN | Errno::INTR) => false,
        received => {
            came = received.map(|(n, _)| n);
            true
        }
    };
    if waiting::look(0, look) {
        return came.context("cannot receive");
    }
    let read = read(socket, memory);
    waiting::slept();
    read
}

/// Writes everything.
fn write_all(socket: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(e) => return Err(e).context("cannot send"),
        }
    }
    Ok(())
}

/// Sends files by the kernel. Checksums are taken through a mapping.
fn sendfile_all(socket: &OwnedFd, source: &Source, bytes: u64, touch: &mut dyn FnMut(&[u8])) -> Result<()> {
    let (mut left, mut at) = (bytes, Cursor::default());
    while left > 0 {
        let some = source.contiguous(at, left.min(SENDFILE_BYTES));
        touch(source.mapped(at, some));
        let file = &source.files()[at.file];
        let (mut offset, end) = (at.offset, at.offset + some);
        while offset < end {
            let max = (end - offset) as usize;
            let n = rustix::fs::sendfile(socket, &file.file, Some(&mut offset), max)
                .context("cannot sendfile")?;
            ensure!(n > 0, "{} became shorter while it was sent", file.path.display());
        }
        source.advance(&mut at, some);
        left -= some;
    }
    Ok(())
}

impl End for SocketEnd {
    fn send(&mut self, connection: usize, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        if let Some(zero_copy) = &mut self.zero_copy {
            return zero_copy.send(&self.sockets[connection], len, fill);
        }
        let (outbox, at) = (self.outbox.get(), self.next);
        self.next =
            if at + 2 * self.open.message_bytes > outbox.len() { 0 } else { at + self.open.message_bytes };
        let message = &mut outbox[at..at + len];
        fill(message);
        write_all(&self.sockets[connection], message)
    }

    fn send_files(&mut self, source: &Source, bytes: u64, touch: &mut dyn FnMut(&[u8])) -> Result<()> {
        let socket = &self.sockets[0];
        if self.open.scheme.sends_files() {
            return sendfile_all(socket, source, bytes, touch);
        }
        let buffer = &mut self.outbox.get()[..self.open.message_bytes];
        let (mut left, mut at) = (bytes, Cursor::default());
        while left > 0 {
            let message = &mut buffer[..left.min(self.open.message_bytes as u64) as usize];
            source.fill(&mut at, message)?;
            touch(message);
            write_all(socket, message)?;
            left -= message.len() as u64;
        }
        Ok(())
    }

    fn expect(&mut self, bytes: u64) {
        self.inbox.expect(bytes);
    }

    fn recv(&mut self, connection: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        let socket = &self.sockets[connection];
        if self.sockets.len() == 1 {
            return self.inbox.recv(|memory| read_spinning(socket, memory), take);
        }
        // Parts of messages of different connections do not wait for each other in one buffer.
        let buffer = self.inbox.whole_buffer();
        let n = read(socket, buffer)?;
        take(&buffer[..n]);
        Ok(n)
    }

    fn readable(&mut self, ready: &mut Vec<usize>) -> Result<()> {
        ready.clear();
        let Some(epoll) = &self.epoll else {
            ready.push(0);
            return Ok(());
        };
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => bail!("cannot wait for {} connections: {e}", self.sockets.len()),
        }
        ready.extend(events.iter().map(|event| event.data.u64() as usize));
        Ok(())
    }

    fn prefer_latency(&mut self) -> Result<()> {
        if !self.open.scheme.is_unix() {
            self.sockets.iter().try_for_each(|socket| sockopt::set_tcp_nodelay(socket, true))?;
        }
        Ok(())
    }

    fn described(&self) -> String {
        match self.open.scheme.is_unix() {
            true => String::new(),
            false => sockopt::tcp_congestion(&self.sockets[0]).unwrap_or_default(),
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.zero_copy.as_mut().map_or(Ok(()), |zero_copy| zero_copy.flush(&self.sockets[0]))
    }

    fn split(self: Box<Self>) -> Result<Vec<Box<dyn End + Send>>> {
        let open = Open { connections: 1, ..self.open };
        let ends = self.sockets.into_iter().map(|socket| {
            let end: Box<dyn End + Send> = Box::new(SocketEnd::new(vec![socket], &open)?);
            Ok(end)
        });
        ends.collect()
    }
}
