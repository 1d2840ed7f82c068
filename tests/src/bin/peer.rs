//! A peer for the tests, as a process of its own.
//!
//! `peer send ADDR BYTES MESSAGE BUFFERS`: connects, sends, closes; prints seconds and a checksum.
//! `peer recv ADDR MESSAGE`: listens, takes one connection, reads to the end; prints likewise.
//! `peer victim-send ADDR SEED`, `peer victim-recv ADDR SEED`: connect and send (or receive and check)
//! the stream called SEED until killed.
//! `peer steady-send ADDR SEED`, `peer steady-recv ADDR SEED`: connects and sends the stream called SEED
//! at some leisure until its standard input ends (listens, takes one connection and checks the stream to its
//! end); prints the bytes.
//! `peer fill ADDR MESSAGE BUFFERS`, `peer compare ADDR MESSAGE`: connects and sends messages of one byte's
//! value, each of another, until killed (listens, takes one connection, looks at every byte of them).
//! `peer absorb ADDR`: listens; sends a little on each connection and reads what comes for a moment, until its
//! standard input ends.
//! `peer pipe-forward PORT`: opens a forwarding pipe, and passes each frame on until killed.
//! `peer pipe-number PORT`: opens a sending pipe, and sends numbered frames until killed.
//! `peer pipe-check PORT`: opens a receiving pipe, and fails unless each frame has the number after the last, or begins anew with 0.
//! `peer pipe-number-in-epoll PORT`, `peer pipe-check-in-epoll PORT`: the same, with sleeps in the kernel's epoll.
//! `peer puppet`: carries out commands from its standard input. See `puppet` below.
//! `peer driver SOCKET ADMIN_SOCKET [SETTING=NUMBER ...]`: a driver, until its standard input ends.
use pd_client::pipe::{Direction, Options, Pipe, BACK};
use pd_client::{Epoll, Interest, Listener, ListenerOptions, SendBuffer, Shutdown, Stream};
use rustix::event::epoll;
use std::collections::HashMap;
use std::hash::Hasher as _;
use std::io::{BufRead, Read};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use twox_hash::XxHash3_64;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| args[index].parse::<u64>().expect("number");
    match args[0].as_str() {
        "send" => send(&args[1], number(2), number(3) as usize, number(4) as usize),
        "recv" => recv(&args[1], number(2) as usize),
        "victim-send" => victim_send(&args[1], number(2)),
        "victim-recv" => victim_recv(&args[1], number(2)),
        "steady-send" => steady_send(&args[1], number(2)),
        "steady-recv" => steady_recv(&args[1], number(2)),
        "fill" => fill(&args[1], number(2) as usize, number(3) as usize),
        "compare" => compare(&args[1], number(2)),
        "absorb" => absorb(&args[1]),
        "pipe-forward" => pipe_forward(&args[1]),
        "pipe-number" => pipe_number(&args[1], false),
        "pipe-check" => pipe_check(&args[1], false),
        "pipe-number-in-epoll" => pipe_number(&args[1], true),
        "pipe-check-in-epoll" => pipe_check(&args[1], true),
        "pipe-lines" => pipe_lines(&args[1], false),
        "pipe-lines-check" => pipe_lines_check(&args[1], false),
        "pipe-lines-in-epoll" => pipe_lines(&args[1], true),
        "pipe-lines-check-in-epoll" => pipe_lines_check(&args[1], true),
        "puppet" => puppet(),
        "driver" => driver(&args[1..]),
        other => panic!("no such role: {other}"),
    }
}

fn send(addr: &str, bytes: u64, message: usize, buffers: usize) {
    let stream = Stream::connect(addr.parse().expect("address")).expect("connect");
    let mut buffers: Vec<_> = (0..buffers).map(|_| SendBuffer::new(message).expect("buffer")).collect();
    for (index, buffer) in buffers.iter_mut().enumerate() {
        pd_tests::fill(1, (index * message) as u64, buffer.wait_mut().expect("fresh"));
    }
    let (start, mut left, mut sum) = (Instant::now(), bytes, 0u64);
    for lap in 0u64.. {
        if left == 0 {
            break;
        }
        for buffer in &mut buffers {
            let len = left.min(message as u64) as usize;
            let slice = &mut buffer.wait_mut().expect("reusable")[..len];
            for word in slice.chunks_exact_mut(8) {
                let value = u64::from_ne_bytes(word.try_into().expect("eight")) ^ lap;
                word.copy_from_slice(&value.to_ne_bytes());
            }
            sum = sum.wrapping_mul(31).wrapping_add(XxHash3_64::oneshot(slice));
            stream.send(buffer, ..len).expect("send");
            left -= len as u64;
            if left == 0 {
                break;
            }
        }
    }
    let _ = stream.shutdown(pd_client::Shutdown::Write);
    // The peer's close says that it has read all.
    let rest = stream.recv(1).map(|r| r.len());
    report("sent", bytes, start, sum);
    assert_eq!(rest.unwrap_or(0), 0);
}

