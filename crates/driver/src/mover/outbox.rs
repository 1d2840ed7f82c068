//! What a mover has to tell: the conductor and other movers at once; clients in one go, at the end of a step.
use super::scheduler::Place;
use crate::ids::{FlowId, MoverId};
use crate::mailbox::{self, Mailbox};
use crate::messages::{ToConductor, ToMover};
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
pub struct Outbox {
    own: MoverId,
    conductor: mailbox::Outbox<ToConductor>,
    movers: Vec<Arc<Mailbox<ToMover>>>,
    /// Flows with something to tell their clients.
    touched: Vec<FlowId>,
    /// Channels with events to publish.
    dirty: Vec<Place>,
    /// Channels with events that wait for room.
    overflowing: Vec<Place>,
}

impl Outbox {
    /// That of mover `own`.
    pub fn new(
        own: MoverId,
        conductor: mailbox::Outbox<ToConductor>,
        movers: &[Arc<Mailbox<ToMover>>],
    ) -> Self {
        let (touched, dirty, overflowing) = Default::default();
        Self { own, conductor, movers: movers.to_vec(), touched, dirty, overflowing }
    }

    /// Whose it is.
    #[inline]
    pub fn own(&self) -> MoverId {
        self.own
    }

    #[inline]
    pub fn tell_conductor(&self, message: ToConductor) {
        self.conductor.send(message);
    }

    /// Messages that are kept for a conductor of the same thread.
    pub fn kept(&self) -> Option<usize> {
        self.conductor.kept()
    }

    /// Moves them into `into`, which is empty.
    pub fn take_messages(&self, into: &mut VecDeque<ToConductor>) {
        self.conductor.drain(into);
    }

    /// Tells another mover.
    pub fn tell_mover(&self, to: MoverId, message: ToMover) {
        self.movers[to.index()].send(message);
    }

    /// A flow has something to tell. It is there once: the flow knows that it is.
    #[inline]
    pub fn touch(&mut self, flow: FlowId) {
        self.touched.push(flow);
    }

    /// Flows that have.
    #[inline]
    pub fn take_touched(&mut self) -> Vec<FlowId> {
        std::mem::take(&mut self.touched)
    }

    /// An empty list for more of them, behind which come those that have been touched meanwhile.
    #[inline]
    pub fn reuse_touched(&mut self, mut empty: Vec<FlowId>) {
        std::mem::swap(&mut self.touched, &mut empty);
        self.touched.append(&mut empty);
    }

    /// A flow is another mover's from now on.
    pub fn drop_touched(&mut self, flow: FlowId) {
        self.touched.retain(|known| *known != flow);
    }

    /// A channel has events to publish. It is there once: the channel knows that it is.
    #[inline]
    pub fn add_dirty(&mut self, place: Place) {
        self.dirty.push(place);
    }

    /// One that has.
    #[inline]
    pub fn pop_dirty(&mut self) -> Option<Place> {
        self.dirty.pop()
    }

    /// A channel has events that wait for room. It is there once: the channel knows that it is.
    pub fn add_overflowing(&mut self, place: Place) {
        self.overflowing.push(place);
    }

    /// Channels that have, until they are put back.
    pub fn take_overflowing(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.overflowing)
    }

    /// Puts those back that still have.
    pub fn put_overflowing(&mut self, places: Vec<Place>) {
        self.overflowing = places;
    }

    /// A channel is another mover's from now on.
    pub fn drop_overflowing(&mut self, place: Place) {
        self.overflowing.retain(|known| *known != place);
    }

    /// Whether any has.
    #[inline]
    pub fn is_overflowing(&self) -> bool {
        !self.overflowing.is_empty()
    }

    /// Tells the conductor by another outbox from now on. Returns the former one.
    #[cfg(test)]
    pub fn replace_conductor(
        &mut self,
        conductor: mailbox::Outbox<ToConductor>,
    ) -> mailbox::Outbox<ToConductor> {
        std::mem::replace(&mut self.conductor, conductor)
    }
}
