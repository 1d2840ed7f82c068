//! A process with many connections, each of which is checked to the last byte, for the tests of take-overs.
//!
//! `crowd SEED` listens, and answers `ok ADDR`. Then it carries out commands from its standard input, and answers each by a line:
//!
//! - `connect COUNT ADDR`: connects COUNT times there, and accepts as many connections: `ok`.
//! - `ready`: waits until each connection has carried its first bytes: `ok DIRECT`, the number of connections on the direct path.
//! - `end`: sends the last bytes of all, ends all, and reads to the ends: `ok SENT RECEIVED LONGEST_US`. The last number is the longest
//!   time in which nothing at all arrived.
use pd_client::{Epoll, Interest, Listener, ListenerOptions, Path, Shutdown, Stream};
use pd_tests::{fill, verify, Random};
use std::io::BufRead;
use std::net::SocketAddr;
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Bytes of a ring. The default would take gigabytes for a crowd.
const RING_BYTES: u64 = 128 << 10;
/// Messages of a connection that is to leave the driver's path, where the policy has it do so, and their bytes. The library wants 64 of this
/// size, and more of a smaller one in a crowd.
const WARMING: u64 = 80;
const WARMING_BYTES: u64 = 4 << 10;
/// Longest time for what a crowd does before it answers.
const PATIENCE: Duration = Duration::from_secs(100);
/// Longest wait for bytes in a round, and the pause after one. Crowds that take all processors would measure the scheduler.
const ROUND: Duration = Duration::from_millis(3);
const REST: Duration = Duration::from_millis(5);

/// Use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A message at its beginning, and one at its end.
    Idle,
    /// As many messages at its beginning as make it direct, and one at its end.
    WarmIdle,
    /// Small messages now and then.
    Talks,
    /// As many bytes as there is room for: some are always under way.
    Floods,
}

impl Kind {
    fn of(id: u64) -> Self {
        [Self::Idle, Self::WarmIdle, Self::Talks, Self::Floods][id as usize % 4]
    }

    fn first_bytes(self) -> u64 {
        match self {
            Self::Idle => 100,
            Self::WarmIdle | Self::Talks | Self::Floods => WARMING * WARMING_BYTES,
        }
    }
}

/// An end of a connection.
struct End {
    stream: Stream,
    kind: Kind,
    /// Names of the streams of bytes there and back.
    seeds: [u64; 2],
    sent: u64,
    received: u64,
    /// The peer sends no more.
    is_read: bool,
    /// This end sends no more.
    is_shut: bool,
}

impl End {
    fn new(stream: Stream, id: u64, epoll: &Epoll, index: usize, connects: bool) -> Self {
        stream.set_nonblocking(true);
        epoll.add(&stream, Interest::READ, index as u64).expect("epoll");
        let seeds = if connects { [2 * id, 2 * id + 1] } else { [2 * id + 1, 2 * id] };
        Self { stream, kind: Kind::of(id), seeds, sent: 0, received: 0, is_read: false, is_shut: false }
    }

    fn is_warm(&self) -> bool {
        self.sent.min(self.received) >= self.kind.first_bytes()
    }

    /// Reads what has come, of a flood only a part as long as it lasts, so that more is under way. Returns the bytes.
    fn read(&mut self, is_over: bool) -> u64 {
        let before = self.received;
        let most = if self.kind == Kind::Floods && !is_over { before + 6000 } else { u64::MAX };
        while self.received < most && !self.is_read {
            match self.stream.recv(6000) {
                Err(error) if error.would_block() => break,
                Err(error) => panic!("receiving after {} bytes: {error:?}", self.received),
                Ok(received) => {
                    verify(self.seeds[1], self.received, &received);
                    self.received += received.len() as u64;
                    self.is_read = received.is_empty();
                }
            }
        }
        self.received - before
    }

    /// Sends up to `len` bytes. Returns false if there is no room.
    fn send(&mut self, len: u64) -> bool {
        let (seed, sent) = (self.seeds[0], self.sent);
        let place = |bytes: &mut [u8]| {
            fill(seed, sent, bytes);
            bytes.len()
        };
        match self.stream.send_with(len as usize, place) {
            Ok(len) => self.sent += len as u64,
            Err(error) if error.would_block() => return false,
            Err(error) => panic!("sending after {sent} bytes: {error:?}"),
        }
        true
    }

    fn send_some(&mut self, random: &mut Random, is_over: bool) {
        if self.is_shut {
            return;
        }
        let first = self.kind.first_bytes();
        while self.sent < first {
            if !self.send(WARMING_BYTES.min(first - self.sent)) {
                return;
            }
        }
        match self.kind {
            _ if is_over => {
                // The last ones begin somewhere within a word of the pattern.
                if self.send(100 + self.sent % 7) {
                    self.stream.shutdown(Shutdown::Write).expect("shutdown");
                    self.is_shut = true;
                }
            }
            Kind::Talks if random.below(4) == 0 => drop(self.send(1 + random.below(300))),
            Kind::Floods => while self.send(1 + random.below(8000)) {},
            Kind::Idle | Kind::WarmIdle | Kind::Talks => {}
        }
    }
}

