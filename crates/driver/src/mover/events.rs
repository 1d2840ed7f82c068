//! What clients are told: events written, published, and kept while a ring is full.
use super::flow::wants_event;
use super::{channel_of, Mover};
use crate::ids::{ClientId, MoverId, Slot};
use crate::messages::ToMover;
use pd_abi::layout::socket_status;
use pd_abi::Event;
use std::sync::atomic::{fence, Ordering};

impl Mover {
    pub(super) fn ready_at(&mut self, (mover, client, slot): (MoverId, ClientId, Slot)) {
        if mover == self.settings.id {
            self.post_ready(client, slot);
        } else {
            self.peers[mover.index()].send(ToMover::Ready { client, slot });
        }
    }

    pub(super) fn post_ready(&mut self, client: ClientId, slot: Slot) {
        let Some(Some(state)) = self.clients.get(client.index()) else { return };
        let Some(socket) = state.sockets.get(slot.index()) else { return };
        fence(Ordering::SeqCst);
        if socket.generation == 0
            || !state.memory.slot_taken(slot, socket.generation)
            || !wants_event(&state.memory, slot)
        {
            return;
        }
        let number = state.memory.event_number(slot).wrapping_add(1);
        state.memory.publish_u32(slot, socket_status::EVENT_NUMBER, number);
        let event = Event::ready(slot.socket(socket.generation), number);
        let channel = socket.channel.into();
        self.post(client, channel, event);
    }

    pub(super) fn post(&mut self, client: ClientId, index: usize, event: Event) {
        let Some(channel) = channel_of(&mut self.clients, client, index) else { return };
        match channel.post(event) {
            Ok(fits) => {
                if !fits && !channel.overflowing {
                    channel.overflowing = true;
                    self.overflowing.push((client, index));
                }
                if !channel.dirty {
                    channel.dirty = true;
                    self.dirty.push((client, index));
                }
            }
            Err(violation) => self.cut_off(client, violation),
        }
    }

    pub(super) fn flush_events(&mut self) {
        if !self.overflowing.is_empty() {
            self.retry_overflow();
        }
        while let Some((client, index)) = self.dirty.pop() {
            let Some(Some(state)) = self.clients.get_mut(client.index()) else { continue };
            let Some(channel) = state.channels.get_mut(index).and_then(Option::as_mut) else { continue };
            channel.publish(&state.memory, index);
        }
    }

    pub(super) fn retry_overflow(&mut self) {
        let mut list = std::mem::take(&mut self.overflowing);
        let mut broken = Vec::new();
        list.retain(|&(client, index)| {
            let Some(Some(state)) = self.clients.get_mut(client.index()) else { return false };
            let Some(channel) = state.channels.get_mut(index).and_then(Option::as_mut) else { return false };
            let retried = channel.retry().and_then(|moved| {
                if !channel.overflowing {
                    return Ok(moved);
                }
                state.memory.set_events_waiting(index, true);
                // SYNC POINT: event-room (the client gives room back, fences, looks at `events_waiting`)
                fence(Ordering::SeqCst);
                Ok(channel.retry()? || moved)
            });
            match retried {
                Ok(moved) => {
                    if moved && !channel.dirty {
                        channel.dirty = true;
                        self.dirty.push((client, index));
                    }
                    state.memory.set_events_waiting(index, channel.overflowing);
                    channel.overflowing
                }
                Err(violation) => {
                    broken.push((client, violation));
                    false
                }
            }
        });
        self.overflowing = list;
        for (client, violation) in broken {
            self.cut_off(client, violation);
        }
    }
}
