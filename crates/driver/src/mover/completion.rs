//! Results of a flow's copies: completions reaped, both sides told, flows ended and forgotten.
use super::counting;
use super::engines::COMMANDS_PER_TURN;
use super::flow::{Flow, News};
use super::Mover;
use crate::ids::{ClientId, FlowId};
use crate::messages::{SendEnd, ToConductor, Violation};
use std::sync::atomic::{fence, Ordering};
use std::time::Duration;

impl Mover {
    pub(super) fn poll_blocked(&mut self) -> bool {
        let mut worked = false;
        let mut at = 0;
        while let Some(id) = self.scheduler.blocked_at(at) {
            let room = match self.flows.get(id) {
                Some(flow) if flow.schedule.is_blocked() => flow.has_room(),
                _ => Ok(true),
            };
            match room {
                Ok(false) => at += 1,
                room => {
                    self.scheduler.drop_blocked(at);
                    if let Err(violation) = room {
                        self.destination_broke(id, violation);
                    }
                    self.resume(id);
                    worked = true;
                }
            }
        }
        worked
    }

    /// Asks the receiver for a request when there is room. The flow is not looked at until then.
    pub(super) fn park(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        flow.ask_for_room();
        // SYNC POINT: space-dekker
        fence(Ordering::SeqCst);
        if flow.has_room().unwrap_or(true) {
            flow.ask_for_nothing();
            self.resume(id);
        }
    }

    pub(super) fn resume(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        flow.schedule.unblock();
        if flow.pending() > 0 && flow.schedule.is_idle() {
            self.enqueue(id);
        }
        self.touch(id);
    }

    pub(super) fn touch(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get(id) {
            if !flow.touched {
                flow.touched = true;
                self.outbox.touch(id);
            }
        }
    }

    pub(super) fn reap(&mut self) -> bool {
        let mut worked = false;
        loop {
            let count = self.engines.reap();
            for at in 0..count {
                let completion = self.engines.completion(at);
                self.completed(FlowId::new(completion.conn_id), completion.entry_seq);
            }
            worked |= count > 0;
            if count < COMMANDS_PER_TURN {
                return worked;
            }
        }
    }

    /// Ends a copy of a flow: its bytes have arrived.
    pub(super) fn completed(&mut self, id: FlowId, entry_seq: u16) {
        let Some(flow) = self.flows.get(id) else { return };
        flow.complete(entry_seq);
        let can_switch = flow.can_switch();
        self.touch(id);
        if can_switch {
            self.switch(id);
        }
    }

    pub(super) fn publish(&mut self) {
        let mut touched = self.outbox.take_touched();
        for id in touched.drain(..) {
            let Some(flow) = self.flows.get(id) else { continue };
            flow.touched = false;
            let news = flow.publish(self.now);
            counting::count(&self.metrics, self.outbox.own(), flow, &news.moved);
            if self.mirrors.are_there() {
                self.mirrors.see(self.outbox.own(), flow, news.moved.bytes, &mut self.scheduler);
            }
            let has_moved = flow.has_migrated();
            self.tell(id, news);
            if has_moved {
                self.settle_migration(id);
            }
            self.settle(id);
        }
        // Nothing above touches a flow again, so the list is empty and keeps its capacity.
        self.outbox.reuse_touched(touched);
    }

    /// Turns news of a flow into events.
    pub(super) fn tell(&mut self, id: FlowId, news: News) {
        if !news.source && !news.destination {
            return;
        }
        let Some(flow) = self.flows.get(id) else { return };
        let source = flow.source().place();
        let destination = flow.destination().place();
        if news.source && !flow.is_done_with_source() {
            self.ready_at(source);
        }
        if news.destination {
            self.ready_at(destination);
        }
    }

    /// Gives back the ring of a flow that needs it no more, and forgets a flow that is over.
    pub(super) fn settle(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if !flow.is_over() {
            if flow.is_done_with_source() {
                let client = flow.source().client;
                self.forget_client(client);
            }
            return;
        }
        match flow.is_ring_idle() {
            Ok(true) => self.forget_flow(id),
            Ok(false) => {
                let client = flow.source().client;
                self.forget_client(client);
            }
            Err(violation) => self.destination_broke(id, violation),
        }
    }

