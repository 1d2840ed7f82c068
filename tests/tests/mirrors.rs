//! Mirrors of connections: observers that follow streams, and connections that do not notice.
use pd_client::core::twin;
use pd_client::pipe::{Direction, Options, Pipe};
use pd_client::{Listener, ListenerOptions, Path, SendBuffer, Shutdown, Stream};
use pd_driver::admin::{tap, Answer, Ask, PortReport, PortSpec, Tap, TapOf};
use pd_driver::policy::Path as BytesPath;
use pd_driver::Policy;
use pd_pipe::Record;
use pd_tests::{alone, fill, verify, Random, TestDriver, TwinSide};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const FIN: u8 = 1;
const SYN: u8 = 2;

/// Returns a driver whose connections are direct where allowed.
fn driver() -> &'static TestDriver {
    static DRIVER: OnceLock<TestDriver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let driver = TestDriver::with("cpu", |settings| {
            settings.policy = Policy { path: Some(BytesPath::Direct), ..settings.policy.clone() };
        });
        driver.attach_here();
        driver
    })
}

fn add(name: &str, of: &str) -> Result<(), String> {
    let port = PortSpec::Mirror { of: of.to_owned() };
    let ask = Ask::PortAdd { name: name.to_owned(), port };
    match pd_driver::admin::ask(driver().admin_socket(), &ask) {
        Ok(Answer::Done) => Ok(()),
        Ok(other) => panic!("{other:?}"),
        Err(why) => Err(why.to_string()),
    }
}

/// A mirror, which goes when dropped.
struct Mirror(&'static str);

impl Mirror {
    fn new(name: &'static str, of: &str) -> Self {
        add(name, of).unwrap();
        Self(name)
    }

    fn tap(&self) -> Tap {
        tap(driver().admin_socket(), TapOf::Port { name: self.0.to_owned() }, Record::SNAP_MAX).unwrap()
    }

    fn report(&self) -> PortReport {
        driver().pipes().ports.into_iter().find(|port| port.name == self.0).unwrap()
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        driver().tell(&Ask::PortRemove { name: self.0.to_owned() });
    }
}

/// Makes both ends of a connection whose bytes could go by rings that they share.
fn pair() -> (Stream, Stream) {
    driver();
    let options = ListenerOptions { recv_shared: true, ..ListenerOptions::default() };
    let listener = Listener::bind_with("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let stream = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let accepted = listener.accept().unwrap();
    (stream, accepted)
}

/// Sends the stream called `seed` from `from` to `to`, and receives it at the other end.
fn exchange(streams: (&Stream, &Stream), seed: u64, from: u64, to: u64) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(seed ^ from);
            let mut buffer = SendBuffer::new(50_000).unwrap();
            let mut at = from;
            while at < to {
                let len = (1 + random.below(50_000)).min(to - at) as usize;
                fill(seed, at, &mut buffer.wait_mut().unwrap()[..len]);
                assert_eq!(streams.0.send(&buffer, ..len).unwrap(), len);
                at += len as u64;
            }
        });
        let mut at = from;
        while at < to {
            let got = streams.1.recv((to - at) as usize).unwrap();
            verify(seed, at, &got);
            at += got.len() as u64;
        }
    });
}

/// Streams of IPv4 that an observer has seen, by source port.
#[derive(Default)]
struct Seen {
    /// Next sequence number of a stream, and its bytes that were seen.
    streams: HashMap<u16, (u32, u64)>,
    flags: HashMap<u16, u8>,
    seeds: HashMap<u16, u64>,
    /// Positions of streams that were open before.
    offsets: HashMap<u16, u64>,
    gaps: u64,
}

impl Seen {
    /// Checks a frame: its bytes are those of the stream at their place.
    fn see(&mut self, frame: &[u8]) {
        assert_eq!((&frame[12..15], frame[23]), (&[8, 0, 0x45][..], 6));
        let (ip, tcp) = (&frame[14..34], &frame[34..]);
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), frame.len() - 14);
        assert_eq!((&ip[12..16], &ip[16..20]), (&[127, 0, 0, 1][..], &[127, 0, 0, 1][..]));
        let from = u16::from_be_bytes([tcp[0], tcp[1]]);
        let seq = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
        *self.flags.entry(from).or_default() |= tcp[13];
        let payload = &tcp[20..];
        if payload.is_empty() {
            return;
        }
        let (next, seen) = self.streams.entry(from).or_insert((1, 0));
        self.gaps += u64::from(seq != *next);
        *next = seq + payload.len() as u32;
        *seen += payload.len() as u64;
        let position = self.offsets.get(&from).copied().unwrap_or(0) + u64::from(seq) - 1;
        verify(self.seeds[&from], position, payload);
    }

    fn bytes(&self, from: u16) -> u64 {
        self.streams.get(&from).map_or(0, |(_, seen)| *seen)
    }

    /// Reads records until `done`.
    fn read(&mut self, tap: &mut Tap, done: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            let ports = || driver().pipes().ports;
            assert!(Instant::now() < until, "{:?} {:?} {:?}", self.streams, self.flags, ports());
            let _ = tap.records.wait(Duration::from_millis(50));
            let mut frames = match tap.records.frames() {
                Err(Errno::AGAIN) => continue,
                frames => frames.unwrap(),
            };
            while let Some(record) = frames.next() {
                self.see(Record::read(record.bytes()).unwrap().1);
            }
        }
    }
}

