//! A driver takes another's place while its clients go on. A process has one attachment, so the tests share a driver and take turns.
use pd_client::pipe::{Direction, Options, Pipe};
use pd_client::{Epoll, Interest, Listener, SendBuffer, Shutdown, Stream};
use pd_driver::admin::{Answer, Ask, PortSpec};
use pd_driver::state::{change_leaf, from_bytes, to_bytes};
use pd_driver::{Driver, Namespaces, Settings, SystemClock, TAKE_OVER_FORMAT as FORMAT};
use pd_tests::{alone, fill, send_until, verify, Random, TestDriver};
use rustix::fs::major;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

fn driver() -> MutexGuard<'static, TestDriver> {
    static DRIVER: OnceLock<Mutex<TestDriver>> = OnceLock::new();
    let make = || {
        let driver = TestDriver::new();
        driver.attach_here();
        Mutex::new(driver)
    };
    DRIVER.get_or_init(make).lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn pair() -> (Stream, Stream) {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let stream = Stream::connect(listener.local_addr().unwrap()).unwrap();
    (stream, listener.accept().unwrap())
}

fn recv_all(stream: &Stream, seed: u64) -> u64 {
    let mut position = 0;
    loop {
        let received = stream.recv(30_000).unwrap();
        if received.is_empty() {
            return position;
        }
        verify(seed, position, &received);
        position += received.len() as u64;
    }
}

/// Streams in both directions by this policy, across several drivers.
fn streams_go_on(policy: &str, times: usize) {
    let _turn = alone();
    let mut driver = driver();
    driver.apply(policy);
    let pairs: Vec<_> = (0..3).map(|_| pair()).collect();
    let (idle, sleeper) = pair();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut counts = Vec::new();
        for (index, (a, b)) in pairs.iter().enumerate() {
            for (from, to, seed) in [(a, b, 2 * index as u64), (b, a, 2 * index as u64 + 1)] {
                let sent = scope.spawn({
                    let is_over = &is_over;
                    move || send_until(from, seed, is_over)
                });
                counts.push((sent, scope.spawn(move || recv_all(to, seed))));
            }
        }
        let asleep = scope.spawn(|| sleeper.recv(5).unwrap().to_vec());
        for _ in 0..times {
            thread::sleep(Duration::from_millis(60));
            driver.take_over().unwrap();
        }
        thread::sleep(Duration::from_millis(60));
        is_over.store(true, Ordering::Relaxed);
        for (sent, received) in counts {
            let (sent, received) = (sent.join().unwrap(), received.join().unwrap());
            assert_eq!(sent, received);
            assert!(sent > 0);
        }
        let mut late = SendBuffer::new(5).unwrap();
        late.wait_mut().unwrap().copy_from_slice(b"awake");
        idle.send(&late, ..).unwrap();
        assert_eq!(asleep.join().unwrap(), b"awake");
    });
}

#[test]
fn streams_go_on_by_the_driver() {
    streams_go_on("path = \"offloaded\"", 4);
}

const TRUSTED: &str =
    "path = \"direct\"\n[[rule]]\nfrom = \"default\"\nto = \"default\"\naction = \"allow\"\ntrust = true\n";

#[test]
fn streams_go_on_by_direct_rings() {
    streams_go_on(TRUSTED, 4);
}

/// One side never sends, and so never says that it has left its ring.
#[test]
fn a_connection_that_leaves_its_rings_goes_on_at_the_next_driver() {
    let _turn = alone();
    let mut driver = driver();
    driver.apply(TRUSTED);
    let ((a, b), mut sent) = (pair(), [0, 0]);
    let mut buffer = SendBuffer::new(5000).unwrap();
    let mut passes = |from: &Stream, to: &Stream, way: usize, times: usize| {
        for _ in 0..times {
            fill(way as u64, sent[way], buffer.wait_mut().unwrap());
            from.send(&buffer, ..).unwrap();
            let end = sent[way] + 5000;
            while sent[way] < end {
                let received = to.recv((end - sent[way]) as usize).unwrap();
                assert!(!received.is_empty(), "the stream has ended");
                verify(way as u64, sent[way], &received);
                sent[way] += received.len() as u64;
            }
        }
    };
    passes(&a, &b, 0, 400);
    let last = buffer_of(7, 0);
    a.send(&last, ..).unwrap();
    let recalled = driver.metrics().connections_recalled;
    driver.apply("path = \"offloaded\"");
    assert!(driver.metrics().connections_recalled > recalled);
    driver.take_over().unwrap();
    verify(7, 0, &b.recv(last.len()).unwrap());
    passes(&a, &b, 0, 20);
    driver.take_over().unwrap();
    passes(&b, &a, 1, 20);
    driver.apply(TRUSTED);
    driver.take_over().unwrap();
    passes(&a, &b, 0, 20);
    passes(&b, &a, 1, 20);
}

