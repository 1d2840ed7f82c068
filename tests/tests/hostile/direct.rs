//! Attacks on the direct path: writers of each page, and the effect of impossible words on a peer.
use super::regions::attack;
use super::{stage, Scene};
use pd_abi::layout::{direct, path, socket_status};
use pd_abi::{Frame, FrameKind, Operation, Request, SocketId, SocketOption, Span};
use pd_client::core::Socket;
use pd_driver::admin::Report;
use pd_driver::{Policy, Violation};
use pd_shm::{Own, Region, Theirs};
use pd_tests::{fill, Puppet, Random, Raw, TestDriver};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// Makes a scene whose next connections are direct: this process, its children and the driver have one user,
/// in one network namespace.
fn direct_stage() -> Scene {
    let scene = stage();
    assert_eq!(scene.driver.apply("path = \"direct\""), 0);
    scene
}

/// A ring as the driver passed it on.
struct Passed {
    fd: OwnedFd,
    len: usize,
}

fn ask(raw: &mut Raw, kind: FrameKind, socket: SocketId) -> Result<Passed, u32> {
    let (frame, mut fds) = raw.ask(&Frame::new(kind).with_id(socket.0), kind).map_err(|frame| frame.errno)?;
    Ok(Passed { fd: fds.pop().expect("memory"), len: (frame.bytes + frame.page_bytes) as usize })
}

fn ready(raw: &mut Raw, socket: SocketId) {
    let frame = Frame::new(FrameKind::DirectMapped).with_id(socket.0);
    raw.ask(&frame, FrameKind::Ready).expect("sealed");
}

/// Makes the ring that `socket` writes, mapped and sealed.
fn make_ring(raw: &mut Raw, socket: SocketId) -> (Passed, Region<Own>) {
    let ring = ask(raw, FrameKind::DirectRing, socket).expect("a ring");
    let map = Region::<Own>::new(&ring.fd, ring.len).expect("map");
    pd_shm::memfd::seal_against_all(&ring.fd).expect("seal");
    ready(raw, socket);
    (ring, map)
}

fn is_direct(raw: &Raw, socket: SocketId) -> bool {
    let word = Raw::socket_word(socket, socket_status::PATH);
    raw.status.load_u32(word, Ordering::Acquire) & path::DIRECT != 0
}

