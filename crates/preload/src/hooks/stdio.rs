//! Streams of the C library on sockets: it reads and writes behind the hooks, so such a stream gets
//! functions of its own.
use super::hooks;
use crate::call::{lock, set_errno};
use crate::pipe::numbers;
use crate::{address, real, table, unix};
use libc::{c_char, c_int, c_void, loff_t, size_t, ssize_t, FILE};
use pd_client::core::Inside;
use std::ffi::CStr;
use std::mem::offset_of;
use std::sync::Mutex;

/// Streams made here, and their descriptors.
pub(crate) static STREAMS: Mutex<Vec<(usize, c_int)>> = Mutex::new(Vec::new());

#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut loff_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn __fpurge(stream: *mut FILE);
    fn __flbf(stream: *mut FILE) -> c_int;
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
    fn fwrite_unlocked(bytes: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t;
}

/// Beginning of glibc's streams, which is part of its interface (`bits/types/struct_FILE.h`).
#[repr(C)]
struct Beginning {
    flags: c_int,
    read_ptr: *const c_char,
    read_end: *const c_char,
    read_base: *const c_char,
    write_base: *const c_char,
    write_ptr: *const c_char,
    rest: [*const c_void; 8],
    fileno: c_int,
    between: [u8; 44],
    wide: *const c_void,
}

const _: () = assert!(offset_of!(Beginning, fileno) == 0x70 && offset_of!(Beginning, wide) == 0xa0);

/// Words that a stream needs for wide characters; glibc's `struct _IO_wide_data` is smaller.
const WIDE_WORDS: usize = 128;

/// Words for streams that have none. glibc's own mark for these is no address, and functions for wide characters look there.
static NO_WIDE: [u64; WIDE_WORDS] = [0; WIDE_WORDS];

/// Flag of a stream without a buffer.
const UNBUFFERED: c_int = 2;

hooks! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if !is_known(fd) {
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

    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        match known(stream) {
            Some(fd) => become_file(fd, stream, path, |path| real::freopen(path, mode, stream)),
            None => real::freopen(path, mode, stream),
        }
    }

    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        match known(stream) {
            Some(fd) => become_file(fd, stream, path, |path| real::freopen64(path, mode, stream)),
            None => real::freopen64(path, mode, stream),
        }
    }
}

/// Makes a stream of the C library's own out of one that was made here, for `open` to open a file in its place. The connection is closed,
/// and its number stands for a file that holds nothing until then.
///
/// # Safety
/// `stream` was made here, for `fd`.
unsafe fn become_file(
    fd: c_int,
    stream: *mut FILE,
    path: *const c_char,
    open: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller's promise.
    unsafe {
        libc::fflush(stream);
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if nothing >= 0 {
            super::descriptor::dup2(nothing, fd);
            super::descriptor::close(nothing);
        }
        forget(|&(known, _)| known == stream as usize);
        let own = stream.cast::<Beginning>();
        (*own).fileno = fd;
        let wide = libc::calloc(WIDE_WORDS, size_of::<u64>());
        (*own).wide = if wide.is_null() { NO_WIDE.as_ptr().cast() } else { wide };
        if path.is_null() {
            // A socket has no file that could be opened again.
            let none = open(c"".as_ptr());
            set_errno(libc::ENXIO);
            return none;
        }
        open(path)
    }
}

/// Tells whether the number is a socket of which the library may know more than the kernel.
pub(super) fn is_known(fd: c_int) -> bool {
    [table::SOCKET, table::INHERITED, table::FRESH, table::AWAY].contains(&table::look(fd))
}

/// A stream that reads and writes by the hooks.
///
/// # Safety
/// `mode` is one of `fopen`'s.
unsafe fn open_stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions =
        Functions { read: read_stream, write: write_stream, seek: seek_stream, close: close_stream };
    // SAFETY: functions that live as long as the program, and the caller's mode.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        // SAFETY: a stream of glibc's, which nobody else knows yet.
        unsafe { (*stream.cast::<Beginning>()).wide = NO_WIDE.as_ptr().cast() };
        let _inside = Inside::enter();
        lock(&STREAMS).push((stream as usize, fd));
    }
    stream
}

