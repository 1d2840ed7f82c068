//! Looking for a while before a sleep in the kernel, which would find out about the fabric only by a descriptor.
use crate::call::Outcome;
use crate::closed;
use pd_client::core::Spin;
use std::cell::RefCell;

thread_local! {
    static SPIN: RefCell<Spin> = RefCell::default();
}

/// Asks `ready` for a bounded time that learns; says whether it said yes. Who sleeps if not says [`slept`] then.
///
/// # Errors
/// Errors of `ready`.
pub(crate) fn until(mut ready: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    if closed::is_closed() {
        return Ok(false);
    }
    let mut failure = None;
    let look = || {
        ready().unwrap_or_else(|error| {
            failure = Some(error);
            true
        })
    };
    // A thread that ends, or one that waits within a wait: no spin.
    let found = SPIN.try_with(|spin| spin.try_borrow_mut().is_ok_and(|mut spin| spin.until(look)));
    failure.map_or(Ok(found.unwrap_or(false)), Err)
}

/// Learns from a sleep that has ended.
pub(crate) fn slept() {
    let _ = SPIN.try_with(|spin| spin.try_borrow_mut().map(|mut spin| spin.slept()));
}
