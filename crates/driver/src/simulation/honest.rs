//! Clients that keep the protocol: they attach, listen, connect, send, receive and close, in an order drawn from the seed. Each
//! direction of each socket is a thread of the program, which sleeps on its own words.
mod asking;
mod attaching;
mod calls;
mod direct;
mod events;
mod files;
mod streams;
mod twins;

use super::arriving::{Arriving, Number};
use super::book::{byte, Book, Listening};
use super::kernel::{self, is_readable, Person};
use super::link::{dial, Came, Link};
use super::random::Random;
use pd_abi::layout::{
    channel_control, channel_status, socket_control, socket_status, ELSEWHERE, ENDED, LOST, SHUT,
};
use pd_abi::limits::PAGE_BYTES;
use pd_abi::{
    Event, EventKind, FileId, Frame, FrameKind, Operation, Request, SocketId, SocketOption, Span, CLOSE_LEFT,
    CLOSE_RESETS, RECEIVES_SHARED,
};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{fence, Ordering};
use std::time::Duration;

/// Bytes of the send region for each socket.
const AREA: u64 = 8 << 10;
/// Areas of the send region.
const AREAS: usize = 32;
/// Most sockets at once.
const SOCKETS_MAX: usize = 12;
const SENDS_MAX: usize = 64;

/// A thread of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// Thread that attaches, asks and accepts.
    Control,
    /// Thread that reads the events of a channel.
    Events(usize),
    /// Receiving thread of a socket.
    Receiver(usize),
    Sender(usize),
}

/// A thread's progress on its way to sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wait {
    #[default]
    Awake,
    /// Has asked for a wake-up, and is about to look once more.
    Asking {
        doorbell: u64,
        at: u64,
    },
    Asleep {
        doorbell: u64,
        at: u64,
    },
    /// Waits for an event.
    ForEvent,
    /// Waits for an answer on the attach socket.
    ForFrame,
    /// Waits until a previous process says how far it has come.
    ForTurn,
    /// There is nothing more to do.
    Over,
}

/// State of a client's attachment.
#[derive(Clone, Debug)]
enum Phase {
    /// Not attached; tries again at the given time.
    Away {
        until: Duration,
    },
    /// Has to send this frame.
    Asking(Box<Frame>, Duration),
    /// Has sent this frame, and waits for the answer.
    Waiting(Box<Frame>),
    Up,
    /// Has ended, and does not come back.
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
    StepAside(usize),
    /// Request for a socket's file.
    File(Number),
    TwinListen(u32),
    TwinConnect {
        inode: u32,
        listener: u32,
        to: SocketAddr,
    },
    Claim(u32),
    Take(u32),
    Withdraw(usize),
    /// Request whose answer changes nothing.
    Other,
}

struct Socket {
    id: SocketId,
    number: Option<Number>,
    channel: usize,
    /// Set if the socket uses events.
    is_subscribed: bool,
    area: usize,
    listens: Option<Listener>,
    receiver: Wait,
    sender: Wait,
    arriving: Arriving,
    given_back: u64,
    space_answered: u64,
    /// Bytes to send in all.
    total: u64,
    sent: u64,
    posted: u64,
    done: u64,
    in_flight: VecDeque<u64>,
    /// Set when the shutdown was requested and not answered.
    has_shut: bool,
    /// Set when the socket is to be closed, once both its threads are over.
    is_closing: bool,
    is_connected: bool,
    send_ring: u64,
    /// File that holds all that the socket sends.
    file: Option<files::Sent>,
    rings: direct::Rings,
    /// The socket of the kernel that the connection belongs to, if any.
    twin: Option<twins::Twin>,
    /// Calls that have begun: a receive, and a send.
    calls: [Option<calls::Call>; 2],
    /// Times at which its receiver and its sender look again without a wake-up.
    look_at: [Option<Duration>; 2],
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
    /// Connections still to make.
    pub wishes: u64,
    /// Most bytes of a stream.
    pub stream_max: u64,
    channels: usize,
    /// Set if the client waits for events in the kernel's epoll, by a pipe of the driver.
    has_pipes: bool,
    ring_default: u64,
    /// Set if some sockets send files.
    has_files: bool,
    /// Serial of the last file passed.
    passed: u64,
    /// Pending question about a direct ring.
    exchange: Option<direct::Exchange>,
    twins: twins::Twins,
    /// The time of this step.
    now: Duration,
    /// End of a stop of the process, as by SIGSTOP.
    stopped: Option<Duration>,
}

