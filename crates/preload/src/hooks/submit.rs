//! Requests of the kernel's asynchronous input and output (`io_submit` of libaio, and the system call). On a socket the kernel carries them
//! out within `io_submit`, and waits as the socket does; only waits for readiness last longer.
//!
//! A connection that gets such a request leaves the fabric, and the process makes no more there. What still comes by the fabric the library
//! receives by its own call. Then the kernel is to tell of the result: the request goes to it as another one, which moves no bytes of
//! the program's and has this result. So events, `io_getevents` and eventfds are the kernel's alone. A connection that cannot leave has all its
//! bytes moved so.
use super::{hooks, receive, send};
use crate::aside::{leaving, receiving};
use crate::away::calls;
use crate::call::{aside, errno, set_errno};
use crate::sleep::kernel_poll;
use crate::unseen::looking;
use crate::{lookup, reach, real, table};
use libc::{c_int, c_long, c_ulong, c_void, iovec, msghdr};
use pd_client::core::{sleep_for, KernelReason};
use std::time::Duration;

/// The kernel's `struct iocb`, on processors whose numbers begin with their lowest byte.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Request {
    data: u64,
    key: u32,
    moves: c_int,
    operation: u16,
    priority: i16,
    fd: c_int,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: c_int,
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const POLL: u16 = 5;
const READ_PIECES: u16 = 7;
const WRITE_PIECES: u16 = 8;

/// Time between tries of a request whose bytes have moved, while other threads fill the room for events.
const AGAIN_AFTER: Duration = Duration::from_millis(1);

/// No address of a program's. The kernel looks at it last.
const NOWHERE: u64 = !0xfff;

type Place = *mut *mut Request;

hooks! {
    // Of libaio, which makes the system call by itself. The result of one that fails is a negative errno.
    fn io_submit(context: c_ulong, count: c_long, list: *mut *mut Request) -> c_int {
        submit(context, count, list) as c_int
    }
}

/// The system call `io_submit`. Returns what that does: a negative errno if it fails.
///
/// # Safety
/// As for the call.
pub(super) unsafe fn submit(context: c_ulong, count: c_long, list: Place) -> isize {
    let len = usize::try_from(count).unwrap_or(0);
    if table::end() == 0 || len == 0 || !reach::is_readable(list, len.saturating_mul(size_of::<Place>())) {
        // SAFETY: the caller's promise.
        return unsafe { to_kernel(context, count, list) };
    }
    let mut done = 0;
    while done < len {
        let rest = list.wrapping_add(done);
        // SAFETY: the caller's list, which is readable.
        let plain = (done..len).take_while(|&at| unsafe { known(*list.add(at)) }.is_none()).count();
        // SAFETY: the caller's promise.
        let (tried, result) = unsafe {
            match plain {
                0 => (1, one(context, rest)),
                plain => (plain, to_kernel(context, plain as c_long, rest)),
            }
        };
        if result < 0 && done == 0 {
            return result;
        }
        done += result.max(0) as usize;
        if result != tried as isize {
            break;
        }
    }
    done as isize
}

unsafe fn to_kernel(context: c_ulong, count: c_long, list: Place) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        real::system_call(libc::SYS_io_submit, [context as usize, count as usize, list as usize, 0, 0, 0])
    }
}

/// A copy of the request, if the library may have to do with it.
unsafe fn known(request: *const Request) -> Option<Request> {
    // The kernel says what is wrong with a pointer.
    let request = reach::is_readable(request, size_of::<Request>()).then(|| {
        // SAFETY: so much is readable.
        unsafe { request.read() }
    })?;
    let is_for_socket = [READ, WRITE, POLL, READ_PIECES, WRITE_PIECES].contains(&request.operation);
    let is_socket =
        ![table::PLAIN, table::EPOLL, table::BARE, table::PIPE].contains(&table::look(request.fd));
    // At an offset the kernel moves no bytes of a socket.
    (is_for_socket && is_socket && request.offset == 0 && request.reserved == 0).then_some(request)
}

/// Submits the first request of a list, which is `known`.
unsafe fn one(context: c_ulong, place: Place) -> isize {
    // SAFETY: the caller's list.
    unsafe {
        let Some(request) = known(*place) else { return to_kernel(context, 1, place) };
        match way(&request) {
            Way::Kernel => return to_kernel(context, 1, place),
            Way::Never => return -(libc::EINVAL as isize),
            Way::Ready(events) => {
                let Some(null) = Null::open() else { return -(libc::EAGAIN as isize) };
                return as_done(context, place, events as isize, null);
            }
            Way::Library => {}
        }
        // Nothing is done that the kernel could not tell of afterwards: without room for its event, an eventfd, or a descriptor.
        let Some(null) = Null::open() else { return -(libc::EAGAIN as isize) };
        let mut probe = Request { operation: READ, fd: null.0, buffer: NOWHERE, len: 1, moves: 0, ..request };
        let mut list = &raw mut probe;
        let refused = to_kernel(context, 1, &mut list);
        if refused != -(libc::EFAULT as isize) {
            return refused.min(-1);
        }
        as_done(context, place, run(&request), null)
    }
}

/// Way of a request on a socket.
#[derive(Clone, Copy)]
enum Way {
    /// The request is the kernel's.
    Kernel,
    /// The library carries the request out.
    Library,
    /// The request asks for readiness, and these events hold.
    Ready(u32),
    /// The request asks for readiness that the kernel will not know of: refused as by a kernel without requests for readiness.
    Never,
}

