//! Signal handlers kept out of the library's calls.
//!
//! A handler that runs while its thread is in a call of the library's may call the library itself, and would wait for a
//! lock that its own thread holds. So handlers are put off. A library that stands in for `sigaction` installs
//! [`catcher`] in their place ([`Handlers`]), and says where its calls begin and end ([`Inside`]). A signal that comes in
//! between is blocked with all others and sent to the thread once more; with the end of the call the mask is as it was,
//! and the kernel delivers it as ever: on its stack, with its mask and its information. No call costs a system call
//! for that; a signal that comes within one costs two.
//!
//! A long wait never puts a handler off. A sleep ends when a signal comes, at whichever instant ([`interruptible`]). The
//! sleeping thread then lets handlers run ([`let_run`]) where it holds nothing. It learns by that which handlers have run, and
//! whether they were to interrupt calls.
//!
//! A thread that is cancelled ([`crate::cancel`]) wakes up in the same way.
//!
//! Not put off are signals that the thread has caused by what it does, and handlers that were installed by a system call of
//! the program's own.
mod sleep;

use crate::cancel;
use sleep::Stops;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{compiler_fence, AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// Signals that a thread causes itself. Blocked, they would end the process.
const OWN: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];
/// Signals of the C library's own.
const OF_LIBRARY: [libc::c_int; 2] = [32, 33];
/// The highest signal.
const LAST: usize = 64;
/// Bytes of a set of signals, as the kernel's calls take it.
pub const SET_BYTES: usize = 8;

/// The kernel's set of signals.
type Set = u64;

/// The call that a thread is in.
struct Here {
    /// Calls of the library's that it is in.
    inside: Cell<u32>,
    stops: Stops,
    /// The thread cannot be cancelled until the end of the call, in which it may have locks.
    cancels_later: Cell<bool>,
    /// The last sleep has ended because another thread cancels this one.
    was_cancelled: Cell<bool>,
    /// The signals that were blocked before.
    mask: Cell<Set>,
    /// The mask that the program wanted for the sleep that the signal ended.
    asked: Cell<Option<Set>>,
    /// Handlers that are running. One that is left by a jump counts for ever.
    running: Cell<u32>,
    /// Handlers that have run.
    runs: Cell<u32>,
    /// Of them those that interrupt calls.
    interrupts: Cell<u32>,
}

thread_local! {
    static HERE: Here = const {
        Here {
            inside: Cell::new(0),
            stops: Stops { put_off: Cell::new(false), cancelled: Cell::new(false) },
            cancels_later: Cell::new(false),
            was_cancelled: Cell::new(false),
            mask: Cell::new(0),
            asked: Cell::new(None),
            running: Cell::new(0),
            runs: Cell::new(0),
            interrupts: Cell::new(0),
        }
    };
}

/// The calling thread is in a call of the library's, until this is dropped: then handlers run that were put off.
#[derive(Debug)]
pub struct Inside {
    _of_thread: std::marker::PhantomData<*const ()>,
}

impl Inside {
    /// Handlers are put off from now on.
    #[inline]
    pub fn enter() -> Self {
        HERE.with(|here| here.inside.set(here.inside.get() + 1));
        compiler_fence(Ordering::SeqCst);
        if cancel::has_begun() {
            cancel_later();
        }
        Self { _of_thread: std::marker::PhantomData }
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let last = HERE.with(|here| {
            let left = here.inside.get().saturating_sub(1);
            here.inside.set(left);
            compiler_fence(Ordering::SeqCst);
            left == 0 && (here.stops.put_off.get() || here.cancels_later.get())
        });
        if last {
            end();
        }
    }
}

/// Returns whether a handler waits for the end of the call that the thread is in.
#[inline]
pub fn are_put_off() -> bool {
    HERE.with(|here| here.stops.put_off.get())
}

/// Handlers that have run in the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// All.
    pub all: u32,
    /// The ones that were installed without `SA_RESTART`.
    pub interrupting: u32,
}

/// Returns the number of handlers that have run so far.
pub fn runs() -> Runs {
    HERE.with(|here| Runs { all: here.runs.get(), interrupting: here.interrupts.get() })
}

/// Has the handlers run that were put off, where the caller holds no lock and nothing of the thread's.
pub fn let_run() {
    if are_put_off() {
        outside(|| ());
    }
}

