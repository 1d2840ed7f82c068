//! Three clients, a mover, and this harness in place of the conductor.
use super::movers::Inboxes;
use super::*;

#[derive(Default)]
pub(super) struct ManualClock(pub(super) AtomicU64);

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Returns the bytes of a client's send region: in A's, marks; in the others', two periods and more of a stream.
pub(super) fn region_bytes(client: ClientId) -> &'static [u8] {
    static BYTES: LazyLock<[Vec<u8>; 3]> = LazyLock::new(|| {
        [A, B, C].map(|client| {
            let byte = |at: u64| match client {
                A => MARKS.start + (at % u64::from(MARKS.end - MARKS.start)) as u8,
                _ => ((at % PERIOD + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (30 + client.get())) as u8,
            };
            (0..SEND_REGION_BYTES as u64).map(byte).collect()
        })
    });
    &BYTES[client.index()]
}

/// Returns the aligned word at `at` of a client's memory.
pub(super) fn word(map: &Mapping, at: usize) -> [u8; 8] {
    map.load_u64(at & !7, Ordering::Relaxed).to_le_bytes()
}

impl World {
    #[cfg(test)]
    pub(super) fn new(engine: &str) -> Self {
        Self::with_movers(engine, 1)
    }

    pub(super) fn with_movers(engine: &str, count: usize) -> Self {
        let clock = Arc::new(ManualClock::default());
        let inboxes: Vec<_> = (0..count).map(|_| Mailbox::new().expect("a mailbox")).collect();
        let outbox = Mailbox::new().expect("a mailbox");
        let engine = pd_engine::by_name(engine).expect("an engine");
        let counters = crate::metrics::region(count, 4, 4, 0).expect("memory");
        let mover = |at| {
            let (id, spin, ring_idle) = (MoverId::at(at), Duration::ZERO, Duration::from_secs(1));
            let metrics = Arc::new(Metrics::new(&counters, 1 + at));
            let conductor = Outbox::Mailbox(Arc::clone(&outbox));
            let clock = Arc::clone(&clock) as Arc<dyn Clock>;
            let settings = MoverSettings { id, spin, ring_idle };
            Mover::new(settings, clock, &engine, &inboxes, conductor, metrics, Arc::default())
                .expect("a mover")
        };
        let (first, others) = (mover(0), (1..count).map(mover).collect());
        let mut world = Self {
            clock,
            mover: first,
            others,
            inbox: Inboxes::new(inboxes),
            outbox,
            parties: Vec::new(),
            peers: Vec::new(),
            published: [0; CHANNELS_OF_A],
            rings: [false; 4],
            rings_given: [0; 4],
            denied: Vec::new(),
            deny: 0,
            violation: None,
            disconnected: false,
            closed: false,
            gone: false,
            forgotten: 0,
            flows_done: [false; 4],
            pipe: None,
        };
        for client in [A, B, C] {
            world.attach(client);
        }
        world.open(A, FIRST);
        world.open(B, FIRST);
        world.open(B, SECOND);
        world.open(C, FIRST);
        world.connect(A_TO_B, (A, FIRST), (B, SECOND));
        world.connect(B_TO_C, (B, FIRST), (C, FIRST));
        world.step();
        world
    }

