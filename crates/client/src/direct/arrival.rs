//! Sleeping until something is received, on either path.
use super::backoff::back_off;
use super::incoming::Leaving;
use super::wait::{Doorbells, Noticing, RECV};
use crate::attachment::note_cores;
use crate::link::Link;
use crate::lock::Guard;
use crate::recv::side::RecvSide;
use crate::socket::Socket;
use crate::turn::{sleep_in_turn, HasTurn};
use pd_abi::layout::direct;
use pd_shm::byte_ring::Ring;
use pd_shm::{Own, Theirs};
use std::sync::Arc;
use std::time::Duration;

/// The event that a receiver waits for, on either path.
struct Arrival {
    link: Arc<Link>,
    pair: Option<(Ring<Own>, Ring<Theirs>)>,
    origin: Option<u64>,
    /// In the stream.
    wake_at: u64,
    /// In the peer's ring.
    in_ring: u64,
    /// The known stage of leaving the direct path: it is no news.
    leaving: Leaving,
}

impl Arrival {
    fn new(side: &RecvSide, wake_at: u64) -> Self {
        let pair = side.incoming.pair.as_deref().cloned();
        let origin = side.incoming.origin;
        // Of the peer's ring no more than it holds, and its first byte whatever was waited for.
        let given_back = side.consumer.max(origin.unwrap_or_default());
        let most = pair.as_ref().filter(|_| origin.is_some()).map(|(_, peer)| given_back + peer.bytes());
        let wake_at = wake_at.min(most.unwrap_or(u64::MAX));
        let in_ring = origin.map_or(1, |origin| wake_at.saturating_sub(origin));
        let leaving = side.incoming.leaving;
        Self { link: side.link.clone(), pair, origin, wake_at, in_ring, leaving }
    }

    /// Returns whether it has come, or the stream has ended, or goes on elsewhere.
    #[inline]
    fn has_come(&self) -> bool {
        let is_undrained = self.origin.is_none() && self.link.is_undrained();
        let came = match (&self.pair, self.leaving) {
            _ if is_undrained => false,
            (_, Leaving::Until(written)) => written >= self.in_ring,
            (Some((_, peer)), _) => peer.load(direct::PRODUCER) >= self.in_ring,
            (None, Leaving::Not) => self.link.direct.is_some() && self.link.peer_is_ready(),
            (None, _) => false,
        };
        let delivered = || self.origin.is_none() && self.link.recv_producer() >= self.wake_at;
        let leaves = || match self.leaving {
            Leaving::Not => !is_undrained && self.link.has_left(),
            Leaving::Until(_) => self.link.is_last(),
            _ => false,
        };
        came || delivered() || self.link.recv_end() != 0 || leaves()
    }
}

impl Socket {
    /// Sleeps until the stream is delivered up to `wake_at`, or ends.
    pub(crate) fn sleep_for_recv<'a>(
        &'a self,
        mut side: Guard<'a, RecvSide>,
        wake_at: u64,
        timeout: Duration,
        noticing: Option<Noticing<'_>>,
    ) -> Guard<'a, RecvSide> {
        if side.kernel.is_some() {
            return self.sleep_for_kernel(side, timeout);
        }
        let arrival = Arrival::new(&side, wake_at);
        let (link, pair) = (&arrival.link, arrival.pair.as_ref());
        let (cursor, backoff) = (side.cursor, &mut side.incoming.backoff);
        note_cores(&link.attachment.status);
        let began =
            pair.and_then(|(own, peer)| backoff.begin(own.load(direct::PRODUCER), cursor, peer.bytes()));
        let mut pause = pair.and_then(|_| backoff.time());
        let sleeping = side.turn().is_sleeping();
        let doorbells = Doorbells::new(link.recv_cells(), pair, &RECV, arrival.in_ring, noticing);
        let doorbells = if sleeping { doorbells } else { doorbells.with_fence(&mut side.incoming.fence) };
        let (mut side, timed_out) =
            sleep_in_turn(&self.recv, side, &doorbells, arrival.wake_at, timeout, || {
                if let Some(time) = pause.take() {
                    back_off(time);
                }
                arrival.has_come() || self.check_usable().is_err()
            });
        if !sleeping {
            side.incoming.fence = doorbells.into_fence();
        }
        side.incoming.backoff.end(began);
        if let Some(noticing) = noticing.filter(|_| arrival.has_come() || self.check_usable().is_err()) {
            noticing.end();
        }
        if timed_out {
            drop(side);
            link.attachment.check_alive();
            return self.recv.lock();
        }
        side
    }
}