/// Tells whether the thread is in a call of the library's.
pub fn is_inside() -> bool {
    HERE.with(|here| here.inside.get() > 0)
}

/// Does what may take long, and nothing of the library's, as if the thread was in no call of the library's.
pub fn outside<T>(work: impl FnOnce() -> T) -> T {
    /// Sets the count back, also when a panic or a jump leaves the work.
    struct Back(u32);
    impl Drop for Back {
        fn drop(&mut self) {
            HERE.with(|here| here.inside.set(self.0));
            if cancel::has_begun() {
                cancel_later();
            }
        }
    }
    let _back = Back(HERE.with(|here| here.inside.replace(0)));
    compiler_fence(Ordering::SeqCst);
    if are_put_off() {
        deliver();
    }
    work()
}

/// Outside of all calls: handlers run, and the thread can be cancelled, as before.
#[cold]
fn end() {
    if are_put_off() {
        deliver();
    }
    if HERE.with(|here| here.cancels_later.take()) {
        cancel::enable(true);
    }
}

/// The calling thread cannot be cancelled until the end of its call. The C library's functions that the call uses would leave it in the middle.
#[cold]
fn cancel_later() {
    HERE.with(|here| {
        if here.inside.get() > 0 && !here.cancels_later.get() && cancel::enable(false) {
            here.cancels_later.set(true);
        }
    });
}

/// Outside of all calls: gives the thread its mask back, so that the kernel delivers what waits.
#[cold]
fn deliver() {
    let (mask, asked) = HERE.with(|here| {
        here.stops.put_off.set(false);
        (here.mask.get(), here.asked.take())
    });
    set_mask(mask);
    if let Some(asked) = asked {
        // The program had these blocked but for the sleep.
        set_mask(asked);
        set_mask(mask);
    }
}

/// Blocks these signals and no others. Returns those that were blocked before.
fn set_mask(mask: Set) -> Set {
    let mut before: Set = 0;
    // SAFETY: sets of the kernel's size; of the calling thread alone.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            SET_BYTES,
        );
    }
    before
}

fn bit(signal: libc::c_int) -> Set {
    1 << (signal - 1)
}

/// Returns the signals that are blocked while one waits.
fn held() -> Set {
    OWN.into_iter().chain(OF_LIBRARY).fold(!0, |set, signal| set & !bit(signal))
}

/// Sleeps by a system call that a signal ends, whichever instant it comes: also if it was put off before.
/// `mask`, if not null, is the argument by which the call itself changes the thread's mask. Returns what the call does:
/// a negative `errno` if it fails.
///
/// # Safety
/// The requirements of the system call.
pub unsafe fn interruptible(
    number: libc::c_long,
    arguments: [usize; 6],
    mask: *const libc::sigset_t,
) -> isize {
    let result = HERE.with(|here| {
        let (_sleeper, is_cancelled) = cancel::Sleeper::new();
        if is_cancelled {
            here.stops.cancelled.set(true);
        }
        loop {
            // SAFETY: the caller's promise.
            let result = unsafe { sleep::make(&raw const here.stops, number, arguments) };
            if cancel::has_begun() {
                // The call may have begun before.
                cancel_later();
            }
            let is_ended = result == -(libc::EINTR as isize) && !here.stops.put_off.get();
            if is_ended && here.stops.cancelled.take() {
                if !here.cancels_later.get() {
                    // The program does not let it be cancelled.
                    continue;
                }
                here.was_cancelled.set(true);
            }
            return result;
        }
    });
    if !mask.is_null() && result == -(libc::EINTR as isize) && are_put_off() {
        // SAFETY: the caller's set, which the kernel has read.
        let asked = unsafe { mask.cast::<Set>().read() };
        HERE.with(|here| here.asked.set(Some(asked)));
    }
    result
}

/// In a handler with this context: the thread's sleep ends, for another thread cancels it. A sleep that has not begun does not begin.
///
/// # Safety
/// The context is the handler's.
pub(crate) unsafe fn end_sleep(context: *mut libc::c_void) {
    HERE.with(|here| here.stops.cancelled.set(true));
    // SAFETY: the caller's promise.
    unsafe { sleep::skip(context.cast()) };
}

/// Returns whether a sleep has ended because another thread cancels this one, until [`take_cancelled`].
pub fn was_cancelled() -> bool {
    HERE.with(|here| here.was_cancelled.get())
}

