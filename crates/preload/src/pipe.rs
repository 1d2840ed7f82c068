//! Pipes that the program splices by. What comes out of a connection on the fabric is not put into the kernel's pipe: it stays in the
//! connection's receive ring, lent, and a splice out of the pipe copies it from there to where it goes.
//!
//! A pipe made by the program is private until the program does anything else with it than splice. Whatever that is, the pipe is
//! exposed first: what is lent is written into the kernel's pipe, and the pipe is the kernel's for good. So no other call, and no
//! other process, ever meets a pipe with lent bytes.
//!
//! A private pipe is settled where the connection cannot lend any longer (it is received from in another way, closed, or leaves the
//! fabric): what is lent goes into the kernel's pipe. The pipe lends again when that was read.
//!
//! A pipe has bytes in the kernel or lent ones, never both. Nothing here waits.
pub(crate) mod numbers;

use crate::address::unread;
use crate::call::lock;
use crate::real;
use libc::{c_int, iovec};
use pd_client::core::{this_thread, Socket};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Size that pipes get which lend, so that one splice moves more. Programs do not see it.
const LENDING_BYTES: usize = 512 << 10;
/// Pipes that get it. The kernel lets the pipes of a user without privileges have 64 MiB in all.
const ENLARGED_MAX: usize = 32;

static ENLARGED: AtomicUsize = AtomicUsize::new(0);
/// Private pipes.
static PRIVATE: AtomicUsize = AtomicUsize::new(0);

/// Returns whether any pipe is private.
#[inline]
pub(crate) fn any() -> bool {
    PRIVATE.load(Ordering::Relaxed) > 0
}

/// Of a connection: the pipe that its bytes are lent to.
#[derive(Debug, Default)]
pub(crate) struct Lender {
    lends: AtomicBool,
    pipe: Mutex<Weak<Pipe>>,
    /// Another process may take the connection at any time.
    forbidden: AtomicBool,
}

impl Lender {
    /// Has what is lent written into the kernel's pipe. Waits for a thread that splices, which may want locks of its connection: the caller has
    /// none of them.
    #[inline]
    pub(crate) fn settle(&self) {
        if self.lends.load(Ordering::SeqCst) {
            self.settle_now();
        }
    }

    /// The connection is to go to another process, or all was received: lends no more.
    pub(crate) fn forbid(&self) {
        // SYNC POINT: lender-forbid (a thread that has begun to lend since sees it, or is waited for)
        self.forbidden.store(true, Ordering::SeqCst);
        self.settle();
    }

    /// Returns whether it may lend.
    pub(crate) fn may_lend(&self) -> bool {
        !self.forbidden.load(Ordering::SeqCst)
    }

    #[cold]
    fn settle_now(&self) {
        let pipe = lock(&self.pipe).upgrade();
        pipe.iter().for_each(|pipe| pipe.settle());
    }

    /// Returns whether it lends to this pipe, or to none.
    pub(crate) fn is_of(&self, pipe: &Pipe) -> bool {
        !self.lends.load(Ordering::Acquire) || std::ptr::eq(lock(&self.pipe).as_ptr(), pipe)
    }
}

/// A pipe that this process has made.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// Numbers of its ends, for reading and writing.
    pub(crate) ends: [c_int; 2],
    gate: Gate,
    inner: RefCell<Inner>,
}

// SAFETY: `inner` is reached through the gate alone, by one thread at a time.
unsafe impl Sync for Pipe {}
// SAFETY: pointers to lent memory belong to no thread.
unsafe impl Send for Pipe {}

#[derive(Debug, Default)]
struct Inner {
    exposed: bool,
    /// Bytes may be in the kernel's pipe.
    in_kernel: bool,
    /// Calls of the kernel's on it that are under way.
    under_way: u32,
    /// Where the lent bytes are, in their order.
    lent: VecDeque<(*mut u8, usize)>,
    bytes: usize,
    source: Option<(Arc<Lender>, Arc<Socket>)>,
    /// Bytes that the kernel's takes: as the program knows it, and really. 0: not yet asked.
    size: usize,
    real_size: usize,
}

/// One thread at a time, which may come again.
#[derive(Debug, Default)]
struct Gate {
    owner: AtomicUsize,
    mutex: Mutex<()>,
}

struct Passed<'a>(&'a Gate, Option<MutexGuard<'a, ()>>);

impl Gate {
    fn pass(&self) -> Passed<'_> {
        let own = this_thread();
        if self.owner.load(Ordering::Relaxed) == own {
            return Passed(self, None);
        }
        let guard = lock(&self.mutex);
        self.owner.store(own, Ordering::Relaxed);
        Passed(self, Some(guard))
    }
}

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        if self.1.is_some() {
            self.0.owner.store(0, Ordering::Relaxed);
        }
    }
}

