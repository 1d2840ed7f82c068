//! Ports of an agent: choice of the pipe for a frame, and counts.
use super::groups::{Choice, Groups};
use super::{Agent, PipeId, Tapped, PIPES_MAX};
use crate::flow::Flow;
use crate::port::{Device, Port, Taken};
use crate::shape::{Shape, Unit};
use foldhash::fast::RandomState;
use rustix::io::{Errno, Result};
use serde::{Deserialize, Serialize};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

/// A port of an agent. The id of a port that was removed may name another later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortId(usize);

impl PortId {
    pub(super) fn at(slot: usize) -> Self {
        Self(slot)
    }

    pub(super) fn slot(self) -> usize {
        self.0
    }
}

/// Returns a count that may come from a program, and to which more can be added.
pub(super) fn bounded(count: u64) -> u64 {
    count.min(u64::MAX / 2)
}

/// Counts of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortCounts {
    /// Frames that its pipes received.
    pub frames_received: u64,
    /// Bytes of these.
    pub bytes_received: u64,
    /// Frames that pipes sent to it.
    pub frames_sent: u64,
    /// Bytes of these.
    pub bytes_sent: u64,
    /// Frames for which no pipe is bound, dropped.
    pub frames_unbound: u64,
    /// Of a port that leads out: frames for which a pipe had no room, and frames lost before the agent saw them.
    pub frames_lost: u64,
    /// Of a port that leads out: frames that pipes sent and that could not leave.
    pub frames_unsent: u64,
}

#[derive(Debug)]
pub(super) struct PortSlot {
    pub(super) port: Port,
    /// Unit of the pipes that reach the port; settled by the first one, until the last has gone.
    pub(super) unit: Option<Unit>,
    groups: Groups,
    /// Numbers of the port's receiving pipes, started or not, and of its sending pipes.
    ends: [usize; 2],
    /// Pipes that have not ended and reach the port, also from the other end of a link; one that reaches it twice counts twice.
    reached: usize,
    /// Pipes that have not ended and may send to the port.
    senders: BTreeSet<usize>,
    /// Flows of the port's receiving pipes, started or not, and the number of these.
    flows: HashMap<Flow, usize, RandomState>,
    counts: PortCounts,
    /// Set when the port was removed.
    free: bool,
    /// Set when the other side of a port that leads out has gone.
    has_gone: bool,
}

impl PortSlot {
    fn new(port: Port) -> Self {
        Self {
            port,
            unit: None,
            groups: Groups::default(),
            ends: [0; 2],
            reached: 0,
            senders: BTreeSet::new(),
            flows: HashMap::default(),
            counts: PortCounts::default(),
            free: false,
            has_gone: false,
        }
    }

    pub(super) fn is_free(&self) -> bool {
        self.free
    }

    /// Counts a pipe of this port.
    pub(super) fn enter(&mut self, shape: Shape, flow: Flow) {
        for (count, has) in self.ends.iter_mut().zip([shape.receives(), shape.sends()]) {
            *count += usize::from(has);
        }
        if shape.receives() {
            *self.flows.entry(flow).or_default() += 1;
        }
    }

    /// Counts a pipe of this unit that reaches the port.
    pub(super) fn reach(&mut self, unit: Unit) {
        self.unit = Some(unit);
        self.reached += 1;
    }

    /// Counts a pipe less that reaches the port. The next after the last settles the unit.
    pub(super) fn reach_no_more(&mut self) {
        self.reached -= 1;
        if self.reached == 0 {
            self.unit = None;
        }
    }

    /// Sets whether a pipe may send to the port.
    pub(super) fn set_sends(&mut self, pipe: usize, sends: bool) {
        if sends {
            self.senders.insert(pipe);
        } else {
            self.senders.remove(&pipe);
        }
    }

    /// Returns the only pipe that may send to the port.
    pub(super) fn only_sender(&self) -> Option<usize> {
        self.senders.first().copied().filter(|_| self.senders.len() == 1)
    }

