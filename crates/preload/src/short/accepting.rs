//! Accepting from the kernel and from the fabric, on one address, by processes that share a listener.
use super::connecting::socket;
use super::may_listen;
use super::names::Names;
use super::socket_pool::PooledSocket;
use crate::call::{errno, interrupted, letting_handlers_run, Failure, Outcome, AGAIN};
use crate::entry::listener::Listening;
use crate::entry::{Entry, State};
use crate::epoll_set::registering;
use crate::file_lock::FileLock;
use crate::log::note;
use crate::open_file::OpenFile;
use crate::sleep::{sleep_on, LOOK_EVERY};
use crate::twin::Twin;
use crate::unseen::looking;
use crate::{accepting, address, ending, fabric, lookup, real, table};
use libc::{c_int, sockaddr, socklen_t};
use pd_client::core::{ready, Socket};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of connections that wait to be accepted there are at least so many, for who finds no room goes to the
/// kernel for a while.
const BACKLOG_MIN: u32 = 128;

/// Looks before a sleep.
const SPINS: u32 = 20;

/// The fabric's end of a listener, opened at first. The caller holds the open file: a close that another thread begins ends what is opened
/// here, too.
fn end(listening: &Listening, fd: c_int, file: &OpenFile<Entry>) -> Option<Arc<Socket>> {
    if let Some(end) = listening.opened() {
        return Some(end);
    }
    let unix = file.socket().is_none_or(|socket| socket.unix.load(Ordering::Relaxed));
    if unix || !listening.may_open() {
        return None;
    }
    open(listening, file.number_or(fd), file.entry())
}

#[cold]
fn open(listening: &Listening, fd: c_int, entry: &Arc<Entry>) -> Option<Arc<Socket>> {
    let _opening = listening.in_turn();
    if let Some(end) = listening.current() {
        return Some(end);
    }
    if looking::unseen_waiter(&entry.fds(), false).is_some() {
        // The waiter would not be told of connections that are the fabric's alone.
        listening.keep_shut();
        return None;
    }
    let (family, local) = address::local(fd)?;
    let backlog = listening.backlog().max(BACKLOG_MIN);
    let v6_only = address::option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1);
    let takes = listening.may_take();
    let end = fabric::listen_short(fd, local, v6_only, backlog, takes)?;
    note!("descriptor {fd}: listens on {local}, on the fabric, too");
    listening.set_end(&end, takes, family == libc::AF_INET6, address::timeout_ns(fd, libc::SO_RCVTIMEO));
    // A close or shutdown of another thread's that came meanwhile has not seen this end. The number may be another socket's by then.
    let stays = entry.fds().contains(&fd) && !listening.is_barred();
    if stays && registering::watch_listener(entry, &end) {
        Some(end)
    } else {
        listening.bar();
        None
    }
}

/// Opens the fabric's end of a listener in a network of the policy's as soon as the process uses it: connections may be on their way that
/// the kernel cannot bring.
pub(crate) fn announce(fd: c_int) {
    if !may_listen() {
        return;
    }
    let Some(file) = lookup::find(fd).and_then(|_| table::file_now(fd)) else { return };
    if let Some(State::Listener(listener)) = file.socket().and_then(|socket| socket.state()) {
        end(&listener.short, fd, &file);
    }
}

/// `accept`: whichever of the two has a connection first. The kernel's if the fabric has no part in it.
///
/// # Safety
/// As for `accept4`.
pub(crate) unsafe fn accept(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Outcome<c_int> {
    if !may_listen() {
        return Err(Failure::Plain);
    }
    // Nothing is held between two attempts.
    // SAFETY: the caller's promise.
    letting_handlers_run(|| unsafe { attempt(fd, address, len, flags) })
}

/// A call in progress.
struct Call<'a> {
    file: &'a OpenFile<Entry>,
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
}

impl Call<'_> {
    /// Returns the listener's number, which is one of the library's once the program's is closed.
    fn number(&self) -> c_int {
        self.file.number_or(self.fd)
    }
}

/// [`accept`], up to a handler that ends a sleep.
unsafe fn attempt(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> Outcome<c_int> {
    // As in the kernel, a listener that another thread closes listens until the call is over.
    let file = lookup::find(fd).and_then(|_| table::file_now(fd)).ok_or(Failure::Plain)?;
    let socket = file.socket().ok_or(Failure::Plain)?;
    let Some(State::Listener(listener)) = socket.state() else { return Err(Failure::Plain) };
    let listening = &listener.short;
    listening.is_used();
    let end = end(listening, fd, &file).ok_or(Failure::Plain)?;
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(Failure::Plain);
    }
    let call = Call { file: &file, fd, address, len, flags };
    if listening.is_kernels_turn() && is_ready(call.number()) {
        // SAFETY: the caller's promise.
        if let Some(accepted) = unsafe { accept_kernel(listening, &call) }? {
            return Ok(accepted);
        }
    }
    let mut waits: Option<Option<Instant>> = None;
    loop {
        let taken = take(listening, &end, flags)?;
        let has_failed = matches!(taken, Taken::Failed);
        if let Taken::One(accepted, twin, pooled) = taken {
            // SAFETY: the caller's promise.
            let written = unsafe { write_address(&twin, address, len) };
            note!("descriptor {accepted}: accepted on the fabric alone");
            let adopted = lookup::adopt(accepted, Some(State::Twin(twin)));
            let Some(socket) = adopted.as_ref().and_then(|entry| entry.socket()) else {
                // SAFETY: made just now.
                unsafe { real::close(accepted) };
                return Err(Failure::Errno(libc::EMFILE));
            };
            adopted.iter().for_each(|entry| listening.has_accepted(entry));
            socket.facts.accepted(listening.is_v6(), flags, pooled);
            if let Err(errno) = written {
                ending::release(accepted);
                // SAFETY: made just now.
                unsafe { real::close(accepted) };
                return Err(Failure::Errno(errno));
            }
            return Ok(accepted);
        }
        if end.is_closed() && file.number().is_none() {
            // Another thread has shut the listener down, or waits for it where the library does not see it.
            return Err(Failure::Plain);
        }
        let until = match waits {
            Some(until) => until,
            None => {
                if socket.facts.nonblocking() {
                    return Err(Failure::Plain);
                }
                let timeout_ns = address::timeout_ns(call.number(), libc::SO_RCVTIMEO);
                *waits.insert((timeout_ns != 0).then(|| Instant::now() + Duration::from_nanos(timeout_ns)))
            }
        };
        if (0..SPINS).any(|_| {
            std::hint::spin_loop();
            !has_failed && has_come(&end)
        }) {
            continue;
        }
        let end = Some(&end).filter(|end| !has_failed && !end.is_closed());
        // SAFETY: the caller's promise.
        if let Some(accepted) = unsafe { wait(listening, &call, end, until) }? {
            return Ok(accepted);
        }
    }
}

