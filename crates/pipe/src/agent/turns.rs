//! Turns of the agent: each looks at programs and ports, moves frames, and notifies; and the sleep between turns.
use super::end::{Appended, End, HEADER_BYTES};
use super::groups::Choice;
use super::shares::{Shares, FRAME_COST, LOOK_COST, NEWS_COST, WAKE_COST};
use super::tap::Way;
use super::{Agent, Slot};
use crate::intake::{Sent, To};
use crate::port::{Port, Taken};
use crate::shape::Unit;
use crate::violation::Violation;
use pd_shm::Spin;
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::time::Duration;

/// Longest sleep after which the other side of a device may have missed a wake-up request.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Place of a due pipe whose lines are asked for, behind the one that is looked at.
const AHEAD: usize = 4;
/// Longest sleep of an agent that a stop flag ends.
const SLEEP_MAX: Duration = Duration::from_millis(100);

impl Slot {
    /// Appends a frame. Before one without room `is_lost`, the program's words are looked at: they are not if nothing was due to it.
    ///
    /// # Errors
    /// A violation, upon which the caller ends the pipe.
    #[inline]
    pub(super) fn append(
        &mut self,
        frame: &[u8],
        is_lost: bool,
        shares: &mut Shares,
    ) -> Result<bool, Violation> {
        if self.end.append(frame) {
            return Ok(true);
        }
        if !is_lost || self.has_looked || self.end.shape().sends() || shares.credit(self.account) <= 0 {
            return Ok(false);
        }
        self.has_looked = true;
        shares.charge(self.account, LOOK_COST + NEWS_COST);
        Ok(self.end.look()? && self.end.append(frame))
    }
}

impl Agent {
    /// Looks at all programs and ports once, and moves all that can be moved. Returns whether there was work.
    pub fn turn(&mut self) -> bool {
        self.shares.begin_turn();
        let mut busy = self.turn_links();
        for number in self.due.patrol(self.pipes.len()) {
            let receives = |slot: &Slot| !slot.end.shape().sends();
            // News of such a pipe is work only where frames follow, later in the turn.
            if self.pipes[number].as_ref().is_some_and(receives) {
                self.look(number);
            }
        }
        let mut senders = std::mem::take(&mut self.senders);
        for &number in &senders {
            busy |= self.look(number);
        }
        // Each pipe is the first in its turn, with first access to room and tokens.
        self.first = if self.first + 1 < senders.len() { self.first + 1 } else { 0 };
        for &number in senders[self.first..].iter().chain(&senders[..self.first]) {
            busy |= self.drain(number);
        }
        for number in 0..self.ports.len() {
            busy |= self.fill(number);
        }
        self.mirror();
        for &number in &senders {
            busy |= self.tell(number).0;
        }
        senders.append(&mut self.senders);
        self.senders = senders;
        let (mut due, mut stay) = (self.due.take(), 0);
        for at in 0..due.len() {
            let ahead = due.get(at + AHEAD).and_then(|&number| self.pipes[number].as_ref());
            ahead.into_iter().for_each(|slot| slot.end.prefetch());
            let number = due[at];
            busy |= self.look(number);
            let (announced, stays) = self.tell(number);
            busy |= announced;
            if !stays {
                self.due.forget(number);
            }
            due[stay] = number;
            stay += usize::from(stays);
        }
        due.truncate(stay);
        self.due.put_back(due);
        // The next turn has credit again.
        busy |= self.shares.is_any_spent();
        for port in &mut self.ports {
            busy |= port.flush();
        }
        busy | self.taps.turn()
    }

    /// Tells a program of what it is due. Returns whether it was, and whether there is more to tell.
    fn tell(&mut self, number: usize) -> (bool, bool) {
        let Some(slot) = &mut self.pipes[number] else { return (false, false) };
        let told = slot.end.tell();
        if told.rung {
            self.shares.charge(slot.account, WAKE_COST);
        }
        slot.has_looked = false;
        (told.announced, slot.end.is_open() && !slot.end.shape().sends() && slot.end.waits())
    }