impl Seen {
    /// Reads frames of a pipe until `bytes` of a stream were seen.
    fn read_pipe(&mut self, pipe: &mut Pipe, from: u16, bytes: u64) {
        while self.bytes(from) < bytes {
            let waited = pipe.wait(Some(PATIENCE));
            assert!(waited.is_ok(), "{waited:?} {:?} {:?}", self.streams, driver().pipes().ports);
            let mut frames = pipe.frames().unwrap();
            while let Some(frame) = frames.next() {
                self.see(frame.bytes());
            }
        }
    }
}

fn port(of: pd_client::Result<SocketAddr>) -> u16 {
    of.unwrap().port()
}

#[test]
fn an_observer_follows_both_streams_of_a_connection_which_is_offloaded_meanwhile() {
    let _alone = alone();
    let (a, b) = pair();
    exchange((&a, &b), 1, 0, 1_000_000);
    assert_eq!(a.path(), Path::Direct);
    let eye = Mirror::new("eye", "connections:");
    let mut records = eye.tap();
    // Bytes in the rings at that moment may be seen, too.
    let (from, to) = (port(a.local_addr()), port(b.local_addr()));
    let mut seen = Seen { seeds: HashMap::from([(from, 1), (to, 2)]), ..Seen::default() };
    seen.offsets.insert(from, 1_000_000);
    // Each round fits into the memory between mover and agent, so that nothing is lost to an agent without a core.
    let (near, far) = (500_000, 250_000);
    for round in 1..40 {
        exchange((&a, &b), 1, 1_000_000 + (round - 1) * near, 1_000_000 + round * near);
        exchange((&b, &a), 2, (round - 1) * far, round * far);
        seen.read(&mut records, |seen| (seen.bytes(from), seen.bytes(to)) == (round * near, round * far));
    }
    assert_eq!((seen.gaps, eye.report().frames_lost), (0, 0));
    assert_eq!((a.path(), b.path()), (Path::Offloaded, Path::Offloaded));
    // A connection that begins now is shown from its handshake to its ends.
    let (c, d) = pair();
    let (from, to) = (port(c.local_addr()), port(d.local_addr()));
    seen.seeds.extend([(from, 3), (to, 4)]);
    exchange((&c, &d), 3, 0, 10_000);
    exchange((&d, &c), 4, 0, 100);
    c.shutdown(Shutdown::Write).unwrap();
    assert!(d.recv(1).unwrap().is_empty());
    drop((c, d));
    let all = |seen: &Seen| {
        [from, to].iter().all(|port| seen.flags.get(port).is_some_and(|flags| flags & FIN != 0))
    };
    seen.read(&mut records, all);
    assert_eq!((seen.bytes(from), seen.bytes(to), seen.gaps), (10_000, 100, 0));
    assert!([from, to].iter().all(|port| seen.flags[port] & SYN != 0));
    // Without a mirror connections are direct again.
    drop((records, eye));
    let (e, f) = pair();
    exchange((&e, &f), 5, 0, 1_000_000);
    assert_eq!(e.path(), Path::Direct);
}

/// A connection of the kernel, with a twin that carries its bytes.
#[test]
fn unmodified_programs_are_shown_as_well() {
    let _alone = alone();
    driver();
    let eye = Mirror::new("eye", "connections:");
    let mut records = eye.tap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    twin::listen(listener.as_fd()).unwrap();
    let to = listener.local_addr().unwrap();
    let fd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&fd, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    let a = TwinSide::new(twin::connect(fd.as_fd(), to).unwrap(), 0);
    // The first bytes are sent before anybody has the other end.
    a.send(0, 1000);
    rustix::net::connect(&fd, &to).unwrap();
    let (accepted, from) = listener.accept().unwrap();
    let b = TwinSide::new(twin::claim(accepted.as_fd()).unwrap().expect("a twin"), 1);
    b.receive(0, 1000);
    a.send(1000, 100_000);
    b.receive(1000, 100_000);
    b.send(0, 50_000);
    a.receive(0, 50_000);
    assert_eq!(a.socket.path(), Path::Offloaded);
    let (from, to) = (from.port(), to.port());
    let mut seen = Seen { seeds: HashMap::from([(from, 1), (to, 2)]), ..Seen::default() };
    seen.read(&mut records, |seen| (seen.bytes(from), seen.bytes(to)) == (101_000, 50_000));
    assert_eq!((seen.gaps, eye.report().frames_lost), (0, 0));
    assert!([from, to].iter().all(|port| seen.flags[port] & SYN != 0));
}

