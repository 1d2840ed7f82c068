//! A mover against a client that writes anything anywhere it can: the oracle of the property tests below
//! and of `fuzz/fuzz_targets/requests.rs`.
//!
//! Three clients share one mover, which runs without its conductor (this harness answers for it):
//!
//! ```text
//! A (hostile)  slot 0 ──flow 0──▶ slot 1  B  slot 0 ──flow 2──▶ slot 0  C
//!                     ◀──flow 1──                   ◀──flow 3──
//! ```
//!
//! A program is a string of bytes: words and requests that A writes into its control region, turns of
//! the mover, time that passes, what B and C send and receive, and what a conductor might say of A.
//! Whatever it does: no panic; bounded work; B and C get every byte of each other's streams in order;
//! B gets from A bytes of A's own region only; nothing outside a receive ring is written; only A is
//! ever accused, and once accused it is gone in bounded time.
use super::{Mover, MoverSettings};
use crate::clock::Clock;
use crate::ids::{ClientId, FlowId, MoverId, Slot, TenantId};
use crate::mailbox::{Mailbox, Outbox};
use crate::memory::{Amounts, ClientMemory, HugepageUse, Pool};
use crate::messages::{payer, Endpoint, Finish, NewChannel, NewFlow, Ring, ToConductor, ToMover, Violation};
use crate::metrics::Metrics;
use crate::policy::WEIGHT_MAX;
use pd_abi::layout::{
    channel_control, channel_offset, channel_status, socket_control, socket_offset, socket_status, ENDED,
    REGION_BYTES,
};
use pd_abi::limits::{EVENT_RING_ENTRIES, PAGE_BYTES, REQUEST_RING_ENTRIES};
use pd_abi::{Event, EventKind, FileId, Operation, Request, SocketId, Span};
use pd_shm::ring::{Consumer, Producer, SharedCells};
use pd_shm::{memfd, Mapping, Protection};
use peers::{Line, Party, Peer};
use rustix::event::{eventfd, EventfdFlags};
use rustix::io::Errno;
use rustix::pipe::{pipe_with, PipeFlags};
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const A: ClientId = ClientId::new(0);
const B: ClientId = ClientId::new(1);
const C: ClientId = ClientId::new(2);
const FIRST: Slot = Slot::new(0);
const SECOND: Slot = Slot::new(1);
const A_TO_B: FlowId = FlowId::new(0);
const B_TO_A: FlowId = A_TO_B.peer();
const B_TO_C: FlowId = FlowId::new(2);
const C_TO_B: FlowId = B_TO_C.peer();
const FLOWS: [FlowId; 4] = [A_TO_B, B_TO_A, B_TO_C, C_TO_B];
/// Of the hostile client; the others have one.
const CHANNELS_OF_A: usize = 2;
const GENERATION: u16 = 7;
const SEND_RING_BYTES: u64 = 16 << 10;
const SEND_REGION_BYTES: usize = 4 * PAGE_BYTES;
/// Streams of B and C repeat after so many bytes: no power of two, so that a wrong page shows.
const PERIOD: u64 = 4093;
const SEND_BYTES_MAX: u64 = SEND_REGION_BYTES as u64 - PERIOD;
const RING_PAGES: u32 = 2;
const RING_BYTES: u64 = RING_PAGES as u64 * PAGE_BYTES as u64;
const GUARD_PAGES: u32 = 1;
const GUARD: u64 = 0xEEEE_EEEE_EEEE_EEEE;
/// A's region holds bytes of this range only.
const MARKS: std::ops::Range<u8> = 0x10..0x3F;
/// Turns in which a mover has to come to rest, whatever it was given.
const TURNS_MAX: usize = 20_000;
const RESET: u32 = Errno::CONNRESET.raw_os_error() as u32;

/// Runs a program.
///
/// # Panics
/// If the mover does what it must not.
pub fn run(program: &[u8]) {
    let Some((&first, rest)) = program.split_first() else { return };
    let engine = match first % 4 {
        0 => "fault:seed=1,fail=200,delay=3,reorder",
        _ => "cpu",
    };
    let mut world = World::new(engine);
    let mut program = Program(rest);
    while !program.0.is_empty() {
        world.obey(&mut program);
    }
    world.finish();
}

/// A byte string, taken piece by piece; zeros after its end.
struct Program<'a>(&'a [u8]);

impl Program<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }
    fn short(&mut self) -> u64 {
        u16::from_le_bytes(self.bytes()).into()
    }
    /// A number near `value`, or any.
    fn near(&mut self, value: u64) -> u64 {
        match self.byte() {
            0 => u64::from_le_bytes(self.bytes()),
            1 => u64::MAX,
            2 => 0,
            3 => value.wrapping_add(self.short()),
            delta => value.wrapping_add((delta as i8 as i64 - 4) as u64),
        }
    }
}

