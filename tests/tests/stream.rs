//! Byte streams: received bytes equal sent bytes, with any sizes and speeds.
use pd_abi::layout::{channel_status, socket_status, ENDED};
use pd_abi::{Operation, Request, SocketId, Span};
use pd_client::{Listener, ListenerOptions, SendBuffer, Shutdown, Stream};
use pd_tests::{fill, verify, Random, Raw, TestDriver};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Once, OnceLock};
use std::thread;
use std::time::Duration;

fn driver() -> &'static TestDriver {
    static DRIVER: OnceLock<TestDriver> = OnceLock::new();
    static ATTACH: Once = Once::new();
    let driver = DRIVER.get_or_init(TestDriver::new);
    ATTACH.call_once(|| driver.attach_here());
    driver
}

fn pair() -> (Stream, Stream) {
    driver();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let stream = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let accepted = listener.accept().unwrap();
    (stream, accepted)
}

/// Sends the stream called `seed` in pieces of random size, some of which are written where they are sent from.
fn send_pieces(stream: &Stream, seed: u64, bytes: u64, piece_max: u64) {
    let mut random = Random(seed);
    let mut buffers: Vec<_> = (0..3).map(|_| SendBuffer::new(piece_max as usize).unwrap()).collect();
    let mut position = 0;
    'all: loop {
        for buffer in &mut buffers {
            if position == bytes {
                break 'all;
            }
            let len = (1 + random.below(piece_max)).min(bytes - position) as usize;
            let sent = if random.below(2) == 0 {
                stream.send_with(len, |place| {
                    fill(seed, position, place);
                    place.len()
                })
            } else {
                fill(seed, position, &mut buffer.wait_mut().unwrap()[..len]);
                stream.send(buffer, ..len)
            };
            assert_eq!(sent.unwrap(), len);
            position += len as u64;
        }
    }
}

fn recv_pieces(stream: &Stream, seed: u64, piece_max: u64) -> u64 {
    let mut random = Random(!seed);
    let mut position = 0;
    loop {
        let received = stream.recv(1 + random.below(piece_max) as usize).unwrap();
        if received.is_empty() {
            return position;
        }
        verify(seed, position, &received);
        position += received.len() as u64;
    }
}

fn transfer_between_processes(bytes: u64, message: usize) {
    let mut receiver = driver().peer(&["recv", "127.0.0.1:0", &message.to_string()]);
    let mut out = BufReader::new(receiver.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let addr = line.trim().strip_prefix("ready ").expect("ready");
    let sender = driver().peer(&["send", addr, &bytes.to_string(), &message.to_string(), "16"]);
    let sent = sender.wait_with_output().unwrap();
    let mut received = String::new();
    out.read_to_string(&mut received).unwrap();
    assert!(receiver.wait().unwrap().success());
    let sent = String::from_utf8(sent.stdout).unwrap();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (sent, received) = (words(&sent), words(&received));
    assert_eq!((&sent[1], sent.last()), (&received[1], received.last()), "bytes and checksum");
}

#[test]
fn messages_of_all_sizes_between_processes() {
    for message in [1, 64, 1000, 4096, 65_536, 1 << 20] {
        transfer_between_processes((message as u64 * 3000).min(100 << 20), message);
    }
}

#[test]
fn random_splits_from_one_byte_to_64_megabytes() {
    for (seed, piece_max, bytes) in [
        (1, 1, 5_000),
        (2, 100, 500_000),
        (3, 70_000, 20 << 20),
        (4, 5 << 20, 40 << 20),
        (5, 64 << 20, 80 << 20),
    ] {
        let (a, b) = pair();
        thread::scope(|scope| {
            scope.spawn(|| {
                send_pieces(&a, seed, bytes, piece_max);
                a.shutdown(Shutdown::Write).unwrap();
            });
            assert_eq!(recv_pieces(&b, seed, piece_max.min(1 << 20)), bytes);
        });
    }
}

#[test]
fn one_message_of_64_megabytes_through_a_ring_of_4() {
    let (a, b) = pair();
    let bytes = 64 << 20;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = SendBuffer::new(bytes).unwrap();
            fill(9, 0, buffer.wait_mut().unwrap());
            assert_eq!(a.send(&buffer, ..).unwrap(), bytes);
            a.shutdown(Shutdown::Write).unwrap();
        });
        assert_eq!(recv_pieces(&b, 9, 3 << 20), bytes as u64);
    });
}