    /// Returns whether an unmarked stream of this shape has an end here already.
    pub(super) fn is_taken(&self, shape: Shape) -> bool {
        shape.receives() && self.ends[0] > 0 || shape.sends() && self.ends[1] > 0
    }

    /// Returns the place of a pipe among those that receive: see [`Groups::place`].
    pub(super) fn place(&self, pipe: usize) -> Option<(u64, usize)> {
        self.groups.place(pipe)
    }

    /// Adds a pipe that receives from now on.
    pub(super) fn admit(&mut self, pipe: usize, flow: Flow) {
        if self.groups.admit(pipe, flow) {
            self.bind();
        }
    }

    /// Tells a port that leads out, and can choose, the flows of its pipes, which are few.
    fn bind(&mut self) {
        if let Some(device) = self.port.device().filter(|device| device.flows_max() < PIPES_MAX) {
            device.bind(&self.groups.flows());
        }
    }

    /// Returns whether the port can tell the flow of one more receiving pipe apart.
    pub(super) fn has_place_for(&self, flow: &Flow) -> bool {
        let most = match &self.port {
            Port::Device(device) => device.flows_max(),
            _ => usize::MAX,
        };
        self.flows.len() < most || self.flows.contains_key(flow)
    }

    /// Returns whether the port is a mirror, to which nothing can be sent.
    pub(super) fn is_mirror(&self) -> bool {
        match &self.port {
            Port::Mirror => true,
            Port::Device(device) => device.is_mirror(),
            _ => false,
        }
    }

    /// Tells a mirror of its own frames whether anybody sees them.
    pub(super) fn set_watched(&mut self, is_tapped: bool) {
        let is_watched = is_tapped || !self.groups.is_empty();
        if let Port::Device(device) = &mut self.port {
            device.set_watched(is_watched);
        }
    }

    /// Prepares for a sleep. Returns whether another look is due soon.
    pub(super) fn rest(&mut self) -> bool {
        match &mut self.port {
            Port::Device(device) => device.rest(),
            _ => false,
        }
    }

    /// Returns whether the other side of a port that leads out has gone since the last call.
    fn goes(&mut self) -> bool {
        let Port::Device(device) = &mut self.port else { return false };
        let goes = !self.has_gone && device.has_gone();
        self.has_gone |= goes;
        goes
    }

    /// Returns whether the port loses frames for which a pipe has no room.
    pub(super) fn leads_out(&mut self) -> bool {
        self.port.device().is_some()
    }

    /// Ends a turn of a port. Returns whether another is due.
    pub(super) fn flush(&mut self) -> bool {
        match &mut self.port {
            Port::Device(device) => device.flush(),
            Port::Pcap(capture) => capture.has_skipped() && !self.groups.is_empty(),
            _ => false,
        }
    }

    /// Removes a pipe from this port.
    pub(super) fn leave(&mut self, pipe: usize, shape: Shape, flow: Flow) {
        if self.groups.leave(pipe) {
            self.bind();
        }
        for (count, has) in self.ends.iter_mut().zip([shape.receives(), shape.sends()]) {
            *count -= usize::from(has);
        }
        if let Entry::Occupied(mut pipes) = self.flows.entry(flow) {
            *pipes.get_mut() -= usize::from(shape.receives());
            if *pipes.get() == 0 {
                pipes.remove();
            }
        }
    }

    /// Returns the only pipe that receives from the port, if all frames are its own.
    pub(super) fn only_receiver(&self) -> Option<usize> {
        self.groups.only_receiver()
    }

