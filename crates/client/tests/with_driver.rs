//! The Rust API against a driver in the same process. One test: the attachment is the process's.
use pd_client::core::{ready, Socket};
use pd_client::{
    poll, Epoll, Interest, Listener, ListenerOptions, PollFd, Reading, SendBuffer, Shutdown, Stream,
};
use pd_driver::{Driver, HugepageUse, Namespaces, Settings, SystemClock};
use pd_engine::Cpu;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

fn start(dir: &Path) -> Driver {
    let settings = Settings {
        socket: dir.join("driver.sock"),
        admin_socket: dir.join("admin.sock"),
        hugepages: HugepageUse::Off,
        namespaces: Namespaces::Own,
        ..Settings::default()
    };
    Driver::start(settings, Arc::new(SystemClock::default()), &Cpu::default()).unwrap()
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(31) ^ at >> 8) as u8
}

fn pair(listener: &Listener) -> (Stream, Stream) {
    let a = Stream::connect(listener.local_addr().unwrap()).unwrap();
    (a, listener.accept().unwrap())
}

fn bytes_arrive(listener: &Listener) {
    let (a, b) = pair(listener);
    assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
    assert_eq!(b.peer_addr().unwrap(), a.local_addr().unwrap());
    const TOTAL: usize = 20 << 20;
    let sender = thread::spawn(move || {
        let mut buffers: Vec<_> = (0..4).map(|_| SendBuffer::new(100_000).unwrap()).collect();
        let mut at = 0;
        for round in 0.. {
            let buffer = &mut buffers[round % 4];
            let len = buffer.len().min(TOTAL - at);
            for (i, byte) in buffer.wait_mut().unwrap()[..len].iter_mut().enumerate() {
                *byte = pattern(at + i);
            }
            assert_eq!(a.send(buffer, ..len).unwrap(), len);
            at += len;
            if at == TOTAL {
                break;
            }
        }
        a.shutdown(Shutdown::Write).unwrap();
        assert_eq!(a.recv(1).unwrap().len(), 0);
    });
    let mut at = 0;
    loop {
        let received = b.recv(77_777).unwrap();
        if received.is_empty() {
            break;
        }
        assert!(received.iter().enumerate().all(|(i, &byte)| byte == pattern(at + i)));
        at += received.len();
    }
    assert_eq!(at, TOTAL);
    drop(b);
    sender.join().unwrap();
}

fn lendings_come_back_in_any_order(listener: &Listener) {
    let (a, b) = pair(listener);
    let mut buffer = SendBuffer::new(300).unwrap();
    buffer.wait_mut().unwrap().iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i));
    assert_eq!(a.send(&buffer, ..).unwrap(), 300);
    let mut first = b.recv(100).unwrap();
    let (second, third) = (b.recv(100).unwrap(), b.recv(100).unwrap());
    drop(second);
    assert_eq!((first[0], third[0]), (pattern(0), pattern(200)));
    first.give_back(50);
    assert_eq!((first.len(), first[0]), (50, pattern(50)));
    drop(third);
    drop(first);
    b.set_nonblocking(true);
    assert!(b.recv(1).unwrap_err().would_block());
    // The ring serves on, also past its end.
    for _ in 0..100_000 {
        a.send(&buffer, ..).unwrap();
        let mut left = 300;
        while left > 0 {
            match b.recv(left) {
                Ok(received) => left -= received.len(),
                Err(error) => assert!(error.would_block(), "{error}"),
            }
        }
    }
}

/// A peek goes on from what the driver has delivered into the peer's ring. What is lent afterwards lies in one, then in the other.
fn a_peek_reaches_from_ring_to_ring(listener: &Listener) {
    const TOTAL: usize = 20_000;
    let (mut a, b) = pair(listener);
    // By the driver first, then by the ring; nothing of it is read.
    for at in (0..TOTAL).step_by(50) {
        let bytes: Vec<u8> = (at..at + 50).map(pattern).collect();
        a.write_all(&bytes).unwrap();
        thread::sleep(Duration::from_micros(50));
    }
    a.flush().unwrap();
    let mut bytes = vec![0; TOTAL];
    while b.peek(&mut bytes).unwrap() < TOTAL {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == pattern(at)));
    let (mut at, mut pieces) = (0, 0);
    while at < TOTAL {
        let lent = b.recv(TOTAL).unwrap();
        assert!(lent.iter().enumerate().all(|(i, &byte)| byte == pattern(at + i)), "lent at {at}");
        (at, pieces) = (at + lent.len(), pieces + 1);
    }
    assert!(pieces > 1, "all lay in one ring");
}

