//! The agent of pipes: a software NIC with many ports and many pipes.
//!
//! It is a model driven by turns ([`Agent::turn`]); [`Agent::run`] drives one by a thread. A turn looks at what programs say, delivers
//! what they send, fills their rings from the ports, and tells them what is due. It makes no system call but to wake programs that
//! sleep.
//!
//! A pipe belongs to one port. Frames of the port go to its receiving pipes by their flow, so that a flow keeps its order. A program that
//! breaks the protocol loses that pipe, and no other.
mod doorbells;
mod end;
mod lease;

pub use end::{Appended, End, HEADER_BYTES};
pub use lease::Lease;

use self::doorbells::Doorbells;
use crate::intake::{Sent, To};
use crate::memory::Offer;
use crate::port::Port;
use crate::shape::{Shape, Unit};
use crate::violation::Violation;
use pd_abi::pipe::PIPE_PORTS_MAX;
use pd_shm::Spin;
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::time::Duration;

/// Pipes of one agent, which has a descriptor for each: `EMFILE` beyond.
pub const PIPES_MAX: usize = 1024;
/// Frames that a port or a pipe may move in a turn, unless set otherwise. Fewer have many pipes told of few frames at a time.
const TURN_FRAMES: usize = 256;
/// Longest piece that is copied out at once.
const SCRATCH_BYTES: usize = 64 << 10;
/// Longest sleep of an agent that a stop flag ends.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A port of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortId(usize);

/// A pipe of an agent. An id of a pipe that was closed names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeId {
    slot: usize,
    generation: u64,
}

/// What went through a pipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeCounts {
    /// Frames, or pieces of bytes, that the program received.
    pub frames_received: u64,
    /// Frames, or pieces of bytes, that it sent and that were delivered.
    pub frames_sent: u64,
    /// Frames that it dropped by its verdict.
    pub frames_dropped: u64,
    /// Frames dropped because their verdict names no port of the pipe.
    pub frames_foreign: u64,
    /// Frames dropped because their source is not the sender's.
    pub frames_refused: u64,
    /// Times that the program was told of bytes.
    pub notifications: u64,
}

#[derive(Debug)]
struct Slot {
    end: End,
    doorbell: OwnedFd,
    generation: u64,
    /// The pipe's own port, then those that a verdict may name besides.
    ports: Vec<usize>,
    lease: Option<Lease>,
    violation: Option<Violation>,
    counts: PipeCounts,
}

#[derive(Debug)]
struct PortSlot {
    port: Port,
    /// What pipes carry here; settled by the first one.
    unit: Option<Unit>,
    /// Slots of the pipes that receive from this port, and are sealed.
    receivers: Vec<usize>,
    /// Pipes here that receive, sealed or not, and that send.
    ends: [usize; 2],
}

/// The software NIC.
#[derive(Debug)]
pub struct Agent {
    ports: Vec<PortSlot>,
    pipes: Vec<Option<Slot>>,
    generation: u64,
    doorbells: Doorbells,
    sleep: u32,
    burst: usize,
    scratch: Box<[u8]>,
}

impl Agent {
    /// An agent without ports and pipes.
    ///
    /// # Errors
    /// Those of making an epoll set.
    pub fn new() -> Result<Self> {
        Ok(Self {
            ports: Vec::new(),
            pipes: Vec::new(),
            generation: 0,
            doorbells: Doorbells::new()?,
            sleep: 0,
            burst: TURN_FRAMES,
            scratch: vec![0; SCRATCH_BYTES].into(),
        })
    }

    /// Sets how many frames a port or a pipe may move in a turn. With 1 a program is told of each frame, if it answers in time.
    pub fn set_burst(&mut self, frames: usize) {
        self.burst = frames.max(1);
    }

    /// Adds a port that is no link.
    pub fn add_port(&mut self, port: Port) -> PortId {
        self.ports.push(PortSlot { port, unit: None, receivers: Vec::new(), ends: [0; 2] });
        PortId(self.ports.len() - 1)
    }

    /// Adds the two ends of a link: what is sent at one is received at the other.
    pub fn add_link(&mut self) -> (PortId, PortId) {
        let next = self.ports.len();
        (self.add_port(Port::Link(next + 1)), self.add_port(Port::Link(next)))
    }

    /// The port of a number that this agent gave out.
    pub fn port(&mut self, id: PortId) -> &mut Port {
        &mut self.ports[id.0].port
    }

