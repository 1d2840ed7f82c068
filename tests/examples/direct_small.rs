//! Cost of a message of 64 bytes on the direct path, copied into the ring or written there: for a sender alone, and
//! between two threads on two cores.
//!
//! ```text
//! cargo run --release -p pd-tests --example direct_small
//! ```
use pd_client::{Listener, SendBuffer, Stream};
use pd_tests::TestDriver;
use std::cell::RefCell;
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const MESSAGE_BYTES: usize = 64;
const WINDOW: usize = 1024;
/// Bytes that a receiver takes at most at a time.
const RECV_BYTES: usize = 64 << 10;
/// Turns before those that count: a connection begins offloaded, and locks and fences adapt.
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

/// Calls `send` for each message of a window in one thread, which then receives them, so that nobody waits. Returns the
/// time of a message, and that of `aside`, which is called for each before.
fn alone(to: &Stream, mut aside: impl FnMut(usize, usize), mut send: impl FnMut(usize, usize)) -> [f64; 2] {
    let mut times = [Duration::ZERO; 2];
    for turn in 0..WARM_UP + TURNS {
        let start = Instant::now();
        (0..WINDOW).for_each(|n| aside(turn, n));
        let ready = Instant::now();
        (0..WINDOW).for_each(|n| send(turn, n));
        let end = Instant::now();
        receive(to, WINDOW * MESSAGE_BYTES);
        if turn >= WARM_UP {
            times[0] += ready - start;
            times[1] += end - ready;
        }
    }
    times.map(|time| time.as_secs_f64() * 1e9 / (TURNS * WINDOW) as f64)
}

/// Sends in one thread, and receives and adds up in another.
fn together(to: &Stream, mut send: impl FnMut(usize)) {
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| black_box(receive(to, MESSAGES * MESSAGE_BYTES)));
        (0..MESSAGES).for_each(&mut send);
    });
    println!(
        "  two threads: {:.2} million messages/s",
        MESSAGES as f64 / start.elapsed().as_secs_f64() / 1e6
    );
}

fn main() {
    let driver = TestDriver::new();
    driver.attach_here();
    let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("listener");
    let port = listener.local_addr().expect("address").port();
    let from = Stream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("connect");
    let to = listener.accept().expect("accept");
    assert_eq!(from.path(), pd_client::Path::Direct);

    let window = (0..WINDOW).map(|_| SendBuffer::new(MESSAGE_BYTES).expect("memory")).collect();
    let window = RefCell::<Vec<_>>::new(window);
    let fill = |turn: usize, n: usize| {
        window.borrow_mut()[n % WINDOW].wait_mut().expect("memory").fill(turn as u8);
    };
    let send = |_, n: usize| {
        from.send(&window.borrow()[n % WINDOW], ..).expect("send");
    };
    let [filled, sent] = alone(&to, fill, send);
    println!("copied, alone: buffer {filled:.1} ns, send {sent:.1} ns a message");
    for _ in 0..RUNS {
        together(&to, |n| {
            fill(n, n);
            send(n, n);
        });
    }

    let send = |turn: usize, _| {
        let filled = from.send_with(MESSAGE_BYTES, |place| {
            place.fill(turn as u8);
            place.len()
        });
        filled.expect("send");
    };
    let [_, sent] = alone(&to, |_, _| {}, send);
    println!("in place, alone: {sent:.1} ns a message");
    (0..RUNS).for_each(|_| together(&to, |n| send(n, n)));
}