/// Bytes that are sent in each way arrive in each way, in their order, whichever follows which.
fn copies_and_lendings_mix(listener: &Listener) {
    const TOTAL: usize = 6 << 20;
    for seed in 1..=4_u64 {
        let (mut a, mut b) = pair(listener);
        let random = |mut state: u64| {
            move |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below
            }
        };
        let fill = |bytes: &mut [u8], at: usize| {
            bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(at + i));
        };
        let sender = thread::spawn(move || {
            let mut random = random(seed);
            let mut buffer = SendBuffer::new(70_000).unwrap();
            let mut at = 0;
            while at < TOTAL {
                let most = [300, 70_000][random(2)];
                let len = (1 + random(most)).min(TOTAL - at);
                let mut bytes = vec![0; len];
                fill(&mut bytes, at);
                at += match random(4) {
                    0 => a.write(&bytes).unwrap(),
                    1 => {
                        let (front, back) = bytes.split_at(random(len));
                        a.write_vectored(&[IoSlice::new(front), IoSlice::new(&[]), IoSlice::new(back)])
                            .unwrap()
                    }
                    2 => a
                        .send_with(len, |place| {
                            place[..len].copy_from_slice(&bytes);
                            len
                        })
                        .unwrap(),
                    _ => {
                        buffer.wait_mut().unwrap()[..len].copy_from_slice(&bytes);
                        a.send(&buffer, ..len).unwrap()
                    }
                };
            }
            a.flush().unwrap();
        });
        let mut random = random(seed + 100);
        let (mut at, mut bytes) = (0, vec![0; 100_000]);
        loop {
            let most = [50, 100_000][random(2)];
            let most = 1 + random(most);
            let bytes = &mut bytes[..most];
            let is_next = |got: &[u8]| got.iter().enumerate().all(|(i, &byte)| byte == pattern(at + i));
            let len = match random(5) {
                0 => b.read(bytes).unwrap(),
                1 => {
                    let (front, back) = bytes.split_at_mut(random(most));
                    b.read_vectored(&mut [IoSliceMut::new(front), IoSliceMut::new(back)]).unwrap()
                }
                2 => {
                    let how = Reading { all: true, ..Reading::default() };
                    b.recv_into(&mut [IoSliceMut::new(bytes)], how).unwrap()
                }
                3 => {
                    let len = b.peek(bytes).unwrap();
                    assert!(is_next(&bytes[..len]), "peeked at {at}, seed {seed}");
                    continue;
                }
                _ => {
                    let lent = b.recv(most).unwrap();
                    assert!(is_next(&lent), "lent at {at}, seed {seed}");
                    if !lent.is_empty() {
                        assert_eq!((&b).read(bytes).unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
                    }
                    bytes[..lent.len()].copy_from_slice(&lent);
                    lent.len()
                }
            };
            assert!(is_next(&bytes[..len]), "at {at}, seed {seed}");
            at += len;
            if len == 0 {
                break;
            }
        }
        assert_eq!(at, TOTAL, "seed {seed}");
        sender.join().unwrap();
    }
}

fn files_arrive(listener: &Listener, driver: &Driver) {
    const TOTAL: usize = 10 << 20;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, (0..TOTAL).map(pattern).collect::<Vec<_>>()).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let (a, b) = pair(listener);
    assert_eq!(a.path(), pd_client::Path::Direct);
    let sender = thread::spawn(move || {
        let mut at = 0;
        while at < TOTAL {
            // Some are copied, most are not; between them comes memory.
            let len = 1 + at % 777_777;
            at += a.send_file(&file, at as u64, len).unwrap();
            let small = SendBuffer::new(1).unwrap();
            a.send(&small, ..).unwrap();
        }
        assert_eq!(a.send_file(&file, TOTAL as u64, 1).unwrap(), 0);
    });
    let mut all = Vec::new();
    while let Some(received) = Some(b.recv(usize::MAX).unwrap()).filter(|received| !received.is_empty()) {
        all.extend_from_slice(&received);
    }
    sender.join().unwrap();
    let (mut at, mut bytes) = (0, all.into_iter());
    while at < TOTAL {
        let end = (at + 1 + at % 777_777).min(TOTAL);
        assert!((at..end).all(|at| bytes.next() == Some(pattern(at))), "{at}..{end}");
        at = end;
        assert!(bytes.next().is_some());
    }
    assert!(bytes.next().is_none());
    assert_eq!(driver.metrics().file_bytes, 0, "they lie in the ring");
}