impl Honest {
    pub fn new(index: usize, person: Person, mut random: Random, wishes: u64, ring_default: u64) -> Self {
        let (channels, stream_max) =
            (random.between(1, 2) as usize, random.pick(&[0, 40, 5_000, 60_000, 300_000]));
        let (has_pipes, has_files) = (random.chance(300), random.chance(400));
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
            has_files,
            passed: 0,
            exchange: None,
            twins: twins::Twins::default(),
            now: Duration::ZERO,
            stopped: None,
        }
    }

    /// Stops all threads until the given time.
    pub fn stop(&mut self, until: Duration) {
        self.stopped = Some(until);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Tells whether a thread is in the middle of a call.
    pub fn is_in_call(&self) -> bool {
        self.sockets.iter().flatten().any(|socket| socket.calls.iter().any(Option::is_some))
    }

    /// Resumes the threads if it is time.
    pub fn go_on(&mut self, now: Duration) {
        self.stopped.take_if(|until| now >= *until);
    }

    pub fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    /// Tells whether all connections are over, and all requests are answered.
    pub fn is_idle(&self) -> bool {
        let is_done = |socket: &Socket| socket.listens.is_some() || socket.number.is_none();
        self.pending.is_empty()
            && self.sockets.iter().flatten().all(is_done)
            && !kernel::sockets(|all| all.has_connections(self.person.pid))
    }

    /// Describes the client, for diagnosis of a standstill.
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
                let rings = s.rings.describe();
                format!(
                    "{:?} number {:?} recv {:?} {}/{producer} send {:?} {} of {} done {}/{consumer}, {rings}, {:?}, {:?}",
                    s.id,
                    s.number,
                    s.receiver,
                    s.arriving.received,
                    s.sender,
                    s.sent,
                    s.total,
                    s.done,
                    s.twin,
                    s.calls,
                )
            })
            .collect();
        format!("{:?}, pending {:?}, events {:?}, {sockets:#?}", self.phase, self.pending, self.events)
    }

    /// Adds the threads that can go on to `into`.
    pub fn runnable(&self, now: Duration, into: &mut Vec<Thread>) {
        if self.stopped.is_some() {
            return;
        }
        let has_news = self.link.as_ref().is_some_and(Link::has_news);
        let control = match &self.phase {
            Phase::Away { until } | Phase::Asking(_, until) => now >= *until || has_news,
            Phase::Waiting(_) => has_news,
            Phase::Up => {
                has_news
                    || self.wishes > 0 && self.next_tag < u32::MAX
                    || self.has_to_close()
                    || self.owes_nudge()
                    || self.has_twin_chores(now)
            }
            Phase::Gone => false,
        };
        if control {
            into.push(Thread::Control);
        }
        let Some(link) = self.link.as_ref().filter(|_| self.is_up()) else { return };
        for (channel, &wait) in self.events.iter().enumerate() {
            let can_go_on = match (wait, link.pipes.get(&channel)) {
                (Wait::Asleep { .. }, Some(pipe)) => is_readable(pipe),
                _ => can_go_on(wait, || link.channel_u32(channel, channel_status::EVENT_DOORBELL).into()),
            };
            if can_go_on {
                into.push(Thread::Events(channel));
            }
        }
        for (at, socket) in self.sockets.iter().enumerate() {
            let Some(socket) = socket.as_ref().filter(|socket| !self.is_locked_out(socket)) else { continue };
            let looks = |thread: usize| socket.look_at[thread].is_some_and(|until| now >= until);
            let [receives, sends] = [0, 1].map(|thread| looks(thread) || self.has_turn(socket, thread));
            let is_awake = can_go_on(socket.receiver, || rung(link, socket, true)) || receives;
            if is_awake && !Self::is_paused(socket, calls::RECEIVES, now) {
                into.push(Thread::Receiver(at));
            }
            let is_awake = can_go_on(socket.sender, || rung(link, socket, false)) || sends;
            if is_awake && !Self::is_paused(socket, calls::SENDS, now) && !self.is_held_up(socket) {
                into.push(Thread::Sender(at));
            }
        }
    }

    /// Returns the time at which the clock lets the client go on.
    pub fn wake_by(&self) -> Option<Duration> {
        if self.stopped.is_some() {
            return self.stopped;
        }
        match &self.phase {
            Phase::Away { until } | Phase::Asking(_, until) => Some(*until),
            _ => {
                let looks = self.sockets.iter().flatten().flat_map(|socket| socket.look_at).flatten();
                let paused = self.sockets.iter().flatten().flat_map(Self::paused_until);
                looks.chain(self.settle_by()).chain(paused).min()
            }
        }
    }

    /// Returns a description of a thread that sleeps although its event has come. `peers_run`: no process is stopped, or in
    /// the middle of a call: such a one may have written into a ring without waking sleepers yet.
    pub fn sleeps_in_vain(&self, peers_run: bool) -> Option<String> {
        let link = self.link.as_ref().filter(|_| self.is_up() && self.stopped.is_none())?;
        for (channel, &wait) in self.events.iter().enumerate() {
            let Wait::Asleep { at, .. } = wait else { continue };
            if link.channel_u64(channel, channel_status::EVENT_PRODUCER) >= at {
                return Some(format!("client {} sleeps on the events of channel {channel}", self.index));
            }
        }
        for socket in self.sockets.iter().flatten().filter(|socket| !self.is_lock_others(socket)) {
            let word = link.line_u32(socket.id, socket_status::PATH);
            // Without a ring that was refused, the peer cannot wake anybody.
            let all_went_well = peers_run
                && kernel::with(|kernel| kernel.failed == 0 && !kernel.has_refused_ring) == Some(true);
            let ring = all_went_well && socket.rings.has_come(socket.arriving.received, word, self.now);
            let room = all_went_well && socket.rings.has_room(word, self.now) == Some(true);
            if matches!(socket.receiver, Wait::Asleep { .. }) && ring
                || matches!(socket.sender, Wait::Asleep { .. }) && room
            {
                return Some(format!("client {} sleeps beside the rings of {:?}", self.index, socket.id));
            }
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
                let received = socket.rings.by_driver(socket.arriving.received);
                let has_bytes = socket.receiver == Wait::ForEvent
                    && (line(socket_status::RECV_PRODUCER) > received
                        || ring
                        || end(socket_status::RECV_END) != 0);
                let has_room = socket.sender == Wait::ForEvent
                    && (line(socket_status::SEND_CONSUMER) > socket.done
                        || room
                        || end(socket_status::SEND_END) != 0);
                let events_read = self.events.iter().all(|wait| matches!(wait, Wait::Asleep { .. }));
                if (has_bytes || has_room) && events_read {
                    return Some(format!("client {} gets no event of socket {:?}", self.index, socket.id));
                }
            }
        }
        None
    }

    /// Keeps a woken thread asleep. Returns whether there was one.
    pub fn miss_wake(&mut self) -> bool {
        let Some(link) = self.link.as_ref().filter(|_| matches!(self.phase, Phase::Up)) else { return false };
        for socket in self.sockets.iter_mut().flatten().filter(|socket| socket.look_at == [None; 2]) {
            let doorbells = [rung(link, socket, true), rung(link, socket, false)];
            let waits = [&mut socket.receiver, &mut socket.sender];
            for (wait, rung) in waits.into_iter().zip(doorbells) {
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

    /// Runs a thread for one step. Returns a value for the trace.
    pub fn step(
        &mut self,
        thread: Thread,
        now: Duration,
        driver: &SocketAddrUnix,
        number: u64,
        book: &mut Book,
    ) -> u64 {
        self.now = now;
        match thread {
            Thread::Control => self.control(now, driver, number, book),
            Thread::Events(channel) => self.read_events(channel, now, book),
            Thread::Receiver(at) => {
                let trace = self.receive(at, book);
                self.pause_call(at, calls::RECEIVES);
                self.keep(at);
                trace
            }
            Thread::Sender(at) => {
                let trace = self.send(at, book);
                self.pause_call(at, calls::SENDS);
                self.keep(at);
                trace
            }
        }
    }

    /// Kills the client: by the attach socket's end, its process's, or both. After a hang-up of the driver it never learns of that.
    pub fn die(&mut self, now: Duration, book: &mut Book) {
        self.hung_up(now, book);
    }

    /// Ends the client without a return.
    pub fn leave(&mut self, book: &mut Book) {
        self.lose(Duration::ZERO, book);
        self.release_all(book);
        self.phase = Phase::Gone;
    }

    /// Records that the driver has hung up.
    fn hung_up(&mut self, now: Duration, book: &mut Book) {
        for number in self.sockets.iter().flatten().filter_map(|socket| socket.number) {
            book.sockets[number].is_hung_up = true;
        }
        self.lose(now, book);
    }

    fn lose(&mut self, now: Duration, book: &mut Book) {
        self.lose_twins(book);
        for socket in self.sockets.drain(..).flatten().filter(|socket| socket.twin.is_none()) {
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
        self.exchange = None;
        self.phase = Phase::Away { until: now + Duration::from_millis(self.random.between(1, 300)) };
    }
}

/// Returns the doorbells that a socket's receiver or sender sleeps on.
fn rung(link: &Link, socket: &Socket, receives: bool) -> u64 {
    let word = if receives { socket_status::RECV_DOORBELL } else { socket_status::SEND_DOORBELL };
    u64::from(link.line_u32(socket.id, word)) | socket.rings.doorbell(receives)
}

fn can_go_on(wait: Wait, doorbell: impl FnOnce() -> u64) -> bool {
    match wait {
        Wait::Awake | Wait::Asking { .. } => true,
        Wait::Asleep { doorbell: seen, .. } => doorbell() != seen,
        Wait::ForEvent | Wait::ForFrame | Wait::ForTurn | Wait::Over => false,
    }
}

fn is_ready_to_close(socket: &Socket) -> bool {
    let is_over = socket.receiver == Wait::Over && socket.sender == Wait::Over;
    is_over
        && !socket.twin.is_some_and(twins::Twin::must_settle)
        && (socket.is_connected && !socket.has_shut || socket.is_closing)
}
