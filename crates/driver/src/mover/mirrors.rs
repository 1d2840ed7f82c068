//! Flows of a mover that have mirrors ([`crate::mirror`]).
//!
//! Bytes that a flow has delivered are copied out of its receive ring after they were published, in the order of the stream. The account of
//! the mirror pays for the copies. A flow without a mirror costs a look whether there is any mirror.
use super::flow::Flow;
use super::scheduler::{Scheduler, REQUEST_BYTES};
use crate::hash::FastMap;
use crate::ids::{FlowId, MoverId};
use crate::mirror::{Kind, Showing};

/// See the module.
#[derive(Debug, Default)]
pub struct Mirrors(FastMap<FlowId, Box<Showing>>);

impl Mirrors {
    /// Tells whether any flow has a mirror.
    #[inline]
    pub fn are_there(&self) -> bool {
        !self.0.is_empty()
    }

    /// Sets a flow's mirrors. `None`: no mirror from now on.
    pub fn set(&mut self, mover: MoverId, flow: FlowId, showing: Option<Box<Showing>>) {
        match showing {
            Some(showing) => {
                if showing.begins {
                    tell(mover, flow, &showing, Kind::Begin);
                }
                self.0.insert(flow, showing);
            }
            None => drop(self.0.remove(&flow)),
        }
    }

    /// Ends the mirrors of a flow that is over.
    pub fn end(&mut self, mover: MoverId, flow: FlowId) {
        if let Some(showing) = self.0.remove(&flow) {
            tell(mover, flow, &showing, Kind::End);
        }
    }

    /// Takes over the mirrors of a flow from another mover.
    pub fn receive(&mut self, from: &mut Self, flow: FlowId) {
        if let Some(showing) = from.0.remove(&flow) {
            self.0.insert(flow, showing);
        }
    }

    /// Copies the last `bytes` that a flow has delivered, which were just published.
    #[cold]
    pub fn see(&self, mover: MoverId, flow: &Flow, bytes: u64, scheduler: &mut Scheduler) {
        let Some(showing) = self.0.get(&flow.id).filter(|_| bytes > 0) else { return };
        let side = flow.id.side();
        let positions = showing.subject.deliver(side, bytes);
        let Some((map, pieces)) = flow.last_delivered(bytes) else { return };
        for (copies, payer) in &showing.to {
            let of = (&showing.subject, side, Kind::Bytes);
            let copied = copies.put(mover, of, positions, pieces.clone(), |to, piece| {
                let from = map.address(piece.start, piece.len());
                let room = to.spare_capacity_mut();
                assert!(piece.len() <= room.len(), "a lane has room for what is copied into it");
                // SAFETY: the room is this thread's, and there is enough of it. The source lies in the receive ring, which the driver alone
                // writes. This mover writes nothing to these bytes before the receiver has given them back. The last look at the receiver's
                // counter was before their delivery.
                unsafe {
                    pd_shm::copy::copy(room.as_mut_ptr().cast(), from.as_ptr(), piece.len());
                    to.set_len(to.len() + piece.len());
                }
            });
            scheduler.charge_beside(*payer, copied + REQUEST_BYTES);
        }
    }
}

/// Puts a record without bytes.
fn tell(mover: MoverId, flow: FlowId, showing: &Showing, kind: Kind) {
    let side = flow.side();
    let positions = showing.subject.deliver(side, 0);
    for (copies, _) in &showing.to {
        copies.put(mover, (&showing.subject, side, kind), positions, [0..0, 0..0], |_, _| {});
    }
}
