//! The rings and the requests in them: counters, operations, spans and ids that cannot be.
use super::{stage, Scene, RING_BYTES};
use pd_abi::layout::{channel_control, channel_status, socket_control, socket_status};
use pd_abi::limits::EVENT_RING_ENTRIES;
use pd_abi::{Address, EventKind, Operation, Request, SocketId, SocketOption, Span};
use pd_driver::Violation;
use pd_shm::{Own, Region};
use pd_tests::{Puppet, Raw};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Attaches a client with a socket that is connected to a puppet's, called `s` there.
fn connected(scene: &Scene) -> (Raw, SocketId, Puppet) {
    let mut puppet = scene.driver.puppet();
    let addr: SocketAddr = puppet.ok("listen l 127.0.0.1:0 8").parse().unwrap();
    let mut raw = Raw::attach(&scene.driver, 1);
    let socket = raw.connect(0, addr);
    puppet.ok("accept s l");
    (raw, socket, puppet)
}

fn connected_with_memory(scene: &Scene, bytes: u64) -> (Raw, SocketId, Puppet, u16, Region<Own>) {
    let (mut raw, socket, puppet) = connected(scene);
    let (region, map) = raw.send_region(bytes);
    (raw, socket, puppet, region.id as u16, map)
}

/// Returns a request that is always answered, with `EBADF`.
fn question() -> Request {
    Request::new(Operation::Adopt, SocketId(u32::MAX), 5)
}

fn wait_events(raw: &Raw, count: u64) {
    let at = Raw::channel_word(0, channel_status::EVENT_PRODUCER);
    while raw.status.load_u64(at, Ordering::Acquire) < count {
        std::thread::yield_now();
    }
}

#[test]
fn impossible_request_counters() {
    let scene = stage();
    type Change = fn(u64) -> u64;
    let changes: [Change; 6] =
        [|n| n + 1025, |n| n - 1, |_| u64::MAX, |_| 1 << 63, |n| n + (1 << 32), |n| n.wrapping_sub(1024)];
    for change in changes {
        let mut raw = Raw::attach(&scene.driver, 1);
        for _ in 0..5 {
            raw.call(0, question());
        }
        let at = Raw::channel_word(0, channel_control::REQUEST_PRODUCER);
        raw.control.store_u64(at, change(5), Ordering::SeqCst);
        raw.ring(0);
        scene.expect_cut_off(&mut raw, Violation::RequestRing);
    }
    scene.end();
}

#[test]
fn impossible_event_counters() {
    let scene = stage();
    for (extra, value) in [(0, 5000), (0, u64::MAX), (0, EVENT_RING_ENTRIES + 1), (10, 5000), (10, u64::MAX)]
    {
        let mut raw = Raw::attach(&scene.driver, 1);
        // A full ring, and perhaps events that wait for room in it.
        for _ in 0..EVENT_RING_ENTRIES + extra {
            raw.post(0, &question());
        }
        wait_events(&raw, EVENT_RING_ENTRIES);
        std::thread::sleep(Duration::from_millis(2));
        raw.control.store_u64(Raw::channel_word(0, channel_control::EVENT_CONSUMER), value, Ordering::SeqCst);
        raw.post(0, &question());
        raw.ring(0);
        scene.expect_cut_off(&mut raw, Violation::EventRing);
    }
    scene.end();
}

#[test]
fn unknown_operations() {
    let scene = stage();
    let next = (1..).find(|&raw| Operation::from_raw(raw).is_none()).unwrap();
    for operation in [0, next, next + 1, 127, 128, 255] {
        let mut raw = Raw::attach(&scene.driver, 1);
        raw.post(0, &Request { operation, ..Request::default() });
        scene.expect_cut_off(&mut raw, Violation::Operation(operation));
    }
    scene.end();
}