#[test]
fn an_observer_that_sees_nothing_holds_up_no_connection() {
    let _alone = alone();
    let eye = Mirror::new("eye", "connections:default");
    let records = eye.tap();
    let (a, b) = pair();
    exchange((&a, &b), 1, 0, 30_000_000);
    drop((a, b));
    driver().wait_for("it is over", |report| report.connections.is_empty());
    let taps = driver().pipes().taps;
    let [tap] = &taps[..] else { panic!("{taps:?}") };
    assert!(tap.frames_lost + eye.report().frames_lost > 1000, "{taps:?} {:?}", eye.report());
    drop(records);
    // Without an observer nothing is copied, and nothing is lost.
    driver().wait_for_pipes("the observer has gone", |report| report.taps.is_empty());
    let before = eye.report();
    let (a, b) = pair();
    exchange((&a, &b), 1, 0, 3_000_000);
    let after = eye.report();
    assert_eq!((before.frames_lost, before.frames_unbound), (after.frames_lost, after.frames_unbound));
}

#[test]
fn a_tenant_sees_connections_of_its_own_if_a_binding_says_so() {
    let _alone = alone();
    let refused = |name: &str, of: &str, why: &str| {
        let said = add(name, of).unwrap_err();
        assert!(said.contains(why), "{said}");
    };
    driver();
    refused("eye", "connections:blue", "no tenant blue");
    refused("eye", "nothing", "no port nothing");
    assert!(driver().pipes().ports.is_empty());
    driver().apply("[[tenant]]\nname = \"blue\"");
    let mirrors = [
        Mirror::new("all", "connections:"),
        Mirror::new("blue", "connections:blue"),
        Mirror::new("own", "connections:default"),
    ];
    refused("own", "connections:", "already");
    refused("copy", "own", "mirror itself");
    let open =
        |port: &str, direction| Pipe::open(&Options::new(direction, port)).map_err(|error| error.errno());
    let denied = libc::EACCES;
    for (name, direction) in
        [("own", Direction::Receive), ("own", Direction::Forward), ("all", Direction::Receive)]
    {
        assert_eq!(
            open(name, direction).map(drop).unwrap_err(),
            denied,
            "{name} without a word of the policy"
        );
    }
    driver().apply("[[tenant]]\nname = \"blue\"\n[[bind]]\nmirror = true");
    assert_eq!(open("all", Direction::Receive).map(drop).unwrap_err(), denied, "connections of all");
    assert_eq!(open("blue", Direction::Receive).map(drop).unwrap_err(), denied, "of another tenant");
    assert_eq!(open("own", Direction::Send).map(drop).unwrap_err(), libc::EINVAL);
    let mut pipe = open("own", Direction::Receive).unwrap();
    let (a, b) = pair();
    let (from, to) = (port(a.local_addr()), port(b.local_addr()));
    let mut seen = Seen { seeds: HashMap::from([(from, 1), (to, 2)]), ..Seen::default() };
    exchange((&a, &b), 1, 0, 20_000);
    seen.read_pipe(&mut pipe, from, 20_000);
    // The observer's account has the received bytes.
    let report = driver().wait_for_pipes("it is counted", |report| {
        report.pipes.first().is_some_and(|pipe| pipe.counts.bytes_received > 20_000)
    });
    assert_eq!(report.pipes[0].tenant, "default");
    assert_eq!(mirrors[1].report().frames_received + mirrors[1].report().frames_unbound, 0);
    driver().apply("");
    let ended = loop {
        match pipe.wait(Some(PATIENCE)) {
            Ok(()) => while pipe.frames().unwrap().next().is_some() {},
            Err(error) => break error.errno(),
        }
    };
    assert_eq!(ended, denied);
}

/// Observers that come and go. Each sees the first byte that is sent when its pipe is open.
#[test]
fn an_observer_sees_all_that_is_sent_once_its_pipe_is_open() {
    let _alone = alone();
    driver().apply("[[bind]]\nmirror = true");
    let _eye = Mirror::new("eye", "connections:default");
    let (a, b) = pair();
    let from = port(a.local_addr());
    for round in 0..200 {
        let mut pipe = Pipe::open(&Options::new(Direction::Receive, "eye").ring_bytes(64 << 10)).unwrap();
        let mut seen = Seen { seeds: HashMap::from([(from, 1)]), ..Seen::default() };
        exchange((&a, &b), 1, round, round + 1);
        seen.read_pipe(&mut pipe, from, 1);
    }
    driver().apply("");
}
