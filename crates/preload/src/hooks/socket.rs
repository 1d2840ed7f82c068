//! Making, listening, connecting, accepting, shutting down, options.
use super::hooks;
use crate::accepting::{claim, look_at_listener};
use crate::aside::{leaving, receiving};
use crate::away::calls;
use crate::call::{aside, call, cancellation_point, checked, errno, set_errno, Failure, Outcome};
use crate::claim::watch;
use crate::entry::{self, Entry};
use crate::short::{accepting, connecting, passing, reuse};
use crate::twin::Twin;
use crate::{address, connect, ending, fabric, lookup, reach, real, short, start, table, unix};
use libc::{c_int, c_void, sockaddr, socklen_t};
use pd_client::core::KernelReason;
use pd_client::Shutdown;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Of the kernel's interface, not in `libc` everywhere.
const TCP_FASTOPEN_CONNECT: c_int = 30;
const TCP_MD5SIG_EXT: c_int = 32;
const SO_TIMESTAMPING_NEW: c_int = 65;
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
const TIMEOUTS: [c_int; 4] = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW];

hooks! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        start::bind_deep_objects();
        let (fd, pooled) = connecting::socket(domain, kind, protocol);
        if fd >= 0 {
            ending::is_new(fd);
            let stream = kind & 0xf == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP);
            let unix = unix::is_kind(domain, kind, protocol);
            let inet = stream && (domain == libc::AF_INET || domain == libc::AF_INET6);
            if inet && !short::wanted() && table::enabled() {
                table::mark_fresh(fd);
            } else if (inet || unix) && table::enabled() {
                aside(|| {
                    if let Some(entry) = lookup::adopt(fd, None) {
                        if let Some(socket) = entry.socket() {
                            socket.facts.made(domain, kind, pooled);
                            socket.unix.store(unix, Ordering::Relaxed);
                        }
                    }
                });
            }
        }
        fd
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        if table::look(fd) == table::PLAIN {
            return real::listen(fd, backlog);
        }
        call(|| listen_twinned(fd, backlog), || real::listen(fd, backlog))
    }

    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        calls::stays(fd);
        let bytes = len as usize;
        // The kernel says what is wrong with an address.
        let wrong = || bytes > size_of::<libc::sockaddr_storage>() || !reach::is_readable(address, bytes);
        if table::look(fd) == table::PLAIN || wrong() {
            return real::connect(fd, address, len);
        }
        let hopeless = if table::look(fd) == table::FRESH { connect::unreachable(address, len) } else { None };
        if let Some(reason) = hopeless {
            let result = real::connect(fd, address, len);
            if result == 0 || errno() == libc::EINPROGRESS {
                table::leave_fresh(fd);
                aside(|| fabric::stays_on_kernel(fd, reason));
            } else if errno() == libc::EHOSTUNREACH {
                return call(|| connect::connect_if_mapped(fd, address, len), || result);
            }
            return result;
        }
        cancellation_point();
        connect::connect(fd, address, len)
    }

    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        watch::before_read(fd);
        if table::look(fd) == table::PLAIN {
            let accepted = real::accept(fd, address, len);
            if accepted >= 0 {
                ending::is_new(accepted);
            }
            return accepted;
        }
        start::bind_deep_objects();
        cancellation_point();
        call(|| accepting::accept(fd, address, len, 0), || {
            let mut joined = false;
            aside(|| joined = look_at_listener(fd));
            let accepted = real::accept(fd, address, len);
            if accepted >= 0 {
                aside(|| claim(fd, accepted, joined));
            }
            accepted
        })
    }

    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        watch::before_read(fd);
        if table::look(fd) == table::PLAIN {
            let accepted = real::accept4(fd, address, len, flags);
            if accepted >= 0 {
                ending::is_new(accepted);
            }
            return accepted;
        }
        start::bind_deep_objects();
        cancellation_point();
        call(|| accepting::accept(fd, address, len, flags), || {
            let mut joined = false;
            aside(|| joined = look_at_listener(fd));
            let accepted = real::accept4(fd, address, len, flags);
            if accepted >= 0 {
                aside(|| claim(fd, accepted, joined));
            }
            accepted
        })
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        calls::stays(fd);
        if table::look(fd) == table::PLAIN {
            return real::shutdown(fd, how);
        }
        call(
            || {
                if let Some(entry::State::Listener(listener)) = lookup::find(fd).as_ref().and_then(|e| e.socket()?.state()) {
                    listener.short.bar();
                }
                let entry = lookup::twinned(fd)?;
                let twin = entry.twin().ok_or(Failure::Plain)?;
                let direction = match how {
                    libc::SHUT_RD => Shutdown::Read,
                    libc::SHUT_WR => Shutdown::Write,
                    libc::SHUT_RDWR => Shutdown::Both,
                    _ => return Err(Failure::Errno(libc::EINVAL)),
                };
                if how != libc::SHUT_WR {
                    twin.lender.settle();
                }
                let (gone, was_shut) = (twin.is_gone(), twin.send_shut.load(Ordering::Relaxed));
                let by_kernel = twin.progress().sends();
                let ends_both = match direction {
                    Shutdown::Read => was_shut,
                    Shutdown::Write => twin.recv_shut.load(Ordering::Relaxed),
                    Shutdown::Both => true,
                };
                // TCP tells the peer of no end of receiving, but resets the connection if more comes after both.
                let (direction, alone) = match direction {
                    Shutdown::Read if !twin.unix => (direction, !ends_both),
                    Shutdown::Write if !twin.unix && ends_both => (Shutdown::Both, false),
                    asked => (asked, false),
                };
                let end_one = |end: &Arc<pd_client::core::Socket>| {
                    match alone {
                        true => end.end_receiving()?,
                        false => end.shutdown(direction)?,
                    }
                    // Of one that was overtaken it is said again.
                    end.check_present()
                };
                twin.is_settled(&entry);
                if how != libc::SHUT_RD {
                    twin.send_ends.store(true, Ordering::Relaxed);
                }
                if ends_both && !twin.is_shut_both_ways() && twin.has_ended() {
                    twin.ended_before.store(true, Ordering::Relaxed);
                }
                // After a reset nothing is ended any more, and its error stays.
                let result = match gone {
                    true => Ok(()),
                    false => twin.with_present(&entry, end_one),
                };
                if result.is_err_and(Failure::is_kernels) {
                    return Err(Failure::Plain);
                }
                if how != libc::SHUT_RD {
                    twin.send_shut.store(true, Ordering::Relaxed);
                }
                if how != libc::SHUT_WR {
                    twin.recv_shut.store(true, Ordering::Relaxed);
                }
                if gone {
                    return Err(Failure::Errno(libc::ENOTCONN));
                }
                if twin.names.is_some() {
                    return result.map(|()| 0);
                }
                if twin.waits_for_claim() && !twin.is_settled(&entry) {
                    // The kernel's has to stay open until it is known which of the two is used.
                    return result.map(|()| 0);
                }
                // The kernel's connection follows: who asks for its state gets the right answer.
                receiving::before_shutdown(&entry, fd, twin);
                match checked(real::shutdown(fd, how)) {
                    // The peer has answered the fabric's end by closing both.
                    Err(Failure::Errno(libc::ENOTCONN)) if result.is_ok() && !was_shut && !by_kernel => Ok(0),
                    answer => answer,
                }
            },
            || real::shutdown(fd, how),
        )
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        if table::look(fd) == table::PLAIN {
            return real::setsockopt(fd, level, name, value, len);
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            crate::twin::may_linger();
        }
        // The kernel takes a negative time for a wait of none, and says later that it never ends.
        let shortest = libc::timeval { tv_sec: 0, tv_usec: 1 };
        let value = match level == libc::SOL_SOCKET && is_negative(name, value, len) {
            true => (&raw const shortest).cast(),
            false => value,
        };
        if may_make_unfit(level, name) || (level, name) == (libc::IPPROTO_TCP, libc::TCP_ULP) {
            calls::stays(fd);
        }
        if table::look(fd) == table::FRESH && !may_make_unfit(level, name) {
            return real::setsockopt(fd, level, name, value, len);
        }
        call(|| set_option(fd, level, name, value, len), || real::setsockopt(fd, level, name, value, len))
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        if table::look(fd) == table::PLAIN {
            return real::getsockopt(fd, level, name, value, len);
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            return call(|| take_error(fd, value, len), || real::getsockopt(fd, level, name, value, len));
        }
        if matches!((level, name), (libc::SOL_IP | libc::SOL_IPV6, ORIGINAL_DST)) {
            return call(
                || original(fd, level == libc::SOL_IPV6, value, len),
                || real::getsockopt(fd, level, name, value, len),
            );
        }
        let result = real::getsockopt(fd, level, name, value, len);
        if result == 0 && level == libc::IPPROTO_TCP && name == libc::TCP_INFO {
            aside(|| short_state(fd, value, *len));
        }
        result
    }

    // glibc has some functions by a second name, too.
    fn __connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        connect(fd, address, len)
    }
}

