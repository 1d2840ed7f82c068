//! Several movers in place of one: the destination of the conductor's messages, and transfers between them.
use super::*;
use crate::mover::transfer::{self, Held, Transfer};

/// Movers of all channels. The harness has all of A's sockets but the first on A's first channel.
pub(super) struct Inboxes {
    pub(super) of_movers: Vec<Arc<Mailbox<ToMover>>>,
    /// By client and channel.
    places: Cell<[[MoverId; CHANNELS_OF_A]; 3]>,
    /// The channel of A's first socket.
    home: Cell<usize>,
}

impl Inboxes {
    pub(super) fn new(of_movers: Vec<Arc<Mailbox<ToMover>>>) -> Self {
        Self { of_movers, places: Cell::default(), home: Cell::new(0) }
    }

    /// Returns the mover of a channel.
    pub(super) fn of_channel(&self, client: ClientId, channel: usize) -> MoverId {
        self.places.get()[client.index()][channel]
    }

    fn of_socket(&self, client: ClientId, slot: Slot) -> MoverId {
        let channel = if (client, slot) == (A, FIRST) { self.home.get() } else { 0 };
        self.of_channel(client, channel)
    }

    /// Returns the mover of a flow: that of the socket where it starts.
    pub(super) fn of_flow(&self, flow: FlowId) -> MoverId {
        match flow {
            A_TO_B => self.of_socket(A, FIRST),
            B_TO_A => self.of_socket(B, SECOND),
            B_TO_C => self.of_socket(B, FIRST),
            C_TO_B => self.of_socket(C, FIRST),
            _ => MoverId::default(),
        }
    }

    /// Returns the movers that know a client.
    pub(super) fn of_client(&self, client: ClientId) -> Vec<MoverId> {
        let channels = if client == A { CHANNELS_OF_A } else { 1 };
        let mut movers: Vec<_> = (0..channels).map(|channel| self.of_channel(client, channel)).collect();
        movers.sort_unstable();
        movers.dedup();
        movers
    }

    /// Sends a command to the movers that it is for.
    pub(super) fn send(&self, command: ToMover) {
        use ToMover::*;
        let to = match command {
            AddClient { client, .. } | AddFileSocket { client, .. } => self.of_channel(client, 0),
            AddChannel(ref new) => {
                new.as_ref().map_or(MoverId::default(), |new| self.of_channel(new.client, new.channel))
            }
            AddPipe { client, channel, .. } | Post { client, channel, .. } => {
                self.of_channel(client, channel)
            }
            AddRegion { client, region, ref map } => {
                return self.each(self.of_client(client), || AddRegion {
                    client,
                    region,
                    map: Arc::clone(map),
                });
            }
            SetPayer { client, payer } => {
                return self.each(self.of_client(client), || SetPayer { client, payer })
            }
            Drain { client } => return self.each(self.of_client(client), || Drain { client }),
            RemoveClient { client } => return self.each(self.of_client(client), || RemoveClient { client }),
            SetWeight { tenant, weight } => return self.each(self.all(), || SetWeight { tenant, weight }),
            Scan { sync } => return self.each(self.all(), || Scan { sync }),
            SetBudget { tenant, ref budget } => {
                return self.each(self.all(), || SetBudget { tenant, budget: Arc::clone(budget) });
            }
            // The conductor moves all channels of a client to one mover before it changes a home.
            Home { client, slot, channel }
                if self.of_channel(client, channel) != self.of_socket(client, slot) =>
            {
                return
            }
            Home { client, slot, channel } => {
                if (client, slot) == (A, FIRST) {
                    self.home.set(channel);
                }
                self.of_channel(client, channel)
            }
            OpenSocket { client, slot, .. }
            | CloseSocket { client, slot }
            | Backlog { client, slot, .. }
            | Incoming { client, slot, .. }
            | Ready { client, slot }
            | Nudge { client, slot, .. } => self.of_socket(client, slot),
            AddFlow(ref new) => new.as_ref().map_or(MoverId::default(), |new| new.source.mover),
            WakeEnds { flow }
            | NudgeSource { flow, .. }
            | Reported { flow, .. }
            | Show { flow, .. }
            | SetSendRing { flow, .. }
            | Ring { flow, .. }
            | Finish { flow, .. }
            | Abort { flow, .. }
            | Elsewhere { flow, .. }
            | HandoffDestination { flow, .. }
            | HandoffSource { flow, .. }
            | Leave { flow, .. }
            | Release { flow, .. }
            | SetTenant { flow, .. }
            | Space { flow, .. }
            | FileRead { flow, .. } => self.of_flow(flow),
            Reclaim | ComeBack | FileOpened(_) => MoverId::default(),
        };
        self.of_movers[to.index()].send(command);
    }

    fn all(&self) -> Vec<MoverId> {
        (0..self.of_movers.len()).map(MoverId::at).collect()
    }

    fn each(&self, movers: Vec<MoverId>, command: impl Fn() -> ToMover) {
        movers.into_iter().for_each(|mover| self.of_movers[mover.index()].send(command()));
    }