    fn look(&mut self, number: usize) -> bool {
        let Some(slot) = self.pipes[number].as_mut().filter(|slot| slot.end.is_open()) else { return false };
        if self.shares.credit(slot.account) <= 0 {
            return false;
        }
        let looked = slot.end.look();
        let news = if looked == Ok(false) { 0 } else { NEWS_COST };
        self.shares.charge(slot.account, LOOK_COST + news);
        match looked {
            Ok(news) => news,
            Err(violation) => {
                self.cut_off(number, violation);
                true
            }
        }
    }

    /// Delivers frames or bytes that a program sends.
    fn drain(&mut self, number: usize) -> bool {
        if !self.pipes[number].as_ref().is_some_and(|slot| slot.end.has_sent()) {
            return false;
        }
        // Taken out of the table, so that other pipes can be reached: no pipe delivers to itself.
        let Some(mut slot) = self.pipes[number].take() else { return false };
        let (mut busy, mut broken) = (false, None);
        let (credit, mut cost) = (self.shares.credit(slot.account), 0);
        for _ in 0..self.burst {
            if cost >= credit {
                break;
            }
            let purse = slot.purse.and_then(|purse| self.purses.get(purse));
            if purse.is_some_and(|tokens| !tokens.are_there()) {
                break;
            }
            let before = (slot.counts.frames_sent, slot.counts.bytes_sent);
            match slot.end.sent() {
                Ok(None) => break,
                Ok(Some(sent)) => {
                    let copied = self.deliver(&mut slot, &sent);
                    cost += FRAME_COST + copied.unwrap_or(0) as i64;
                    if copied.is_none() {
                        break;
                    }
                    busy = true;
                    if let Some(tokens) = slot.purse.and_then(|purse| self.purses.get_mut(purse)) {
                        tokens.frames = tokens.frames.saturating_sub(slot.counts.frames_sent - before.0);
                        tokens.bytes -= (slot.counts.bytes_sent - before.1) as i64;
                    }
                }
                Err(violation) => {
                    broken = Some(violation);
                    break;
                }
            }
        }
        self.shares.charge(slot.account, cost);
        self.pipes[number] = Some(slot);
        if let Some(violation) = broken {
            self.cut_off(number, violation);
        }
        busy
    }

    /// Delivers one frame, or a part of a piece. Returns the bytes copied; none if it has to wait.
    fn deliver(&mut self, slot: &mut Slot, sent: &Sent) -> Option<usize> {
        let to = match sent.to {
            To::Port(to) => slot.ports[usize::from(to)],
            To::Dropped => {
                slot.counts.frames_dropped += 1;
                slot.end.take();
                return Some(0);
            }
            To::Foreign => {
                slot.counts.frames_foreign += 1;
                slot.end.take();
                return Some(0);
            }
        };
        if let Port::Link(peer) = self.ports[to].port {
            return self.pass(slot, sent, to, peer);
        }
        let copy = slot.end.copy_out(sent, &mut self.scratch);
        if slot.lease.is_some_and(|lease| !lease.allows(copy)) {
            slot.counts.frames_refused += 1;
        } else {
            match self.ports[to].take(copy) {
                Taken::Wait => return None,
                Taken::Lost => slot.counts.frames_unsent += 1,
                Taken::Done => {
                    slot.sent(copy.len());
                    if slot.end.shape().unit() == Unit::Frames {
                        self.taps.see(to, slot.generation, copy, Way::Out);
                        self.mirrors.see(to, copy);
                    }
                }
            }
        }
        let copied = copy.len();
        slot.end.take();
        Some(copied)
    }