fn recv(addr: &str, message: usize) {
    let listener = Listener::bind(addr.parse().expect("address")).expect("bind");
    println!("ready {}", listener.local_addr().expect("address"));
    let stream = listener.accept().expect("accept");
    let (start, mut bytes, mut sum) = (Instant::now(), 0u64, 0u64);
    let mut hasher = XxHash3_64::new();
    let mut partial = 0;
    loop {
        let received = stream.recv(message - partial).expect("recv");
        if received.is_empty() {
            break;
        }
        bytes += received.len() as u64;
        if partial == 0 && received.len() == message {
            sum = sum.wrapping_mul(31).wrapping_add(XxHash3_64::oneshot(&received));
            continue;
        }
        hasher.write(&received);
        partial += received.len();
        if partial == message {
            sum = sum.wrapping_mul(31).wrapping_add(hasher.finish());
            (hasher, partial) = (XxHash3_64::new(), 0);
        }
    }
    if partial > 0 {
        sum = sum.wrapping_mul(31).wrapping_add(hasher.finish());
    }
    report("received", bytes, start, sum);
}

fn victim_send(addr: &str, seed: u64) -> ! {
    let stream = Stream::connect(addr.parse().expect("address")).expect("connect");
    let mut random = pd_tests::Random(seed);
    let mut position = 0;
    let mut buffers: Vec<_> = (0..4).map(|_| SendBuffer::new(40_000).expect("buffer")).collect();
    loop {
        for buffer in &mut buffers {
            let len = 1 + random.below(40_000) as usize;
            pd_tests::fill(seed, position, &mut buffer.wait_mut().expect("reusable")[..len]);
            stream.send(buffer, ..len).expect("send");
            position += len as u64;
        }
    }
}

fn victim_recv(addr: &str, seed: u64) {
    let stream = Stream::connect(addr.parse().expect("address")).expect("connect");
    let mut position = 0;
    loop {
        let received = stream.recv(100_000).expect("recv");
        pd_tests::verify(seed, position, &received);
        position += received.len() as u64;
        if received.is_empty() {
            return;
        }
    }
}

fn pipe_forward(port: &str) -> ! {
    let options = Options::new(Direction::Forward, port).ring_bytes(64 << 10);
    let mut pipe = Pipe::open(&options).expect("pipe");
    println!("ready");
    loop {
        pipe.wait(None).expect("frames");
        let mut frames = pipe.frames().expect("frames");
        while frames.next().is_some() {}
    }
}

/// An instance of the kernel's epoll with a pipe.
struct Instance(OwnedFd);

impl Instance {
    fn new(pipe: &mut Pipe, flags: epoll::EventFlags) -> Self {
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an instance");
        let events = epoll::EventFlags::IN | flags;
        epoll::add(&instance, pipe.fd().expect("a descriptor"), epoll::EventData::new_u64(1), events)
            .expect("add");
        Self(instance)
    }

    /// Sleeps until the pipe has something to do.
    fn sleep(&self, pipe: &mut Pipe) {
        while !pipe.arm().expect("a pipe") {
            let nothing =
                epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
            epoll::wait(&self.0, &mut [nothing], None).expect("a wait");
        }
    }
}

fn pipe_number(port: &str, in_epoll: bool) -> ! {
    let mut pipe = Pipe::open(&Options::new(Direction::Send, port).ring_bytes(64 << 10)).expect("pipe");
    let instance = in_epoll.then(|| Instance::new(&mut pipe, epoll::EventFlags::ET));
    println!("ready");
    let mut number = 0u64;
    loop {
        let mut frame = [number as u8; 80];
        frame[..8].copy_from_slice(&number.to_ne_bytes());
        while let Err(errno) = pipe.send(&frame, BACK) {
            assert_eq!(errno.raw_os_error(), libc::EAGAIN);
            match &instance {
                Some(instance) => instance.sleep(&mut pipe),
                None => pipe.wait_room(16 << 10, None).expect("room"),
            }
        }
        number += 1;
        if number % 64 == 0 {
            pipe.flush();
        }
    }
}

