//! What a message of 64 bytes costs on the direct path: to a sender alone, and between two threads on two cores.
//!
//! ```text
//! cargo run --release -p pd-tests --example direct_small
//! ```
use pd_client::{Listener, SendBuffer, Stream};
use pd_tests::TestDriver;
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const MESSAGE_BYTES: usize = 64;
const WINDOW: usize = 1024;
/// Bytes that a receiver takes at most at a time.
const RECV_BYTES: usize = 64 << 10;
/// Turns before those that count: a connection begins offloaded, and locks and fences learn.
const WARM_UP: usize = 1000;
const TURNS: usize = 5000;
const MESSAGES: usize = 10_000_000;
const RUNS: usize = 5;

fn receive(stream: &Stream, mut bytes: usize) -> u64 {
    let mut sum = 0u64;
    while bytes > 0 {
        let received = stream.recv(RECV_BYTES).expect("receive");
        let words =
            received.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        sum = words.fold(sum, u64::wrapping_add);
        bytes -= received.len();
    }
    sum
}

/// One thread fills a window, sends it and receives it, so that nobody waits for anybody.
fn alone(from: &Stream, to: &Stream, window: &mut [SendBuffer]) {
    let (mut filled, mut sent) = (Duration::ZERO, Duration::ZERO);
    for turn in 0..WARM_UP + TURNS {
        let start = Instant::now();
        for buffer in window.iter_mut() {
            buffer.wait_mut().expect("memory")[0] = turn as u8;
        }
        let full = Instant::now();
        for buffer in window.iter() {
            from.send(buffer, ..).expect("send");
        }
        let end = Instant::now();
        receive(to, WINDOW * MESSAGE_BYTES);
        if turn >= WARM_UP {
            filled += full - start;
            sent += end - full;
        }
    }
    let each = |time: Duration| time.as_secs_f64() * 1e9 / (TURNS * WINDOW) as f64;
    println!("alone: buffer {:.1} ns, send {:.1} ns a message", each(filled), each(sent));
}

/// One thread rewrites and sends, another receives and adds up.
fn together(from: &Stream, to: &Stream, window: &mut [SendBuffer]) {
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| black_box(receive(to, MESSAGES * MESSAGE_BYTES)));
        for n in 0..MESSAGES {
            let buffer = &mut window[n % WINDOW];
            buffer.wait_mut().expect("memory").fill(n as u8);
            from.send(buffer, ..).expect("send");
        }
    });
    println!("two threads: {:.2} million messages/s", MESSAGES as f64 / start.elapsed().as_secs_f64() / 1e6);
}

/// The same with messages that are written where they are sent from.
fn in_place(from: &Stream, to: &Stream) {
    let fill = |n: usize| {
        move |place: &mut [u8]| {
            place.fill(n as u8);
            place.len()
        }
    };
    let mut sent = Duration::ZERO;
    for turn in 0..WARM_UP + TURNS {
        let start = Instant::now();
        for n in 0..WINDOW {
            from.send_with(MESSAGE_BYTES, fill(n)).expect("send");
        }
        let end = Instant::now();
        receive(to, WINDOW * MESSAGE_BYTES);
        if turn >= WARM_UP {
            sent += end - start;
        }
    }
    println!("in place, alone: {:.1} ns a message", sent.as_secs_f64() * 1e9 / (TURNS * WINDOW) as f64);
    for _ in 0..RUNS {
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| black_box(receive(to, MESSAGES * MESSAGE_BYTES)));
            for n in 0..MESSAGES {
                from.send_with(MESSAGE_BYTES, fill(n)).expect("send");
            }
        });
        println!(
            "in place, two threads: {:.2} million messages/s",
            MESSAGES as f64 / start.elapsed().as_secs_f64() / 1e6
        );
    }
}

fn main() {
    let driver = TestDriver::new();
    driver.attach_here();
    let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("listener");
    let port = listener.local_addr().expect("address").port();
    let from = Stream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("connect");
    let to = listener.accept().expect("accept");
    assert_eq!(from.path(), pd_client::Path::Direct);
    let mut window: Vec<_> = (0..WINDOW).map(|_| SendBuffer::new(MESSAGE_BYTES).expect("memory")).collect();
    alone(&from, &to, &mut window);
    (0..RUNS).for_each(|_| together(&from, &to, &mut window));
    in_place(&from, &to);
}
