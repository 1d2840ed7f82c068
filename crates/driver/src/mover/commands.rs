//! Commands of the conductor to a mover.
use super::channel::Channel;
use super::clients::{Client, Socket};
use super::flows::Place;
use super::{counting, Mover};
use crate::ids::{ClientId, FlowId, MoverId, Slot};
use crate::memory::{Account, ClientMemory};
use crate::messages::{
    Asking, Endpoint, Finish, NewChannel, NewFlow, Payer, Ring, SendEnd, ToConductor, ToMover,
};
use crate::mirror::Showing;
use pd_abi::layout::{socket_status, ELSEWHERE};
use pd_abi::{Event, Operation};
use pd_shm::ringer::WakeEnd;
use pd_shm::wait::Waker;
use pd_shm::Mapping;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Time for which a ring is idle before it is given back when memory is short.
const RING_IDLE_SHORT: Duration = Duration::from_millis(5);

impl Mover {
    pub(super) fn take_commands(&mut self) -> bool {
        if !self.inbox.is_filled() {
            return false;
        }
        let mut commands = std::mem::take(&mut self.commands);
        self.inbox.drain(&mut commands);
        commands.iter_mut().for_each(|command| self.apply_command(command));
        commands.clear();
        self.commands = commands;
        true
    }

    /// Carries out a command. Takes a reference: a copy would wait until the stores that have just made the command have reached the cache.
    pub fn apply_command(&mut self, command: &mut ToMover) {
        match *command {
            ToMover::AddClient { client, payer, ref account, ref memory } => {
                self.add_client(client, payer, account, memory);
            }
            ToMover::AddChannel(ref mut new) => self.add_channel(new.take()),
            ToMover::AddFileSocket { client, payer, ref mut socket } => {
                if let Some(socket) = socket.take() {
                    self.add_file_socket(client, payer, *socket);
                }
            }
            ToMover::AddPipe { client, channel, ref mut pipe } => self.add_pipe(client, channel, pipe.take()),
            ToMover::AddRegion { client, region, ref map } => self.add_region(client, region, map),
            ToMover::OpenSocket { client, slot, generation, channel } => {
                let socket = Socket { generation, channel: channel as u8, ..Socket::default() };
                self.change_socket(client, slot, |place| *place = socket);
            }
            ToMover::Home { client, slot, channel } => {
                self.change_socket(client, slot, |socket| socket.channel = channel as u8);
            }
            ToMover::CloseSocket { client, slot } => self.change_socket(client, slot, |socket| {
                *socket = Socket { sends: socket.sends, ..Socket::default() };
            }),
            ToMover::Backlog { client, slot, count } => self.announce_backlog(client, slot, count),
            ToMover::AddFlow(ref mut new) => self.add_flow(new.take()),
            ToMover::Show { flow, ref mut showing } => self.show(flow, showing.take()),
            ToMover::Incoming { client, slot, flow, mover } => {
                self.change_socket(client, slot, |socket| socket.incoming = Some((mover, flow)));
            }
            ToMover::WakeEnds { flow } => self.wake_ends(flow, self.outbox.own()),
            ToMover::Reported { flow, bytes, messages } => self.count_reported(flow, bytes, messages),
            ToMover::SetSendRing { flow, bytes } => self.set_send_ring(flow, bytes),
            ToMover::Ring { flow: id, ref mut ring } => self.take_ring(id, ring.take()),
            ToMover::Finish { flow, finish } => self.finish(flow, finish),
            ToMover::Abort { flow, send_end, recv_end } => self.abort(flow, send_end, recv_end),
            ToMover::Elsewhere { flow, ref source, is_over, asker, event } => {
                self.say_elsewhere(flow, source.as_deref(), is_over, asker, event);
            }
            ToMover::HandoffDestination { flow, ref destination, ref mut handoff } => {
                self.hand_off_destination(flow, destination.clone(), handoff.take());
            }
            ToMover::HandoffSource { flow, ref source, ref handoff } => {
                self.hand_off_source(flow, source.clone(), handoff);
                if let Some(leave) = &handoff.leave {
                    self.tell_to_leave(flow, leave);
                }
            }
            ToMover::Leave { flow, ref leave } => self.tell_to_leave(flow, leave),
            ToMover::Release { flow, .. } => self.release(flow),
            ToMover::SetTenant { flow, tenant } => self.set_tenant(flow, tenant),
            ToMover::SetPayer { client, payer } => self.set_payer(client, payer),
            ToMover::SetWeight { tenant, weight } => self.scheduler.set_weight(tenant, weight),
            ToMover::SetBudget { tenant, ref budget } => self.set_budget(tenant, Arc::clone(budget)),
            ToMover::Post { client, channel, event } => self.post(client, channel, event),
            ToMover::Scan { sync } => {
                self.ticks.poll_soon();
                self.scans.push(sync);
            }
            ToMover::Ready { client, slot } | ToMover::Nudge { client, slot, .. } => {
                self.post_ready(client, slot);
            }
            ToMover::NudgeSource { flow, .. } => self.nudge_source(flow),
            ToMover::Space { flow, .. } => self.resume(flow),
            ToMover::Reclaim => self.tick(RING_IDLE_SHORT),
            ToMover::ComeBack => self.called_back = true,
            ToMover::Drain { client } => self.drain(client),
            ToMover::FileOpened(ref mut opened) => {
                if let Some((asker, file)) = opened.take().map(|opened| *opened) {
                    self.file_opened(&asker, file);
                }
            }
            ToMover::FileRead { flow, entry_seq, whole } => self.cold_read(flow, entry_seq, whole),
            ToMover::RemoveClient { client } => self.remove_client(client),
        }
    }