#[test]
fn spans_outside_the_send_regions() {
    let scene = stage();
    let bytes = 64 << 10;
    let spans = [
        Span { region: 0, offset: 0, len: 0 },
        Span { region: 0, offset: 0, len: bytes + 1 },
        Span { region: 0, offset: bytes, len: 1 },
        Span { region: 0, offset: 1, len: bytes },
        Span { region: 0, offset: (1 << 48) - 1, len: 1 },
        Span { region: 0, offset: 1, len: u64::MAX },
        Span { region: 0, offset: 4096, len: u64::MAX - 4095 },
        Span { region: 0, offset: 0, len: (1 << 30) + 1 },
        Span { region: 1, offset: 0, len: 1 },
        Span { region: 4095, offset: 0, len: 1 },
        Span { region: u16::MAX, offset: 0, len: 1 },
    ];
    for span in spans {
        let (mut raw, socket, mut puppet, region, map) = connected_with_memory(&scene, bytes);
        assert_eq!(region, 0);
        pd_fill(&map, 1, 1000);
        raw.post(0, &Request::send(socket, Span { region, offset: 0, len: 1000 }));
        raw.post(0, &Request::send(socket, span));
        scene.expect_cut_off(&mut raw, Violation::Span);
        // Correct bytes before it may still arrive; then the end.
        match puppet.ask("recv s 1 0 1001").expect_err("the end of the stream").0 {
            libc::ENODATA | libc::ECONNRESET => {}
            other => panic!("errno {other}"),
        }
    }
    // A region that is made but not yet said to be mapped, and a receive region, are no send regions.
    let (mut raw, socket, _) = connected(&scene);
    let unmapped = raw.ask_send_region(bytes);
    raw.post(0, &Request::send(socket, Span { region: unmapped.id as u16, offset: 0, len: 1 }));
    scene.expect_cut_off(&mut raw, Violation::Span);
    drop((raw, unmapped));
    let (mut raw, socket, mut puppet) = connected(&scene);
    puppet.ok("send s 1 0 1000 1000");
    raw.wait_status(socket, socket_status::RECV_PRODUCER, 1000);
    raw.take_frames();
    let receive = raw.receive_regions[0].id as u16;
    raw.post(0, &Request::send(socket, Span { region: receive, offset: 0, len: 1 }));
    scene.expect_cut_off(&mut raw, Violation::Span);
    drop((raw, puppet));
    scene.end();
}

/// Sends that are added to a request that was taken arrive like others. A request that grows in another way cuts its
/// client off.
#[test]
fn requests_that_grow() {
    let scene = stage();
    let bytes = 64 << 10;
    let word = Request::send_word;
    let (mut raw, socket, mut puppet, region, map) = connected_with_memory(&scene, bytes);
    pd_fill(&map, 1, bytes as usize);
    raw.post(0, &Request::send(socket, Span { region, offset: 0, len: 1000 }));
    for (sends, len) in [(2, 1001), (7, 5000), (8, 40_000), (9, bytes)] {
        raw.grow(0, word(len, sends));
        raw.wait_status(socket, socket_status::SEND_CONSUMER, sends);
    }
    puppet.ok(&format!("recv s 1 0 {bytes}"));
    drop((raw, puppet, map));
    let wrong = [
        word(1000, 2),
        word(999, 2),
        word(2000, 1),
        word(2000, 1002),
        word(bytes + 1, 2),
        word((1 << 30) + 1, 2),
        0,
        u64::MAX,
    ];
    for wrong in wrong {
        let (mut raw, socket, mut puppet, region, map) = connected_with_memory(&scene, bytes);
        pd_fill(&map, 1, 1000);
        raw.post(0, &Request::send(socket, Span { region, offset: 0, len: 1000 }));
        raw.wait_status(socket, socket_status::SEND_CONSUMER, 1);
        raw.grow(0, wrong);
        scene.expect_cut_off(&mut raw, Violation::Span);
        match puppet.ask("recv s 1 0 1001").expect_err("the end of the stream").0 {
            libc::ENODATA | libc::ECONNRESET => {}
            other => panic!("errno {other}"),
        }
    }
    scene.end();
}

/// Writes the stream called `seed` to the start of a send region.
fn pd_fill(map: &Region<Own>, seed: u64, len: usize) {
    let mut bytes = vec![0; len.next_multiple_of(8)];
    pd_tests::fill(seed, 0, &mut bytes);
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        map.store_u64(index * 8, u64::from_le_bytes(word.try_into().expect("eight")), Ordering::Relaxed);
    }
}