fn pipe_check(port: &str, in_epoll: bool) -> ! {
    let mut pipe = Pipe::open(&Options::new(Direction::Receive, port).ring_bytes(64 << 10)).expect("pipe");
    let instance = in_epoll.then(|| Instance::new(&mut pipe, epoll::EventFlags::empty()));
    println!("ready");
    let mut expected = None;
    loop {
        match &instance {
            Some(instance) => instance.sleep(&mut pipe),
            None => pipe.wait(None).expect("frames"),
        }
        let mut frames = match pipe.frames() {
            Ok(frames) => frames,
            // News of the path woke it.
            Err(errno) if errno.raw_os_error() == libc::EAGAIN => continue,
            Err(errno) => panic!("no frames: {errno}"),
        };
        while let Some(frame) = frames.next() {
            let (number, rest) = frame.bytes().split_first_chunk().expect("a number");
            let number = u64::from_ne_bytes(*number);
            assert!(
                number == 0 || expected.is_none_or(|expected| number == expected),
                "{number} is not {expected:?}"
            );
            assert!(rest.len() == 72 && rest.iter().all(|&byte| byte == number as u8), "{number} is spoilt");
            expected = Some(number + 1);
        }
    }
}

/// Sends numbered lines by a pipe of bytes, cut anywhere.
fn pipe_lines(port: &str, in_epoll: bool) -> ! {
    let options = Options::new(Direction::Send, port).bytes().ring_bytes(64 << 10);
    let mut pipe = Pipe::open(&options).expect("pipe");
    let instance = in_epoll.then(|| Instance::new(&mut pipe, epoll::EventFlags::ET));
    println!("ready");
    // Ends a line that another sender has begun.
    let mut lines = b"\n".to_vec();
    for number in 0u64.. {
        lines.extend(format!("{number}:{}\n", !number).bytes());
        if lines.len() < 1000 + number as usize % 3001 {
            continue;
        }
        while let Err(errno) = pipe.send(&lines, BACK) {
            assert_eq!(errno.raw_os_error(), libc::EAGAIN);
            match &instance {
                Some(instance) => instance.sleep(&mut pipe),
                None => pipe.wait_room(16 << 10, None).expect("room"),
            }
        }
        lines.clear();
        if number % 5 == 0 {
            pipe.flush();
        }
    }
    unreachable!("more numbers than there are")
}

/// Checks those lines. Their sender, and this receiver, may have begun anywhere; a number that is none comes before the first of a new sender.
fn pipe_lines_check(port: &str, in_epoll: bool) -> ! {
    let options = Options::new(Direction::Receive, port).bytes().ring_bytes(64 << 10);
    let mut pipe = Pipe::open(&options).expect("pipe");
    let instance = in_epoll.then(|| Instance::new(&mut pipe, epoll::EventFlags::empty()));
    println!("ready");
    let (mut rest, mut expected, mut is_cut) = (Vec::new(), None, false);
    loop {
        match &instance {
            Some(instance) => instance.sleep(&mut pipe),
            None => pipe.wait_more(None).expect("bytes"),
        }
        let bytes = match pipe.peek() {
            Ok(bytes) => bytes,
            // News of the path woke it.
            Err(errno) if errno.raw_os_error() == libc::EAGAIN => continue,
            Err(errno) => panic!("no bytes: {errno}"),
        };
        // In epoll a part of a line is kept here: as long as it is unread there is no sleep.
        let part = if in_epoll {
            bytes.len()
        } else {
            bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1)
        };
        rest.extend(&bytes[..part]);
        pipe.done(part).expect("all are unread");
        let whole = rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        for line in rest
            .drain(..whole)
            .collect::<Vec<_>>()
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let text = String::from_utf8_lossy(line);
            let numbers =
                text.split_once(':').and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
            match numbers.filter(|(number, other): &(u64, u64)| *number == !*other).map(|(number, _)| number)
            {
                Some(number) => {
                    let follows =
                        number == 0 || !is_cut && expected.is_none_or(|expected| number == expected);
                    assert!(follows, "{number} is not {expected:?}");
                    (expected, is_cut) = (Some(number + 1), false);
                }
                None => is_cut = expected.is_some(),
            }
        }
    }
}

