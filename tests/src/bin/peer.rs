//! A peer for the tests, as a process of its own.
//!
//! `peer send ADDR BYTES MESSAGE BUFFERS`: connects, sends, closes; prints seconds and a checksum.
//! `peer recv ADDR MESSAGE`: listens, takes one connection, reads to the end; prints likewise.
//! `peer victim-send ADDR SEED`, `peer victim-recv ADDR SEED`: connect and send (or receive and check)
//! the stream called SEED until killed.
use pd_client::{Listener, SendBuffer, Stream};
use std::hash::Hasher;
use std::time::Instant;
use twox_hash::XxHash3_64;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| args[index].parse::<u64>().expect("number");
    match args[0].as_str() {
        "send" => send(&args[1], number(2), number(3) as usize, number(4) as usize),
        "recv" => recv(&args[1], number(2) as usize),
        "victim-send" => victim_send(&args[1], number(2)),
        "victim-recv" => victim_recv(&args[1], number(2)),
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
    println!("ready");
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

fn report(what: &str, bytes: u64, start: Instant, sum: u64) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{what} {bytes} bytes {seconds:.3} s {:.2} Gbit/s sum {sum:016x}", bytes as f64 * 8e-9 / seconds);
}