fn connecting_need_not_wait(listener: &Listener) {
    let to = listener.local_addr().unwrap();
    let wanted = ready::IN | ready::OUT;
    let socket = Socket::new(false).unwrap();
    assert_eq!(socket.ready(wanted), ready::OUT | ready::HUP);
    socket.begin_connect(to).unwrap();
    assert_eq!(socket.begin_connect(to).unwrap_err().errno(), libc::EALREADY);
    let accepted = listener.accept().unwrap();
    assert_eq!(socket.ready(wanted), 0);
    thread::scope(|scope| scope.spawn(|| socket.finish_connect()).join().unwrap()).unwrap();
    socket.finish_connect().unwrap();
    assert_eq!(socket.ready(wanted), ready::OUT);
    assert_eq!(accepted.peer_addr().unwrap(), socket.local_addr().unwrap());
    assert_eq!(socket.begin_connect(to).unwrap_err().errno(), libc::EISCONN);
    socket.close().unwrap();
    assert!(accepted.recv(1).unwrap().is_empty());

    // Refused, it is as before.
    let socket = Socket::new(false).unwrap();
    socket.begin_connect(SocketAddr::new(to.ip(), 1)).unwrap();
    assert_eq!(socket.finish_connect().unwrap_err().errno(), libc::ECONNREFUSED);
    assert_eq!(socket.ready(wanted), ready::OUT | ready::HUP);
    assert_eq!(socket.peer_addr().unwrap_err().errno(), libc::ENOTCONN);
    socket.connect(to).unwrap();
    socket.close().unwrap();
    assert!(listener.accept().unwrap().recv(1).unwrap().is_empty());

    // Given up before it is known.
    let socket = Socket::new(false).unwrap();
    socket.begin_connect(to).unwrap();
    socket.close().unwrap();
    assert!(listener.accept().unwrap().recv(1).unwrap().is_empty());
}

fn epoll_serves_many(listener: &Listener) {
    let epoll = Epoll::new();
    listener.set_nonblocking(true);
    epoll.add(listener, Interest::READ, u64::MAX).unwrap();
    let to = listener.local_addr().unwrap();
    let clients: Vec<_> = (0..8u8)
        .map(|i| {
            thread::spawn(move || {
                let stream = Stream::connect(to).unwrap();
                let mut buffer = SendBuffer::new(64).unwrap();
                for round in 0..200u8 {
                    buffer.wait_mut().unwrap().fill(i ^ round);
                    stream.send(&buffer, ..).unwrap();
                    let mut left = 64;
                    while left > 0 {
                        let received = stream.recv(left).unwrap();
                        assert!(received.iter().all(|&byte| byte == !(i ^ round)));
                        left -= received.len();
                    }
                }
            })
        })
        .collect();
    let mut streams: Vec<Option<Stream>> = Vec::new();
    let (mut events, mut open) = (Vec::new(), 0);
    while streams.len() < 8 || open > 0 {
        epoll.wait(&mut events, 4, Some(Duration::from_secs(10))).unwrap();
        assert!(!events.is_empty(), "nothing came");
        for event in &events {
            if event.data == u64::MAX {
                while let Ok(stream) = listener.accept() {
                    epoll.add(&stream, Interest::READ, streams.len() as u64).unwrap();
                    streams.push(Some(stream));
                    open += 1;
                }
                continue;
            }
            let slot = &mut streams[event.data as usize];
            let Some(stream) = slot.as_ref() else { continue };
            let received = stream.recv(1 << 20).unwrap();
            if received.is_empty() {
                drop(received);
                *slot = None;
                open -= 1;
                continue;
            }
            let mut answer = SendBuffer::new(received.len()).unwrap();
            let bytes = answer.wait_mut().unwrap();
            bytes.iter_mut().zip(received.iter()).for_each(|(to, from)| *to = !from);
            // Dropping the buffer while it is in flight frees it later.
            stream.send(&answer, ..).unwrap();
        }
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
    epoll.remove(listener).unwrap();
    listener.set_nonblocking(false);
}

/// Sockets alone, and together with descriptors of the kernel's.
fn poll_looks_at_all(listener: &Listener) {
    let (a, b) = pair(listener);
    let (pipe, filler) = std::os::unix::net::UnixStream::pair().unwrap();
    let short = Some(Duration::from_millis(20));
    let mut alone = [PollFd::socket(&b, Interest::READ)];
    assert_eq!(poll(&mut alone, short).unwrap(), 0);
    assert!(alone[0].event().is_none());
    let mut writable = [PollFd::socket(&b, Interest::READ.and(Interest::WRITE))];
    assert_eq!(poll(&mut writable, None).unwrap(), 1);
    let event = writable[0].event().unwrap();
    assert!(event.writable() && !event.readable());
    let mut all = [
        PollFd::socket(listener, Interest::READ),
        PollFd::fd(&pipe, Interest::READ),
        PollFd::socket(&b, Interest::READ),
    ];
    assert_eq!(poll(&mut all, Some(Duration::ZERO)).unwrap(), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            (&filler).write_all(b"x").unwrap();
        });
        assert_eq!(poll(&mut all, None).unwrap(), 1);
        assert!(all[1].event().unwrap().readable() && all[2].event().is_none());
    });
    (&a).write_all(b"y").unwrap();
    drop(a);
    assert_eq!(poll(&mut alone, None).unwrap(), 1);
    assert_eq!((&b).read(&mut [0; 2]).unwrap(), 1);
    assert_eq!((&b).read(&mut [0; 2]).unwrap(), 0);
    poll(&mut all, None).unwrap();
    assert!(all[2].event().unwrap().read_closed() && all[0].event().is_none());
}

