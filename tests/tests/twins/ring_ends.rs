//! Bytes that a process sends or receives at the moment at which another process takes its end: each is one process's, and not the
//! other's too.
use super::{claim, connect, driver, listener, Holder};
use pd_tests::{alone, fill, verify, Random, TwinSide};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Messages each way after which a connection has its rings.
const WARM: u64 = 200;
const MESSAGE: usize = 64;

/// A connection on which both sides have sent, and the process that will take its accepting side.
struct Shared {
    fd: OwnedFd,
    a: TwinSide,
    b: TwinSide,
    holder: Holder,
    /// Bytes that each side has sent.
    at: u64,
}

impl Shared {
    fn new(listener: &TcpListener) -> Self {
        let (fd, a, accepted) = connect(listener);
        let b = claim(&accepted).expect("a twin");
        let mut at = 0;
        for _ in 0..WARM {
            a.send(at, MESSAGE);
            b.receive(at, MESSAGE as u64);
            b.send(at, MESSAGE);
            a.receive(at, MESSAGE as u64);
            at += MESSAGE as u64;
        }
        let holder = Holder::new(&accepted, 1);
        Self { fd, a, b, holder, at }
    }

    fn close(self) {
        let Self { fd, a, b, holder, .. } = self;
        holder.kill();
        drop((a, b, fd));
    }
}

/// Sends the next bytes of the accepting side's stream, in whatever pieces go. Returns the number that went before the end was taken.
fn send_until_taken(b: &TwinSide, mut at: u64, random: &mut Random) -> u64 {
    loop {
        let len = random.below(20_000) as usize + 1;
        // A send that meets the end of the ring asks twice.
        let mut next = at;
        let sent = b.socket.send_filled(len, &mut |place, room| {
            // SAFETY: `room` bytes that this call may write.
            fill(2, next, unsafe { std::slice::from_raw_parts_mut(place, room) });
            next += room as u64;
            Ok(room)
        });
        match sent {
            Ok(sent) => at += sent as u64,
            Err(error) if error.errno() == libc::EAGAIN => std::thread::yield_now(),
            Err(error) => {
                assert_eq!(error.errno(), libc::ESTALE, "{error}");
                return at;
            }
        }
    }
}

/// Receives the connecting side's stream. Returns where the next byte is when the end was taken.
fn receive_until_taken(b: &TwinSide, mut at: u64, random: &mut Random) -> u64 {
    let mut place = vec![0; 20_000];
    loop {
        let len = random.below(place.len() as u64) as usize + 1;
        let piece = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: len };
        // SAFETY: memory of this call's.
        match unsafe { b.socket.recv_copied(&[piece], false) } {
            Ok(got) => {
                verify(1, at, &place[..got]);
                at += got as u64;
            }
            Err(error) if error.errno() == libc::EAGAIN => std::thread::yield_now(),
            Err(error) => {
                assert_eq!(error.errno(), libc::ESTALE, "{error}");
                return at;
            }
        }
    }
}

/// The peer learns of the end of the ring while the previous owner is writing there.
#[test]
fn bytes_that_a_former_owner_is_writing_are_refused() {
    let _alone = alone();
    driver().apply("path = \"direct\"");
    let listener = listener("127.0.0.1:0");
    let mut shared = Shared::new(&listener);
    assert!(shared.b.socket.path() == pd_client::Path::Direct, "it has no rings");
    let Shared { a, b, holder, at, .. } = &mut shared;
    let sent = b.socket.send_filled(1000, &mut |place, room| {
        holder.tell("take");
        a.socket.look_exactly();
        // SAFETY: `room` bytes that this call may write.
        fill(2, *at, unsafe { std::slice::from_raw_parts_mut(place, room) });
        Ok(room)
    });
    assert_eq!(sent.unwrap_err().errno(), libc::ESTALE);
    holder.tell(&format!("send {at} 5000"));
    a.receive(*at, 5000);
    shared.close();
}

#[test]
fn a_taken_end_sends_and_receives_each_byte_once() {
    let _alone = alone();
    let mut random = Random(0x7a_6b);
    for path in ["direct", "offloaded"] {
        driver().apply(&format!("path = \"{path}\""));
        let listener = listener("127.0.0.1:0");
        for round in 0..30 {
            let mut shared = Shared::new(&listener);
            let pause = Duration::from_micros(random.below(3000));
            let Shared { a, b, holder, at, .. } = &mut shared;
            let (mut own, start, sends) = (Random(round), *at, round % 2 == 0);
            std::thread::scope(|scope| {
                let previous = scope.spawn(move || match sends {
                    true => send_until_taken(b, start, &mut own),
                    false => receive_until_taken(b, start, &mut own),
                });
                let mut seen = start;
                if sends {
                    std::thread::sleep(pause);
                    holder.tell("take");
                    let end = previous.join().expect("the previous owner");
                    // Bytes that lie in the ring, and in the send region.
                    a.receive(seen, end - seen);
                    holder.tell(&format!("send {end} 3000"));
                    a.receive(end, 3000);
                } else {
                    let last = start + 3_000_000;
                    let source = scope.spawn(move || {
                        while seen < last {
                            a.send(seen, 3000);
                            seen += 3000;
                        }
                    });
                    std::thread::sleep(pause);
                    holder.tell("take");
                    let end = previous.join().expect("the previous owner");
                    holder.tell(&format!("receive {end} {}", last - end));
                    source.join().expect("the sender");
                }
            });
            shared.close();
        }
    }
}
