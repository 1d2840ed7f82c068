//! Doing something with the fabric end, which another process may have: then this one takes it over first.
use super::Twin;
use crate::address;
use crate::aside::ending;
use crate::call::{lock, Failure, Outcome};
use crate::entry::Entry;
use crate::epoll_set::standing;
use crate::fabric::{self, Taken};
use crate::log::note;
use crate::real;
use crate::shared::{Held, Slot};
use crate::short::begun;
use crate::short::names::Names;
use libc::c_int;
use pd_client::core::Socket;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Moves of a connection to another process, each after few bytes, after which it goes on in the kernel.
const TURNS_MAX: u32 = 8;
/// States of TCP in which the own stream has ended: `FIN_WAIT1`, `FIN_WAIT2`, `LAST_ACK`, `CLOSING`.
const SHUT_SENDING: [c_int; 4] = [4, 5, 9, 11];
/// States of TCP in which the peer's has not: `ESTABLISHED`, `FIN_WAIT1`, `FIN_WAIT2`.
const PEER_SENDS: [c_int; 3] = [1, 4, 5];
/// As many bytes are worth a move.
const TURN_BYTES: u64 = 512 << 10;

/// Tells whether receiving from the kernel's socket has ended.
pub(super) fn has_ended(fd: c_int) -> bool {
    let mut one = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { real::poll(&mut one, 1, 0) > 0 && one.revents & libc::POLLRDHUP != 0 }
}

impl Twin {
    /// Does something with the end, taking it over first if another process has it.
    pub(crate) fn with<T>(
        &self,
        entry: &Arc<Entry>,
        work: impl FnMut(&Arc<Socket>) -> pd_client::Result<T>,
    ) -> Outcome<T> {
        if self.names.as_ref().is_some_and(Names::is_begun) {
            begun::settle(entry);
        }
        self.with_begun(entry, work)
    }

    /// [`Self::with`] for a call that moves no bytes, and would not notice that another process has the end.
    pub(crate) fn with_present<T>(
        &self,
        entry: &Arc<Entry>,
        mut work: impl FnMut(&Arc<Socket>) -> pd_client::Result<T>,
    ) -> Outcome<T> {
        self.with(entry, |end| {
            end.check_present()?;
            work(end)
        })
    }

    /// [`Self::with`] for an end that may not yet be connected.
    pub(crate) fn with_begun<T>(
        &self,
        entry: &Arc<Entry>,
        mut work: impl FnMut(&Arc<Socket>) -> pd_client::Result<T>,
    ) -> Outcome<T> {
        let held = self.slot.get().map(|slot| self.take_over(entry, slot)).transpose()?;
        if self.progress().is_over() {
            // Another process has had it go on in the kernel.
            drop(held);
            ending::settle_if_free(entry, self);
            return Err(Failure::Kernel);
        }
        loop {
            // Loaded first: an end that another thread has given up is gone only after that is noted.
            let socket = self.socket.load();
            if self.is_abandoned() {
                return Err(Failure::Kernel);
            }
            if self.lost {
                return Err(Failure::Errno(libc::ECONNRESET));
            }
            let Some(socket) = socket.as_ref() else {
                let elsewhere = if self.names.is_some() { libc::ENOTCONN } else { libc::EBADF };
                return Err(Failure::Errno(elsewhere));
            };
            match work(socket) {
                Ok(result) => return Ok(result),
                Err(_) if self.abandoned.load(Ordering::Acquire) => {}
                // Another process has taken it that this one did not fork: it got the descriptor.
                Err(error) if error.errno() == libc::ESTALE => {
                    self.passed.store(true, Ordering::Relaxed);
                    self.take(entry, Some(socket))?;
                    if self.progress().is_over() {
                        drop(held);
                        ending::settle_if_free(entry, self);
                        return Err(Failure::Kernel);
                    }
                }
                Err(error) => return Err(Failure::from(error)),
            }
        }
    }