/// `SO_ORIGINAL_DST`, and `IP6T_SO_ORIGINAL_DST`.
const ORIGINAL_DST: c_int = 80;

/// Address that the peer of a connection without the kernel asked for, where that is not what it reached.
unsafe fn original(fd: c_int, v6: bool, value: *mut c_void, len: *mut socklen_t) -> Outcome<c_int> {
    let entry = lookup::twinned(fd)?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    if twin.names.is_none() {
        return Err(Failure::Plain);
    }
    let end = twin.current().ok_or(Failure::Plain)?;
    let asked = match end.original_addr() {
        // The kernel says so, too.
        Err(error) if error.errno() == libc::ENOENT => return Err(Failure::Plain),
        asked => asked.map_err(|error| Failure::Errno(error.errno()))?,
    };
    let size = if v6 { size_of::<libc::sockaddr_in6>() } else { size_of::<libc::sockaddr_in>() };
    // SAFETY: the caller's, if any.
    if !reach::is_readable(value, 1) || unsafe { reach::number(len.cast()) } < size as c_int {
        return Err(Failure::Plain);
    }
    // SAFETY: there is room, as the caller says.
    unsafe { address::write(asked, v6, value.cast(), len) }.map(|()| 0).map_err(Failure::Errno)
}

unsafe fn listen_twinned(fd: c_int, backlog: c_int) -> Outcome<c_int> {
    let entry = lookup::found(fd)?;
    if entry.twin().is_some_and(|twin| twin.names.is_some()) {
        return Err(Failure::Errno(libc::EINVAL));
    }
    reuse::renew(&entry);
    // SAFETY: a number.
    let result = checked(unsafe { real::listen(fd, backlog) })?;
    if entry.socket().is_some_and(|socket| socket.unix.load(Ordering::Relaxed)) && !unix::may_listen(fd) {
        table::give_up(&entry);
        return Ok(result);
    }
    listens(fd, &entry);
    if let Some(socket) = entry.socket() {
        if let Some(entry::State::Listener(listener)) = socket.state() {
            listener.short.set_backlog(backlog);
        }
    }
    short::accepting::announce(fd);
    Ok(result)
}