    fn add_client(&mut self, id: ClientId, payer: Payer, account: &Arc<Account>, memory: &Arc<ClientMemory>) {
        account.set_near(self.node);
        let state = Client::new(self.scheduler.enter(payer), account, memory);
        self.clients.add(id, state);
    }

    fn add_channel(&mut self, new: Option<Box<NewChannel>>) {
        let Some(new) = new else { return };
        let NewChannel { client, channel, requests, events, doorbell } = *new;
        let watched = self.doorbells.add(client, channel, &doorbell);
        if let Err(error) = watched {
            tracing::error!(%client, channel, %error, "cannot watch a doorbell: its channel is looked at");
        }
        let Some(state) = self.clients.get_mut(client) else { return };
        if let Some(marks) = self.marks.get() {
            marks.end_request(client, channel, 0, 0);
        }
        state.add_channel(channel, Channel::new(requests, events, doorbell, watched.is_ok()));
        self.activate(client, channel);
    }

    fn add_region(&mut self, client: ClientId, region: u16, map: &Arc<Mapping>) {
        if let Some(state) = self.clients.get_mut(client) {
            state.add_region(region.into(), Arc::clone(map));
            self.tell_conductor(ToConductor::RegionAdded { client, region });
        }
    }

    fn change_socket(&mut self, client: ClientId, slot: Slot, change: impl FnOnce(&mut Socket)) {
        if let Some(socket) = self.clients.socket_mut(client, slot) {
            change(socket);
        }
    }

    fn add_flow(&mut self, new: Option<Box<NewFlow>>) {
        let Some(new) = new else { return };
        counting::open(&self.metrics, self.outbox.own(), &new);
        self.change_socket(new.source.client, new.source.slot, |socket| {
            (socket.outgoing, socket.sends) = (Some(new.id), Some(new.id));
        });
        let (id, to) = (self.outbox.own(), &new.destination);
        if to.mover == id {
            self.change_socket(to.client, to.slot, |socket| socket.incoming = Some((id, new.id)));
        }
        self.flows.add(new);
    }

    fn show(&mut self, id: FlowId, showing: Option<Box<Showing>>) {
        // A flow that is over, or has not begun, has nothing to show.
        let is_there = !matches!(self.flows.place(id), Place::Free);
        self.mirrors.set(self.outbox.own(), id, showing.filter(|_| is_there));
    }

    /// Ends a flow after the sends that its source has made.
    fn finish(&mut self, id: FlowId, finish: Finish) {
        self.read_on(id, true);
        if let Some(flow) = self.flows.get(id) {
            flow.finish(finish);
            self.ticks.want();
            self.touch(id);
        }
    }

    fn remove_client(&mut self, client: ClientId) {
        if let Some(state) = self.clients.get_mut(client) {
            state.begin_removal();
            self.forget_client(client);
        }
    }

    fn set_send_ring(&mut self, id: FlowId, bytes: u64) {
        if let Some(flow) = self.flows.get(id) {
            flow.set_send_ring(bytes);
        }
    }

    fn add_pipe(&mut self, client: ClientId, channel: usize, pipe: Option<Arc<WakeEnd>>) {
        if let Some(channel) = self.clients.channel(client, channel) {
            channel.set_pipe(pipe);
        }
    }

    fn count_reported(&mut self, id: FlowId, bytes: u64, messages: u64) {
        if let Some(flow) = self.flows.get(id) {
            counting::count_reported(&self.metrics, self.outbox.own(), flow, bytes, messages);
        }
    }

