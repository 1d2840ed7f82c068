//! Requests of clients: copied once, checked, taken.
use super::flow::Flow;
use super::scheduler::{PayerId, REQUEST_BYTES};
use super::Mover;
use crate::calls::simulated;
use crate::ids::{ClientId, Slot};
use crate::messages::{Permit, ToConductor, ToMover, Violation};
use crate::metrics::Metrics;
use pd_abi::limits::CHANNELS_MAX;
use pd_abi::{Operation, Request, SocketId, LEFT_RECEIVING, LEFT_SENDING};
use std::sync::atomic::{fence, Ordering};

/// Most requests taken from one channel before the next gets its turn.
const REQUESTS_PER_TURN: usize = 64;
/// Requests of one client on their way to other agents, from which on its request rings wait. Checked once in a channel's turn, which may
/// pass on [`REQUESTS_PER_TURN`].
pub const FORWARDED_MAX: usize = 1024;
/// Requests of all clients on their way, from which on request rings wait in a driver of one thread. The thread carries them out before it
/// takes more.
const KEPT_MAX: usize = 1 << 16;
/// Largest send that is copied as soon as its request is read, if nothing is before it. One channel thus copies no more in a turn than a
/// flow may move in one.
const PASSED_BYTES_MAX: u64 = 4 << 10;
/// Turns without a request after which a channel is no longer looked at until it rings.
const QUIET_TURNS_MAX: u32 = 4096;

impl Mover {
    pub(super) fn activate(&mut self, client: ClientId, index: usize) {
        let Some(state) = self.clients.get_mut(client) else { return };
        let payer = state.payer();
        let Some((channel, memory)) = state.channel_and_memory(index) else { return };
        if channel.activate() {
            memory.set_need_wakeup(index, 0);
            self.scheduler.add_channel(payer, (client, index));
        }
    }

    /// Takes the requests of the channel that a socket sends on, up to the most that there can be.
    pub(super) fn catch_up(&mut self, client: ClientId, slot: Slot) {
        let channel = match self.clients.get(client) {
            Some(state) => state.slot(slot).map(|socket| usize::from(socket.channel)),
            _ => None,
        };
        let Some(channel) = channel else { return };
        // Rounds for a full ring and one more: the last send may have grown.
        for _ in 0..=pd_abi::limits::REQUEST_RING_ENTRIES as usize / REQUESTS_PER_TURN {
            if self.has_fallen_behind(client)
                || self.take_requests(client, channel).is_none_or(|taken| taken == 0)
            {
                return;
            }
        }
    }

    /// Takes one turn's requests of a channel. Returns their number. `None`: the channel is no more, or its client was cut off.
    fn take_requests(&mut self, client: ClientId, index: usize) -> Option<usize> {
        let mut taken = 0;
        let result = loop {
            let channel = self.clients.channel(client, index)?;
            match channel.next_request() {
                Ok(Some(request)) => {
                    taken += 1;
                    let (read, open) = channel.progress();
                    if let Some(marks) = self.marks.get() {
                        marks.begin_request(client, index, read);
                    }
                    if let Err(violation) = self.take_request(client, index, &request) {
                        break Err(violation);
                    }
                    if let Some(marks) = self.marks.get() {
                        marks.end_request(client, index, read, open);
                    }
                    if taken == REQUESTS_PER_TURN {
                        break Ok(());
                    }
                }
                Ok(None) => break Ok(()),
                Err(violation) => break Err(violation),
            }
        };
        if taken > 0 {
            self.scheduler.charge_requests(self.clients.payer(client), taken as u64);
        }
        let (now, bytes) = (self.now, std::mem::take(&mut self.bytes_taken));
        let channel = self.clients.channel(client, index)?;
        channel.end_turn(taken, now);
        channel.add_cost(bytes + taken as u64 * REQUEST_BYTES);
        if let Err(violation) = result {
            self.cut_off(client, violation);
            return None;
        }
        Some(taken)
    }

    /// Tells whether the agents that are to carry out a client's requests have fallen behind.
    fn has_fallen_behind(&self, client: ClientId) -> bool {
        if let Some(kept) = self.outbox.kept() {
            return kept >= KEPT_MAX;
        }
        let state = self.clients.get(client);
        state.is_some_and(|state| state.memory().forwarded.load(Ordering::Relaxed) >= FORWARDED_MAX)
    }