    /// Opens a pipe on `port`. Its verdicts may name `others` besides, the first as 1. Nothing moves before [`Self::seal`], which follows
    /// when the program has mapped the offer.
    ///
    /// # Errors
    /// `EINVAL` where port, unit and direction do not fit each other; `EADDRINUSE` where an unmarked stream has an end here already;
    /// `EMFILE` at [`PIPES_MAX`]; those of making memory.
    pub fn open(
        &mut self,
        shape: Shape,
        port: PortId,
        others: &[PortId],
        lease: Option<Lease>,
    ) -> Result<(PipeId, Offer)> {
        let ports: Vec<usize> = [&[port], others].concat().iter().map(|id| id.0).collect();
        self.check(shape, &ports, lease)?;
        let free = self.pipes.iter().position(Option::is_none).unwrap_or(self.pipes.len());
        if free >= PIPES_MAX {
            return Err(Errno::MFILE);
        }
        let (doorbell, theirs) = self.doorbells.add()?;
        let (end, offer) = match End::make(shape, ports.len() as u16, theirs) {
            Ok(made) => made,
            Err(errno) => {
                self.doorbells.remove(&doorbell);
                return Err(errno);
            }
        };
        self.settle(shape, &ports);
        self.generation += 1;
        for (count, has) in self.ports[port.0].ends.iter_mut().zip([shape.receives(), shape.sends()]) {
            *count += usize::from(has);
        }
        let slot = Slot {
            end,
            doorbell,
            generation: self.generation,
            ports,
            lease,
            violation: None,
            counts: PipeCounts::default(),
        };
        if free == self.pipes.len() {
            self.pipes.push(Some(slot));
        } else {
            self.pipes[free] = Some(slot);
        }
        Ok((PipeId { slot: free, generation: self.generation }, offer))
    }

    fn check(&self, shape: Shape, ports: &[usize], lease: Option<Lease>) -> Result<()> {
        let own = self.ports.get(ports[0]).ok_or(Errno::INVAL)?;
        let bytes = shape.unit() == Unit::Bytes;
        for (place, &number) in ports.iter().enumerate() {
            let port = self.ports.get(number).ok_or(Errno::INVAL)?;
            // What is sent into the far end of the own link would come back to this port's pipes.
            let loops = place > 0 && matches!(port.port, Port::Link(peer) if peer == ports[0]);
            if loops
                || port.unit.is_some_and(|unit| unit != shape.unit())
                || bytes && port.port.wants_frames()
            {
                return Err(Errno::INVAL);
            }
        }
        let nothing_comes = shape.receives() && matches!(own.port, Port::Sink(_));
        if nothing_comes || ports.len() > PIPE_PORTS_MAX || bytes && (lease.is_some() || ports.len() > 1) {
            return Err(Errno::INVAL);
        }
        let taken = shape.receives() && own.ends[0] > 0 || shape.sends() && own.ends[1] > 0;
        if bytes && taken {
            return Err(Errno::ADDRINUSE);
        }
        Ok(())
    }

    /// The unit of the ports that a pipe reaches is its unit from now on.
    fn settle(&mut self, shape: Shape, ports: &[usize]) {
        for &number in ports {
            self.ports[number].unit = Some(shape.unit());
            if let Port::Link(peer) = self.ports[number].port {
                self.ports[peer].unit = Some(shape.unit());
            }
        }
    }

    /// Seals the memory that the program of a pipe has mapped. From now on the pipe moves bytes.
    ///
    /// # Errors
    /// `EBADF` for a pipe that was closed; `EPROTO` where the program has taken pages away, which ends the pipe.
    pub fn seal(&mut self, id: PipeId) -> Result<()> {
        let slot = self.pipes.get_mut(id.slot).and_then(Option::as_mut);
        let slot = slot.filter(|slot| slot.generation == id.generation).ok_or(Errno::BADF)?;
        match slot.end.seal() {
            Ok(()) => {
                let receivers = &mut self.ports[slot.ports[0]].receivers;
                if slot.end.shape().receives() && slot.end.is_open() && !receivers.contains(&id.slot) {
                    receivers.push(id.slot);
                }
                Ok(())
            }
            Err(violation) => {
                self.cut_off(id.slot, violation);
                Err(Errno::PROTO)
            }
        }
    }

