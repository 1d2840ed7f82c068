//! `pd_poll`: sockets, pipes, epoll instances and descriptors of the kernel's in one call.
use crate::guard::guard;
use crate::pipe;
use libc::{c_int, nfds_t, pollfd};
use pd_client::core::{poll, with, Named, Target, FIRST_SID};
use pd_client::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

fn target(number: c_int) -> Result<Target> {
    if number < FIRST_SID {
        return Ok(if number < 0 { Target::Nothing } else { Target::Descriptor(number) });
    }
    let named = with(number, |named| match named {
        Named::Socket(socket) => Ok(Target::Socket(socket.clone())),
        Named::Epoll(epoll) => Ok(Target::Descriptor(epoll.fd()?)),
        Named::Other(other) => {
            let other = pipe::member(other)?;
            let fd = Arc::new(pipe::descriptor(&other)?);
            Ok(Target::Other(other, fd))
        }
    });
    match named {
        Err(error) if error.errno() == libc::EBADF => Ok(Target::Unknown),
        named => named,
    }
}

/// See `pd_poll(3)`.
///
/// # Safety
/// `fds` points to `count` entries.
#[no_mangle]
pub unsafe extern "C" fn pd_poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    guard(-1, || {
        if fds.is_null() && count > 0 {
            return Err(Error::with_errno(libc::EFAULT, "the list of entries is NULL"));
        }
        let entries: &mut [pollfd] = match count {
            0 => &mut [],
            // SAFETY: not null, and `count` entries, the caller says.
            count => unsafe { std::slice::from_raw_parts_mut(fds, count as usize) },
        };
        let targets = entries.iter().map(|entry| target(entry.fd)).collect::<Result<Vec<_>>>()?;
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        poll(entries, &targets, timeout).map(|count| count as c_int)
    })
}
