//! A step's work: payers in turn, of each its channels and then its flows ([`super::fair`]).
use super::counting::{self, Moved};
use super::fair::{PayerId, Turn, NOBODY, REQUEST_BYTES};
use super::flow::{Flow, Pump};
use super::throttle::Allowance;
use super::{Mover, COMMANDS_PER_TURN};
use crate::ids::{ClientId, FlowId};
use crate::messages::Payer;
use crate::metrics::Metrics;

/// Flows with a full receive ring that are looked at before each sleep; more than these ask their
/// receivers for a request at once.
const BLOCKED_POLLED_MAX: usize = 32;

impl Mover {
    /// Each payer's turn, as long as the step lasts. Says whether there was anything to do.
    pub(super) fn serve(&mut self) -> bool {
        let mut worked = false;
        let turns = self.fair.begin_step();
        for _ in 0..turns {
            if self.engines.is_full() || self.fair.is_step_over() {
                break;
            }
            let Some(turn) = self.fair.begin() else { break };
            worked |= self.poll_channels(&turn);
            worked |= self.run_flows(&turn);
            let interrupted = self.engines.is_full();
            self.fair.end(&turn, interrupted);
        }
        if self.engines.is_full() {
            // Requests are read all the same: not all are sends.
            for at in 0..turns {
                let Some(turn) = self.fair.waiting(at) else { break };
                worked |= self.poll_channels(&turn);
            }
        }
        worked
    }

    /// Takes requests from the payer's channels, each once at most.
    fn poll_channels(&mut self, turn: &Turn) -> bool {
        let mut worked = false;
        for _ in 0..self.fair.channel_count(turn.payer) {
            let Some((client, index)) = self.fair.next_channel(turn) else { break };
            if let Some(taken) = self.poll_channel(client, index, turn.payer) {
                worked |= taken > 0;
                self.fair.add_channel(turn.payer, (client, index));
            }
        }
        worked
    }

    /// Serves the payer's flows as long as it has credit; one that has no others to wait for, each once at most.
    fn run_flows(&mut self, turn: &Turn) -> bool {
        let ready = self.fair.flow_count(turn.payer);
        let turns = if turn.alone { ready.min(COMMANDS_PER_TURN) } else { usize::MAX };
        for _ in 0..turns {
            if self.engines.is_full() {
                break;
            }
            let Some((id, bytes)) = self.fair.next_flow(turn) else { break };
            let cost = self.run_flow(id, bytes);
            self.fair.charge(turn.payer, cost);
        }
        ready > 0
    }

    /// A flow's turn. Returns what it costs.
    fn run_flow(&mut self, id: FlowId, bytes: u64) -> u64 {
        let Some(flow) = self.flows.get(id) else { return REQUEST_BYTES };
        let has_tokens = flow.schedule.begin();
        self.batch.clear();
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
        let pumped = flow.pump(&mut budget, chunk, &mut self.batch, COMMANDS_PER_TURN, at_once);
        let used = before.less(budget);
        let next = if limited { self.throttle.spend(flow, used) } else { None };
        match pumped {
            Ok(Pump::More) => self.enqueue(id),
            Ok(Pump::Full) => {
                flow.schedule.block();
                let full = Moved { rings_full: 1, ..Moved::default() };
                counting::count(&self.metrics, self.settings.id, flow, &full);
                self.touch(id);
                if self.blocked.len() < BLOCKED_POLLED_MAX {
                    self.blocked.push(id);
                } else {
                    self.park(id);
                }
            }
            Ok(Pump::NoRing) => self.need_ring(id),
            Ok(Pump::Poor) => {
                self.give_ring(id);
                self.need_ring(id);
            }
            Ok(Pump::Drained) => {}
            Ok(Pump::Cold) => self.read_cold(id),
            Ok(Pump::Failed) => self.fail_file(id),
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
        if moved || !self.batch.is_empty() {
            self.engines.submit(&self.batch);
            self.reap();
            self.publish();
        }
        used.bytes + (1 + used.messages) * REQUEST_BYTES
    }

    /// A flow that is in no queue has something to copy: its payer gets a turn.
    pub(super) fn enqueue(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        flow.schedule.queue();
        let source = flow.source().client;
        let payer = self.payer_of(source);
        self.fair.add_flow(payer, id);
    }

    /// Who pays for what a client sends.
    pub(super) fn payer_of(&self, client: ClientId) -> PayerId {
        self.clients.get(client.index()).and_then(Option::as_ref).map_or(NOBODY, |client| client.payer)
    }

    /// A client is another payer's from now on. Flows that are ready have their present turn with the former.
    pub(super) fn set_payer(&mut self, client: ClientId, payer: Payer) {
        let Some(Some(state)) = self.clients.get_mut(client.index()) else { return };
        let to = self.fair.enter(payer);
        let from = std::mem::replace(&mut state.payer, to);
        self.fair.move_channels(from, to, client);
        self.fair.let_go(from);
        self.move_file_socket(client, payer);
    }
}
