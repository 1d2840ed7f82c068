//! Calls of the kernel's on connections that are away: they are counted, and what ends the way back for good.
use super::returning::look;
use super::LITTLE_BYTES;
use crate::call::{self, Failure, Outcome};
use crate::claim::watch;
use crate::counts::{Counts, Moves, OwnCounts};
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
    if table::look(fd) == table::AWAY && what != Moves::Urgent {
        if let Some(counts) = table::enter_away(fd) {
            let result = plain(fd);
            if counts.leave_with(what, bytes(result), LITTLE_BYTES) {
                look_again(fd);
            }
            return result;
        }
    }
    call::cancellation_point();
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
    if counts.leave_with(what, bytes(result), LITTLE_BYTES) && !is_kept {
        call::aside(|| look_at(fd, &entry));
    }
    Some(result)
}

/// A call has found that its connection is to be looked at.
#[cold]
fn look_again(fd: c_int) {
    call::aside(|| table::entry(fd).iter().for_each(|entry| look_at(fd, entry)));
}

fn look_at(fd: c_int, entry: &Arc<Entry>) {
    if let Some(away) = entry.socket().and_then(|socket| socket.away.get()) {
        look(away, fd, entry);
    }
}

/// The counts of a connection whose calls of this kind are the kernel's.
fn counts_of(entry: &Entry, what: Moves) -> Option<&Arc<OwnCounts>> {
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
#[derive(Default)]
pub(crate) struct Stays {
    count: usize,
    /// The first ones: most calls wait for few.
    few: [Option<&'static Counts>; 8],
    others: Vec<&'static Counts>,
}

impl Stays {
    /// Makes the connections of `fds` that are away stay away.
    pub(crate) fn all(fds: impl Iterator<Item = c_int>) -> Self {
        let mut stays = Self::default();
        fds.filter_map(table::enter_away).for_each(|counts| stays.push(counts));
        stays
    }

    /// [`Self::all`], if the kernel alone can tell what of `fds` is ready.
    #[inline]
    pub(crate) fn alone(mut fds: impl Iterator<Item = c_int>) -> Option<Self> {
        let mut stays = Self::default();
        let is_alone = fds.all(|fd| match table::look(fd) {
            table::PLAIN => true,
            table::AWAY => table::enter_away(fd).map(|counts| stays.push(counts)).is_some(),
            _ => false,
        });
        is_alone.then_some(stays)
    }

    #[inline]
    fn push(&mut self, counts: &'static Counts) {
        match self.few.get_mut(self.count) {
            Some(place) => *place = Some(counts),
            None => self.others.push(counts),
        }
        self.count += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl Drop for Stays {
    fn drop(&mut self) {
        self.few.iter().flatten().chain(&self.others).for_each(|counts| counts.leave());
    }
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