    pub(super) fn need_ring(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if flow.await_ring() {
            return;
        }
        let source = flow.source().client;
        let payer = self.clients.payer(source);
        let bytes_max = self.division.take(&mut self.scheduler, payer);
        if let Some(flow) = self.flows.get(id) {
            flow.set_ring_payer(payer);
        }
        self.tell_conductor(ToConductor::NeedRing { flow: id, bytes_max });
    }

    /// Gives back the flow's ring, if it has one. The ring must have no reader any more.
    pub(super) fn give_ring(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if flow.has_ring() {
            self.marks.mark_connection(flow.id.connection());
        }
        if let Some(ring) = flow.take_ring() {
            self.division.give(&mut self.scheduler, flow.ring_payer());
            self.tell_conductor(ToConductor::FreeRing { ring });
        }
    }

    pub(super) fn forget_flow(&mut self, id: FlowId) {
        self.settle_migration(id);
        self.drop_undrained(id);
        self.give_ring(id);
        let Some(mut flow) = self.flows.remove(id) else { return };
        if flow.take_ring_asked() {
            self.division.give(&mut self.scheduler, flow.ring_payer());
        }
        self.mirrors.end(self.outbox.own(), id);
        self.tell_conductor(ToConductor::FlowDone { flow: id });
        let client = flow.source().client;
        if let Some(socket) = self.clients.socket_mut(client, flow.source().slot) {
            for known in [&mut socket.outgoing, &mut socket.sends] {
                known.take_if(|known| *known == id);
            }
        }
        self.forget_client(client);
    }

    /// Forgets a client that is to be removed, unless bytes of its memory are still to be copied. Looks at each of its sockets until that
    /// is done, and then no more.
    pub(super) fn forget_client(&mut self, client: ClientId) {
        let Some(state) = self.clients.get_mut(client) else { return };
        if !state.is_removing() {
            return;
        }
        while let Some(socket) = state.last_slot() {
            if let Some(id) = socket.sends {
                if self.flows.used(id).is_some_and(|flow| flow.needs_memory_of(client)) {
                    return;
                }
                self.flows.forget_source(id, client);
            }
            state.pop_slot();
        }
        let payer = state.payer();
        self.clients.remove(client);
        self.scheduler.let_go(payer);
        self.tell_conductor(ToConductor::ClientGone { client });
    }

    pub(super) fn destination_broke(&mut self, id: FlowId, violation: Violation) {
        let Some(flow) = self.flows.get(id) else { return };
        let client = flow.destination().client;
        self.abort(id, SendEnd::by(Flow::failure()), None);
        self.tell_conductor(ToConductor::Violation { client, violation });
    }

    /// Looks at deadlines, idle rings, and flows that are over.
    pub(super) fn tick(&mut self, ring_idle: Duration) {
        let pause =
            (self.settings.ring_idle / 2).clamp(Duration::from_millis(10), Duration::from_millis(100));
        self.ticks.begin(self.now, pause);
        if self.close_idle_files() {
            self.ticks.want();
        }
        self.division.tick(&self.scheduler);
        for id in self.flows.ids() {
            let Some(flow) = self.flows.used(id) else { continue };
            if flow.needs_ticks() {
                self.ticks.want();
            }
            if flow.has_ring() && flow.check_size(self.division.shares(flow.ring_payer())) {
                self.division.note_busy(flow.ring_payer());
            }
            let news = flow.check_deadline(self.now);
            if news.source || news.destination {
                self.tell(id, news);
                self.touch(id);
                continue;
            }
            if flow.schedule.is_blocked() && flow.has_ring() && flow.has_room().unwrap_or(true) {
                self.resume(id);
                continue;
            }
            let idle = flow.has_ring() && self.now.saturating_sub(flow.last_active) > ring_idle;
            if !idle && !flow.is_over() {
                continue;
            }
            match flow.is_ring_idle() {
                Ok(true) => {
                    flow.shrink();
                    self.give_ring(id);
                    self.settle(id);
                }
                Ok(false) => {}
                Err(violation) => self.destination_broke(id, violation),
            }
        }
        // Ticks go on until previous rings are forgotten. A lone connection after a pause would else have a ring as if it were one of many.
        if self.division.remembers() {
            self.ticks.want();
        }
    }
}
