//! Descriptors that come from another image or process, at the start or in a message: marks those that may have twins.
use crate::ending::is_new;
use crate::epoll_set::instances;
use crate::file_lock::{self, is_marked};
use crate::{call, closed, table};
use libc::c_int;

/// Sockets that the program was started with may have twins. Returns what may be an epoll instance, and what may be a memory file.
pub(crate) fn mark_all() -> (Vec<c_int>, Vec<c_int>) {
    let (mut others, mut files, mut has_twins) = (Vec::new(), Vec::new(), false);
    let Ok(fds) = std::fs::read_dir("/proc/self/fd") else { return (others, files) };
    for fd in fds.flatten() {
        let Some(fd) = fd.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match kind_of(fd) {
            Some(libc::S_IFSOCK) => {
                table::mark_inherited(fd);
                has_twins |= is_marked(fd);
            }
            Some(NO_FILE) => others.push(fd),
            Some(libc::S_IFREG) => files.push(fd),
            _ => {}
        }
    }
    if has_twins {
        pd_client::core::keep_numbers();
    }
    (others, files)
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
    // SAFETY: room for what the call writes.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut status) == 0).then_some(status.st_mode & libc::S_IFMT)
    }
}
