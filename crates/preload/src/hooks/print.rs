//! `dprintf` and its kin: the C library writes their text behind the hooks. Those with an ellipsis come here by the loader, which
//! makes a list of their arguments.
use super::{hooks, send, stdio};
use crate::pipe::numbers;
use crate::real;
use libc::{c_char, c_int, c_void, size_t};

/// A longer text takes memory of the program's.
const SHORT_BYTES: usize = 1024;

extern "C" {
    fn vsnprintf(to: *mut c_char, room: size_t, format: *const c_char, list: *mut c_void) -> c_int;
    fn __vsnprintf_chk(
        to: *mut c_char,
        room: size_t,
        flag: c_int,
        size: size_t,
        format: *const c_char,
        list: *mut c_void,
    ) -> c_int;
}

/// Target of a `va_list`, or the list itself.
#[cfg(target_arch = "x86_64")]
type List = [u64; 3];
#[cfg(target_arch = "aarch64")]
type List = [u64; 4];

hooks! {
    fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
        if !stdio::is_known(fd) {
            numbers::passes(fd);
            return real::vdprintf(fd, format, list);
        }
        print(fd, list, |to, room, list| vsnprintf(to, room, format, list))
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int {
        if !stdio::is_known(fd) {
            numbers::passes(fd);
            return real::__vdprintf_chk(fd, flag, format, list);
        }
        print(fd, list, |to, room, list| __vsnprintf_chk(to, room, flag, room, format, list))
    }
}

/// Writes the text that `make` makes of the arguments in `list`, which it may be asked for twice.
///
/// # Safety
/// `list` is a `va_list`.
unsafe fn print(
    fd: c_int,
    list: *mut c_void,
    make: impl Fn(*mut c_char, size_t, *mut c_void) -> c_int,
) -> c_int {
    let mut short = [0_u8; SHORT_BYTES];
    // SAFETY: the caller's promise. A list may be copied and read again, as `va_copy` does on these processors.
    let mut again = unsafe { list.cast::<List>().read() };
    let len = make(short.as_mut_ptr().cast(), SHORT_BYTES, list);
    let Ok(bytes) = usize::try_from(len) else { return -1 };
    if bytes < SHORT_BYTES {
        return if write_all(fd, short.as_ptr(), bytes) { len } else { -1 };
    }
    // SAFETY: memory for the text and its last zero byte.
    unsafe {
        let long = libc::malloc(bytes + 1).cast::<u8>();
        if long.is_null() {
            return -1;
        }
        let is_whole = make(long.cast(), bytes + 1, again.as_mut_ptr().cast()) == len;
        let is_written = is_whole && write_all(fd, long, bytes);
        libc::free(long.cast());
        if is_written {
            len
        } else {
            -1
        }
    }
}

/// Returns whether all bytes were written. Otherwise `errno` says why.
fn write_all(fd: c_int, mut from: *const u8, mut len: usize) -> bool {
    while len > 0 {
        // SAFETY: `len` bytes lie at `from`.
        let written = unsafe { send::write(fd, from.cast(), len) };
        let Ok(written) = usize::try_from(written) else { return false };
        // SAFETY: not beyond the end.
        from = unsafe { from.add(written) };
        len -= written;
    }
    true
}