    /// Closes a pipe. Its program finds `ECONNRESET`; what it sent and was not delivered is gone.
    pub fn close(&mut self, id: PipeId) {
        if self.slot(id).is_some() {
            self.leave(id.slot);
            if let Some(slot) = self.pipes[id.slot].take() {
                self.doorbells.remove(&slot.doorbell);
            }
        }
    }

    /// What went through a pipe.
    pub fn counts(&mut self, id: PipeId) -> Option<PipeCounts> {
        let slot = self.slot(id)?;
        Some(PipeCounts { notifications: slot.end.notifications(), ..slot.counts })
    }

    /// Why a pipe was cut off.
    pub fn violation(&mut self, id: PipeId) -> Option<Violation> {
        self.slot(id)?.violation
    }

    fn slot(&mut self, id: PipeId) -> Option<&mut Slot> {
        self.pipes.get_mut(id.slot)?.as_mut().filter(|slot| slot.generation == id.generation)
    }

    fn leave(&mut self, number: usize) {
        let Some(slot) = &self.pipes[number] else { return };
        let port = &mut self.ports[slot.ports[0]];
        port.receivers.retain(|&receiver| receiver != number);
        // Left once only: a pipe that was cut off has left already.
        if slot.violation.is_none() {
            let shape = slot.end.shape();
            for (count, has) in port.ends.iter_mut().zip([shape.receives(), shape.sends()]) {
                *count -= usize::from(has);
            }
        }
    }

    fn cut_off(&mut self, number: usize, violation: Violation) {
        self.leave(number);
        if let Some(slot) = &mut self.pipes[number] {
            slot.violation = Some(violation);
            slot.end.end(Errno::PROTO);
        }
    }

    /// Looks at all programs and ports once, and moves what can be moved. Returns whether there was anything.
    pub fn turn(&mut self) -> bool {
        let mut busy = false;
        for number in 0..self.pipes.len() {
            busy |= self.look(number);
        }
        for number in 0..self.pipes.len() {
            busy |= self.drain(number);
        }
        for number in 0..self.ports.len() {
            busy |= self.fill(number);
        }
        for slot in self.pipes.iter_mut().flatten() {
            busy |= slot.end.tell();
        }
        busy
    }

    fn look(&mut self, number: usize) -> bool {
        let Some(slot) = self.pipes[number].as_mut().filter(|slot| slot.end.is_open()) else { return false };
        match slot.end.look() {
            Ok(news) => news,
            Err(violation) => {
                self.cut_off(number, violation);
                true
            }
        }
    }

    /// Delivers what a program sends.
    fn drain(&mut self, number: usize) -> bool {
        // Out of the table, so that others can be reached: no pipe delivers to itself.
        let Some(mut slot) = self.pipes[number].take() else { return false };
        let (mut busy, mut broken) = (false, None);
        for _ in 0..self.burst {
            match slot.end.sent() {
                Ok(None) => break,
                Ok(Some(sent)) => {
                    if !self.deliver(&mut slot, &sent) {
                        break;
                    }
                    busy = true;
                }
                Err(violation) => {
                    broken = Some(violation);
                    break;
                }
            }
        }
        self.pipes[number] = Some(slot);
        if let Some(violation) = broken {
            self.cut_off(number, violation);
        }
        busy
    }

    /// Delivers one frame, or a part of a piece. Returns false if it has to wait.
    fn deliver(&mut self, slot: &mut Slot, sent: &Sent) -> bool {
        let to = match sent.to {
            To::Port(to) => slot.ports[usize::from(to)],
            To::Dropped => {
                slot.counts.frames_dropped += 1;
                slot.end.take();
                return true;
            }
            To::Foreign => {
                slot.counts.frames_foreign += 1;
                slot.end.take();
                return true;
            }
        };
        if let Port::Link(peer) = self.ports[to].port {
            return self.pass(slot, sent, peer);
        }
        let copy = slot.end.copy_out(sent, &mut self.scratch);
        if slot.lease.is_some_and(|lease| !lease.allows(copy)) {
            slot.counts.frames_refused += 1;
        } else {
            self.ports[to].port.take(copy);
            slot.counts.frames_sent += 1;
        }
        slot.end.take();
        true
    }

