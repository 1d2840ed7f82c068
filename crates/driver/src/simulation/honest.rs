//! Clients that keep the protocol: they attach, listen, connect, send, receive and close, in an order drawn from the seed. Each
//! direction of each socket is a thread of the program's, which sleeps on its own words.
use super::book::{byte, Arriving, Book, Listening, Number};
use super::kernel::{is_readable, Person};
use super::link::{dial, Came, Link};
use super::random::Random;
use pd_abi::layout::{channel_control, channel_status, socket_control, socket_status, ENDED};
use pd_abi::limits::PAGE_BYTES;
use pd_abi::{
    Event, EventKind, Frame, FrameKind, Operation, Request, SocketId, SocketOption, Span, CLOSE_RESETS,
    RECEIVES_SHARED,
};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{fence, Ordering};
use std::time::Duration;

/// Bytes of the send region for each socket.
const AREA: u64 = 8 << 10;
/// Of these.
const AREAS: usize = 32;
/// Sockets at once.
const SOCKETS_MAX: usize = 12;
const SENDS_MAX: usize = 64;

/// A thread of the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// Attaches, asks, accepts.
    Control,
    /// Reads the events of a channel.
    Events(usize),
    /// Of a socket.
    Receiver(usize),
    Sender(usize),
}

/// How far a thread is on its way to sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wait {
    #[default]
    Awake,
    /// It has asked for a wake-up, and is going to look once more.
    Asking {
        doorbell: u32,
        at: u64,
    },
    Asleep {
        doorbell: u32,
        at: u64,
    },
    /// It waits for an event.
    ForEvent,
    /// There is nothing more to do.
    Over,
}

/// Where a client stands with the driver.
#[derive(Clone, Debug)]
enum Phase {
    /// Not attached; tries again then.
    Away {
        until: Duration,
    },
    /// Has to send this.
    Asking(Box<Frame>, Duration),
    /// Has sent this, and waits for the answer.
    Waiting(Box<Frame>),
    Up,
    /// Does not come back.
    Gone,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    Socket,
    Bind(usize),
    Listen(usize),
    Connect(usize),
    Accept(usize),
    Shutdown(usize),
    /// Of which the answer changes nothing.
    Other,
}

struct Socket {
    id: SocketId,
    number: Option<Number>,
    channel: usize,
    /// Told by events.
    is_subscribed: bool,
    area: usize,
    listens: Option<Listener>,
    receiver: Wait,
    sender: Wait,
    arriving: Arriving,
    given_back: u64,
    space_answered: u64,
    /// Bytes that it is going to send.
    total: u64,
    sent: u64,
    posted: u64,
    done: u64,
    in_flight: VecDeque<u64>,
    /// It has said that it sends no more, and there is no answer yet.
    has_shut: bool,
    /// The driver is asked for it to be closed when both its threads are over.
    is_closing: bool,
    is_connected: bool,
    send_ring: u64,
}

#[derive(Clone, Copy, Debug)]
struct Listener {
    at: Option<SocketAddr>,
    accepted: u64,
    asked: bool,
}

/// See the module.
pub struct Honest {
    pub index: usize,
    pub person: Person,
    phase: Phase,
    pub link: Option<Link>,
    random: Random,
    sockets: Vec<Option<Socket>>,
    events: Vec<Wait>,
    pending: BTreeMap<u32, Asked>,
    next_tag: u32,
    /// The send posted last on a channel, which may grow: socket, span, sends, and the ring's position after it.
    open: Option<(usize, Span, u64, u64)>,
    /// Areas with bytes that may still be copied, of sockets that are closed.
    burnt: Vec<usize>,
    /// Connections that it is still going to make.
    pub wishes: u64,
    /// Largest stream.
    pub stream_max: u64,
    channels: usize,
    /// It waits for events in the kernel's epoll, and has a pipe of the driver's there.
    has_pipes: bool,
    ring_default: u64,
}