/// The error of a connection with a twin: the kernel's first, if that has the connection, too.
unsafe fn take_error(fd: c_int, value: *mut c_void, len: *mut socklen_t) -> Outcome<c_int> {
    const BYTES: socklen_t = size_of::<c_int>() as socklen_t;
    let entry = lookup::twinned(fd)?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    // SAFETY: the caller's, if any.
    if !reach::is_readable(value, 1) || unsafe { reach::number(len.cast()) } < BYTES as c_int {
        return Err(Failure::Plain);
    }
    let place = value.cast::<c_int>();
    if twin.names.is_none() {
        // SAFETY: the caller's promise.
        checked(unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, value, len) })?;
        // SAFETY: the kernel has written it.
        if unsafe { place.read_unaligned() } != 0 {
            if !twin.unix && !twin.tells_failure() {
                // By another call, which had it from the fabric.
                // SAFETY: as above.
                unsafe { place.write_unaligned(0) };
            }
            return Ok(0);
        }
    }
    receiving::is_told(&entry, twin);
    let error = match twin.with_present(&entry, |end| end.take_error()) {
        Ok(error) => error,
        Err(failure) if failure.is_kernels() => return Err(Failure::Plain),
        Err(_) => 0,
    };
    // SAFETY: there is room, as the caller says.
    unsafe {
        place.write_unaligned(error);
        len.write(BYTES);
    }
    Ok(0)
}

/// Returns whether a connection without one of the kernel's is there, where a program asks the kernel.
unsafe fn short_state(fd: c_int, value: *mut c_void, len: socklen_t) {
    const ESTABLISHED: u8 = 1;
    let Ok(entry) = lookup::twinned(fd) else { return };
    if entry.twin().is_some_and(|twin| twin.names.is_some()) && len > 0 && !value.is_null() {
        // SAFETY: the kernel has written `len` bytes; the first is the state.
        unsafe { value.cast::<u8>().write(ESTABLISHED) };
    }
}

fn listens(fd: c_int, entry: &Arc<Entry>) {
    let Some(socket) = entry.socket() else { return };
    if entry.twin().is_some() || socket.unfit().is_some() {
        return;
    }
    // The option would hold connections back until bytes come over TCP, which never come.
    if address::option(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT).unwrap_or(0) > 0 {
        let none: c_int = 0;
        let len = size_of::<c_int>() as socklen_t;
        // SAFETY: an integer and its size.
        unsafe {
            real::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, (&raw const none).cast(), len)
        };
    }
    socket.join_listener(fd);
}