/// Waits until the driver says that both directions of the socket have ended with `ECONNRESET`.
fn wait_for_reset(raw: &Raw, socket: SocketId) {
    let until = Instant::now() + Duration::from_secs(20);
    let end = |word| raw.status.load_u32(Raw::socket_word(socket, word), Ordering::Acquire);
    while [socket_status::RECV_END, socket_status::SEND_END].map(end) != [libc::ECONNRESET as u32; 2] {
        assert!(Instant::now() < until, "the connection does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_page_of_a_direct_ring_has_one_writer() {
    let scene = direct_stage();
    let (mut a, mut b) = (Raw::attach(&scene.driver, 1), Raw::attach(&scene.driver, 1));
    let (listener, addr) = b.listen(0, 8);
    let from = a.connect(0, addr);
    let to = b.accept(0, listener);
    assert!(is_direct(&a, from) && is_direct(&b, to));
    // Before it is sealed nobody else gets it; nobody gets two.
    let ring = ask(&mut a, FrameKind::DirectRing, from).expect("a ring");
    let map = Region::<Own>::new(&ring.fd, ring.len).expect("map");
    assert_eq!(ask(&mut b, FrameKind::PeerRing, to).err(), Some(libc::EAGAIN as u32));
    pd_shm::memfd::seal_against_all(&ring.fd).expect("seal");
    ready(&mut a, from);
    ready(&mut a, from);
    let theirs = ask(&mut b, FrameKind::PeerRing, to).expect("the peer's ring");
    assert_eq!(theirs.len, ring.len);
    map.store_u64(direct::PRODUCER, 7, Ordering::Release);
    attack(&ring.fd, ring.len, PAGE);
    attack(&theirs.fd, theirs.len, PAGE);
    let read = Region::<Theirs>::new(&theirs.fd, theirs.len).expect("map");
    assert_eq!(read.load_u64(direct::PRODUCER, Ordering::Acquire), 7);
    // The reader's own ring is the writer's to read only.
    let (back, _map) = make_ring(&mut b, to);
    let seen = ask(&mut a, FrameKind::PeerRing, from).expect("the peer's ring");
    attack(&back.fd, back.len, PAGE);
    attack(&seen.fd, seen.len, PAGE);
    // Sockets of others, and unconnected ones, have none.
    assert_eq!(ask(&mut b, FrameKind::PeerRing, listener).err(), Some(libc::ENOTCONN as u32));
    assert_eq!(ask(&mut a, FrameKind::PeerRing, SocketId(u32::MAX)).err(), Some(libc::ENOTCONN as u32));
    // The memory is counted until both have let go of it, by closing or by death.
    drop(a);
    drop((map, ring, seen, _map, back));
    drop(b);
    let of_clients = |r: &Report| r.clients.iter().map(|client| client.region_bytes).sum::<u64>();
    let held = scene.driver.wait_for("their clients are forgotten", |r| r.clients.len() == 2);
    assert!(held.memory_used_bytes > of_clients(&held));
    drop((theirs, read));
    scene.driver.wait_for("it is given back", |r| r.memory_used_bytes == of_clients(r));
    scene.end();
}

/// Asks for the doorbell of an epoll instance. Returns its number and the eventfd.
fn ask_doorbell(
    raw: &mut Raw,
    kind: FrameKind,
    socket: SocketId,
    instance: u64,
) -> Result<(u64, OwnedFd), u32> {
    let frame = Frame::new(kind).with_id(socket.0).with_bytes(instance, 0);
    let (frame, mut fds) = raw.ask(&frame, kind).map_err(|frame| frame.errno)?;
    Ok((frame.bytes, fds.pop().expect("an eventfd")))
}

#[test]
fn a_doorbell_is_for_one_instance_and_one_peer() {
    const DOORBELLS_MAX: u64 = 128;
    let scene = direct_stage();
    let mut raws = [1, 1, 1].map(|channels| Raw::attach(&scene.driver, channels));
    let [a, b, c] = &mut raws;
    let (listener, addr) = b.listen(0, 8);
    let mut rings = Vec::new();
    let mut connect = |from: &mut Raw, b: &mut Raw| {
        let (one, other) = (from.connect(0, addr), b.accept(0, listener));
        assert_eq!(
            ask_doorbell(from, FrameKind::Doorbell, one, 1).err(),
            Some(libc::EAGAIN as u32),
            "without rings"
        );
        rings.push(make_ring(from, one));
        rings.push(make_ring(b, other));
        (one, other)
    };
    let (first, to_first) = connect(a, b);
    let (second, to_second) = connect(a, b);
    let (_, to_third) = connect(c, b);
    assert_eq!(
        ask_doorbell(a, FrameKind::PeerDoorbell, first, 0).err(),
        Some(libc::EAGAIN as u32),
        "it has none"
    );
    let of = |raw: &mut Raw, socket, instance| ask_doorbell(raw, FrameKind::Doorbell, socket, instance);
    let (number, own) = of(b, to_first, 1).expect("a doorbell");
    assert_eq!(of(b, to_second, 1).map(|doorbell| doorbell.0), Ok(number), "the same instance and peer");
    assert_ne!(of(b, to_second, 2).map(|doorbell| doorbell.0), Ok(number), "another instance");
    assert_ne!(of(b, to_third, 1).map(|doorbell| doorbell.0), Ok(number), "another peer");
    // The peer has that doorbell and no other, and its rings arrive.
    let (theirs, doorbell) = ask_doorbell(a, FrameKind::PeerDoorbell, first, 0).expect("the peer's doorbell");
    assert_eq!(theirs, number);
    rustix::io::write(&doorbell, &1u64.to_ne_bytes()).unwrap();
    let mut heard = [0; 8];
    assert_eq!((rustix::io::read(&own, &mut heard), u64::from_ne_bytes(heard)), (Ok(8), 1));
    // A connection has one, however often it asks.
    assert!((10..10 + 3 * DOORBELLS_MAX).all(|instance| of(b, to_first, instance).is_ok()));
    assert_eq!(of(b, SocketId(u32::MAX), 1).err(), Some(libc::ENOTCONN as u32));
    drop((raws, rings, own, doorbell, second));
    scene.driver.wait_for("their clients are forgotten", |r| r.clients.len() == 2);
    scene.end();
}

#[test]
fn a_ring_that_is_not_there_or_not_sealed_ends_its_client() {
    let scene = direct_stage();
    for early in [true, false] {
        let mut raw = Raw::attach(&scene.driver, 1);
        let (listener, addr) = raw.listen(0, 8);
        let socket = raw.connect(0, addr);
        raw.accept(0, listener);
        if !early {
            let ring = ask(&mut raw, FrameKind::DirectRing, socket).expect("a ring");
            // Not against mappings.
            rustix::fs::fcntl_add_seals(&ring.fd, rustix::fs::SealFlags::SEAL).unwrap();
        }
        pd_tests::send_frame(&raw.socket, &Frame::new(FrameKind::DirectMapped).with_id(socket.0)).unwrap();
        scene.expect_cut_off(&mut raw, Violation::Frame);
    }
    scene.end();
}

/// A raw client connected to an honest one, with both of the raw client's views.
struct Pair {
    puppet: Puppet,
    raw: Raw,
    socket: SocketId,
    map: Region<Own>,
}

fn pair(scene: &Scene) -> Pair {
    let mut puppet = scene.driver.puppet();
    let addr = puppet.ok("listen l 127.0.0.1:0 8");
    let mut raw = Raw::attach(&scene.driver, 1);
    let socket = raw.connect(0, addr.parse().unwrap());
    puppet.ok("accept s l");
    assert_eq!(puppet.ok("path s"), "direct");
    let (_, map) = make_ring(&mut raw, socket);
    Pair { puppet, raw, socket, map }
}

#[test]
fn impossible_words_end_the_connection_and_nothing_else() {
    let scene = direct_stage();
    for attempt in 0..4 {
        let Pair { mut puppet, mut raw, socket, map } = pair(&scene);
        let mut bytes = vec![0; 1000];
        fill(1, 0, &mut bytes);
        // SAFETY: private bytes; the ring is this client's to write.
        unsafe { map.copy_in(PAGE, bytes.as_ptr(), bytes.len()) };
        map.store_u64(direct::PRODUCER, 1000, Ordering::Release);
        puppet.ok("recv s 1 0 1000");
        let receives = attempt < 3;
        match attempt {
            0 => map.store_u64(direct::PRODUCER, u64::MAX, Ordering::Release),
            1 => map.store_u64(direct::PRODUCER, map.len() as u64 + 1000, Ordering::Release),
            2 => map.store_u64(direct::PRODUCER, 999, Ordering::Release),
            _ => map.store_u64(direct::CONSUMER, 1, Ordering::Release),
        }
        let failed = match receives {
            true => puppet.ask("recv s 1 1000 1").unwrap_err(),
            // The side looks when its ring is full.
            false => puppet.ask("send s 1 0 50000000 100000").unwrap_err(),
        };
        assert_eq!(failed.0, libc::ECONNRESET, "{failed:?}");
        wait_for_reset(&raw, socket);
        assert_eq!(scene.driver.metrics().connections_broken, attempt + 1);
        // Only the connection ends, and no client.
        assert_eq!(raw.is_cut_off(), None);
        let addr = puppet.ok("listen m 127.0.0.1:0 8");
        puppet.ok(&format!("connect c {addr}"));
        puppet.ok("accept d m");
        puppet.ok("send c 5 0 100000 1000");
        puppet.ok("recv d 5 0 100000");
        puppet.finish();
    }
    scene.end();
}

#[test]
fn sends_through_the_driver_after_the_first_byte_in_the_ring_are_not_received() {
    let scene = direct_stage();
    let Pair { mut puppet, mut raw, socket, map } = pair(&scene);
    let (region, memory) = raw.send_region(4096);
    let mut bytes = vec![0; 4096];
    fill(1, 0, &mut bytes);
    // SAFETY: private bytes; both are this client's to write.
    unsafe {
        memory.copy_in(0, bytes.as_ptr(), bytes.len());
        map.copy_in(PAGE, bytes.as_ptr().wrapping_add(100), 1001);
    }
    let mut send = |offset, len| {
        raw.post(0, &Request::send(socket, Span { region: region.id as u16, offset, len }));
    };
    // As an honest client: the first by the driver, the rest by the ring.
    send(0, 100);
    puppet.ok("recv s 1 0 100");
    map.store_u64(direct::PRODUCER, 1000, Ordering::Release);
    puppet.ok("recv s 1 100 1000");
    send(0, 4096);
    map.store_u64(direct::PRODUCER, 1001, Ordering::Release);
    puppet.ok("recv s 1 1100 1");
    puppet.ok("send s 2 0 10000 1000");
    assert_eq!(raw.is_cut_off(), None);
    drop((raw, region, map, memory));
    puppet.finish();
    scene.end();
}

#[test]
fn garbage_in_every_word_of_the_index_page() {
    let scene = direct_stage();
    let mut random = Random(7);
    for _ in 0..12 {
        let Pair { mut puppet, raw, map, .. } = pair(&scene);
        puppet.tell("send s 1 0 3000000 5000");
        for _ in 0..2000 {
            let word = random.below(PAGE as u64 / 8) as usize * 8;
            let value = match random.below(4) {
                0 => 0,
                1 => random.below(1 << 21),
                2 => u64::MAX - random.below(4),
                _ => random.below(u64::MAX),
            };
            map.store_u64(word, value, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(random.below(20)));
        }
        drop((raw, map));
        let (errno, _) = puppet.answer().expect_err("its peer has gone");
        assert!([libc::ECONNRESET, libc::EPIPE].contains(&errno), "{errno}");
        puppet.finish();
    }
    scene.end();
}

#[test]
fn what_clients_say_of_their_traffic_is_bounded() {
    let scene = direct_stage();
    let Pair { puppet, raw, map, .. } = pair(&scene);
    map.store_u64(direct::MESSAGES, u64::MAX, Ordering::Relaxed);
    map.store_u64(direct::PRODUCER, u64::MAX, Ordering::Release);
    scene.driver.wait_for("it is reported", |_| scene.driver.metrics().bytes_reported > 0);
    map.store_u64(direct::PRODUCER, 0, Ordering::Release);
    let metrics = scene.driver.metrics();
    assert!(metrics.bytes_reported < 1 << 44 && metrics.messages_reported <= metrics.bytes_reported);
    assert!(metrics.bytes_delivered < 1 << 40, "what the driver has seen is counted by itself");
    drop((raw, map));
    puppet.finish();
    scene.end();
}

#[test]
fn nudges_without_end() {
    let scene = direct_stage();
    let Pair { mut puppet, mut raw, socket, map } = pair(&scene);
    for _ in 0..20_000 {
        raw.post(0, &Request::new(Operation::Nudge, socket, 0));
    }
    // On sockets that are none, or not connected, it means nothing.
    raw.post(0, &Request::new(Operation::Nudge, SocketId(u32::MAX), 0));
    raw.post(0, &Request::new(Operation::Broken, SocketId(u32::MAX), 0));
    assert_eq!(raw.is_cut_off(), None);
    raw.post(0, &Request::new(Operation::Broken, socket, 0));
    wait_for_reset(&raw, socket);
    // Later writes into the ring of an ended connection reach nobody.
    map.store_u64(direct::PRODUCER, 1000, Ordering::Release);
    assert_eq!(puppet.errno("recv s 1 0 1"), Errno::CONNRESET.raw_os_error());
    drop((raw, map));
    puppet.finish();
    scene.end();
}

#[test]
fn a_ring_with_a_hole_ends_its_client() {
    use rustix::fs::{fallocate, FallocateFlags};
    let scene = direct_stage();
    let mut raw = Raw::attach(&scene.driver, 1);
    let (listener, addr) = raw.listen(0, 8);
    let socket = raw.connect(0, addr);
    raw.accept(0, listener);
    let ring = ask(&mut raw, FrameKind::DirectRing, socket).expect("a ring");
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&ring.fd, hole, (ring.len - PAGE) as u64, PAGE as u64).unwrap();
    pd_shm::memfd::seal_against_all(&ring.fd).unwrap();
    pd_tests::send_frame(&raw.socket, &Frame::new(FrameKind::DirectMapped).with_id(socket.0)).unwrap();
    scene.expect_cut_off(&mut raw, Violation::Frame);
    drop((ring, raw));
    scene.end();
}

/// A peer that is not trusted sends to a program that has not asked for bytes that can change.
const NOT_TRUSTED: &str = "[[rule]]\naction = \"allow\"\npath = \"direct\"\ntrust = false";

#[test]
fn bytes_that_can_change_are_for_those_only_who_asked_for_them() {
    let scene = stage();
    assert_eq!(scene.driver.apply(NOT_TRUSTED), 0);
    let mut puppet = scene.driver.puppet();
    let addr = puppet.ok("listen l 127.0.0.1:0 8");
    let mut raw = Raw::attach(&scene.driver, 1);
    let socket = raw.connect(0, addr.parse().unwrap());
    puppet.ok("accept s l");
    // Neither side has asked: there are no rings.
    assert_eq!(ask(&mut raw, FrameKind::DirectRing, socket).err(), Some(libc::ENOTCONN as u32));
    // This side has asked, so that the peer's bytes may come by a ring. It also writes into its own.
    let mut request = Request::new(Operation::SetOption, socket, 9).with_numbers(1, 0);
    request.value = SocketOption::ReceivesShared as u32;
    assert_eq!(raw.call(0, request).errno, 0);
    let word = raw.status.load_u32(Raw::socket_word(socket, socket_status::PATH), Ordering::Acquire);
    assert_eq!(word, path::DIRECT | path::SENDS_OFFLOADED);
    assert_eq!(puppet.ok("path s"), "direct");
    let (_, map) = make_ring(&mut raw, socket);
    map.store_u64(direct::PRODUCER, 1000, Ordering::Release);
    assert_eq!(puppet.errno("recv s 1 0 1"), libc::ECONNRESET);
    wait_for_reset(&raw, socket);
    assert_eq!(scene.driver.metrics().connections_broken, 1);
    drop((raw, map));
    puppet.finish();
    scene.end();
}

#[test]
fn who_does_not_leave_the_direct_path_is_heard_no_more() {
    let scene = direct_stage();
    let Pair { mut puppet, mut raw, socket, map } = pair(&scene);
    let mut bytes = vec![0; 4000];
    fill(1, 0, &mut bytes);
    // SAFETY: private bytes; the ring is this client's to write.
    unsafe { map.copy_in(PAGE, bytes.as_ptr(), bytes.len()) };
    map.store_u64(direct::PRODUCER, 1000, Ordering::Release);
    puppet.ok("recv s 1 0 1000");
    assert_eq!(scene.driver.apply("path = \"offloaded\""), 0);
    assert_eq!(puppet.ok("path s"), "offloaded");
    // The puppet sees it with its next call, and does not take later bytes.
    puppet.tell("recv s 1 1000 2500");
    std::thread::sleep(Duration::from_millis(50));
    for written in [1001, 2000, 3000] {
        map.store_u64(direct::PRODUCER, written, Ordering::Release);
        std::thread::sleep(Duration::from_millis(50));
    }
    let own = ask(&mut raw, FrameKind::PeerRing, socket);
    let given_back = || own.as_ref().map_or(1000, consumer);
    assert_eq!(given_back(), 1000, "bytes written after the recall were received");
    // Leaving at last: where the ring ends is fixed by that, and the rest comes by the driver.
    let mut left = Request::new(Operation::Left, socket, 0);
    left.value = pd_abi::LEFT_SENDING;
    raw.post(0, &left);
    let until = Instant::now() + Duration::from_secs(20);
    let last = || raw.status.load_u32(Raw::socket_word(socket, socket_status::PATH), Ordering::Acquire);
    while last() & path::LEFT == 0 {
        assert!(Instant::now() < until);
    }
    std::thread::sleep(Duration::from_millis(100));
    map.store_u64(direct::PRODUCER, 4000, Ordering::Release);
    let (region, memory) = raw.send_region(4096);
    // SAFETY: private bytes; the memory is this client's to write.
    unsafe { memory.copy_in(0, bytes.as_ptr().wrapping_add(3000), 500) };
    raw.post(0, &Request::send(socket, Span { region: region.id as u16, offset: 0, len: 500 }));
    puppet.answer().expect("3000 bytes by the ring, 500 by the driver");
    assert_eq!(raw.is_cut_off(), None);
    drop((raw, map, region, own, memory));
    puppet.finish();
    scene.end();
}

fn consumer(ring: &Passed) -> u64 {
    Region::<Theirs>::new(&ring.fd, ring.len).expect("map").load_u64(direct::CONSUMER, Ordering::Acquire)
}

/// Receives into two pieces of memory, without waiting.
fn receive(socket: &Socket, len: usize, peek: bool) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    let (first, second) = bytes.split_at_mut(len / 3);
    let piece = |part: &mut [u8]| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
    let pieces = [piece(first), piece(second)];
    // SAFETY: two pieces of private memory.
    let received = unsafe { socket.recv_copied(&pieces, peek) }.expect("bytes");
    bytes.truncate(received);
    bytes
}