fn has_come(end: &Socket) -> bool {
    end.ready(ready::IN) & ready::IN != 0
}

/// Waits for either; a connection of the kernel's is accepted at once. Without an end of the fabric's that can be waited for, waits for the
/// kernel's for a moment.
unsafe fn wait(
    listening: &Listening,
    call: &Call<'_>,
    end: Option<&Arc<Socket>>,
    until: Option<Instant>,
) -> Outcome<Option<c_int>> {
    let mut left = until.map(|until| until.saturating_duration_since(Instant::now()));
    if left == Some(Duration::ZERO) {
        return Err(AGAIN);
    }
    let ends: Vec<_> = end.map(|end| (end.clone(), ready::IN)).into_iter().collect();
    if ends.is_empty() {
        left = Some(left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY)));
    }
    let mut kernel = vec![libc::pollfd { fd: call.number(), events: libc::POLLIN, revents: 0 }];
    match sleep_on(ends, &mut kernel, left, std::ptr::null(), &|| false) {
        Err(Failure::Errno(libc::EINTR)) => interrupted(until.is_some())?,
        other => other?,
    }
    if kernel[0].revents == 0 && kernel[0].fd == call.number() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { accept_kernel(listening, call) }
}

fn is_ready(fd: c_int) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor.
    unsafe { real::poll(&mut poll, 1, 0) > 0 }
}

/// The kernel's `accept` without waiting, though the socket may be one that waits, and though another process may have taken
/// what was there: those that share a listener take turns.
unsafe fn accept_kernel(listening: &Listening, call: &Call<'_>) -> Outcome<Option<c_int>> {
    let fd = call.number();
    let joined = call.file.socket().is_some_and(|socket| socket.join_listener(fd));
    // Of the threads of this process...
    let _turn = listening.in_turn();
    // ...and of the processes that accept here, of which none has to change what the others see of the socket.
    let _turn = FileLock::new(fd);
    if !is_ready(fd) {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let accepted = unsafe { real::accept4(fd, call.address, call.len, call.flags) };
    if accepted >= 0 {
        accepting::claim(fd, accepted, joined);
        return Ok(Some(accepted));
    }
    match errno() {
        libc::EAGAIN => Ok(None),
        failed => Err(Failure::Errno(failed)),
    }
}

/// Outcome of [`take`].
enum Taken {
    /// No connection has come.
    Nothing,
    /// The connection that has come cannot be had.
    Failed,
    /// A connection and a descriptor for it, of a pooled socket if there is one.
    One(c_int, Box<Twin>, Option<PooledSocket>),
}

/// Takes a connection of the fabric's, if one has come.
fn take(listening: &Listening, end: &Arc<Socket>, flags: c_int) -> Outcome<Taken> {
    if !has_come(end) {
        return Ok(Taken::Nothing);
    }
    let v6 = listening.is_v6();
    let domain = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: makes a descriptor.
    let (fd, pooled) = unsafe { socket(domain, libc::SOCK_STREAM | flags, 0) };
    if fd < 0 {
        return Err(Failure::Errno(errno()));
    }
    ending::is_new(fd);
    let taken = end.accept().and_then(|accepted| Ok((accepted.peer_addr()?, accepted)));
    let (peer, accepted) = match taken {
        Ok(taken) => taken,
        Err(error) => {
            // SAFETY: made just now.
            unsafe { real::close(fd) };
            if error.errno() == libc::EAGAIN {
                return Ok(Taken::Nothing);
            }
            note!("cannot accept on the fabric: {error}");
            return Ok(Taken::Failed);
        }
    };
    accepted.set_nonblocking(true);
    let timeouts = [listening.recv_timeout_ns(), 0];
    let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
    let twin = Box::new(Twin::alone(accepted, nonblocking, timeouts, Names::new(v6, peer, false)));
    Ok(Taken::One(fd, twin, pooled))
}

unsafe fn write_address(twin: &Twin, at: *mut sockaddr, len: *mut socklen_t) -> Result<(), c_int> {
    if at.is_null() {
        return Ok(());
    }
    match &twin.names {
        // SAFETY: the caller's promise.
        Some(names) => unsafe { names.write_peer(at, len) },
        None => Ok(()),
    }
}