/// Number, mode and variable of each standard stream.
fn standard() -> [(c_int, &'static CStr, *mut *mut FILE); 3] {
    [(0, c"r", &raw mut stdin), (1, c"w", &raw mut stdout), (2, c"w", &raw mut stderr)]
}

/// At start: standard streams that are connections (a shell's or an inetd's child) get such streams.
pub(crate) fn replace_standard_streams() {
    for (fd, mode, place) in standard() {
        if table::look(fd) == table::INHERITED && may_have_twin(fd) {
            // SAFETY: the C library's variable, before the program runs; only the first thread is there.
            unsafe { replace(fd, mode, place) };
        }
    }
}

/// Tells whether an inherited socket is a connection that may be on the fabric.
fn may_have_twin(fd: c_int) -> bool {
    match address::is_tcp(fd) {
        true => address::peer(fd).is_some(),
        false => unix::is_unix(fd) && unix::connected(fd) == Some(true),
    }
}

/// A number has become another one's copy: a standard stream of that number gets functions of its own, too, if it is a connection now.
pub(crate) fn follow(fd: c_int) {
    let is_connection = || [table::SOCKET, table::INHERITED, table::AWAY].contains(&table::look(fd));
    let Some((_, mode, place)) = standard().into_iter().find(|&(number, ..)| number == fd) else { return };
    // SAFETY: the C library's variable and its stream; programs that exchange the variable while other threads use it have lost anyway.
    unsafe {
        let old = place.read();
        if is_connection() && !old.is_null() && known(old).is_none() && real::fileno(old) == fd {
            replace(fd, mode, place);
        }
    }
}

/// Puts a stream with functions of its own in the place of a standard one. What lies in the buffers of that goes along.
///
/// # Safety
/// `place` is the C library's variable with the stream of `fd`.
unsafe fn replace(fd: c_int, mode: &CStr, place: *mut *mut FILE) {
    // SAFETY: the caller's promise; between the two bounds of a buffer lie bytes; no other thread uses the stream meanwhile.
    unsafe {
        let (old, new) = (place.read(), open_stream(fd, mode.as_ptr()));
        if new.is_null() {
            return;
        }
        if !old.is_null() {
            flockfile(old);
            let own = &*old.cast::<Beginning>();
            if own.flags & UNBUFFERED != 0 {
                libc::setvbuf(new, std::ptr::null_mut(), libc::_IONBF, 0);
            } else if __flbf(old) != 0 {
                libc::setvbuf(new, std::ptr::null_mut(), libc::_IOLBF, 0);
            }
            let unwritten = (own.write_ptr as usize).saturating_sub(own.write_base as usize);
            let unread = (own.read_end as usize).saturating_sub(own.read_ptr as usize);
            if fd == 0 {
                for at in (0..unread).rev() {
                    libc::ungetc((*own.read_ptr.add(at) as u8).into(), new);
                }
            } else if unwritten > 0 {
                fwrite_unlocked(own.write_base.cast(), 1, unwritten, new);
            }
            __fpurge(old);
            funlockfile(old);
        }
        place.write(new);
    }
}

fn known(stream: *mut FILE) -> Option<c_int> {
    if table::end() == 0 {
        return None;
    }
    let _inside = Inside::enter();
    let streams = lock(&STREAMS);
    streams.iter().find(|(known, _)| *known == stream as usize).map(|(_, fd)| *fd)
}

fn forget(is_gone: impl Fn(&(usize, c_int)) -> bool) {
    let _inside = Inside::enter();
    lock(&STREAMS).retain(|it| !is_gone(it));
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

/// A connection has no places.
unsafe extern "C-unwind" fn seek_stream(_: *mut c_void, _: *mut loff_t, _: c_int) -> c_int {
    set_errno(libc::ESPIPE);
    -1
}

unsafe extern "C-unwind" fn close_stream(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    forget(|&(_, known)| known == fd);
    // SAFETY: the stream's descriptor.
    unsafe { super::descriptor::close(fd) }
}