fn steady_send(addr: &str, seed: u64) {
    let stream = Stream::connect(addr.parse().expect("address")).expect("connect");
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let stop = stop.clone();
        move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            stop.store(true, Ordering::Relaxed);
        }
    });
    let mut random = pd_tests::Random(seed);
    let mut buffers: Vec<_> = (0..4).map(|_| SendBuffer::new(20_000).expect("buffer")).collect();
    let mut position = 0;
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let buffer = &mut buffers[turn % 4];
        let len = 1 + random.below(20_000) as usize;
        pd_tests::fill(seed, position, &mut buffer.wait_mut().expect("reusable")[..len]);
        stream.send(buffer, ..len).expect("send");
        position += len as u64;
        std::thread::sleep(Duration::from_micros(300));
    }
    stream.shutdown(Shutdown::Write).expect("shutdown");
    assert!(stream.recv(1).expect("end").is_empty());
    println!("{position}");
}

fn steady_recv(addr: &str, seed: u64) {
    let listener = Listener::bind(addr.parse().expect("address")).expect("bind");
    println!("ready {}", listener.local_addr().expect("address"));
    let stream = listener.accept().expect("accept");
    let mut position = 0;
    loop {
        let received = stream.recv(50_000).expect("recv");
        if received.is_empty() {
            break;
        }
        pd_tests::verify(seed, position, &received);
        position += received.len() as u64;
    }
    println!("{position}");
}

/// Returns the byte of message `number`.
fn value(number: u64) -> u8 {
    (number % 251) as u8
}

fn fill(addr: &str, message: usize, buffers: usize) {
    let stream = Stream::connect(addr.parse().expect("address")).expect("connect");
    let mut buffers: Vec<_> = (0..buffers).map(|_| SendBuffer::new(message).expect("buffer")).collect();
    let place = buffers.len() as u64;
    for number in 0.. {
        let buffer = &mut buffers[(number % place) as usize];
        // The C library's `memset` and, below, `memcmp`: as fast in a test's build as in any other.
        buffer.wait_mut().expect("reusable").fill(value(number));
        stream.send(buffer, ..).expect("send");
    }
}

fn compare(addr: &str, message: u64) {
    let listener = Listener::bind(addr.parse().expect("address")).expect("bind");
    println!("ready {}", listener.local_addr().expect("address"));
    let stream = listener.accept().expect("accept");
    let mut position = 0;
    loop {
        let left = message - position % message;
        let received = stream.recv(left as usize).expect("recv");
        let Some(last) = received.len().checked_sub(1) else { break };
        assert_eq!(received[0], value(position / message), "at {position}");
        assert!(received[..last] == received[1..], "in the message at {position}");
        position += received.len() as u64;
    }
}

fn absorb(addr: &str) {
    let listener = Listener::bind(addr.parse().expect("address")).expect("bind");
    println!("ready {}", listener.local_addr().expect("address"));
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    for stream in listener.incoming() {
        let stream = stream.expect("accept");
        stream.set_nonblocking(true);
        let buffer = SendBuffer::new(1000).expect("buffer");
        let _ = stream.send(&buffer, ..);
        let until = Instant::now() + Duration::from_millis(3);
        while Instant::now() < until {
            match stream.recv(10_000) {
                Ok(received) if !received.is_empty() => {}
                Err(error) if error.would_block() => std::thread::sleep(Duration::from_micros(200)),
                _ => break,
            }
        }
    }
}

/// Sockets and memory of a puppet, by the names that it was told.
#[derive(Default)]
struct Puppet {
    listeners: HashMap<String, Listener>,
    streams: HashMap<String, Stream>,
    blocks: HashMap<String, SendBuffer>,
}

/// Runs commands, one a line. Answers `ok ...`, or `error ERRNO MESSAGE`.
fn puppet() {
    let mut puppet = Puppet::default();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("command");
        let words: Vec<_> = line.split(' ').collect();
        match puppet.apply(&words) {
            Ok(answer) => println!("ok {answer}"),
            Err(error) => println!("error {} {}", error.errno(), error.message()),
        }
    }
}

