//! Sends on the direct path, and sleeping until there is room to send, on either path.
use super::wait::{Doorbells, Noticing, SEND};
use crate::attachment::note_cores;
use crate::error::{would_block, Result};
use crate::link::Link;
use crate::lock::Guard;
use crate::send::side::{partial, SendSide};
use crate::socket::Socket;
use crate::turn::{sleep_in_turn, Deadline, HasTurn};
use pd_abi::layout::direct;
use pd_shm::byte_ring::Ring;
use pd_shm::{Own, Theirs};
use std::sync::Arc;
use std::time::Duration;

impl Socket {
    /// Has a connection go on directly when it is time; waits, at most so long, for what has to be delivered first.
    pub(crate) fn turn_direct<'a>(
        &'a self,
        mut side: Guard<'a, SendSide>,
        deadline: &mut Option<Deadline>,
    ) -> Result<Guard<'a, SendSide>> {
        while !side.out.has_ring() && side.check_open().is_ok() {
            side.try_ring();
            if !side.is_overdue() {
                break;
            }
            side.end()?;
            side = self.await_room(side, deadline)?;
        }
        Ok(side)
    }

    /// [`Socket::send`] on the direct path.
    ///
    /// # Safety
    /// `len` readable bytes at `ptr`.
    pub(crate) unsafe fn send_direct<'a>(
        &'a self,
        mut side: Guard<'a, SendSide>,
        ptr: *const u8,
        len: usize,
    ) -> Result<usize> {
        let (mut left, mut deadline, mut slept) = (len as u64, None, false);
        loop {
            let at = ptr.wrapping_add(len - left as usize);
            side.leave_if_asked();
            if !side.out.has_ring() {
                drop(side);
                let rest = self.send(at, left as usize);
                return rest
                    .map_or_else(|error| partial(len, left, error), |sent| Ok(len - left as usize + sent));
            }
            // SAFETY: the rest of the caller's bytes.
            let step =
                side.end().and_then(|()| unsafe { side.write_direct(at, left, self.is_nonblocking()) });
            match step {
                Ok(0) => {}
                Ok(part) => {
                    left -= part;
                    if left == 0 {
                        if !slept {
                            side.went_on();
                        }
                        return Ok(len);
                    }
                    continue;
                }
                Err(error) => return partial(len, left, error),
            }
            side = match self.await_room(side, &mut deadline) {
                Ok(side) => side,
                Err(error) => return partial(len, left, error),
            };
            slept = true;
        }
    }
}

/// The event that a sender waits for, on either path.
struct Vacancy {
    link: Arc<Link>,
    /// By rings, of which the peer's may be missing yet.
    direct: bool,
    pair: Option<(Ring<Own>, Ring<Theirs>)>,
    /// The peer's index, or the driver's count of sends done.
    wake_at: u64,
}

impl Vacancy {
    fn new(side: &SendSide) -> Self {
        let (own, peer) = (side.out.own.as_deref(), side.out.peer.as_deref());
        let direct = own.is_some();
        Self {
            link: side.link.clone(),
            direct,
            pair: own.cloned().zip(peer.cloned()),
            wake_at: if direct { side.out.half_free_at().max(1) } else { side.wake_at() },
        }
    }

    /// Returns whether there is room, or nothing can be sent any more, or not on this path.
    #[inline]
    fn has_come(&self) -> bool {
        let room = match &self.pair {
            Some((_, peer)) => peer.load(direct::CONSUMER) >= self.wake_at,
            None if self.direct => self.link.peer_is_ready(),
            None => self.link.send_consumer() >= self.wake_at,
        };
        room || self.link.send_end() != 0 || (self.direct && self.link.has_left())
    }
}

impl Socket {
    /// Waits for room to send, or for a reason to look again.
    ///
    /// # Errors
    /// `EAGAIN` if the socket is non-blocking or the time is over; `EBADF` if it was closed meanwhile.
    pub(crate) fn await_room<'a>(
        &'a self,
        mut side: Guard<'a, SendSide>,
        deadline: &mut Option<Deadline>,
    ) -> Result<Guard<'a, SendSide>> {
        if self.is_nonblocking() {
            // An epoll instance may wait for room.
            return if self.watch.subscribed() && side.arm() { Ok(side) } else { Err(would_block()) };
        }
        let deadline = *deadline.get_or_insert_with(|| Deadline::after(side.timeout));
        let timeout = deadline.next_sleep().ok_or_else(would_block)?;
        let side = self.sleep_for_send(side, timeout, None);
        self.check_usable()?;
        Ok(side)
    }

    /// Sleeps until there is room to send, or nothing can be sent any more.
    pub(crate) fn sleep_for_send<'a>(
        &'a self,
        mut side: Guard<'a, SendSide>,
        timeout: Duration,
        noticing: Option<Noticing<'_>>,
    ) -> Guard<'a, SendSide> {
        let vacancy = Vacancy::new(&side);
        let (link, pair, wake_at) = (&vacancy.link, vacancy.pair.as_ref(), vacancy.wake_at);
        note_cores(&link.attachment.status);
        let sleeping = side.turn().is_sleeping();
        let doorbells = Doorbells::new(link.send_cells(), pair, &SEND, wake_at, noticing);
        let doorbells = if sleeping { doorbells } else { doorbells.with_fence(&mut side.out.fence) };
        let (mut side, timed_out) = sleep_in_turn(&self.send, side, &doorbells, wake_at, timeout, || {
            vacancy.has_come() || self.check_usable().is_err()
        });
        if !sleeping {
            side.out.fence = doorbells.into_fence();
        }
        if let Some(noticing) = noticing.filter(|_| vacancy.has_come() || self.check_usable().is_err()) {
            noticing.end();
        }
        if !vacancy.direct && self.watch.subscribed() {
            // The sleep took back the request for a `Ready` event.
            side.arm();
        }
        if timed_out {
            drop(side);
            link.attachment.check_alive();
            return self.send.lock();
        }
        side
    }
}
