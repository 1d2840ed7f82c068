//! Private pipes by their numbers, and what ends their privacy.
use super::{any, Pipe};
use crate::{call, table};
use libc::c_int;
use std::sync::Arc;

/// Makes a pipe the kernel's for good, with what is lent to it.
#[cold]
pub(crate) fn expose(fd: c_int) {
    if let Some(entry) = table::entry(fd) {
        entry.pipe().inspect(|pipe| pipe.expose());
        if entry.pipe().is_some() {
            table::give_up(&entry);
        }
    }
}

/// The pipe that a number is a private end of.
pub(crate) fn find(fd: c_int) -> Option<Arc<Pipe>> {
    if table::look(fd) != table::PIPE {
        return None;
    }
    table::entry(fd)?.pipe().cloned()
}

/// Something is done with a descriptor other than splicing; another process may get it.
pub(crate) fn passes(fd: c_int) {
    match table::look(fd) {
        table::PIPE => call::aside(|| expose(fd)),
        table::SOCKET => call::aside(|| {
            if let Some(entry) = table::entry(fd) {
                entry.twin().inspect(|twin| twin.lender.forbid());
            }
        }),
        _ => {}
    }
}

/// Pipes are the kernel's from now on: another process will have them.
pub(crate) fn expose_all() {
    if any() {
        (0..table::end()).filter(|&fd| table::look(fd) == table::PIPE).for_each(expose);
    }
}
