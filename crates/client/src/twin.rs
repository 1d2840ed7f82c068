//! Twins of kernel sockets (`pd_abi::TwinOperation`): the kernel connects and accepts, the bytes go here. For
//! libraries that serve programs which know only the kernel's sockets.
//!
//! A connecting program calls [`connect`] with a socket that is bound and not yet connected, then connects it. A listening
//! program calls [`listen`], accepts from the kernel, and [`claim`]s the twin of the accepted socket. Another process that
//! holds the same socket (after `fork`, `exec`, or by a message) [`take`]s its twin before use.
//! Close the kernel's socket first, then the twin: while another process holds the former, the twin's end lives on.
use crate::attachment::Attachment;
use crate::catch_up::{join, note_made, Made};
use crate::error::{check, Error, Result};
use crate::link::Link;
use crate::process;
use crate::send::copied::WINDOW_BYTES_MAX;
use crate::socket::{Control, Socket, State, Takes};
use crate::turn::lock;
use pd_abi::{
    Address, Event, Frame, FrameKind, Operation, SocketId, TwinOperation, TwinRequest, TAKEN_ASIDE,
};
use rustix::io::Errno;
use rustix::net::{getpeername, getsockname, sockopt, AddressFamily, SocketAddrUnix};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// From now on connections to the listening socket `fd` may have twins. Every process that accepts from it says
/// so; the word holds until it is taken back or the process ends. True: the listener is in a network of the policy's, so that connections
/// may come to it that the kernel cannot bring.
///
/// # Errors
/// `ENETDOWN` without a driver; `EADDRNOTAVAIL` if another container owns the address.
pub fn listen(fd: BorrowedFd<'_>) -> Result<bool> {
    let attachment = process::attachment()?;
    let answer = ask(&attachment, fd, TwinOperation::Listen, Ends::of(fd, TwinOperation::Listen, None))?;
    Ok(answer.number() != 0)
}

/// Takes [`listen`] back. A process that is not attached has said nothing, as the child of a server that closes its parent's listeners.
///
/// # Errors
/// `ENOENT` if it was not said.
pub fn unlisten(fd: BorrowedFd<'_>) -> Result<()> {
    let none = || Error::new(Errno::NOENT, "this process has not told the driver of the listener");
    let attachment = process::living_attachment().ok_or_else(none)?;
    ask(&attachment, fd, TwinOperation::Unlisten, Ends::of(fd, TwinOperation::Unlisten, None)).map(drop)
}

/// A twin for `fd`, which is bound (the port is enough) and is about to be connected to `to`. It can send at once.
///
/// # Errors
/// `ECONNREFUSED` or `EHOSTUNREACH` if nobody there takes twins: the kernel's connection has to do. `EREMOTE` if `to` means an address of
/// another network, to which the kernel has no way: [`Socket::connect`] of a socket [`Socket::beside_kernel`] reaches it. `EACCES`,
/// `EMFILE` by policy; `ENOBUFS`, `ENETDOWN`.
pub fn connect(fd: BorrowedFd<'_>, to: SocketAddr) -> Result<Arc<Socket>> {
    twin(fd, TwinOperation::Connect, Some(to))
}

/// Makes a twin like [`connect`], for an AF_UNIX socket that is about to be connected to the file at `path`.
///
/// # Errors
/// `ECONNREFUSED` if nobody there takes twins; `ENOENT` and others if there is no file; else as [`connect`].
pub fn connect_unix(fd: BorrowedFd<'_>, path: &Path) -> Result<Arc<Socket>> {
    let file = file(path).map_err(|error| Error::new(error, format!("no file {}", path.display())))?;
    twin_of(fd, TwinOperation::Connect, Ends { local: Address::FILE, peer: file }, None)
}

/// The twin of `fd`, which was just accepted from a listener that this process has registered ([`listen`]), if its peer made one.
/// The driver is only asked while there are such.
///
/// # Errors
/// `EACCES`, `EMFILE`, `ENETDOWN`.
pub fn claim(fd: BorrowedFd<'_>) -> Result<Option<Arc<Socket>>> {
    match process::attachment()?.may_claim() {
        true => found(twin(fd, TwinOperation::Claim, None)),
        false => Ok(None),
    }
}

/// A twin for `fd`, which is connected to the file of this device and inode, and had one before.
///
/// # Errors
/// As [`connect_unix`].
pub fn connect_again(fd: BorrowedFd<'_>, (device, inode): (u64, u64)) -> Result<Arc<Socket>> {
    twin_of(
        fd,
        TwinOperation::Connect,
        Ends { local: Address::FILE, peer: Address::file(device, inode) },
        None,
    )
}

/// [`claim`] for a connection that had a twin before: its process need not accept.
///
/// # Errors
/// As [`claim`].
pub fn claim_again(fd: BorrowedFd<'_>) -> Result<Option<Arc<Socket>>> {
    found(twin(fd, TwinOperation::Claim, None))
}

/// The twin of the connected socket `fd`, which another process had, if there is one. What that process received
/// and had not given back comes (again) to this one; what it sent is delivered first.
///
/// # Errors
/// `EALREADY` if the twin is this process's own; `EREMCHG` if its connection has gone on in the kernel; `EOPNOTSUPP` if the driver's movers cannot pass it on;
/// `ENETDOWN`.
pub fn take(fd: BorrowedFd<'_>) -> Result<Option<Arc<Socket>>> {
    match found(twin(fd, TwinOperation::Take, None)) {
        Err(error) if error.errno() == libc::EALREADY => {
            // The twin may have been closed here, and the question have overtaken that.
            process::attachment()?.settle();
            found(twin(fd, TwinOperation::Take, None))
        }
        taken => taken,
    }
}

