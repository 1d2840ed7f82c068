//! Waits for requests, of which some may be the C library's.
use super::{error_of, made, shared, Block, Shared};
use crate::call::{interrupts, lock, Failure, Outcome, AGAIN};
use libc::timespec;
use pd_client::core::interruptible;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time between looks at requests of the C library's, whose ends nobody tells.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Ends the sleeps of waits: a request is done.
pub(super) fn wake(shared: &Shared) {
    shared.done.fetch_add(1, Ordering::Release);
    let arguments = [
        shared.done.as_ptr() as usize,
        (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize,
        i32::MAX as usize,
        0,
        0,
        0,
    ];
    // SAFETY: a word that lives as long as the process.
    unsafe { crate::real::system_call(libc::SYS_futex, arguments) };
}

/// Sleeps as long as no more requests than `seen` are done. True: a signal has ended the sleep.
fn sleep(shared: &Shared, seen: u32, limit: Option<Duration>) -> bool {
    let time =
        limit.map(|limit| timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let what = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let arguments = [shared.done.as_ptr() as usize, what, seen as usize, time as usize, 0, 0];
    // SAFETY: a word that lives as long as the process, and a time of this call's.
    let slept = unsafe { interruptible(libc::SYS_futex, arguments, std::ptr::null()) };
    slept == -(libc::EINTR as isize)
}

/// Returns whether one of them is a request of the library's that is not done.
pub(crate) fn has_own(blocks: &[*const Block]) -> bool {
    made().is_some_and(|shared| {
        let queues = lock(&shared.queues);
        blocks.iter().any(|&block| queues.has(block))
    })
}

/// Waits until one of the requests is done, at most so long.
///
/// # Errors
/// `EAGAIN` after the time, `EINTR` if a signal handler has run.
///
/// # Safety
/// All are null or control blocks.
pub(crate) unsafe fn for_any(blocks: &[*const Block], limit: Option<Duration>) -> Outcome<()> {
    let blocks: Vec<_> = blocks.iter().copied().filter(|block| !block.is_null()).collect();
    // SAFETY: the caller's promise.
    let is_done = |block| unsafe { error_of(block) } != libc::EINPROGRESS;
    until(&blocks, limit, || blocks.iter().any(|&block| is_done(block)))
}

/// Waits until all of the requests are done.
///
/// # Errors
/// `EINTR` if a signal handler has run.
///
/// # Safety
/// All are control blocks.
pub(crate) unsafe fn for_all(blocks: &[*const Block]) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let is_done = |block| unsafe { error_of(block) } != libc::EINPROGRESS;
    until(blocks, None, || blocks.iter().all(|&block| is_done(block)))
}

fn until(blocks: &[*const Block], limit: Option<Duration>, is_over: impl Fn() -> bool) -> Outcome<()> {
    let shared = shared();
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let seen = shared.done.load(Ordering::Acquire);
        if is_over() {
            return Ok(());
        }
        let are_own = {
            let queues = lock(&shared.queues);
            // SAFETY: as for the caller.
            blocks.iter().all(|&block| queues.has(block) || unsafe { error_of(block) } != libc::EINPROGRESS)
        };
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(AGAIN);
        }
        let pause = if are_own { left } else { Some(left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY))) };
        if sleep(shared, seen, pause) && interrupts(limit.is_some()) {
            return Err(Failure::Errno(libc::EINTR));
        }
    }
}

/// Returns whether a request that is done has failed.
///
/// # Safety
/// `block` is a control block.
pub(crate) unsafe fn has_failed(block: *const Block) -> bool {
    // SAFETY: the caller's promise.
    ![0, libc::EINPROGRESS].contains(&unsafe { error_of(block) })
}