    /// Finds the pipe for a frame. `header` is called only where it matters.
    #[inline]
    pub(super) fn choose<'a>(&self, header: impl FnOnce() -> &'a [u8]) -> Choice {
        self.groups.choose(header)
    }

    /// Returns the next frame that a pipe receives, other than from a link, and the pipe.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<(&[u8], Choice)> {
        // Frames of a port that leads out do not wait for a pipe.
        if self.groups.is_empty() && !matches!(self.port, Port::Device(_)) {
            return None;
        }
        let frame = self.port.peek()?;
        let choice = match self.groups.choose(|| frame) {
            Choice::Wait => Choice::Nobody,
            choice => choice,
        };
        Some((frame, choice))
    }

    /// Counts that frame, of `len` bytes, as received.
    #[inline]
    pub(super) fn advance(&mut self, len: usize) {
        self.port.advance();
        self.count_received(len);
    }

    /// Drops that frame, for which no pipe is bound.
    pub(super) fn drop_next(&mut self) {
        self.port.advance();
        self.drop_unbound();
    }

    /// Drops that frame, for which its pipe has no room.
    pub(super) fn lose_next(&mut self) {
        self.port.advance();
        self.counts.frames_lost += 1;
    }

    /// Counts a frame for which a pipe has no room.
    pub(super) fn lose(&mut self, frames: u64) {
        self.counts.frames_lost += frames;
    }

    pub(super) fn drop_unbound(&mut self) {
        self.counts.frames_unbound += 1;
    }

    /// Takes a frame or bytes that a pipe sent, a private copy, other than into a link.
    #[inline]
    pub(super) fn take(&mut self, bytes: &[u8]) -> Taken {
        let taken = self.port.take(bytes);
        match taken {
            Taken::Done => self.count_sent(bytes.len()),
            Taken::Lost => self.counts.frames_unsent += 1,
            Taken::Wait => {}
        }
        taken
    }

    #[inline]
    pub(super) fn count_received(&mut self, len: usize) {
        self.counts.frames_received += 1;
        self.counts.bytes_received += len as u64;
    }

    /// Counts frames that a pipe has received on the direct path, by its word.
    pub(super) fn count_received_directly(&mut self, frames: u64, bytes: u64) {
        self.counts.frames_received = self.counts.frames_received.saturating_add(frames);
        self.counts.bytes_received = self.counts.bytes_received.saturating_add(bytes);
    }

    /// Counts frames that a pipe has sent on the direct path, by its receiver's word.
    pub(super) fn count_sent_directly(&mut self, frames: u64, bytes: u64) {
        self.counts.frames_sent = self.counts.frames_sent.saturating_add(frames);
        self.counts.bytes_sent = self.counts.bytes_sent.saturating_add(bytes);
    }

    #[inline]
    pub(super) fn count_sent(&mut self, len: usize) {
        self.counts.frames_sent += 1;
        self.counts.bytes_sent += len as u64;
    }
}

impl Agent {
    /// Adds a port that is not a link.
    pub fn add_port(&mut self, port: Port) -> PortId {
        self.add(|_| port)
    }

    /// Adds a port that leads out. Edges of its descriptors end a sleep of the agent.
    ///
    /// # Errors
    /// Errors of `epoll_ctl`.
    pub fn add_device(&mut self, mut device: Box<dyn Device>) -> Result<PortId> {
        device.bind(&[]);
        for fd in device.descriptors() {
            self.doorbells.add(fd)?;
        }
        Ok(self.add(|_| Port::Device(device)))
    }

    /// Adds a port whose pipes receive copies of the frames of port `of`, both ways. The mirror has to be removed before that
    /// port.
    ///
    /// # Errors
    /// `EINVAL` where `of` is no port, or a mirror itself; `EMFILE` at 16 mirrors.
    pub fn add_mirror(&mut self, of: PortId) -> Result<PortId> {
        let own = self.ports.get(of.0).filter(|port| !port.free).ok_or(Errno::INVAL)?;
        if own.is_mirror() {
            return Err(Errno::INVAL);
        }
        self.mirrors.check()?;
        self.judge_port(of.0);
        let id = self.add(|_| Port::Mirror);
        self.mirrors.add(of.0, id.0);
        Ok(id)
    }