    /// Passes one frame, or a part of a piece, to a pipe that receives from port `to`. Returns false if it has to wait.
    fn pass(&mut self, slot: &mut Slot, sent: &Sent, to: usize) -> bool {
        let receiver = match self.ports[to].receivers[..] {
            [] => return false,
            [only] => only,
            ref several => {
                let mut header = [0; HEADER_BYTES];
                several[spread(slot.end.copy_out(sent, &mut header), several.len())]
            }
        };
        let Some(receiver) = &mut self.pipes[receiver] else { return false };
        let mut sent = *sent;
        if slot.end.shape().unit() == Unit::Bytes {
            sent.length = sent.length.min(receiver.end.room() as usize);
        }
        let lease = slot.lease;
        match receiver.end.append_from(&slot.end, &sent, |copy| lease.is_none_or(|lease| lease.allows(copy)))
        {
            Appended::Full => return false,
            Appended::Refused => slot.counts.frames_refused += 1,
            Appended::Done => {
                slot.counts.frames_sent += 1;
                receiver.counts.frames_received += 1;
            }
        }
        slot.end.take_part(sent.length);
        true
    }

    /// Fills the rings of a port's pipes from its source.
    fn fill(&mut self, number: usize) -> bool {
        let PortSlot { port, receivers, .. } = &mut self.ports[number];
        let mut busy = false;
        for _ in 0..self.burst {
            if receivers.is_empty() {
                break;
            }
            let Some(frame) = port.peek() else { break };
            let receiver = if receivers.len() == 1 { 0 } else { spread(frame, receivers.len()) };
            let Some(slot) = &mut self.pipes[receivers[receiver]] else { break };
            if !slot.end.append(frame) {
                break;
            }
            slot.counts.frames_received += 1;
            port.advance();
            busy = true;
        }
        busy
    }

    /// Sleeps until a program rings, at most `timeout`, unless a last look finds something to do.
    pub fn wait(&mut self, timeout: Duration) {
        self.sleep = self.sleep.wrapping_add(1).max(1);
        let sleep = self.sleep;
        self.ask_wakeup(|slot| if slot.end.waits() { sleep } else { 0 });
        // SYNC POINT: pipe-need-wakeup
        fence(Ordering::SeqCst);
        if !self.turn() {
            self.doorbells.wait(timeout);
        }
        self.ask_wakeup(|_| 0);
    }

    fn ask_wakeup(&self, sleep: impl Fn(&Slot) -> u32) {
        for slot in self.pipes.iter().flatten().filter(|slot| slot.end.is_open()) {
            slot.end.ask_wakeup(sleep(slot));
        }
    }

    /// Takes turns until `stop`, and sleeps where there is nothing to do.
    pub fn run(&mut self, stop: &AtomicBool) {
        let mut spin = Spin::new(Spin::LIMIT_DEFAULT);
        while !stop.load(Ordering::Acquire) {
            if !self.turn() && !spin.until(|| self.turn()) {
                self.wait(SLEEP_MAX);
                spin.slept();
            }
        }
    }
}

/// Which of `count` pipes a frame's flow goes to: by addresses and ports of IPv4, or by MAC addresses.
fn spread(header: &[u8], count: usize) -> usize {
    /// Odd, and without a pattern in its bits: the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let word = |at: usize| {
        header.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes).into())
    };
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let ipv4 = header.get(12..15) == Some(&[8, 0, 0x45]);
    // Only the first piece of a datagram has ports.
    let whole = word(20) >> 16 & 0x3fff == 0;
    let hash = match (ipv4, whole) {
        (true, true) => [word(26), word(30), word(34)].into_iter().fold(0, mix),
        (true, false) => [word(26), word(30)].into_iter().fold(0, mix),
        _ => [word(0), word(4), word(8)].into_iter().fold(0, mix),
    };
    (((hash >> 32) * count as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_spread_over_pipes_and_stay_where_they_are() {
        let mut frame = [0u8; 64];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        let mut hit = [0u32; 8];
        for port in 0..800u16 {
            frame[34..36].copy_from_slice(&port.to_be_bytes());
            hit[spread(&frame, 8)] += 1;
        }
        assert!(hit.iter().all(|&count| (50..200).contains(&count)), "{hit:?}");
        // Fragments have no ports.
        frame[20] = 0x20;
        let of = |port: u8| spread(&[&frame[..35], &[port], &frame[36..]].concat(), 8);
        assert!((0..100).all(|port| of(port) == of(0)));
        assert_eq!(spread(&[], 3), spread(&[], 3));
    }
}
