//! `splice` and its kin, and pipes ([`crate::pipe`]).
use super::hooks;
use crate::address::is_nonblocking;
use crate::away::calls::moving_as;
use crate::call::{aside, checked, errno, interrupted, Failure, Outcome, AGAIN};
use crate::counts::Moves;
use crate::entry::{Entry, Thing};
use crate::held::Held;
use crate::pipe::{bytes_in, numbers, Found, Pipe};
use crate::sleep::kernel_poll;
use crate::twin::waiting::Waits;
use crate::{ending, real, table};
use libc::{c_int, c_uint, iovec, loff_t, size_t, ssize_t};
use pd_client::Error;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that a writable pipe takes without waiting.
const PIPE_BYTES: usize = 4096;
/// Most that one `splice` out of a connection moves by the kernel's pipe.
const SPLICE_BYTES_MAX: usize = 64 << 10;

hooks! {
    fn pipe(ends: *mut c_int) -> c_int {
        made(real::pipe(ends), ends)
    }

    fn pipe2(ends: *mut c_int, flags: c_int) -> c_int {
        // A pipe of packets is no stream.
        if flags & libc::O_DIRECT != 0 {
            return real::pipe2(ends, flags);
        }
        made(real::pipe2(ends, flags), ends)
    }

    fn splice(
        from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t, len: size_t, flags: c_uint,
    ) -> ssize_t {
        let by_number = |from, to| real::splice(from, from_offset, to, to_offset, len, flags);
        let kernels = || by_number(from, to);
        if table::look(from) == table::PLAIN && table::look(to) == table::PLAIN {
            return kernels();
        }
        let is_bare = from_offset.is_null() && to_offset.is_null();
        // Of such calls the kernel says what is wrong.
        if len == 0 || flags & !KNOWN_FLAGS != 0 {
            return kernels();
        }
        let is_socket = |fd| ![table::PLAIN, table::PIPE].contains(&table::look(fd));
        if !is_bare && (is_socket(from) || is_socket(to)) {
            return kernels();
        }
        match (numbers::find(from), numbers::find(to)) {
            (None, None) => by_kernels_pipe(from, to, len, flags, by_number),
            (Some(_), Some(_)) => {
                aside(|| [from, to].into_iter().for_each(numbers::expose));
                kernels()
            }
            (Some(pipe), None) if is_bare && table::look(to) != table::PLAIN && from == pipe.ends[0] => {
                let plain = |to| pipe.used_by_kernel(|| by_number(from, to));
                moving_as(to, Moves::Sends, |held| from_private(&pipe, held, len, flags), plain, bytes)
            }
            (None, Some(pipe)) if is_bare && table::look(from) != table::PLAIN && to == pipe.ends[1] => {
                let plain = |from| pipe.used_by_kernel(|| by_number(from, to));
                moving_as(from, Moves::Receives, |held| to_private(held, &pipe, len, flags), plain, bytes)
            }
            (Some(pipe), None) | (None, Some(pipe)) => pipe.used_by_kernel(kernels),
        }
    }

    fn tee(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
        [from, to].into_iter().for_each(numbers::passes);
        real::tee(from, to, len, flags)
    }

    fn vmsplice(fd: c_int, pieces: *const iovec, count: size_t, flags: c_uint) -> ssize_t {
        numbers::passes(fd);
        real::vmsplice(fd, pieces, count, flags)
    }
}

/// Flags that `splice` knows.
const KNOWN_FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

unsafe fn made(result: c_int, ends: *const c_int) -> c_int {
    if result == 0 && table::enabled() && !table::is_borrowed() {
        // SAFETY: the kernel has written two numbers.
        let ends = unsafe { ends.cast::<[c_int; 2]>().read_unaligned() };
        aside(|| {
            let entry = Entry::new(Thing::Pipe(Arc::new(Pipe::new(ends))));
            for fd in ends {
                ending::is_new(fd);
                if !table::set(fd, &entry) {
                    entry.pipe().inspect(|pipe| pipe.expose());
                    table::give_up(&entry);
                    break;
                }
            }
        });
    }
    result
}

fn bytes(moved: ssize_t) -> i64 {
    moved as i64
}

/// A splice where the pipe is not known, or the kernel's.
unsafe fn by_kernels_pipe(
    from: c_int,
    to: c_int,
    len: usize,
    flags: c_uint,
    plain: impl Fn(c_int, c_int) -> ssize_t,
) -> ssize_t {
    if table::look(to) == table::PLAIN {
        let work = |held: &Held| into_pipe(held, to, len, flags);
        return moving_as(from, Moves::Receives, work, |from| plain(from, to), bytes);
    }
    let work = |held: &Held| match held.twinned() {
        Ok(_) if !is_end(from, libc::O_RDONLY) => Err(Failure::Plain),
        Ok(_) => from_pipe(from, held, len, flags),
        Err(Failure::Kernel) => Err(Failure::Kernel),
        Err(_) => into_pipe(&Held::new(from), to, len, flags),
    };
    moving_as(to, Moves::Sends, work, |to| plain(from, to), bytes)
}

