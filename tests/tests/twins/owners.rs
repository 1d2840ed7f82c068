//! Owners: a side goes from process to process, or from one that is gone.
use super::*;

#[test]
fn a_side_goes_from_process_to_process() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let mut random = Random(7);
    for round in 0..6 {
        let (fd, a, accepted) = connect(&listener);
        let mut b = Some(claim(&accepted).expect("a twin"));
        let mut holder = Holder::new(&accepted, 1);
        let (mut there, mut read, mut back, mut answered) = (0u64, 0u64, 0u64, 0u64);
        for turn in 0..40 {
            // Some bytes are read, and some are not, when the socket changes hands.
            let more = 1 + random.below(300_000);
            a.send(there, more as usize);
            there += more;
            let some = random.below(there - read + 1);
            let sent = 1 + random.below(100_000);
            if turn % 2 == 0 {
                if b.is_none() {
                    b = TwinSide::take(accepted.as_fd(), 1);
                }
                let b = b.as_ref().expect("a twin");
                b.receive(read, some);
                b.send(back, sent as usize);
            } else {
                if let Some(previous) = b.take() {
                    holder.tell("take");
                    assert_eq!(previous.socket.recv(1 << 30).unwrap_err().errno(), libc::ESTALE);
                } else {
                    holder.tell("take");
                }
                holder.tell(&format!("receive {read} {some}"));
                holder.tell(&format!("send {back} {sent}"));
            }
            read += some;
            back += sent;
            if random.below(3) == 0 {
                let some = random.below(back - answered + 1);
                a.receive(answered, some);
                answered += some;
            }
        }
        a.receive(answered, back - answered);
        if b.is_none() {
            b = TwinSide::take(accepted.as_fd(), 1);
        }
        let b = b.expect("a twin");
        a.socket.shutdown(Shutdown::Write).unwrap();
        b.receive(read, there - read);
        b.expect_end();
        if round % 2 == 0 {
            holder.kill();
        }
        drop((fd, accepted));
    }
}

#[test]
fn a_connecting_side_moves_too_and_its_shutdown_with_it() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let (fd, a, accepted) = connect(&listener);
    let b = claim(&accepted).expect("a twin");
    a.send(0, 2_000_000);
    let mut holder = Holder::new(&fd, 0);
    holder.tell("take");
    holder.say("send 2000000 1000000");
    b.receive(0, 3_000_000);
    holder.hear();
    holder.tell("shut");
    b.expect_end();
    b.send(0, 10_000);
    let again = TwinSide::take(fd.as_fd(), 0).expect("a twin");
    again.receive(0, 10_000);
    assert_eq!(
        again.socket.send(pd_client::core::malloc(1).unwrap().as_ptr(), 1).unwrap_err().errno(),
        libc::EPIPE
    );
    drop(accepted);
    b.socket.close().unwrap();
    again.expect_end();
}

/// Before the other side has claimed it, no flow brings a connecting side bytes that could show a change of its owner.
#[test]
fn who_waits_learns_that_a_side_has_gone_before_the_claim() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let (fd, a, accepted) = connect(&listener);
    a.send(0, 1000);
    let receiver = a.socket.clone();
    let waiting = std::thread::spawn(move || receiver.recv(1).unwrap_err().errno());
    let mut holder = Holder::new(&fd, 0);
    holder.tell("take");
    assert_eq!(waiting.join().unwrap(), libc::ESTALE);
    holder.tell("send 1000 1000");
    holder.kill();
    // The socket is still held here, and sent bytes are not lost.
    let again = TwinSide::take(fd.as_fd(), 0).expect("a twin");
    let b = claim(&accepted).expect("a twin");
    b.receive(0, 2000);
    b.send(0, 1000);
    again.receive(0, 1000);
}

#[test]
fn a_side_outlives_the_process_that_used_it() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    for how in ["close", "kill", "exec"] {
        let (_fd, a, accepted) = connect(&listener);
        let mut first = Holder::new(&accepted, 1);
        let b = claim(&accepted).expect("a twin");
        first.tell("take");
        drop(b);
        a.send(0, 1_000_000);
        first.tell("receive 0 400000");
        first.tell("send 0 300000");
        match how {
            "exec" => {
                drop(accepted);
                first.tell("pass");
                first.tell("receive 400000 600000");
                first.tell("send 300000 1000");
                a.receive(0, 301_000);
                first.kill();
            }
            _ => {
                if how == "close" {
                    first.tell("close");
                }
                first.kill();
                std::thread::sleep(Duration::from_millis(120)); // it is looked at while nobody uses it
                a.send(1_000_000, 1000);
                let b = TwinSide::take(accepted.as_fd(), 1).expect("a twin");
                b.receive(400_000, 601_000);
                b.send(300_000, 1000);
                a.receive(0, 301_000);
                drop(accepted);
                b.socket.close().unwrap();
            }
        }
        // The last one has gone.
        let start = Instant::now();
        match a.socket.recv(1) {
            Ok(end) => assert_eq!(end.len, 0, "{how}: bytes from nowhere"),
            Err(error) => assert_eq!(error.errno(), libc::ECONNRESET, "{how}: {error}"),
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{how}: its end was not noticed");
    }
}