#[test]
fn stale_and_foreign_socket_ids_are_refused() {
    let scene = stage();
    let (mut raw, socket, mut puppet, region, map) = connected_with_memory(&scene, 4096);
    let closed = raw.open(0);
    raw.post(0, &Request::new(Operation::Close, closed, 0));
    let stale = [
        closed,
        SocketId::new(socket.slot(), socket.generation() + 1),
        SocketId::new(socket.slot(), 0),
        SocketId::new(9, 1),
        SocketId(u32::MAX),
        SocketId(0),
    ];
    let addr: SocketAddr = ([127, 0, 0, 1], 9).into();
    let dropped = || scene.driver.metrics().sends_dropped;
    for id in stale {
        for operation in [
            Operation::Bind,
            Operation::Listen,
            Operation::Connect,
            Operation::Accept,
            Operation::Shutdown,
            Operation::SetOption,
            Operation::Adopt,
        ] {
            let answer = raw.call(0, Request::new(operation, id, 0).with_address(Address::from(addr)));
            assert_eq!(answer.errno, libc::EBADF as u32, "{operation:?} of {id:?}");
        }
        raw.post(0, &Request::new(Operation::Close, id, 0));
        raw.post(0, &Request::new(Operation::Space, id, 0));
        let before = dropped();
        raw.post(0, &Request::send(id, Span { region, offset: 0, len: 100 }));
        raw.call(0, question());
        assert_eq!(dropped(), before + 1);
    }
    // Arguments that make no sense, of a good socket.
    for (operation, value, first, errno) in [
        (Operation::Shutdown, 0, 0, libc::EINVAL),
        (Operation::Shutdown, 0, 4, libc::EINVAL),
        (Operation::Shutdown, 0, u64::MAX, libc::EINVAL),
        (Operation::SetOption, 0, 1, libc::ENOPROTOOPT),
        (Operation::SetOption, 77, 1, libc::ENOPROTOOPT),
        (Operation::Accept, 0, 0, libc::EINVAL),
        (Operation::Listen, 0, 1, libc::EINVAL),
        (Operation::Connect, 0, 1, libc::EAFNOSUPPORT),
        (Operation::Bind, 0, 1, libc::EAFNOSUPPORT),
    ] {
        let request = Request { value, ..Request::new(operation, socket, 0).with_numbers(first, 0) };
        assert_eq!(raw.call(0, request).errno, errno as u32, "{operation:?} {value} {first}");
    }
    for wish in [0, 1, u64::MAX, 1 << 63, (1 << 30) + 1] {
        for option in [SocketOption::SendRingBytes, SocketOption::ReceiveRingBytes] {
            let request = Request::new(Operation::SetOption, socket, 0).with_numbers(wish, 0);
            let answer = raw.call(0, Request { value: option as u32, ..request });
            assert_eq!(answer.errno, 0);
            assert!((64 << 10..=1 << 30).contains(&answer.number()), "{wish}: {}", answer.number());
        }
    }
    // The good socket is still good.
    pd_fill(&map, 2, 4096);
    raw.post(0, &Request::send(socket, Span { region, offset: 0, len: 4096 }));
    puppet.ok("recv s 2 0 4096");
    assert_eq!(raw.is_cut_off(), None);
    drop((raw, puppet, map));
    scene.end();
}

#[test]
fn bytes_given_back_that_never_came() {
    let scene = stage();
    let at = |socket| Raw::socket_word(socket, socket_control::RECV_CONSUMER);
    // Noticed when the driver looks whether the ring is idle.
    for given_back in [1001, u64::MAX, 1 << 63] {
        let (mut raw, socket, mut puppet) = connected(&scene);
        puppet.ok("send s 1 0 1000 1000");
        raw.wait_status(socket, socket_status::RECV_PRODUCER, 1000);
        raw.control.store_u64(at(socket), given_back, Ordering::SeqCst);
        scene.expect_cut_off(&mut raw, Violation::ReceiveRing);
        drop(raw);
        // The client had sent nothing: an orderly end. But nobody takes bytes any more.
        assert_eq!(puppet.ok("end s"), "0");
        let errno = puppet.errno("send s 1 1000 1000 1000");
        assert!([libc::ECONNRESET, libc::EPIPE].contains(&errno), "{errno}");
    }
    // Noticed when it looks for room.
    for given_back in [RING_BYTES + 1, 2 * RING_BYTES, u64::MAX, 1 << 63] {
        let (mut raw, socket, mut puppet) = connected(&scene);
        puppet.tell(&format!("send s 1 0 {} 50000", 3 * RING_BYTES));
        raw.wait_status(socket, socket_status::RECV_PRODUCER, RING_BYTES);
        raw.control.store_u64(at(socket), given_back, Ordering::SeqCst);
        scene.expect_cut_off(&mut raw, Violation::ReceiveRing);
        let (errno, _) = puppet.answer().expect_err("nobody reads it");
        assert!([libc::ECONNRESET, libc::EPIPE].contains(&errno), "{errno}");
    }
    // Returned space is taken back. The sender waits: two rings are received, one waits to be sent.
    let (mut raw, socket, mut puppet) = connected(&scene);
    puppet.tell(&format!("send s 1 0 {} 50000", 4 * RING_BYTES));
    raw.wait_status(socket, socket_status::RECV_PRODUCER, RING_BYTES);
    raw.control.store_u64(at(socket), RING_BYTES, Ordering::SeqCst);
    raw.post(0, &Request::new(Operation::Space, socket, 0));
    raw.wait_status(socket, socket_status::RECV_PRODUCER, 2 * RING_BYTES);
    raw.control.store_u64(at(socket), RING_BYTES - 1, Ordering::SeqCst);
    scene.expect_cut_off(&mut raw, Violation::ReceiveRing);
    puppet.answer().expect_err("nobody reads it");
    drop((raw, puppet));
    scene.end();
}