impl Puppet {
    fn apply(&mut self, words: &[&str]) -> pd_client::Result<String> {
        let number = |index: usize| words[index].parse::<u64>().expect("number");
        let addr = |index: usize| words[index].parse().expect("address");
        let stream = |name: &str| self.streams.get(name).expect("stream");
        Ok(match words[0] {
            // listen NAME ADDR BACKLOG [RING]: the address bound.
            "listen" => {
                let ring = words.get(4).map(|_| number(4));
                let options = ListenerOptions {
                    backlog: number(3) as u32,
                    send_ring_bytes: ring,
                    recv_ring_bytes: ring,
                    ..ListenerOptions::default()
                };
                let listener = Listener::bind_with(addr(2), options)?;
                let bound = listener.local_addr()?;
                self.listeners.insert(words[1].to_owned(), listener);
                bound.to_string()
            }
            // connect NAME ADDR, accept NAME LISTENER: the local and the peer's address.
            "connect" => self.keep(words[1], Stream::connect(addr(2))?)?,
            "accept" => {
                let accepted = self.listeners[words[2]].accept()?;
                self.keep(words[1], accepted)?
            }
            // connect-many NAME ADDR COUNT, accept-many NAME LISTENER COUNT: NAME0 and so on.
            // connect-now NAME ADDRESS: does not wait for room in a backlog.
            "connect-now" => {
                let connected = Stream::connect_several(addr(2), 1)?.pop().expect("one");
                self.keep(words[1], connected)?
            }
            "connect-many" => {
                for index in 0..number(3) {
                    self.keep(&format!("{}{index}", words[1]), Stream::connect(addr(2))?)?;
                }
                String::new()
            }
            "accept-many" => {
                for index in 0..number(3) {
                    let accepted = self.listeners[words[2]].accept()?;
                    self.keep(&format!("{}{index}", words[1]), accepted)?;
                }
                String::new()
            }
            // send NAME SEED FROM BYTES MESSAGE, recv NAME SEED FROM BYTES: a part of the stream called SEED.
            "send" => {
                send_pattern(stream(words[1]), number(2), number(3), number(4), number(5) as usize)?;
                String::new()
            }
            "recv" => {
                recv_pattern(stream(words[1]), number(2), number(3), number(4))?;
                String::new()
            }
            // send-bytes NAME BLOCK LEN: as it is.
            "send-bytes" => stream(words[1]).send(&self.blocks[words[2]], ..number(3) as usize)?.to_string(),
            // path NAME: offloaded, direct or kernel.
            "path" => stream(words[1]).path().name().to_owned(),
            // asked NAME: the address that the peer of an accepted stream asked for, if it reached another one.
            "asked" => stream(words[1]).original_addr()?.to_string(),
            // share NAME: receives bytes that the sender can still change.
            "share" => {
                stream(words[1]).set_recv_shared()?;
                String::new()
            }
            // end NAME: waits for the end of the stream.
            "end" => stream(words[1]).recv(1)?.len().to_string(),
            "shutdown" => {
                stream(words[1]).shutdown(Shutdown::Write)?;
                String::new()
            }
            "reset" => {
                stream(words[1]).set_close_resets(true);
                self.streams.remove(words[1]);
                String::new()
            }
            // ring NAME BYTES: the receive ring's size taken.
            "ring" => stream(words[1]).set_recv_ring_bytes(number(2))?.to_string(),
            "timeout" => {
                stream(words[1]).set_write_timeout(Some(Duration::from_millis(number(2))))?;
                String::new()
            }
            "close" => {
                self.streams.remove(words[1]);
                self.listeners.remove(words[1]);
                self.blocks.remove(words[1]);
                String::new()
            }
            "close-all" => {
                self.streams.clear();
                self.listeners.clear();
                self.blocks.clear();
                String::new()
            }
            // malloc NAME BYTES
            "malloc" => {
                let block = SendBuffer::new(number(2) as usize)?;
                self.blocks.insert(words[1].to_owned(), block);
                String::new()
            }
            // echo LISTENER THREADS CONNECTIONS: takes connections and sends received bytes back, with an
            // epoll instance in each thread, until all have ended. Answers the bytes.
            "echo" => {
                let listener = self.listeners.get(words[1]).expect("listener");
                let streams: Vec<_> =
                    (0..number(3)).map(|_| listener.accept()).collect::<pd_client::Result<_>>()?;
                echo(streams, number(2) as usize)?.to_string()
            }
            other => panic!("no such command: {other}"),
        })
    }

    fn keep(&mut self, name: &str, stream: Stream) -> pd_client::Result<String> {
        let names = format!("{} {}", stream.local_addr()?, stream.peer_addr()?);
        self.streams.insert(name.to_owned(), stream);
        Ok(names)
    }
}