fn a_killed_driver_is_replaced(dir: &Path, driver: Driver, listener: Listener) -> Driver {
    let (a, b) = pair(&listener);
    let mut stale = SendBuffer::new(10).unwrap();
    drop(driver);
    assert_eq!(b.recv(1).unwrap_err().errno(), 104);
    assert_eq!(a.send(&stale, ..).unwrap_err().errno(), 104);
    let acceptor = thread::spawn(move || {
        let stream = listener.accept().unwrap();
        let first = stream.recv(1).unwrap()[0];
        (listener, first)
    });
    thread::sleep(Duration::from_millis(100));
    let driver = start(dir);
    let to = a.peer_addr().unwrap();
    let again = (0..100).find_map(|_| {
        thread::sleep(Duration::from_millis(50));
        Stream::connect(to).ok()
    });
    let again = again.expect("the listener did not come back");
    stale.wait_mut().unwrap()[0] = 1;
    assert_eq!(again.send(&stale, ..).unwrap_err().errno(), 14);
    let mut fresh = SendBuffer::new(10).unwrap();
    fresh.wait_mut().unwrap()[0] = 9;
    again.send(&fresh, ..).unwrap();
    assert_eq!(acceptor.join().unwrap().1, 9);
    driver
}

#[test]
fn works_with_the_driver() {
    let dir = tempfile::tempdir().unwrap();
    std::env::set_var("PD_SOCKET", dir.path().join("driver.sock"));
    assert_eq!(Stream::connect(addr("127.0.0.1:1")).unwrap_err().errno(), 100);
    let driver = start(dir.path());
    assert_eq!(Stream::connect(addr("127.0.0.1:1")).unwrap_err().errno(), 111);
    let options = ListenerOptions { recv_ring_bytes: Some(1 << 20), ..ListenerOptions::default() };
    let listener = Listener::bind_with(addr("127.0.0.1:0"), options).unwrap();
    assert_eq!(Listener::bind(listener.local_addr().unwrap()).unwrap_err().errno(), 98);
    bytes_arrive(&listener);
    lendings_come_back_in_any_order(&listener);
    a_peek_reaches_from_ring_to_ring(&listener);
    copies_and_lendings_mix(&listener);
    files_arrive(&listener, &driver);
    connecting_need_not_wait(&listener);
    epoll_serves_many(&listener);
    poll_looks_at_all(&listener);
    drop(a_killed_driver_is_replaced(dir.path(), driver, listener));
}
