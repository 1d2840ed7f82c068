//! Threads that another thread cancels (`pthread_cancel`) while they sleep in the library.
//!
//! The C library sends a signal only to a thread that is in one of its own cancellation points. Sleeps of this library are none: it holds locks there, and
//! must not be left. So the library that stands in for `pthread_cancel` has [`interrupt`] send the signal that the C library uses, with a mark. The
//! handler in front of the C library's ends the sleep ([`crate::handlers`]). The call then returns to where it holds nothing, and is cancelled there.
//! Within a call of the library's no thread can be cancelled, from the first cancellation of the process on.
use crate::handlers::end_sleep;
use libc::{c_int, c_long, clockid_t, pid_t, pthread_t};
use pd_shm::procfs;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Signal by which the C library cancels a thread.
const SIGNAL: c_int = 32;
const ENABLE: c_int = 0;
const DISABLE: c_int = 1;
/// The kernel's numbers of clocks have this many bits of kind, and the complement of a thread's number above them.
const CLOCK_KIND_BITS: u32 = 3;

/// An action as the kernel has it.
#[repr(C)]
struct Action {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Begin of `siginfo_t` for a signal of a process.
#[repr(C)]
struct Information {
    signal: c_int,
    errno: c_int,
    code: c_int,
    pid: pid_t,
    uid: libc::uid_t,
    rest: [u64; 13],
}

type Handler = unsafe extern "C-unwind" fn(c_int, *mut Information, *mut libc::c_void);

/// The C library's handler.
static THEIRS: AtomicUsize = AtomicUsize::new(0);

/// A thread of this process was cancelled, or is about to be: calls that begin from now on look at this.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// Time of the monotonic clock up to which a thread may be in a call that has begun before.
static LOOKS_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
const LOOKS_NS: u64 = 2_000_000_000;
/// Processor time within which a call is over, or sleeps.
const CALL_NS: u64 = 2_000_000;
/// Time from one look at a thread to the next, and most looks.
const LOOK_NS: c_long = 100_000;
const LOOKS: u32 = 5_000;

/// Returns whether threads of this process are cancelled.
#[inline]
pub fn has_begun() -> bool {
    BEGUN.load(Ordering::Relaxed)
}

/// Reads a clock. 0: it cannot be read, for its thread has ended.
fn ns_of(clock: clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for a time.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A thread is about to be cancelled: waits until it is in no call that has begun before the first cancellation of the process. One that sleeps there
/// looks when it wakes.
pub fn begin(thread: pid_t) {
    let until = ns_of(libc::CLOCK_MONOTONIC) + LOOKS_NS;
    let _ = LOOKS_UNTIL_NS.compare_exchange(0, until, Ordering::Relaxed, Ordering::Relaxed);
    BEGUN.store(true, Ordering::SeqCst);
    let clock = clock_of(thread);
    let since = ns_of(clock);
    for _ in 0..LOOKS {
        let may_be_in_call = ns_of(libc::CLOCK_MONOTONIC) < LOOKS_UNTIL_NS.load(Ordering::Relaxed);
        if !may_be_in_call || ns_of(clock).saturating_sub(since) >= CALL_NS || sleeps(thread) {
            return;
        }
        let time = libc::timespec { tv_sec: 0, tv_nsec: LOOK_NS };
        // SAFETY: only sleeps. The C library's function would be a cancellation point.
        unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, ptr::null::<libc::timespec>()) };
    }
}

/// Returns whether a thread sleeps or has ended, as far as the kernel tells.
fn sleeps(thread: pid_t) -> bool {
    let facts = procfs::read(&format!("self/task/{thread}/stat")).unwrap_or_default();
    // Behind the name, which may have anything in it.
    let state = facts.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    !matches!(state, Some('R'))
}

/// Facts of the threads whose numbers lead here: few have another one beside them.
#[repr(align(64))]
struct Place {
    /// Number of those that sleep in the library. One that has left its sleep by a jump counts for ever, and may be woken elsewhere.
    sleepers: AtomicU32,
    /// The last one that was cancelled.
    cancelled: AtomicI32,
}

const PLACES: usize = 256;
static OF_THREADS: [Place; PLACES] =
    [const { Place { sleepers: AtomicU32::new(0), cancelled: AtomicI32::new(0) } }; PLACES];

fn place(thread: pid_t) -> &'static Place {
    &OF_THREADS[thread as usize % PLACES]
}

