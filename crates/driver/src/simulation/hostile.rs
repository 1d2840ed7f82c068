//! Clients that keep no protocol: any frame, any word, any request, in any order. Many are right, so that the client gets far.
use super::book::{Book, MARK};
use super::kernel::{self, Person};
use super::link::{dial, Came, Link};
use super::random::Random;
use pd_abi::layout::{
    channel_control, channel_offset, control_header, socket_control, socket_offset, socket_status,
};
use pd_abi::limits::{CHANNELS_MAX, EVENT_RING_ENTRIES, PAGE_BYTES, REQUEST_RING_ENTRIES};
use pd_abi::{
    Address, Event, FileId, Frame, FrameKind, Operation, Request, SocketId, Span, TwinOperation, TwinRequest,
};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::net::{SendFlags, SocketAddrUnix};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

const REGION_BYTES: u64 = 4 * PAGE_BYTES as u64;

/// See the module.
pub struct Hostile {
    pub person: Person,
    pub link: Option<Link>,
    random: Random,
    until: Duration,
    /// Requests that the client claims to have written, by channel.
    produced: Vec<u64>,
    /// Sockets that events have named.
    sockets: Vec<SocketId>,
    /// Numbers from answers, such as those of open files.
    files: Vec<u32>,
    /// Serial of the last descriptor passed.
    passed: u64,
    /// Steps in a thousand that keep no rule.
    malice: u64,
    pub is_gone: bool,
    asked: bool,
}

impl Hostile {
    pub fn new(person: Person, mut random: Random) -> Self {
        let malice = random.pick(&[20, 200, 700]);
        let (link, until, produced, sockets, files, passed, is_gone, asked) = Default::default();
        Self { person, link, random, until, produced, sockets, files, passed, malice, is_gone, asked }
    }

    pub fn is_runnable(&self, now: Duration) -> bool {
        !self.is_gone && (self.link.is_some() || now >= self.until)
    }

    pub fn wake_by(&self) -> Option<Duration> {
        (!self.is_gone && self.link.is_none()).then_some(self.until)
    }

    pub fn lose(&mut self, now: Duration) {
        kernel::sockets(|all| all.exit(self.person.pid));
        if let Some(link) = self.link.take() {
            let _ = rustix::net::shutdown(&link.socket, rustix::net::Shutdown::Both);
        }
        self.produced.clear();
        self.sockets.clear();
        self.files.clear();
        self.until = now + Duration::from_millis(self.random.between(1, 100));
    }

    /// Takes one step. Returns a value for the trace.
    pub fn step(&mut self, now: Duration, driver: &SocketAddrUnix, number: u64, book: &Book) -> u64 {
        let Some(link) = &mut self.link else {
            kernel::with(|kernel| kernel.enter(number, self.person.clone()));
            match dial(driver, number) {
                Ok(socket) => (self.link, self.asked) = (Some(Link::new(socket)), false),
                Err(_) => self.until = now + Duration::from_millis(self.random.between(1, 50)),
            }
            return 1;
        };
        if self.random.chance(500) || !self.random.chance(950) && link.has_news() {
            match link.receive() {
                Came::End => {
                    self.lose(now);
                    return 2;
                }
                Came::Frame(frame) => {
                    self.asked = false;
                    if frame.checked_kind() == Some(FrameKind::SendRegion) {
                        if let Some((map, _)) = link.send.get(&frame.id) {
                            let word = u64::from_le_bytes([MARK; 8]);
                            (0..map.len())
                                .step_by(8)
                                .for_each(|at| map.store_u64(at, word, Ordering::Relaxed));
                        }
                    }
                    return 3;
                }
                Came::Nothing => {}
            }
        }
        if self.random.chance(self.malice) {
            self.misbehave(now);
        } else {
            self.behave(book);
        }
        4
    }

