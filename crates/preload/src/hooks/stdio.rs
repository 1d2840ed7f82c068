//! Streams of the C library on sockets: it reads and writes behind the hooks, so such a stream gets
//! functions of its own.
use super::hooks;
use crate::call::lock;
use crate::pipe::numbers;
use crate::{address, real, table};
use libc::{c_char, c_int, c_void, size_t, ssize_t, FILE};
use pd_client::core::Inside;
use std::ffi::CStr;
use std::sync::Mutex;

/// Streams made here, and their descriptors.
static STREAMS: Mutex<Vec<(usize, c_int)>> = Mutex::new(Vec::new());

#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: *const c_void,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

hooks! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if ![table::SOCKET, table::INHERITED, table::FRESH].contains(&table::look(fd)) {
            numbers::passes(fd);
            return real::fdopen(fd, mode);
        }
        open_stream(fd, mode)
    }

    fn fileno(stream: *mut FILE) -> c_int {
        match known(stream) {
            Some(fd) => fd,
            None => real::fileno(stream),
        }
    }

    fn fileno_unlocked(stream: *mut FILE) -> c_int {
        match known(stream) {
            Some(fd) => fd,
            None => real::fileno_unlocked(stream),
        }
    }
}

/// A stream that reads and writes by the hooks.
///
/// # Safety
/// `mode` is one of `fopen`'s.
unsafe fn open_stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions =
        Functions { read: read_stream, write: write_stream, seek: std::ptr::null(), close: close_stream };
    // SAFETY: functions that live as long as the program, and the caller's mode.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        let _inside = Inside::enter();
        lock(&STREAMS).push((stream as usize, fd));
    }
    stream
}

/// At start: standard streams that are connections (a shell's or an inetd's child) get such streams.
pub(crate) fn replace_standard_streams() {
    let replace = |fd: c_int, mode: &CStr, place: *mut *mut FILE| {
        if table::look(fd) == table::INHERITED && address::is_tcp(fd) && address::peer(fd).is_some() {
            // SAFETY: the C library's variable, before the program runs; only the first thread is there.
            unsafe {
                let stream = open_stream(fd, mode.as_ptr());
                if !stream.is_null() {
                    place.write(stream);
                }
            }
        }
    };
    replace(0, c"r", &raw mut stdin);
    replace(1, c"w", &raw mut stdout);
    replace(2, c"w", &raw mut stderr);
    if known_fd(2) {
        // SAFETY: a stream that was opened just now; as the C library has it.
        unsafe { libc::setvbuf(stderr, std::ptr::null_mut(), libc::_IONBF, 0) };
    }
}

fn known_fd(fd: c_int) -> bool {
    lock(&STREAMS).iter().any(|(_, known)| *known == fd)
}

fn known(stream: *mut FILE) -> Option<c_int> {
    if table::end() == 0 {
        return None;
    }
    let _inside = Inside::enter();
    let streams = lock(&STREAMS);
    streams.iter().find(|(known, _)| *known == stream as usize).map(|(_, fd)| *fd)
}

unsafe extern "C-unwind" fn read_stream(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { super::receive::read(cookie as usize as c_int, buffer.cast(), len) }
}

unsafe extern "C-unwind" fn write_stream(cookie: *mut c_void, buffer: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    let written = unsafe { super::send::write(cookie as usize as c_int, buffer.cast(), len) };
    // The C library wants 0 for a failure.
    written.max(0)
}

unsafe extern "C-unwind" fn close_stream(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    let inside = Inside::enter();
    lock(&STREAMS).retain(|(_, known)| *known != fd);
    drop(inside);
    // SAFETY: the stream's descriptor.
    unsafe { super::descriptor::close(fd) }
}