/// A thread that sleeps in the library, or is about to.
pub(crate) struct Sleeper(&'static Place);

impl Sleeper {
    /// The calling thread, and whether it was cancelled. One that is cancelled later is woken.
    pub(crate) fn new() -> (Self, bool) {
        // SAFETY: the calling thread runs. No system call: the program may have forbidden itself those.
        let thread = unsafe { number_of(libc::pthread_self()) }.unwrap_or(0);
        let place = place(thread);
        // Counts, then looks. The other side notes, then looks for the count.
        place.sleepers.fetch_add(1, Ordering::SeqCst);
        let is_cancelled = place.cancelled.load(Ordering::SeqCst) == thread
            && place.cancelled.compare_exchange(thread, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        (Self(place), is_cancelled)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the kernel's number of a thread; none if it has ended.
///
/// # Safety
/// The thread was not joined.
pub unsafe fn number_of(thread: pthread_t) -> Option<pid_t> {
    let mut clock = 0;
    // SAFETY: the caller's promise.
    let found = unsafe { libc::pthread_getcpuclockid(thread, &mut clock) };
    (found == 0).then_some(!(clock >> CLOCK_KIND_BITS))
}

/// Returns the clock of a thread's processor time.
fn clock_of(thread: pid_t) -> clockid_t {
    const OF_THREAD: clockid_t = 4;
    const SCHEDULED: clockid_t = 2;
    (!thread << CLOCK_KIND_BITS) | OF_THREAD | SCHEDULED
}

/// Ends the sleep of a thread of this process that was cancelled. One that is elsewhere notices nothing.
pub fn interrupt(thread: pid_t) {
    let place = place(thread);
    let earlier = place.cancelled.swap(thread, Ordering::SeqCst);
    // Another thread that was cancelled may not have looked yet.
    let earlier = Some(earlier).filter(|&earlier| earlier != 0 && earlier != thread);
    let asleep = (place.sleepers.load(Ordering::SeqCst) > 0).then_some(thread);
    for thread in earlier.into_iter().chain(asleep).filter(|_| install()) {
        wake(thread);
    }
}

/// Sends a thread the signal.
fn wake(thread: pid_t) {
    // SAFETY: asks for facts of the process.
    let (pid, uid) = unsafe { (libc::getpid(), libc::getuid()) };
    let information = Information { signal: SIGNAL, errno: 0, code: libc::SI_QUEUE, pid, uid, rest: [0; 13] };
    let (pid, thread, signal) = (c_long::from(pid), c_long::from(thread), c_long::from(SIGNAL));
    // SAFETY: the kernel reads the information, which has the size of its own.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, thread, signal, &raw const information) };
}

/// Puts the handler in front of the C library's, which has installed that with the first cancellation. Returns whether it is there.
fn install() -> bool {
    let mut action = MaybeUninit::<Action>::zeroed();
    // SAFETY: room for an action of the kernel's, all of whose bit patterns are values.
    let action = unsafe {
        ask(ptr::null(), action.as_mut_ptr());
        action.assume_init_mut()
    };
    let own = catcher as Handler as usize;
    if action.handler == own {
        return true;
    }
    if [libc::SIG_DFL, libc::SIG_IGN].contains(&action.handler) {
        return false;
    }
    THEIRS.store(action.handler, Ordering::Release);
    action.handler = own;
    // SAFETY: an action.
    unsafe { ask(action, ptr::null_mut()) == 0 }
}

/// Sets or asks for the action of [`SIGNAL`], which the C library's function refuses.
///
/// # Safety
/// Each is null or an action.
unsafe fn ask(set: *const Action, old: *mut Action) -> c_long {
    let (signal, bytes) = (c_long::from(SIGNAL), crate::handlers::SET_BYTES);
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, set, old, bytes) }
}

/// # Safety
/// The kernel calls it.
unsafe extern "C-unwind" fn catcher(
    signal: c_int,
    information: *mut Information,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel's arguments.
    unsafe {
        if (*information).code == libc::SI_QUEUE {
            return end_sleep(context);
        }
        let theirs = THEIRS.load(Ordering::Acquire);
        std::mem::transmute::<usize, Handler>(theirs)(signal, information, context);
    }
}

/// Lets the calling thread be cancelled, or not. Returns whether it could be before.
pub(crate) fn enable(may_be: bool) -> bool {
    let mut before = DISABLE;
    // SAFETY: room for the state before.
    unsafe { pthread_setcancelstate(if may_be { ENABLE } else { DISABLE }, &mut before) };
    before == ENABLE
}