unsafe fn set_option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Outcome<c_int> {
    let entry = lookup::found(fd)?;
    let socket = entry.socket().ok_or(Failure::Plain)?;
    if level == libc::SOL_SOCKET && TIMEOUTS.contains(&name) {
        socket.facts.touch();
    }
    // SAFETY: the caller says that so many bytes are there.
    let number = || if len as usize >= size_of::<c_int>() { unsafe { reach::number(value) } } else { 0 };
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => socket.facts.behind.set_nodelay(number() != 0),
        _ => passing::alter(&entry),
    }
    let twin = entry.twin().filter(|twin| !twin.is_abandoned());
    match (level, name) {
        // The kernel would encrypt what goes over TCP: nothing goes there.
        (libc::IPPROTO_TCP, libc::TCP_ULP) if twin.is_some() => {
            return Err(Failure::Errno(libc::ENOPROTOOPT))
        }
        _ if is_of_tcp_alone(level, name) && number() != 0 => {
            socket.make_unfit(KernelReason::Option);
            if let Some(twin) = twin {
                leaving::leave(&entry, twin, KernelReason::Option);
            }
        }
        // A peer's process cannot know: from now on nobody has a twin here.
        _ if unix::adds_to_messages(level, name) && number() != 0 && twin.is_none() => {
            socket.make_unfit(KernelReason::Option);
            if matches!(socket.state(), Some(entry::State::Listener(_))) {
                fabric::unlisten(fd);
                table::give_up(&entry);
            }
        }
        // A hint only. See `listens`.
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)
            if matches!(socket.state(), Some(entry::State::Listener(_))) =>
        {
            return Ok(0);
        }
        _ => {}
    }
    // SAFETY: the caller's promise.
    let result = checked(unsafe { real::setsockopt(fd, level, name, value, len) })?;
    if let Some(twin) = twin.filter(|_| level == libc::SOL_SOCKET) {
        set_timeouts(fd, name, &entry, twin);
    }
    Ok(result)
}

/// Tells whether the option is a time-out below nothing.
fn is_negative(name: c_int, value: *const c_void, len: socklen_t) -> bool {
    let is_time = TIMEOUTS.contains(&name) && len as usize >= size_of::<libc::timeval>();
    let time = value.cast::<libc::timeval>();
    // SAFETY: so much is readable.
    is_time
        && reach::is_readable(time, size_of::<libc::timeval>())
        && unsafe { time.read_unaligned() }.tv_sec < 0
}

/// Returns whether a program may set the option so that the socket is not for the fabric.
fn may_make_unfit(level: c_int, name: c_int) -> bool {
    is_of_tcp_alone(level, name) || unix::adds_to_messages(level, name)
}

/// Returns whether the option asks for what only a connection of the kernel's can do.
fn is_of_tcp_alone(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => [libc::SO_OOBINLINE, libc::SO_TIMESTAMPING, SO_TIMESTAMPING_NEW].contains(&name),
        libc::IPPROTO_TCP => {
            [TCP_FASTOPEN_CONNECT, libc::TCP_MD5SIG, TCP_MD5SIG_EXT, libc::TCP_REPAIR].contains(&name)
        }
        _ => false,
    }
}

fn set_timeouts(fd: c_int, name: c_int, entry: &Arc<Entry>, twin: &Twin) {
    match name {
        libc::SO_RCVTIMEO => twin.recv_timeout_ns.store(address::timeout_ns(fd, name), Ordering::Relaxed),
        libc::SO_SNDTIMEO => twin.send_timeout_ns.store(address::timeout_ns(fd, name), Ordering::Relaxed),
        libc::SO_SNDBUF | libc::SO_RCVBUF => {
            let _ = twin.with_present(entry, |end| {
                crate::twin::fit_buffers(fd, end);
                Ok(())
            });
        }
        libc::SO_RCVLOWAT => {
            let lowat = address::option(fd, libc::SOL_SOCKET, name).unwrap_or(1).max(1);
            twin.recv_lowat.store(lowat as usize, Ordering::Relaxed);
            // One of AF_UNIX is readable with the first byte.
            if !twin.unix {
                let head = twin.window().map_or(0, |back| back.head_bytes());
                let _ = twin.with_present(entry, |end| end.set_recv_lowat(lowat as u64 + head));
            }
        }
        _ => {}
    }
    set_errno(0);
}