    /// Takes requests of one of the payer's channels. Returns their number. `None`: the channel is not to be looked at any more.
    pub(super) fn poll_channel(&mut self, client: ClientId, index: usize, payer: PayerId) -> Option<usize> {
        let now = self.now;
        if self.clients.channel(client, index)?.rests(|| now) {
            return Some(0);
        }
        let taken = if self.has_fallen_behind(client) { 0 } else { self.take_requests(client, index)? };
        if taken == 0 {
            self.scheduler.charge(payer, REQUEST_BYTES);
        }
        let channel = self.clients.channel(client, index)?;
        let quiet_turns = channel.count_look(taken);
        let quiet = quiet_turns > self.quiet_turns_max(payer) && !self.scheduler.is_lone_channel(payer);
        if quiet && self.look_away(client, index) {
            return None;
        }
        Some(taken)
    }

    /// Returns the quiet turns after which a channel is left. All channels of a payer together have as many as those of one client.
    fn quiet_turns_max(&self, payer: PayerId) -> u32 {
        let channels = self.scheduler.channel_count(payer).max(CHANNELS_MAX);
        let most = if simulated::is_on() { QUIET_TURNS_MAX / 256 } else { QUIET_TURNS_MAX };
        most * CHANNELS_MAX as u32 / channels as u32
    }

    /// Stops looking at a quiet channel, which has to ring from now on, unless it has requests after all. Returns whether it did.
    pub(super) fn look_away(&mut self, client: ClientId, index: usize) -> bool {
        let number = self.number_sleep();
        let Some(state) = self.clients.get_mut(client) else { return true };
        if let Some(channel) = state.channel(index) {
            if !self.doorbells.take_channel(client, index, channel) {
                channel.restart_quiet();
                return false;
            }
        }
        state.memory().set_need_wakeup(index, number);
        // SYNC POINT: need-wakeup-dekker
        fence(Ordering::SeqCst);
        let Some((channel, memory)) = state.channel_and_memory(index) else { return true };
        let looks_away = channel.look_away();
        if !looks_away {
            memory.set_need_wakeup(index, 0);
        }
        looks_away
    }

    pub(super) fn take_request(
        &mut self,
        client: ClientId,
        index: usize,
        request: &Request,
    ) -> Result<(), Violation> {
        let operation =
            Operation::from_raw(request.operation).ok_or(Violation::Operation(request.operation))?;
        match operation {
            Operation::Send => self.take_send(client, request),
            Operation::SendFile => self.take_file_send(client, request),
            Operation::OpenFile => {
                self.marks.mark_client(client);
                self.open_file(client, index, request);
                Ok(())
            }
            Operation::Space => {
                self.take_space(client, SocketId(request.socket));
                Ok(())
            }
            Operation::Nudge => {
                self.take_nudge(client, SocketId(request.socket));
                Ok(())
            }
            Operation::Left => {
                self.marks.mark_client(client);
                self.take_left(client, request);
                Ok(())
            }
            _ => {
                self.marks.mark_client(client);
                let (channel, request) = (index, *request);
                let permit = match self.outbox.kept() {
                    Some(_) => {
                        self.scheduler.owe_control();
                        None
                    }
                    None => self.permit(client),
                };
                self.tell_conductor(ToConductor::Control { client, channel, request, permit });
                Ok(())
            }
        }
    }

    /// Has the flow into a socket go on: its receiver has given bytes back.
    fn take_space(&mut self, client: ClientId, socket: SocketId) {
        match self.clients.socket(client, socket).and_then(|socket| socket.incoming) {
            Some((mover, flow)) if mover == self.outbox.own() => self.resume(flow),
            Some((mover, flow)) => {
                if let Some(permit) = self.permit(client) {
                    self.outbox.tell_mover(mover, ToMover::Space { flow, permit });
                }
            }
            None => {}
        }
    }

