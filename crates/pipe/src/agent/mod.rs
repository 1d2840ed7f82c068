//! The agent of pipes: a software NIC with many ports and many pipes.
//!
//! The model is driven by turns ([`Agent::turn`]); [`Agent::run`] drives one by a thread. A turn reads programs' words, delivers
//! frames that they send, fills their rings from the ports, and notifies them. The only system calls of a turn wake programs that
//! sleep.
//!
//! A pipe belongs to one port. Frames of the port go to its receiving pipes by their [`Flow`], so that a flow keeps its order. A program that
//! breaks the protocol loses that pipe, and no other.
mod doorbells;
mod due;
mod end;
mod groups;
mod lease;
mod link;
mod mirror;
mod ports;
mod shares;
mod steps;
mod takeover;
mod tap;
mod turns;

pub use end::HEADER_BYTES;
pub use lease::Lease;
pub use ports::{PortCounts, PortId};
pub use takeover::{end_resumed, LinkState, PipeState};
pub use tap::{Record, TapCounts, TapId, Tapped, Way, TAPS_MAX};

use self::doorbells::Doorbells;
use self::due::Due;
use self::end::End;
use self::link::Links;
use self::mirror::Mirrors;
use self::ports::PortSlot;
use self::shares::{Shares, CHANGE_COST};
use self::tap::Taps;
use crate::flow::Flow;
use crate::memory::{Files, Made, Offer};
use crate::port::Port;
use crate::shape::{Shape, Unit};
use crate::violation::Violation;
use pd_abi::pipe::PIPE_PORTS_MAX;
use pd_shm::ringer::WakeEnd;
use rustix::io::{Errno, Result};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Most pipes of one agent, which has a descriptor for each: `EMFILE` beyond.
pub const PIPES_MAX: usize = 1024;
/// Default of the frames that a port or a pipe may move in a turn. With fewer, many pipes get notifications for few frames each.
const TURN_FRAMES: usize = 256;
/// Most bytes that are copied out at once.
const SCRATCH_BYTES: usize = 64 << 10;
/// Payer of pipes that have no other.
const NOBODY: u64 = u64::MAX;

/// A pipe of an agent. The id of a closed pipe names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PipeId {
    slot: usize,
    generation: u64,
}

/// Counts of a pipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipeCounts {
    /// Frames, or pieces of bytes, that the program received.
    pub frames_received: u64,
    /// Bytes of these.
    pub bytes_received: u64,
    /// Frames, or pieces of bytes, that the program sent and that were delivered.
    pub frames_sent: u64,
    /// Bytes of these.
    pub bytes_sent: u64,
    /// Frames that the program dropped by its verdict.
    pub frames_dropped: u64,
    /// Frames dropped because their verdict names no port of the pipe.
    pub frames_foreign: u64,
    /// Frames dropped because their source address is not in the lease.
    pub frames_refused: u64,
    /// Sent frames that no pipe at the other end of a link is bound to.
    pub frames_unbound: u64,
    /// Frames of a port that leads out for which the pipe's ring had no room.
    pub frames_lost: u64,
    /// Frames sent to a port that leads out and that could not leave.
    pub frames_unsent: u64,
    /// Notifications of bytes.
    pub notifications: u64,
}

/// The ports of a pipe, and the frames that it receives and may send.
#[derive(Clone, Debug)]
pub struct Route {
    /// The pipe's own port.
    pub port: PortId,
    /// Further ports that its verdicts may name, the first as 1.
    pub others: Vec<PortId>,
    /// Frames of its port that it receives.
    pub flow: Flow,
    /// Source addresses of sent frames; none: any.
    pub lease: Option<Lease>,
}

impl Route {
    /// Makes a route to one port, with all of its frames.
    pub fn to(port: PortId) -> Self {
        Self { port, others: Vec::new(), flow: Flow::default(), lease: None }
    }
}