    fn went(&self, client: ClientId, channel: usize, to: MoverId) {
        let mut places = self.places.get();
        places[client.index()][channel] = to;
        self.places.set(places);
    }
}

impl World {
    /// Returns all movers, by number.
    pub(super) fn movers(&mut self) -> Vec<&mut Mover> {
        std::iter::once(&mut self.mover).chain(&mut self.others).collect()
    }

    /// Has all movers sleep as briefly as possible, and receive doorbells.
    #[cfg(test)]
    fn doze(&mut self) {
        for mover in self.movers() {
            mover.idle(Some(Duration::ZERO), |_| {}, || false);
        }
    }

    /// Moves channels of a client to another mover.
    pub(super) fn transfer(&mut self, client: ClientId, channels: &[usize], to: MoverId) -> Result<(), Held> {
        transfer::settle(&mut self.movers());
        for from in self.inbox.of_client(client).into_iter().filter(|from| *from != to) {
            let inbox = &self.inbox;
            let there = channels.iter().filter(|&&channel| inbox.of_channel(client, channel) == from);
            let places: Vec<_> = there.map(|&channel| (client, channel)).collect();
            if places.is_empty() {
                continue;
            }
            let went = transfer::transfer(&mut self.movers(), Transfer { from, to, places: &places })?;
            places.iter().for_each(|&(client, channel)| self.inbox.went(client, channel, to));
            for flow in FLOWS {
                let of = self.inbox.of_flow(flow);
                assert!(!went.contains(&flow) || of == to, "flow {flow} went without its socket");
                let holds: Vec<_> = self.movers().into_iter().map(|mover| mover.holds(flow)).collect();
                // Flows of A may be over; the others have exactly one mover, the right one.
                let alone = holds.iter().enumerate().all(|(at, holds)| !holds || at == of.index());
                assert!(alone && (flow < B_TO_C || holds[of.index()]), "flow {flow}: {holds:?}, not {of}");
            }
        }
        Ok(())
    }
}

/// Every client moves to every mover while all send and receive, with any engine.
#[test]
fn streams_go_on_while_clients_change_movers() {
    for engine in ["cpu", "fault:seed=1,fail=200,delay=3,reorder", "fault:seed=2,fail=1000"] {
        let mut world = World::with_movers(engine, 3);
        let mut random = 1u64;
        for _ in 0..300 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let [client, channels, to, bytes] = [60, 57, 50, 20].map(|shift| random >> shift);
            let client = [A, B, C][client as usize % 3];
            let channels: &[usize] = match channels % 3 {
                0 if client == A => &[1],
                1 if client == A => &[0],
                _ if client == A => &[0, 1],
                _ => &[0],
            };
            let went = world.transfer(client, channels, MoverId::new(to as u32 % 3));
            assert_eq!(went, Ok(()), "{engine}");
            world.exchange(1 + bytes % 20_000);
        }
        world.finish();
    }
}

/// A doorbell that was rung at one mover counts at the next one as well.
#[test]
fn a_client_that_sleeps_is_noticed_wherever_its_channel_went() {
    let mut world = World::with_movers("cpu", 2);
    for round in 0..40 {
        let to = 1 - round % 2;
        // B has already rung for the numbers of the next sleeps there, at another mover.
        let rung = world.peers[0].rung;
        world.movers()[to as usize].pretend_slept(rung.saturating_sub(1 + round / 2 % 8));
        for client in [A, B, C] {
            world.transfer(client, if client == A { &[0, 1] } else { &[0] }, MoverId::new(to)).unwrap();
        }
        // Earlier doorbells are received again.
        world.doze();
        // All movers are busy.
        for _ in 0..5000 {
            world.step();
        }
        world.movers().into_iter().for_each(|mover| mover.idle(Some(Duration::ZERO), |_| {}, || false));
        assert!(world.send(0, 0, 1000) && world.send(1, 0, 500));
        // A mover with news of one client does not see the other's yet.
        for _ in 0..2 {
            world.doze();
            world.rest();
        }
        let received = [world.receive(0, 0, u64::MAX), world.receive(1, 0, u64::MAX)];
        assert_eq!(received, [500, 1000], "round {round}");
    }
    world.finish();
}

/// A client leaves and another flow gets its flow's number: that flow stays where it is.
#[test]
fn a_client_that_leaves_is_not_moved() {
    let mut world = World::with_movers("cpu", 2);
    world.disconnect();
    assert_eq!(world.transfer(A, &[0, 1], MoverId::new(1)), Err(Held::Bound));
    world.finish();
}

#[test]
fn copies_that_do_not_end_hold_a_flow() {
    let mut world = World::with_movers("fault:seed=1,delay=100000000", 2);
    assert!(world.send(0, 0, 1000));
    while !world.mover.is_copying() {
        world.step();
    }
    assert_eq!(world.transfer(B, &[0], MoverId::new(1)), Err(Held::UnderWay));
    assert_eq!(world.transfer(C, &[0], MoverId::new(1)), Ok(()));
}