/// Returns [`was_cancelled`], and forgets it.
pub fn take_cancelled() -> bool {
    HERE.with(|here| here.was_cancelled.take())
}

/// The handler that the program has installed for a signal.
struct Known {
    /// Its handler.
    handler: AtomicUsize,
    /// The flags that it was installed with.
    flags: AtomicI32,
    /// The kernel gives the catcher information about it.
    informs: AtomicBool,
}

static KNOWN: [Known; LAST + 1] = [const {
    Known { handler: AtomicUsize::new(0), flags: AtomicI32::new(0), informs: AtomicBool::new(false) }
}; LAST + 1];
/// Set while a thread installs handlers, one at a time, with all signals blocked.
static INSTALLING: AtomicBool = AtomicBool::new(false);

type Handler = unsafe extern "C-unwind" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Stands in for the program's handlers.
///
/// # Safety
/// The kernel calls it.
unsafe extern "C-unwind" fn catcher(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let known = &KNOWN[place(signal)];
    let handler = known.handler.load(Ordering::Acquire);
    let informs = known.informs.load(Ordering::Acquire);
    let is_put_off = HERE.with(|here| {
        // SAFETY: the kernel has written it, where it informs.
        let may_wait = || informs && !(OWN.contains(&signal) && unsafe { (*info).si_code } > 0);
        // SAFETY: the kernel's arguments.
        if here.inside.get() > 0 && may_wait() && unsafe { put_off(here, signal, info, context) } {
            return true;
        }
        here.runs.set(here.runs.get().wrapping_add(1));
        if known.flags.load(Ordering::Relaxed) & libc::SA_RESTART == 0 {
            here.interrupts.set(here.interrupts.get().wrapping_add(1));
        }
        false
    });
    if !is_put_off && handler != 0 {
        // SAFETY: what the program has installed: one that takes fewer arguments leaves the others.
        let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
        HERE.with(|here| here.running.set(here.running.get() + 1));
        // SAFETY: with the kernel's arguments.
        unsafe { handler(signal, info, context) };
        HERE.with(|here| here.running.set(here.running.get() - 1));
    }
}

/// Returns whether the calling thread may be in a handler of the program's, which may have interrupted anything.
pub fn may_be_in_handler() -> bool {
    HERE.with(|here| here.running.get() > 0)
}

/// Blocks all signals and sends this one to the thread again. False: it cannot be sent.
///
/// # Safety
/// The arguments are those of a handler.
#[cold]
unsafe fn put_off(
    here: &Here,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) -> bool {
    // SAFETY: the calling thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    // A signal that comes right now is put off before this one goes on.
    set_mask(held());
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: numbers, and the kernel's information; a process may send any to itself.
    let sent = unsafe {
        let [process, thread] = [libc::SYS_getpid, libc::SYS_gettid].map(|number| libc::syscall(number));
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info) == 0
    };
    // SAFETY: of the context only what the kernel restores: a set of its size.
    let blocked = unsafe { (&raw mut (*context).uc_sigmask).cast::<Set>() };
    if sent {
        // SAFETY: as above.
        unsafe {
            here.mask.set(blocked.read());
            here.stops.put_off.set(true);
            blocked.write(blocked.read() | held());
            sleep::skip(context);
        }
        install_again(signal);
    } else {
        // SAFETY: as above.
        set_mask(unsafe { blocked.read() } | bit(signal));
    }
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = errno };
    sent
}

/// A handler that was to be installed for one signal only has not run.
fn install_again(signal: libc::c_int) {
    if KNOWN[place(signal)].flags.load(Ordering::Relaxed) & libc::SA_RESETHAND == 0 {
        return;
    }
    /// The kernel's `struct sigaction`, whose handler is first; the rest stays as it is.
    #[repr(C)]
    struct Action {
        handler: usize,
        rest: [u64; 3],
    }
    let mut action = MaybeUninit::<Action>::zeroed();
    // SAFETY: asks for an action, and installs the same with another handler.
    unsafe {
        let none = ptr::null_mut::<Action>();
        if libc::syscall(libc::SYS_rt_sigaction, signal, none, action.as_mut_ptr(), SET_BYTES) != 0 {
            return;
        }
        let action = action.assume_init_mut();
        if action.handler == libc::SIG_DFL {
            action.handler = catcher as Handler as usize;
            libc::syscall(libc::SYS_rt_sigaction, signal, ptr::from_ref(action), none, SET_BYTES);
        }
    }
}