    /// Adds the two ends of a link: frames sent at one are received at the other.
    pub fn add_link(&mut self) -> (PortId, PortId) {
        let near = self.add(Port::Link);
        let far = self.add(|_| Port::Link(near.0));
        self.ports[near.0].port = Port::Link(far.0);
        (near, far)
    }

    fn add(&mut self, port: impl FnOnce(usize) -> Port) -> PortId {
        let place = self.ports.iter().position(PortSlot::is_free).unwrap_or(self.ports.len());
        let slot = PortSlot::new(port(place));
        if place == self.ports.len() {
            self.ports.push(slot);
        } else {
            self.ports[place] = slot;
        }
        PortId(place)
    }

    /// Removes a port, and of a link both ends. Pipes of the port, and those whose verdicts could name it, end with `ENODEV`. Returns the
    /// port, for further use.
    pub fn remove_port(&mut self, id: PortId) -> Option<Port> {
        let slot = self.ports.get(id.0).filter(|slot| !slot.free)?;
        let gone = match slot.port {
            Port::Link(peer) => vec![id.0, peer],
            _ => vec![id.0],
        };
        let leads_there = |ports: &[usize]| ports.iter().any(|port| gone.contains(port));
        let ends: Vec<_> = (self.pipes.iter().enumerate())
            .filter_map(|(slot, pipe)| pipe.as_ref().map(|pipe| (slot, pipe)))
            .filter(|(_, pipe)| leads_there(&pipe.ports))
            .map(|(slot, pipe)| PipeId { slot, generation: pipe.generation })
            .collect();
        ends.into_iter().for_each(|pipe| self.end(pipe, Errno::NODEV));
        for of in self.mirrors.remove(&gone) {
            self.judge_port(of);
        }
        self.taps.end(|of| matches!(of, Tapped::Port(id) if gone.contains(&id.slot())));
        for &number in &gone {
            self.ports[number].free = true;
        }
        if let Port::Device(device) = &self.ports[id.0].port {
            device.descriptors().into_iter().for_each(|fd| self.doorbells.remove(fd));
        }
        Some(std::mem::replace(&mut self.ports[id.0].port, Port::Sink(Default::default())))
    }

    /// Looks whether the other sides of ports that lead out are there. Returns whether one has gone.
    pub(super) fn look_who_has_gone(&mut self) -> bool {
        let before = self.gone.len();
        for (number, port) in self.ports.iter_mut().enumerate() {
            if port.goes() {
                self.gone.push(PortId(number));
            }
        }
        self.gone.len() > before
    }

    /// Returns ports whose other side has gone since the last call. They stay until they are removed.
    pub fn take_gone(&mut self) -> Vec<PortId> {
        std::mem::take(&mut self.gone)
    }

    /// Returns the port of a number that this agent gave out.
    pub fn port(&mut self, id: PortId) -> &mut Port {
        &mut self.ports[id.0].port
    }

    /// Goes on with the counts of another agent's port.
    pub fn resume_port_counts(&mut self, id: PortId, counts: PortCounts) {
        self.ports[id.0].counts = PortCounts {
            frames_received: bounded(counts.frames_received),
            bytes_received: bounded(counts.bytes_received),
            frames_sent: bounded(counts.frames_sent),
            bytes_sent: bounded(counts.bytes_sent),
            frames_unbound: bounded(counts.frames_unbound),
            frames_lost: bounded(counts.frames_lost),
            frames_unsent: bounded(counts.frames_unsent),
        };
    }

    /// Returns the counts of a port. [`Self::counts`] of a pipe brings those of its direct path up to date.
    pub fn port_counts(&self, id: PortId) -> PortCounts {
        let slot = &self.ports[id.0];
        let missed = match &slot.port {
            Port::Device(device) => device.missed(),
            _ => 0,
        };
        PortCounts { frames_lost: slot.counts.frames_lost + missed, ..slot.counts }
    }
}
