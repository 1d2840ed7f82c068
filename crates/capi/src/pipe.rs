//! Pipes: packets of the driver's ports.
//!
//! A pipe is one thread's at a time: a call that finds another thread in a call on the same pipe fails with `EBUSY`. A wait lets go of
//! the pipe now and then, so that [`close`] ends it.
use crate::guard::guard;
use libc::{c_char, c_int, c_uint, c_void, in_addr, in_port_t, size_t, ssize_t};
use pd_client::core::{insert, ready, with, Named, Other, Readiness};
use pd_client::pipe::{Direction, Flow, Net, Options, Pipe, Unit, BACK, DROP};
use pd_client::{Error, Result};
use std::any::Any;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

const PD_PIPE_RECEIVE: c_int = 1;
const PD_PIPE_SEND: c_int = 2;
const PD_PIPE_FORWARD: c_int = 3;
const DIRECTIONS: c_int = 3;
/// A stream of bytes in place of frames.
const PD_PIPE_BYTES: c_int = 0x10;
/// Frames are shared with pipes of other processes.
const PD_PIPE_SHARE: c_int = 0x20;
/// Calls return `EAGAIN` instead of waiting.
const PD_PIPE_NONBLOCK: c_int = libc::SOCK_NONBLOCK;

/// Constants of `include/pd.h` that are here, by name.
#[cfg(test)]
pub const CONSTANTS: [(&str, i64); 8] = [
    ("PD_PIPE_RECEIVE", PD_PIPE_RECEIVE as i64),
    ("PD_PIPE_SEND", PD_PIPE_SEND as i64),
    ("PD_PIPE_FORWARD", PD_PIPE_FORWARD as i64),
    ("PD_PIPE_BYTES", PD_PIPE_BYTES as i64),
    ("PD_PIPE_SHARE", PD_PIPE_SHARE as i64),
    ("PD_PIPE_NONBLOCK", PD_PIPE_NONBLOCK as i64),
    ("PD_BACK", BACK as i64),
    ("PD_DROP", DROP as i64),
];

/// Longest sleep that holds a pipe.
const SLICE: Duration = Duration::from_millis(250);
/// Bytes of a line: a frame takes whole ones.
const LINE_BYTES: u64 = 64;

/// `struct pd_pipe_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PdPipeOptions {
    ring_bytes: size_t,
    protocol: u8,
    source_prefix: u8,
    destination_prefix: u8,
    reserved: u8,
    source: in_addr,
    destination: in_addr,
    source_port: in_port_t,
    destination_port: in_port_t,
}

/// `struct pd_frame`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PdFrame {
    data: *mut c_void,
    len: u32,
    to: u16,
    reserved: u16,
}

/// `struct pd_pipe_stat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PdPipeStat {
    ring_bytes: u64,
    frames_received: u64,
    bytes_received: u64,
    frames_sent: u64,
    bytes_sent: u64,
    frames_dropped: u64,
    bytes_waiting: u64,
    bytes_lent: u64,
    bytes_free: u64,
    direction: u32,
    error: u32,
}

/// A pipe with a number.
#[derive(Debug)]
struct Numbered {
    /// None: closed.
    state: Mutex<Option<State>>,
    closed: AtomicBool,
    nonblocking: bool,
}

#[derive(Debug)]
struct State {
    pipe: Pipe,
    counts: PdPipeStat,
}

impl Numbered {
    /// Runs `call` on the pipe, unless another thread is in a call.
    fn now<R>(&self, call: impl FnOnce(&mut State) -> Result<R>) -> Result<R> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::with_errno(libc::EBUSY, "another thread is in a call on this pipe"))
            }
        };
        call(state.as_mut().ok_or_else(closed)?)
    }

    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `call` until it does not fail with `EAGAIN`, with a wait of at most `timeout` in all (none: for ever).
    fn until<R>(
        &self,
        timeout: Option<Duration>,
        mut call: impl FnMut(&mut State) -> Result<R>,
        mut wait: impl FnMut(&mut Pipe, Duration) -> Result<()>,
    ) -> Result<R> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()));
            let done = self.now(|state| match call(state) {
                Err(error) if error.errno() == libc::EAGAIN && !left.is_zero() => {
                    match wait(&mut state.pipe, left.min(SLICE)) {
                        Err(error) if error.errno() != libc::EAGAIN => Err(error),
                        _ => Ok(None),
                    }
                }
                done => done.map(Some),
            })?;
            if let Some(done) = done {
                return Ok(done);
            }
            if self.closed.load(Ordering::Acquire) {
                return Err(closed());
            }
        }
    }

    /// As long as a call without a time-out may wait.
    fn patience(&self) -> Option<Duration> {
        self.nonblocking.then_some(Duration::ZERO)
    }
}

