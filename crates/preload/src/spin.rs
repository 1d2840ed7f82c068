//! Looking for a while before a sleep in the kernel, which would find out about the fabric only by a descriptor.
use crate::call::{Failure, Outcome};
use pd_client::core::{Hold, Spin};
use std::cell::RefCell;

thread_local! {
    static SPIN: RefCell<Spin> = RefCell::default();
}

/// Asks `ready` for a bounded time that learns; says whether it said yes. Who sleeps if not says [`slept`] then.
///
/// # Errors
/// `EINTR` if a signal handler has run and `ready` never said yes; those of `ready`.
pub(crate) fn until(mut ready: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    let (mut failure, hold) = (None, Hold::default());
    let look = || {
        hold.look(ready().unwrap_or_else(|error| {
            failure = Some(error);
            true
        }))
    };
    // A thread that ends, or a signal handler that waits while the thread does: no spin.
    let found = SPIN.try_with(|spin| spin.try_borrow_mut().is_ok_and(|mut spin| spin.until(look)));
    match (failure, found.unwrap_or(false)) {
        (Some(error), _) => Err(error),
        (None, false) if hold.release() => Err(Failure::Errno(libc::EINTR)),
        (None, found) => Ok(found),
    }
}

/// Learns from a sleep that has ended.
pub(crate) fn slept() {
    let _ = SPIN.try_with(|spin| spin.try_borrow_mut().map(|mut spin| spin.slept()));
}