    /// Passes one frame, or a part of a piece, into end `near` of a link, to a pipe that receives at the other end, `to`. Returns the bytes
    /// copied; none if it has to wait.
    fn pass(&mut self, slot: &mut Slot, sent: &Sent, near: usize, to: usize) -> Option<usize> {
        let mut header = [0; HEADER_BYTES];
        let receiver = match self.ports[to].choose(|| slot.end.copy_out(sent, &mut header)) {
            Choice::Pipe(receiver) => receiver,
            Choice::Wait => return None,
            Choice::Nobody => {
                self.ports[to].drop_unbound();
                slot.counts.frames_unbound += 1;
                slot.end.take();
                return Some(0);
            }
        };
        let number = receiver;
        let receiver = self.pipes[number].as_mut()?;
        self.due.add(number, receiver);
        let mut sent = *sent;
        if slot.end.shape().unit() == Unit::Bytes {
            sent.length = sent.length.min(receiver.end.room() as usize);
        }
        let lease = slot.lease;
        match receiver.end.append_from(&slot.end, &sent, |copy| lease.is_none_or(|lease| lease.allows(copy)))
        {
            Appended::Full => return None,
            Appended::Refused => slot.counts.frames_refused += 1,
            Appended::Done => {
                slot.sent(sent.length);
                receiver.received(sent.length);
                self.ports[near].count_sent(sent.length);
                self.ports[to].count_received(sent.length);
                if (self.taps.are_there() || self.mirrors.are_there())
                    && receiver.end.shape().unit() == Unit::Frames
                {
                    // The delivered copy, not the sender's memory, which may have changed since.
                    let copy = receiver.end.copy_last(sent.length, &mut self.scratch);
                    self.taps.see(near, slot.generation, copy, Way::Out);
                    self.taps.see(to, receiver.generation, copy, Way::In);
                    self.mirrors.see(near, copy);
                    self.mirrors.see(to, copy);
                }
            }
        }
        slot.end.take_part(sent.length);
        Some(sent.length)
    }

    /// Fills the rings of a port's pipes from its source.
    fn fill(&mut self, number: usize) -> bool {
        let port = &mut self.ports[number];
        let (leads_out, is_mirror) = (port.leads_out(), port.is_mirror());
        let (mut busy, mut broken) = (false, None);
        for _ in 0..self.burst {
            let Some((frame, choice)) = port.peek() else { break };
            match choice {
                Choice::Wait => break,
                Choice::Nobody => {
                    if is_mirror {
                        self.taps.see(number, 0, frame, Way::In);
                    }
                    port.drop_next();
                }
                Choice::Pipe(receiver) => {
                    let Some(slot) = &mut self.pipes[receiver] else { break };
                    let len = frame.len();
                    self.shares.charge(slot.account, FRAME_COST + len as i64);
                    self.due.add(receiver, slot);
                    match slot.append(frame, leads_out, &mut self.shares) {
                        Ok(true) => {}
                        Ok(false) if leads_out => {
                            slot.counts.frames_lost += 1;
                            port.lose_next();
                            busy = true;
                            continue;
                        }
                        Ok(false) => break,
                        Err(violation) => {
                            broken = Some((receiver, violation));
                            break;
                        }
                    }
                    slot.received(len);
                    self.taps.see(number, slot.generation, frame, Way::In);
                    self.mirrors.see(number, frame);
                    port.advance(len);
                }
            }
            busy = true;
        }
        if let Some((receiver, violation)) = broken {
            self.cut_off(receiver, violation);
            busy = true;
        }
        busy
    }

    /// Sleeps until a program rings, at most `timeout`, unless a last look finds work.
    pub fn wait(&mut self, timeout: Duration) {
        self.sleep = self.sleep.wrapping_add(1).max(1);
        let sleep = self.sleep;
        self.ask_wakeup(|end| if end.waits() { sleep } else { 0 });
        let is_early = self.ports.iter_mut().fold(false, |is_early, port| port.rest() | is_early);
        let has_gone = self.look_who_has_gone();
        // SYNC POINT: pipe-need-wakeup
        fence(Ordering::SeqCst);
        if !self.turn() && !has_gone {
            self.doorbells.wait(if is_early { timeout.min(LOOK_AGAIN) } else { timeout });
        }
        self.ask_wakeup(|_| 0);
    }

    fn ask_wakeup(&self, sleep: impl Fn(&End) -> u32) {
        for slot in self.pipes.iter().flatten().filter(|slot| slot.end.is_open()) {
            slot.end.ask_wakeup(sleep(&slot.end));
        }
        self.taps.ask_wakeup(sleep);
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
