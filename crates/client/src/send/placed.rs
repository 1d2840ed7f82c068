//! Sending from the place that bytes are written to: the own ring on the direct path, where nobody copies them then, and
//! send memory on the offloaded path, where the driver does. Programs use Ensō's pipes to a network card likewise
//! (section 3.2 of the text on it and Nagare).
use super::copied::Place;
use super::side::SendSide;
use crate::error::{would_block, Error, Result};
use crate::lock::Guard;
use crate::socket::Socket;
use crate::turn::Deadline;
use std::slice;

impl Socket {
    /// Has `fill` write at most `len` bytes where they are sent from, and sends as many as it says. `fill` may not use the
    /// socket. Returns how many were sent: on a blocking socket all that it wrote; on a non-blocking one, for which
    /// `fill` is called only if there is room for all of `len` or for half of the send ring, perhaps only the first.
    ///
    /// # Errors
    /// `EAGAIN`, `EPIPE`, `ECONNRESET`, `ENOTCONN`; `EMSGSIZE` and `ENOMEM` of send memory; `EINVAL` if `fill` says that it
    /// wrote more than `len`.
    #[inline]
    pub fn send_placed(&self, len: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<usize> {
        self.check_usable()?;
        if len == 0 {
            return Ok(0);
        }
        if self.kernel.get().is_some() {
            return self.send_from_memory(len, fill);
        }
        let (mut side, mut deadline) = (self.send.lock(), None);
        side.leave_if_asked();
        if side.adoptable || side.is_due() {
            side = self.begin_placed(side, &mut deadline)?;
        }
        while side.out.has_ring() && len as u64 <= side.out.most_placed() {
            side.end()?;
            if let Some(place) = side.place_direct(len as u64)? {
                if place.len() < len {
                    break; // the ring ends there
                }
                // SAFETY: bytes of the own ring, which the peer can only read, and has given back; while the lock is
                // held nobody else in this process writes them.
                let filled = fill(unsafe { &mut *place });
                check(filled, len)?;
                side.wrote(filled as u64, true)?;
                if deadline.is_none() {
                    side.went_on();
                }
                return Ok(filled);
            }
            side = self.await_room(side, &mut deadline)?;
            side.leave_if_asked();
        }
        drop(side);
        self.send_from_memory(len, fill)
    }

    /// Before the first byte in an own ring.
    #[cold]
    fn begin_placed<'a>(
        &'a self,
        mut side: Guard<'a, SendSide>,
        deadline: &mut Option<Deadline>,
    ) -> Result<Guard<'a, SendSide>> {
        if side.adoptable {
            drop(side);
            self.adopt()?;
            side = self.send.lock();
        }
        match side.link.direct {
            Some(_) => self.turn_direct(side, deadline),
            None => Ok(side),
        }
    }

    fn send_from_memory(&self, len: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<usize> {
        self.check_room(len as u64)?;
        let place = Place::new(len)?;
        // SAFETY: `len` bytes of send memory, just allocated, which no send has seen.
        let filled = fill(unsafe { slice::from_raw_parts_mut(place.start, len) });
        check(filled, len)?;
        self.send(place.start, filled)
    }

    /// Returns whether the socket can send, as far as is known; of a non-blocking one, whether there is room for all of `len` bytes
    /// or for half of the ring.
    fn check_room(&self, len: u64) -> Result<()> {
        if let Some(carrier) = self.kernel.get() {
            return self.check_carrier_room(carrier);
        }
        let mut side = self.send.lock();
        match side.wants_look() {
            true => side.end()?,
            false => side.check_open()?,
        }
        while self.is_nonblocking() {
            side.reap();
            let (room, half) = match side.out.has_ring() {
                true => (side.out.room(), side.out.most_placed()),
                false => (side.room(), side.ring_bytes / 2),
            };
            if room >= len.min(half) {
                break;
            }
            if !(self.watch.subscribed() && side.arm()) {
                return Err(would_block());
            }
        }
        Ok(())
    }
}

fn check(filled: usize, len: usize) -> Result<()> {
    if filled > len {
        return Err(Error::invalid(format!("{filled} bytes were said to be written in a place of {len}")));
    }
    Ok(())
}
