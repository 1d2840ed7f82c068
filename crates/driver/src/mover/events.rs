//! Events to clients: written, published, and kept while a ring is full.
use super::flow::wants_event;
use super::Mover;
use crate::ids::{ClientId, FlowId, MoverId, Slot};
use crate::messages::ToMover;
use pd_abi::layout::socket_status;
use pd_abi::Event;
use std::sync::atomic::{fence, Ordering};

impl Mover {
    pub(super) fn ready_at(&mut self, (mover, client, slot): (MoverId, ClientId, Slot)) {
        if mover == self.outbox.own() {
            self.post_ready(client, slot);
        } else {
            self.outbox.tell_mover(mover, ToMover::Ready { client, slot });
        }
    }

    /// Posts news of its socket to the client at which a flow starts.
    pub(super) fn nudge_source(&mut self, flow: FlowId) {
        let Some(flow) = self.flows.get(flow) else { return };
        let (client, slot) = (flow.last_sender().client, flow.last_sender().slot);
        self.post_ready(client, slot);
    }

    pub(super) fn post_ready(&mut self, client: ClientId, slot: Slot) {
        let Some(state) = self.clients.get(client) else { return };
        let Some(socket) = state.slot(slot) else { return };
        fence(Ordering::SeqCst);
        if socket.generation == 0
            || !state.memory().slot_taken(slot, socket.generation)
            || !wants_event(state.memory(), slot)
        {
            return;
        }
        let number = state.memory().event_number(slot).wrapping_add(1);
        state.memory().publish_u32(slot, socket_status::EVENT_NUMBER, number);
        let event = Event::ready(slot.socket(socket.generation), number);
        let channel = socket.channel.into();
        self.post(client, channel, event);
    }

    pub(super) fn post(&mut self, client: ClientId, index: usize, event: Event) {
        let Some(channel) = self.clients.channel(client, index) else { return };
        match channel.post(event) {
            Ok(is_first_that_waits) => {
                if is_first_that_waits {
                    self.outbox.add_overflowing((client, index));
                }
                if channel.mark_dirty() {
                    self.outbox.add_dirty((client, index));
                }
            }
            Err(violation) => self.cut_off(client, violation),
        }
    }

    pub(super) fn flush_events(&mut self) {
        if self.outbox.is_overflowing() {
            self.retry_overflow();
        }
        while let Some((client, index)) = self.outbox.pop_dirty() {
            let Some(state) = self.clients.get_mut(client) else { continue };
            let Some((channel, memory)) = state.channel_and_memory(index) else { continue };
            channel.publish(memory, index);
        }
    }

    pub(super) fn retry_overflow(&mut self) {
        let mut list = self.outbox.take_overflowing();
        let mut broken = Vec::new();
        list.retain(|&(client, index)| {
            let Some(state) = self.clients.get_mut(client) else { return false };
            let Some((channel, memory)) = state.channel_and_memory(index) else { return false };
            let retried = channel.retry().and_then(|moved| {
                if !channel.is_overflowing() {
                    return Ok(moved);
                }
                memory.set_events_waiting(index, true);
                // SYNC POINT: event-room (the client gives room back, fences, looks at `events_waiting`)
                fence(Ordering::SeqCst);
                Ok(channel.retry()? || moved)
            });
            match retried {
                Ok(moved) => {
                    if moved && channel.mark_dirty() {
                        self.outbox.add_dirty((client, index));
                    }
                    memory.set_events_waiting(index, channel.is_overflowing());
                    channel.is_overflowing()
                }
                Err(violation) => {
                    broken.push((client, violation));
                    false
                }
            }
        });
        self.outbox.put_overflowing(list);
        for (client, violation) in broken {
            self.cut_off(client, violation);
        }
    }
}
