//! Clients' holdings, and the behaviour of clients that keep the protocol.
use super::*;

/// A client's own end of all shared memory.
pub(super) struct Party {
    pub(super) memory: Arc<ClientMemory>,
    pub(super) control: Arc<Mapping>,
    pub(super) status: Arc<Mapping>,
    pub(super) doorbells: Vec<OwnedFd>,
    pub(super) receive: Arc<Mapping>,
}

impl Party {
    pub(super) fn status_u64(&self, slot: Slot, word: usize) -> u64 {
        self.status.load_u64(socket_offset(slot.get()) + word, Ordering::Acquire)
    }
    pub(super) fn status_u32(&self, slot: Slot, word: usize) -> u32 {
        self.status.load_u32(socket_offset(slot.get()) + word, Ordering::Acquire)
    }
    pub(super) fn ring_doorbell(&self, channel: usize) {
        let _ = rustix::io::write(&self.doorbells[channel], &1u64.to_ne_bytes());
    }
}

/// A client that keeps the protocol.
pub(super) struct Peer {
    pub(super) client: ClientId,
    pub(super) requests: Producer<SharedCells<Request>>,
    pub(super) events: Consumer<SharedCells<Event>>,
    pub(super) rung: u32,
    pub(super) lines: Vec<Line>,
    /// The last posted send, which may grow, and the position of the ring after it.
    pub(super) open: Option<(u64, Slot, Span, u64)>,
}

/// A connected socket of a [`Peer`].
pub(super) struct Line {
    pub(super) slot: Slot,
    /// Client whose bytes arrive.
    pub(super) from: ClientId,
    pub(super) sent: u64,
    pub(super) sends_posted: u64,
    pub(super) sends_done: u64,
    pub(super) in_flight: VecDeque<u64>,
    pub(super) received: u64,
    pub(super) space_answered: u64,
}

impl Line {
    pub(super) fn new(slot: Slot, from: ClientId) -> Self {
        let in_flight = VecDeque::new();
        let (sent, sends_posted, sends_done, received, space_answered) = (0, 0, 0, 0, 0);
        Self { slot, from, sent, sends_posted, sends_done, in_flight, received, space_answered }
    }
}

impl World {
    /// Sends `len` bytes on a line of B or C, if an honest client would. Returns whether it did.
    pub(super) fn send(&mut self, peer: usize, line: usize, len: u64) -> bool {
        let Self { peers, parties, .. } = self;
        let peer = &mut peers[peer];
        let party = &parties[peer.client.index()];
        let index = line % peer.lines.len();
        let line = &mut peer.lines[index];
        let done = party.status_u64(line.slot, socket_status::SEND_CONSUMER);
        assert!((line.sends_done..=line.sends_posted).contains(&done), "sends done: {done}");
        line.in_flight.drain(..(done - line.sends_done) as usize);
        line.sends_done = done;
        let ended = party.status_u32(line.slot, socket_status::SEND_END) != 0;
        if ended || line.in_flight.iter().sum::<u64>() + len > SEND_RING_BYTES {
            return false;
        }
        let span = Span { region: 0, offset: line.sent % PERIOD, len };
        let position = peer.requests.position();
        match &mut peer.open {
            // Some of the sends that could grow.
            Some((at, slot, open, sends))
                if (*at, *slot) == (position, line.slot)
                    && open.offset + open.len == span.offset
                    && len % 4 != 0 =>
            {
                (open.len, *sends) = (open.len + len, *sends + 1);
                peer.requests.grow(Request::send_word(open.len, *sends));
            }
            _ => {
                let request = Request::send(line.slot.socket(GENERATION), span);
                if peer.requests.write(request) != Ok(true) {
                    return false;
                }
                peer.open = Some((position + 1, line.slot, span, 1));
            }
        }
        line.sent += len;
        line.sends_posted += 1;
        line.in_flight.push_back(len);
        peer.publish(party);
        true
    }

    /// Takes at most `max` bytes from a line of B or C and checks them. Returns how many there were.
    pub(super) fn receive(&mut self, peer: usize, line: usize, max: u64) -> u64 {
        let Self { peers, parties, .. } = self;
        let peer = &mut peers[peer];
        let party = &parties[peer.client.index()];
        peer.take_events(party);
        let index = line % peer.lines.len();
        let line = &mut peer.lines[index];
        let delivered = party.status_u64(line.slot, socket_status::RECV_PRODUCER);
        let there = delivered.checked_sub(line.received).expect("a counter that never runs backwards");
        let pages = party.status_u32(line.slot, socket_status::RING_PAGES);
        let ring_bytes = u64::from(pages) * PAGE_BYTES as u64;
        assert!(there <= ring_bytes, "{there} bytes in a ring of {ring_bytes}");
        let base = party.status_u32(line.slot, socket_status::RING_PAGE) as usize * PAGE_BYTES;
        let len = there.min(max);
        let end = line.received + len;
        let mut position = line.received;
        while position < end {
            // Positions and offsets have the same alignment: rings are whole pages.
            let bytes = word(&party.receive, base + (position % ring_bytes) as usize);
            let within = position as usize % 8;
            let count = (8 - within).min((end - position) as usize);
            let got = &bytes[within..within + count];
            if line.from == A {
                assert!(got.iter().all(|byte| MARKS.contains(byte)), "at {position}, none of A's: {got:x?}");
            } else {
                let first = (position % PERIOD) as usize;
                let expected = &region_bytes(line.from)[first..first + count];
                assert_eq!(got, expected, "at {position} from {}", line.from);
            }
            position += count as u64;
        }
        line.received += len;
        let at = socket_offset(line.slot.get()) + socket_control::RECV_CONSUMER;
        party.control.store_u64(at, line.received, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        let wanted = party.status_u64(line.slot, socket_status::SPACE_WAKE_AT);
        if wanted != 0 && line.received >= wanted && wanted != line.space_answered {
            let request = Request::new(Operation::Space, line.slot.socket(GENERATION), 0);
            if peer.requests.write(request) == Ok(true) {
                line.space_answered = wanted;
                peer.publish(party);
            }
        }
        len
    }
}

impl Peer {
    pub(super) fn publish(&mut self, party: &Party) {
        self.requests.publish();
        std::sync::atomic::fence(Ordering::SeqCst);
        let at = channel_offset(0) + channel_status::NEED_WAKEUP;
        let sleep = party.status.load_u32(at, Ordering::Relaxed);
        if sleep != 0 && sleep != self.rung {
            self.rung = sleep;
            party.ring_doorbell(0);
        }
    }

    pub(super) fn take_events(&mut self, party: &Party) {
        while let Some(event) = self.events.read().expect("a driver that keeps the protocol") {
            assert_eq!(EventKind::from_raw(event.kind), Some(EventKind::Ready));
            let at = socket_offset(SocketId(event.socket).slot()) + socket_control::EVENT_ACK;
            party.control.store_u32(at, event.tag, Ordering::Release);
        }
        self.events.release();
    }
}
