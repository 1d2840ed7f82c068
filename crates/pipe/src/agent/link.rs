//! Direct paths of links: the agent offers, grants and recalls them ([`crate::handover`]).
//!
//! A link has a direct path while one pipe sends into an end and one receives all frames or bytes at the other, both of the same owner, and
//! nothing asks for the agent: no lease, rate, tap or mirror. The agent then neither copies nor looks at the sender, and sleeps.
//!
//! A program that waits in `poll` or `epoll` is woken there by an eventfd, which the agent makes with the offer. One that begins to is recalled, and
//! offered another path.
//!
//! A link has a way from either end to the other, of which each has one path at most. A change that matters to a way marks it, so that no other is judged.
mod takeover;

use super::shares::{LOOK_COST, WAKE_COST};
use super::steps::step;
use super::{Agent, PipeId, PortId, Slot};
use crate::memory::{Eventfds, PeerOffer};
use crate::port::Port;
use crate::shape::Direction;
use crate::violation::Violation;
use pd_abi::pipe::{LinkPath, LINK_NUMBER_MAX};
use rustix::event::{eventfd, EventfdFlags};
use rustix::io::{fcntl_dupfd_cloexec, Errno, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

/// Most frames or bytes that a receiver's counts grow by between two looks. More is no count.
const COUNT_MAX: u64 = 1 << 48;

/// An offer, and what became of it.
#[derive(Debug)]
struct Pair {
    number: u32,
    /// Port at which the receiver receives.
    far: usize,
    /// None: it has gone.
    sender: Option<usize>,
    receiver: usize,
    path: LinkPath,
    /// Set if the program waits in `poll` or `epoll`: the sender's, and the receiver's.
    polls: [bool; 2],
    /// Eventfds of those that do, while the path is offered.
    eventfds: [Option<OwnedFd>; 2],
    /// Position up to which the receiver had given back when a sender without an eventfd was last woken.
    given: u64,
    /// Position in the sender's ring at which the direct path began.
    from: u64,
    ring_bytes: u64,
    /// Unit of positions in it.
    grain: u64,
    /// Frames of the sender's ring that are lent after the receiver has left the path.
    lent: Option<Lent>,
}

/// Frames that a program has lent from a path that it has left. Their sender does not get their space before they are given back.
#[derive(Clone, Copy, Debug)]
struct Lent {
    /// Position up to which frames were given back.
    given: u64,
    /// Position at which the receiver has left.
    left: u64,
    /// Unit of both.
    grain: u64,
}

impl Lent {
    /// Returns what is lent if frames up to `given` were given back now.
    ///
    /// # Errors
    /// [`Violation::Index`] where the position runs backwards, beyond the end, or off a line.
    fn at(self, given: u64) -> std::result::Result<Option<Self>, Violation> {
        let more = given.wrapping_sub(self.given);
        if more > self.left.wrapping_sub(self.given) || more % self.grain != 0 {
            return Err(Violation::Index);
        }
        Ok(Some(Self { given, ..self }).filter(|_| given != self.left))
    }
}

/// The direct paths of an agent. A way is known by the port at which it begins.
#[derive(Debug, Default)]
pub(super) struct Links {
    pairs: BTreeMap<usize, Pair>,
    number: u32,
    /// Ways for which something has changed that their paths depend on.
    stale: BTreeSet<usize>,
    /// Ways without a path for want of descriptors. One is judged anew when a pipe goes.
    starved: BTreeSet<usize>,
    /// Ways with pairs, in a turn.
    ways: Vec<usize>,
}

impl Agent {
    /// Sets the owner of a pipe. Pipes of the same owner trust each other: a link may have a direct path between them.
    pub fn set_owner(&mut self, id: PipeId, owner: Option<u64>) {
        self.judge_pipe(id.slot);
        if let Some(slot) = self.slot(id) {
            slot.owner = owner;
        }
    }

    /// Has the next turn judge both ways of the link that a port is an end of.
    pub(super) fn judge_port(&mut self, port: usize) {
        if let Port::Link(peer) = self.ports[port].port {
            self.links.stale.extend([port, peer]);
        }
    }

    /// Has the next turn judge the links that a pipe reaches.
    pub(super) fn judge_pipe(&mut self, pipe: usize) {
        let slot = self.pipes.get(pipe).and_then(Option::as_ref);
        let ports = slot.map(|slot| slot.ports.clone()).unwrap_or_default();
        ports.into_iter().for_each(|port| self.judge_port(port));
    }

    /// Returns the way on whose path a pipe is, or which is offered to it.
    fn way_of(&self, pipe: usize) -> Option<usize> {
        let own = self.pipes[pipe].as_ref()?.ports[0];
        let Port::Link(peer) = self.ports[own].port else { return None };
        [own, peer].into_iter().find(|near| self.links.pairs.get(near).is_some_and(|pair| pair.has(pipe)))
    }

    fn offer_to(&self, pipe: usize) -> Option<&Pair> {
        self.links.pairs.get(&self.way_of(pipe)?).filter(|pair| pair.path == LinkPath::Offered)
    }

    /// Returns the pipe at the other end of a link, while the direct path is offered to a pipe.
    pub fn partner(&mut self, id: PipeId) -> Option<PipeId> {
        self.slot(id)?;
        let pair = self.offer_to(id.slot)?;
        let other = if pair.receiver == id.slot { pair.sender? } else { pair.receiver };
        let generation = self.pipes[other].as_ref()?.generation;
        Some(PipeId { slot: other, generation })
    }

    /// Returns wake-up eventfds for a pipe that is offered the direct path.
    ///
    /// # Errors
    /// `EAGAIN` without an offer; `EMFILE`.
    pub fn eventfds(&mut self, id: PipeId) -> Result<Eventfds> {
        self.slot(id).ok_or(Errno::AGAIN)?;
        let pair = self.offer_to(id.slot).ok_or(Errno::AGAIN)?;
        let dup = |fd: &Option<OwnedFd>| fd.as_ref().map(|fd| fcntl_dupfd_cloexec(fd, 0)).transpose();
        let [sender, receiver] = [dup(&pair.eventfds[0])?, dup(&pair.eventfds[1])?];
        Ok(match pair.receiver == id.slot {
            true => Eventfds { own: receiver, peer: sender },
            false => Eventfds { own: sender, peer: receiver },
        })
    }

    /// Opens the memory of the other end for a pipe that was opened here and is offered the direct path.
    ///
    /// # Errors
    /// `EAGAIN` without an offer. Errors of opening files.
    pub fn peer(&mut self, id: PipeId) -> Result<PeerOffer> {
        let (partner, eventfds) = (self.partner(id).ok_or(Errno::AGAIN)?, self.eventfds(id)?);
        let files = self.slot(partner).and_then(|slot| slot.files.as_ref()).ok_or(Errno::AGAIN)?;
        files.peer(eventfds)
    }

    /// Returns whether a pipe is on the direct path.
    pub fn is_direct(&self, id: PipeId) -> bool {
        let way = self.pipes.get(id.slot).and_then(|_| self.way_of(id.slot));
        way.is_some_and(|near| self.links.pairs[&near].is_direct())
    }

    /// Returns whether frames of a port are on the direct path.
    pub fn is_port_direct(&self, id: PortId) -> bool {
        let own = id.slot();
        let Port::Link(peer) = self.ports[own].port else { return false };
        [own, peer].iter().any(|near| self.links.pairs.get(near).is_some_and(Pair::is_direct))
    }

    /// Brings the counts of the pipes and ports of all direct paths up to date. Those of the two ends of a path agree.
    pub fn count_links(&mut self) {
        let ways: Vec<_> = self.links.pairs.keys().copied().collect();
        ways.into_iter().for_each(|near| self.count(near));
    }

    /// Brings the counts of the direct path of a pipe up to date, if it has one.
    pub fn count_link(&mut self, id: PipeId) {
        if let Some(near) = self.slot(id).is_some().then(|| self.way_of(id.slot)).flatten() {
            self.count(near);
        }
    }

    /// Offers, grants, recalls and ends direct paths. Returns whether there was work.
    pub(super) fn turn_links(&mut self) -> bool {
        let mut busy = self.judge_links();
        let mut ways = std::mem::take(&mut self.links.ways);
        ways.extend(self.links.pairs.keys());
        for &near in &ways {
            busy |= self.turn_link(near);
        }
        ways.clear();
        self.links.ways = ways;
        // A path that has ended makes place for another.
        self.judge_links();
        busy
    }

    fn judge_links(&mut self) -> bool {
        let busy = !self.links.stale.is_empty();
        while let Some(near) = self.links.stale.pop_first() {
            self.judge_way(near);
        }
        busy
    }

    fn turn_link(&mut self, near: usize) -> bool {
        let Some(pair) = self.links.pairs.get_mut(&near) else { return false };
        let number = pair.number;
        let Some(receiver) = self.pipes[pair.receiver].as_ref() else { return false };
        if self.shares.credit(receiver.account) <= 0 {
            return false;
        }
        self.shares.charge(receiver.account, LOOK_COST);
        if let Some(lent) = pair.lent {
            let given = receiver.end.given_back_directly();
            return given != lent.given && self.take_back(near, lent.at(given));
        }
        if pair.path == LinkPath::Offered {
            let Some(sender) = pair.sender else { return false };
            let has_mapped =
                |slot: &Option<Slot>| slot.as_ref().is_some_and(|slot| slot.end.has_mapped(number));
            if !receiver.end.has_mapped(number) || !has_mapped(&self.pipes[sender]) {
                return false;
            }
            // Taken out of the table, so that the other can be reached.
            let Some(mut slot) = self.pipes[sender].take() else { return false };
            if let Some(receiver) = self.pipes[pair.receiver].as_mut() {
                // Before the path is granted: its counts begin at any time after.
                receiver.link_counts = receiver.end.link_counts();
                pair.from = slot.end.grant(number, &mut receiver.end);
                pair.path = LinkPath::Direct;
                pair.eventfds = [None, None];
            }
            self.pipes[sender] = Some(slot);
            return true;
        }
        let Some(left) = receiver.end.left(number) else { return self.wake_without_eventfd(near) };
        let given = receiver.end.given_back_directly();
        self.count(near);
        let Some(mut pair) = self.links.pairs.remove(&near) else { return false };
        let lent = pair.lent_at(given, left);
        // A receiver that leaves unasked has its reasons, and is not offered that sender's ring again.
        let of_sender = pair.sender.and_then(|sender| Some(self.pipes[sender].as_ref()?.generation));
        let receiver = self.pipes[pair.receiver].as_mut();
        receiver.into_iter().for_each(|slot| {
            if pair.path == LinkPath::Direct {
                slot.stays = of_sender;
            }
            slot.end.set_link(number, LinkPath::Agent);
            slot.end.set_borrows(matches!(lent, Ok(Some(_))));
        });
        let from = lent.ok().flatten().map(|lent| lent.given);
        let sender = pair.sender.and_then(|sender| self.pipes[sender].as_mut());
        let went_on = sender.map_or(Ok(false), |slot| slot.end.go_on(number, pair.from, Some(left), from));
        match went_on.and_then(|is_held| Ok((is_held, lent?))) {
            Err(violation) => self.cut_off(pair.receiver, violation),
            Ok((is_held, Some(lent))) => {
                // Of a sender that has gone, or whose ring has other frames there by now, nothing is kept back.
                pair.sender = pair.sender.filter(|_| is_held);
                (pair.path, pair.lent) = (LinkPath::Agent, Some(lent));
                self.links.pairs.insert(near, pair);
            }
            Ok((_, None)) => {}
        }
        self.judge_port(near);
        true
    }

    /// Wakes a sender that has begun to wait in `poll` on a path that gave it no eventfd, and that its receiver has not left yet. The receiver's
    /// payer pays, since its word asks for each wake-up.
    fn wake_without_eventfd(&mut self, near: usize) -> bool {
        let Some(pair) = self.links.pairs.get_mut(&near) else { return false };
        let (Some(sender), LinkPath::Recalled, false) = (pair.sender, pair.path, pair.polls[0]) else {
            return false;
        };
        let Some(receiver) = self.pipes[pair.receiver].as_ref() else { return false };
        let given = receiver.end.given_back_directly();
        // Without credit another turn looks: one is due.
        if given == pair.given || self.shares.credit(receiver.account) <= 0 {
            return false;
        }
        pair.given = given;
        let Some(sender) = self.pipes[sender].as_ref().filter(|slot| slot.end.has_wake_fd()) else {
            return false;
        };
        sender.end.wake();
        self.shares.charge(receiver.account, WAKE_COST);
        true
    }

    /// Gives the sender the space of frames that were lent when its receiver has left the path, as far as they were given back.
    fn take_back(&mut self, near: usize, lent: std::result::Result<Option<Lent>, Violation>) -> bool {
        let Some(pair) = self.links.pairs.get_mut(&near) else { return false };
        let (sender, receiver) = (pair.sender, pair.receiver);
        pair.lent = lent.ok().flatten();
        let is_over = pair.lent.is_none();
        let from = pair.lent.map(|lent| lent.given);
        if is_over {
            self.links.pairs.remove(&near);
            self.judge_port(near);
        }
        if let Some(slot) = sender.and_then(|sender| self.pipes[sender].as_mut()) {
            slot.end.lend(from);
        }
        match lent {
            Err(violation) => self.cut_off(receiver, violation),
            Ok(_) => {
                let slot = self.pipes[receiver].as_mut();
                slot.into_iter().for_each(|slot| slot.end.set_borrows(!is_over));
            }
        }
        true
    }

    /// Withdraws or recalls the path of a way if it may not be, and offers one that may.
    fn judge_way(&mut self, near: usize) {
        step();
        let may = self.ends_of(near);
        if let Some(pair) = self.links.pairs.get(&near) {
            let (number, path, receiver, polls) = (pair.number, pair.path, pair.receiver, pair.polls);
            let Some(sender) = pair.sender.filter(|_| matches!(path, LinkPath::Offered | LinkPath::Direct))
            else {
                return;
            };
            let may_stay = may == Some((pair.far, sender, receiver));
            // A program that waits in `poll` since then has no eventfd.
            if may_stay && self.polls(sender, receiver) == polls {
                return;
            }
            if path == LinkPath::Direct {
                self.links.pairs.get_mut(&near).into_iter().for_each(|pair| pair.path = LinkPath::Recalled);
                self.set_link(receiver, number, LinkPath::Recalled);
                // The sender looks at what was given back before the receiver knew.
                self.pipes[sender].iter().for_each(|slot| slot.end.wake());
                return;
            }
            self.links.pairs.remove(&near);
            self.set_link(sender, number, LinkPath::Agent);
            self.set_link(receiver, number, LinkPath::Agent);
        }
        let Some((far, sender, receiver)) = may else { return };
        let Some(slot) = &self.pipes[sender] else { return };
        let (ring_bytes, grain) = (slot.end.shape().ring_bytes(), slot.end.shape().grain());
        let polls = self.polls(sender, receiver);
        // Without descriptors the agent passes frames on.
        let (Ok(from), Ok(to)) = (make_eventfd(polls[0]), make_eventfd(polls[1])) else {
            self.links.starved.insert(near);
            return;
        };
        self.links.number = self.links.number % LINK_NUMBER_MAX + 1;
        let number = self.links.number;
        let pair = Pair {
            number,
            far,
            sender: Some(sender),
            receiver,
            path: LinkPath::Offered,
            polls,
            eventfds: [from, to],
            given: 0,
            from: 0,
            ring_bytes,
            grain,
            lent: None,
        };
        self.links.pairs.insert(near, pair);
        self.set_link(sender, number, LinkPath::Offered);
        self.set_link(receiver, number, LinkPath::Offered);
    }

    /// Returns which of the two wait in `poll` or `epoll`.
    fn polls(&self, sender: usize, receiver: usize) -> [bool; 2] {
        [sender, receiver].map(|pipe| self.pipes[pipe].as_ref().is_some_and(|slot| slot.end.has_wake_fd()))
    }

    fn set_link(&mut self, pipe: usize, number: u32, path: LinkPath) {
        if let Some(slot) = &mut self.pipes[pipe] {
            slot.end.set_link(number, path);
        }
    }

    /// Returns the port at which a way ends, and the two pipes that may have a direct path on it.
    fn ends_of(&self, near: usize) -> Option<(usize, usize, usize)> {
        let needs_no_agent = |slot: &Slot| slot.end.is_open() && !self.taps.are_of_pipe(slot.generation);
        let Port::Link(far) = self.ports[near].port else { return None };
        let needs_agent = |port| self.taps.are_of(port) || self.mirrors.are_of(port);
        let (sender, receiver) = (self.ports[near].only_sender()?, self.ports[far].only_receiver()?);
        let (slot, other) = (self.pipes[sender].as_ref()?, self.pipes[receiver].as_ref()?);
        let may = needs_no_agent(slot)
            && needs_no_agent(other)
            && slot.ports == [near]
            && (slot.lease, slot.purse) == (None, None)
            && !needs_agent(near)
            && !needs_agent(far)
            && slot.end.shape().direction() == Direction::Send
            && other.end.shape().direction() == Direction::Receive
            && other.stays != Some(slot.generation)
            && slot.owner.is_some()
            && slot.owner == other.owner;
        may.then_some((far, sender, receiver))
    }

    /// Takes a pipe that goes out of its direct path.
    pub(super) fn unlink(&mut self, pipe: usize) {
        self.judge_pipe(pipe);
        self.links.stale.extend(self.links.starved.pop_first());
        let Some(near) = self.way_of(pipe) else { return };
        self.count(near);
        let Some(pair) = self.links.pairs.get_mut(&near) else { return };
        let (number, path, from, receiver) = (pair.number, pair.path, pair.from, pair.receiver);
        if pair.lent.is_some() {
            if receiver != pipe {
                // Another path begins when all are given back.
                pair.sender = None;
                return;
            }
            let sender = self.links.pairs.remove(&near).and_then(|pair| pair.sender);
            let sender = sender.and_then(|sender| self.pipes[sender].as_mut());
            sender.into_iter().for_each(|slot| slot.end.lend(None));
            return;
        }
        if receiver != pipe && path != LinkPath::Offered {
            // Its receiver reads what it has sent.
            (pair.sender, pair.path) = (None, LinkPath::Last);
            self.set_link(receiver, number, LinkPath::Last);
            return;
        }
        let other = if receiver == pipe { pair.sender } else { Some(receiver) };
        self.links.pairs.remove(&near);
        let Some(slot) = other.and_then(|other| self.pipes[other].as_mut()) else { return };
        match path {
            LinkPath::Offered => slot.end.set_link(number, LinkPath::Agent),
            // Frames that lay before the receiver are lost with it, as those in a ring of its own.
            _ => drop(slot.end.go_on(number, from, None, None)),
        }
    }

    /// Adds what the receiver of a path has counted since the last time.
    fn count(&mut self, near: usize) {
        let Some(&Pair { far, sender, receiver, path, .. }) = self.links.pairs.get(&near) else { return };
        let Some(slot) = self.pipes[receiver].as_mut().filter(|_| path != LinkPath::Offered) else { return };
        let now = slot.end.link_counts();
        let was = std::mem::replace(&mut slot.link_counts, now);
        let mut more = [0; 4];
        for (more, (now, was)) in more.iter_mut().zip(now.into_iter().zip(was)) {
            *more = Some(now.wrapping_sub(was)).filter(|&more| more <= COUNT_MAX).unwrap_or(0);
        }
        let [frames, bytes, dropped, foreign] = more;
        let add = |count: &mut u64, more| *count = count.saturating_add(more);
        add(&mut slot.counts.frames_received, frames);
        add(&mut slot.counts.bytes_received, bytes);
        self.ports[far].count_received_directly(frames, bytes);
        self.ports[near].count_sent_directly(frames, bytes);
        if let Some(slot) = sender.and_then(|sender| self.pipes[sender].as_mut()) {
            add(&mut slot.counts.frames_sent, frames);
            add(&mut slot.counts.bytes_sent, bytes);
            add(&mut slot.counts.frames_dropped, dropped);
            add(&mut slot.counts.frames_foreign, foreign);
        }
    }
}

/// Makes a wake-up eventfd, if one is `wanted`. The agent never reads or writes it.
fn make_eventfd(wanted: bool) -> Result<Option<OwnedFd>> {
    wanted.then(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)).transpose()
}

impl Pair {
    fn has(&self, pipe: usize) -> bool {
        self.receiver == pipe || self.sender == Some(pipe)
    }

    fn is_direct(&self) -> bool {
        !matches!(self.path, LinkPath::Offered | LinkPath::Agent)
    }

    /// Returns what is lent of the sender's ring by a receiver that has left at `left` and given back up to `given`.
    ///
    /// # Errors
    /// [`Violation::Index`] where that cannot be.
    fn lent_at(&self, given: u64, left: u64) -> std::result::Result<Option<Lent>, Violation> {
        if left.wrapping_sub(given) > self.ring_bytes {
            return Err(Violation::Index);
        }
        Lent { given: self.from, left, grain: self.grain }.at(given)
    }
}
