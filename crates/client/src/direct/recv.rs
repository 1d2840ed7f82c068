//! Receiving on the direct path: bytes are lent where the peer wrote them.
use super::incoming::{Incoming, Leaving};
use super::wait::{went_on, RECV, SEND};
use super::ALIVE_BYTES;
use crate::epoll::Rest;
use crate::error::{moved, Result};
use crate::recv::ring::Ring;
use crate::recv::side::RecvSide;
use crate::turn::HasTurn;
use pd_abi::layout::{direct, ELSEWHERE, ENDED};
use pd_abi::{Operation, Request, LEFT_RECEIVING};
use pd_shm::byte_ring::{check_producer, Broken, OwnWords, WakerWords};
use std::sync::atomic::{fence, Ordering};

impl RecvSide {
    /// Returns whether bytes come by the peer's ring. They do from the first one there, after all that the driver
    /// delivered: the peer sends it when the driver has told it of the last.
    #[inline]
    pub(crate) fn follow(&mut self) -> Result<bool> {
        Ok(self.incoming.origin.is_some() || self.try_follow()?)
    }

    fn try_follow(&mut self) -> Result<bool> {
        if self.link.direct.is_none() || self.incoming.leaving == Leaving::Done {
            return Ok(false);
        }
        if self.incoming.pair.is_none() {
            let Some(pair) = self.link.rings()? else { return Ok(false) };
            self.incoming.pair = Some(Box::new(pair));
        }
        if !self.peer_has_begun() || self.link.is_undrained() {
            return Ok(false);
        }
        if !self.receives_shared && !self.link.trusts_peer() {
            // The peer was told that its sends stay offloaded.
            return Err(self.link.break_direct());
        }
        // SYNC POINT: direct-begin (the peer has seen that all before was delivered, then stored its index)
        let delivered = self.link.recv_producer();
        if delivered != self.producer {
            self.take_delivery(delivered)?;
        }
        if self.cursor != self.producer {
            return Ok(false);
        }
        let Some((_, peer)) = self.incoming.pair.as_deref() else { return Ok(false) };
        let origin = self.producer;
        let ring = self.ring.replace(Ring { words: (0, 0, 0), memory: peer.clone(), origin });
        self.incoming.before = ring.filter(|_| self.consumer < origin);
        self.incoming.origin = Some(origin);
        Ok(true)
    }

    /// Leaves the direct path if the connection does: when all of the peer's ring was read, bytes come by the driver
    /// again, which holds them back until it learns of that.
    #[inline]
    pub(crate) fn leave_if_asked(&mut self) -> Result<()> {
        if self.incoming.leaving != Leaving::Done && self.link.has_left() {
            self.leave()?;
        }
        Ok(())
    }

    #[cold]
    fn leave(&mut self) -> Result<()> {
        if matches!(self.incoming.leaving, Leaving::Not | Leaving::Until(_)) {
            if self.link.direct.is_none() || self.link.is_undrained() {
                return Ok(());
            }
            // SYNC POINT: direct-left (the peer has written its last byte before the driver says so)
            let is_last = self.link.is_last();
            let written = match self.link.rings()? {
                // The peer may not have published the last bytes that count, or has published more.
                Some(_) if is_last && self.link.is_peer_taken() => self.link.ring_ends()?.1,
                Some((_, peer)) => peer.load(direct::PRODUCER),
                None => 0,
            };
            let received = self.incoming.origin.map_or(0, |origin| self.consumer.saturating_sub(origin));
            if is_last && written < received {
                return Err(self.link.break_direct());
            }
            match self.incoming.leaving {
                _ if is_last => self.incoming.leaving = Leaving::At(written),
                Leaving::Not => self.incoming.leaving = Leaving::Until(written),
                _ => {}
            }
        }
        let Leaving::At(last) = self.incoming.leaving else { return Ok(()) };
        if last > 0 && !self.follow()? {
            return Ok(()); // what the driver delivered before is read first
        }
        let origin = self.incoming.origin.unwrap_or(self.consumer);
        if last > 0 && self.consumer != origin + last {
            return Ok(());
        }
        // From here on the driver's count goes on where it ended.
        if last > 0 {
            (self.consumer, self.cursor, self.producer) = (origin, origin, origin);
            self.forget_ring();
        }
        self.incoming = Incoming { leaving: Leaving::Done, ..Incoming::default() };
        self.link.submit(Request { value: LEFT_RECEIVING, ..self.link.request(Operation::Left) })
    }

