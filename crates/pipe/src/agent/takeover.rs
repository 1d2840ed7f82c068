//! State of pipes and direct paths for an agent of another process, which goes on with them.
//!
//! Ports and pipes are added there as any others ([`Agent::add_port`], [`Agent::adopt`]), and get their state then. The state is checked as if a
//! program had written it. Until [`Agent::begin`] nothing is written into memory of programs: the other agent may go on.
use super::end::{End, EndState};
use super::ports::bounded;
use super::{Agent, PipeCounts, PipeId, PortId};
use crate::memory::Resumed;
use pd_abi::pipe::LINK_NUMBER_MAX;
use pd_shm::ringer::WakeEnd;
use rustix::io::{Errno, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// State of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipeState {
    started: bool,
    end: EndState,
    counts: PipeCounts,
    link_counts: [u64; 4],
}

/// State of a direct path, with names of pipes and ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkState<Pipe = PipeId, Port = PortId> {
    /// Port at which the way begins.
    pub near: Port,
    /// The sender; none: it has gone.
    pub sender: Option<Pipe>,
    /// The receiver.
    pub receiver: Pipe,
    pub(super) number: u32,
    pub(super) path: u32,
    pub(super) polls: [bool; 2],
    pub(super) given: u64,
    pub(super) from: u64,
    pub(super) ring_bytes: u64,
    /// Positions up to which lent frames were given back, and where the path was left.
    pub(super) lent: Option<(u64, u64)>,
}

impl<Pipe, Port> LinkState<Pipe, Port> {
    /// Returns the state with other names of pipes and ports, if all have one.
    pub fn named<ToPipe, ToPort>(
        self,
        pipe: impl Fn(Pipe) -> Option<ToPipe>,
        port: impl FnOnce(Port) -> Option<ToPort>,
    ) -> Option<LinkState<ToPipe, ToPort>> {
        let Self { near, sender, receiver, number, path, polls, given, from, ring_bytes, lent } = self;
        let sender = match sender {
            Some(sender) => Some(pipe(sender)?),
            None => None,
        };
        let (near, receiver) = (port(near)?, pipe(receiver)?);
        Some(LinkState { near, sender, receiver, number, path, polls, given, from, ring_bytes, lent })
    }
}

impl PipeCounts {
    fn bounded(self) -> Self {
        Self {
            frames_received: bounded(self.frames_received),
            bytes_received: bounded(self.bytes_received),
            frames_sent: bounded(self.frames_sent),
            bytes_sent: bounded(self.bytes_sent),
            frames_dropped: bounded(self.frames_dropped),
            frames_foreign: bounded(self.frames_foreign),
            frames_refused: bounded(self.frames_refused),
            frames_unbound: bounded(self.frames_unbound),
            frames_lost: bounded(self.frames_lost),
            frames_unsent: bounded(self.frames_unsent),
            notifications: bounded(self.notifications),
        }
    }
}

impl Agent {
    /// Returns the state of a pipe that has not ended.
    pub fn state(&self, id: PipeId) -> Option<PipeState> {
        let slot = self.pipes.get(id.slot)?.as_ref().filter(|slot| slot.generation == id.generation)?;
        let started = slot.end.is_open();
        let state =
            PipeState { started, end: slot.end.state(), counts: slot.counts, link_counts: slot.link_counts };
        slot.end.ended().is_none().then_some(state)
    }

    /// Returns the doorbell of a pipe, and its end of a pair that wakes its program.
    pub fn descriptors(&self, id: PipeId) -> Option<(&std::os::fd::OwnedFd, Option<&Arc<WakeEnd>>)> {
        let slot = self.pipes.get(id.slot)?.as_ref().filter(|slot| slot.generation == id.generation)?;
        Some((&slot.doorbell, slot.end.wake_fd()))
    }

    /// Returns a key of a pipe. Pipes that are resumed in the order of their keys share the frames of a flow as these do.
    pub fn place_of(&self, id: PipeId) -> (u64, usize) {
        let port = self.pipes.get(id.slot).and_then(Option::as_ref).map(|slot| slot.ports[0]);
        port.and_then(|port| self.ports[port].place(id.slot)).unwrap_or((u64::MAX, id.slot))
    }

    /// Returns the direct paths, and the numbers of the last offer and of the last sleep.
    pub fn links(&self) -> (Vec<LinkState>, [u32; 2]) {
        (self.link_states(), [self.last_offer(), self.sleep])
    }

    /// Gives a pipe, which was just adopted, the state of another agent's. Starts the pipe if it had started there.
    ///
    /// # Errors
    /// `EINVAL` where no agent can have left that state; `EBADF` for a pipe that was closed.
    pub fn resume(&mut self, id: PipeId, state: &PipeState) -> Result<()> {
        let &PipeState { started, ref end, counts, link_counts } = state;
        let slot = self.slot(id).ok_or(Errno::BADF)?;
        slot.end.resume(end, slot.ports.len() as u16)?;
        (slot.counts, slot.link_counts) = (counts.bounded(), link_counts);
        if started {
            self.start(id)?;
            if let Some(slot) = &self.pipes[id.slot] {
                self.due.add(id.slot, slot);
            }
        }
        Ok(())
    }

    /// Goes on with a direct path of another agent, whose pipes were resumed.
    ///
    /// # Errors
    /// `EINVAL` where no agent can have left that state.
    pub fn resume_link(&mut self, state: LinkState) -> Result<()> {
        let pipes = [state.sender, Some(state.receiver)];
        let are_there = pipes.into_iter().flatten().all(|id| self.slot(id).is_some());
        match are_there {
            true => self.resume_pair(state),
            false => Err(Errno::INVAL),
        }
    }

    /// Numbers further offers and sleeps behind those of another agent: a program rings once for each sleep.
    ///
    /// # Errors
    /// `EINVAL` for impossible numbers.
    pub fn number_from(&mut self, [offer, sleep]: [u32; 2]) -> Result<()> {
        if offer > LINK_NUMBER_MAX {
            return Err(Errno::INVAL);
        }
        self.offer_after(offer);
        self.sleep = sleep;
        Ok(())
    }

    /// Begins to serve pipes of another agent, which touches them no more. All their programs are woken.
    pub fn begin(&mut self) {
        self.pipes.iter_mut().flatten().for_each(|slot| slot.end.begin());
        self.withdraw_offers();
    }

    /// Leaves all pipes and ports to another agent: nothing more is written into memory of programs.
    pub fn hand_over(&mut self) {
        self.pipes.iter_mut().flatten().for_each(|slot| slot.end.hand_over());
    }
}

/// Ends a pipe of another agent that this one does not go on with. The program sees `errno` after the announced bytes, unless the pipe has
/// ended before.
pub fn end_resumed(resumed: Resumed, wake_fd: Option<Arc<WakeEnd>>, errno: Errno) {
    let Resumed { shape, memory } = resumed;
    let mut end = End::new(shape, memory, 1, true);
    if let Some(wake_fd) = wake_fd {
        end.set_wake_fd(wake_fd);
    }
    end.begin();
    end.end(errno);
}
