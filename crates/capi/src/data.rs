//! Sending, receiving, and the memory for it.
use crate::guard::guard;
use libc::{c_int, c_void, off_t, size_t, ssize_t};
use pd_client::core::{free, malloc, with_socket};
use pd_client::{Error, Result};
use std::os::fd::BorrowedFd;
use std::ptr;

/// See `pd_send(3)`.
#[no_mangle]
pub extern "C" fn pd_send(sid: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // The memory at `buf` is looked up, and read only where it lies in a block of `pd_malloc`.
    guard(-1, || with_socket(sid, |socket| Ok(socket.send(buf.cast(), len)? as ssize_t)))
}

/// Writes at most `len` bytes at `place` and says how many; -1 if it fails.
type Fill = unsafe extern "C" fn(place: *mut c_void, len: size_t, arg: *mut c_void) -> ssize_t;

/// See `pd_send_with(3)`.
///
/// # Safety
/// `fill` may be called with `arg`, and returns.
#[no_mangle]
pub unsafe extern "C" fn pd_send_with(
    sid: c_int,
    len: size_t,
    fill: Option<Fill>,
    arg: *mut c_void,
) -> ssize_t {
    guard(-1, || {
        let mut failed = None;
        let fill = fill.ok_or_else(|| Error::with_errno(libc::EFAULT, "the function is NULL"))?;
        with_socket(sid, |socket| {
            let sent = socket.send_placed(len, |place| {
                // SAFETY: the caller's function, with its argument and a place of so many bytes.
                let filled = unsafe { fill(place.as_mut_ptr().cast(), place.len(), arg) };
                // SAFETY: the calling thread's errno.
                let errno = || unsafe { *libc::__errno_location() };
                usize::try_from(filled).unwrap_or_else(|_| {
                    failed = Some(errno());
                    0
                })
            })?;
            match failed {
                Some(errno) => {
                    Err(Error::with_errno(errno, "the function that was to write the bytes failed"))
                }
                None => Ok(sent as ssize_t),
            }
        })
    })
}

/// See `pd_sendfile(3)`.
///
/// # Safety
/// `offset` points to a number, or is null.
#[no_mangle]
pub unsafe extern "C" fn pd_sendfile(sid: c_int, fd: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    guard(-1, || {
        if fd < 0 {
            return Err(Error::with_errno(libc::EBADF, "the file's descriptor is negative"));
        }
        // SAFETY: the caller's number, if it is not null.
        let at = match unsafe { offset.as_ref() } {
            Some(&at) if at < 0 => return Err(Error::invalid("the offset is negative")),
            Some(&at) => at,
            // SAFETY: only asks for the file's position.
            None => match unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) } {
                -1 => {
                    let errno = std::io::Error::last_os_error().raw_os_error();
                    return Err(Error::with_errno(errno.unwrap_or(libc::ESPIPE), "the file has no position"));
                }
                at => at,
            },
        };
        // SAFETY: a descriptor of the caller's, for the time of the call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let sent = with_socket(sid, |socket| socket.send_file(file, at as u64, count))?;
        let after = at + sent as off_t;
        // SAFETY: as above; or sets the file's position.
        unsafe {
            match offset.as_mut() {
                Some(offset) => *offset = after,
                None => drop(libc::lseek(fd, after, libc::SEEK_SET)),
            }
        }
        Ok(sent as ssize_t)
    })
}

/// See `pd_recv(3)`.
///
/// # Safety
/// `buf` points to a pointer.
#[no_mangle]
pub unsafe extern "C" fn pd_recv(sid: c_int, len: size_t, buf: *mut *mut c_void) -> ssize_t {
    guard(-1, || {
        if buf.is_null() {
            return Err(Error::with_errno(libc::EFAULT, "the place for the pointer is NULL"));
        }
        let handout = with_socket(sid, |socket| socket.recv(len))?;
        let ptr = if handout.len == 0 { ptr::null_mut() } else { handout.ptr.as_ptr().cast() };
        // SAFETY: not null; a pointer's place, the caller says.
        unsafe { buf.write(ptr) };
        Ok(handout.len as ssize_t)
    })
}

/// See `pd_recv_done(3)`.
#[no_mangle]
pub extern "C" fn pd_recv_done(sid: c_int, len: size_t) -> c_int {
    guard(-1, || with_socket(sid, |socket| socket.recv_done(len).map(|()| 0)))
}

/// See `pd_buf_refresh(3)`.
///
/// # Safety
/// `bufs` points to `n` pointers.
#[no_mangle]
pub unsafe extern "C" fn pd_buf_refresh(sid: c_int, bufs: *mut *mut c_void, n: c_int) -> c_int {
    guard(-1, || {
        let count = usize::try_from(n).map_err(|_| Error::invalid("a negative number of buffers"))?;
        with_socket(sid, |socket| {
            if count == 0 {
                return Ok(0);
            }
            if bufs.is_null() {
                return Err(Error::with_errno(libc::EFAULT, "the list of buffers is NULL"));
            }
            // SAFETY: `n` pointers of the caller's, which nobody else touches during the call.
            let bufs = unsafe { std::slice::from_raw_parts_mut(bufs.cast::<*mut u8>(), count) };
            Ok(socket.buf_refresh(bufs)? as c_int)
        })
    })
}

/// See `pd_malloc(3)`.
#[no_mangle]
pub extern "C" fn pd_malloc(size: size_t) -> *mut c_void {
    guard(ptr::null_mut(), || Ok(malloc(size)?.as_ptr().cast()))
}

/// See `pd_malloc(3)`.
#[no_mangle]
pub extern "C" fn pd_free(ptr: *mut c_void) -> c_int {
    guard(-1, || -> Result<c_int> {
        if !ptr.is_null() {
            free(ptr.cast())?;
        }
        Ok(0)
    })
}