#[test]
fn more_sends_than_agreed() {
    let scene = stage();
    // In bytes.
    let (mut raw, socket, puppet, region, map) = connected_with_memory(&scene, 64 << 10);
    for _ in 0..20 {
        raw.post(0, &Request::send(socket, Span { region, offset: 0, len: 64 << 10 }));
    }
    scene.expect_cut_off(&mut raw, Violation::SendRing);
    drop((raw, puppet, map));
    // In number.
    let (mut raw, socket, puppet, region, map) = connected_with_memory(&scene, 4096);
    for _ in 0..RING_BYTES + 40_000 {
        if !raw.post_unless_cut_off(0, &Request::send(socket, Span { region, offset: 0, len: 1 })) {
            break;
        }
    }
    scene.expect_cut_off(&mut raw, Violation::SendRing);
    drop((raw, puppet, map));
    scene.end();
}

#[test]
fn thousands_of_connects_and_no_event_read() {
    let scene = stage();
    let mut raw = Raw::attach(&scene.driver, 1);
    let (listener, addr) = raw.listen(0, 4096);
    raw.control.store_u32(Raw::socket_word(listener, socket_control::SUBSCRIBED), 1, Ordering::SeqCst);
    let read = raw.channels[0].events;
    let count = 2000u32;
    // From here on the client guesses its ids, which are given out in order.
    let id = |index: u32| SocketId::new(listener.slot() + 1 + index as u16, 1);
    let mut request = Request::new(Operation::Socket, SocketId(0), 0);
    request.family = 4;
    for index in 0..count {
        raw.post(0, &Request { tag: index, ..request });
    }
    for index in 0..count {
        let connect = Request::new(Operation::Connect, id(index), count + index);
        raw.post(0, &connect.with_address(Address::from(addr)));
        raw.take(id(index));
        raw.control.store_u32(Raw::socket_word(id(index), socket_control::SUBSCRIBED), 1, Ordering::SeqCst);
    }
    scene.driver.wait_for("all connected", |r| r.connections.len() == count as usize + 1);
    scene.bystander.check(&scene.driver);
    // Not a single one was lost, and they are in order.
    raw.channels[0].events = read;
    let mut expected = 0;
    while expected < 2 * count {
        let Some(event) = raw.event(0) else {
            std::thread::yield_now();
            continue;
        };
        if event.kind == EventKind::Answer as u8 {
            assert_eq!((event.tag, event.errno), (expected, 0));
            expected += 1;
        } else {
            assert_eq!(event.socket, listener.0, "nothing happened on the others");
        }
    }
    assert_eq!(raw.is_cut_off(), None);
    drop(raw);
    scene.end();
}

#[test]
fn answers_that_nobody_reads_do_not_pile_up() {
    let scene = stage();
    let mut raw = Raw::attach(&scene.driver, 1);
    let mut taken = 0;
    // The driver keeps one event for each socket and some answers; then it has to do something about it.
    while raw.is_cut_off().is_none() && raw.try_post(0, &question(), Duration::from_millis(300)) {
        taken += 1;
        assert!(taken < 400_000, "the driver keeps {taken} answers for a client that reads none");
    }
    assert!(scene.driver.is_running());
    drop(raw);
    scene.end();
}
