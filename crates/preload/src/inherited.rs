//! Descriptors that come from another image or process, at the start or in a message: marks those that may have twins.
use crate::ending::is_new;
use crate::epoll_set::instances;
use crate::file_lock::{self, is_marked};
use crate::{call, closed, real, table};
use libc::c_int;
use std::ffi::CStr;

/// Sockets that the program was started with may have twins. Returns what may be an epoll instance, and what may be a memory file.
pub(crate) fn mark_all() -> (Vec<c_int>, Vec<c_int>) {
    let (mut others, mut files, mut has_twins) = (Vec::new(), Vec::new(), false);
    for_each_fd(|fd| match kind_of(fd) {
        Some(libc::S_IFSOCK) => {
            table::mark_inherited(fd);
            has_twins |= is_marked(fd);
        }
        Some(NO_FILE) => others.push(fd),
        Some(libc::S_IFREG) if is_unnamed(fd) => files.push(fd),
        _ => {}
    });
    if has_twins {
        pd_client::core::keep_numbers();
    }
    (others, files)
}

/// Calls `work` for each descriptor of the process. The C library's functions for folders would take 32 KB of the program's memory.
fn for_each_fd(mut work: impl FnMut(c_int)) {
    /// Where the length of an entry and its name are.
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    let mode = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a string.
    let folder = unsafe { libc::open(c"/proc/self/fd".as_ptr(), mode) };
    if folder < 0 {
        return;
    }
    let mut entries = [0_u8; 1024];
    loop {
        let arguments = [folder as usize, entries.as_mut_ptr() as usize, entries.len(), 0, 0, 0];
        // SAFETY: room for that many bytes.
        let read = unsafe { real::system_call(libc::SYS_getdents64, arguments) };
        let Some(mut rest) = usize::try_from(read).ok().and_then(|bytes| entries.get(..bytes)) else { break };
        if rest.is_empty() {
            break;
        }
        while let Some((length, name)) = rest.get(LENGTH_AT..LENGTH_AT + 2).zip(rest.get(NAME_AT..)) {
            let name = CStr::from_bytes_until_nul(name).ok().and_then(|name| name.to_str().ok());
            let fd = name.and_then(|name| name.parse().ok()).filter(|&fd| fd != folder);
            fd.into_iter().for_each(&mut work);
            let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
            rest = rest.get(length.max(1)..).unwrap_or_default();
        }
    }
    // SAFETY: this function's.
    unsafe { libc::close(folder) };
}

/// A descriptor has come in a message.
pub(crate) fn received(fd: c_int) {
    is_new(fd);
    match kind_of(fd) {
        Some(libc::S_IFSOCK) => {
            table::mark_inherited(fd);
            if !closed::is_closed() && !pd_client::core::is_attached() && is_marked(fd) {
                call::aside(pd_client::core::keep_numbers);
            }
        }
        Some(NO_FILE) => call::aside(|| instances::received(fd)),
        _ => {}
    }
}

/// The process has taken a descriptor from another one, which is not told. That one leaves a connection in the kernel where it is.
pub(crate) fn taken(fd: c_int) {
    received(fd);
    if table::look(fd) == table::INHERITED && !closed::is_closed() {
        call::aside(|| file_lock::note_passed(fd));
    }
}

/// The kind of what is no file and no socket: an epoll instance, an eventfd and so on.
const NO_FILE: libc::mode_t = 0;

fn kind_of(fd: c_int) -> Option<libc::mode_t> {
    status(fd).map(|status| status.st_mode & libc::S_IFMT)
}

/// Returns whether no folder has the file, as one in memory.
fn is_unnamed(fd: c_int) -> bool {
    status(fd).is_some_and(|status| status.st_nlink == 0)
}

fn status(fd: c_int) -> Option<libc::stat> {
    // SAFETY: room for what the call writes.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut status) == 0).then_some(status)
    }
}