fn place(signal: libc::c_int) -> usize {
    usize::try_from(signal).unwrap_or(0).min(LAST)
}

/// The state of a signal before a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The program's handler.
    pub handler: usize,
    /// The flags that it was installed with.
    pub flags: libc::c_int,
}

/// Handlers are being installed, by one thread at a time.
#[derive(Debug)]
pub struct Handlers {
    blocked: Set,
    _of_thread: std::marker::PhantomData<*const ()>,
}

impl Handlers {
    /// Waits for other threads that install handlers. Signals are blocked until this is dropped.
    pub fn lock() -> Self {
        let blocked = set_mask(!0);
        while INSTALLING.swap(true, Ordering::Acquire) {
            pd_shm::yield_now();
        }
        Self { blocked, _of_thread: std::marker::PhantomData }
    }

    /// The catcher is to call this handler from now on. `informs`: the kernel gives it information about the signal. Returns
    /// what was known before.
    pub fn set(&self, signal: libc::c_int, new: Installed, informs: bool) -> Installed {
        let known = &KNOWN[place(signal)];
        let before = installed(signal);
        known.informs.store(informs, Ordering::Release);
        known.flags.store(new.flags, Ordering::Relaxed);
        known.handler.store(new.handler, Ordering::Release);
        before
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        INSTALLING.store(false, Ordering::Release);
        set_mask(self.blocked);
    }
}

/// Returns the handler that the program has installed for a signal, as far as the catcher knows.
pub fn installed(signal: libc::c_int) -> Installed {
    let known = &KNOWN[place(signal)];
    Installed { handler: known.handler.load(Ordering::Acquire), flags: known.flags.load(Ordering::Relaxed) }
}

/// Returns the function to install in place of handlers.
pub fn catcher_address() -> usize {
    catcher as Handler as usize
}