    /// Takes a step that keeps the protocol, more or less.
    fn behave(&mut self, book: &Book) {
        let Some(link) = &mut self.link else { return };
        if link.shared.is_none() || link.channels.is_empty() || link.send.is_empty() || self.random.chance(30)
        {
            if !std::mem::replace(&mut self.asked, true) {
                let frame = match (&link.shared, link.channels.len(), link.send.keys().next()) {
                    (None, ..) => Frame::new(FrameKind::Hello),
                    (_, 0, _) if self.random.chance(500) => {
                        Frame::new(FrameKind::Mapped).with_id(Frame::REGION_CONTROL)
                    }
                    (_, 0, _) => Frame::new(FrameKind::Channel),
                    (_, _, None) => Frame::new(FrameKind::SendRegion).with_bytes(REGION_BYTES, 0),
                    (_, _, Some(&id)) => self.random.pick(&[
                        Frame::new(FrameKind::Mapped).with_id(id),
                        Frame::new(FrameKind::Channel),
                        Frame::new(FrameKind::WakePipe),
                        Frame::new(FrameKind::FileSocket),
                    ]),
                };
                let _ = link.send(&frame);
            }
            return;
        }
        let channel = self.random.below(link.channels.len() as u64) as usize;
        while let Ok(Some(event)) = link.channels[channel].events.read() {
            let event: Event = event;
            let socket = SocketId(event.socket);
            if event.errno == 0 && socket.generation() != 0 && !self.sockets.contains(&socket) {
                link.take(socket);
                self.sockets.push(socket);
            }
            if event.errno == 0 && socket == SocketId(0) && self.files.len() < 8 {
                self.files.push(event.number() as u32);
            }
        }
        link.channels[channel].events.release();
        if !book.twin_listening.is_empty() && self.random.chance(50) {
            self.use_twin(channel, book);
            return;
        }
        let Some(link) = &mut self.link else { return };
        let socket = match self.sockets.len() {
            0 => SocketId(0),
            count => self.sockets[self.random.below(count as u64) as usize],
        };
        if link.files.is_some() && self.random.chance(200) {
            self.send_file(channel, socket);
            return;
        }
        let of = |operation| Request::new(operation, socket, 7);
        let ip = self.random.pick(&[[127, 0, 0, 1], self.person.address, [10, 0, 0, 1], [0; 4]]);
        let somewhere: SocketAddr = (ip, self.random.pick(&[0, 80, 81, 90])).into();
        let request = match self.random.below(14) {
            0 | 1 => Request { family: self.random.pick(&[4, 4, 6]), ..of(Operation::Socket) },
            2 => of(Operation::Bind).with_address(somewhere.into()),
            3 => of(Operation::Listen).with_numbers(self.random.below(4), 0),
            4 if !book.listening.is_empty() => {
                of(Operation::Connect).with_address(self.random.pick(&book.listening).at.into())
            }
            4 => of(Operation::Connect).with_address(somewhere.into()),
            5 => Request { value: self.random.below(4) as u32, ..of(Operation::Accept) },
            6 => of(Operation::Shutdown).with_numbers(self.random.below(5), 0),
            7 if self.random.chance(300) => {
                Request { value: self.random.below(2) as u32, ..of(Operation::Close) }
            }
            8 => {
                let received = link.line_u64(socket, socket_status::RECV_PRODUCER);
                link.set_line(socket, socket_control::RECV_CONSUMER, received);
                of(Operation::Space)
            }
            9 => {
                link.set_line_u32(socket, socket_control::SUBSCRIBED, 1);
                of(Operation::Adopt)
            }
            10 => {
                let operation = self.random.pick(Operation::ALL);
                Request { value: self.random.below(4) as u32, ..of(operation) }
            }
            _ => {
                let len = self.random.between(1, 2000);
                let region = link.send.keys().next().copied().unwrap_or(0) as u16;
                Request::send(socket, Span { region, offset: self.random.below(REGION_BYTES - len), len })
            }
        };
        if link.write(channel, request) {
            link.publish(channel);
            self.produced.resize(link.channels.len(), 0);
            self.produced[channel] = link.channels[channel].requests.position();
        }
    }

    /// Makes a twin towards a listener, or asks for that of a socket.
    fn use_twin(&mut self, channel: usize, book: &Book) {
        let Some(link) = &self.link else { return };
        let listening = self.random.pick(&book.twin_listening);
        let (pid, namespace) = (self.person.pid, self.person.namespace);
        let to = SocketAddr::new(listening.home.into(), listening.at.map_or(0, |at| at.port()));
        let own = if namespace == listening.namespace { listening.home } else { self.person.address };
        let (inode, local, peer) = kernel::sockets(|all| match listening.at {
            Some(_) => {
                let (inode, local) = all.bind(pid, namespace, (own, 0).into());
                (inode, local.into(), to.into())
            }
            None => (all.make_unix(pid, namespace), Address::FILE, all.names(listening.inode).0),
        });
        let ask = |operation: TwinOperation, descriptor: u32, local: Address, peer: Address| {
            let cookie = kernel::cookie(descriptor);
            let operation = operation as u32;
            let request = TwinRequest { operation, tag: 7, descriptor, cookie, local, peer };
            let _ = link.send(&Frame::new(FrameKind::Twin).with_id(channel as u32).with_twin(&request));
        };
        ask(TwinOperation::Connect, inode, local, peer);
        if self.random.chance(800) {
            kernel::sockets(|all| all.connect(inode, listening.inode, to));
        }
        if self.random.chance(300) {
            let others = self.random.between(1, inode.into()) as u32;
            let (local, others_peer) = kernel::sockets(|all| all.names(others));
            let operation = self.random.pick(TwinOperation::ALL);
            ask(operation, others, local, if others_peer == Address::NONE { peer } else { others_peer });
        }
    }

