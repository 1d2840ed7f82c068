//! Threads that carry requests out.
use super::Shared;
use crate::call::lock;
use libc::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::PoisonError;
use std::time::Duration;

/// Life of a thread without work, as in the C library.
const IDLE_FOR: Duration = Duration::from_secs(1);
/// Stack of a thread: what calls on a connection take, and more.
const STACK_BYTES: usize = 256 << 10;

/// Starts a thread, which blocks all signals.
///
/// # Errors
/// `EAGAIN` as a rule: there is no memory, or there are too many threads.
pub(super) fn start(shared: &'static Shared) -> Result<(), c_int> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::uninit());
    // SAFETY: each is written before it is read; the thread's argument lives as long as the process.
    let started = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
        libc::sigfillset(all.as_mut_ptr());
        // A thread has the mask of its maker.
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let argument = std::ptr::from_ref(shared).cast_mut().cast::<c_void>();
        let started = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), serve, argument);
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

/// Main function of a thread. `argument` is the process's requests.
extern "C" fn serve(argument: *mut c_void) -> *mut c_void {
    // SAFETY: see `start`.
    let shared = unsafe { &*argument.cast::<Shared>() };
    let mut queues = lock(&shared.queues);
    loop {
        let Some(fd) = queues.ready.pop_front() else {
            queues.idle += 1;
            let waited = shared.work.wait_timeout(queues, IDLE_FOR);
            let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            queues = again;
            queues.idle -= 1;
            if waited.timed_out() && queues.ready.is_empty() {
                queues.threads -= 1;
                return std::ptr::null_mut();
            }
            continue;
        };
        while let Some(first) = queues.of.get(&fd).and_then(|queue| queue.front()) {
            let (job, carry) = (first.job, first.carry);
            drop(queues);
            // SAFETY: the program leaves the buffer to the request.
            let outcome = unsafe { carry(job) };
            queues = lock(&shared.queues);
            let Some(queue) = queues.of.get_mut(&fd) else { break };
            let done = queue.pop_front().map(|request| request.end(outcome));
            // The next request is this thread's from now on. Without one the descriptor may soon be another thread's.
            let goes_on = !queue.is_empty();
            if !goes_on {
                queues.of.remove(&fd);
            }
            drop(queues);
            done.into_iter().for_each(|done| done.tell(shared));
            queues = lock(&shared.queues);
            if !goes_on {
                break;
            }
        }
    }
}