    pub(super) fn attach(&mut self, client: ClientId) {
        let pool = Pool::new(1 << 30, HugepageUse::Off);
        let (memory, [control_fd, status_fd]) =
            ClientMemory::new(client.get().into(), None).expect("control memory");
        let memory = Arc::new(memory);
        let control = Mapping::new(&control_fd, REGION_BYTES, Protection::ReadWrite).expect("a mapping");
        memfd::seal_against_all(&control_fd).expect("a seal");
        let status = Mapping::new(&status_fd, REGION_BYTES, Protection::Read).expect("a mapping");
        let (control, status) = (Arc::new(control), Arc::new(status));
        let payer = payer(TenantId::default(), client.get().into());
        let account = Arc::clone(pool.root());
        let known = Arc::clone(&memory);
        self.inbox.send(ToMover::AddClient { client, payer, account, memory: known });
        let mut doorbells = Vec::new();
        for channel in 0..if client == A { CHANNELS_OF_A } else { 1 } {
            let (requests, events) = memory.channel(channel).expect("a channel");
            let doorbell = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
            doorbells.push(doorbell.try_clone().expect("a descriptor"));
            self.inbox.send(ToMover::AddChannel(Some(Box::new(NewChannel {
                client,
                channel,
                requests,
                events,
                doorbell,
            }))));
        }
        let lease = |bytes| pool.root().lease(Amounts::memory(bytes)).expect("budget");
        let (send, send_fd) = pool.send_region(lease(SEND_REGION_BYTES as u64)).expect("memory");
        let fill = Mapping::new(&send_fd, SEND_REGION_BYTES, Protection::ReadWrite).expect("a mapping");
        for (index, bytes) in region_bytes(client).chunks_exact(8).enumerate() {
            let word = bytes.try_into().map(u64::from_le_bytes).expect("eight bytes");
            fill.store_u64(index * 8, word, Ordering::Relaxed);
        }
        memfd::seal_against_all(&send_fd).expect("a seal");
        self.inbox.send(ToMover::AddRegion { client, region: 0, map: Arc::clone(&send.map) });
        // Guard pages, and a place for each of two rings between them.
        let pages = 2 * (GUARD_PAGES + RING_PAGES);
        let (receive, _) =
            pool.receive_region(lease(u64::from(pages) * PAGE_BYTES as u64), RING_BYTES).expect("memory");
        for word in (0..receive.map.len()).step_by(8) {
            receive.map.store_u64(word, GUARD, Ordering::Relaxed);
        }
        let receive = receive.map;
        if client != A {
            let at = channel_offset(0);
            let requests = SharedCells::new(
                (
                    Arc::clone(&control),
                    at + channel_control::REQUEST_PRODUCER,
                    at + channel_control::REQUESTS,
                ),
                (Arc::clone(&status), at + channel_status::REQUEST_CONSUMER),
                REQUEST_RING_ENTRIES,
            );
            let events = SharedCells::new(
                (Arc::clone(&status), at + channel_status::EVENT_PRODUCER, at + channel_status::EVENTS),
                (Arc::clone(&control), at + channel_control::EVENT_CONSUMER),
                EVENT_RING_ENTRIES,
            );
            let lines = match client {
                B => vec![Line::new(FIRST, C), Line::new(SECOND, A)],
                _ => vec![Line::new(FIRST, B)],
            };
            let (requests, events) = (Producer::new(requests), Consumer::new(events));
            self.peers.push(Peer { client, requests, events, rung: 0, lines, open: None });
        }
        self.parties.push(Party { memory, control, status, doorbells, receive });
    }

    pub(super) fn open(&mut self, client: ClientId, slot: Slot) {
        let party = &self.parties[client.index()];
        party.memory.populate_slot(slot).expect("memory");
        party.memory.open_slot(slot, GENERATION);
        self.inbox.send(ToMover::OpenSocket { client, slot, generation: GENERATION, channel: 0 });
        if client != A {
            let at = socket_offset(slot.get());
            party.control.store_u32(at + socket_control::SUBSCRIBED, 1, Ordering::Relaxed);
            let generation = GENERATION.into();
            party.control.store_u32(at + socket_control::GENERATION, generation, Ordering::Release);
        }
    }

    pub(super) fn connect(&mut self, flow: FlowId, one: (ClientId, Slot), other: (ClientId, Slot)) {
        for (flow, source, destination) in [(flow, one, other), (flow.peer(), other, one)] {
            let endpoint = |(client, slot): (ClientId, Slot)| Endpoint {
                client,
                serial: u64::from(client.get()) + 1,
                slot,
                generation: GENERATION,
                memory: Arc::clone(&self.parties[client.index()].memory),
                mover: self.inbox.of_channel(client, 0),
            };
            self.inbox.send(ToMover::AddFlow(Some(Box::new(NewFlow {
                id: flow,
                tenant: TenantId::default(),
                lasts: false,
                source: endpoint(source),
                destination: endpoint(destination),
                send_ring_bytes: SEND_RING_BYTES,
                serial: u64::from(flow.connection().get()) + 1,
            }))));
        }
    }

    /// Returns the place of a flow's ring, and its client.
    pub(super) fn place(flow: FlowId) -> (ClientId, u32) {
        match flow {
            A_TO_B => (B, GUARD_PAGES),
            B_TO_A => (A, GUARD_PAGES),
            B_TO_C => (C, GUARD_PAGES),
            _ => (B, GUARD_PAGES + RING_PAGES),
        }
    }