/// Bytes that a private pipe takes, or has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Bytes that can be lent to it, or are.
    Bytes(usize),
    /// The pipe is the kernel's, for now or for good.
    Kernels,
}

impl Pipe {
    pub(crate) fn new(ends: [c_int; 2]) -> Self {
        PRIVATE.fetch_add(1, Ordering::Relaxed);
        Self { ends, gate: Gate::default(), inner: RefCell::default() }
    }

    /// Does something while no other thread uses the pipe.
    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> T) -> T {
        let _passed = self.gate.pass();
        work()
    }

    /// Returns how many bytes can be lent to it.
    pub(crate) fn room(&self, source: &Arc<Lender>) -> Found {
        self.alone(|| {
            if !self.lends() {
                return Found::Kernels;
            }
            let mut inner = self.inner.borrow_mut();
            let is_others = inner.source.as_ref().is_some_and(|(known, _)| !Arc::ptr_eq(known, source));
            if is_others || !source.is_of(self) {
                return Found::Kernels;
            }
            inner.measure(self.ends[1]);
            Found::Bytes(inner.real_size - inner.bytes)
        })
    }

    /// Returns whether there is nothing in the kernel's pipe.
    fn lends(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.exposed || inner.under_way > 0 {
            return false;
        }
        if inner.in_kernel {
            inner.in_kernel = bytes_in(self.ends[0]) != 0;
        }
        !inner.in_kernel
    }

    /// From now on `source` finds the pipe if it has to be settled.
    pub(crate) fn expect(self: &Arc<Self>, source: &Arc<Lender>) {
        *lock(&source.pipe) = Arc::downgrade(self);
        // SYNC POINT: lender-forbid (whether it may lend is asked after this)
        source.lends.store(true, Ordering::SeqCst);
    }

    /// Takes in bytes that `socket` lends.
    pub(crate) fn lend(&self, source: &Arc<Lender>, socket: &Arc<Socket>, at: *mut u8, len: usize) {
        let mut inner = self.inner.borrow_mut();
        inner.lent.push_back((at, len));
        inner.bytes += len;
        inner.source.get_or_insert_with(|| (source.clone(), socket.clone()));
    }

    /// After [`Self::expect`], whatever came of it.
    pub(crate) fn settled(&self, source: &Arc<Lender>) {
        if self.inner.borrow().bytes == 0 {
            source.lends.store(false, Ordering::Release);
        }
    }

    /// Returns how many bytes are lent.
    pub(crate) fn there(&self) -> Found {
        self.alone(|| if self.lends() { Found::Bytes(self.inner.borrow().bytes) } else { Found::Kernels })
    }

    /// Returns whether the bytes are of this connection.
    pub(crate) fn is_lent_by(&self, source: &Arc<Lender>) -> bool {
        self.inner.borrow().source.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, source))
    }

    /// Where the first `len` bytes are.
    pub(crate) fn pieces(&self, mut len: usize) -> Vec<iovec> {
        let inner = self.inner.borrow();
        let mut pieces = Vec::with_capacity(inner.lent.len());
        for &(at, there) in &inner.lent {
            let part = there.min(len);
            if part == 0 {
                break;
            }
            pieces.push(iovec { iov_base: at.cast(), iov_len: part });
            len -= part;
        }
        pieces
    }

    /// The first `len` bytes have gone on.
    pub(crate) fn gone(&self, len: usize) {
        self.inner.borrow_mut().drop_first(len);
    }

    /// Puts what is lent into the kernel's pipe.
    pub(crate) fn settle(&self) {
        self.alone(|| {
            let mut inner = self.inner.borrow_mut();
            let mut pieces: Vec<iovec> =
                inner.lent.iter().map(|&(at, len)| iovec { iov_base: at.cast(), iov_len: len }).collect();
            let mut left = inner.bytes;
            inner.in_kernel |= left > 0;
            while left > 0 {
                // SAFETY: lent memory.
                let written =
                    unsafe { real::writev(self.ends[1], pieces.as_ptr(), pieces.len().min(1024) as c_int) };
                let Ok(mut written) = usize::try_from(written) else {
                    if retries(self.ends[1]) {
                        continue;
                    }
                    // The pipe has no reader, or was closed unseen: the bytes are lost as in the kernel.
                    break;
                };
                left -= written;
                while let Some(first) = pieces.first_mut().filter(|_| written > 0) {
                    let part = written.min(first.iov_len);
                    first.iov_base = first.iov_base.wrapping_byte_add(part);
                    first.iov_len -= part;
                    written -= part;
                    if first.iov_len == 0 {
                        pieces.remove(0);
                    }
                }
            }
            let all = inner.bytes;
            inner.drop_first(all);
        });
    }

    /// Gives the pipe to the kernel for good.
    pub(crate) fn expose(&self) {
        self.alone(|| {
            self.settle();
            let mut inner = self.inner.borrow_mut();
            if std::mem::replace(&mut inner.exposed, true) {
                return;
            }
            PRIVATE.fetch_sub(1, Ordering::Relaxed);
            if inner.real_size > inner.size {
                // Refused if it holds more: then it stays large.
                // SAFETY: changes the pipe's size alone.
                unsafe { real::fcntl(self.ends[1], libc::F_SETPIPE_SZ, inner.size as libc::c_ulong) };
                ENLARGED.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }

    /// Does a call of the kernel's that splices: bytes may be in the kernel's pipe.
    pub(crate) fn used_by_kernel<T>(&self, work: impl FnOnce() -> T) -> T {
        let count = |by: i32| {
            self.alone(|| {
                self.settle();
                let mut inner = self.inner.borrow_mut();
                inner.in_kernel = true;
                inner.under_way = inner.under_way.wrapping_add_signed(by);
            });
        };
        count(1);
        let result = work();
        count(-1);
        result
    }

    /// `F_GETPIPE_SZ`.
    pub(crate) fn size(&self) -> usize {
        self.alone(|| {
            let mut inner = self.inner.borrow_mut();
            if inner.real_size == 0 {
                inner.size = size_of_pipe(self.ends[1]);
            }
            inner.size
        })
    }

    /// `F_SETPIPE_SZ` has succeeded.
    pub(crate) fn resized(&self) {
        self.alone(|| {
            let mut inner = self.inner.borrow_mut();
            if inner.real_size > inner.size {
                ENLARGED.fetch_sub(1, Ordering::Relaxed);
            }
            (inner.size, inner.real_size) = (0, 0);
        });
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        if !inner.exposed {
            PRIVATE.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Inner {
    fn drop_first(&mut self, mut len: usize) {
        let all = len;
        self.bytes -= len;
        while let Some(first) = self.lent.front_mut().filter(|_| len > 0) {
            let part = len.min(first.1);
            *first = (first.0.wrapping_add(part), first.1 - part);
            len -= part;
            if first.1 == 0 {
                self.lent.pop_front();
            }
        }
        if let Some((_, socket)) = self.source.as_ref().filter(|_| all > 0) {
            // Of a connection that has ended nothing is to be given back.
            let _ = socket.recv_done(all);
        }
        if self.bytes == 0 {
            if let Some((source, _)) = self.source.take() {
                source.lends.store(false, Ordering::Release);
            }
        }
    }

    /// Asks how much the pipe takes, and has it take more.
    fn measure(&mut self, end: c_int) {
        if self.real_size > 0 {
            return;
        }
        self.size = size_of_pipe(end);
        self.real_size = self.size;
        if self.size >= LENDING_BYTES || ENLARGED.fetch_add(1, Ordering::Relaxed) >= ENLARGED_MAX {
            if self.size < LENDING_BYTES {
                ENLARGED.fetch_sub(1, Ordering::Relaxed);
            }
            return;
        }
        // SAFETY: changes the pipe's size alone.
        let real = unsafe { real::fcntl(end, libc::F_SETPIPE_SZ, LENDING_BYTES as libc::c_ulong) };
        match usize::try_from(real) {
            Ok(real) => self.real_size = real,
            Err(_) => drop(ENLARGED.fetch_sub(1, Ordering::Relaxed)),
        }
    }
}

fn size_of_pipe(end: c_int) -> usize {
    // SAFETY: only asks.
    let size = unsafe { real::fcntl(end, libc::F_GETPIPE_SZ, 0) };
    usize::try_from(size).unwrap_or(0)
}

/// Bytes that the kernel's pipe has.
pub(crate) fn bytes_in(pipe: c_int) -> usize {
    unread(pipe).and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
}

/// After a write that has failed: whether there is room now.
#[cold]
fn retries(end: c_int) -> bool {
    // SAFETY: the calling thread's errno.
    match unsafe { *libc::__errno_location() } {
        libc::EINTR => true,
        libc::EAGAIN => {
            let mut poll = libc::pollfd { fd: end, events: libc::POLLOUT, revents: 0 };
            // SAFETY: one descriptor.
            unsafe { real::poll(&mut poll, 1, -1) == 1 }
        }
        _ => false,
    }
}