fn buffer_of(seed: u64, position: u64) -> SendBuffer {
    let mut buffer = SendBuffer::new(100).unwrap();
    fill(seed, position, buffer.wait_mut().unwrap());
    buffer
}

/// Bytes of a file that is sent.
const FILE_BYTES: u64 = 3_000_000;

/// Makes a file on a disk, of a kind that the driver opens, with the first bytes of a stream. None if the tests' folder is on no disk.
fn file(seed: u64) -> Option<File> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, mut bytes) = (folder.path().join("file"), vec![0; FILE_BYTES as usize]);
    fill(seed, 0, &mut bytes);
    std::fs::write(&path, bytes).unwrap();
    // The file loses its name here, and is there as long as somebody has it open.
    let file = File::open(path).unwrap();
    if major(file.metadata().unwrap().dev()) == 0 {
        println!("SKIPPED: target/ is on no disk, and the driver reads no file from there");
        return None;
    }
    Some(file)
}

/// Sends a file again and again, until neither ring has room. Returns the number of bytes.
fn fill_with_file(stream: &Stream, file: &File) -> u64 {
    stream.set_nonblocking(true);
    let mut sent = 0;
    while let Ok(part) = stream.send_file(file, sent % FILE_BYTES, (FILE_BYTES - sent % FILE_BYTES) as usize)
    {
        sent += part as u64;
    }
    sent
}

/// Receives a file again and again, up to the end of the stream. Returns the number of bytes.
fn recv_files(stream: &Stream, seed: u64) -> u64 {
    let mut position = 0;
    loop {
        let at = position % FILE_BYTES;
        let received = stream.recv((FILE_BYTES - at).min(30_000) as usize).unwrap();
        if received.is_empty() {
            return position;
        }
        verify(seed, at, &received);
        position += received.len() as u64;
    }
}

/// Clients that pass files are taken over, with sends of files that have begun.
#[test]
fn files_go_on() {
    let _turn = alone();
    let mut driver = driver();
    driver.apply("path = \"offloaded\"");
    let Some(files) = (0..3).map(file).collect::<Option<Vec<_>>>() else { return };
    let pairs: Vec<_> = (0..3).map(|_| pair()).collect();
    let (slow, late) = pair();
    let kept = file(9).unwrap();
    let sent = fill_with_file(&slow, &kept);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut counts = Vec::new();
        for (seed, ((from, to), file)) in (0..).zip(pairs.iter().zip(&files)) {
            let is_over = &is_over;
            let sent = scope.spawn(move || {
                let mut position = 0;
                while !is_over.load(Ordering::Relaxed) {
                    // Pieces of many sizes, and always to the end of the file.
                    let (at, most) = (position % FILE_BYTES, 70_000 + position * 31 % 900_000);
                    position += from.send_file(file, at, most as usize).unwrap() as u64;
                }
                from.shutdown(Shutdown::Write).unwrap();
                position
            });
            counts.push((sent, scope.spawn(move || recv_files(to, seed))));
        }
        for turn in 0..4 {
            thread::sleep(Duration::from_millis(60));
            if turn == 2 {
                // The driver closes the file that nothing was sent of for a second. The sends keep it.
                thread::sleep(Duration::from_millis(2100));
            }
            driver.take_over().unwrap();
            let begun = Instant::now();
            while driver.metrics().file_bytes < 3 * FILE_BYTES {
                assert!(begun.elapsed() < Duration::from_secs(20), "the next driver reads no files");
                thread::sleep(Duration::from_millis(5));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        for (sent, received) in counts {
            assert_eq!(sent.join().unwrap(), received.join().unwrap());
        }
    });
    let mut position = 0;
    while position < sent {
        let at = position % FILE_BYTES;
        let received = late.recv((sent - position).min(FILE_BYTES - at).min(50_000) as usize).unwrap();
        verify(9, at, &received);
        position += received.len() as u64;
    }
    // The client's place for files is the next driver's, too.
    slow.set_nonblocking(false);
    let before = driver.metrics().file_bytes;
    let other = file(10).unwrap();
    assert_eq!(slow.send_file(&other, 0, 200_000).unwrap(), 200_000);
    slow.shutdown(Shutdown::Write).unwrap();
    assert_eq!(recv_all(&late, 10), 200_000);
    assert!(driver.metrics().file_bytes >= before + 100_000);
}