/// Has the connection leave the fabric, as far as that can be done at once.
fn way(request: &Request) -> Way {
    calls::stays(request.fd);
    let mut way = Way::Kernel;
    aside(|| {
        looking::is_told("requests of io_submit");
        let Some(entry) = lookup::find(request.fd) else { return };
        let Some(twin) = entry.twin().filter(|twin| !twin.is_abandoned()) else { return };
        let left = leaving::leave(&entry, twin, KernelReason::UnseenWait);
        way = match request.operation {
            POLL if !left => Way::Never,
            POLL => {
                receiving::await_owed(&entry, twin);
                // A mark of the peer's is told of once at most.
                receiving::told_by_kernel(&entry, twin, request.fd, libc::POLLIN as u32);
                readiness(request, twin.ready(&entry, libc::POLLIN as u32))
            }
            // Bytes that are sent from now on go over the kernel.
            WRITE | WRITE_PIECES if left => Way::Kernel,
            _ => Way::Library,
        };
    });
    way
}

/// Chooses the way of a request for readiness, where these events hold on the fabric, of which the kernel never tells.
fn readiness(request: &Request, on_fabric: u32) -> Way {
    const IN: u32 = (libc::POLLIN | libc::POLLRDNORM) as u32;
    let asked = request.buffer as u32 & 0xffff;
    if on_fabric & libc::POLLIN as u32 == 0 || asked & IN == 0 {
        return Way::Kernel;
    }
    let mut poll = [libc::pollfd { fd: request.fd, events: asked as i16, revents: 0 }];
    let _ = kernel_poll(&mut poll, Some(Duration::ZERO), std::ptr::null());
    Way::Ready(asked & IN | u32::from(poll[0].revents as u16))
}

/// Carries a request out that moves bytes. Returns a negative errno if it fails.
unsafe fn run(request: &Request) -> isize {
    let buffer = std::ptr::with_exposed_provenance_mut::<c_void>(request.buffer as usize);
    let mut whole = iovec { iov_base: buffer, iov_len: request.len as usize };
    let (pieces, count) = match request.operation {
        READ | WRITE => (&raw mut whole, 1),
        _ => (buffer.cast(), request.len as usize),
    };
    let receives = [READ, READ_PIECES].contains(&request.operation);
    if receives && request.operation == READ && request.len == 0 {
        return 0;
    }
    let before = errno();
    let wait = if request.moves & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: zeroes are a message without pieces; those of the request are memory as its maker says.
    let result = unsafe {
        let mut message: msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (pieces, count as _);
        match receives {
            true => receive::recvmsg(request.fd, &mut message, wait),
            // The signal comes with what stands for the failure.
            false => send::sendmsg(request.fd, &message, wait | libc::MSG_NOSIGNAL),
        }
    };
    let failure = errno();
    set_errno(before);
    if result < 0 {
        -(failure as isize)
    } else {
        result
    }
}

/// Has the kernel tell of a request that has this result. Returns what `io_submit` does.
unsafe fn as_done(context: c_ulong, place: Place, result: isize, null: Null) -> isize {
    let Some(other) = Other::with(result, null) else { return result };
    // SAFETY: the caller's list; its request is as before when this returns.
    unsafe {
        let request = *place;
        let before = request.read();
        (*request).operation = other.operation;
        (*request).fd = other.fds[0];
        (*request).len = other.len;
        (*request).moves = 0;
        let told = loop {
            let told = to_kernel(context, 1, place);
            // Another thread has taken the room since this one looked. Bytes that have moved cannot be moved again.
            if told != -(libc::EAGAIN as isize) {
                break told;
            }
            sleep_for(AGAIN_AFTER);
        };
        let key = (*request).key;
        request.write(Request { key, ..before });
        told
    }
}

/// A file that takes all bytes.
struct Null(c_int);

impl Null {
    /// None: there is no descriptor for it.
    fn open() -> Option<Self> {
        let path = c"/dev/null".as_ptr() as usize;
        let flags = (libc::O_RDWR | libc::O_CLOEXEC) as usize;
        // SAFETY: a path that ends with a zero byte.
        let fd =
            unsafe { real::system_call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]) };
        c_int::try_from(fd).ok().filter(|&fd| fd >= 0).map(Self)
    }

    /// Returns its number, which is the caller's to close.
    fn keep(self) -> c_int {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        // SAFETY: of this object alone.
        unsafe { real::close(self.0) };
    }
}

/// Descriptors of the kernel's on which a request has a certain result.
struct Other {
    fds: [c_int; 2],
    operation: u16,
    len: u64,
}

impl Other {
    /// None: a failure that no descriptor has, or no descriptor for it.
    fn with(result: isize, null: Null) -> Option<Self> {
        if let Ok(len) = u64::try_from(result) {
            return Some(Self { fds: [null.keep(), -1], operation: WRITE, len });
        }
        let errno = -result as c_int;
        if ![libc::EAGAIN, libc::ECONNRESET, libc::EPIPE].contains(&errno) {
            return None;
        }
        let mut fds = [-1; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: room for two numbers, which are this call's then; a byte that is there.
        unsafe {
            if libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) != 0 {
                return None;
            }
            if errno == libc::ECONNRESET {
                // A peer that closes with bytes unread resets the connection.
                real::send(fds[0], c"".as_ptr().cast(), 1, 0);
            }
            if errno != libc::EAGAIN {
                real::close(std::mem::replace(&mut fds[1], -1));
            }
        }
        Some(Self { fds, operation: if errno == libc::EPIPE { WRITE } else { READ }, len: 1 })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        for fd in self.fds.into_iter().filter(|&fd| fd >= 0) {
            // SAFETY: of this object alone.
            unsafe { real::close(fd) };
        }
    }
}