    /// Tells whether what is there lies in the peer's ring.
    pub(crate) fn is_direct(&self) -> bool {
        self.incoming.origin.is_some()
    }

    /// Waits for a moment for the answer to what was sent; says whether bytes have come up to `wake_at`.
    #[inline]
    pub(crate) fn spin_locked(&mut self, wake_at: u64) -> bool {
        let sleeping = self.turn().is_sleeping();
        let incoming = &mut self.incoming;
        let (Some((own, peer)), Some(origin)) = (incoming.pair.as_deref(), incoming.origin) else {
            return false;
        };
        let sent = own.load(direct::PRODUCER);
        if sleeping || incoming.leaving != Leaving::Not || !incoming.backoff.is_exchange(sent) {
            return false;
        }
        let came =
            incoming.locked_spin.until(|| peer.load(direct::PRODUCER) >= wake_at.saturating_sub(origin));
        if came {
            incoming.backoff.begin(sent, self.cursor, peer.bytes());
        }
        came
    }

    pub(crate) fn peer_has_begun(&self) -> bool {
        // The last bytes that count may never be published.
        if let Leaving::At(last) = self.incoming.leaving {
            return last > 0;
        }
        self.incoming.pair.as_deref().is_some_and(|(_, peer)| peer.load(direct::PRODUCER) != 0)
    }

    /// Returns whether what is there is the last that comes by the driver: it waits for no more, which lie elsewhere.
    pub(crate) fn is_remainder(&self) -> bool {
        let comes_last = || self.peer_has_begun() && !self.link.is_undrained();
        self.incoming.origin.is_none() && self.cursor != self.producer && comes_last()
    }

    /// Bytes that lie in the peer's ring already, while bytes that the driver has delivered come first.
    pub(crate) fn beyond(&self) -> u64 {
        let Some((_, peer)) = self.incoming.pair.as_deref() else { return 0 };
        match self.incoming.leaving {
            // The bytes come by the driver.
            Leaving::Done => 0,
            _ => peer.load(direct::PRODUCER).min(peer.bytes()),
        }
    }

    /// The position that the peer's index stands for.
    #[inline]
    pub(crate) fn direct_producer(&mut self) -> Result<u64> {
        let (Some(shared), Some((_, peer)), Some(origin)) =
            (&self.link.direct, self.incoming.pair.as_deref(), self.incoming.origin)
        else {
            return Ok(self.producer);
        };
        if shared.is_broken() {
            return Ok(self.producer);
        }
        let written = match self.incoming.leaving {
            Leaving::At(last) | Leaving::Until(last) => last,
            Leaving::Not if self.is_cut() => {
                if !self.link.is_last() {
                    // Bytes that the peer goes on writing then are not received.
                    return Ok(self.producer);
                }
                // The peer has closed with a reset: bytes that it had sent come before.
                let last = peer.load(direct::PRODUCER);
                self.incoming.leaving = Leaving::Until(last);
                last
            }
            _ => peer.load(direct::PRODUCER),
        };
        let producer = written.wrapping_add(origin);
        // Positions of the stream, which go on from one path to the other.
        match check_producer(producer, self.producer, self.consumer.max(origin), peer.bytes()) {
            Ok(_) => Ok(producer),
            Err(Broken) => Err(self.link.break_direct()),
        }
    }

    /// Tells whether the connection has failed, or its driver has gone.
    #[inline]
    fn is_cut(&self) -> bool {
        let end = self.link.recv_end();
        ![0, ENDED, ELSEWHERE].contains(&end) || !self.link.attachment.alive()
    }