#[test]
fn listeners_and_accounts_are_the_next_drivers() {
    let _turn = alone();
    let mut driver = driver();
    driver.apply("path = \"offloaded\"");
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let queued = Stream::connect(address).unwrap();
    let made = |driver: &TestDriver| driver.policy().tenants[0].account.connections_made;
    let before = made(&driver);
    driver.take_over().unwrap();
    assert_eq!(made(&driver), before);
    let accepted = listener.accept().unwrap();
    let mut hello = SendBuffer::new(5).unwrap();
    hello.wait_mut().unwrap().copy_from_slice(b"hello");
    queued.send(&hello, ..).unwrap();
    assert_eq!(accepted.recv(5).unwrap().to_vec(), b"hello");
    assert_eq!(Listener::bind(address).unwrap_err().errno(), libc::EADDRINUSE);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| listener.accept().unwrap());
        thread::sleep(Duration::from_millis(50));
        driver.take_over().unwrap();
        let late = Stream::connect(address).unwrap();
        assert_eq!(waiting.join().unwrap().peer_addr().unwrap(), late.local_addr().unwrap());
    });
    drop((queued, accepted));
    driver.wait_for("its connections to be over", |report| report.connections.len() < 3);
}

/// The end of a stream that nobody receives any more is an edge, also where another driver knows it from its predecessor.
#[test]
fn the_end_of_a_stream_that_nobody_receives_is_an_edge_at_the_next_driver() {
    let _turn = alone();
    let mut driver = driver();
    driver.apply("path = \"offloaded\"");
    let (a, b) = pair();
    b.shutdown(Shutdown::Both).unwrap();
    let epoll = Epoll::new();
    epoll.add(&b, Interest::READ.edge(), 1).unwrap();
    let mut events = Vec::new();
    let mut wait = |time: u64| {
        epoll.wait(&mut events, 4, Some(Duration::from_millis(time))).unwrap();
        events.pop()
    };
    assert!(wait(20_000).unwrap().read_closed());
    driver.take_over().unwrap();
    // Another look after the take-over may be one edge more.
    while wait(50).is_some() {}
    a.shutdown(Shutdown::Write).unwrap();
    assert!(wait(20_000).unwrap().read_closed());
}

/// Asks for the driver's place, as a driver of these versions.
fn ask(driver: &TestDriver, format: u32, abi: u32) -> UnixStream {
    let mut stream = UnixStream::connect(driver.admin_socket()).unwrap();
    writeln!(stream, "{{\"op\":\"take_over\",\"format\":{format},\"abi\":{abi}}}").unwrap();
    stream
}

fn ask_for_port(driver: &TestDriver, ask: &Ask) {
    let answer = pd_driver::admin::ask(driver.admin_socket(), ask);
    assert!(matches!(answer, Ok(Answer::Done)), "{answer:?}");
}

fn add_port(driver: &TestDriver, name: &str, port: PortSpec) {
    ask_for_port(driver, &Ask::PortAdd { name: name.to_owned(), port });
}

/// Removes ports, for other tests with the same driver.
fn remove_ports(driver: &TestDriver, names: &[&str]) {
    names.iter().for_each(|name| ask_for_port(driver, &Ask::PortRemove { name: (*name).to_owned() }));
}