/// Frames and bytes that pipes with the same purse may send. The last frame may exceed the bytes: a debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: i64,
}

impl Tokens {
    /// Unlimited tokens.
    pub const ALL: Self = Self { frames: u64::MAX, bytes: i64::MAX };

    fn are_there(&self) -> bool {
        self.frames > 0 && self.bytes > 0
    }
}

#[derive(Debug)]
struct Slot {
    end: End,
    doorbell: OwnedFd,
    generation: u64,
    /// The pipe's own port, then the further ports that a verdict may name.
    ports: Vec<usize>,
    flow: Flow,
    lease: Option<Lease>,
    violation: Option<Violation>,
    counts: PipeCounts,
    /// Purse that pays for sent frames; none: they are unlimited.
    purse: Option<usize>,
    /// Account that pays for the agent's time.
    account: usize,
    /// Files of a pipe that was opened here.
    files: Option<Files>,
    /// Pipes of the same owner may share memory.
    owner: Option<u64>,
    /// Generation of the sender whose direct path the program has left unasked.
    stays: Option<u64>,
    /// The program's counts of direct paths, as far as they are among `counts`.
    link_counts: [u64; 4],
    /// Place among the agent's senders.
    sender: usize,
    /// Set if the program's words were looked at in this turn because there was no room.
    has_looked: bool,
}

impl Slot {
    #[inline]
    fn sent(&mut self, len: usize) {
        self.counts.frames_sent += 1;
        self.counts.bytes_sent += len as u64;
    }

    #[inline]
    fn received(&mut self, len: usize) {
        self.counts.frames_received += 1;
        self.counts.bytes_received += len as u64;
    }
}

/// The software NIC.
#[derive(Debug)]
pub struct Agent {
    ports: Vec<PortSlot>,
    pipes: Vec<Option<Slot>>,
    /// Numbers of closed pipes.
    free: Vec<usize>,
    generation: u64,
    doorbells: Doorbells,
    taps: Taps,
    mirrors: Mirrors,
    links: Links,
    /// Tokens, by purse.
    purses: Vec<Tokens>,
    shares: Shares,
    /// Pipes whose programs send.
    senders: Vec<usize>,
    /// Place among these of the one that is drained first.
    first: usize,
    /// Pipes whose programs only receive, and that have news or wait for room.
    due: Due,
    /// Pipes cut off that were not reported yet.
    broken: Vec<PipeId>,
    /// See [`Self::take_gone`].
    gone: Vec<PortId>,
    sleep: u32,
    burst: usize,
    scratch: Box<[u8]>,
}

impl Agent {
    /// Makes an agent without ports and pipes.
    ///
    /// # Errors
    /// Errors of making an epoll set.
    pub fn new() -> Result<Self> {
        Ok(Self {
            ports: Vec::new(),
            pipes: Vec::new(),
            free: Vec::new(),
            generation: 0,
            doorbells: Doorbells::new()?,
            taps: Taps::default(),
            mirrors: Mirrors::default(),
            links: Links::default(),
            purses: Vec::new(),
            shares: Shares::default(),
            senders: Vec::new(),
            first: 0,
            due: Due::default(),
            broken: Vec::new(),
            gone: Vec::new(),
            sleep: 0,
            burst: TURN_FRAMES,
            scratch: vec![0; SCRATCH_BYTES].into(),
        })
    }

    /// Sets the number of frames that a port or a pipe may move in a turn. With 1, a program that answers in time gets a
    /// notification for each frame.
    pub fn set_burst(&mut self, frames: usize) {
        self.burst = frames.max(1);
    }

