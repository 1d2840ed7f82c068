//! State of a mover that was killed, brought up to what its last stores say.
//!
//! A flow's positions are in its sockets' status lines, and the sends that it has accepted in the marks. All of them delivered, none is
//! anywhere but with the receiver. A request ring's position is in the marks.
use super::channel::ChannelState;
use super::flow::{Moving, Said};
use super::Mover;
use crate::crash::marks::Progress;
use crate::ids::{ClientId, Slot};
use crate::memory::ClientMemory;
use crate::messages::{Endpoint, Ring};
use pd_abi::layout::socket_status;
use pd_abi::{Event, Operation, SocketId};
use pd_shm::Pod;

/// Brings the state of a flow up to what its sockets' lines say. `sends`: the sends that it has accepted, if that is known. Returns whether
/// no byte of it can be lost.
pub fn catch_up(
    moving: &mut Option<Box<Moving>>,
    send_ring_bytes: u64,
    [source, destination]: &[Endpoint; 2],
    ring: Option<&Ring>,
    sends: Option<u64>,
) -> bool {
    let Some(sends) = sends else { return false };
    let is_there = |end: &&Endpoint| end.client != ClientId::NOBODY;
    let (from, to) = (Some(source).filter(is_there), Some(destination).filter(is_there));
    let taken = to.filter(|to| to.memory.slot_taken(to.slot, to.generation));
    let said = Said {
        sends,
        done: from.map(|from| from.memory.published(from.slot, socket_status::SEND_CONSUMER)),
        send_end: from.map(|from| from.memory.published_u32(from.slot, socket_status::SEND_END)),
        delivered: to.map(|to| to.memory.recv_producer(to.slot)),
        recv_end: to.map(|to| to.memory.published_u32(to.slot, socket_status::RECV_END)),
        consumed: taken.map(|to| to.memory.recv_consumer(to.slot)),
        room: ring.map_or(0, Ring::bytes),
    };
    match moving {
        None if said.is_nothing() => true,
        moving => moving.get_or_insert_with(|| Box::new(Moving::fresh(send_ring_bytes))).catch_up(said),
    }
}

impl ChannelState {
    /// Brings the state of a channel up to what its driver has stored. Events that the client was not told of are dropped. Returns the socket
    /// whose send may have been taken in part.
    pub fn catch_up(&mut self, index: usize, memory: &ClientMemory, progress: Progress) -> Option<SocketId> {
        let Progress { read, is_under_way, open } = progress;
        let last = memory.last_request(index, read);
        let sends = [Operation::Send, Operation::SendFile].map(|operation| operation as u8);
        // The client may have written something else by now, to the harm of its own stream.
        let may_grow = read > 0 && open != 0 && last.operation == Operation::Send as u8;
        let open = may_grow.then(|| last.with_numbers(last.numbers().0, open).as_bytes().to_vec());
        self.set_positions((read, open), memory.events_published(index));
        memory.set_events_waiting(index, false);
        (is_under_way && sends.contains(&last.operation)).then_some(SocketId(last.socket))
    }
}

impl Mover {
    /// Tells clients once more of all that they may not have been told of.
    pub fn tell_all_again(&mut self) {
        let sockets = self
            .clients
            .with_ids()
            .flat_map(|(id, client)| client.slots().map(|(slot, _)| (id, slot)).collect::<Vec<_>>());
        let sockets: Vec<_> = sockets.collect();
        sockets.into_iter().for_each(|(client, slot)| self.post_last_again(client, slot));
        for id in self.flows.ids() {
            if self.flows.used(id).is_some() {
                self.wake_ends(id, self.outbox.own());
            }
        }
    }

    /// Posts the last `Ready` event of a socket once more, if the client has not acknowledged it: it may have been lost.
    fn post_last_again(&mut self, client: ClientId, slot: Slot) {
        let Some(state) = self.clients.get(client) else { return };
        let (Some(socket), memory) = (state.slot(slot), state.memory()) else { return };
        let is_lost = socket.generation != 0
            && memory.slot_taken(slot, socket.generation)
            && memory.subscribed(slot)
            && memory.event_ack(slot) != memory.event_number(slot);
        if is_lost {
            let channel = socket.channel.into();
            let event = Event::ready(slot.socket(socket.generation), memory.event_number(slot));
            self.post(client, channel, event);
        }
    }
}
