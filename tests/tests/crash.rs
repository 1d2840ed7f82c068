//! A driver is killed, and the next one goes on where it has ended. A process has one attachment, so the tests take turns.
use pd_client::pipe::{Direction, Options, Pipe};
use pd_client::{Epoll, Interest, Listener, SendBuffer, Shutdown, Stream};
use pd_driver::admin::{add_port, ask, Answer, Ask, PortSpec, Report};
use pd_driver::openers::namespace_file;
use pd_tests::{alone, fill, ip, needs_root, peer_path, program_path, send_until, verify, Manager, Random};
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

const DIRECT: &str =
    "path = \"direct\"\n[[rule]]\nfrom = \"default\"\nto = \"default\"\naction = \"allow\"\ntrust = true\n";
const OFFLOADED: &str = "path = \"offloaded\"\n";
/// Longest wait for something that is sure to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// A manager with a driver. This process attaches there.
struct Site {
    manager: Manager,
    folder: &'static Path,
    _turn: MutexGuard<'static, ()>,
}

impl Site {
    fn new() -> Self {
        let turn = alone();
        needs_root("the kernel's half of the policy");
        // A process keeps to the socket that it first attached to.
        static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
        let folder = FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path();
        let path = |name: &str| folder.join(name).display().to_string();
        let config = format!(
            "socket = \"{}\"\nadmin_socket = \"{}\"\npolicy = \"{}\"\n[memory]\nbudget_bytes = \"1 GiB\"\n[log]\nlevel = \"{}\"\n",
            path("driver.sock"),
            path("admin.sock"),
            path("policy.toml"),
            std::env::var("PD_TEST_LOG").unwrap_or_else(|_| "warn".to_owned()),
        );
        std::fs::write(path("driver.toml"), config).unwrap();
        std::env::set_var("PD_SOCKET", path("driver.sock"));
        Self { manager: Manager::new(folder), folder, _turn: turn }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts a driver with a policy, whatever was before.
    fn restart(&mut self, policy: &str) {
        self.manager.terminate();
        self.manager.kill();
        self.manager.give_up();
        std::fs::write(self.path("policy.toml"), policy).unwrap();
        self.start();
        // A first call may learn of the end of the former driver.
        let begun = Instant::now();
        while let Err(error) = Listener::bind("127.0.0.1:0".parse().unwrap()) {
            assert!(begun.elapsed() < PATIENCE, "{error}");
        }
    }

    /// Starts a driver, and waits until it answers.
    fn start(&mut self) {
        self.begin();
        self.wait_for("an answer", |_| true);
    }

    /// Starts a driver.
    fn begin(&mut self) {
        let (pd, config) = (program_path("pd"), self.path("driver.toml"));
        let pd = pd.display().to_string();
        self.manager.start(&[&pd, "driver", "--config", &config.display().to_string()]);
    }

    fn report(&self) -> Option<Report> {
        match ask(&self.path("admin.sock"), &Ask::List) {
            Ok(Answer::Report(report)) => Some(*report),
            _ => None,
        }
    }

    fn wait_for(&self, what: &str, wished: impl Fn(&Report) -> bool) -> Report {
        let begun = Instant::now();
        loop {
            if let Some(report) = self.report().filter(|report| wished(report)) {
                return report;
            }
            assert!(begun.elapsed() < PATIENCE, "{what} never came true: {:?}", self.report());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn pair() -> (Stream, Stream) {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let stream = Stream::connect(listener.local_addr().unwrap()).unwrap();
    (stream, listener.accept().unwrap())
}

/// A pair whose first side sends by its ring.
fn direct_pair() -> (Stream, Stream) {
    let (a, b) = pair();
    let mut buffer = SendBuffer::new(1000).unwrap();
    for position in (0..400_000).step_by(1000) {
        fill(0, position, buffer.wait_mut().unwrap());
        a.send(&buffer, ..).unwrap();
        let mut at = position;
        while at < position + 1000 {
            let received = b.recv((position + 1000 - at) as usize).unwrap();
            verify(0, at, &received);
            at += received.len() as u64;
        }
    }
    (a, b)
}

fn send(stream: &Stream, seed: u64, position: u64, len: usize) -> Result<(), pd_client::Error> {
    let mut buffer = SendBuffer::new(len)?;
    fill(seed, position, buffer.wait_mut()?);
    stream.send(&buffer, ..).map(drop)
}

fn recv_all(stream: &Stream, seed: u64, received: &AtomicU64) -> u64 {
    let mut position = 0;
    loop {
        let bytes = stream.recv(30_000).unwrap();
        if bytes.is_empty() {
            return position;
        }
        verify(seed, position, &bytes);
        position += bytes.len() as u64;
        received.store(position, Ordering::Relaxed);
    }
}

/// Waits until streams have received so many bytes each, and so have their rings and memory.
fn await_all(received: &[AtomicU64], bytes: u64) {
    let begun = Instant::now();
    while received.iter().any(|count| count.load(Ordering::Relaxed) < bytes) {
        assert!(begun.elapsed() < PATIENCE, "a stream does not begin");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn direct_streams_go_on_through_many_kills() {
    let mut site = Site::new();
    site.restart(DIRECT);
    let pairs: Vec<_> = (0..3).map(|_| direct_pair()).collect();
    let (idle, sleeper) = direct_pair();
    let (is_over, random) = (AtomicBool::new(false), &mut Random(7));
    let counts: Vec<_> = (0..2 * pairs.len()).map(|_| AtomicU64::new(0)).collect();
    site.manager.wait_for_snapshot();
    thread::scope(|scope| {
        let mut ends = Vec::new();
        for (index, (a, b)) in pairs.iter().enumerate() {
            for (from, to, seed) in [(a, b, 2 * index), (b, a, 2 * index + 1)] {
                let (is_over, received) = (&is_over, &counts[seed]);
                let sent = scope.spawn(move || send_until(from, seed as u64 + 10, is_over));
                ends.push((sent, scope.spawn(move || recv_all(to, seed as u64 + 10, received))));
            }
        }
        let asleep = scope.spawn(|| sleeper.recv(5).unwrap().to_vec());
        await_all(&counts, 4 << 20);
        site.manager.wait_for_snapshot();
        for _ in 0..12 {
            site.manager.kill();
            let before: Vec<_> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            let begun = Instant::now();
            // All go on without a driver.
            while counts.iter().zip(&before).any(|(count, before)| count.load(Ordering::Relaxed) <= *before) {
                assert!(begun.elapsed() < PATIENCE, "a stream stands still");
                thread::sleep(Duration::from_millis(1));
            }
            // Some are killed before they have begun, and some at work.
            match random.below(2) {
                0 => site.start(),
                _ => site.begin(),
            }
            thread::sleep(Duration::from_micros(random.below(300_000)));
        }
        site.manager.kill();
        site.start();
        is_over.store(true, Ordering::Relaxed);
        for (sent, received) in ends {
            let (sent, received) = (sent.join().unwrap(), received.join().unwrap());
            assert_eq!(sent, received);
            assert!(sent > 0);
        }
        send(&idle, 3, 0, 5).unwrap();
        let mut awake = [0; 5];
        fill(3, 0, &mut awake);
        assert_eq!(asleep.join().unwrap(), awake);
    });
    drop((pairs, idle, sleeper));
    let report = site.wait_for("the end of all connections", |report| report.connections.is_empty());
    assert_eq!(report.clients.len(), 1);
}

/// Runs `change` while there is no driver, and starts one.
fn in_the_gap<T>(site: &mut Site, change: impl FnOnce() -> T) -> T {
    site.manager.wait_for_snapshot();
    site.manager.kill();
    let changed = change();
    site.start();
    changed
}

#[test]
fn idle_connections_by_the_driver_go_on() {
    let mut site = Site::new();
    site.restart(OFFLOADED);
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let (a, b) = pair();
    let queued = Stream::connect(address).unwrap();
    let (shut, half) = pair();
    send(&shut, 6, 0, 100).unwrap();
    shut.shutdown(Shutdown::Write).unwrap();
    let epoll = Epoll::new();
    epoll.add(&b, Interest::READ.edge(), 1).unwrap();
    let (mut events, mut sent) = (Vec::new(), 0);
    // Bytes that were delivered and not read are there, too.
    send(&a, 1, 0, 5000).unwrap();
    for turn in 0..3 {
        in_the_gap(&mut site, || ());
        send(&a, 1, sent + 5000, 5000).unwrap();
        epoll.wait(&mut events, 4, Some(PATIENCE)).unwrap();
        assert_eq!(events.len(), 1, "turn {turn}");
        let end = sent + 5000;
        while sent < end {
            let received = b.recv((end - sent) as usize).unwrap();
            assert!(!received.is_empty());
            verify(1, sent, &received);
            sent += received.len() as u64;
        }
        send(&b, 2, 300 * turn, 300).unwrap();
        let received = a.recv(300).unwrap();
        verify(2, 300 * turn, &received);
        assert_eq!(received.len(), 300);
    }
    verify(6, 0, &half.recv(100).unwrap());
    assert!(half.recv(100).unwrap().is_empty(), "the end of a half that was shut down");
    send(&half, 7, 0, 100).unwrap();
    verify(7, 0, &shut.recv(100).unwrap());
    let accepted = listener.accept().unwrap();
    send(&queued, 5, 0, 100).unwrap();
    verify(5, 0, &accepted.recv(100).unwrap());
    drop((a, b, shut, half, queued, accepted));
    site.wait_for("the end of all connections", |report| report.connections.is_empty());
}

/// A network namespace, which goes when dropped.
struct Network(String);

impl Drop for Network {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

/// Ports are in snapshots. What pipes have moved since is not, so that they end with a reason.
#[test]
fn pipes_end_with_a_killed_driver_and_ports_come_back() {
    let mut site = Site::new();
    site.restart(OFFLOADED);
    let (a, b) = pair();
    let (admin, file) = (site.path("admin.sock"), site.path("capture"));
    // A port that does not come back, with a capture of one frame.
    let words = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1, 0, 0, 60, 60];
    let capture = [words.map(u32::to_le_bytes).concat(), vec![1; 60]].concat();
    std::fs::write(&file, capture).unwrap();
    for (name, port) in [("wire", PortSpec::Link), ("old", PortSpec::Pcap { file })] {
        let answer = ask(&admin, &Ask::PortAdd { name: name.to_owned(), port });
        assert!(matches!(answer, Ok(Answer::Done)), "{answer:?}");
    }
    let report = |site: &Site| match ask(&site.path("admin.sock"), &Ask::Pipes) {
        Ok(Answer::Pipes(report)) => report,
        other => panic!("{other:?}"),
    };
    // A port that leads out and comes back, with its interface.
    let network = Network(format!("pdt{}crash", std::process::id()));
    assert!(ip(&format!("netns add {}", network.0)));
    let tap = PortSpec::Tap { interface: "tap0".to_owned() };
    let has_tap = pd_driver::openers::check("tap").is_ok();
    if has_tap {
        add_port(&admin, "up", tap, Some(&namespace_file(&network.0))).unwrap();
    }
    let open = |direction, port| Pipe::open(&Options::new(direction, port)).unwrap();
    let exchange = |sender: &mut Pipe, receiver: &mut Pipe, byte: u8| {
        sender.send(&[byte; 100], 0).unwrap();
        sender.flush();
        receiver.wait(Some(PATIENCE)).unwrap();
        assert_eq!(receiver.frames().unwrap().next().unwrap().bytes(), [byte; 100]);
    };
    let mut pipes = [open(Direction::Send, "wire.0"), open(Direction::Receive, "wire.1")];
    let mut waits = open(Direction::Receive, "wire.0");
    for turn in 0..3 {
        let [sender, receiver] = &mut pipes;
        // A change of its path is one of its client, too.
        let begun = Instant::now();
        while !report(&site).pipes.iter().any(|pipe| pipe.path == "direct") {
            assert!(begun.elapsed() < PATIENCE);
            exchange(sender, receiver, turn);
        }
        site.manager.wait_for_snapshot();
        // Beyond the snapshot.
        exchange(sender, receiver, turn + 10);
        site.manager.kill();
        site.start();
        for pipe in [&mut *receiver, &mut waits] {
            assert_eq!(pipe.wait(Some(PATIENCE)).unwrap_err().errno(), libc::ECONNRESET);
        }
        assert_eq!(sender.ended(), Some(rustix::io::Errno::CONNRESET));
        let report = report(&site);
        let names: Vec<_> = report.ports.iter().map(|port| port.name.as_str()).collect();
        let expected = if has_tap { vec!["up", "wire.0", "wire.1"] } else { vec!["wire.0", "wire.1"] };
        assert_eq!((names, report.pipes.len()), (expected, 0));
        assert!(!has_tap || ip(&format!("-n {} link show tap0", network.0)), "its interface has gone");
        send(&a, 1, 100 * u64::from(turn), 100).unwrap();
        verify(1, 100 * u64::from(turn), &b.recv(100).unwrap());
        pipes = [open(Direction::Send, "wire.0"), open(Direction::Receive, "wire.1")];
        waits = open(Direction::Receive, "wire.0");
    }
}

#[test]
fn busy_streams_by_the_driver_are_reset_or_go_on() {
    let mut site = Site::new();
    site.restart(OFFLOADED);
    let (mut random, mut resets, mut proved) = (Random(3), 0, 0);
    let mut kept = pair();
    for round in 0..6 {
        let pairs: Vec<_> = (0..2).map(|_| pair()).collect();
        let (is_over, counts) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
        thread::scope(|scope| {
            let ends: Vec<_> = pairs
                .iter()
                .zip(&counts)
                .map(|((from, to), count)| {
                    let is_over = &is_over;
                    let sent = scope.spawn(move || {
                        let (mut position, mut buffer) = (0, SendBuffer::new(20_000)?);
                        while !is_over.load(Ordering::Relaxed) {
                            let len = 1 + position as usize * 31 % 20_000;
                            fill(round, position, &mut buffer.wait_mut()?[..len]);
                            from.send(&buffer, ..len)?;
                            position += len as u64;
                        }
                        from.shutdown(Shutdown::Write).map(|()| position)
                    });
                    let received = scope.spawn(move || -> Result<u64, pd_client::Error> {
                        let mut position = 0;
                        loop {
                            let received = to.recv(30_000)?;
                            if received.is_empty() {
                                return Ok(position);
                            }
                            verify(round, position, &received);
                            position += received.len() as u64;
                            count.store(position, Ordering::Relaxed);
                        }
                    });
                    (sent, received)
                })
                .collect();
            await_all(&counts, 1 << 20);
            site.manager.wait_for_snapshot();
            thread::sleep(Duration::from_micros(random.below(20_000)));
            site.manager.kill();
            let is_proved = site.manager.is_all_stored();
            site.start();
            thread::sleep(Duration::from_millis(50));
            is_over.store(true, Ordering::Relaxed);
            for (sent, received) in ends {
                match (sent.join().unwrap(), received.join().unwrap()) {
                    (Ok(sent), Ok(received)) => assert_eq!(sent, received),
                    (sent, received) => {
                        let errors = [sent.err(), received.err()];
                        errors
                            .into_iter()
                            .flatten()
                            .for_each(|error| assert_eq!(error.errno(), libc::ECONNRESET));
                        resets += 1;
                    }
                }
            }
            // A connection that had nothing under way goes on. A process that has changed meanwhile is reset as a whole.
            if is_proved {
                send(&kept.0, 9, 0, 100).unwrap();
                verify(9, 0, &kept.1.recv(100).unwrap());
                proved += 1;
            } else {
                let begun = Instant::now();
                while Listener::bind("127.0.0.1:0".parse().unwrap()).is_err() {
                    assert!(begun.elapsed() < PATIENCE);
                }
                kept = pair();
            }
        });
    }
    assert!(resets > 0, "no kill met a byte under way");
    assert!(proved > 0, "no kill met a process that was as stored");
    drop(kept);
    site.wait_for("the end of all connections", |report| report.connections.is_empty());
}

#[test]
fn calls_without_a_driver_are_carried_out_by_the_next() {
    let mut site = Site::new();
    site.restart(DIRECT);
    let (a, b) = direct_pair();
    let (c, d) = direct_pair();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    // Without a driver there is no further memory to send from.
    let mut buffer = SendBuffer::new(700).unwrap();
    fill(8, 0, buffer.wait_mut().unwrap());
    thread::scope(|scope| {
        let calls = in_the_gap(&mut site, || {
            let connecting = scope.spawn(|| Stream::connect(address).unwrap());
            let peer = Command::new(peer_path())
                .args(["steady-send", &address.to_string(), "4"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            c.send(&buffer, ..).unwrap();
            drop(c);
            thread::sleep(Duration::from_millis(100));
            assert!(!connecting.is_finished());
            (connecting, peer)
        });
        let (connecting, mut peer) = calls;
        let both = [listener.accept().unwrap(), listener.accept().unwrap()];
        let connected = connecting.join().unwrap();
        let own =
            both.iter().position(|it| it.peer_addr().unwrap() == connected.local_addr().unwrap()).unwrap();
        send(&connected, 2, 0, 100).unwrap();
        verify(2, 0, &both[own].recv(100).unwrap());
        verify(4, 0, &both[1 - own].recv(100).unwrap());
        drop(peer.stdin.take());
        peer.kill().unwrap();
        peer.wait().unwrap();
    });
    verify(8, 0, &d.recv(700).unwrap());
    assert!(d.recv(700).unwrap().is_empty(), "the end of a stream that was closed meanwhile");
    send(&a, 1, 0, 100).unwrap();
    verify(1, 0, &b.recv(100).unwrap());
    drop((a, b, d));
    site.wait_for("the end of all connections", |report| report.connections.is_empty());
}

/// A process that dies while there is no driver.
#[test]
fn the_peer_of_a_process_that_died_meanwhile_learns_it() {
    let mut site = Site::new();
    site.restart(DIRECT);
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut peer = Command::new(peer_path())
        .args(["steady-send", &address, "4"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let accepted = listener.accept().unwrap();
    verify(4, 0, &accepted.recv(1).unwrap());
    in_the_gap(&mut site, || {
        peer.kill().unwrap();
        peer.wait().unwrap();
    });
    loop {
        match accepted.recv(100_000) {
            Ok(received) if received.is_empty() => break,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.errno(), libc::ECONNRESET);
                break;
            }
        }
    }
    drop(accepted);
    let report = site.wait_for("the end of the connection", |report| report.connections.is_empty());
    assert_eq!(report.clients.len(), 1);
}

#[test]
fn clients_learn_that_no_driver_comes_back() {
    let mut site = Site::new();
    for policy in [DIRECT, OFFLOADED] {
        site.restart(policy);
        let pairs = [direct_pair(), direct_pair()];
        site.manager.wait_for_snapshot();
        site.manager.kill();
        thread::scope(|scope| {
            let sleeps = scope.spawn(|| pairs[0].1.recv(1).unwrap_err().errno());
            let sends = scope.spawn(|| loop {
                if let Err(error) = send(&pairs[1].0, 0, 0, 10_000) {
                    return error.errno();
                }
            });
            thread::sleep(Duration::from_millis(400));
            assert!(!sleeps.is_finished() && !sends.is_finished(), "the manager may start another one");
            site.manager.give_up();
            assert_eq!([sleeps.join().unwrap(), sends.join().unwrap()], [libc::ECONNRESET; 2]);
        });
    }
    site.start();
    direct_pair();
}

#[test]
fn an_orderly_end_leaves_nothing() {
    let mut site = Site::new();
    site.restart(DIRECT);
    let (a, _b) = direct_pair();
    site.manager.wait_for_snapshot();
    site.manager.terminate();
    assert_eq!(site.manager.names(), Vec::<String>::new());
    assert_eq!(a.recv(1).unwrap_err().errno(), libc::ECONNRESET);
    site.start();
    direct_pair();
}

/// Returns the file with the state of a snapshot.
fn state_of(snapshot: &OwnedFd) -> File {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(snapshot, &mut [IoSliceMut::new(&mut [0])], &mut ancillary, flags).unwrap();
    let mut fds = ancillary.drain().flat_map(|item| match item {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    fds.next().unwrap().into()
}

#[test]
fn no_state_harms_the_next_driver() {
    let mut site = Site::new();
    let mut refused = 0;
    for seed in 0..24 {
        let mut random = Random(seed);
        site.restart(if seed % 2 == 0 { DIRECT } else { OFFLOADED });
        let (a, b) = direct_pair();
        let _more = (pair(), Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap());
        site.manager.wait_for_snapshot();
        site.manager.kill();
        site.manager.with_store(|store| {
            for (name, fd) in store {
                let (file, from) = match name.as_str() {
                    // The head's last word is the length.
                    name if name.starts_with("pd-snapshot-") => (state_of(fd), 24),
                    "pd-marks" => (File::from(fd.try_clone().unwrap()), 0),
                    _ => continue,
                };
                // Of the marks, the words that are in use by so few.
                let len = file.metadata().unwrap().len().min(1 << 20);
                for _ in 0..1 + random.below(3) {
                    let (at, mut byte) = (from + random.below(len - from), [0]);
                    file.read_exact_at(&mut byte, at).unwrap();
                    byte[0] ^= 1 << random.below(8);
                    file.write_all_at(&byte, at).unwrap();
                }
            }
        });
        site.begin();
        let begun = Instant::now();
        loop {
            if site.report().is_some() {
                break;
            }
            if site.manager.has_ended() {
                // Without the state it starts.
                assert!(!site.manager.wait());
                refused += 1;
                site.start();
                break;
            }
            assert!(begun.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(5));
        }
        // Whatever has become of the connection: its ends are not left waiting, and new ones can be made.
        drop(a);
        let _ = b.recv(1);
        direct_pair();
    }
    assert!(refused > 0, "no change was noticed");
}
