//! Threads that carry requests out.
use super::Shared;
use crate::call::lock;
use crate::thread;
use libc::{c_int, c_void};
use std::sync::PoisonError;
use std::time::Duration;

/// Life of a thread without work, as in the C library.
const IDLE_FOR: Duration = Duration::from_secs(1);

/// Starts a thread.
///
/// # Errors
/// `EAGAIN` as a rule: there is no memory, or there are too many threads.
pub(super) fn start(shared: &'static Shared) -> Result<(), c_int> {
    thread::start(serve, std::ptr::from_ref(shared).cast_mut().cast::<c_void>())
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