    /// Passes a descriptor, asks for a passed one, or sends a piece of a file.
    fn send_file(&mut self, channel: usize, socket: SocketId) {
        let Some(link) = &mut self.link else { return };
        let Some(files) = &link.files else { return };
        let request = match (self.random.below(4), self.files.len()) {
            (0, _) => {
                self.passed += self.random.pick(&[1, 1, 1, 9]);
                let _ = match self.random.below(4) {
                    0 => pd_shm::passed::send(files, self.passed, self.person.life.as_fd()),
                    1 => rustix::net::send(files, b"no file", SendFlags::DONTWAIT).map(drop),
                    _ => memfd_create("pd-hostile", MemfdFlags::CLOEXEC).and_then(|memory| {
                        rustix::io::write(&memory, &[MARK; 5000])?;
                        pd_shm::passed::send(files, self.passed, memory.as_fd())
                    }),
                };
                return;
            }
            (2 | 3, count @ 1..) => {
                let file = FileId(self.files[self.random.below(count as u64) as usize]);
                let (offset, len) = (self.random.below(5100), self.random.between(1, 3000));
                link.count_file(FileId::new(file.slot() % 64, 1), self.passed as u32);
                Request::send_file(socket, file, offset, len)
            }
            _ => Request::new(Operation::OpenFile, SocketId(0), 7).with_numbers(self.passed, 0),
        };
        if link.write(channel, request) {
            link.publish(channel);
            self.produced.resize(link.channels.len(), 0);
            self.produced[channel] = link.channels[channel].requests.position();
        }
    }

    fn near(&mut self, value: u64) -> u64 {
        match self.random.below(6) {
            0 => self.random.next(),
            1 => u64::MAX,
            2 => 0,
            3 => value.wrapping_add(self.random.below(70_000)),
            _ => value.wrapping_add(self.random.below(9)).wrapping_sub(4),
        }
    }

    /// Breaks the protocol.
    fn misbehave(&mut self, now: Duration) {
        let what = self.random.below(16);
        let any = self.random.next();
        let value = self.near(any % 4096);
        let Some(link) = &mut self.link else { return };
        match what {
            0 | 1 => {
                let kind = self.random.pick(FrameKind::ALL);
                let id = self.random.pick(&[0, 1, 2, Frame::REGION_CONTROL, any as u32]);
                let mut frame = Frame::new(kind).with_id(id).with_bytes(value, any);
                if self.random.chance(50) {
                    (frame.magic, frame.version) = (frame.magic ^ (any % 2), 1 + any as u32 % 9);
                }
                for byte in &mut frame.text {
                    *byte = self.random.next() as u8 % 9;
                }
                if let (true, Some(socket)) = (any % 3 > 0, self.sockets.first()) {
                    frame.id = socket.0;
                }
                let _ = link.send(&frame);
            }
            2 => {
                let bytes = vec![any as u8; self.random.below(200) as usize];
                let _ = rustix::net::send(&link.socket, &bytes, rustix::net::SendFlags::NOSIGNAL);
            }
            3 if any % 20 == 0 => {
                self.lose(now);
            }
            4 if any % 20 == 0 => {
                let _ = rustix::io::write(&self.person.life, &1u64.to_ne_bytes());
                self.lose(now);
            }
            _ if link.shared.is_none() => {}
            5..=9 => {
                let control = &link.shared().control;
                let at = match any % 5 {
                    0 => control_header::FILE_USES + 8 * self.random.below(40) as usize,
                    1 | 2 => {
                        let channel = self.random.below(3) as usize % CHANNELS_MAX;
                        let words = [
                            channel_control::REQUEST_PRODUCER,
                            channel_control::EVENT_CONSUMER,
                            channel_control::EVENT_WAKE_AT,
                            channel_control::PIPE_WANTED,
                        ];
                        channel_offset(channel) + self.random.pick(&words)
                    }
                    _ => {
                        let words = [
                            socket_control::RECV_CONSUMER,
                            socket_control::RECV_WAKE_AT,
                            socket_control::SEND_WAKE_AT,
                            socket_control::SUBSCRIBED,
                            socket_control::GENERATION,
                        ];
                        socket_offset(self.random.below(6) as u16) + self.random.pick(&words)
                    }
                };
                control.store_u64(at & !7, value, Ordering::Release);
            }
            10..=13 if !link.channels.is_empty() => {
                let channel = self.random.below(link.channels.len() as u64) as usize;
                let mut request = Request {
                    operation: self.random.below(20) as u8,
                    family: self.random.pick(&[0, 4, 6, 9]),
                    port: any as u16,
                    tag: value as u32,
                    value: self.random.below(5) as u32,
                    socket: self.random.below(4) as u32 | 1 << 16,
                    ..Request::default()
                };
                request = request.with_numbers(value, self.random.next() >> self.random.below(64));
                if let (true, Some(socket)) = (any % 2 == 0, self.sockets.last()) {
                    request.socket = socket.0;
                }
                if link.write(channel, request) {
                    link.publish(channel);
                }
            }
            14 if !link.channels.is_empty() => {
                let channel = self.random.below(link.channels.len() as u64) as usize;
                let produced = self.produced.get(channel).copied().unwrap_or(0);
                let forged = match any % 4 {
                    0 => produced + REQUEST_RING_ENTRIES + 1,
                    1 => produced + EVENT_RING_ENTRIES,
                    _ => produced + any % 100,
                };
                link.set_channel(channel, channel_control::REQUEST_PRODUCER, forged);
                link.ring(channel);
            }
            _ => {
                if let Some(channel) = link.channels.len().checked_sub(1) {
                    link.ring(channel);
                }
            }
        }
    }
}
