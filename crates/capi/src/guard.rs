//! The frame of every call: errno, the sentence, and panics.
use pd_client::{Error, Result};
use std::cell::RefCell;
use std::ffi::{c_char, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};

thread_local! {
    static LAST: RefCell<(Option<Error>, CString)> = RefCell::new((None, CString::default()));
}

/// Runs `call`; on failure sets errno, keeps the sentence and returns `failed`.
#[inline]
pub(crate) fn guard<T>(failed: T, call: impl FnOnce() -> Result<T>) -> T {
    let result = catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(Error::with_errno(libc::EIO, "the library has failed; please report it")));
    result.unwrap_or_else(|error| {
        let errno = error.errno();
        // A thread that ends keeps no sentence.
        let _ = LAST.try_with(|last| last.borrow_mut().0 = Some(error));
        // SAFETY: the calling thread's errno.
        unsafe { *libc::__errno_location() = errno };
        failed
    })
}

/// The thread's last failure, in a sentence; empty if none failed. Valid until the thread's next call.
#[no_mangle]
pub extern "C" fn pd_errmsg() -> *const c_char {
    let sentence = || {
        LAST.try_with(|last| {
            let mut last = last.borrow_mut();
            let text = last.0.as_ref().map_or("", Error::message).replace('\0', "");
            last.1 = CString::new(text).unwrap_or_default();
            last.1.as_ptr()
        })
    };
    match catch_unwind(sentence) {
        Ok(Ok(ptr)) => ptr,
        _ => c"".as_ptr(),
    }
}