    #[cold]
    pub(super) fn take_over(&self, entry: &Arc<Entry>, slot: &'static Slot) -> Outcome<Held<'static>> {
        let held = slot.lock();
        if slot.progress.is_over() {
            // There is no end any more.
            return Ok(held);
        }
        if slot.is_mine() && self.socket.load().is_some() {
            return Ok(held);
        }
        self.take(entry, self.current().as_ref())?;
        slot.make_mine();
        Ok(held)
    }

    /// Takes the end from another process, in place of `stale`, unless another thread has done so.
    #[cold]
    pub(super) fn take(&self, entry: &Arc<Entry>, stale: Option<&Arc<Socket>>) -> Outcome<()> {
        let _taking = lock(&self.taking);
        if self.current().as_ref().map(Arc::as_ptr) != stale.map(Arc::as_ptr) {
            return Ok(());
        }
        let fd = entry.any_fd().ok_or(Failure::Errno(libc::EBADF))?;
        loop {
            match self.take_once(entry, fd) {
                // Another process has taken it back.
                Err(Failure::Errno(libc::ESTALE)) => {}
                taken => return taken,
            }
        }
    }

    fn take_once(&self, entry: &Arc<Entry>, fd: c_int) -> Outcome<()> {
        let socket = match fabric::take(fd) {
            Taken::Twin(socket) => socket,
            Taken::Departed => {
                self.progress().is_over_elsewhere();
                return Ok(());
            }
            // Its process has received all since this one looked. The driver forgets a side that no other client has had.
            _ if self.progress().is_over() => return Ok(()),
            _ => return Err(Failure::Errno(libc::ECONNRESET)),
        };
        note!("descriptor {fd}: took the connection over");
        self.learn_shut(fd, &socket)?;
        if self.unix {
            socket.look_always();
        }
        // The earlier end, if there was one, has passed on.
        let earlier = self.socket.swap(Some(socket.clone()));
        self.count_turn(earlier.as_deref());
        let spent = earlier.as_deref().map_or_else(Vec::new, |earlier| standing::spent(entry, earlier));
        if let Some(earlier) = earlier {
            let _ = earlier.close();
        }
        standing::register_again(entry, &socket, &spent);
        self.go_on_aside(entry, &socket)
    }

    /// Tells an end that has come from another process which directions are shut: that process may have shut them. The kernel's
    /// connection was shut with them. Both directions of an AF_UNIX socket tell by themselves.
    pub(crate) fn learn_shut(&self, fd: c_int, end: &Socket) -> Outcome<()> {
        let state = if self.unix { None } else { address::tcp_state(fd) };
        let both_ended = |state| state == address::CLOSED && end.has_ended();
        if state.is_some_and(|state| SHUT_SENDING.contains(&state) || both_ended(state)) {
            self.send_shut.store(true, Ordering::Relaxed);
        }
        if state.is_some_and(|state| PEER_SENDS.contains(&state)) && has_ended(fd) {
            self.recv_shut.store(true, Ordering::Relaxed);
        }
        if self.send_shut.load(Ordering::Relaxed) {
            end.end_sending();
        }
        if self.recv_shut.load(Ordering::Relaxed) {
            end.end_receiving()?;
        }
        Ok(())
    }

    /// Goes on with the first end of a process, which another one may have had leave.
    pub(crate) fn begin_taken(&self, entry: &Arc<Entry>, end: &Arc<Socket>) -> Outcome<()> {
        match self.go_on_aside(entry, end) {
            Err(Failure::Errno(libc::ESTALE)) => self.take(entry, Some(end)),
            gone_on => gone_on,
        }
    }

    /// Goes on in the kernel with an end that another process has had leave; does nothing with others. `ESTALE`: the end has gone again.
    fn go_on_aside(&self, entry: &Arc<Entry>, end: &Arc<Socket>) -> Outcome<()> {
        if !end.is_taken_aside() {
            return Ok(());
        }
        ending::taken_aside(entry, self, end)?;
        standing::stand(entry, end, self.stands());
        Ok(())
    }

    /// The end has come from another process; this one had it before as `earlier`.
    pub(super) fn count_turn(&self, earlier: Option<&Socket>) {
        let turns = self.slot.get().map_or(&self.turns, |slot| slot.turns());
        if earlier.is_some_and(|earlier| earlier.carried().1 >= TURN_BYTES) {
            turns.store(0, Ordering::Relaxed);
        } else if turns.fetch_add(1, Ordering::Relaxed) + 1 >= TURNS_MAX {
            self.turns_too_often.store(true, Ordering::Relaxed);
        }
    }
}