fn send_pattern(stream: &Stream, seed: u64, from: u64, bytes: u64, message: usize) -> pd_client::Result<()> {
    let mut buffers = (0..4).map(|_| SendBuffer::new(message)).collect::<pd_client::Result<Vec<_>>>()?;
    let (mut position, end) = (from, from + bytes);
    for turn in 0.. {
        let len = (end - position).min(message as u64) as usize;
        if len == 0 {
            break;
        }
        let buffer = &mut buffers[turn % 4];
        pd_tests::fill(seed, position, &mut buffer.wait_mut()?[..len]);
        assert_eq!(stream.send(buffer, ..len)?, len);
        position += len as u64;
    }
    Ok(())
}

fn recv_pattern(stream: &Stream, seed: u64, from: u64, bytes: u64) -> pd_client::Result<()> {
    let (mut position, end) = (from, from + bytes);
    while position < end {
        let received = stream.recv((end - position).min(100_000) as usize)?;
        if received.is_empty() {
            return Err(pd_client::Error::with_errno(
                libc::ENODATA,
                format!("the stream ended at {position}"),
            ));
        }
        pd_tests::verify(seed, position, &received);
        position += received.len() as u64;
    }
    Ok(())
}

fn echo(streams: Vec<Stream>, threads: usize) -> pd_client::Result<u64> {
    let mut shares: Vec<Vec<Stream>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, stream) in streams.into_iter().enumerate() {
        shares[index % threads].push(stream);
    }
    std::thread::scope(|scope| {
        let workers: Vec<_> = shares.into_iter().map(|share| scope.spawn(|| echo_share(share))).collect();
        workers.into_iter().map(|worker| worker.join().expect("echo thread")).sum()
    })
}

fn echo_share(streams: Vec<Stream>) -> pd_client::Result<u64> {
    let epoll = Epoll::new();
    for (index, stream) in streams.iter().enumerate() {
        stream.set_nonblocking(true);
        epoll.add(stream, Interest::READ, index as u64)?;
    }
    let (mut open, mut bytes, mut events) = (streams.len(), 0, Vec::new());
    while open > 0 {
        epoll.wait(&mut events, 16, Some(Duration::from_secs(20)))?;
        assert!(!events.is_empty(), "{open} streams are silent");
        for event in &events {
            let stream = &streams[event.data as usize];
            loop {
                let received = match stream.recv(30_000) {
                    Err(error) if error.would_block() => break,
                    received => received?,
                };
                if received.is_empty() {
                    epoll.remove(stream)?;
                    stream.shutdown(Shutdown::Write)?;
                    open -= 1;
                    break;
                }
                bytes += received.len() as u64;
                let mut back = SendBuffer::new(received.len())?;
                back.wait_mut()?.copy_from_slice(&received);
                drop(received);
                stream.set_nonblocking(false);
                stream.send(&back, ..)?;
                stream.set_nonblocking(true);
            }
        }
    }
    Ok(bytes)
}

fn driver(args: &[String]) {
    let mut settings = pd_driver::Settings {
        socket: (&args[0]).into(),
        admin_socket: (&args[1]).into(),
        ..pd_driver::Settings::default()
    };
    for setting in &args[2..] {
        let (name, value) = setting.split_once('=').expect("SETTING=NUMBER");
        let value: u64 = value.parse().expect("number");
        match name {
            "budget_bytes" => settings.budget_bytes = value,
            "movers" => settings.movers = value as usize,
            "attach_anyone" if value == 1 => {
                settings.policy.attach.default = pd_driver::policy::Otherwise::Anyone;
            }
            "hugepages" if value == 0 => settings.hugepages = pd_driver::HugepageUse::Off,
            other => panic!("no such setting: {other}"),
        }
    }
    let _ = tracing_subscriber::fmt().with_writer(std::io::stderr).try_init();
    let clock = Arc::new(pd_driver::SystemClock::default());
    let driver = pd_driver::Driver::start(settings, clock, &pd_engine::Cpu::new()).expect("driver");
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    assert!(driver.is_running());
}

fn report(what: &str, bytes: u64, start: Instant, sum: u64) {
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{what} {bytes} bytes {seconds:.3} s {:.2} Gbit/s sum {sum:016x}",
        bytes as f64 * 8e-9 / seconds
    );
}
