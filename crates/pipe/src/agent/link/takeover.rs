//! Direct paths of an agent whose place another one takes.
use super::super::takeover::LinkState;
use super::super::{Agent, PipeId, PortId};
use super::{Lent, Pair};
use crate::port::Port;
use crate::shape::{Direction, Shape};
use pd_abi::pipe::{LinkPath, LINK_NUMBER_MAX};
use rustix::io::{Errno, Result};

impl Agent {
    /// Returns the direct paths for another agent. Offers are not among them: the other agent makes its own.
    pub(in crate::agent) fn link_states(&self) -> Vec<LinkState> {
        let id = |slot: usize| {
            let generation = self.pipes[slot].as_ref()?.generation;
            Some(PipeId { slot, generation })
        };
        let of = |(near, pair): (&usize, &Pair)| {
            Some(LinkState {
                near: PortId::at(*near),
                number: pair.number,
                sender: pair.sender.and_then(id),
                receiver: id(pair.receiver)?,
                path: pair.path as u32,
                polls: pair.polls,
                given: pair.given,
                from: pair.from,
                ring_bytes: pair.ring_bytes,
                lent: pair.lent.map(|lent| (lent.given, lent.left)),
            })
        };
        self.links.pairs.iter().filter(|(_, pair)| pair.path != LinkPath::Offered).filter_map(of).collect()
    }

    /// Returns the number of the last offer.
    pub(in crate::agent) fn last_offer(&self) -> u32 {
        self.links.number
    }

    /// Has further offers follow another agent's.
    pub(in crate::agent) fn offer_after(&mut self, number: u32) {
        self.links.number = number;
    }

    /// Goes on with a direct path of another agent, between pipes that have come.
    pub(in crate::agent) fn resume_pair(&mut self, state: LinkState<PipeId, PortId>) -> Result<()> {
        let LinkState { near, number, sender, receiver, path, polls, given, from, ring_bytes, lent } = state;
        let path = LinkPath::from_raw(path);
        let near = near.slot();
        let Some(&Port::Link(far)) = self.ports.get(near).map(|slot| &slot.port) else {
            return Err(Errno::INVAL);
        };
        // Of the two, each is on one path, at its own end.
        let is_free = |id: PipeId| self.way_of(id.slot).is_none();
        let fits = |id: PipeId, port: usize, direction: Direction| {
            let slot = self.pipes[id.slot].as_ref().filter(|slot| slot.generation == id.generation);
            slot.is_some_and(|slot| {
                let is_its = slot.ports[0] == port && slot.end.is_open();
                is_its && slot.end.shape().direction() == direction && is_free(id)
            })
        };
        let receiving = self.pipes[receiver.slot].as_ref();
        let unit = receiving.map(|slot| slot.end.shape().unit()).ok_or(Errno::INVAL)?;
        let ring = Shape::new(Direction::Send, unit, ring_bytes)?;
        let grain = ring.grain();
        let of_sender = |id: PipeId| self.pipes[id.slot].as_ref().map(|slot| slot.end.shape());
        let lent = lent.map(|(given, left)| Lent { given, left, grain });
        let is_lent = |lent: &Lent| {
            let behind = lent.left.wrapping_sub(lent.given);
            behind > 0 && behind <= ring_bytes && behind % grain == 0 && lent.given % grain == 0
        };
        let is_path = match path {
            LinkPath::Direct | LinkPath::Recalled => sender.is_some() && lent.is_none(),
            LinkPath::Last => sender.is_none() && lent.is_none(),
            LinkPath::Agent => lent.as_ref().is_some_and(is_lent),
            LinkPath::Offered => false,
        };
        // Of the words that agents alone write, the receiver's tells the path.
        let said = receiving.map(|slot| slot.end.link());
        let is_sound = is_path
            && said == Some((number, path))
            && (1..=LINK_NUMBER_MAX).contains(&number)
            && from % grain == 0
            && !self.links.pairs.contains_key(&near)
            && fits(receiver, far, Direction::Receive)
            && sender.is_none_or(|id| fits(id, near, Direction::Send) && of_sender(id) == Some(ring));
        if !is_sound {
            return Err(Errno::INVAL);
        }
        let slots = (sender.map(|id| id.slot), receiver.slot);
        let sending = slots.0.and_then(|sender| self.pipes[sender].as_mut());
        if let Some(slot) = sending {
            match &lent {
                Some(lent) => slot.end.resume_lent(lent.given, lent.left)?,
                None => slot.end.set_linked(true),
            }
        }
        self.pipes[slots.1].iter_mut().for_each(|slot| slot.end.set_linked(false));
        let (sender, receiver, eventfds) = (slots.0, slots.1, [None, None]);
        let pair = Pair {
            number,
            far,
            sender,
            receiver,
            path,
            polls,
            eventfds,
            given,
            from,
            ring_bytes,
            grain,
            lent,
        };
        self.links.pairs.insert(near, pair);
        self.links.stale.insert(near);
        Ok(())
    }

    /// Tells programs that were offered a path by another agent that the offer is withdrawn. The next turn makes others.
    pub(in crate::agent) fn withdraw_offers(&mut self) {
        for pipe in 0..self.pipes.len() {
            let is_free = self.way_of(pipe).is_none();
            if let Some(slot) = self.pipes[pipe].as_mut().filter(|slot| is_free && slot.end.is_open()) {
                let (number, path) = slot.end.link();
                if path != LinkPath::Agent {
                    slot.end.set_link(number, LinkPath::Agent);
                }
            }
        }
    }
}