    /// Gives back everything from `before` to `consumer`; false if that is the driver's alone.
    ///
    /// # Errors
    /// `ESTALE`: another process has taken the socket, and receives the last of those bytes.
    #[inline]
    pub(crate) fn give_back_direct(&mut self, before: u64, consumer: u64) -> Result<bool> {
        let incoming = &mut self.incoming;
        let (Some((own, peer)), Some(origin)) = (incoming.pair.as_deref(), incoming.origin) else {
            return Ok(false);
        };
        if before < origin {
            self.link.store_recv_consumer(consumer.min(origin));
            if self.may_move {
                fence(Ordering::SeqCst);
                if !self.link.is_last_received(consumer.min(origin))? {
                    return Err(moved());
                }
            }
            if consumer >= origin {
                incoming.before = None;
            }
        }
        if consumer > origin {
            let consumer = consumer - origin;
            if self.may_move {
                self.link.claim_received(own, consumer)?;
            }
            if consumer / ALIVE_BYTES != before.saturating_sub(origin) / ALIVE_BYTES {
                self.link.attachment.check_alive();
            }
            own.publish(direct::CONSUMER, consumer);
            if incoming.waker.tell(&WakerWords { own, peer, words: &SEND }, consumer) {
                self.link.announce(peer);
            }
        }
        Ok(true)
    }

    /// Bytes were there.
    #[inline]
    pub(crate) fn went_on(&mut self) {
        if self.turn().is_sleeping() {
            return;
        }
        if let Some((own, peer)) = self.incoming.pair.as_deref() {
            went_on(&mut self.incoming.fence, own, peer, &RECV);
        }
    }

    /// Of the direct path: the peer's index that is news, if there is not enough now, and also with `edge`.
    fn next_news(&self, there: u64, edge: bool) -> Option<u64> {
        let (_, peer) = self.incoming.pair.as_deref()?;
        if there >= self.lowat && !edge {
            return None;
        }
        if let Leaving::Until(_) = self.incoming.leaving {
            return None; // what comes next is the driver's word
        }
        let index = (self.cursor + self.lowat).max(self.cursor + there + 1);
        let in_ring = |origin: u64| {
            index.min(self.consumer.max(origin).saturating_add(peer.bytes())).saturating_sub(origin)
        };
        Some(self.incoming.origin.map_or(1, in_ring).max(1))
    }

    /// [`RecvSide::poll`], after which an event comes when there is more: if there is not enough now, and also with
    /// `edge`.
    pub(crate) fn poll_and_arm(&mut self, edge: bool) -> (u64, u32) {
        let (there, end) = self.poll();
        let Some(index) = self.next_news(there, edge) else { return (there, end) };
        let lent = self.turn().is_sleeping();
        let incoming = &mut self.incoming;
        if let Some((own, _)) = incoming.pair.as_deref() {
            incoming.fence.arm(&OwnWords { own, words: &RECV }, index, lent);
            incoming.armed = true;
        }
        self.poll()
    }

    /// Returns whether the peer was asked for an event that may not have come.
    pub(crate) fn awaits_event(&self) -> bool {
        self.incoming.armed
    }

    /// None need come any more.
    pub(crate) fn disarm(&mut self) {
        self.incoming.armed = false;
        if let Some((own, _)) = self.incoming.pair.as_deref() {
            own.map().store_u64(direct::RECV_EVENT_AT, 0, Ordering::Relaxed);
        }
    }

    /// Polls, and returns the word of the direct ring whose change is news, so that no event has to come.
    pub(crate) fn poll_and_rest(&mut self, edge: bool) -> (u64, u32, Option<Rest>) {
        let (there, end) = self.poll();
        let value = self.next_news(there, edge);
        let rest = self.incoming.pair.as_deref().zip(value).map(|((_, peer), value)| Rest {
            map: peer.map().clone(),
            word: direct::PRODUCER,
            value,
        });
        (there, end, rest)
    }
}