impl Readiness for Numbered {
    fn readiness(&self, _wanted: u32) -> u32 {
        let mut state = self.lock();
        let Some(State { pipe, .. }) = state.as_mut() else { return 0 };
        let holds = if pipe.shape().receives() { ready::IN } else { ready::OUT };
        if pipe.waiting() >= pipe.needed() {
            return ready::IN;
        }
        match pipe.arm() {
            Ok(true) => holds,
            Ok(false) if pipe.check_driver().is_ok() => 0,
            // A receive tells that frames are to be given back.
            Err(errno) if errno.raw_os_error() == libc::ENOBUFS => holds | ready::ERR,
            // Calls tell which error.
            _ => holds | ready::ERR | ready::HUP,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn closed() -> Error {
    Error::with_errno(libc::EBADF, "the pipe was closed")
}

fn of(other: &Other) -> Result<&Numbered> {
    other.object().ok_or_else(closed)
}

/// The object that a pipe's number names.
type Object = Arc<dyn Any + Send + Sync>;

/// The pipe, as an epoll instance takes it.
pub(crate) fn member(object: &Object) -> Result<Arc<Other>> {
    Arc::clone(object).downcast().map_err(|_| closed())
}

fn with_other<R>(pid: c_int, call: impl FnOnce(&Other, &Numbered) -> Result<R>) -> Result<R> {
    with(pid, |named| match named {
        Named::Other(object) => {
            let other = object.downcast_ref().ok_or_else(closed)?;
            call(other, of(other)?)
        }
        _ => Err(Error::with_errno(libc::ENOTSOCK, format!("{pid} is no pipe"))),
    })
}

fn with_pipe<R>(pid: c_int, call: impl FnOnce(&Numbered) -> Result<R>) -> Result<R> {
    with_other(pid, |_, pipe| call(pipe))
}

/// Runs `call`, which may change the number of bytes that a pipe is ready with, though none has come.
fn with_needed(pid: c_int, call: impl FnOnce(&mut State) -> Result<()>) -> Result<c_int> {
    with_other(pid, |other, numbered| {
        let is_ready = numbered.now(|state| {
            let needed = state.pipe.needed();
            call(state)?;
            Ok(state.pipe.needed() < needed && state.pipe.waiting() >= state.pipe.needed())
        })?;
        if is_ready {
            other.look_again();
        }
        Ok(0)
    })
}

/// A descriptor of its own of what tells of the pipe's news.
pub(crate) fn descriptor(other: &Other) -> Result<OwnedFd> {
    let pipe = of(other)?;
    let mut state = pipe.lock();
    let fd = state.as_mut().ok_or_else(closed)?.pipe.fd()?;
    fd.try_clone_to_owned().map_err(|_| Error::with_errno(libc::EMFILE, "no descriptors left"))
}

/// Ends a pipe whose number was taken back.
pub(crate) fn close(object: &Object) {
    let Some(other) = object.downcast_ref::<Other>() else { return };
    other.leave_all();
    if let Ok(pipe) = of(other) {
        pipe.closed.store(true, Ordering::Release);
        drop(pipe.lock().take());
    }
}

fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// See `pd_pipe_open(3)`.
///
/// # Safety
/// `ports` is a string, and `options` is null or points to options.
#[no_mangle]
pub unsafe extern "C" fn pd_pipe_open(
    ports: *const c_char,
    flags: c_int,
    options: *const PdPipeOptions,
) -> c_int {
    guard(-1, || {
        if ports.is_null() {
            return Err(Error::with_errno(libc::EFAULT, "the names of the ports are NULL"));
        }
        // SAFETY: not null; a string, the caller says.
        let ports = unsafe { CStr::from_ptr(ports) };
        let ports = ports.to_str().map_err(|_| Error::invalid("the names of the ports are not UTF-8"))?;
        if flags & !(DIRECTIONS | PD_PIPE_BYTES | PD_PIPE_SHARE | PD_PIPE_NONBLOCK) != 0 {
            return Err(Error::invalid("flags other than those of PD_PIPE_*"));
        }
        let direction = match flags & DIRECTIONS {
            PD_PIPE_RECEIVE => Direction::Receive,
            PD_PIPE_SEND => Direction::Send,
            PD_PIPE_FORWARD => Direction::Forward,
            _ => {
                return Err(Error::invalid("no direction: PD_PIPE_RECEIVE, PD_PIPE_SEND or PD_PIPE_FORWARD"))
            }
        };
        let mut wanted = Options::new(direction, ports);
        if flags & PD_PIPE_BYTES != 0 {
            wanted = wanted.bytes();
        }
        if flags & PD_PIPE_SHARE != 0 {
            wanted = wanted.shares();
        }
        // SAFETY: null, or options, the caller says.
        if let Some(given) = (!options.is_null()).then(|| unsafe { options.read_unaligned() }) {
            if given.reserved != 0 {
                return Err(Error::invalid("the reserved byte of the options is not 0"));
            }
            if given.ring_bytes != 0 {
                wanted = wanted.ring_bytes(given.ring_bytes as u64);
            }
            let net = |address: in_addr, prefix| Net { address: address.s_addr.to_ne_bytes(), prefix };
            wanted = wanted.flow(Flow {
                protocol: given.protocol,
                addresses: [
                    net(given.source, given.source_prefix),
                    net(given.destination, given.destination_prefix),
                ],
                ports: [u16::from_be(given.source_port), u16::from_be(given.destination_port)],
            });
        }
        let pipe = Pipe::open(&wanted)?;
        let direction = (flags & DIRECTIONS) as u32;
        let counts = PdPipeStat { ring_bytes: pipe.shape().ring_bytes(), direction, ..Default::default() };
        let nonblocking = flags & PD_PIPE_NONBLOCK != 0;
        let state = Mutex::new(Some(State { pipe, counts }));
        insert(Named::Other(Other::new(Numbered { state, closed: AtomicBool::new(false), nonblocking })))
    })
}

/// See `pd_pipe_recv(3)`.
///
/// # Safety
/// `frames` points to room for `max` frames.
#[no_mangle]
pub unsafe extern "C" fn pd_pipe_recv(pid: c_int, frames: *mut PdFrame, max: c_int) -> c_int {
    guard(-1, || {
        let max = usize::try_from(max).ok().filter(|&max| max > 0);
        let max = max.ok_or_else(|| Error::invalid("a receive needs room for at least one frame"))?;
        if frames.is_null() {
            return Err(Error::with_errno(libc::EFAULT, "the place for the frames is NULL"));
        }
        let receive = |state: &mut State| {
            let mut count = 0;
            while count < max {
                let (data, len) = match state.pipe.lend() {
                    Ok(frame) => frame,
                    Err(_) if count > 0 => break,
                    // Nor would a wait find one.
                    Err(errno) if errno.raw_os_error() == libc::EAGAIN && state.pipe.lends_too_much() => {
                        return Err(Error::with_errno(
                            libc::ENOBUFS,
                            "lent frames leave too little of the ring",
                        ))
                    }
                    Err(errno) => return Err(errno.into()),
                };
                let frame = PdFrame { data: data.as_ptr().cast(), len: len.into(), to: BACK, reserved: 0 };
                // SAFETY: room for `max` frames, the caller says.
                unsafe { frames.add(count).write_unaligned(frame) };
                state.counts.frames_received += 1;
                state.counts.bytes_received += u64::from(len);
                count += 1;
            }
            Ok(count as c_int)
        };
        with_pipe(pid, |pipe| pipe.until(pipe.patience(), receive, |pipe, left| pipe.wait(Some(left))))
    })
}

/// See `pd_pipe_recv(3)`.
///
/// # Safety
/// `frames` points to `count` frames.
#[no_mangle]
pub unsafe extern "C" fn pd_pipe_done(pid: c_int, frames: *const PdFrame, count: c_int) -> c_int {
    guard(-1, || {
        let count = usize::try_from(count).map_err(|_| Error::invalid("a negative number of frames"))?;
        if frames.is_null() && count > 0 {
            return Err(Error::with_errno(libc::EFAULT, "the list of frames is NULL"));
        }
        let give_back = |state: &mut State| {
            let forwards = state.pipe.shape().direction() == Direction::Forward;
            for index in 0..count {
                // SAFETY: `count` frames, the caller says.
                let frame = unsafe { frames.add(index).read_unaligned() };
                let done = state.pipe.take_back(frame.len as usize, frame.to);
                let kept = done.map_err(|errno| {
                    state.pipe.flush_back();
                    Error::with_errno(errno.raw_os_error(), format!("{index} frames of {count} are lent"))
                })?;
                match (forwards, frame.to) {
                    (true, DROP) => state.counts.frames_dropped += 1,
                    (true, _) => {
                        state.counts.frames_sent += 1;
                        state.counts.bytes_sent += u64::from(kept);
                    }
                    (false, _) => {}
                }
            }
            state.pipe.flush_back();
            Ok(0)
        };
        with_pipe(pid, |pipe| pipe.now(give_back))
    })
}

/// See `pd_pipe_peek(3)`.
///
/// # Safety
/// `buf` points to a pointer.
#[no_mangle]
pub unsafe extern "C" fn pd_pipe_peek(pid: c_int, buf: *mut *mut c_void) -> ssize_t {
    guard(-1, || {
        if buf.is_null() {
            return Err(Error::with_errno(libc::EFAULT, "the place for the pointer is NULL"));
        }
        let peek = |state: &mut State| {
            let mut len = state.pipe.peek()?.len();
            if (len as u64) < state.pipe.needed() {
                state.pipe.wait(Some(Duration::ZERO))?;
                len = state.pipe.peek()?.len();
            }
            let bytes = match state.pipe.shape().direction() {
                Direction::Forward => state.pipe.peek_mut(len)?.as_mut_ptr(),
                _ => state.pipe.peek()?.as_ptr().cast_mut(),
            };
            // SAFETY: not null; a pointer's place, the caller says.
            unsafe { buf.write(bytes.cast()) };
            Ok(len as ssize_t)
        };
        with_pipe(pid, |pipe| pipe.until(pipe.patience(), peek, |pipe, left| pipe.wait(Some(left))))
    })
}

/// See `pd_pipe_peek(3)`.
#[no_mangle]
pub extern "C" fn pd_pipe_consume(pid: c_int, len: size_t) -> c_int {
    guard(-1, || {
        with_needed(pid, |state| {
            state.pipe.done(len)?;
            state.counts.frames_received += 1;
            state.counts.bytes_received += len as u64;
            if state.pipe.shape().direction() == Direction::Forward {
                state.counts.frames_sent += 1;
                state.counts.bytes_sent += len as u64;
            }
            Ok(())
        })
    })
}

/// See `pd_pipe_peek(3)`.
#[no_mangle]
pub extern "C" fn pd_pipe_need(pid: c_int, len: size_t) -> c_int {
    guard(-1, || with_needed(pid, |state| Ok(state.pipe.need(len)?)))
}

/// See `pd_pipe_alloc(3)`.
#[no_mangle]
pub extern "C" fn pd_pipe_alloc(pid: c_int, len: size_t) -> *mut c_void {
    guard(ptr::null_mut(), || {
        let place = |state: &mut State| Ok(state.pipe.place(len)?.as_mut_ptr().cast());
        with_pipe(pid, |pipe| {
            pipe.until(pipe.patience(), place, |pipe, left| {
                let room = match pipe.shape().unit() {
                    Unit::Frames => (len as u64).next_multiple_of(LINE_BYTES),
                    Unit::Bytes => len as u64,
                };
                pipe.wait_room(room, Some(left))
            })
        })
    })
}

/// See `pd_pipe_alloc(3)`.
#[no_mangle]
pub extern "C" fn pd_pipe_commit(pid: c_int, len: size_t, to: c_uint) -> c_int {
    guard(-1, || {
        let to = u16::try_from(to).map_err(|_| Error::invalid("no port has such a number"))?;
        with_pipe(pid, |pipe| {
            pipe.now(|state| {
                state.pipe.placed_part(len, to)?;
                state.counts.frames_sent += u64::from(len > 0);
                state.counts.bytes_sent += len as u64;
                Ok(0)
            })
        })
    })
}

/// See `pd_pipe_alloc(3)`.
#[no_mangle]
pub extern "C" fn pd_pipe_flush(pid: c_int) -> c_int {
    guard(-1, || {
        with_pipe(pid, |pipe| {
            pipe.now(|state| {
                state.pipe.flush();
                Ok(0)
            })
        })
    })
}

/// See `pd_pipe_wait(3)`.
#[no_mangle]
pub extern "C" fn pd_pipe_wait(pid: c_int, timeout_ms: c_int) -> c_int {
    guard(-1, || {
        with_pipe(pid, |pipe| {
            let look = |state: &mut State| state.pipe.wait(Some(Duration::ZERO)).map(|()| 0);
            pipe.until(timeout(timeout_ms), look, |pipe, left| pipe.wait(Some(left)))
        })
    })
}

/// See `pd_pipe_wait(3)`.
#[no_mangle]
pub extern "C" fn pd_pipe_wait_more(pid: c_int, timeout_ms: c_int) -> c_int {
    guard(-1, || {
        with_pipe(pid, |pipe| {
            let look = |state: &mut State| state.pipe.wait_more(Some(Duration::ZERO)).map(|()| 0);
            pipe.until(timeout(timeout_ms), look, |pipe, left| pipe.wait_more(Some(left)))
        })
    })
}

/// See `pd_pipe_wait(3)`.
#[no_mangle]
pub extern "C" fn pd_pipe_wait_room(pid: c_int, room: size_t, timeout_ms: c_int) -> c_int {
    guard(-1, || {
        with_pipe(pid, |pipe| {
            let room = room as u64;
            let look = |state: &mut State| state.pipe.wait_room(room, Some(Duration::ZERO)).map(|()| 0);
            pipe.until(timeout(timeout_ms), look, |pipe, left| pipe.wait_room(room, Some(left)))
        })
    })
}

/// See `pd_pipe_wait(3)`.
#[no_mangle]
pub extern "C" fn pd_pipe_prefetch(pid: c_int) -> c_int {
    guard(-1, || {
        with_pipe(pid, |pipe| {
            pipe.now(|state| {
                state.pipe.prefetch()?;
                Ok(0)
            })
        })
    })
}

/// See `pd_pipe_wait(3)`.
#[no_mangle]
pub extern "C" fn pd_pipe_fd(pid: c_int) -> c_int {
    guard(-1, || with_pipe(pid, |pipe| pipe.now(|state| Ok(state.pipe.fd()?.as_raw_fd()))))
}

/// See `pd_pipe_wait(3)`.
#[no_mangle]
pub extern "C" fn pd_pipe_arm(pid: c_int) -> c_int {
    guard(-1, || {
        with_pipe(pid, |pipe| {
            pipe.now(|state| match state.pipe.arm() {
                Ok(true) => Ok(1),
                Ok(false) => state.pipe.check_driver().map(|()| 0),
                Err(errno) => Err(errno.into()),
            })
        })
    })
}

/// See `pd_pipe_stat(3)`.
///
/// # Safety
/// `stat` points to room for the statistics.
#[no_mangle]
pub unsafe extern "C" fn pd_pipe_stat(pid: c_int, stat: *mut PdPipeStat) -> c_int {
    guard(-1, || {
        if stat.is_null() {
            return Err(Error::with_errno(libc::EFAULT, "the place for the statistics is NULL"));
        }
        let counts = with_pipe(pid, |pipe| {
            pipe.now(|state| {
                let State { pipe, counts } = state;
                let sends = pipe.shape().direction() == Direction::Send;
                let untaken = if sends { pipe.untaken() } else { 0 };
                Ok(PdPipeStat {
                    bytes_waiting: pipe.waiting(),
                    bytes_lent: pipe.lent(),
                    bytes_free: if sends { counts.ring_bytes - untaken } else { 0 },
                    error: pipe.ended().map_or(0, |errno| errno.raw_os_error() as u32),
                    ..*counts
                })
            })
        })?;
        // SAFETY: not null; room, the caller says.
        unsafe { stat.write_unaligned(counts) };
        Ok(0)
    })
}
