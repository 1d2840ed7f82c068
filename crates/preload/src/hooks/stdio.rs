//! Streams of the C library on sockets: it reads and writes behind the hooks, so such a stream gets
//! functions of its own.
use super::hooks;
use crate::entry::lock;
use crate::{real, table};
use libc::{c_char, c_int, c_void, size_t, ssize_t, FILE};
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
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

hooks! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if ![table::SOCKET, table::INHERITED].contains(&table::look(fd)) {
            return real::fdopen(fd, mode);
        }
        let functions = Functions {
            read: read_stream, write: write_stream, seek: std::ptr::null(), close: close_stream,
        };
        let stream = fopencookie(fd as usize as *mut c_void, mode, functions);
        if !stream.is_null() {
            lock(&STREAMS).push((stream as usize, fd));
        }
        stream
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

fn known(stream: *mut FILE) -> Option<c_int> {
    if table::end() == 0 {
        return None;
    }
    lock(&STREAMS).iter().find(|(known, _)| *known == stream as usize).map(|(_, fd)| *fd)
}

unsafe extern "C-unwind" fn read_stream(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { super::receive::read(cookie as usize as c_int, buffer.cast(), len) }
}

unsafe extern "C-unwind" fn write_stream(cookie: *mut c_void, buffer: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    let written = unsafe { super::send::write(cookie as usize as c_int, buffer.cast(), len) };
    // What the C library wants to hear of a failure.
    written.max(0)
}

unsafe extern "C-unwind" fn close_stream(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    lock(&STREAMS).retain(|(_, known)| *known != fd);
    // SAFETY: the stream's descriptor.
    unsafe { super::descriptor::close(fd) }
}
