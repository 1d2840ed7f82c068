//! Messages of a mover. The conductor and other movers are told at once, clients all together at the end of a step.
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
    /// Flows with news for their clients.
    touched: Vec<FlowId>,
    /// Channels with events to publish.
    dirty: Vec<Place>,
    /// Channels with events that wait for room.
    overflowing: Vec<Place>,
}

impl Outbox {
    /// Makes the outbox of mover `own`.
    pub fn new(
        own: MoverId,
        conductor: mailbox::Outbox<ToConductor>,
        movers: &[Arc<Mailbox<ToMover>>],
    ) -> Self {
        let (touched, dirty, overflowing) = Default::default();
        Self { own, conductor, movers: movers.to_vec(), touched, dirty, overflowing }
    }

    /// Returns the mover that has this outbox.
    #[inline]
    pub fn own(&self) -> MoverId {
        self.own
    }

    #[inline]
    pub fn tell_conductor(&self, message: ToConductor) {
        self.conductor.send(message);
    }

    /// Returns the number of messages that are kept for a conductor of the same thread.
    pub fn kept(&self) -> Option<usize> {
        self.conductor.kept()
    }

    /// Moves the kept messages into `into`, which is empty.
    pub fn take_messages(&self, into: &mut VecDeque<ToConductor>) {
        self.conductor.drain(into);
    }

    /// Sends a message to another mover.
    pub fn tell_mover(&self, to: MoverId, message: ToMover) {
        self.movers[to.index()].send(message);
    }

    /// Adds a flow with news. A flow is added once: it knows that it is there.
    #[inline]
    pub fn touch(&mut self, flow: FlowId) {
        self.touched.push(flow);
    }

    /// Takes the flows with news.
    #[inline]
    pub fn take_touched(&mut self) -> Vec<FlowId> {
        std::mem::take(&mut self.touched)
    }

    /// Takes an empty list for reuse, with the flows that have been added meanwhile.
    #[inline]
    pub fn reuse_touched(&mut self, mut empty: Vec<FlowId>) {
        std::mem::swap(&mut self.touched, &mut empty);
        self.touched.append(&mut empty);
    }

    /// Drops a flow that goes to another mover.
    pub fn drop_touched(&mut self, flow: FlowId) {
        self.touched.retain(|known| *known != flow);
    }

    /// Adds a channel with events to publish. A channel is added once: it knows that it is there.
    #[inline]
    pub fn add_dirty(&mut self, place: Place) {
        self.dirty.push(place);
    }

    /// Takes a channel with events to publish.
    #[inline]
    pub fn pop_dirty(&mut self) -> Option<Place> {
        self.dirty.pop()
    }

    /// Adds a channel with events that wait for room. A channel is added once: it knows that it is there.
    pub fn add_overflowing(&mut self, place: Place) {
        self.overflowing.push(place);
    }

    /// Takes the channels with events that wait for room, until they are put back.
    pub fn take_overflowing(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.overflowing)
    }

    /// Puts back the channels with events that still wait.
    pub fn put_overflowing(&mut self, places: Vec<Place>) {
        self.overflowing = places;
    }

    /// Drops a channel that goes to another mover.
    pub fn drop_overflowing(&mut self, place: Place) {
        self.overflowing.retain(|known| *known != place);
    }

    /// Tells whether any channel has events that wait for room.
    #[inline]
    pub fn is_overflowing(&self) -> bool {
        !self.overflowing.is_empty()
    }

    /// Replaces the outbox to the conductor. Returns the previous one.
    #[cfg(test)]
    pub fn replace_conductor(
        &mut self,
        conductor: mailbox::Outbox<ToConductor>,
    ) -> mailbox::Outbox<ToConductor> {
        std::mem::replace(&mut self.conductor, conductor)
    }
}