#[test]
fn what_the_last_user_sent_arrives_though_another_held_the_socket_for_a_moment() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let (_fd, a, accepted) = connect(&listener);
    a.socket.set_receive_ring_bytes(64 << 10).unwrap();
    let mut last = Holder::new(&accepted, 1);
    drop(claim(&accepted).expect("a twin"));
    last.tell("take");
    // More than the receive ring holds, and too little for rings of their own.
    last.tell("send 0 200000");
    last.kill();
    std::thread::sleep(Duration::from_millis(20)); // it is seen that the socket is held here
    drop(accepted);
    std::thread::sleep(Duration::from_millis(230)); // and that it is not any more
    a.receive(0, 200_000);
    a.expect_end();
}

#[test]
fn kills_at_random_leave_nothing() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let mut random = Random(11);
    for _ in 0..60 {
        let (fd, a, accepted) = connect(&listener);
        let mut holder = Holder::new(&accepted, 1);
        let claimed = (random.below(3) > 0).then(|| claim(&accepted).expect("a twin"));
        drop(accepted);
        if let Some(claimed) = claimed {
            claimed.socket.close().unwrap();
        }
        if random.below(2) == 0 {
            a.send(0, 1 + random.below(200_000) as usize);
        }
        if random.below(2) == 0 {
            // At once: where there is nothing to take, the process ends, and reads no second line.
            holder.say("take\nsend 0 100000");
        }
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        holder.kill();
        drop(fd);
        drop(a);
    }
    drop(listener);
    let left = |report: &pd_driver::admin::Report| report.connections.iter().all(|c| c.to.is_none());
    driver().wait_for("no connection is left", |report| {
        report.clients.len() == 1 && left(report) || report.connections.is_empty()
    });
}

#[test]
fn nobody_learns_of_a_stream_that_goes_past_it() {
    let _alone = alone();
    // The kernel's connection carries nothing.
    let listener = listener("127.0.0.1:0");
    let (fd, a, mut accepted) = connect(&listener);
    let b = claim(&accepted).expect("a twin");
    a.send(0, 50_000);
    b.receive(0, 50_000);
    drop(fd);
    a.socket.close().unwrap();
    b.expect_end();
    assert_eq!(accepted.read(&mut [0; 1]).unwrap(), 0);
}

/// The question may overtake the close, which goes another way to the driver.
#[test]
fn a_process_takes_what_it_has_just_closed() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let (fd, a, accepted) = connect(&listener);
    let mut b = claim(&accepted).expect("a twin");
    for round in 0..200 {
        a.send(round * 10, 10);
        b.socket.close().unwrap();
        b = TwinSide::take(accepted.as_fd(), 1).expect("a twin");
        b.receive(round * 10, 10);
    }
    a.socket.close().unwrap();
    b.socket.close().unwrap();
    drop((fd, accepted));
}

/// The driver keeps to the size of the send ring in its answer, also where a previous owner had asked for a smaller one.
#[test]
fn a_side_taken_from_nobody_has_a_send_ring_of_the_size_in_the_answer() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let (fd, a, accepted) = connect(&listener);
    let b = claim(&accepted).expect("a twin");
    let small = b.socket.set_send_ring_bytes(1).unwrap();
    b.socket.close().unwrap();
    let b = TwinSide::take(accepted.as_fd(), 1).expect("a twin");
    assert!(b.socket.ring_bytes().0 >= small);
    b.send(0, 1_000_000);
    a.receive(0, 1_000_000);
    a.socket.close().unwrap();
    b.socket.close().unwrap();
    drop((fd, accepted));
}

/// A process may ask the driver for something before it has heard that its end has gone. The answer says so, and it can take the end again.
#[test]
fn requests_of_a_former_owner_are_refused_as_stale() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let (fd, a, accepted) = connect(&listener);
    let b = claim(&accepted).expect("a twin");
    let mut holder = Holder::new(&accepted, 1);
    holder.tell("take");
    let told = [
        b.socket.step_aside(Departure::Marked).map(drop),
        b.socket.set_send_ring_bytes(1).map(drop),
        b.socket.claim_mark().map(drop),
        b.socket.shutdown(Shutdown::Write),
    ];
    let told = told.map(|told| told.unwrap_err().errno());
    assert_eq!(told, [libc::ESTALE; 4]);
    let b = TwinSide::take(accepted.as_fd(), 1).expect("a twin");
    b.send(0, 1000);
    a.receive(0, 1000);
    a.socket.close().unwrap();
    b.socket.close().unwrap();
    drop((fd, accepted, holder));
}
