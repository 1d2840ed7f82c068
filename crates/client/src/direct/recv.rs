//! Receiving on the direct path: bytes are lent where the peer wrote them.
use super::wait::{Bells, Pace, Waker, RECV, SEND};
use super::Half;
use crate::error::Result;
use crate::recv::{RecvSide, Ring};
use crate::socket::Socket;
use crate::turn::{lock, sleep_in_turn, HasTurn};
use pd_abi::layout::direct;
use pd_abi::Operation;
use std::sync::MutexGuard;
use std::time::Duration;

/// The receiving half's view of the rings.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// Own and peer's. Most sockets have none.
    pair: Option<Box<(Half, Half)>>,
    waker: Waker,
    pace: Pace,
}

impl RecvSide {
    /// The peer's index; what was last seen of it while there is none.
    #[inline]
    pub(crate) fn direct_producer(&mut self) -> Result<u64> {
        let Some(shared) = &self.link.direct else { return Ok(self.producer) };
        if self.incoming.pair.is_none() {
            let Some((own, peer)) = shared.both(&self.link)? else { return Ok(self.producer) };
            self.ring =
                Some(Ring { words: (0, 0, 0), map: peer.map.clone(), head: peer.head, bytes: peer.bytes });
            self.incoming.pair = Some(Box::new((own, peer)));
        }
        let Some((_, peer)) = self.incoming.pair.as_deref() else { return Ok(self.producer) };
        if shared.is_broken() {
            return Ok(self.producer);
        }
        let producer = peer.load(direct::PRODUCER);
        if producer.wrapping_sub(self.consumer) > peer.bytes || producer < self.producer {
            return Err(shared.end(&self.link));
        }
        Ok(producer)
    }

    /// Gives back everything before `consumer`.
    #[inline]
    pub(crate) fn give_back_direct(&mut self, consumer: u64) {
        let incoming = &mut self.incoming;
        let Some((own, peer)) = incoming.pair.as_deref() else { return };
        own.publish(direct::CONSUMER, consumer);
        if incoming.waker.tell(own, peer, &SEND, consumer) {
            let _ = self.link.submit(self.link.request(Operation::Nudge));
        }
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
        if let Some((own, peer)) = self.incoming.pair.as_deref() {
            self.incoming.pace.arm(own, &RECV, index.min(self.consumer + peer.bytes).max(1), lent);
        }
        self.poll()
    }
}

impl Socket {
    /// Sleeps until the peer's index reaches `wake_at` or the stream ends.
    pub(crate) fn sleep_for_direct<'a>(
        &'a self,
        mut side: MutexGuard<'a, RecvSide>,
        wake_at: u64,
        timeout: Duration,
    ) -> MutexGuard<'a, RecvSide> {
        let link = side.link.clone();
        let pair = side.incoming.pair.as_deref().cloned();
        let pair = pair.as_ref().map(|(own, peer)| (own, peer));
        // No more than the ring holds.
        let wake_at = pair.map_or(wake_at, |(_, peer)| wake_at.min(side.consumer + peer.bytes));
        let sleeping = side.turn().is_sleeping();
        let mut other = Pace::default();
        let pace = if sleeping { &mut other } else { &mut side.incoming.pace };
        let bells = Bells::new(link.recv_cells(), pair, &RECV, pace);
        let (mut side, timed_out) =
            sleep_in_turn(&self.recv, &self.recv_turn, side, &bells, wake_at, timeout, || {
                let came = match pair {
                    Some((_, peer)) => peer.load(direct::PRODUCER) >= wake_at,
                    None => link.peer_is_ready(),
                };
                came || link.recv_end() != 0 || self.check_usable().is_err()
            });
        if !sleeping {
            side.incoming.pace = bells.pace();
        }
        if timed_out {
            drop(side);
            link.attachment.check_alive();
            return lock(&self.recv);
        }
        side
    }
}
