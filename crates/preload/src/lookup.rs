//! Entries by number: finds them, makes them, and looks at what came from another image or process.
use crate::address::is_nonblocking;
use crate::call::{interrupts, Failure, Outcome, AGAIN};
use crate::ending::{drop_fd, release};
use crate::entry::{make, Entry, State};
use crate::epoll_set::{registering, standing};
use crate::fabric::Taken;
use crate::open_file::OpenFile;
use crate::pipe::numbers::expose;
use crate::short::reuse;
use crate::twin::{self, Twin};
use crate::{address, fabric, table, unix};
use libc::c_int;
use pd_client::core::{sleep_for, Patience};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Gives a number that has none an entry as a socket. None if that cannot be.
pub(crate) fn adopt(fd: c_int, state: Option<State>) -> Option<Arc<Entry>> {
    let entry = make(state);
    set(fd, &entry).then_some(entry)
}

/// The connection of a number that is new here has a twin.
pub(crate) fn adopt_twin(fd: c_int, twin: Twin) {
    if let Some(entry) = table::entry(fd) {
        attach_twin(&entry, twin);
    } else if let Some(entry) = adopt(fd, Some(State::Twin(Box::new(twin)))) {
        begin(&entry);
    }
}

/// The connection of a socket has a twin from now on. Returns false, and closes the twin, if another thread has given the socket one. The twin of a
/// socket that another thread has closed meanwhile is closed, too: the number may be another file's.
pub(crate) fn attach_twin(entry: &Arc<Entry>, twin: Twin) -> bool {
    let Some(socket) = entry.socket() else { return false };
    match socket.set_twin(Box::new(twin)) {
        Ok(()) => begin(entry),
        Err(twin) => {
            twin.close();
            return false;
        }
    }
    true
}

fn begin(entry: &Arc<Entry>) {
    let Some(twin) = entry.twin() else { return };
    registering::move_watchers(entry);
    twin.register(entry);
    if entry.any_fd().is_none() {
        standing::leave_all(entry);
        twin.close();
    }
}

/// The entry of a socket, looking at what it is if it was inherited. None, too, if that cannot be said now ([`is_unknown`]).
pub(crate) fn find(fd: c_int) -> Option<Arc<Entry>> {
    look_up(fd, || !is_nonblocking(fd)).ok().flatten()
}

/// [`find`] for a call that cannot report that it would have to wait: waits for room. The call is the kernel's if there is no entry.
pub(crate) fn found(fd: c_int) -> Outcome<Arc<Entry>> {
    look_up(fd, || true)?.ok_or(Failure::Plain)
}

/// [`find`] for a socket or an epoll instance.
pub(crate) fn find_any(fd: c_int) -> Option<Arc<Entry>> {
    match table::look(fd) {
        table::EPOLL | table::BARE => table::epoll(fd),
        _ => find(fd),
    }
}

/// [`find_any`] for a call that has to know: waits for room to take the connection over, if there is none.
pub(crate) fn find_for_certain(fd: c_int) -> Outcome<Option<Arc<Entry>>> {
    match table::look(fd) {
        table::EPOLL | table::BARE => Ok(table::epoll(fd)),
        _ => look_up(fd, || true),
    }
}

/// [`find`] for a call that does not wait.
pub(crate) fn find_now(fd: c_int) -> Option<Arc<Entry>> {
    match table::look(fd) {
        table::EPOLL | table::BARE => table::epoll(fd),
        _ => look_up(fd, || false).ok().flatten(),
    }
}

/// Tells whether the number is one of which [`find`] could not say what it is.
pub(crate) fn is_unknown(fd: c_int) -> bool {
    table::look(fd) == table::INHERITED
}

/// The entry of a socket, or none; or why that cannot be said now.
fn look_up(fd: c_int, waits: impl FnOnce() -> bool) -> Outcome<Option<Arc<Entry>>> {
    Ok(match table::look(fd) {
        table::SOCKET => table::entry(fd),
        table::INHERITED => return resolve(fd, waits),
        table::PIPE => {
            expose(fd);
            None
        }
        table::FRESH => {
            let entry = make(None);
            entry.socket().into_iter().for_each(|socket| socket.facts.set_nonblocking(is_nonblocking(fd)));
            table::set_fresh(fd, entry)
        }
        _ => None,
    })
}

/// Returns the open file of a connection with a twin, which no close ends before the caller drops it. The call is the kernel's otherwise.
/// For calls as [`found`].
pub(crate) fn twinned(fd: c_int) -> Outcome<Arc<OpenFile<Entry>>> {
    twinned_if(fd, || true)
}

/// Returns the same for a send or receive with these flags.
pub(crate) fn twinned_for(fd: c_int, flags: c_int) -> Outcome<Arc<OpenFile<Entry>>> {
    twinned_if(fd, || flags & libc::MSG_DONTWAIT == 0 && !is_nonblocking(fd))
}

fn twinned_if(fd: c_int, waits: impl FnOnce() -> bool) -> Outcome<Arc<OpenFile<Entry>>> {
    let kind = table::look(fd);
    if kind != table::SOCKET && look_up(fd, waits)?.is_none() {
        return Err(if kind == table::AWAY { Failure::Kernel } else { Failure::Plain });
    }
    let file = table::file_now(fd).ok_or(Failure::Plain)?;
    if file.twin().is_some() {
        Ok(file)
    } else {
        reuse::renew(&file);
        Err(Failure::Plain)
    }
}