    /// Opens a pipe on `port`. The pipe's verdicts may name `others`, too, the first as 1. Nothing moves before [`Self::seal`], which
    /// follows when the program has mapped the offer.
    ///
    /// # Errors
    /// Errors of [`Self::adopt`], and of making memory.
    pub fn open(
        &mut self,
        shape: Shape,
        port: PortId,
        others: &[PortId],
        lease: Option<Lease>,
    ) -> Result<(PipeId, Offer)> {
        let route = Route { others: others.to_vec(), lease, ..Route::to(port) };
        self.place(shape, &route)?;
        let (made, files, offer) = Made::new(shape)?;
        let id = self.adopt(made, &route)?;
        if let Some(slot) = self.slot(id) {
            slot.files = Some(files);
        }
        Ok((id, offer))
    }

    /// Adds a pipe that was made elsewhere. Nothing moves before [`Self::start`].
    ///
    /// # Errors
    /// `EINVAL` where ports, unit, direction and flow do not fit each other. `EADDRINUSE` where an unmarked stream has an end here already.
    /// `ENOSPC` where the port cannot tell one more flow apart. `EMFILE` at [`PIPES_MAX`]. Errors of `epoll_ctl`.
    pub fn adopt(&mut self, made: Made, route: &Route) -> Result<PipeId> {
        let Made { shape, memory, doorbell, is_anothers } = made;
        let (number, ports) = self.place(shape, route)?;
        self.doorbells.add(&doorbell)?;
        self.generation += 1;
        self.ports[ports[0]].enter(shape, route.flow);
        let account = self.shares.enter(NOBODY);
        let slot = Slot {
            end: End::new(shape, memory, ports.len() as u16, is_anothers),
            doorbell,
            generation: self.generation,
            ports,
            flow: route.flow,
            lease: route.lease,
            violation: None,
            counts: PipeCounts::default(),
            purse: None,
            account,
            files: None,
            owner: None,
            stays: None,
            link_counts: [0; 4],
            sender: self.senders.len(),
            has_looked: false,
        };
        if shape.sends() {
            self.senders.push(number);
        }
        if number == self.pipes.len() {
            self.pipes.push(Some(slot));
        } else {
            self.free.pop();
            self.pipes[number] = Some(slot);
        }
        let id = PipeId { slot: number, generation: self.generation };
        self.reach(number, true);
        self.judge_pipe(id.slot);
        Ok(id)
    }

    /// Returns a free place for a pipe, and the slots of its ports.
    fn place(&self, shape: Shape, route: &Route) -> Result<(usize, Vec<usize>)> {
        let ports: Vec<usize> = [route.port].iter().chain(&route.others).map(|id| id.slot()).collect();
        self.check(shape, &ports, route)?;
        match self.free.last().copied().unwrap_or(self.pipes.len()) {
            PIPES_MAX.. => Err(Errno::MFILE),
            number => Ok((number, ports)),
        }
    }

