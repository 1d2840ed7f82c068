//! Receiving on the direct path: bytes are lent where the peer wrote them.
use super::wait::{lull, Bells, Density, Pace, Waker, RECV, SEND};
use super::Half;
use crate::error::Result;
use crate::lock::Guard;
use crate::recv::{RecvSide, Ring};
use crate::socket::Socket;
use crate::turn::{sleep_in_turn, HasTurn};
use pd_abi::layout::direct;
use pd_abi::Operation;
use std::time::Duration;

/// The receiving half's view of the rings.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// Own and peer's. Most sockets have none.
    pair: Option<Box<(Half, Half)>>,
    /// Position in the stream of the first byte in the peer's ring, once there is one: those before it came by the
    /// driver.
    origin: Option<u64>,
    /// The receive ring of those, while some are lent.
    before: Option<Ring>,
    waker: Waker,
    pace: Pace,
    density: Density,
}

impl RecvSide {
    /// Whether bytes come by the peer's ring by now. They do from the first one there, after all that the driver
    /// delivered: the peer sends it when the driver has told it of the last.
    #[inline]
    pub(crate) fn follow(&mut self) -> Result<bool> {
        Ok(self.incoming.origin.is_some() || self.try_follow()?)
    }

    fn try_follow(&mut self) -> Result<bool> {
        let Some(shared) = &self.link.direct else { return Ok(false) };
        if self.incoming.pair.is_none() {
            let Some(pair) = shared.both(&self.link)? else { return Ok(false) };
            self.incoming.pair = Some(Box::new(pair));
        }
        if !self.peer_has_begun() {
            return Ok(false);
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
        let (map, head, bytes, origin) = (peer.map.clone(), peer.head, peer.bytes, self.producer);
        let ring = self.ring.replace(Ring { words: (0, 0, 0), map, head, bytes, origin });
        self.incoming.before = ring.filter(|_| self.consumer < origin);
        self.incoming.origin = Some(origin);
        Ok(true)
    }

    fn peer_has_begun(&self) -> bool {
        self.incoming.pair.as_deref().is_some_and(|(_, peer)| peer.load(direct::PRODUCER) != 0)
    }

    /// Whether what is there is the last that comes by the driver: it waits for no more, which lie elsewhere.
    pub(crate) fn is_remainder(&self) -> bool {
        self.incoming.origin.is_none() && self.cursor != self.producer && self.peer_has_begun()
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
        let producer = peer.load(direct::PRODUCER).wrapping_add(origin);
        if producer.wrapping_sub(self.consumer.max(origin)) > peer.bytes || producer < self.producer {
            return Err(shared.end(&self.link));
        }
        Ok(producer)
    }

    /// Gives back everything from `before` to `consumer`; false if that is the driver's alone.
    #[inline]
    pub(crate) fn give_back_direct(&mut self, before: u64, consumer: u64) -> bool {
        let incoming = &mut self.incoming;
        let (Some((own, peer)), Some(origin)) = (incoming.pair.as_deref(), incoming.origin) else {
            return false;
        };
        if before < origin {
            self.link.store_recv_consumer(consumer.min(origin));
            if consumer >= origin {
                incoming.before = None;
            }
        }
        if consumer > origin {
            let consumer = consumer - origin;
            own.publish(direct::CONSUMER, consumer);
            if incoming.waker.tell(own, peer, &SEND, consumer) {
                let _ = self.link.submit(self.link.request(Operation::Nudge));
            }
        }
        true
    }

    /// Bytes were there.
    #[inline]
    pub(crate) fn went_on(&mut self) {
        if self.turn().is_sleeping() {
            return;
        }
        if let Some((own, peer)) = self.incoming.pair.as_deref() {
            self.incoming.pace.went_on(own, peer, &RECV);
        }
    }

    /// [`RecvSide::poll`], after which an event comes when there is more: if there is not enough now, and also with
    /// `edge`.
    pub(crate) fn poll_and_arm(&mut self, edge: bool) -> (u64, u32) {
        let (there, end) = self.poll();
        if self.incoming.pair.is_none() || (there >= self.lowat && !edge) {
            return (there, end);
        }
        let index = (self.cursor + self.lowat).max(self.cursor + there + 1);
        let lent = self.turn().is_sleeping();
        let given_back = self.consumer.max(self.incoming.origin.unwrap_or_default());
        let incoming = &mut self.incoming;
        if let Some((own, peer)) = incoming.pair.as_deref() {
            let index = incoming.origin.map_or(1, |origin| index.min(given_back + peer.bytes) - origin);
            incoming.pace.arm(own, &RECV, index.max(1), lent);
        }
        self.poll()
    }
}

impl Socket {
    /// Sleeps until the stream is delivered up to `wake_at`, or ends.
    pub(crate) fn sleep_for_direct<'a>(
        &'a self,
        mut side: Guard<'a, RecvSide>,
        wake_at: u64,
        timeout: Duration,
    ) -> Guard<'a, RecvSide> {
        let link = side.link.clone();
        let pair = side.incoming.pair.as_deref().cloned();
        let pair = pair.as_ref().map(|(own, peer)| (own, peer));
        let origin = side.incoming.origin;
        // Of the peer's ring no more than it holds, and its first byte whatever was waited for.
        let given_back = side.consumer.max(origin.unwrap_or_default());
        let wake_at = pair
            .filter(|_| origin.is_some())
            .map_or(wake_at, |(_, peer)| wake_at.min(given_back + peer.bytes));
        let in_ring = origin.map_or(1, |origin| wake_at - origin);
        let sleeping = side.turn().is_sleeping();
        let sent = pair.map_or(0, |(own, _)| own.load(direct::PRODUCER));
        let began = side.incoming.density.begin(sent);
        let mut lulls = side.incoming.density.wants_lull();
        let mut other = Pace::default();
        let pace = if sleeping { &mut other } else { &mut side.incoming.pace };
        let bells = Bells::new(link.recv_cells(), pair, &RECV, in_ring, pace);
        let (mut side, timed_out) =
            sleep_in_turn(&self.recv, &self.recv_turn, side, &bells, wake_at, timeout, || {
                if std::mem::take(&mut lulls) {
                    lull();
                }
                let came = match pair {
                    Some((_, peer)) => peer.load(direct::PRODUCER) >= in_ring,
                    None => link.peer_is_ready(),
                };
                let delivered = origin.is_none() && link.recv_producer() >= wake_at;
                came || delivered || link.recv_end() != 0 || self.check_usable().is_err()
            });
        if !sleeping {
            side.incoming.pace = bells.pace();
        }
        side.incoming.density.end(began);
        if timed_out {
            drop(side);
            link.attachment.check_alive();
            return self.recv.lock();
        }
        side
    }
}
