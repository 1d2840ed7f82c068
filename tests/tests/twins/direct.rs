//! Twins on the direct path, which leave it when an end moves.
use super::{claim, connect, driver, listener, Holder};
use pd_client::Path;
use pd_tests::{alone, Random, TwinSide};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// New connections are direct as long as this lives.
struct Direct(#[expect(dead_code, reason = "ends with the test")] MutexGuard<'static, ()>);

fn direct() -> Direct {
    let alone = alone();
    driver().apply("path = \"direct\"");
    Direct(alone)
}

impl Drop for Direct {
    fn drop(&mut self) {
        driver().apply(&format!("path = \"{}\"", pd_tests::path()));
    }
}

/// Ends that go to another process in the middle of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moving([bool; 2]);

/// Sends the bytes from `from` to `to`, in short messages and in messages of up to `long` bytes.
fn send_all(side: &TwinSide, from: u64, to: u64, long: u64, seed: u64) {
    let (mut at, mut random) = (from, Random(seed));
    while at < to {
        let most = if random.below(2) == 0 { 2_000 } else { long };
        let bytes = (1 + random.below(most)).min(to - at);
        side.send(at, bytes as usize);
        at += bytes;
    }
}

/// Exchanges both streams. Ends move when some bytes of each were sent and some of those were read. With `recall` a
/// policy takes the direct path away. Returns whether the connection stayed on it.
fn exchange(listener: &TcpListener, round: u64, Moving(moving): Moving, recall: bool) -> bool {
    let (fd, a, accepted) = connect(listener);
    let b = claim(&accepted).expect("a twin");
    assert_eq!((a.socket.path(), b.socket.path()), (Path::Direct, Path::Direct));
    let descriptors = [fd.as_fd(), accepted.as_fd()];
    let mut random = Random(100 + round);
    // When both move, nobody reads bytes beyond a ring.
    let both = moving == [true; 2];
    let (most, long) = if both { (250_000, 2_000) } else { (3_000_000, 100_000) };
    let mut total = || 1 + random.below(if round % 4 == 0 { 20_000 } else { most });
    // By side: bytes to send in all, and before it moves; bytes to receive before it moves.
    let totals = [total(), total()];
    let sent = totals.map(|total| random.below(total + 1));
    let read = [random.below(totals[1] + 1), random.below(totals[0] + 1)];
    // Bytes that an end reads before it moves have to be sent before the other moves.
    let read = if both { [read[0].min(sent[1]), read[1].min(sent[0])] } else { read };
    let sides = [a, b];
    let pause = Duration::from_micros(random.below(3_000));
    std::thread::scope(|scope| {
        if recall {
            scope.spawn(move || {
                std::thread::sleep(pause);
                driver().apply("path = \"offloaded\"");
            });
        }
        let mut ends = Vec::new();
        for (number, side) in sides.iter().enumerate() {
            let other = 1 - number;
            ends.push(scope.spawn(move || {
                send_all(side, 0, if moving[number] { sent[number] } else { totals[number] }, long, round)
            }));
            ends.push(
                scope.spawn(move || {
                    side.receive(0, if moving[number] { read[number] } else { totals[other] })
                }),
            );
        }
        let mut holders = Vec::new();
        for number in [0, 1] {
            if !moving[number] {
                continue;
            }
            for end in ends.drain(if both { 0..2 } else { 2 * number..2 * number + 2 }) {
                end.join().expect("an end");
            }
            let mut holder = Holder::new(&descriptors[number], number as u64);
            holder.tell("take");
            // In pieces, in turns, so that neither waits for the other with both windows full.
            let (send_to, read_to) = (totals[number], totals[1 - number]);
            let (mut at, mut from) = (sent[number], read[number]);
            holders.push(scope.spawn(move || {
                while at < send_to || from < read_to {
                    let part = (send_to - at).min(40_000);
                    if part > 0 {
                        holder.tell(&format!("send {at} {part}"));
                        at += part;
                    }
                    let part = (read_to - from).min(40_000);
                    if part > 0 {
                        holder.tell(&format!("receive {from} {part}"));
                        from += part;
                    }
                }
                holder
            }));
        }
        let moved = holders.into_iter().map(|holder| holder.join().expect("a holder")).collect::<Vec<_>>();
        ends.into_iter().for_each(|end| end.join().expect("an end"));
        moved.into_iter().for_each(Holder::kill);
    });
    // Without a ring in use it could stay where it was.
    let stays = |number: usize| !moving[number] && sides[number].socket.path() == Path::Direct;
    let stay = || stays(0) || stays(1);
    // A policy is in force when `apply` returns; the movers notify the ends afterwards.
    if recall {
        let limit = Instant::now() + Duration::from_secs(10);
        while stay() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    stay()
}

#[test]
fn a_moving_end_takes_the_connection_off_the_direct_path_without_a_byte_lost() {
    let _direct = direct();
    let moving = |round| Moving([[false, true], [true, false], [true, true]][round as usize % 3]);
    let listener = listener("127.0.0.1:0");
    let stayed = (0..36).filter(|&round| exchange(&listener, round, moving(round), false)).count();
    assert!(driver().metrics().connections_direct >= 36);
    assert!((1..18).contains(&stayed), "{stayed} of 36 stayed on the direct path");
}

#[test]
fn a_policy_takes_connections_off_the_direct_path_while_ends_move_without_a_byte_lost() {
    let _direct = direct();
    let moving = |round| {
        Moving(
            [[false, false], [false, true], [true, false], [false, false], [true, true]][round as usize % 5],
        )
    };
    let listener = listener("127.0.0.1:0");
    let before = driver().metrics().connections_recalled;
    for round in 0..40 {
        assert!(!exchange(&listener, round, moving(round), true), "round {round} stayed");
        driver().apply("path = \"direct\"");
    }
    assert!(driver().metrics().connections_recalled >= before + 10);
}

#[test]
fn what_lies_in_a_ring_comes_before_what_its_writer_sends_after_a_recall() {
    let _direct = direct();
    let listener = listener("127.0.0.1:0");
    for back in [false, true] {
        let (_fd, a, accepted) = connect(&listener);
        let b = claim(&accepted).expect("a twin");
        let (from, to) = if back { (&b, &a) } else { (&a, &b) };
        // By the driver at first, then by the ring; none of the bytes are read.
        send_all(from, 0, 600_000, 2_000, 6);
        driver().apply("path = \"offloaded\"");
        send_all(from, 600_000, 900_000, 100_000, 7);
        to.receive(0, 900_000);
        driver().apply("path = \"direct\"");
    }
}

#[test]
fn what_lies_in_a_ring_is_received_before_its_writers_reset() {
    let _direct = direct();
    let listener = listener("127.0.0.1:0");
    let (fd, a, accepted) = connect(&listener);
    let b = claim(&accepted).expect("a twin");
    send_all(&a, 0, 600_000, 2_000, 8);
    drop(fd);
    a.socket.reset().unwrap();
    b.receive(0, 600_000);
    let error = b.socket.recv(1).map(|got| got.len).expect_err("a reset");
    assert_eq!(error.errno(), libc::ECONNRESET);
}

#[test]
fn what_lies_in_a_ring_outlives_its_writer_and_its_reader() {
    let _direct = direct();
    let listener = listener("127.0.0.1:0");
    for shut in [false, true] {
        let (fd, a, accepted) = connect(&listener);
        let b = claim(&accepted).expect("a twin");
        send_all(&a, 0, 600_000, 100_000, 3);
        b.receive(0, 250_000);
        send_all(&b, 0, 300_000, 100_000, 4);
        send_all(&a, 600_000, 900_000, 100_000, 5);
        // The end of the stream was told before the end moves, or the writer has gone.
        if shut {
            a.socket.shutdown(pd_client::Shutdown::Write).unwrap();
        } else {
            drop(fd);
            a.socket.close().unwrap();
        }
        let mut holder = Holder::new(&accepted, 1);
        holder.tell("take");
        holder.tell("receive 250000 650000");
        holder.tell("end");
        if shut {
            holder.tell("send 300000 5000");
            a.receive(0, 305_000);
        }
        holder.kill();
    }
}

/// A socket that changes hands before there are rings stays on the direct path. Bytes delivered to a previous process, or sent by it,
/// come before those of the rings.
#[test]
fn a_ring_comes_after_what_a_former_process_was_brought_or_has_sent() {
    let _direct = direct();
    change_hands(false);
}

/// The connection is offloaded at that time, and put on the direct path afterwards.
#[test]
fn a_ring_of_a_later_policy_comes_after_what_a_former_process_was_brought_or_has_sent() {
    let _direct = direct();
    change_hands(true);
}

/// Moves both ends. `later`: the policy puts the connections on the direct path only after their ends have moved.
fn change_hands(later: bool) {
    const BEFORE: u64 = 600_000;
    const RING_BYTES: u64 = 16 << 10;
    let listener = listener("127.0.0.1:0");
    let apply = |path: &str| {
        if later {
            driver().apply(&format!("path = \"{path}\""));
        }
    };
    // A single message: a ring would begin with the next.
    let by_driver = |side: &TwinSide| side.send(0, BEFORE as usize);
    let by_ring = |side: &TwinSide, from: u64| (0..200).for_each(|at| side.send(from + 50 * at, 50));
    // Brought: the new process has little room, so that it is brought the rest in many pieces. The other end moves, too, or does not.
    for both in [false, true] {
        apply("offloaded");
        let (fd, a, accepted) = connect(&listener);
        let b = claim(&accepted).expect("a twin");
        by_driver(&a);
        let limit = Instant::now() + Duration::from_secs(10);
        while b.socket.received() < BEFORE && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        b.socket.set_receive_ring_bytes(RING_BYTES).unwrap();
        let mut holder = Holder::new(&accepted, 1);
        holder.tell("take");
        apply("direct");
        by_ring(&a, BEFORE);
        assert_eq!(a.socket.path(), Path::Direct);
        let mut end = BEFORE + 10_000;
        let sender = both.then(|| {
            let mut sender = Holder::new(&fd, 0);
            sender.tell("take");
            sender.tell(&format!("send {end} 5000"));
            end += 5000;
            sender
        });
        holder.tell(&format!("receive 0 {end}"));
        holder.kill();
        sender.into_iter().for_each(Holder::kill);
    }
    // Sent: the peer has little room, so that it is still on its way.
    apply("offloaded");
    let (_fd, a, accepted) = connect(&listener);
    let b = claim(&accepted).expect("a twin");
    a.socket.set_receive_ring_bytes(RING_BYTES).unwrap();
    by_driver(&b);
    let mut holder = Holder::new(&accepted, 1);
    holder.tell("take");
    apply("direct");
    by_ring(&a, 0);
    holder.tell("receive 0 10000");
    holder.tell(&format!("send {BEFORE} 5000"));
    a.receive(0, BEFORE + 5_000);
    holder.kill();
}

/// A side whose process has gone while the kernel's socket is held leaves the direct path with the policy, too, and its peer with it.
#[test]
fn a_policy_takes_a_parked_side_off_the_direct_path() {
    let _direct = direct();
    let listener = listener("127.0.0.1:0");
    let (_fd, a, accepted) = connect(&listener);
    let _b = claim(&accepted).expect("a twin");
    let mut holder = Holder::new(&accepted, 1);
    holder.tell("take");
    a.send(0, 1000);
    holder.tell("receive 0 1000");
    assert_eq!(a.socket.path(), Path::Direct);
    holder.kill();
    driver().wait_for("nobody has it", |report| report.clients.len() == 1);
    driver().apply("path = \"offloaded\"");
    driver().wait_for("it has left", |_| a.socket.path() != Path::Direct);
}