    pub(super) fn grant(&mut self, flow: FlowId) {
        assert!(!self.rings[flow.index()], "flow {flow} asks for a second ring");
        self.rings[flow.index()] = true;
        let (client, page) = Self::place(flow);
        let map = Arc::clone(&self.parties[client.index()].receive);
        // Smaller than wished, so that a full ring is exchanged, for one in the same place.
        let wished = 2 * RING_BYTES;
        let ring = Some(Ring {
            client,
            serial: 0,
            region: 1,
            page,
            pages: RING_PAGES,
            wished,
            is_first: false,
            map,
        });
        self.inbox.send(ToMover::Ring { flow, ring });
    }

    /// Runs one turn of the movers, and the conductor's reaction. Returns whether there was work.
    pub(super) fn step(&mut self) -> bool {
        let all = self.movers().into_iter();
        let worked = all.fold(false, |any, mover| (mover.step() || mover.is_copying()) | any);
        worked | self.conduct()
    }

    pub(super) fn conduct(&mut self) -> bool {
        let mut news = VecDeque::new();
        self.outbox.drain(&mut news);
        let worked = !news.is_empty();
        for item in news {
            match item {
                ToConductor::Control { client, channel, request, .. } => {
                    if request.operation == Operation::Sync as u8 {
                        self.inbox.send(ToMover::Scan { sync: 0 });
                    } else if request.operation != Operation::Close as u8 {
                        let event = Event::answer(SocketId(request.socket), request.tag, 0);
                        self.inbox.send(ToMover::Post { client, channel, event });
                    }
                }
                ToConductor::Violation { client, violation } => {
                    assert_eq!(client, A, "a client that keeps the protocol is accused: {violation}");
                    self.violation.get_or_insert(violation);
                    self.disconnect();
                }
                ToConductor::NeedRing { flow, .. } if self.deny > 0 => {
                    self.deny -= 1;
                    self.denied.push(flow);
                }
                ToConductor::NeedRing { flow, .. } => self.grant(flow),
                ToConductor::FreeRing { ring } => {
                    let client = ring.client;
                    let whose = FLOWS.into_iter().find(|&flow| Self::place(flow) == (client, ring.page));
                    let flow = whose.expect("a ring that was given");
                    assert_eq!(ring.pages, RING_PAGES);
                    assert!(Arc::ptr_eq(&ring.map, &self.parties[client.index()].receive));
                    let held = std::mem::replace(&mut self.rings[flow.index()], false);
                    assert!(held, "flow {flow} gives a ring back twice");
                    self.rings_given[flow.index()] += 1;
                    // A client that has not read it yet reads other bytes now.
                    let first = ring.page as usize * PAGE_BYTES;
                    for word in (first..first + RING_BYTES as usize).step_by(8) {
                        ring.map.store_u64(word, GUARD, Ordering::Relaxed);
                    }
                }
                ToConductor::FlowDone { flow } => {
                    assert!(flow < B_TO_C, "a flow of clients that live is over");
                    assert!(!self.rings[flow.index()], "flow {flow} is over and keeps its ring");
                    assert!(!std::mem::replace(&mut self.flows_done[flow.index()], true));
                    self.denied.retain(|denied| *denied != flow);
                }
                ToConductor::RegionAdded { .. }
                | ToConductor::Released { .. }
                | ToConductor::Drained { .. }
                | ToConductor::Gone { .. }
                | ToConductor::BrokeRing { .. }
                | ToConductor::Scanned { .. } => {}
                ToConductor::Apply { .. }
                | ToConductor::Staged { .. }
                | ToConductor::KernelCounted
                | ToConductor::Cores { .. } => {
                    unreachable!("not a mover's")
                }
                ToConductor::ClientGone { client } => {
                    assert!(client == A && self.disconnected && !self.gone);
                    self.forgotten += 1;
                    self.gone = self.forgotten == self.inbox.of_client(A).len();
                }
            }
        }
        worked
    }

    /// Reacts as a conductor to a client that died or is cut off.
    pub(super) fn disconnect(&mut self) {
        if std::mem::replace(&mut self.disconnected, true) {
            return;
        }
        self.inbox.send(ToMover::Drain { client: A });
        self.end_sides(Some(self.clock.now()));
        self.inbox.send(ToMover::RemoveClient { client: A });
    }

    pub(super) fn end_sides(&mut self, died: Option<Duration>) {
        let finish = Finish { end: ENDED, late_errno: RESET, deadline: died, source_gone: died.is_some() };
        let send_end = if died.is_some() { RESET } else { ENDED };
        self.inbox.send(ToMover::Finish { flow: A_TO_B, finish });
        self.inbox.send(ToMover::Abort { flow: B_TO_A, send_end: SendEnd::by(send_end), recv_end: None });
    }