    /// Has the peer of a socket on the direct path learn that there is news.
    fn take_nudge(&mut self, client: ClientId, socket: SocketId) {
        let socket = self.clients.socket(client, socket);
        let incoming = socket.and_then(|socket| socket.incoming);
        let outgoing = socket.and_then(|socket| socket.outgoing).and_then(|id| self.flows.get(id));
        let destination = outgoing.map(|flow| flow.destination()).map(|to| (to.mover, to.client, to.slot));
        match (destination, incoming) {
            (Some((mover, to, slot)), _) if mover == self.outbox.own() => self.post_ready(to, slot),
            (Some((mover, to, slot)), _) => {
                if let Some(permit) = self.permit(client) {
                    self.outbox.tell_mover(mover, ToMover::Nudge { client: to, slot, permit });
                }
            }
            // The socket's own stream has ended: the peer is at the start of the other stream.
            (None, Some((mover, flow))) if mover == self.outbox.own() => self.nudge_source(flow),
            (None, Some((mover, flow))) => {
                if let Some(permit) = self.permit(client) {
                    self.outbox.tell_mover(mover, ToMover::NudgeSource { flow, permit });
                }
            }
            (None, None) => {}
        }
    }

    /// Takes note that a client has written or read all of a direct ring.
    fn take_left(&mut self, client: ClientId, request: &Request) {
        let socket = self.clients.socket(client, SocketId(request.socket));
        match (request.value, socket.and_then(|s| s.outgoing), socket.and_then(|s| s.incoming)) {
            (LEFT_SENDING, Some(flow), _) => self.leave_ring(flow),
            (LEFT_RECEIVING, _, Some((mover, flow))) if mover == self.outbox.own() => self.release(flow),
            (LEFT_RECEIVING, _, Some((mover, flow))) => {
                if let Some(permit) = self.permit(client) {
                    self.outbox.tell_mover(mover, ToMover::Release { flow, permit });
                }
            }
            _ => {}
        }
    }

    fn permit(&self, client: ClientId) -> Option<Permit> {
        Some(Permit::new(self.clients.get(client)?.memory()))
    }

    pub(super) fn take_send(&mut self, client: ClientId, request: &Request) -> Result<(), Violation> {
        let span = request.span();
        let state = self.clients.get(client).ok_or(Violation::Span)?;
        let region = state.region(span.region.into()).ok_or(Violation::Span)?;
        let end = span.offset.checked_add(span.len).ok_or(Violation::Span)?;
        let sends = request.sends();
        if span.len < sends || span.len > pd_abi::limits::MESSAGE_BYTES_MAX || end > region.len() as u64 {
            return Err(Violation::Span);
        }
        self.bytes_taken += span.len;
        let address = region.address(span.offset as usize, span.len as usize).as_ptr() as u64;
        let free = !self.throttle.is_limited();
        let may_pass = span.len <= PASSED_BYTES_MAX && self.engines.is_own_core() && free;
        let mut passed = 0;
        self.accept(client, SocketId(request.socket), |flow| {
            if may_pass && flow.pass(address, span.len, sends) {
                passed = span.len;
                return Ok(());
            }
            flow.accept(address, span.len, sends, free).map(drop)
        })?;
        self.scheduler.owe(passed);
        Ok(())
    }

    /// Calls `take` with the flow that a socket sends on.
    pub(super) fn accept(
        &mut self,
        client: ClientId,
        socket: SocketId,
        take: impl FnOnce(&mut Flow) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let Some(id) = self.clients.socket(client, socket).and_then(|s| s.outgoing) else {
            // The socket is not connected, or closed by now: nobody waits for the send.
            Metrics::add(&self.metrics.sends_dropped, 1);
            return Ok(());
        };
        let Some(mut flow) = self.flows.get(id) else { return Ok(()) };
        if flow.is_draining() {
            // Bytes in the sender's ring were sent before.
            self.read_on(id, false);
            let Some(again) = self.flows.get(id) else { return Ok(()) };
            flow = again;
        }
        take(flow)?;
        if let Some(marks) = self.marks.get() {
            marks.set_sends(id, flow.sends().0);
        }
        if flow.pending() == 0 {
            self.touch(id);
        } else if flow.schedule.is_idle() {
            self.enqueue(id);
        }
        Ok(())
    }

    pub(super) fn cut_off(&mut self, client: ClientId, violation: Violation) {
        let Some(state) = self.clients.get_mut(client) else { return };
        if !state.cut_off() {
            self.marks.mark_client(client);
            self.tell_conductor(ToConductor::Violation { client, violation });
        }
    }
}
