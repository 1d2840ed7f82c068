//! Events by which a program learns that a request, or a list of requests, is done: a signal, or a function in a thread of its own.
use libc::{c_int, c_void};
use std::mem::MaybeUninit;

/// Cause of a signal in `siginfo_t`: a request of POSIX aio is done.
const SI_ASYNCIO: c_int = -4;

/// Function of an event, with its value.
type Function = unsafe extern "C-unwind" fn(*mut c_void);

/// The C library's `struct sigevent`. A `union sigval` is passed as a pointer is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Event {
    value: *mut c_void,
    signal: c_int,
    how: c_int,
    function: Option<Function>,
    attributes: *const libc::pthread_attr_t,
    rest: [u64; 4],
}

// SAFETY: what the program gives is used once, in whichever thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// The kernel's `siginfo_t` of a signal that a process queues.
#[repr(C)]
struct Information {
    signal: c_int,
    errno: c_int,
    code: c_int,
    unused: c_int,
    process: libc::pid_t,
    user: libc::uid_t,
    value: *mut c_void,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<Information>() == size_of::<libc::siginfo_t>());

impl Event {
    /// One that calls `function` with `value`.
    pub(super) fn calling(function: Function, value: *mut c_void) -> Self {
        let function = Some(function);
        Self {
            value,
            signal: 0,
            how: libc::SIGEV_THREAD,
            function,
            attributes: std::ptr::null(),
            rest: [0; 4],
        }
    }

    /// Returns whether the program learns of it.
    pub(crate) fn is_told(&self) -> bool {
        [libc::SIGEV_SIGNAL, libc::SIGEV_THREAD].contains(&self.how)
    }

    /// Tells the program.
    pub(super) fn tell(&self) {
        match self.how {
            libc::SIGEV_SIGNAL => self.send(),
            libc::SIGEV_THREAD => self.start(),
            _ => {}
        }
    }

    fn send(&self) {
        // SAFETY: numbers of this process, and information of the kernel's size.
        unsafe {
            let process = libc::getpid();
            let mut information = Information {
                signal: self.signal,
                errno: 0,
                code: SI_ASYNCIO,
                unused: 0,
                process,
                user: libc::getuid(),
                value: self.value,
                rest: [0; 12],
            };
            libc::syscall(libc::SYS_rt_sigqueueinfo, process, self.signal, &raw mut information);
        }
    }

    fn start(&self) {
        let call = Box::into_raw(Box::new(*self)).cast::<c_void>();
        let mut own = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
        // SAFETY: attributes of the program's, or of this call's; the event is the thread's.
        unsafe {
            libc::pthread_attr_init(own.as_mut_ptr());
            libc::pthread_attr_setdetachstate(own.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
            let attributes = if self.attributes.is_null() { own.as_ptr() } else { self.attributes };
            if libc::pthread_create(thread.as_mut_ptr(), attributes, run(), call) != 0 {
                drop(Box::from_raw(call.cast::<Self>()));
            }
            libc::pthread_attr_destroy(own.as_mut_ptr());
        }
    }
}

/// Main function of a thread that calls an event's function. The function may end or cancel the thread, which unwinds.
fn run() -> extern "C" fn(*mut c_void) -> *mut c_void {
    extern "C-unwind" fn call(event: *mut c_void) -> *mut c_void {
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is written first; the event is this thread's, and its function the program's.
        unsafe {
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
            let event = *Box::from_raw(event.cast::<Event>());
            if let Some(function) = event.function {
                function(event.value);
            }
        }
        std::ptr::null_mut()
    }
    type Unwinds = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
    // SAFETY: the two differ in that the callee may unwind; `pthread_create` runs it in a frame that allows that.
    unsafe { std::mem::transmute::<Unwinds, extern "C" fn(*mut c_void) -> *mut c_void>(call) }
}