#[derive(Default)]
struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// What lies in a client's send region: in A's, marks; in the others', two periods and more of a stream.
fn region_bytes(client: ClientId) -> &'static [u8] {
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

/// The aligned word at `at` of a client's memory.
fn word(map: &Mapping, at: usize) -> [u8; 8] {
    map.load_u64(at & !7, Ordering::Relaxed).to_le_bytes()
}

struct World {
    clock: Arc<ManualClock>,
    mover: Mover,
    inbox: Arc<Mailbox<ToMover>>,
    outbox: Arc<Mailbox<ToConductor>>,
    parties: Vec<Party>,
    peers: Vec<Peer>,
    /// Requests that A has published, as it counts them, by channel.
    published: [u64; CHANNELS_OF_A],
    /// By flow: whether it holds a ring.
    rings: [bool; 4],
    /// By flow: rings that it has given back.
    rings_given: [u32; 4],
    /// Flows that were denied a ring.
    denied: Vec<FlowId>,
    deny: u8,
    violation: Option<Violation>,
    buried: bool,
    closed: bool,
    gone: bool,
    flows_done: [bool; 4],
    /// The reader of A's wake pipe.
    pipe: Option<OwnedFd>,
}

impl World {
    fn new(engine: &str) -> Self {
        let clock = Arc::new(ManualClock::default());
        let inbox = Mailbox::new().expect("a mailbox");
        let outbox = Mailbox::new().expect("a mailbox");
        let settings =
            MoverSettings { id: MoverId::default(), spin: Duration::ZERO, ring_idle: Duration::from_secs(1) };
        let engine = pd_engine::by_name(engine).expect("an engine");
        let inboxes = [Arc::clone(&inbox)];
        let counters = crate::metrics::region(1, 4, 4, 0).expect("memory");
        let (as_clock, metrics) = (Arc::clone(&clock), Arc::new(Metrics::new(&counters, 1)));
        let conductor = Outbox::Mailbox(Arc::clone(&outbox));
        let mover = Mover::new(settings, as_clock, &engine, &inboxes, conductor, metrics, Arc::default());
        let mut world = Self {
            clock,
            mover: mover.expect("a mover"),
            inbox,
            outbox,
            parties: Vec::new(),
            peers: Vec::new(),
            published: [0; CHANNELS_OF_A],
            rings: [false; 4],
            rings_given: [0; 4],
            denied: Vec::new(),
            deny: 0,
            violation: None,
            buried: false,
            closed: false,
            gone: false,
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

    fn attach(&mut self, client: ClientId) {
        let pool = Pool::new(1 << 30, HugepageUse::Off);
        let (memory, [control_fd, status_fd]) =
            ClientMemory::new(client.get().into()).expect("control memory");
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
        // Guards, and between them a place for each of two rings.
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
            self.peers.push(Peer { client, requests, events, rung: 0, lines });
        }
        self.parties.push(Party { memory, control, status, doorbells, receive });
    }

    fn open(&mut self, client: ClientId, slot: Slot) {
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

    fn connect(&mut self, flow: FlowId, one: (ClientId, Slot), other: (ClientId, Slot)) {
        for (flow, source, destination) in [(flow, one, other), (flow.peer(), other, one)] {
            let endpoint = |(client, slot): (ClientId, Slot)| Endpoint {
                client,
                serial: u64::from(client.get()) + 1,
                slot,
                generation: GENERATION,
                memory: Arc::clone(&self.parties[client.index()].memory),
                mover: MoverId::default(),
            };
            self.inbox.send(ToMover::AddFlow(Some(Box::new(NewFlow {
                id: flow,
                tenant: TenantId::default(),
                source: endpoint(source),
                destination: endpoint(destination),
                send_ring_bytes: SEND_RING_BYTES,
                serial: u64::from(flow.connection().get()) + 1,
            }))));
        }
    }

    /// Where a flow's ring lies, and whose it is.
    fn place(flow: FlowId) -> (ClientId, u32) {
        match flow {
            A_TO_B => (B, GUARD_PAGES),
            B_TO_A => (A, GUARD_PAGES),
            B_TO_C => (C, GUARD_PAGES),
            _ => (B, GUARD_PAGES + RING_PAGES),
        }
    }

    fn grant(&mut self, flow: FlowId) {
        assert!(!self.rings[flow.index()], "flow {flow} asks for a second ring");
        self.rings[flow.index()] = true;
        let (client, page) = Self::place(flow);
        let map = Arc::clone(&self.parties[client.index()].receive);
        // Smaller than wished, so that one that was full is exchanged, for one in the same place.
        let wished = 2 * RING_BYTES;
        let ring = Some(Ring { client, serial: 0, region: 1, page, pages: RING_PAGES, wished, map });
        self.inbox.send(ToMover::Ring { flow, ring });
    }

    /// One turn of the mover, and what a conductor does about it. Says whether there was work.
    fn step(&mut self) -> bool {
        let worked = self.mover.step() || self.mover.engines.in_flight() > 0;
        worked | self.conduct()
    }

    fn conduct(&mut self) -> bool {
        let mut news = VecDeque::new();
        self.outbox.drain(&mut news);
        let worked = !news.is_empty();
        for item in news {
            match item {
                ToConductor::Control { client, channel, request, .. } => {
                    if Operation::from_raw(request.operation) != Some(Operation::Close) {
                        let event = Event::answer(SocketId(request.socket), request.tag, 0);
                        self.inbox.send(ToMover::Post { client, channel, event });
                    }
                }
                ToConductor::Violation { client, violation } => {
                    assert_eq!(client, A, "a client that keeps the protocol is accused: {violation}");
                    self.violation.get_or_insert(violation);
                    self.bury();
                }
                ToConductor::NeedRing { flow, .. } if self.deny > 0 => {
                    self.deny -= 1;
                    self.denied.push(flow);
                    self.inbox.send(ToMover::Ring { flow, ring: None });
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
                    // Whoever has not read it yet reads something else now.
                    let first = ring.page as usize * PAGE_BYTES;
                    for word in (first..first + RING_BYTES as usize).step_by(8) {
                        ring.map.store_u64(word, GUARD, Ordering::Relaxed);
                    }
                }
                ToConductor::FlowDone { flow } => {
                    assert!(flow < B_TO_C, "a flow of clients that live is over");
                    assert!(!self.rings[flow.index()], "flow {flow} is over and keeps its ring");
                    assert!(!std::mem::replace(&mut self.flows_done[flow.index()], true));
                }
                ToConductor::RegionAdded { .. }
                | ToConductor::LetGo { .. }
                | ToConductor::Gone { .. }
                | ToConductor::BrokeRing { .. } => {}
                ToConductor::Apply { .. } => unreachable!("not a mover's"),
                ToConductor::ClientGone { client } => {
                    assert!(client == A && self.buried && !self.gone);
                    self.gone = true;
                }
            }
        }
        worked
    }

    /// What the conductor does about a client that died or is cut off.
    fn bury(&mut self) {
        if std::mem::replace(&mut self.buried, true) {
            return;
        }
        self.inbox.send(ToMover::Drain { client: A });
        self.hang_up(Some(self.clock.now()));
        self.inbox.send(ToMover::RemoveClient { client: A });
    }

    fn hang_up(&mut self, died: Option<Duration>) {
        let finish = Finish { end: ENDED, late_errno: RESET, deadline: died, source_gone: died.is_some() };
        let send_end = if died.is_some() { RESET } else { ENDED };
        self.inbox.send(ToMover::Finish { flow: A_TO_B, finish });
        self.inbox.send(ToMover::Abort { flow: B_TO_A, send_end, recv_end: None });
    }

    fn obey(&mut self, program: &mut Program<'_>) {
        match program.byte() % 18 {
            0 => {
                let at = Self::somewhere(program);
                let value = program.near(0);
                self.parties[0].control.store_u64(at, value, Ordering::Relaxed);
            }
            1 => {
                let at = Self::somewhere(program) + 4 * usize::from(program.byte() % 2);
                let value = u32::from_le_bytes(program.bytes());
                self.parties[0].control.store_u32(at, value, Ordering::Relaxed);
            }
            2 => {
                let words: [[u8; 8]; 4] = std::array::from_fn(|_| program.bytes());
                let mut request = Request { operation: words[0][0], ..Request::default() };
                request.socket = u32::from_le_bytes([words[1][0], words[1][1], words[1][2], words[1][3]]);
                request.payload[..8].copy_from_slice(&words[2]);
                request.payload[8..].copy_from_slice(&words[3]);
                self.request(program, request);
            }
            3 | 4 => {
                let socket = Self::socket(program);
                let (region, offset) = ((program.byte() % 64 == 63).into(), program.short() / 4);
                let len = match program.byte() {
                    0 => program.near(SEND_REGION_BYTES as u64 - offset),
                    scale => program.short() / u64::from(scale),
                };
                self.request(program, Request::send(socket, Span { region, offset, len }));
            }
            5 => {
                let mut request = Request { operation: program.byte() % 13, ..Request::default() };
                (request.socket, request.tag) = (Self::socket(program).0, program.byte().into());
                self.request(program, request);
            }
            6 => {
                let channel = usize::from(program.byte()) % CHANNELS_OF_A;
                let value = program.near(self.published[channel]);
                self.publish(channel, value);
            }
            7 => {
                let delivered = self.parties[0].status_u64(FIRST, socket_status::RECV_PRODUCER);
                let value = program.near(delivered);
                self.write_line(socket_control::RECV_CONSUMER, value);
            }
            8 => self.write_line_word(program),
            9 => {
                let channel = usize::from(program.byte()) % CHANNELS_OF_A;
                let at = channel_offset(channel);
                let produced =
                    self.parties[0].status.load_u64(at + channel_status::EVENT_PRODUCER, Ordering::Acquire);
                let (word, value) = match program.byte() % 4 {
                    0 => (channel_control::EVENT_CONSUMER, program.near(produced)),
                    1 => (channel_control::EVENT_WAKE_AT, program.near(produced)),
                    2 => (channel_control::PIPE_WANTED, program.byte().into()),
                    _ => (channel_control::EVENT_CONSUMER, produced),
                };
                self.parties[0].control.store_u64(at + word, value, Ordering::Release);
            }
            10 | 11 => {
                for _ in 0..=program.byte() % 8 {
                    self.step();
                }
            }
            12 => {
                // Sees no news at first, and finds some after it has armed everything: no sleep.
                let looks = Cell::new(0);
                self.mover.idle(None, |_| {}, || looks.replace(looks.get() + 1) > 0);
            }
            13 => {
                let (peer, line) = (program.byte() % 2, program.byte());
                self.send(peer.into(), line.into(), program.short() % SEND_BYTES_MAX + 1);
            }
            14 => {
                let (peer, line) = (program.byte() % 2, program.byte());
                self.receive(peer.into(), line.into(), program.short());
            }
            15 => {
                let nanos = program.short() << (program.byte() % 16);
                self.clock.0.fetch_add(nanos, Ordering::Relaxed);
                // As if there were as many flows that share what there is for rings: from 1,024 on these are too large.
                self.mover.division.pretend_busy(u64::from(program.byte()) << 4);
            }
            16 => self.rule(program),
            _ => self.parties[0].ring_doorbell(usize::from(program.byte()) % CHANNELS_OF_A),
        }
    }

    /// An aligned word of A's control region: of its channels, of the first lines, or any.
    fn somewhere(program: &mut Program<'_>) -> usize {
        let (choice, index) = (program.byte(), program.short() as usize);
        let at = match choice % 4 {
            0 => channel_offset(usize::from(choice >> 2) % CHANNELS_OF_A) + index % 0x180,
            1 => channel_offset(usize::from(choice >> 2) % CHANNELS_OF_A) + index,
            2 => socket_offset(0) + index % 0x100,
            _ => index << 7 | usize::from(choice),
        };
        at.min(REGION_BYTES - 8) & !7
    }

    fn socket(program: &mut Program<'_>) -> SocketId {
        match program.byte() {
            0 => SocketId(u32::from_le_bytes(program.bytes())),
            1 => SocketId::new(program.short() as u16, GENERATION),
            2 => SocketId::new(0, program.byte().into()),
            _ => SocketId::new(0, GENERATION),
        }
    }

    /// Writes a request where an honest client would and publishes it.
    fn request(&mut self, program: &mut Program<'_>, request: Request) {
        let channel = usize::from(program.byte()) % CHANNELS_OF_A;
        self.request_on(channel, request);
    }

    fn request_on(&mut self, channel: usize, request: Request) {
        let place = self.published[channel] as usize % REQUEST_RING_ENTRIES as usize;
        let at = channel_offset(channel) + channel_control::REQUESTS + place * size_of::<Request>();
        self.parties[0].control.write(at, &request);
        self.publish(channel, self.published[channel].wrapping_add(1));
    }

    fn publish(&mut self, channel: usize, value: u64) {
        self.published[channel] = value;
        let at = channel_offset(channel) + channel_control::REQUEST_PRODUCER;
        self.parties[0].control.store_u64(at, value, Ordering::Release);
    }

    /// Writes a word of A's own line.
    fn write_line(&self, word: usize, value: u64) {
        self.parties[0].control.store_u64(socket_offset(0) + word, value, Ordering::Release);
    }

    fn write_line_word(&mut self, program: &mut Program<'_>) {
        let party = &self.parties[0];
        let at = socket_offset(0);
        let (word, base) = match program.byte() % 6 {
            0 => (socket_control::RECV_WAKE_AT, party.status_u64(FIRST, socket_status::RECV_PRODUCER)),
            1 => (socket_control::SEND_WAKE_AT, party.status_u64(FIRST, socket_status::SEND_CONSUMER)),
            2 => (socket_control::SUBSCRIBED, 1),
            3 => (socket_control::EVENT_ACK, party.status_u32(FIRST, socket_status::EVENT_NUMBER).into()),
            _ => (socket_control::GENERATION, GENERATION.into()),
        };
        let value = program.near(base);
        if word < socket_control::SUBSCRIBED {
            party.control.store_u64(at + word, value, Ordering::Release);
        } else {
            party.control.store_u32(at + word, value as u32, Ordering::Release);
        }
    }

    /// Something that the conductor may say at any time.
    fn rule(&mut self, program: &mut Program<'_>) {
        match program.byte() % 14 {
            0 => self.inbox.send(ToMover::SetSendRing { flow: A_TO_B, bytes: program.short() << 3 }),
            1 => self.inbox.send(ToMover::Home {
                client: A,
                slot: FIRST,
                channel: usize::from(program.byte()) % CHANNELS_OF_A,
            }),
            2 => self.inbox.send(ToMover::Backlog {
                client: A,
                slot: Slot::new(5),
                count: program.byte().into(),
            }),
            3 => self.inbox.send(ToMover::Ready { client: A, slot: FIRST }),
            4 => self.deny = program.byte() % 4,
            5 => {
                for flow in std::mem::take(&mut self.denied) {
                    self.inbox.send(ToMover::Resume { flow });
                }
            }
            6 => self.inbox.send(ToMover::Resume { flow: FlowId::new(u32::from(program.byte()) % 6) }),
            7 if !self.buried && !std::mem::replace(&mut self.closed, true) => self.hang_up(None),
            8 if program.byte() % 8 == 0 => self.bury(),
            9 => {
                let Ok((reader, pipe)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) else { return };
                self.pipe = Some(reader);
                self.inbox.send(ToMover::AddPipe { client: A, channel: 0, pipe: Some(pipe) });
            }
            10 => self.pipe = None,
            11 => {
                let payer = payer(TenantId::new(program.byte() as u16 % 3), 0);
                self.inbox.send(ToMover::SetPayer { client: A, payer });
            }
            12 => {
                let weight = u32::from(program.byte()) % WEIGHT_MAX + 1;
                self.inbox
                    .send(ToMover::SetWeight { tenant: TenantId::new(program.byte() as u16 % 3), weight });
            }
            _ => {}
        }
    }

    /// Turns until there is nothing left to do.
    fn rest(&mut self) {
        let turns = (0..TURNS_MAX).take_while(|_| self.step()).count();
        assert!(turns < TURNS_MAX, "the mover does not come to rest");
    }

    /// What has to hold after any program.
    fn finish(mut self) {
        self.deny = 0;
        for flow in std::mem::take(&mut self.denied) {
            self.inbox.send(ToMover::Resume { flow });
        }
        // What lies in A's rings is seen, also if A has not rung.
        (0..CHANNELS_OF_A).for_each(|channel| self.parties[0].ring_doorbell(channel));
        self.pass(Duration::from_millis(10));
        // Rings that are empty are given back, and no others.
        self.pass(Duration::from_secs(2));
        self.exchange(2 * RING_BYTES + 100);
        if self.violation.is_some() || self.buried {
            self.check_gone();
        }
        self.check_guards();
    }

    fn pass(&mut self, time: Duration) {
        self.clock.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        self.rest();
    }

    /// B and C send each other so many bytes more, and get every byte.
    fn exchange(&mut self, bytes: u64) {
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

    /// A is forgotten, and its peer knows.
    fn check_gone(&mut self) {
        for _ in 0..50 {
            self.pass(Duration::from_millis(200));
            while self.receive(0, 1, u64::MAX) > 0 {
                self.rest();
            }
        }
        assert!(self.gone, "A broke the protocol and is still there: {:?}", self.violation);
        assert!(self.flows_done[0], "what A sent is still there");
        assert!(self.mover.fair.payers() <= 3, "who paid for A is still there");
        let b = &self.parties[B.index()];
        assert_ne!(b.status_u32(SECOND, socket_status::SEND_END), 0);
        assert_ne!(b.status_u32(SECOND, socket_status::RECV_END), 0);
    }

    fn check_guards(&self) {
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

#[cfg(test)]
mod fair;
mod peers;
#[cfg(test)]
mod rates;
#[cfg(test)]
mod remainder;
#[cfg(test)]
mod tests;
