//! Forwarding from one socket to another.
use crate::guard::guard;
use libc::{c_int, size_t, ssize_t};
use pd_client::core::with_socket;

/// See `pd_forward(3)`.
#[no_mangle]
pub extern "C" fn pd_forward(from: c_int, to: c_int, len: size_t) -> ssize_t {
    guard(-1, || {
        let to = with_socket(to, |to| Ok(to.clone()))?;
        with_socket(from, |from| Ok(from.forward(&to, len)? as ssize_t))
    })
}
