//! Rings of a socket: what its threads wait for, and what they find.
use super::{Half, Leaving, Out, Rings, LOOK_EVERY, RECV, SEND};
use crate::simulation::honest::calls::RECEIVES;
use pd_abi::layout::{direct, path};
use pd_shm::{Own, Theirs};
use std::sync::atomic::{fence, Ordering};
use std::time::Duration;

impl Rings {
    pub fn new(due: u64) -> Self {
        Self { out: Out { due, ..Out::default() }, ..Self::default() }
    }

    /// Begins at a position in the stream: another client's socket had the bytes before.
    pub fn begin_at(&mut self, position: u64) {
        self.into.by_ring = position;
    }

    /// Returns the stream's position as the driver counts it.
    pub fn by_driver(&self, at: u64) -> u64 {
        at.min(self.into.origin.unwrap_or(u64::MAX)) - self.into.by_ring
    }

    /// Returns the position in the stream of the first byte that the driver counts.
    pub fn base(&self) -> u64 {
        self.into.by_ring
    }

    /// Returns the index that a call of `len` bytes claims.
    pub(super) fn claimed(&self, received: u64, direction: usize, len: u64) -> u64 {
        match direction {
            RECEIVES => received - self.into.origin.expect("a ring that bytes come by") + len,
            _ => self.out.written + len,
        }
    }

    pub(super) fn may_ask(&self, now: Duration) -> bool {
        self.refused.is_none_or(|until| now >= until)
    }

    /// Returns both rings, if they are available: the peer's state is read in its words.
    pub(super) fn pair(&self) -> Option<(&Half<Own>, &Half<Theirs>)> {
        self.own.as_ref().filter(|_| self.is_sealed).zip(self.peer.as_ref())
    }

    /// Tells whether the peer's ring can be requested.
    pub(super) fn is_peer_due(&self, word: u32) -> bool {
        let is_there = path::DIRECT | path::PEER_READY;
        self.peer.is_none() && self.into.leaving != Leaving::Done && word & is_there == is_there
    }

    /// Returns the doorbells of the peer's ring, if threads sleep on them.
    pub fn doorbell(&self, receives: bool) -> u64 {
        let words = if receives { RECV } else { SEND };
        let rung = |(_, peer): (_, &Half<Theirs>)| peer.map.load_u32(words.doorbell, Ordering::Acquire);
        // A thread wakes when the rings become available.
        self.pair().map_or(0, |pair| (u64::from(rung(pair)) + 1) << 32)
    }

    /// Returns the index of the peer's ring that the receiver waits for.
    pub(super) fn wanted(&self, received: u64) -> u64 {
        self.into.origin.map_or(1, |origin| received + 1 - origin)
    }

    /// Asks the peer to wake the receiver, or to have an event posted.
    pub fn arm_receiver(&mut self, received: u64, events: bool) {
        self.into.is_armed = self.pair().is_some();
        let Some((own, _)) = self.pair() else { return };
        own.store(if events { RECV.event_at } else { RECV.wake_at }, self.wanted(received));
        fence(Ordering::SeqCst);
    }

    pub fn disarm_receiver(&self) {
        if let Some(own) = &self.own {
            own.store(RECV.wake_at, 0);
        }
    }

    /// Tells whether a receiver without bytes has something to do.
    pub fn has_come(&self, received: u64, word: u32, now: Duration) -> bool {
        if word & path::RECV_UNDRAINED != 0 {
            // The driver brings bytes of a previous client first.
            return false;
        }
        let came = match (self.into.leaving, self.pair()) {
            (Leaving::Until(last), _) => last >= self.wanted(received),
            (Leaving::Done, _) => false,
            (_, Some(_)) if !self.into.is_armed => true,
            (_, Some((_, peer))) => peer.load(direct::PRODUCER) >= self.wanted(received),
            (_, None) => self.is_peer_due(word) && self.may_ask(now),
        };
        let leaves = match self.into.leaving {
            Leaving::Not => word & path::LEFT != 0,
            Leaving::Until(_) => word & path::LAST != 0,
            _ => false,
        };
        came || leaves && (self.pair().is_some() || !self.is_peer_due(word))
    }

    /// Asks the peer to wake the sender.
    pub fn arm_sender(&mut self, events: bool) {
        self.out.is_armed = self.pair().is_some();
        let Some((own, _)) = self.pair().filter(|_| self.out.is_direct) else { return };
        own.store(if events { SEND.event_at } else { SEND.wake_at }, self.half_free_at());
        fence(Ordering::SeqCst);
    }

    pub fn disarm_sender(&self) {
        if let Some(own) = &self.own {
            own.store(SEND.wake_at, 0);
        }
    }

    pub(super) fn half_free_at(&self) -> u64 {
        let half = self.own.as_ref().map_or(0, |own| own.bytes / 2);
        self.out.written.saturating_sub(half).max(1)
    }

    /// Tells whether a sender without room has something to do. None: only the driver's words tell.
    pub fn has_room(&self, word: u32, now: Duration) -> Option<bool> {
        if !self.out.is_direct {
            return None;
        }
        let room = match self.pair() {
            Some(_) if !self.out.is_armed => true,
            Some((_, peer)) => peer.load(direct::CONSUMER) >= self.half_free_at(),
            None => self.is_peer_due(word) && self.may_ask(now),
        };
        Some(room || word & path::LEFT != 0)
    }

    /// Returns the time at which sleeping threads look again, if they have to.
    pub fn look_at(&self, word: u32, now: Duration) -> Option<Duration> {
        (word & path::DIRECT != 0).then_some(now + LOOK_EVERY)
    }

    /// Counts a send that went by the driver.
    pub fn weigh(&mut self) {
        self.out.weight += 1;
    }

    pub fn describe(&self) -> String {
        let load = |half: Option<u64>| half.unwrap_or(0);
        let own = self.own.as_ref();
        let peer = self.peer.as_ref();
        format!(
            "direct {} written {} (peer read {}), left {}, into {:?} of {}, {:?}, by ring {}, sealed {}",
            self.out.is_direct,
            self.out.written,
            load(peer.map(|peer| peer.load(direct::CONSUMER))),
            self.out.has_left,
            self.into.origin,
            load(peer.map(|peer| peer.load(direct::PRODUCER))),
            self.into.leaving,
            self.into.by_ring,
            own.is_some() && self.is_sealed,
        )
    }
}
