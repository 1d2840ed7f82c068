//! Receiving and sending as the BSD calls do, with a copy.
use crate::guard::guard;
use libc::{c_int, c_void, iovec, size_t, ssize_t};
use pd_client::core::with_socket;
use pd_client::{Error, Reading, Result};

/// As the kernel's `IOV_MAX`.
const PIECES_MAX: usize = 1024;
const FLAGS: c_int = libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_DONTWAIT;

/// Memory of the caller's in one piece.
fn whole(start: *mut c_void, len: size_t) -> Result<[iovec; 1]> {
    if start.is_null() && len > 0 {
        return Err(Error::with_errno(libc::EFAULT, "the memory is NULL"));
    }
    Ok([iovec { iov_base: start, iov_len: len }])
}

/// Memory of the caller's in `count` pieces.
///
/// # Safety
/// `start` is null or points to as many, which nobody writes meanwhile.
unsafe fn pieces<'a>(start: *const iovec, count: c_int) -> Result<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|&count| count <= PIECES_MAX);
    let count = count.ok_or_else(|| Error::invalid(format!("there are 0 to {PIECES_MAX} pieces")))?;
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return Err(Error::with_errno(libc::EFAULT, "the list of pieces is NULL"));
    }
    // SAFETY: not null, and `count` pieces, the caller says.
    let pieces = unsafe { std::slice::from_raw_parts(start, count) };
    match pieces.iter().any(|piece| piece.iov_base.is_null() && piece.iov_len > 0) {
        true => Err(Error::with_errno(libc::EFAULT, "a piece is NULL")),
        false => Ok(pieces),
    }
}

/// Receives.
///
/// # Safety
/// Each piece is memory that may be written.
unsafe fn receive(sid: c_int, pieces: &[iovec], how: Reading) -> Result<ssize_t> {
    // SAFETY: passed on from the caller.
    with_socket(sid, |socket| Ok(unsafe { socket.read(pieces, how) }? as ssize_t))
}

/// Sends.
///
/// # Safety
/// Each piece is memory that may be read.
unsafe fn send(sid: c_int, pieces: &[iovec]) -> Result<ssize_t> {
    // SAFETY: passed on from the caller.
    with_socket(sid, |socket| Ok(unsafe { socket.write(pieces) }? as ssize_t))
}

/// See `pd_read(3)`.
///
/// # Safety
/// `buf` points to `len` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn pd_read(sid: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: passed on from the caller.
    guard(-1, || unsafe { receive(sid, &whole(buf, len)?, Reading::default()) })
}

/// See `pd_read(3)`.
///
/// # Safety
/// `iov` points to `count` pieces of writable memory.
#[no_mangle]
pub unsafe extern "C" fn pd_readv(sid: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: passed on from the caller.
    guard(-1, || unsafe { receive(sid, pieces(iov, count)?, Reading::default()) })
}

/// See `pd_read(3)`.
///
/// # Safety
/// As for [`pd_read`].
#[no_mangle]
pub unsafe extern "C" fn pd_recv_into(sid: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    guard(-1, || {
        if flags & !FLAGS != 0 {
            return Err(Error::invalid("flags other than MSG_PEEK, MSG_WAITALL and MSG_DONTWAIT"));
        }
        let has = |flag: c_int| flags & flag != 0;
        let how = Reading {
            peek: has(libc::MSG_PEEK),
            all: has(libc::MSG_WAITALL),
            no_wait: has(libc::MSG_DONTWAIT),
        };
        // SAFETY: passed on from the caller.
        unsafe { receive(sid, &whole(buf, len)?, how) }
    })
}

/// See `pd_write(3)`.
///
/// # Safety
/// `buf` points to `len` readable bytes.
#[no_mangle]
pub unsafe extern "C" fn pd_write(sid: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: passed on from the caller.
    guard(-1, || unsafe { send(sid, &whole(buf.cast_mut(), len)?) })
}

/// See `pd_write(3)`.
///
/// # Safety
/// `iov` points to `count` pieces of readable memory.
#[no_mangle]
pub unsafe extern "C" fn pd_writev(sid: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: passed on from the caller.
    guard(-1, || unsafe { send(sid, pieces(iov, count)?) })
}