impl Honest {
    pub fn new(index: usize, person: Person, mut random: Random, wishes: u64, ring_default: u64) -> Self {
        let (channels, stream_max) =
            (random.between(1, 2) as usize, random.pick(&[0, 40, 5_000, 60_000, 300_000]));
        let has_pipes = random.chance(300);
        Self {
            index,
            person,
            phase: Phase::Away { until: Duration::ZERO },
            link: None,
            random,
            sockets: Vec::new(),
            events: Vec::new(),
            pending: BTreeMap::new(),
            next_tag: 1,
            open: None,
            burnt: Vec::new(),
            wishes,
            stream_max,
            channels,
            has_pipes,
            ring_default,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    /// Whether its connections are over, and all that it has asked is answered.
    pub fn is_idle(&self) -> bool {
        let is_done = |socket: &Socket| socket.listens.is_some() || socket.number.is_none();
        self.pending.is_empty() && self.sockets.iter().flatten().all(is_done)
    }

    /// How it stands, for those who wonder why nothing goes on.
    pub fn describe(&self) -> String {
        let sockets: Vec<_> = self
            .sockets
            .iter()
            .flatten()
            .filter(|socket| socket.listens.is_none())
            .map(|s| {
                let (producer, consumer) = self.link.as_ref().map_or((0, 0), |link| {
                    (
                        link.line_u64(s.id, socket_status::RECV_PRODUCER),
                        link.line_u64(s.id, socket_status::SEND_CONSUMER),
                    )
                });
                format!(
                    "{:?} number {:?} recv {:?} {}/{producer} send {:?} {} of {} done {}/{consumer}",
                    s.id, s.number, s.receiver, s.arriving.received, s.sender, s.sent, s.total, s.done
                )
            })
            .collect();
        format!("{:?}, pending {:?}, events {:?}, {sockets:#?}", self.phase, self.pending, self.events)
    }

    /// Threads that can go on.
    pub fn runnable(&self, now: Duration, into: &mut Vec<Thread>) {
        let has_news = self.link.as_ref().is_some_and(Link::has_news);
        let control = match &self.phase {
            Phase::Away { until } | Phase::Asking(_, until) => now >= *until || has_news,
            Phase::Waiting(_) => has_news,
            Phase::Up => has_news || self.wishes > 0 && self.next_tag < u32::MAX || self.has_to_close(),
            Phase::Gone => false,
        };
        if control {
            into.push(Thread::Control);
        }
        let Some(link) = self.link.as_ref().filter(|_| self.is_up()) else { return };
        for (channel, &wait) in self.events.iter().enumerate() {
            let can_go_on = match (wait, link.pipes.get(&channel)) {
                (Wait::Asleep { .. }, Some(pipe)) => is_readable(pipe),
                _ => can_go_on(wait, || link.channel_u32(channel, channel_status::EVENT_DOORBELL)),
            };
            if can_go_on {
                into.push(Thread::Events(channel));
            }
        }
        for (at, socket) in self.sockets.iter().enumerate() {
            let Some(socket) = socket else { continue };
            if can_go_on(socket.receiver, || link.line_u32(socket.id, socket_status::RECV_DOORBELL)) {
                into.push(Thread::Receiver(at));
            }
            if can_go_on(socket.sender, || link.line_u32(socket.id, socket_status::SEND_DOORBELL)) {
                into.push(Thread::Sender(at));
            }
        }
    }

    /// When the clock lets it go on.
    pub fn wake_by(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Away { until } | Phase::Asking(_, until) => Some(*until),
            _ => None,
        }
    }

    /// A thread that sleeps although what it waits for has come.
    pub fn sleeps_in_vain(&self) -> Option<String> {
        let link = self.link.as_ref().filter(|_| self.is_up())?;
        for (channel, &wait) in self.events.iter().enumerate() {
            let Wait::Asleep { at, .. } = wait else { continue };
            if link.channel_u64(channel, channel_status::EVENT_PRODUCER) >= at {
                return Some(format!("client {} sleeps on the events of channel {channel}", self.index));
            }
        }
        for socket in self.sockets.iter().flatten() {
            let (line, end) = (|word| link.line_u64(socket.id, word), |word| link.line_u32(socket.id, word));
            if let Wait::Asleep { at, .. } = socket.receiver {
                if line(socket_status::RECV_PRODUCER) >= at || end(socket_status::RECV_END) != 0 {
                    return Some(format!(
                        "client {} sleeps on socket {:?}, which has bytes",
                        self.index, socket.id
                    ));
                }
            }
            if let Wait::Asleep { at, .. } = socket.sender {
                if line(socket_status::SEND_CONSUMER) >= at || end(socket_status::SEND_END) != 0 {
                    return Some(format!(
                        "client {} sleeps on socket {:?}, which has room",
                        self.index, socket.id
                    ));
                }
            }
            if socket.is_subscribed && socket.listens.is_none() {
                let has_bytes = socket.receiver == Wait::ForEvent
                    && (line(socket_status::RECV_PRODUCER) > socket.arriving.received
                        || end(socket_status::RECV_END) != 0);
                let has_room = socket.sender == Wait::ForEvent
                    && (line(socket_status::SEND_CONSUMER) > socket.done
                        || end(socket_status::SEND_END) != 0);
                let events_read = self.events.iter().all(|wait| matches!(wait, Wait::Asleep { .. }));
                if (has_bytes || has_room) && events_read {
                    return Some(format!("client {} gets no event of socket {:?}", self.index, socket.id));
                }
            }
        }
        None
    }

    /// A thread that was just woken stays asleep. Says whether there was one.
    pub fn miss_wake(&mut self) -> bool {
        let Some(link) = self.link.as_ref().filter(|_| matches!(self.phase, Phase::Up)) else { return false };
        for socket in self.sockets.iter_mut().flatten() {
            let id = socket.id;
            let waits = [
                (&mut socket.receiver, socket_status::RECV_DOORBELL),
                (&mut socket.sender, socket_status::SEND_DOORBELL),
            ];
            for (wait, word) in waits {
                let rung = link.line_u32(id, word);
                if let Wait::Asleep { doorbell, .. } = wait {
                    if *doorbell != rung {
                        *doorbell = rung;
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Goes on with a thread. Returns something for the trace.
    pub fn step(
        &mut self,
        thread: Thread,
        now: Duration,
        driver: &SocketAddrUnix,
        number: u64,
        book: &mut Book,
    ) -> u64 {
        match thread {
            Thread::Control => self.control(now, driver, number, book),
            Thread::Events(channel) => self.read_events(channel, now, book),
            Thread::Receiver(at) => self.receive(at, book),
            Thread::Sender(at) => self.send(at, book),
        }
    }

    /// It dies: by the attach socket's end, its process's, or both.
    pub fn die(&mut self, now: Duration, book: &mut Book) {
        self.lose(now, book);
    }

    /// It has no business any more.
    pub fn leave(&mut self, book: &mut Book) {
        self.lose(Duration::ZERO, book);
        self.phase = Phase::Gone;
    }

    fn lose(&mut self, now: Duration, book: &mut Book) {
        for socket in self.sockets.drain(..).flatten() {
            if let Some(number) = socket.number {
                let record = &mut book.sockets[number];
                (record.is_over, record.is_excused) = (true, true);
            }
        }
        book.listening.retain(|listening| listening.owner != self.index);
        if let Some(link) = self.link.take() {
            let _ = rustix::net::shutdown(&link.socket, rustix::net::Shutdown::Both);
        }
        self.events.clear();
        self.burnt.clear();
        self.pending.clear();
        self.open = None;
        self.phase = Phase::Away { until: now + Duration::from_millis(self.random.between(1, 300)) };
    }

    fn control(&mut self, now: Duration, driver: &SocketAddrUnix, number: u64, book: &mut Book) -> u64 {
        match self.phase.clone() {
            Phase::Away { .. } => match self.connect(driver, number) {
                Ok(socket) => {
                    self.link = Some(Link::new(socket));
                    self.phase = Phase::Asking(Box::new(Frame::new(FrameKind::Hello)), now);
                    1
                }
                Err(_) => {
                    self.phase =
                        Phase::Away { until: now + Duration::from_millis(self.random.between(1, 50)) };
                    2
                }
            },
            Phase::Asking(frame, until) => {
                if now >= until {
                    if self.link.as_ref().is_some_and(|link| link.send(&frame).is_err()) {
                        self.lose(now, book);
                        return 3;
                    }
                    self.phase = Phase::Waiting(frame);
                    return 4;
                }
                self.read_frame(now, book)
            }
            Phase::Waiting(_) => self.read_frame(now, book),
            Phase::Up => {
                if self.link.as_ref().is_some_and(Link::has_news) {
                    return self.read_frame(now, book);
                }
                if self.close_one(book) {
                    return 5;
                }
                self.wish(book)
            }
            Phase::Gone => 0,
        }
    }

    fn connect(&self, driver: &SocketAddrUnix, number: u64) -> rustix::io::Result<std::os::fd::OwnedFd> {
        super::kernel::with(|kernel| kernel.enter(number, self.person.clone()));
        dial(driver, number)
    }

    fn read_frame(&mut self, now: Duration, book: &mut Book) -> u64 {
        let Some(link) = &mut self.link else { return 0 };
        let frame = match link.receive() {
            Came::Nothing => return 10,
            Came::End => {
                self.lose(now, book);
                return 11;
            }
            Came::Frame(frame) => frame,
        };
        let kind = frame.checked_kind().expect("a frame of the driver's");
        match kind {
            FrameKind::ReceiveRegion => return 12,
            FrameKind::Goodbye => {
                panic!("honest client {} is cut off: {}", self.index, frame.reason())
            }
            _ => {}
        }
        let Phase::Waiting(asked) = self.phase.clone() else {
            // A newcomer that is turned away is told before it asks.
            assert_eq!(kind, FrameKind::Error, "client {} has not asked", self.index);
            return 13;
        };
        if kind == FrameKind::Error {
            let later = now + Duration::from_millis(self.random.between(1, 40));
            let is_region = asked.checked_kind() == Some(FrameKind::Mapped);
            let asked = match is_region {
                true => {
                    // The region is no more.
                    link.send.clear();
                    Box::new(Frame::new(FrameKind::SendRegion).with_bytes(AREA * AREAS as u64, 0))
                }
                false => asked,
            };
            self.phase = Phase::Asking(asked, later);
            return 14;
        }
        let next = match (asked.checked_kind(), kind) {
            (Some(FrameKind::Hello), FrameKind::Welcome) => {
                Some(Frame::new(FrameKind::Mapped).with_id(Frame::REGION_CONTROL))
            }
            (Some(FrameKind::Mapped), FrameKind::Ready) if frame.id == Frame::REGION_CONTROL => {
                Some(Frame::new(FrameKind::Channel))
            }
            (Some(FrameKind::Channel), FrameKind::Channel) => {
                self.events.push(Wait::Awake);
                let wake_pipe = || Frame::new(FrameKind::WakePipe).with_id(frame.id);
                Some(if self.has_pipes { wake_pipe() } else { self.next_of_channels() })
            }
            (Some(FrameKind::WakePipe), FrameKind::WakePipe) => Some(self.next_of_channels()),
            (Some(FrameKind::SendRegion), FrameKind::SendRegion) => {
                Some(Frame::new(FrameKind::Mapped).with_id(frame.id))
            }
            (Some(FrameKind::Mapped), FrameKind::Ready) => None,
            other => panic!("client {}: {other:?}", self.index),
        };
        self.phase = next.map_or(Phase::Up, |frame| Phase::Asking(Box::new(frame), now));
        15
    }

    /// What it asks for when it has a channel.
    fn next_of_channels(&self) -> Frame {
        match self.events.len() < self.channels {
            true => Frame::new(FrameKind::Channel),
            false => Frame::new(FrameKind::SendRegion).with_bytes(AREA * AREAS as u64, 0),
        }
    }

    fn has_to_close(&self) -> bool {
        self.sockets.iter().flatten().any(is_ready_to_close)
    }

    /// Closes a socket whose threads are over.
    fn close_one(&mut self, book: &mut Book) -> bool {
        let ready = |socket: &Option<Socket>| socket.as_ref().is_some_and(is_ready_to_close);
        let Some(at) = self.sockets.iter().position(ready) else { return false };
        self.close(at, false, book)
    }

    /// Says whether there was room for the request.
    fn close(&mut self, at: usize, resets: bool, book: &mut Book) -> bool {
        let Some(socket) = &self.sockets[at] else { return false };
        let (id, channel, number) = (socket.id, socket.channel, socket.number);
        let burnt = (socket.done < socket.posted).then_some(socket.area);
        let mut request = Request::new(Operation::Close, id, 0);
        request.value = if resets { CLOSE_RESETS } else { 0 };
        if !self.post(channel, request) {
            return false;
        }
        if let Some(number) = number {
            let record = &mut book.sockets[number];
            record.is_over = true;
            record.is_excused |= resets;
        }
        self.burnt.extend(burnt);
        self.sockets[at] = None;
        true
    }

    fn ask(&mut self, channel: usize, request: Request, asked: Asked) -> bool {
        let tag = self.next_tag;
        if !self.post(channel, Request { tag, ..request }) {
            return false;
        }
        self.next_tag += 1;
        self.pending.insert(tag, asked);
        true
    }

    fn post(&mut self, channel: usize, request: Request) -> bool {
        let Some(link) = &mut self.link else { return false };
        let is_there = link.write(channel, request);
        if is_there {
            self.open = None;
        }
        link.publish(channel);
        is_there
    }

    /// Begins something.
    fn wish(&mut self, book: &mut Book) -> u64 {
        if self.wishes == 0 {
            return 20;
        }
        let live = self.sockets.iter().flatten().count();
        let channel = self.random.below(self.events.len() as u64) as usize;
        let listens = self.sockets.iter().flatten().any(|socket| socket.listens.is_some());
        match self.random.below(12) {
            0 if live > 0 && self.random.chance(300) => {
                // Somebody ends its connection early.
                let at = self.random.below(self.sockets.len() as u64) as usize;
                let resets = self.random.chance(500);
                let is_connected = self.sockets[at].as_ref().is_some_and(|s| s.is_connected && !s.has_shut);
                if is_connected && self.close(at, resets, book) {
                    return 21;
                }
                let listens = self.sockets[at].as_ref().and_then(|socket| socket.listens);
                let known = listens.and_then(|listens| listens.at.filter(|_| !listens.asked));
                if let Some(local) = known.filter(|_| self.close(at, false, book)) {
                    book.listening.retain(|other| (other.owner, other.at) != (self.index, local));
                    return 22;
                }
                23
            }
            _ if self.pending.len() + live >= SOCKETS_MAX => 23,
            1..=5 if !listens || self.random.chance(200) && live < SOCKETS_MAX / 2 => {
                let request = Request { family: 4, ..Request::new(Operation::Socket, SocketId(0), 0) };
                if !self.ask(channel, request, Asked::Socket) {
                    return 24;
                }
                25
            }
            _ => {
                // A socket that nothing is done with yet becomes a listener or a connection.
                let free = |socket: &Option<Socket>| {
                    socket.as_ref().is_some_and(|s| s.number.is_none() && s.listens.is_none())
                };
                let Some(at) = self.sockets.iter().position(free) else {
                    let mut request =
                        Request { family: 4, ..Request::new(Operation::Socket, SocketId(0), 0) };
                    request.value = self.random.between(0, 2) as u32;
                    self.ask(channel, request, Asked::Socket);
                    return 26;
                };
                self.use_socket(at, listens, book)
            }
        }
    }

    fn use_socket(&mut self, at: usize, listens: bool, book: &mut Book) -> u64 {
        let Some(socket) = &self.sockets[at] else { return 30 };
        let (id, channel) = (socket.id, socket.channel);
        if !listens {
            let ip = self.random.pick(&[[127, 0, 0, 1], self.person.address, [0; 4]]);
            let wanted: SocketAddr = (ip, self.random.pick(&[0, 80, 81])).into();
            let request = Request::new(Operation::Bind, id, 0).with_address(wanted.into());
            if self.ask(channel, request, Asked::Bind(at)) {
                self.set(at, |s| s.listens = Some(Listener { at: None, accepted: 0, asked: false }));
            }
            return 31;
        }
        if self.random.chance(200) {
            let option = self.random.pick(&[SocketOption::SendRingBytes, SocketOption::ReceiveRingBytes]);
            let request = Request { value: option as u32, ..Request::new(Operation::SetOption, id, 0) };
            let bytes = 1 << self.random.between(16, 19);
            self.ask(channel, request.with_numbers(bytes, 0), Asked::Other);
            return 32;
        }
        if book.listening.is_empty() {
            return 33;
        }
        let to = self.random.pick(&book.listening);
        self.wishes -= 1;
        let mut request = Request::new(Operation::Connect, id, 0).with_address(to.at.into());
        request.value = if self.random.chance(500) { RECEIVES_SHARED } else { 0 };
        if self.ask(channel, request, Asked::Connect(at)) {
            let number = book.open();
            self.set(at, |socket| socket.number = Some(number));
        }
        34
    }

    fn set(&mut self, at: usize, change: impl FnOnce(&mut Socket)) {
        if let Some(socket) = &mut self.sockets[at] {
            change(socket);
        }
    }

    fn read_events(&mut self, channel: usize, now: Duration, book: &mut Book) -> u64 {
        let Some(link) = &mut self.link else { return 40 };
        let position = link.channels[channel].events.position();
        let asleep = |wait| matches!(wait, Wait::Asking { .. } | Wait::Asleep { .. });
        if asleep(self.events[channel]) {
            fence(Ordering::SeqCst);
            let has_come = link.channel_u64(channel, channel_status::EVENT_PRODUCER) > position;
            if let (Wait::Asking { doorbell, at }, false) = (self.events[channel], has_come) {
                self.events[channel] = Wait::Asleep { doorbell, at };
                return 41;
            }
            link.set_channel(channel, channel_control::EVENT_WAKE_AT, 0);
            link.empty_pipe(channel);
            self.events[channel] = Wait::Awake;
            return 42;
        }
        let mut events = Vec::new();
        let most = self.random.between(1, 8);
        for _ in 0..most {
            match link.channels[channel].events.read().expect("a driver that keeps the protocol") {
                Some(event) => events.push(event),
                None => break,
            }
        }
        link.channels[channel].events.release();
        fence(Ordering::SeqCst);
        if link.channel_u32(channel, channel_status::EVENTS_WAITING) != 0 {
            link.ring(channel);
        }
        if events.is_empty() {
            let doorbell = link.channel_u32(channel, channel_status::EVENT_DOORBELL);
            let at = position + 1;
            if link.pipes.contains_key(&channel) {
                link.set_channel_u32(channel, channel_control::PIPE_WANTED, 1);
            }
            link.set_channel(channel, channel_control::EVENT_WAKE_AT, at);
            self.events[channel] = Wait::Asking { doorbell, at };
            return 43;
        }
        let mut trace = 44;
        for event in events {
            trace = trace * 31 + u64::from(event.kind) + u64::from(event.errno) * 7 + u64::from(event.socket);
            self.hear(&event, channel, now, book);
        }
        trace
    }

    fn hear(&mut self, event: &Event, channel: usize, _now: Duration, book: &mut Book) {
        let id = SocketId(event.socket);
        let kind = EventKind::from_raw(event.kind).expect("an event");
        if kind == EventKind::Ready {
            let Some(link) = &self.link else { return };
            let known = self.sockets.iter_mut().flatten().find(|socket| socket.id == id);
            // One of a socket that was closed meanwhile.
            let Some(socket) = known else { return };
            link.set_line_u32(id, socket_control::EVENT_ACK, event.tag);
            fence(Ordering::SeqCst);
            for wait in [&mut socket.receiver, &mut socket.sender] {
                if *wait == Wait::ForEvent {
                    *wait = Wait::Awake;
                }
            }
            return;
        }
        let asked = match kind {
            EventKind::More => *self.pending.get(&event.tag).expect("a question"),
            _ => self.pending.remove(&event.tag).expect("a question"),
        };
        // A list of addresses did not come for something before it, or too much waits for lists.
        let is_late =
            [Errno::TIMEDOUT, Errno::NOBUFS].map(|e| e.raw_os_error() as u32).contains(&event.errno);
        book.say(|| format!("client {}: {asked:?} {id:?} is answered: errno {}", self.index, event.errno));
        match (asked, event.errno) {
            (Asked::Socket, 0) => {
                self.add_socket(id, channel, None);
            }
            (Asked::Bind(at), 0) => {
                let request = Request::new(Operation::Listen, self.id(at), 0);
                let backlog = self.random.between(1, 8);
                let home = self.sockets[at].as_ref().map_or(channel, |socket| socket.channel);
                if !self.ask(home, request.with_numbers(backlog, 0), Asked::Listen(at)) {
                    self.set(at, |socket| socket.listens = None);
                }
            }
            (Asked::Listen(at), 0) => {
                let mut local = event.address().to_socket_addr().expect("an address");
                if local.ip().is_unspecified() {
                    local.set_ip(std::net::IpAddr::from(self.person.address));
                }
                book.listening.push(Listening { owner: self.index, at: local });
                if let Some(Listener { at, .. }) =
                    self.sockets[at].as_mut().and_then(|socket| socket.listens.as_mut())
                {
                    *at = Some(local);
                }
                self.set(at, |socket| socket.receiver = Wait::Awake);
            }
            (Asked::Bind(at) | Asked::Listen(at), _) => self.set(at, |socket| socket.listens = None),
            (Asked::Connect(at), 0) => self.begin(at, book),
            (Asked::Connect(at), errno) => {
                assert_ne!(errno, Errno::BADF.raw_os_error() as u32);
                self.set(at, |socket| {
                    (socket.receiver, socket.sender) = (Wait::Over, Wait::Over);
                    socket.is_closing = true;
                });
            }
            (Asked::Accept(listener), 0) => {
                let number = book.open();
                let at = self.add_socket(id, channel, Some(number));
                let mut accepted = 0;
                self.set(listener, |socket| {
                    if let Some(listens) = &mut socket.listens {
                        listens.accepted += 1;
                        listens.asked = kind == EventKind::More;
                        accepted = listens.accepted;
                    }
                    socket.receiver = Wait::Awake;
                });
                let listener = self.id(listener);
                if let Some(link) = self.link.as_ref().filter(|_| accepted > 0) {
                    link.set_line(listener, socket_control::RECV_CONSUMER, accepted);
                }
                self.begin(at, book);
            }
            (Asked::Accept(listener), errno) => {
                assert!(is_late || errno == Errno::AGAIN.raw_os_error() as u32, "accept fails: {errno}");
                self.set(listener, |socket| {
                    if let Some(listens) = &mut socket.listens {
                        listens.asked = false;
                    }
                    socket.receiver = Wait::Awake;
                });
            }
            (Asked::Shutdown(at), 0) => self.set(at, |socket| socket.has_shut = false),
            (Asked::Shutdown(at), _) => {
                assert!(is_late || event.errno == Errno::NOTCONN.raw_os_error() as u32, "shutdown fails");
                self.set(at, |socket| (socket.sender, socket.has_shut) = (Wait::Awake, false));
            }
            (Asked::Socket | Asked::Other, _) => {}
        }
    }

    fn id(&self, at: usize) -> SocketId {
        self.sockets[at].as_ref().map_or(SocketId(0), |socket| socket.id)
    }

    fn add_socket(&mut self, id: SocketId, channel: usize, number: Option<Number>) -> usize {
        let Some(link) = &self.link else { return 0 };
        link.take(id);
        let used = self.sockets.iter().flatten().map(|socket| socket.area);
        let used: Vec<_> = used.chain(self.burnt.iter().copied()).collect();
        let area = (0..).find(|area| !used.contains(area)).unwrap_or(0);
        let socket = Socket {
            id,
            number,
            channel,
            is_subscribed: false,
            area,
            listens: None,
            receiver: Wait::Over,
            sender: Wait::Over,
            arriving: Arriving::default(),
            given_back: 0,
            space_answered: 0,
            total: 0,
            sent: 0,
            posted: 0,
            done: 0,
            in_flight: VecDeque::new(),
            has_shut: false,
            is_closing: false,
            is_connected: false,
            send_ring: self.ring_default.min(AREA),
        };
        match self.sockets.iter().position(Option::is_none) {
            Some(at) => {
                self.sockets[at] = Some(socket);
                at
            }
            None => {
                self.sockets.push(Some(socket));
                self.sockets.len() - 1
            }
        }
    }

    /// A socket is connected.
    fn begin(&mut self, at: usize, book: &mut Book) {
        let total = match self.sockets[at].as_ref().map(|socket| socket.area) {
            // There is no place for what it might send.
            Some(area) if area >= AREAS => 0,
            _ => self.random.below(self.stream_max + 1),
        };
        let is_subscribed = self.random.chance(400);
        let Some(link) = &self.link else { return };
        let Some(socket) = &mut self.sockets[at] else { return };
        book.say(|| format!("client {}: {:?} is {:?}, sends {total}", self.index, socket.id, socket.number));
        (socket.receiver, socket.sender, socket.total) = (Wait::Awake, Wait::Awake, total);
        socket.is_connected = true;
        if is_subscribed {
            socket.is_subscribed = true;
            link.set_line_u32(socket.id, socket_control::SUBSCRIBED, 1);
            fence(Ordering::SeqCst);
        }
    }

    fn receive(&mut self, at: usize, book: &mut Book) -> u64 {
        let Some(socket) = &self.sockets[at] else { return 50 };
        if socket.listens.is_some() {
            return self.accept(at);
        }
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return 50 };
        let (id, number) = (socket.id, socket.number.expect("a connected socket"));
        fence(Ordering::SeqCst);
        let end = link.line_u32(id, socket_status::RECV_END);
        let produced = link.line_u64(id, socket_status::RECV_PRODUCER);
        let received = socket.arriving.received;
        assert!(produced >= received, "a counter runs backwards: {produced} after {received}");
        if let Wait::Asking { doorbell, at } | Wait::Asleep { doorbell, at } = socket.receiver {
            if matches!(socket.receiver, Wait::Asking { .. }) && produced < at && end == 0 {
                socket.receiver = Wait::Asleep { doorbell, at };
                return 51;
            }
            link.set_line(id, socket_control::RECV_WAKE_AT, 0);
            socket.receiver = Wait::Awake;
            return 52;
        }
        if produced == received {
            return match end {
                0 if socket.is_subscribed => {
                    socket.receiver = Wait::ForEvent;
                    53
                }
                0 => {
                    let (doorbell, at) = (link.line_u32(id, socket_status::RECV_DOORBELL), received + 1);
                    link.set_line(id, socket_control::RECV_WAKE_AT, at);
                    socket.receiver = Wait::Asking { doorbell, at };
                    54
                }
                ENDED => {
                    socket.receiver = Wait::Over;
                    book.ended(number, &socket.arriving);
                    self.give_back(at);
                    55
                }
                errno => {
                    socket.receiver = Wait::Over;
                    book.failed(number, &socket.arriving, errno);
                    56
                }
            };
        }
        let (region, page, pages) = (
            link.line_u32(id, socket_status::RING_REGION),
            link.line_u32(id, socket_status::RING_PAGE),
            link.line_u32(id, socket_status::RING_PAGES),
        );
        if !link.receive.contains_key(&region) {
            // The library reads its frames now.
            let news = link.has_news();
            assert!(
                news,
                "socket {number}: the region {region} ({page}, {pages} pages) of its ring has not come; {received} of {produced} \
                 bytes, generation {}, {:?}",
                link.line_u32(id, socket_status::GENERATION),
                link.receive.keys()
            );
            let Came::Frame(frame) = link.receive() else { return 57 };
            assert_eq!(frame.checked_kind(), Some(FrameKind::ReceiveRegion), "{}", frame.reason());
            return 58;
        }
        let map = &link.receive[&region].0;
        let ring = u64::from(pages) * PAGE_BYTES as u64;
        assert!(produced - socket.given_back <= ring, "more bytes than the ring has: {produced}");
        let len = (produced - received).min(self.random.between(1, 6000));
        for position in received..received + len {
            let offset = page as usize * PAGE_BYTES + (position & (ring - 1)) as usize;
            let got = map.load_u64(offset & !7, Ordering::Relaxed).to_le_bytes()[offset % 8];
            book.take(number, &mut socket.arriving, got);
        }
        if self.random.chance(700) || produced == received + len {
            self.give_back(at);
        }
        1000 + len
    }

    /// Gives back what was received.
    fn give_back(&mut self, at: usize) {
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return };
        let (id, received) = (socket.id, socket.arriving.received);
        socket.given_back = received;
        link.set_line(id, socket_control::RECV_CONSUMER, received);
        fence(Ordering::SeqCst);
        let wanted = link.line_u64(id, socket_status::SPACE_WAKE_AT);
        if wanted != 0 && received >= wanted && wanted != socket.space_answered {
            let channel = socket.channel;
            if link.write(channel, Request::new(Operation::Space, id, 0)) {
                socket.space_answered = wanted;
                self.open = None;
                link.publish(channel);
            }
        }
    }

    fn accept(&mut self, at: usize) -> u64 {
        let (Some(link), Some(socket)) = (&self.link, &mut self.sockets[at]) else { return 60 };
        let Some(listens) = socket.listens else { return 60 };
        let arrived = link.line_u64(socket.id, socket_status::RECV_PRODUCER);
        if let Wait::Asking { doorbell, at } | Wait::Asleep { doorbell, at } = socket.receiver {
            if matches!(socket.receiver, Wait::Asking { .. }) && arrived < at {
                socket.receiver = Wait::Asleep { doorbell, at };
                return 61;
            }
            link.set_line(socket.id, socket_control::RECV_WAKE_AT, 0);
            socket.receiver = Wait::Awake;
            return 62;
        }
        if listens.asked {
            // The answer wakes it.
            socket.receiver = Wait::ForEvent;
            return 63;
        }
        if arrived <= listens.accepted {
            let (doorbell, at) =
                (link.line_u32(socket.id, socket_status::RECV_DOORBELL), listens.accepted + 1);
            link.set_line(socket.id, socket_control::RECV_WAKE_AT, at);
            socket.receiver = Wait::Asking { doorbell, at };
            return 64;
        }
        let (id, channel) = (socket.id, socket.channel);
        let mut request = Request::new(Operation::Accept, id, 0);
        request.value = self.random.between(0, 3) as u32;
        if self.ask(channel, request, Asked::Accept(at)) {
            self.set(at, |socket| {
                socket.receiver = Wait::ForEvent;
                if let Some(listens) = &mut socket.listens {
                    listens.asked = true;
                }
            });
        }
        65
    }

    fn send(&mut self, at: usize, book: &mut Book) -> u64 {
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return 70 };
        let (id, number) = (socket.id, socket.number.expect("a connected socket"));
        fence(Ordering::SeqCst);
        let end = link.line_u32(id, socket_status::SEND_END);
        let done = link.line_u64(id, socket_status::SEND_CONSUMER);
        assert!((socket.done..=socket.posted).contains(&done), "{done} sends done of {}", socket.posted);
        if let Wait::Asking { doorbell, at } | Wait::Asleep { doorbell, at } = socket.sender {
            if matches!(socket.sender, Wait::Asking { .. }) && done < at && end == 0 {
                socket.sender = match socket.is_subscribed {
                    true => Wait::ForEvent,
                    false => Wait::Asleep { doorbell, at },
                };
                return 71;
            }
            link.set_line(id, socket_control::SEND_WAKE_AT, 0);
            socket.sender = Wait::Awake;
            return 72;
        }
        socket.in_flight.drain(..(done - socket.done) as usize);
        socket.done = done;
        if end != 0 {
            // What it has sent and was not done is lost, if the peer is told of an error.
            socket.sender = Wait::Over;
            book.sockets[number].is_over = true;
            if end != ENDED {
                book.failed(number, &socket.arriving, end);
            }
            // It says nothing more: its peer may be told so.
            book.sockets[number].is_excused = true;
            return 73;
        }
        if socket.sent == socket.total {
            let channel = socket.channel;
            let request = Request::new(Operation::Shutdown, id, 0).with_numbers(2, 0);
            if !self.ask(channel, request, Asked::Shutdown(at)) {
                return 74;
            }
            book.sockets[number].is_over = true;
            self.set(at, |socket| (socket.sender, socket.has_shut) = (Wait::Over, true));
            return 75;
        }
        let room = socket.send_ring - socket.in_flight.iter().sum::<u64>();
        let offset = socket.sent % AREA;
        let wanted = self.random.pick(&[1, 7, 64, 300, 1000, 4096, 5000]);
        let len = wanted.min(room).min(AREA - offset).min(socket.total - socket.sent);
        if len == 0 || socket.in_flight.len() >= SENDS_MAX {
            let (doorbell, at) = (link.line_u32(id, socket_status::SEND_DOORBELL), done + 1);
            link.set_line(id, socket_control::SEND_WAKE_AT, at);
            socket.sender = Wait::Asking { doorbell, at };
            return 77;
        }
        let (&region, (map, _)) = link.send.iter().next().expect("a send region");
        let first = socket.area as u64 * AREA + offset;
        fill(map, first, len, |at| byte(number, socket.sent + at));
        let span = Span { region: region as u16, offset: first, len };
        let position = link.channels[socket.channel].requests.position();
        let grows = self.random.chance(600);
        match &mut self.open {
            Some((of, open, sends, known))
                if grows && *of == at && *known == position && open.offset + open.len == first =>
            {
                (open.len, *sends) = (open.len + len, *sends + 1);
                link.channels[socket.channel].requests.grow(Request::send_word(open.len, *sends));
                link.ring_if_asked(socket.channel);
            }
            _ => {
                if !link.write(socket.channel, Request::send(id, span)) {
                    return 78;
                }
                link.publish(socket.channel);
                self.open = (self.channels == 1).then_some((at, span, 1, position + 1));
            }
        }
        socket.sent += len;
        socket.posted += 1;
        socket.in_flight.push_back(len);
        book.sockets[number].sent = socket.sent;
        2000 + len
    }
}

fn can_go_on(wait: Wait, doorbell: impl FnOnce() -> u32) -> bool {
    match wait {
        Wait::Awake | Wait::Asking { .. } => true,
        Wait::Asleep { doorbell: seen, .. } => doorbell() != seen,
        Wait::ForEvent | Wait::Over => false,
    }
}

fn is_ready_to_close(socket: &Socket) -> bool {
    let is_over = socket.receiver == Wait::Over && socket.sender == Wait::Over;
    is_over && (socket.is_connected && !socket.has_shut || socket.is_closing)
}

/// Writes bytes into a region.
fn fill(map: &pd_shm::Region<pd_shm::Own>, first: u64, len: u64, byte: impl Fn(u64) -> u8) {
    for at in 0..len {
        let offset = (first + at) as usize;
        let (word, place) = (offset & !7, offset % 8);
        let mut bytes = map.load_u64(word, Ordering::Relaxed).to_le_bytes();
        bytes[place] = byte(at);
        map.store_u64(word, u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}