/// [`to_pipe`] where the number may be no pipe's.
fn into_pipe(held: &Held, to: c_int, len: usize, flags: c_uint) -> Outcome<ssize_t> {
    match is_end(to, libc::O_WRONLY) {
        true => to_pipe(held, to, len, flags),
        false => Err(Failure::Plain),
    }
}

/// Bytes that a connection has received go to a private pipe.
fn to_private(held: &Held, pipe: &Arc<Pipe>, len: usize, flags: c_uint) -> Outcome<ssize_t> {
    let entry = held.twinned()?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    let by_kernel = || pipe.used_by_kernel(|| to_pipe(held, pipe.ends[1], len, flags));
    if !twin.may_lend() {
        return by_kernel();
    }
    let source = &twin.lender;
    if !source.is_of(pipe) {
        source.settle();
    }
    let dont_wait = flags & libc::SPLICE_F_NONBLOCK != 0;
    let waits = twin.splice_waits(twin.unix && dont_wait);
    let mut waits_for = Waits::default();
    loop {
        let lent = pipe.alone(|| {
            let room = match pipe.room(source) {
                Found::Bytes(room) if room > 0 => room,
                Found::Bytes(_) => return Err(Failure::Errno(libc::EBUSY)),
                Found::Kernels => return Ok(None),
            };
            pipe.expect(source);
            if !twin.may_lend() {
                pipe.settled(source);
                return Ok(None);
            }
            let lent = twin.lend(entry, len.min(room), &mut |socket, lent| {
                pipe.lend(source, socket, lent.ptr.as_ptr(), lent.len);
            });
            pipe.settled(source);
            lent.map(Some)
        });
        match lent {
            Ok(Some(lent)) => return Ok(lent as ssize_t),
            Ok(None) => return by_kernel(),
            // The pipe is full, as far as bytes can be lent.
            Err(Failure::Errno(libc::EBUSY)) => {
                let has_some = matches!(pipe.there(), Found::Bytes(1..));
                return if has_some && (dont_wait || is_nonblocking(pipe.ends[1])) {
                    Err(AGAIN)
                } else {
                    by_kernel()
                };
            }
            Err(AGAIN) if waits => twin.wait_for_bytes(entry, &mut waits_for)?,
            Err(failure) => return Err(failure),
        }
    }
}

/// Sends the bytes of a private pipe by a connection.
fn from_private(pipe: &Arc<Pipe>, held: &Held, len: usize, flags: c_uint) -> Outcome<ssize_t> {
    let entry = held.twinned()?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    let by_kernel = || pipe.used_by_kernel(|| from_pipe(pipe.ends[0], held, len, flags));
    let dont_wait = flags & libc::SPLICE_F_NONBLOCK != 0;
    if twin.is_shared() {
        return by_kernel();
    }
    let (mut moved, mut waits_for) = (0, Waits::default());
    loop {
        let sent = pipe.alone(|| {
            let there = match pipe.there() {
                Found::Kernels => return Ok(None),
                // A connection's own bytes could be given back while it sends them.
                Found::Bytes(_) if pipe.is_lent_by(&twin.lender) => return Ok(None),
                Found::Bytes(there) => there,
            };
            if there == 0 {
                return Ok(Some(0));
            }
            let pieces = pipe.pieces(there.min(len - moved));
            // SAFETY: lent memory, until it is given back. Its sender may write it meanwhile, and bytes may be anything.
            let sent = unsafe { twin.transmit(entry, &pieces, libc::MSG_DONTWAIT) }?;
            pipe.gone(sent);
            Ok(Some(sent))
        });
        match sent {
            Ok(Some(0)) | Ok(None) if moved > 0 => break,
            Ok(Some(0)) if dont_wait || is_nonblocking(pipe.ends[0]) => return Err(AGAIN),
            Ok(Some(0)) | Ok(None) => return by_kernel(),
            Ok(Some(sent)) => {
                moved += sent;
                if moved == len || !twin.splice_waits(dont_wait) {
                    break;
                }
            }
            Err(AGAIN) if twin.splice_waits(dont_wait) => match twin.wait_for_room(entry, &mut waits_for) {
                Ok(()) => {}
                Err(_) if moved > 0 => break,
                Err(failure) => return Err(failure),
            },
            Err(_) if moved > 0 => break,
            Err(failure) => return Err(failure),
        }
    }
    Ok(moved as ssize_t)
}

