//! A thread that settles connections whose program makes no call. It is there while the peer of a connection has still to take its end,
//! bytes were sent, and the program sleeps where the library does not look, or has further threads, any of which may compute for as
//! long as it likes.
use super::{any_pending, settling};
use crate::call::aside;
use crate::{closed, real, table, thread};
use libc::{c_char, c_int, c_void};
use pd_client::core::may_be_in_handler;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::OnceLock;
use std::time::Duration;

/// Time between looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Looks without a connection in this state after which the thread ends.
const IDLE_LOOKS: u32 = 25;

/// Bytes were sent on such a connection.
static HAS_SENT: AtomicBool = AtomicBool::new(false);
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
/// The thread is to end.
static ENDS: AtomicBool = AtomicBool::new(false);
/// The last such thread.
static THREAD: AtomicI32 = AtomicI32::new(0);

/// The calling thread is about to sleep outside of the library, or on another connection.
#[inline]
pub(crate) fn before_sleep() {
    if is_wanted() {
        begin();
    }
}

/// The thread has something to look for, and is not there.
#[inline]
fn is_wanted() -> bool {
    any_pending() && HAS_SENT.load(Ordering::Relaxed) && !IS_WATCHED.load(Ordering::Relaxed)
}

/// [`before_sleep`] in a call that waits until `fd` is readable, if it has to wait.
#[inline]
pub(crate) fn before_read(fd: c_int) {
    if is_wanted() && sleeps(fd) {
        begin();
    }
}

#[cold]
fn sleeps(fd: c_int) -> bool {
    let mut sleeps = false;
    aside(|| {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: polls one descriptor, and asks for flags.
        sleeps = unsafe {
            real::poll(&mut poll, 1, 0) == 0 && real::fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK == 0
        };
    });
    sleeps
}

/// Bytes were sent on a connection whose peer has still to take its end.
pub(crate) fn has_sent() {
    HAS_SENT.store(true, Ordering::Relaxed);
    if !IS_WATCHED.load(Ordering::Relaxed) && has_threads() {
        begin();
    }
}

/// A forked child has no thread but the one that forked. Another one of its parent's may have been in [`without`].
pub(crate) fn forget() {
    HAS_SENT.store(false, Ordering::Relaxed);
    IS_WATCHED.store(false, Ordering::Relaxed);
    THREAD.store(0, Ordering::Relaxed);
    ENDS.store(closed::is_closed(), Ordering::Relaxed);
}

/// Returns whether the process has made threads. The C library says so.
pub(crate) fn has_threads() -> bool {
    static IS_ALONE: OnceLock<usize> = OnceLock::new();
    // SAFETY: looks a name up.
    let find = || unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) as usize };
    let is_alone = *IS_ALONE.get_or_init(find) as *const c_char;
    // SAFETY: the C library's variable.
    !is_alone.is_null() && unsafe { is_alone.read_volatile() } == 0
}

/// No such thread begins any more, and the one that there is ends before this returns. A child of `vfork` has none, and leaves its
/// parent's alone.
pub(crate) fn end() {
    if table::is_borrowed() {
        return;
    }
    ENDS.store(true, Ordering::SeqCst);
    // SAFETY: asks whether there is a thread.
    let is_there = |thread: c_int| unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 };
    let thread = || THREAD.load(Ordering::SeqCst);
    while IS_WATCHED.load(Ordering::SeqCst) || thread() != 0 && is_there(thread()) {
        sleep(Duration::from_millis(1));
    }
}

/// Does `work`, which the kernel refuses to a process with further threads.
pub(crate) fn without<T>(work: impl FnOnce() -> T) -> T {
    let ended_before = ENDS.load(Ordering::SeqCst);
    aside(end);
    let done = work();
    ENDS.store(ended_before, Ordering::SeqCst);
    done
}

#[cold]
fn begin() {
    if ENDS.load(Ordering::Relaxed) || closed::is_closed() || may_be_in_handler() || table::is_borrowed() {
        return;
    }
    if !IS_WATCHED.swap(true, Ordering::SeqCst) {
        aside(|| {
            // Asked once more: `end` sets that, and then looks whether there is a thread.
            let may_begin = !ENDS.load(Ordering::SeqCst);
            if !may_begin || thread::start(watch, std::ptr::null_mut()).is_err() {
                IS_WATCHED.store(false, Ordering::SeqCst);
            }
        });
    }
}

extern "C" fn watch(_: *mut c_void) -> *mut c_void {
    // SAFETY: asks for a number.
    THREAD.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    let mut idle = 0;
    loop {
        sleep(LOOK_EVERY);
        if ENDS.load(Ordering::SeqCst) {
            IS_WATCHED.store(false, Ordering::SeqCst);
            return std::ptr::null_mut();
        }
        aside(settling::look);
        idle = if any_pending() { 0 } else { idle + 1 };
        // Whoever adds a connection from now on starts another thread, or has been seen.
        if idle >= IDLE_LOOKS
            && IS_WATCHED.swap(false, Ordering::AcqRel)
            && (!any_pending() || IS_WATCHED.swap(true, Ordering::AcqRel))
        {
            return std::ptr::null_mut();
        }
    }
}

fn sleep(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: reads a time.
    unsafe { real::nanosleep(&time, std::ptr::null_mut()) };
}
