//! Calls of the kernel's on connections that are away: they are counted, and what ends the way back for good.
use super::returning::look;
use super::LITTLE_BYTES;
use crate::call::{self, Failure, Outcome};
use crate::claim::watch;
use crate::counts::{Counts, Moves};
use crate::entry::Entry;
use crate::held::Held;
use crate::table;
use crate::twin::Twin;
use libc::c_int;
use pd_client::core::Inside;
use std::sync::Arc;

/// Times that a call begins anew because its connection passes to and fro between the kernel and the fabric.
const TRIES: u32 = 1000;

/// [`call::call`] of a call that moves bytes of the connection `fd`, and of no other one. `plain` gets the number for the kernel.
#[inline]
pub(crate) fn moving(
    fd: i32,
    what: Moves,
    work: impl Fn(&Held) -> Outcome<isize>,
    plain: impl Fn(c_int) -> isize,
) -> isize {
    moving_as(fd, what, work, plain, |bytes| bytes as i64)
}

/// [`call::call`] of a call that may move bytes of two connections. `bytes` returns how many bytes a result stands for.
#[inline]
pub(crate) fn moving_as<T: From<i8> + Copy>(
    fd: i32,
    what: Moves,
    work: impl Fn(&Held) -> Outcome<T>,
    plain: impl Fn(c_int) -> T,
    bytes: impl Fn(T) -> i64,
) -> T {
    let plain = |number| {
        if what != Moves::Sends {
            watch::before_read(number);
        }
        plain(number)
    };
    let mut held = Held::new(fd);
    for _ in 0..TRIES {
        match call::begin(|| held.attempt(&work)) {
            Ok(result) => return result,
            Err(Failure::Kernel) => {
                if let Some(result) = moves(&mut held, what, &plain, &bytes) {
                    return result;
                }
                held.follow();
            }
            Err(_) => break,
        }
    }
    let number = held.number();
    held.in_kernel(|| plain(number))
}

/// Does a call in the kernel on a connection that is the kernel's by now, and counts what it moves. None: it is the kernel's no more.
fn moves<T: Copy>(
    held: &mut Held,
    what: Moves,
    plain: &impl Fn(c_int) -> T,
    bytes: impl Fn(T) -> i64,
) -> Option<T> {
    let kept = held.kept();
    let fd = kept.as_ref().map_or(held.number(), |kept| kept.0);
    if kept.is_none() && table::look(fd) == table::PLAIN {
        return Some(held.in_kernel(|| plain(fd)));
    }
    let inside = Inside::enter();
    let is_kept = kept.is_some();
    let Some(entry) = kept.map(|kept| kept.1).or_else(|| table::entry(fd)) else {
        drop(inside);
        return Some(held.in_kernel(|| plain(fd)));
    };
    if what == Moves::Urgent {
        give_up_entry(&entry);
    }
    if what == Moves::Urgent || entry.twin().is_some_and(Twin::is_abandoned) {
        drop(inside);
        return Some(held.in_kernel(|| plain(fd)));
    }
    let counts = counts_of(&entry, what)?;
    counts.enter();
    // The connection may have come back just now.
    if counts_of(&entry, what).is_none_or(|now| !Arc::ptr_eq(now, counts)) {
        counts.leave();
        return None;
    }
    drop(inside);
    let result = held.in_kernel(|| plain(fd));
    let moved = bytes(result);
    if moved > 0 {
        counts.add(what, moved as usize);
    }
    if what == Moves::Receives && moved < LITTLE_BYTES {
        counts.add_small();
    }
    counts.leave();
    if let Some(away) = entry.socket().and_then(|socket| socket.away.get()) {
        if away.is_due() && !is_kept {
            call::aside(|| look(away, fd, &entry));
        }
    }
    Some(result)
}

/// The counts of a connection whose calls of this kind are the kernel's.
fn counts_of(entry: &Entry, what: Moves) -> Option<&Arc<Counts>> {
    let socket = entry.socket()?;
    if let Some(away) = socket.away.get().filter(|_| socket.is_away()) {
        return Some(&away.counts);
    }
    let twin = entry.twin()?;
    match twin.window() {
        _ if what == Moves::Receives => None,
        _ if twin.progress().sends() => Some(&twin.aside.counts),
        Some(back) if !back.sends() => Some(&back.counts),
        _ => None,
    }
}

/// Sleeps in the kernel that may be for such connections: they do not come back meanwhile.
pub(crate) struct Stays(Vec<Arc<Counts>>);

impl Stays {
    /// Makes the connections of `fds` that are away stay away.
    pub(crate) fn all(fds: impl Iterator<Item = c_int>) -> Self {
        let mut all = Vec::new();
        for fd in fds.filter(|&fd| table::look(fd) == table::AWAY) {
            let Some(entry) = table::entry(fd) else { continue };
            let Some(counts) = counts_of(&entry, Moves::Nothing).filter(|_| is_away(&entry)) else {
                continue;
            };
            counts.enter();
            all.push(counts.clone());
        }
        Self(all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for Stays {
    fn drop(&mut self) {
        self.0.iter().for_each(|counts| counts.leave());
    }
}

fn is_away(entry: &Entry) -> bool {
    entry.socket().is_some_and(|socket| socket.is_away())
}

/// The connection, if it is one, stays in the kernel for good.
#[inline]
pub(crate) fn stays(fd: c_int) {
    if table::look(fd) == table::AWAY {
        call::aside(|| table::entry(fd).iter().for_each(give_up_entry));
    }
}

#[cold]
fn give_up_entry(entry: &Arc<Entry>) {
    let Some(socket) = entry.socket().filter(|socket| socket.is_away()) else { return };
    if let Some(away) = socket.away.get() {
        away.end();
    }
    table::give_up(entry);
}