/// Returns whether it is an end of a pipe that is for reading, or for writing.
fn is_end(fd: c_int, wanted: c_int) -> bool {
    // SAFETY: only asks.
    let (size, flags) =
        unsafe { (real::fcntl(fd, libc::F_GETPIPE_SZ, 0), real::fcntl(fd, libc::F_GETFL, 0)) };
    size >= 0 && [wanted, libc::O_RDWR].contains(&(flags & libc::O_ACCMODE))
}

/// Waits until the pipe is ready, if the call waits. A handler that is due runs where the call holds nothing.
fn wait_for(fd: c_int, events: i16, wait: bool) -> Outcome<()> {
    let limit = (!wait).then_some(Duration::ZERO);
    loop {
        let mut poll = [libc::pollfd { fd, events, revents: 0 }];
        match kernel_poll(&mut poll, limit, std::ptr::null()) {
            Ok(0) => return Err(AGAIN),
            Ok(_) => return Ok(()),
            Err(Failure::Errno(libc::EINTR)) => interrupted(false)?,
            Err(failure) => return Err(failure),
        }
    }
}

fn from_pipe(from: c_int, held: &Held, len: usize, flags: c_uint) -> Outcome<ssize_t> {
    let entry = held.twinned()?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    let wait = flags & libc::SPLICE_F_NONBLOCK == 0;
    wait_for(from, libc::POLLIN, wait)?;
    // A read of the bytes that are there does not wait.
    let there = bytes_in(from).min(len);
    let mut fill = |place: *mut u8, room| {
        // SAFETY: the place has so much room.
        let filled = unsafe { real::read(from, place.cast(), room) };
        usize::try_from(filled).map_err(|_| Error::with_errno(errno(), "the pipe cannot be read"))
    };
    let sent = twin.transmit_from(entry, there, wait, &mut fill, &mut |_, _| Ok(None))?;
    Ok(sent as ssize_t)
}

fn to_pipe(held: &Held, to: c_int, len: usize, flags: c_uint) -> Outcome<ssize_t> {
    let entry = held.twinned()?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    let wait = flags & libc::SPLICE_F_NONBLOCK == 0;
    wait_for(to, libc::POLLOUT, wait)?;
    let mut bytes = vec![0u8; len.min(SPLICE_BYTES_MAX)];
    let dont_wait = if twin.unix && !wait { libc::MSG_DONTWAIT } else { 0 };
    let at = bytes.as_mut_ptr();
    let receive = |len: usize, flags| {
        let piece = [iovec { iov_base: at.cast(), iov_len: len }];
        // SAFETY: the buffer's memory.
        unsafe { twin.receive(entry, &piece, flags, false) }
    };
    let received = receive(bytes.len(), libc::MSG_PEEK | dont_wait)?;
    if received == 0 {
        return Ok(0);
    }
    let written = write_now(to, &bytes[..received])?;
    receive(written as usize, libc::MSG_DONTWAIT)?;
    Ok(written)
}

/// Writes what a writable pipe takes without waiting.
fn write_now(pipe: c_int, bytes: &[u8]) -> Outcome<ssize_t> {
    // SAFETY: only asks.
    let size = unsafe { real::fcntl(pipe, libc::F_GETPIPE_SZ, 0) };
    let is_free = bytes_in(pipe) == 0 && usize::try_from(size).is_ok_and(|size| size >= bytes.len());
    // Room behind other bytes depends on how those were written. An opening of its own does not wait.
    let own = if is_free || bytes.len() <= PIPE_BYTES { -1 } else { open_again(pipe) };
    let (to, most) = match own {
        -1 if !is_free => (pipe, PIPE_BYTES),
        -1 => (pipe, bytes.len()),
        own => (own, bytes.len()),
    };
    // SAFETY: the slice's memory.
    let written = checked(unsafe { real::write(to, bytes.as_ptr().cast(), most.min(bytes.len())) });
    if own >= 0 {
        // SAFETY: made here.
        unsafe { real::close(own) };
    }
    written
}

/// Opens a pipe's write end once more, so that writes do not wait; -1: it cannot be.
fn open_again(pipe: c_int) -> c_int {
    let path = format!("/proc/self/fd/{pipe}\0");
    let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: a path that ends with a zero byte.
    let fd = unsafe { real::system_call(libc::SYS_openat, arguments) };
    c_int::try_from(fd).ok().filter(|&fd| fd >= 0).unwrap_or(-1)
}
