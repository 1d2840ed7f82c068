//! Threads of the library's own.
use libc::{c_int, c_void};
use std::mem::MaybeUninit;

/// Stack of a thread: what calls on a connection take, and more.
const STACK_BYTES: usize = 256 << 10;

/// Starts a thread, which blocks all signals, and which nobody waits for. `argument` is there as long as the thread is. Not in a handler: it
/// takes memory.
///
/// # Errors
/// `EAGAIN` as a rule: there is no memory, or there are too many threads.
pub(crate) fn start(
    main: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> Result<(), c_int> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::uninit());
    // SAFETY: each is written before it is read; the argument is the caller's promise.
    let started = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
        libc::sigfillset(all.as_mut_ptr());
        // A thread has the mask of its maker.
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let started = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), main, argument);
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        started
    };
    if started == 0 {
        Ok(())
    } else {
        Err(started)
    }
}