// This test's own process is a client, unlike in the others.
#[test]
fn bytes_that_were_peeked_at_stay_as_they_were() {
    let driver = TestDriver::with("cpu", |settings| {
        settings.policy = Policy::parse(NOT_TRUSTED).unwrap();
        settings.hugepages = pd_driver::HugepageUse::Off;
    });
    driver.attach_here();
    let mut raw = Raw::attach(&driver, 1);
    let (listener, addr) = raw.listen(0, 8);
    let socket = Socket::new(false).unwrap();
    socket.set_receives_shared().unwrap();
    socket.connect(addr).unwrap();
    let peer = raw.accept(0, listener);
    let (_, map) = make_ring(&mut raw, peer);
    let write = |from: usize, value: u8, len: usize| {
        let bytes = vec![value; len];
        // SAFETY: private bytes; the ring is this client's to write.
        unsafe { map.copy_in(PAGE + from, bytes.as_ptr(), len) };
    };
    write(0, b'a', 1000);
    map.store_u64(direct::PRODUCER, 1000, Ordering::Release);
    assert_eq!(receive(&socket, 600, true), [b'a'; 600]);
    // The client gets the bytes that it has seen; unseen ones may have changed meanwhile.
    write(0, b'b', 1000);
    let seen = receive(&socket, 800, true);
    assert_eq!((&seen[..600], &seen[600..]), (&[b'a'; 600][..], &[b'b'; 200][..]));
    write(0, b'c', 1000);
    assert_eq!(receive(&socket, 100, false), [b'a'; 100]);
    assert_eq!(receive(&socket, 300, true), [b'a'; 300]);
    let rest = receive(&socket, 5000, false);
    assert_eq!((&rest[..500], &rest[500..700]), (&[b'a'; 500][..], &[b'b'; 200][..]));
    assert_eq!(&rest[700..], [b'c'; 200]);
    write(1000, b'd', 1000);
    map.store_u64(direct::PRODUCER, 2000, Ordering::Release);
    assert_eq!(receive(&socket, 5000, false), [b'd'; 1000]);
    assert_eq!(raw.is_cut_off(), None);
    socket.close().unwrap();
}