/// Withdraws this twin, which one of the process's own connections made: nobody can claim it any more. What it has sent can
/// go another way then: nobody has received any of it.
///
/// # Errors
/// `EISCONN` if the twin has been claimed.
pub fn withdraw(socket: &Socket) -> Result<()> {
    let control = lock(&socket.control);
    control
        .call(control.link.request(Operation::Withdraw), || "cannot withdraw the twin".to_owned())
        .map(drop)
}

fn found(twin: Result<Arc<Socket>>) -> Result<Option<Arc<Socket>>> {
    match twin {
        Err(error) if error.errno() == libc::ENOENT => Ok(None),
        other => other.map(Some),
    }
}

fn twin(fd: BorrowedFd<'_>, operation: TwinOperation, to: Option<SocketAddr>) -> Result<Arc<Socket>> {
    twin_of(fd, operation, Ends::of(fd, operation, to), to)
}

/// The two ends of a socket, as a request names them.
struct Ends {
    local: Address,
    peer: Address,
}

impl Ends {
    fn of(fd: BorrowedFd<'_>, operation: TwinOperation, to: Option<SocketAddr>) -> Self {
        if sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX) {
            let names = operation == TwinOperation::Listen;
            let bound = || SocketAddrUnix::try_from(getsockname(fd).ok()?).ok()?.path_bytes().map(file_at);
            let local = if names { bound().and_then(|file| file.ok()) } else { None };
            return Self { local: local.unwrap_or(Address::FILE), peer: Address::FILE };
        }
        let peer = match operation {
            TwinOperation::Claim | TwinOperation::Take => peer_address(fd),
            _ => to,
        };
        let address = |address: Option<SocketAddr>| address.map_or(Address::NONE, Address::from);
        Self { local: address(own_address(fd)), peer: address(peer) }
    }
}

/// The file at a path, as a socket's address.
fn file(path: &Path) -> rustix::io::Result<Address> {
    let status = rustix::fs::stat(path)?;
    Ok(Address::file(status.st_dev, status.st_ino))
}

fn file_at(path: &[u8]) -> rustix::io::Result<Address> {
    file(Path::new(OsStr::from_bytes(path)))
}

fn twin_of(
    fd: BorrowedFd<'_>,
    operation: TwinOperation,
    ends: Ends,
    to: Option<SocketAddr>,
) -> Result<Arc<Socket>> {
    let attachment = process::attachment()?;
    let channel = attachment.channel()?;
    if operation != TwinOperation::Take {
        // Without memory for its first bytes the connection has to be the kernel's.
        attachment.check_room()?;
    }
    let answer = ask(&attachment, fd, operation, ends)?;
    let peer = to.or_else(|| peer_address(fd));
    let number = answer.number();
    let ring_bytes = number & !TAKEN_ASIDE;
    let control = Control {
        link: Arc::new(Link::new(attachment, SocketId(answer.socket), channel).connected()),
        state: State::Connected,
        v6: peer.is_some_and(|peer| peer.is_ipv6()),
        v6_only: false,
        beside_kernel: true,
        receives_shared: true,
        takes: Takes::All,
        local: own_address(fd),
        local_inexact: false,
        peer,
        backlog: 0,
        // Sends are copies, and a poll needs the size of their ring.
        send_ring_bytes: ring_bytes.min(WINDOW_BYTES_MAX),
        receive_ring_bytes: ring_bytes,
        error: 0,
        attach_tried: None,
        bound: None,
        kernel_options: Vec::new(),
    };
    let socket = Socket::assemble(control, true);
    match operation {
        TwinOperation::Connect => note_made(Made::Twin(SocketId(answer.socket)), &socket),
        TwinOperation::Claim => join(&socket, Made::Twin(SocketId(answer.second() as u32))),
        _ => {}
    }
    socket.expect_moves();
    for flag in [&socket.taken, &socket.inherits] {
        flag.store(operation == TwinOperation::Take, Ordering::Relaxed);
    }
    if number & TAKEN_ASIDE != 0 {
        socket.set_taken_aside();
    }
    Ok(socket)
}

fn own_address(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    SocketAddr::try_from(getsockname(fd).ok()?).ok()
}

fn peer_address(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    SocketAddr::try_from(getpeername(fd).ok()??).ok()
}

fn ask(
    attachment: &Arc<Attachment>,
    fd: BorrowedFd<'_>,
    operation: TwinOperation,
    ends: Ends,
) -> Result<Event> {
    let failed = |errno: Errno| Error::new(errno, format!("not a socket that can have a twin: {errno}"));
    let cookie = sockopt::socket_cookie(fd).map_err(failed)?;
    let channel = attachment.channel()?;
    let answer = channel.call_by(attachment, |tag| {
        let request = TwinRequest {
            operation: operation as u32,
            tag,
            descriptor: fd.as_raw_fd() as u32,
            cookie,
            local: ends.local,
            peer: ends.peer,
        };
        attachment.say(&Frame::new(FrameKind::Twin).with_id(channel.index()).with_twin(&request))
    })?;
    check(answer, || format!("no twin ({operation:?})"))
}