/// In a forked child: the thread that was installing handlers is not there.
pub(crate) fn in_child() {
    INSTALLING.store(false, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::sync::Mutex;

    /// The tests use the same signals.
    static ONE: Mutex<()> = Mutex::new(());
    static RUNS: AtomicU32 = AtomicU32::new(0);
    static VALUES: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C-unwind" fn handler(
        _signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _context: *mut libc::c_void,
    ) {
        RUNS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the kernel's information.
        VALUES.fetch_add(unsafe { (*info).si_value() }.sival_ptr as usize as u32, Ordering::Relaxed);
    }

    /// Installs the catcher, and the handler behind it.
    fn install(signal: libc::c_int, flags: libc::c_int) {
        let handlers = Handlers::lock();
        handlers.set(signal, Installed { handler: handler as Handler as usize, flags }, true);
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: an action that is there.
        unsafe {
            (*action.as_mut_ptr()).sa_sigaction = catcher_address();
            (*action.as_mut_ptr()).sa_flags = flags | libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(signal, action.as_ptr(), ptr::null_mut()), 0);
        }
    }

    fn queue(signal: libc::c_int, value: usize) {
        // SAFETY: to the calling thread, which has a handler for it.
        unsafe {
            libc::pthread_sigqueue(libc::pthread_self(), signal, libc::sigval { sival_ptr: value as _ })
        };
    }

    fn blocked() -> Set {
        let mut set: Set = 0;
        // SAFETY: room for a set.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, 0, 0, &raw mut set, SET_BYTES) };
        set
    }

    fn counts() -> (u32, u32) {
        (RUNS.load(Ordering::Relaxed), VALUES.load(Ordering::Relaxed))
    }

    #[test]
    fn handlers_run_at_the_end_of_a_call_as_if_they_had_come_then() {
        let _one = ONE.lock();
        for flags in [0, libc::SA_RESTART, libc::SA_NODEFER, libc::SA_RESETHAND] {
            let (signal, other) = (libc::SIGRTMIN() + 3, libc::SIGUSR2);
            [signal, other].into_iter().for_each(|signal| install(signal, flags));
            let (before, mask, runs_before) = (counts(), blocked(), runs());
            let outer = Inside::enter();
            let inner = Inside::enter();
            queue(signal, 3);
            queue(other, 40);
            assert_eq!((counts(), are_put_off()), (before, true));
            drop(inner);
            assert_eq!(counts(), before, "only with the outer one");
            drop(outer);
            assert_eq!(counts(), (before.0 + 2, before.1 + 43), "flags {flags:x}");
            assert_eq!((blocked(), are_put_off()), (mask, false));
            let interrupting = if flags == libc::SA_RESTART { 0 } else { 2 };
            assert_eq!(runs().all - runs_before.all, 2);
            assert_eq!(runs().interrupting - runs_before.interrupting, interrupting);
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: room for an action.
            let now = unsafe {
                libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
                action.assume_init().sa_sigaction
            };
            assert_eq!(now == libc::SIG_DFL, flags == libc::SA_RESETHAND, "for one signal only");
        }
    }

    #[test]
    fn outside_and_where_they_are_let_handlers_run_at_once() {
        let _one = ONE.lock();
        let signal = libc::SIGRTMIN() + 4;
        install(signal, 0);
        let before = counts();
        let inside = Inside::enter();
        queue(signal, 1);
        assert_eq!(counts(), before);
        let_run();
        assert_eq!(counts(), (before.0 + 1, before.1 + 1));
        queue(signal, 1);
        outside(|| {
            assert_eq!(counts().0, before.0 + 2);
            queue(signal, 1);
            assert_eq!(counts().0, before.0 + 3);
        });
        queue(signal, 1);
        assert_eq!(counts().0, before.0 + 3, "in the call again");
        drop(inside);
        assert_eq!(counts().0, before.0 + 4);
    }

    /// A signal that comes at any instant of many sleeps, most of which end by themselves just then, ends the one or is
    /// seen before the next, once.
    #[test]
    fn no_sleep_begins_while_a_handler_waits() {
        const ROUNDS: u32 = 20_000;
        static ASKED: AtomicU32 = AtomicU32::new(0);
        static SENT: AtomicU32 = AtomicU32::new(0);
        let _one = ONE.lock();
        let signal = libc::SIGRTMIN() + 5;
        install(signal, libc::SA_RESTART);
        // SAFETY: always succeeds.
        let waiter = unsafe { libc::pthread_self() };
        let sender = std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                while ASKED.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
                (0..round % 1021 * 8).for_each(|_| std::hint::spin_loop());
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(waiter, signal) };
                SENT.store(round, Ordering::Release);
            }
        });
        let before = counts().0;
        for round in 1..=ROUNDS {
            let inside = Inside::enter();
            ASKED.store(round, Ordering::Release);
            let nap = |nanoseconds: libc::c_long| {
                let time = libc::timespec {
                    tv_sec: nanoseconds / 1_000_000_000,
                    tv_nsec: nanoseconds % 1_000_000_000,
                };
                let arguments = [libc::CLOCK_MONOTONIC as usize, 0, (&raw const time) as usize, 0, 0, 0];
                // SAFETY: the time is there.
                unsafe { interruptible(libc::SYS_clock_nanosleep, arguments, ptr::null()) }
            };
            while !are_put_off() && SENT.load(Ordering::Acquire) < round {
                nap(1);
            }
            // The signal has been sent, and ends a sleep of an hour.
            assert_eq!(nap(3600 * 1_000_000_000), -(libc::EINTR as isize), "round {round}");
            assert_eq!(counts().0 - before, round - 1);
            drop(inside);
            assert_eq!(counts().0 - before, round);
        }
        sender.join().unwrap();
    }

    #[test]
    fn what_a_thread_causes_itself_is_not_put_off() {
        let _one = ONE.lock();
        install(libc::SIGFPE, libc::SA_NODEFER);
        let before = counts().0;
        let inside = Inside::enter();
        // SAFETY: to the calling thread, which has a handler for it.
        unsafe {
            let mut info = MaybeUninit::<[u8; 128]>::zeroed();
            info.as_mut_ptr().cast::<libc::c_int>().add(2).write(1); // as the kernel says it: FPE_INTDIV
            let [process, thread] = [libc::SYS_getpid, libc::SYS_gettid].map(|number| libc::syscall(number));
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, libc::SIGFPE, info.as_ptr());
        }
        assert_eq!(counts().0, before + 1);
        drop(inside);
        assert_eq!(counts().0, before + 1);
    }
}