struct Crowd {
    seed: u64,
    random: Random,
    listener: Listener,
    epoll: Epoll,
    ends: Vec<End>,
    is_over: bool,
    last: Instant,
    longest: Duration,
}

impl Crowd {
    fn new(seed: u64) -> Self {
        let rings = Some(RING_BYTES);
        let options =
            ListenerOptions { send_ring_bytes: rings, recv_ring_bytes: rings, ..ListenerOptions::default() };
        let listener = Listener::bind_with("127.0.0.1:0".parse().expect("address"), options).expect("listen");
        Self {
            seed,
            random: Random(seed),
            listener,
            epoll: Epoll::new(),
            ends: Vec::new(),
            is_over: false,
            last: Instant::now(),
            longest: Duration::ZERO,
        }
    }

    fn connect(&mut self, count: u64, addr: SocketAddr) {
        let mut connected = Vec::new();
        for index in 0..count {
            let stream = Stream::connect(addr).expect("connect");
            stream.set_recv_ring_bytes(RING_BYTES).expect("ring");
            stream.set_send_ring_bytes(RING_BYTES).expect("ring");
            let id = self.seed << 32 | index;
            stream
                .send_with(8, |bytes| {
                    bytes.copy_from_slice(&id.to_le_bytes());
                    8
                })
                .expect("name");
            connected.push((stream, id));
        }
        for (stream, id) in connected {
            self.ends.push(End::new(stream, id, &self.epoll, self.ends.len(), true));
        }
        for _ in 0..count {
            let stream = self.listener.accept().expect("accept");
            let mut name = Vec::new();
            while name.len() < 8 {
                let more = stream.recv(8 - name.len()).expect("name");
                assert!(!more.is_empty(), "a connection has ended");
                name.extend_from_slice(&more);
            }
            let id = u64::from_le_bytes(name.try_into().expect("eight"));
            self.ends.push(End::new(stream, id, &self.epoll, self.ends.len(), false));
        }
    }

    /// Reads what comes for a moment, and sends.
    fn round(&mut self) {
        let mut events = Vec::new();
        self.epoll.wait(&mut events, 1024, Some(ROUND)).expect("wait");
        let mut more = 0;
        for event in &events {
            let end = &mut self.ends[event.data as usize];
            more += end.read(self.is_over);
            if end.is_read {
                self.epoll.remove(&end.stream).expect("epoll");
            }
        }
        if more > 0 {
            self.longest = self.longest.max(self.last.elapsed());
            self.last = Instant::now();
        }
        for end in &mut self.ends {
            end.send_some(&mut self.random, self.is_over);
        }
    }

    /// Goes on until all ends are as wished.
    fn until(&mut self, what: &str, wished: impl Fn(&End) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !self.ends.iter().all(&wished) {
            let late = self.ends.iter().filter(|end| !wished(end));
            assert!(Instant::now() < end, "{} ends are not {what}", late.count());
            self.round();
        }
    }

    fn apply(&mut self, command: &str) -> String {
        let words: Vec<_> = command.split(' ').collect();
        match words[..] {
            ["connect", count, addr] => {
                self.connect(count.parse().expect("number"), addr.parse().expect("address"));
                String::new()
            }
            ["ready"] => {
                self.until("warm", End::is_warm);
                let direct = self.ends.iter().filter(|end| end.stream.path() == Path::Direct).count();
                (self.last, self.longest) = (Instant::now(), Duration::ZERO);
                direct.to_string()
            }
            ["end"] => {
                // The ends that were idle are waited for one by one.
                let longest = self.longest;
                self.is_over = true;
                self.until("at their ends", |end| end.is_read && end.is_shut);
                let sum = |bytes: fn(&End) -> u64| self.ends.iter().map(bytes).sum::<u64>();
                format!("{} {} {}", sum(|end| end.sent), sum(|end| end.received), longest.as_micros())
            }
            _ => panic!("no such command: {command}"),
        }
    }
}

fn commands() -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
    });
    told
}

fn main() {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).expect("seed");
    let mut crowd = Crowd::new(seed);
    println!("ok {}", crowd.listener.local_addr().expect("address"));
    let commands = commands();
    loop {
        match commands.try_recv() {
            Ok(command) => println!("ok {}", crowd.apply(&command)),
            Err(TryRecvError::Empty) => {
                crowd.round();
                std::thread::sleep(REST);
            }
            Err(TryRecvError::Disconnected) => return,
        }
    }
}