/// Ports that go over, and one that cannot.
#[test]
fn no_port_hinders_a_take_over() {
    let _turn = alone();
    let mut driver = driver();
    driver.apply("path = \"offloaded\"");
    let (a, b) = pair();
    let file = tempfile::NamedTempFile::new().unwrap();
    // A capture of one frame.
    let words = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1, 0, 0, 60, 60];
    let capture = [words.map(u32::to_le_bytes).concat(), vec![1; 60]].concat();
    std::fs::write(file.path(), capture).unwrap();
    let of = |of: &str| PortSpec::Mirror { of: of.to_owned() };
    add_port(&driver, "wire", PortSpec::Link);
    add_port(&driver, "drain", PortSpec::Sink);
    add_port(&driver, "wan", PortSpec::Gen { sizes: vec![64], flows: 1, frames: 10 });
    add_port(&driver, "eye", of("wire.1"));
    add_port(&driver, "file", PortSpec::Pcap { file: file.path().to_owned() });
    add_port(&driver, "file-eye", of("file"));
    let names = |driver: &TestDriver| -> Vec<_> {
        driver.pipes().ports.into_iter().map(|port| format!("{} {}", port.name, port.kind)).collect()
    };
    assert_eq!(names(&driver).len(), 7);
    for seed in 0..3 {
        driver.take_over().unwrap();
        assert_eq!(names(&driver), ["drain sink", "eye mirror", "wan gen", "wire.0 link", "wire.1 link"]);
        let bytes = buffer_of(seed, 0);
        a.send(&bytes, ..).unwrap();
        verify(seed, 0, &b.recv(bytes.len()).unwrap());
    }
    remove_ports(&driver, &["eye", "drain", "wan", "wire"]);
}

#[test]
fn the_driver_goes_on_if_nobody_takes_over() {
    let _turn = alone();
    let mut driver = driver();
    driver.apply("path = \"offloaded\"");
    let (a, b) = pair();
    let mut answer = String::new();
    BufReader::new(ask(&driver, 99, pd_abi::VERSION)).read_line(&mut answer).unwrap();
    assert!(answer.contains("stop the running driver"), "{answer}");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let sent = scope.spawn(|| send_until(&a, 7, &is_over));
        let received = scope.spawn(|| recv_all(&b, 7));
        // A successor that dies with all state, one that says nothing, and one that says that it cannot go on.
        for end in ["", "silence", "no, for I am a test\n"] {
            let mut stream = ask(&driver, FORMAT, pd_abi::VERSION);
            // The answer, and the offer behind it.
            let mut answer = [0; 1];
            while answer != *b"\n" {
                stream.read_exact(&mut answer).unwrap();
            }
            receive(&stream);
            stream.write_all(b"early\n").unwrap();
            receive(&stream);
            stream.write_all(b"now..\n").unwrap();
            let mut some = [0; 200];
            stream.read_exact(&mut some).unwrap();
            let begun = Instant::now();
            match end {
                "" => {}
                "silence" => {
                    let mut rest = Vec::new();
                    // The driver hangs up in the end.
                    let _ = stream.read_to_end(&mut rest);
                    assert!(begun.elapsed() < Duration::from_secs(10));
                }
                words => stream.write_all(words.as_bytes()).unwrap(),
            }
            drop(stream);
            driver.wait_for("an answer", |report| !report.connections.is_empty());
        }
        driver.take_over().unwrap();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(sent.join().unwrap(), received.join().unwrap());
    });
}

/// Receives the handed-over state in one piece: its bytes and descriptors.
fn receive(mut stream: &UnixStream) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut head = [0; 24];
    let mut fds = Vec::new();
    stream.read_exact(&mut head).unwrap();
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
    while (fds.len() as u64) < word(16) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
        for item in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = item {
                fds.extend(more);
            }
        }
    }
    let mut bytes = vec![0; word(8) as usize];
    stream.read_exact(&mut bytes).unwrap();
    (bytes, fds)
}

/// Sends a state. The receiver may have hung up.
fn send(mut stream: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> std::io::Result<()> {
    stream.write_all(b"pd-state")?;
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(&(fds.len() as u64).to_le_bytes())?;
    for batch in fds.chunks(200) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let batch: Vec<_> = batch.iter().map(AsFd::as_fd).collect();
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&batch)));
        sendmsg(stream, &[IoSlice::new(b"+")], &mut ancillary, SendFlags::NOSIGNAL)?;
    }
    stream.write_all(bytes)
}

