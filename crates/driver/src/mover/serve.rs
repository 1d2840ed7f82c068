//! Work of a step: payers in turn, of each its channels and then its flows ([`super::scheduler`]).
use super::counting;
use super::engines::COMMANDS_PER_TURN;
use super::flow::{Allowance, Flow, Moved, Pump};
use super::scheduler::{Turn, REQUEST_BYTES};
use super::Mover;
use crate::ids::{ClientId, FlowId};
use crate::messages::Payer;
use crate::metrics::Metrics;
use std::time::Duration;

impl Mover {
    /// Gives payers their turns, as long as the step lasts. Returns whether there was anything to do.
    pub(super) fn serve(&mut self) -> bool {
        let mut worked = false;
        let turns = self.scheduler.begin_step();
        self.stopwatch.reset();
        for _ in 0..turns {
            if self.engines.is_full() || self.scheduler.is_step_over() {
                break;
            }
            let Some(turn) = self.scheduler.begin() else { break };
            let begun = turn.is_timed.then(|| self.stopwatch.begin(&*self.clock));
            worked |= self.poll_channels(&turn);
            worked |= self.run_flows(&turn);
            if let Some(begun) = begun {
                let took = self.stopwatch.end(begun, &*self.clock);
                self.scheduler.settle(&turn, took);
            }
            let interrupted = self.engines.is_full();
            self.scheduler.end(&turn, interrupted);
        }
        if self.engines.is_full() {
            // Requests are read all the same: not all are sends.
            for at in 0..turns {
                let Some(turn) = self.scheduler.waiting(at) else { break };
                worked |= self.poll_channels(&turn);
            }
        }
        worked
    }

    /// Takes requests from the payer's channels, each once at most.
    fn poll_channels(&mut self, turn: &Turn) -> bool {
        let mut worked = false;
        for _ in 0..self.scheduler.channel_count(turn.payer) {
            let Some((client, index)) = self.scheduler.next_channel(turn) else { break };
            if let Some(taken) = self.poll_channel(client, index, turn.payer) {
                worked |= taken > 0;
                self.scheduler.add_channel(turn.payer, (client, index));
            }
        }
        worked
    }

    /// Serves the payer's flows as long as it has credit. A payer that is alone has each flow served once at most.
    fn run_flows(&mut self, turn: &Turn) -> bool {
        let ready = self.scheduler.flow_count(turn.payer);
        let turns = if turn.alone { ready.min(COMMANDS_PER_TURN) } else { usize::MAX };
        for _ in 0..turns {
            if self.engines.is_full() {
                break;
            }
            let Some((id, bytes)) = self.scheduler.next_flow(turn) else { break };
            let cost = self.run_flow(id, bytes);
            self.scheduler.charge(turn.payer, cost);
        }
        ready > 0
    }

    /// Gives a flow its turn. Returns the cost in bytes.
    fn run_flow(&mut self, id: FlowId, bytes: u64) -> u64 {
        let Some(flow) = self.flows.get(id) else { return REQUEST_BYTES };
        let has_tokens = flow.schedule.begin();
        let chunk = self.engines.chunk_bytes_max();
        let mut budget = Allowance { bytes, ..Allowance::ALL };
        let limited = self.throttle.is_limited();
        if limited {
            match self.throttle.allow(flow, has_tokens, bytes, self.now) {
                Ok(allowed) => budget.limit_to(allowed),
                Err(next) => {
                    self.touch(id);
                    next.map(|next| self.unpark(next, true));
                    return REQUEST_BYTES;
                }
            }
        }
        let before = budget;
        let at_once = self.engines.is_own_core();
        let pumped = flow.pump(&mut budget, chunk, self.engines.batch(), COMMANDS_PER_TURN, at_once);
        let used = before.less(budget);
        let next = if limited { self.throttle.spend(flow, used) } else { None };
        match pumped {
            Ok(Pump::More) => self.enqueue(id),
            Ok(Pump::Full) => {
                flow.schedule.block();
                let full = Moved { rings_full: 1, ..Moved::default() };
                counting::count(&self.metrics, self.outbox.own(), flow, &full);
                self.touch(id);
                if !self.scheduler.watch_blocked(id) {
                    self.park(id);
                }
            }
            Ok(Pump::NoRing) => self.need_ring(id),
            Ok(Pump::Resize) => {
                self.give_ring(id);
                self.need_ring(id);
            }
            Ok(Pump::Drained) => {}
            Ok(Pump::PageCacheMiss) => self.read_cold(id),
            Ok(Pump::FileError) => self.fail_file(id),
            Err(violation) => self.destination_broke(id, violation),
        }
        if let Some(next) = next {
            self.unpark(next, true);
        }
        let read = self.flows.get(id).map_or(0, Flow::take_file_bytes);
        if read > 0 {
            Metrics::add(&self.metrics.file_bytes, read);
        }
        let moved = read > 0 || at_once && used.bytes > 0;
        if moved {
            self.touch(id);
        }
        if moved || self.engines.has_batch() {
            self.engines.submit();
            self.reap();
            self.publish();
        }
        used.bytes + (1 + used.messages) * REQUEST_BYTES
    }

    /// Begins the conductor's work on requests of this step. Returns the moment if the work is worth measuring.
    pub fn begin_controls(&mut self) -> Option<Duration> {
        self.scheduler.has_controls().then(|| self.stopwatch.begin(&*self.clock))
    }

    /// Ends the conductor's work, which began at `begun`. Charges the clients that asked for the time.
    pub fn settle_controls(&mut self, begun: Duration) {
        let took = self.stopwatch.end(begun, &*self.clock);
        self.scheduler.settle_controls(took);
    }

    /// Queues a flow that is in no queue and has something to copy: the payer gets a turn.
    pub(super) fn enqueue(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        flow.schedule.queue();
        let source = flow.source().client;
        let payer = self.clients.payer(source);
        self.scheduler.add_flow(payer, id);
    }

    /// Changes a client's payer. Ready flows have their present turn with the previous one.
    pub(super) fn set_payer(&mut self, client: ClientId, payer: Payer) {
        let Some(state) = self.clients.get_mut(client) else { return };
        let to = self.scheduler.enter(payer);
        let from = state.replace_payer(to);
        self.scheduler.move_channels(from, to, client);
        self.scheduler.let_go(from);
        self.move_file_socket(client, payer);
    }
}