/// Returns whether a TCP socket has a port.
fn is_bound(fd: c_int) -> bool {
    address::local(fd).is_some_and(|(_, local)| local.port() != 0)
}

/// Looks at a socket that came from another image or process. If its connection cannot be taken over for want of room, a call that `waits`
/// tries for a while; the next call tries again.
#[cold]
fn resolve(fd: c_int, waits: impl FnOnce() -> bool) -> Outcome<Option<Arc<Entry>>> {
    let (mut waits, mut patience) = (Some(waits), None);
    loop {
        let errno = match resolve_now(fd) {
            Ok(entry) => return Ok(entry),
            Err(errno) => errno,
        };
        table::stay_inherited(fd);
        if !fabric::lacks_room(errno) {
            return Err(Failure::Errno(libc::ECONNRESET));
        }
        if let Some(waits) = waits.take() {
            patience = waits().then(|| Patience::new(fabric::ROOM_WITHIN));
        }
        let Some(patience) = &mut patience else { return Err(AGAIN) };
        if !patience.lasts() {
            return Err(Failure::Errno(libc::ENOBUFS));
        }
        if sleep_for(fabric::LOOK_FOR_ROOM_EVERY) && interrupts(false) {
            return Err(Failure::Errno(libc::EINTR));
        }
        if table::look(fd) != table::INHERITED {
            // Another thread has taken it over, or closed it.
            return Ok(table::entry(fd));
        }
    }
}

/// [`resolve`] without waiting. Fails with the errno for which the connection cannot be taken over now.
fn resolve_now(fd: c_int) -> Result<Option<Arc<Entry>>, c_int> {
    let mut not_now = None;
    let entry = entry_of(fd, &mut not_now);
    not_now.map_or(Ok(entry), Err)
}

fn entry_of(fd: c_int, not_now: &mut Option<c_int>) -> Option<Arc<Entry>> {
    table::clear(fd);
    let unix = !address::is_tcp(fd);
    if unix && !unix::is_unix(fd) {
        return None;
    }
    if address::listens(fd) {
        if unix && !unix::may_listen(fd) {
            return None;
        }
        let entry = adopt(fd, None)?;
        entry.socket()?.unix.store(unix, Ordering::Relaxed);
        entry.socket()?.facts.set_nonblocking(is_nonblocking(fd));
        entry.socket()?.join_listener(fd);
        return Some(entry);
    }
    let connected = if unix { unix::connected(fd) } else { address::peer(fd).map(|_| true) };
    match connected {
        // One whose connection has ended in both directions has no peer either, but perhaps bytes on the fabric.
        None if !unix && is_bound(fd) => {}
        None => {
            let entry = adopt(fd, None)?;
            entry.socket()?.unix.store(unix, Ordering::Relaxed);
            return Some(entry);
        }
        Some(false) => return None,
        Some(true) => {}
    }
    match fabric::take_unknown(fd) {
        Taken::NotNow(errno) => {
            *not_now = Some(errno);
            return None;
        }
        Taken::None | Taken::Departed if connected.is_none() => return adopt(fd, None),
        Taken::None | Taken::Departed => return None,
        Taken::Twin(socket) => {
            // Another program may have wanted it.
            twin::may_linger();
            let twin = Twin::new(fd, socket.clone(), false).taken();
            let _ = twin.learn_shut(fd, &socket);
            adopt_twin(fd, twin);
            if let Some(entry) = table::entry(fd) {
                // The next call finds a failure again.
                entry.twin().map(|twin| twin.begin_taken(&entry, &socket));
            }
        }
        // The descriptor came back to where it was sent from.
        Taken::Own => table::set(fd, &table::find_twin(address::cookie(fd)?)?).then_some(())?,
    }
    table::entry(fd)
}

/// After `dup`: the new number names the same thing. `file`: the open file of the old number before that.
pub(crate) fn duplicate(from: c_int, file: Option<Arc<OpenFile<Entry>>>, to: c_int) {
    release(to);
    if let Some(file) = file.filter(|file| file.pipe().is_none()) {
        // Another thread may have closed the old number, before that or since.
        let kept = || {
            // Its close is over after this look.
            table::look(from);
            file.number().and_then(address::cookie)
        };
        if table::is_of(from, &file) || kept().is_some_and(|kept| address::cookie(to) == Some(kept)) {
            set(to, file.entry());
            return;
        }
    }
    let entry = match table::look(from) {
        table::PLAIN => None,
        table::INHERITED => return table::mark_inherited(to),
        table::FRESH | table::PIPE => find(from),
        _ => table::entry(from),
    };
    if let Some(entry) = entry {
        set(to, &entry);
    }
}

/// Gives a number an entry. What another thread has given it meanwhile, by a `dup2` at the same time, has it no more.
fn set(fd: c_int, entry: &Arc<Entry>) -> bool {
    let (is_set, before) = table::replace(fd, entry);
    before.iter().for_each(|before| drop_fd(before, fd));
    is_set
}