#[test]
fn hundreds_of_connections_at_once() {
    driver();
    let options =
        ListenerOptions { backlog: 512, recv_ring_bytes: Some(256 << 10), ..ListenerOptions::default() };
    let listener = Listener::bind_with("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let addr: SocketAddr = listener.local_addr().unwrap();
    let (connections, bytes) = (400u64, 200_000u64);
    thread::scope(|scope| {
        for group in 0..8u64 {
            scope.spawn(move || {
                let streams: Vec<_> = (0..connections / 8)
                    .map(|index| {
                        let stream = Stream::connect(addr).unwrap();
                        stream.set_recv_ring_bytes(64 << 10).unwrap();
                        let mut id = SendBuffer::new(8).unwrap();
                        id.wait_mut().unwrap().copy_from_slice(&(group * 1000 + index).to_le_bytes());
                        stream.send(&id, ..).unwrap();
                        (group * 1000 + index, stream)
                    })
                    .collect();
                for (seed, stream) in &streams {
                    send_pieces(stream, *seed, bytes, 30_000);
                    stream.shutdown(Shutdown::Write).unwrap();
                }
                for (seed, stream) in &streams {
                    assert_eq!(recv_pieces(stream, !seed, 10_000), bytes / 10);
                }
            });
        }
        let accepted: Vec<_> = (0..connections).map(|_| listener.accept().unwrap()).collect();
        let mut readers = Vec::new();
        for stream in accepted {
            readers.push(scope.spawn(move || {
                let mut id = [0; 8];
                let mut got = 0;
                while got < 8 {
                    let received = stream.recv(8 - got).unwrap();
                    id[got..got + received.len()].copy_from_slice(&received);
                    got += received.len();
                }
                let seed = u64::from_le_bytes(id);
                assert_eq!(recv_pieces(&stream, seed, 20_000), bytes);
                send_pieces(&stream, !seed, bytes / 10, 5_000);
            }));
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn slow_reader_and_slow_writer_lose_nothing() {
    for (write_pause, read_pause) in [(0, 3), (3, 0)] {
        let (a, b) = pair();
        b.set_recv_ring_bytes(64 << 10).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = SendBuffer::new(50_000).unwrap();
                for round in 0..60u64 {
                    fill(3, round * 50_000, buffer.wait_mut().unwrap());
                    a.send(&buffer, ..).unwrap();
                    thread::sleep(Duration::from_millis(write_pause));
                }
                a.shutdown(Shutdown::Write).unwrap();
            });
            let mut position = 0;
            loop {
                let received = b.recv(17_000).unwrap();
                if received.is_empty() {
                    break;
                }
                verify(3, position, &received);
                position += received.len() as u64;
                thread::sleep(Duration::from_millis(read_pause));
            }
            assert_eq!(position, 60 * 50_000);
        });
    }
}

/// A filler's count of bytes is sent, neither more nor less.
#[test]
fn a_filler_says_how_much_is_sent() {
    let (a, b) = pair();
    let mut position = 0;
    // The first go by the driver, also on the direct path.
    for round in 0..300u64 {
        let len = 1 + (round * 37 % 1000) as usize;
        let wrote = |wrote: usize, place: &mut [u8]| {
            assert_eq!(place.len(), len);
            fill(9, position, place);
            wrote
        };
        assert_eq!(a.send_with(len, |place| wrote(len + 1, place)).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(a.send_with(len, |place| wrote(0, place)).unwrap(), 0);
        if round % 150 == 0 {
            let panics = || a.send_with(len, |_| panic!("of the test"));
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        }
        assert_eq!(a.send_with(len, |place| wrote(len.div_ceil(2), place)).unwrap(), len.div_ceil(2));
        let until = position + len.div_ceil(2) as u64;
        while position < until {
            let received = b.recv(1000).unwrap();
            verify(9, position, &received);
            position += received.len() as u64;
        }
    }
    assert_eq!(a.send_with(0, |_| unreachable!("there is no place of no bytes")).unwrap(), 0);
    b.set_nonblocking(true);
    assert_eq!(b.recv(1).unwrap_err().errno(), libc::EAGAIN, "nothing else was sent");
    drop(b);
    while a.send_with(1, |_| 1).is_ok() {
        thread::yield_now();
    }
    let error = a.send_with(1, |_| unreachable!("nothing can be sent")).unwrap_err();
    assert_eq!(error.errno(), libc::EPIPE);
}

/// A filler of a non-blocking stream is called only if there is room for its bytes.
#[test]
fn a_full_stream_calls_no_filler() {
    let (a, b) = pair();
    a.set_nonblocking(true);
    b.set_nonblocking(true);
    let (mut sent, mut received) = (0, 0);
    for len in [64u64, 1000, 4096, 10_000] {
        loop {
            let step = a.send_with(len as usize, |place| {
                fill(4, sent, place);
                place.len()
            });
            match step {
                Ok(bytes) => {
                    assert_eq!(bytes as u64, len);
                    sent += len;
                }
                Err(error) if error.would_block() && sent - received > 1 << 16 => break,
                Err(error) => assert!(error.would_block(), "{error}"), // before the first byte in the ring
            }
        }
        while received < sent {
            match b.recv(1 << 16) {
                Ok(bytes) => {
                    verify(4, received, &bytes);
                    received += bytes.len() as u64;
                }
                Err(error) => assert!(error.would_block(), "{error}"),
            }
        }
    }
}

#[test]
fn half_close_leaves_the_other_half_open() {
    let (a, b) = pair();
    // Sent by threads: a ring may be smaller than this while there are hundreds of connections.
    thread::scope(|scope| {
        scope.spawn(|| {
            send_pieces(&a, 1, 100_000, 10_000);
            a.shutdown(Shutdown::Write).unwrap();
        });
        assert_eq!(recv_pieces(&b, 1, 10_000), 100_000);
    });
    let sender = thread::spawn(move || send_pieces(&b, 2, 100_000, 10_000));
    assert_eq!(recv_pieces(&a, 2, 10_000), 100_000);
    sender.join().unwrap();
    let buffer = SendBuffer::new(1).unwrap();
    assert_eq!(a.send(&buffer, ..).unwrap_err().errno(), libc::EPIPE);
}

fn recv_bytes(stream: &Stream, bytes: usize) {
    let mut left = bytes;
    while left > 0 {
        let part = stream.recv(left).unwrap().len();
        assert_ne!(part, 0);
        left -= part;
    }
}

#[test]
fn an_end_stays_until_the_socket_is_closed() {
    let ended: Vec<_> = (0..20)
        .map(|_| {
            let (here, peer) = pair();
            send_pieces(&peer, 5, 100, 100);
            recv_bytes(&here, 100);
            drop(peer);
            here.shutdown(Shutdown::Write).unwrap();
            here
        })
        .collect();
    // The driver notices that all was read; then come other connections, with other lines than the earlier ones.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let later: Vec<_> = (0..200).map(|_| pair()).collect();
    for (a, b) in &later {
        send_pieces(a, 6, 100, 100);
        recv_bytes(b, 100);
    }
    for here in &ended {
        assert_eq!(here.recv(1).unwrap().len(), 0);
    }
}

#[test]
fn data_sent_before_accept_and_after_close_arrives() {
    driver();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let connect = || Stream::connect(listener.local_addr().unwrap()).unwrap();
    // The smallest ring has room for this, which a connection gets while there are hundreds.
    let stream = connect();
    send_pieces(&stream, 3, 10_000, 4_000);
    drop(stream);
    let stream = connect();
    let sender = thread::spawn(move || send_pieces(&stream, 4, 300_000, 40_000));
    for (seed, bytes) in [(3, 10_000), (4, 300_000)] {
        let accepted = listener.accept().unwrap();
        assert_eq!(recv_pieces(&accepted, seed, 50_000), bytes);
    }
    sender.join().unwrap();
}

#[test]
fn idle_rings_go_back_and_come_again() {
    let (a, b) = pair();
    for round in 0..3 {
        let buffer = SendBuffer::new(10_000).unwrap();
        a.send(&buffer, ..).unwrap();
        let mut got = 0;
        while got < 10_000 {
            got += b.recv(10_000 - got).unwrap().len();
        }
        if round < 2 {
            thread::sleep(Duration::from_millis(1300));
        }
    }
}

/// A sync brings what other clients had asked for before, whatever the driver does then: it sleeps, or looks at other channels.
#[test]
fn a_sync_brings_what_others_have_asked_for() {
    for movers in [1, 2] {
        let driver = TestDriver::with("cpu", |settings| settings.movers = movers);
        let (mut sender, mut receiver) = (Raw::attach(&driver, 1), Raw::attach(&driver, 2));
        let (listener, address) = receiver.listen(0, 64);
        let (region, map) = sender.send_region(64 << 10);
        let mut random = Random(5);
        let mut syncs = 0;
        for _ in 0..40 {
            let from = sender.connect(0, address);
            let to = receiver.accept(0, listener);
            let mut sent = 0;
            for _ in 0..random.below(6) {
                if random.below(3) == 0 {
                    // The driver may have fallen asleep.
                    thread::sleep(Duration::from_micros(random.below(3000)));
                }
                let len = 1 + random.below(4000);
                map.store_u64(0, sent, Ordering::Relaxed);
                sender.post(0, &Request::send(from, Span { region: region.id as u16, offset: 0, len }));
                sent += len;
                syncs += 1;
                sync(&mut receiver, to, syncs);
                assert_eq!(receiver.socket_status(to, socket_status::RECV_PRODUCER), sent, "{movers} movers");
            }
            sender.post(0, &Request::new(Operation::Close, from, 0));
            syncs += 1;
            sync(&mut receiver, to, syncs);
            let end = |word| receiver.status.load_u32(Raw::socket_word(to, word), Ordering::Acquire);
            assert_eq!(
                [end(socket_status::RECV_END), end(socket_status::SEND_END)],
                [ENDED; 2],
                "{movers} movers"
            );
            receiver.post(0, &Request::new(Operation::Close, to, 0));
        }
    }
}

/// Waits for a sync of this number.
fn sync(raw: &mut Raw, socket: SocketId, number: u64) {
    raw.post(1, &Request::new(Operation::Sync, socket, 0).with_numbers(number, 0));
    let synced = Raw::channel_word(1, channel_status::SYNCED);
    while raw.status.load_u64(synced, Ordering::Acquire) < number {
        thread::yield_now();
    }
}