/// Reads a line of a driver, and no byte more.
fn read_line(mut stream: &UnixStream) -> String {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

#[test]
fn no_state_harms_whoever_takes_it() {
    let _turn = alone();
    let driver = driver();
    driver.apply("path = \"offloaded\"");
    let ((a, b), (c, _d)) = (pair(), pair());
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let _queued = Stream::connect(listener.local_addr().unwrap()).unwrap();
    // Some of the bytes are not read, and some not delivered.
    let mut buffer = SendBuffer::new(100_000).unwrap();
    fill(3, 0, buffer.wait_mut().unwrap());
    a.send(&buffer, ..).unwrap();
    verify(3, 0, &b.recv(1000).unwrap());
    c.send(&buffer, ..).unwrap();
    // Some of a file is not delivered.
    let (from, _to) = pair();
    if let Some(file) = file(4) {
        fill_with_file(&from, &file);
    }
    // Pipes: by the agent, directly, and of a mirror.
    driver.apply("path = \"offloaded\"\n[[bind]]\nmirror = true");
    for name in ["wire", "cable"] {
        add_port(&driver, name, PortSpec::Link);
    }
    add_port(&driver, "drain", PortSpec::Sink);
    add_port(&driver, "wan", PortSpec::Gen { sizes: vec![64], flows: 2, frames: 10 });
    add_port(&driver, "eye", PortSpec::Mirror { of: "drain".to_owned() });
    let open = |direction, port| Pipe::open(&Options::new(direction, port)).unwrap();
    let [mut sender, mut receiver] = [open(Direction::Send, "wire.0"), open(Direction::Receive, "wire.1")];
    let _others = [("cable.0", Direction::Send), ("cable.1", Direction::Receive), ("drain", Direction::Send)]
        .map(|(port, direction)| open(direction, port));
    let _ends = [open(Direction::Receive, "eye"), open(Direction::Forward, "wan")];
    let mut exchange = || {
        sender.send(&[7; 64], 0).unwrap();
        sender.flush();
        receiver.wait(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(receiver.frames().unwrap().next().unwrap().bytes(), [7; 64]);
    };
    while driver.pipes().pipes.iter().all(|pipe| pipe.path != "direct") {
        exchange();
    }

    let mut stream = ask(&driver, FORMAT, pd_abi::VERSION);
    let answer = read_line(&stream);
    let (offer, sockets) = receive(&stream);
    stream.write_all(b"early\n").unwrap();
    let (early, rings) = receive(&stream);
    stream.write_all(b"now..\n").unwrap();
    let (state, fds) = receive(&stream);
    // The driver goes on.
    drop(stream);
    let state: Value = from_bytes(&state).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let admin_socket = folder.path().join("admin.sock");
    let predecessor = UnixListener::bind(&admin_socket).unwrap();
    // Without the kernel's half of the policy, which takes longer than all the rest.
    let settings = Settings { admin_socket, namespaces: Namespaces::Own, ..driver.settings().clone() };
    let mut ready = 0;
    for seed in 0..150 {
        let mut random = Random(seed);
        let mut changed = state.clone();
        for _ in 0..random.below(4) {
            change_leaf(&mut changed, random.word() as usize, random.word() as usize);
        }
        // A state that has no bytes is refused without a driver.
        let Ok(mut changed) = to_bytes(changed) else { continue };
        if random.below(4) == 0 {
            let at = random.below(changed.len() as u64) as usize;
            changed[at] ^= 1 << random.below(8);
        }
        let taken = thread::scope(|scope| {
            let says = scope.spawn(|| {
                let (mut stream, _) = predecessor.accept().unwrap();
                read_line(&stream);
                stream.write_all(answer.as_bytes()).unwrap();
                send(&stream, &offer, &sockets).unwrap();
                read_line(&stream);
                send(&stream, &early, &rings).unwrap();
                read_line(&stream);
                let _ = send(&stream, &changed, &fds);
                // The state is never handed over for good.
                let mut said = [0; 6];
                stream.read_exact(&mut said).is_ok_and(|()| &said == b"ready\n")
            });
            let engine = pd_engine::by_name("cpu").unwrap();
            let clock = Arc::new(SystemClock::default());
            let taken = Driver::take_over(settings.clone(), clock, &*engine);
            ready += usize::from(says.join().unwrap());
            taken
        });
        let error = taken.unwrap_err().to_string();
        assert!(!error.contains("panicked"), "seed {seed}: {error}");
    }
    // Some seeds change nothing, or nothing that matters.
    assert!((20..130).contains(&ready), "{ready}");
    verify(3, 1000, &b.recv(99_000).unwrap());
    exchange();
    driver.wait_for("an answer", |report| !report.connections.is_empty());
    remove_ports(&driver, &["eye", "drain", "wan", "wire", "cable"]);
}