    pub(super) fn request_on(&mut self, channel: usize, request: Request) {
        let place = self.published[channel] as usize % REQUEST_RING_ENTRIES as usize;
        let at = channel_offset(channel) + channel_control::REQUESTS + place * size_of::<Request>();
        self.parties[0].control.write(at, &request);
        self.publish(channel, self.published[channel].wrapping_add(1));
    }

    /// Replaces the word of the request that an honest client would have written last.
    pub(super) fn grow(&mut self, channel: usize, word: u64) {
        let place = self.published[channel].wrapping_sub(1) as usize % REQUEST_RING_ENTRIES as usize;
        let at = channel_offset(channel) + channel_control::REQUESTS + place * size_of::<Request>();
        self.parties[0].control.store_u64(at + Request::SEND_WORD, word, Ordering::Release);
    }

    pub(super) fn publish(&mut self, channel: usize, value: u64) {
        self.published[channel] = value;
        let at = channel_offset(channel) + channel_control::REQUEST_PRODUCER;
        self.parties[0].control.store_u64(at, value, Ordering::Release);
    }

    /// Writes a word of A's own line.
    pub(super) fn write_line(&self, word: usize, value: u64) {
        self.parties[0].control.store_u64(socket_offset(0) + word, value, Ordering::Release);
    }

    /// Runs turns until there is no work.
    pub(super) fn rest(&mut self) {
        let turns = (0..TURNS_MAX).take_while(|_| self.step()).count();
        assert!(turns < TURNS_MAX, "the mover does not come to rest");
    }

    /// Checks the conditions that hold after any program.
    pub(super) fn finish(mut self) {
        self.deny = 0;
        std::mem::take(&mut self.denied).into_iter().for_each(|flow| self.grant(flow));
        // Requests in A's rings are seen even if A has not rung.
        (0..CHANNELS_OF_A).for_each(|channel| self.parties[0].ring_doorbell(channel));
        self.pass(Duration::from_millis(10));
        // Empty rings are given back, and no others.
        self.pass(Duration::from_secs(2));
        self.exchange(2 * RING_BYTES + 100);
        if self.violation.is_some() || self.disconnected {
            self.check_gone();
        }
        self.check_guards();
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.clock.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        self.rest();
    }

    /// Has B and C send each other `bytes` more, and checks every byte.
    pub(super) fn exchange(&mut self, bytes: u64) {
        let goals = [self.peers[0].lines[0].sent + bytes, self.peers[1].lines[0].sent + bytes];
        let mut turns = 0;
        while self.peers[0].lines[0].received < goals[1] || self.peers[1].lines[0].received < goals[0] {
            for (peer, goal) in goals.into_iter().enumerate() {
                let left = goal - self.peers[peer].lines[0].sent;
                if left > 0 {
                    self.send(peer, 0, left.min(3000));
                }
                self.receive(peer, 0, u64::MAX);
            }
            self.receive(0, 1, u64::MAX);
            self.step();
            turns += 1;
            assert!(turns < TURNS_MAX, "B and C wait for each other: {goals:?}");
        }
    }

    /// Checks that A is forgotten, and that its peer knows.
    pub(super) fn check_gone(&mut self) {
        for _ in 0..50 {
            self.pass(Duration::from_millis(200));
            while self.receive(0, 1, u64::MAX) > 0 {
                self.rest();
            }
        }
        assert!(self.gone, "A broke the protocol and is still there: {:?}", self.violation);
        assert!(self.flows_done[0], "what A sent is still there");
        for mover in self.movers() {
            assert!(mover.payer_count() <= 3, "who paid for A is still there");
        }
        let b = &self.parties[B.index()];
        assert_ne!(b.status_u32(SECOND, socket_status::SEND_END), 0);
        assert_ne!(b.status_u32(SECOND, socket_status::RECV_END), 0);
    }

    pub(super) fn check_guards(&self) {
        for (client, party) in self.parties.iter().enumerate() {
            let rings = if client == B.index() { 2 } else { 1 };
            let first = GUARD_PAGES as usize * PAGE_BYTES;
            let behind = first + rings * RING_PAGES as usize * PAGE_BYTES;
            for word in (0..first).chain(behind..party.receive.len()).step_by(8) {
                let got = party.receive.load_u64(word, Ordering::Relaxed);
                assert_eq!(got, GUARD, "client {client}: {word:#x} was written");
            }
        }
    }
}