    fn check(&self, shape: Shape, ports: &[usize], route: &Route) -> Result<()> {
        let own = self.ports.get(ports[0]).filter(|port| !port.is_free()).ok_or(Errno::INVAL)?;
        let bytes = shape.unit() == Unit::Bytes;
        for (place, &number) in ports.iter().enumerate() {
            let port = self.ports.get(number).filter(|port| !port.is_free()).ok_or(Errno::INVAL)?;
            // Frames sent into the far end of the own link would come back to this port's pipes.
            let loops = place > 0 && matches!(port.port, Port::Link(peer) if peer == ports[0]);
            let mirrors = port.is_mirror() && (place > 0 || shape.sends());
            if loops
                || mirrors
                || port.unit.is_some_and(|unit| unit != shape.unit())
                || bytes && port.port.wants_frames()
            {
                return Err(Errno::INVAL);
            }
        }
        let nothing_comes = shape.receives() && matches!(own.port, Port::Sink(_));
        let flow = &route.flow;
        let chosen = !flow.is_any() && (bytes || !shape.receives());
        let of_frames = route.lease.is_some() || ports.len() > 1;
        if nothing_comes || ports.len() > PIPE_PORTS_MAX || bytes && of_frames || chosen || !flow.is_sound() {
            return Err(Errno::INVAL);
        }
        if bytes && own.is_taken(shape) {
            return Err(Errno::ADDRINUSE);
        }
        if shape.receives() && !own.has_place_for(flow) {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }

    /// Tells the ports that a pipe reaches, and the other ends of links, whether it does.
    fn reach(&mut self, number: usize, reaches: bool) {
        let Some(slot) = &self.pipes[number] else { return };
        let shape = slot.end.shape();
        for &port in &slot.ports {
            let peer = match self.ports[port].port {
                Port::Link(peer) => Some(peer),
                _ => None,
            };
            for reached in [Some(port), peer].into_iter().flatten() {
                match reaches {
                    true => self.ports[reached].reach(shape.unit()),
                    false => self.ports[reached].reach_no_more(),
                }
            }
            self.ports[port].set_sends(number, reaches && shape.sends());
        }
    }

    /// Seals the memory of a pipe that was opened here, after its program has mapped it, and starts the pipe.
    ///
    /// # Errors
    /// `EBADF` for a pipe that was closed; `EPROTO` where the program has taken pages away, which ends the pipe.
    pub fn seal(&mut self, id: PipeId) -> Result<()> {
        let slot = self.slot(id).ok_or(Errno::BADF)?;
        match slot.files.as_ref().map(Files::seal) {
            Some(Err(violation)) => {
                self.cut_off(id.slot, violation);
                Err(Errno::PROTO)
            }
            _ => self.start(id),
        }
    }

    /// Starts a pipe whose memory is sealed: frames of its port that come from now on may be its own.
    ///
    /// # Errors
    /// `EBADF` for a pipe that was closed; the reason of the end of one that has ended.
    pub fn start(&mut self, id: PipeId) -> Result<()> {
        self.judge_pipe(id.slot);
        let slot = self.slot(id).ok_or(Errno::BADF)?;
        if let Some(errno) = slot.end.ended() {
            return Err(errno);
        }
        slot.end.start();
        let account = slot.account;
        if slot.end.shape().receives() {
            let (port, flow) = (slot.ports[0], slot.flow);
            self.ports[port].admit(id.slot, flow);
            self.look_who_watches(port);
        }
        self.shares.charge(account, CHANGE_COST);
        Ok(())
    }

    /// Ends a pipe for `errno`, which its program sees after the announced bytes. The pipe's counts stay until it is closed.
    pub fn end(&mut self, id: PipeId, errno: Errno) {
        if self.slot(id).is_some() {
            self.leave(id.slot);
            if let Some(slot) = self.slot(id) {
                slot.end.end(errno);
            }
        }
    }

    /// Sets the agent's end of a pair ([`pd_shm::wake::pair`]) by which a pipe wakes a program that waits in `poll` or `epoll`. A byte is sent with
    /// each ring of the program's doorbell.
    pub fn set_wake_fd(&mut self, id: PipeId, wake_fd: Arc<WakeEnd>) {
        self.judge_pipe(id.slot);
        if let Some(slot) = self.slot(id) {
            slot.end.set_wake_fd(wake_fd);
        }
    }

    /// Returns the pipes cut off since the last call.
    pub fn take_broken(&mut self) -> Vec<PipeId> {
        std::mem::take(&mut self.broken)
    }

    /// Sets the source addresses of frames that a pipe sends from now on; none: any.
    pub fn set_lease(&mut self, id: PipeId, lease: Option<Lease>) {
        self.judge_pipe(id.slot);
        if let Some(slot) = self.slot(id) {
            slot.lease = lease;
        }
    }

    /// Sets the purse that pays for a pipe's sends; none: they are unlimited.
    pub fn set_purse(&mut self, id: PipeId, purse: Option<usize>) {
        self.judge_pipe(id.slot);
        if let Some(slot) = self.slot(id) {
            slot.purse = purse;
        }
    }

    /// Sets the payer of the agent's time for a pipe. Payers share that time equally, however many pipes each has.
    pub fn set_payer(&mut self, id: PipeId, payer: u64) {
        let account = self.shares.enter(payer);
        let previous = self.slot(id).map(|slot| std::mem::replace(&mut slot.account, account));
        self.shares.leave(previous.unwrap_or(account));
    }

    /// Fills a purse. Returns the tokens that were left in it.
    pub fn fill_purse(&mut self, purse: usize, tokens: Tokens) -> Tokens {
        if self.purses.len() <= purse {
            self.purses.resize(purse + 1, Tokens::ALL);
        }
        std::mem::replace(&mut self.purses[purse], tokens)
    }

    /// Returns whether a pipe has bytes to send and waits for tokens.
    pub fn lacks_tokens(&self) -> bool {
        self.senders.iter().filter_map(|&number| self.pipes[number].as_ref()).any(|slot| {
            let purse = slot.purse.and_then(|purse| self.purses.get(purse));
            slot.end.is_open() && slot.end.has_sent() && purse.is_some_and(|tokens| !tokens.are_there())
        })
    }

    /// Watches a descriptor, whose edges end a sleep of the agent ([`Self::wait`]).
    ///
    /// # Errors
    /// Errors of `epoll_ctl`.
    pub fn watch(&self, fd: impl AsFd) -> Result<()> {
        self.doorbells.add(fd)
    }

    /// Closes a pipe. Its program sees `ECONNRESET`; sent frames that were not delivered are lost.
    pub fn close(&mut self, id: PipeId) {
        if self.slot(id).is_some() {
            self.leave(id.slot);
            if let Some(slot) = self.pipes[id.slot].take() {
                self.shares.leave(slot.account);
                if slot.end.shape().sends() {
                    self.senders.swap_remove(slot.sender);
                    let moved = self.senders.get(slot.sender).and_then(|&moved| self.pipes[moved].as_mut());
                    moved.into_iter().for_each(|moved| moved.sender = slot.sender);
                }
                self.free.push(id.slot);
                self.doorbells.remove(&slot.doorbell);
            }
            self.taps.end(|of| of == Tapped::Pipe(id));
        }
    }

    /// Returns the counts of a pipe. What went directly is counted as of the last [`Self::count_links`].
    pub fn counts(&self, id: PipeId) -> Option<PipeCounts> {
        let slot = self.pipes.get(id.slot)?.as_ref().filter(|slot| slot.generation == id.generation)?;
        Some(PipeCounts { notifications: slot.end.notifications(), ..slot.counts })
    }

    /// Returns the reason why a pipe was cut off.
    pub fn violation(&mut self, id: PipeId) -> Option<Violation> {
        self.slot(id)?.violation
    }

    fn slot(&mut self, id: PipeId) -> Option<&mut Slot> {
        self.pipes.get_mut(id.slot)?.as_mut().filter(|slot| slot.generation == id.generation)
    }

    /// Removes a pipe from its port. Once only: a pipe that has ended has left already.
    fn leave(&mut self, number: usize) {
        let Some(slot) = self.pipes[number].as_ref().filter(|slot| slot.end.ended().is_none()) else {
            return;
        };
        let (port, shape, flow, account) = (slot.ports[0], slot.end.shape(), slot.flow, slot.account);
        self.unlink(number);
        self.ports[port].leave(number, shape, flow);
        self.reach(number, false);
        self.look_who_watches(port);
        self.shares.charge(account, CHANGE_COST);
    }

    fn look_who_watches(&mut self, port: usize) {
        let is_tapped = self.taps.are_of(port);
        self.ports[port].set_watched(is_tapped);
    }

    fn cut_off(&mut self, number: usize, violation: Violation) {
        self.leave(number);
        if let Some(slot) = &mut self.pipes[number] {
            slot.violation = Some(violation);
            slot.end.end(Errno::PROTO);
            self.broken.push(PipeId { slot: number, generation: slot.generation });
        }
    }
}

#[cfg(test)]
mod tests;