    /// Gives a flow up; see [`Flow::abort`](super::flow::Flow::abort).
    pub(super) fn abort(&mut self, id: FlowId, send_end: SendEnd, recv_end: Option<u32>) {
        if let Some(flow) = self.flows.get(id) {
            let news = flow.abort(send_end, recv_end);
            self.tell(id, news);
            self.touch(id);
        }
    }

    /// Tells the source of a flow that its peer receives elsewhere, and tells the peer how much still comes here. `known`: the source of a
    /// flow that is over. The source then sends nothing more, and knows by its word that a mark may lie in the kernel.
    fn say_elsewhere(
        &mut self,
        id: FlowId,
        known: Option<&Endpoint>,
        is_over: bool,
        asker: Asking,
        event: Event,
    ) {
        let known =
            known.filter(|end| self.clients.socket(end.client, end.slot.socket(end.generation)).is_some());
        let first = self.flows.get(id).map(|flow| flow.source().place());
        let source = self.flows.get(id).map(|flow| flow.last_sender()).or(known).cloned();
        // Neither sends anything more, also in the kernel.
        let is_over = is_over && self.flows.get(id).is_some_and(|flow| flow.is_shut());
        if let Some(source) = source.as_ref().filter(|_| !is_over) {
            source.memory.publish_u32(source.slot, socket_status::SEND_END, ELSEWHERE);
            // SYNC POINT: elsewhere (the source publishes a send, fences, looks at its word)
            fence(Ordering::SeqCst);
            self.catch_up(source.client, source.slot);
            if first != Some(source.place()) {
                // `wake_ends` below wakes the client whose sends come first.
                Waker::default().wake_always(&source.memory.send_wait(source.slot));
                self.ready_at(source.place());
            }
        }
        let mut position = 0;
        if let Some(flow) = self.flows.get(id) {
            position = flow.position();
            let news = flow.wake_ends();
            self.tell(id, news);
            self.touch(id);
        }
        let Asking { client, mover, channel } = asker;
        let event = event.with_number(event.number() | position);
        if mover == self.outbox.own() {
            self.post(client, channel, event);
        } else {
            self.outbox.tell_mover(mover, ToMover::Post { client, channel, event });
        }
    }

    /// Has both ends of a flow look again.
    pub(super) fn wake_ends(&mut self, id: FlowId, mover: MoverId) {
        if mover != self.outbox.own() {
            self.outbox.tell_mover(mover, ToMover::WakeEnds { flow: id });
            return;
        }
        if let Some(flow) = self.flows.get(id) {
            let news = flow.wake_ends();
            self.tell(id, news);
        }
    }

    pub(super) fn take_ring(&mut self, id: FlowId, ring: Option<Ring>) {
        let Some(flow) = self.flows.get(id) else {
            if let Some(ring) = ring {
                self.tell_conductor(ToConductor::FreeRing { ring });
            }
            return;
        };
        match ring {
            Some(ring) => {
                flow.set_ring(ring);
                self.ticks.want();
                self.resume(id);
            }
            None => {
                if flow.take_ring_asked() {
                    self.division.give(&mut self.scheduler, flow.ring_payer());
                }
            }
        }
    }

    /// Wakes clients that wait for connections. The conductor has published the number of connections.
    pub(super) fn announce_backlog(&mut self, client: ClientId, slot: Slot, count: u64) {
        let Some(state) = self.clients.get(client) else { return };
        Waker::default().wake(&state.memory().recv_wait(slot), count);
        self.post_ready(client, slot);
    }

    /// Takes the sends that a client has left behind, and stops looking at its channels.
    pub(super) fn drain(&mut self, client: ClientId) {
        let channels = match self.clients.get(client) {
            Some(state) => state.channels_end(),
            _ => return,
        };
        let mut taken = 0;
        for index in 0..channels {
            for _ in 0..=pd_abi::limits::REQUEST_RING_ENTRIES {
                let Some(channel) = self.clients.channel(client, index) else { break };
                let Ok(Some(request)) = channel.next_request() else { break };
                taken += 1;
                let accepted = match Operation::from_raw(request.operation) {
                    Some(Operation::Send) => self.take_send(client, &request),
                    Some(Operation::SendFile) => self.take_file_send(client, &request),
                    _ => Ok(()),
                };
                if accepted.is_err() {
                    break;
                }
            }
        }
        if let Some(state) = self.clients.get_mut(client) {
            for channel in state.take_channels() {
                self.doorbells.remove(channel.doorbell());
            }
        }
        let payer = self.clients.payer(client);
        self.scheduler.charge_requests(payer, taken);
        self.scheduler.drop_channels(payer, client);
    }
}
