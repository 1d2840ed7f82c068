//! Sides that step aside: what still comes on the fabric, and the mark where it ends.
use super::*;

/// A side that steps aside learns the end of bytes that the peer has sent before it could know. The peer learns of it, and
/// neither sends more. Sent bytes arrive, and then the stream ends with the rest elsewhere.
#[test]
fn who_steps_aside_knows_what_still_comes() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let (fd, a, accepted) = connect(&listener);
    let refused = a.socket.step_aside(Departure::Marked).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOTCONN, "nobody has claimed it");
    a.send(0, 1000);
    let b = claim(&accepted).expect("a twin");
    b.send(0, 70_000);
    b.receive(0, 1000);
    assert!(!a.socket.sends_elsewhere() && !b.socket.sends_elsewhere());
    let left = b.socket.step_aside(Departure::Unmarked).unwrap();
    assert_eq!(left, Left { owed: 1000, unmarked: true, marks: true });
    assert!(a.socket.sends_elsewhere());
    let elsewhere = |side: &TwinSide| side.socket.recv(1).unwrap_err().errno();
    let refused = |side: &TwinSide| side.socket.send_filled(1, &mut |_, _| Ok(1)).unwrap_err().errno();
    assert_eq!([refused(&a), refused(&b)], [pd_client::core::ELSEWHERE; 2]);
    // The first to leave also decides for the other one, whose own attempt comes too late.
    let left = a.socket.step_aside(Departure::Unmarked).unwrap();
    assert_eq!(left, Left { owed: 70_000, unmarked: false, marks: false });
    a.receive(0, 70_000);
    assert_eq!([elsewhere(&a), elsewhere(&b)], [pd_client::core::ELSEWHERE; 2]);
    assert_eq!([a.socket.take_error().unwrap(), b.socket.take_error().unwrap()], [0; 2]);
    // Holders of the kernel's sockets are not waited for.
    a.socket.close_left().unwrap();
    b.socket.close_left().unwrap();
    driver().wait_for("the connection is over", |report| report.connections.is_empty());
    drop((fd, accepted));
}

/// A side that has shut its sending down still learns that its peer leaves: a mark of the peer's may lie in the kernel.
#[test]
fn a_side_that_sends_no_more_hears_that_its_peer_steps_aside() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let (fd, a, accepted) = connect(&listener);
    let b = claim(&accepted).expect("a twin");
    b.send(0, 1000);
    b.socket.shutdown(Shutdown::Write).unwrap();
    a.receive(0, 1000);
    a.expect_end();
    // The driver forgets a flow at a tick at the latest.
    std::thread::sleep(Duration::from_millis(300));
    let left = a.socket.step_aside(Departure::Marked).unwrap();
    // All that comes has come. On the direct path the driver still knows how much that was.
    assert!(left.owed <= 1000 && !left.unmarked && left.marks, "{left:?}");
    assert!(b.socket.sends_elsewhere());
    assert_eq!(b.socket.recv(1).unwrap_err().errno(), pd_client::core::ELSEWHERE);
    let left = b.socket.step_aside(Departure::Marked).unwrap();
    assert!(left.marks);
    a.socket.close_left().unwrap();
    b.socket.close_left().unwrap();
    driver().wait_for("the connection is over", |report| report.connections.is_empty());
    drop((fd, accepted));
}

/// A process may close a side that has left, and leave it to another one. That takes it though the peer has received all and has nothing of it
/// left, and learns how far it is.
#[test]
fn a_side_that_has_left_waits_for_who_holds_its_socket() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    // On the direct path its flows are there as long as somebody may want it.
    driver().apply("path = \"offloaded\"");
    let (fd, a, accepted) = connect(&listener);
    a.send(0, 1000);
    let b = claim(&accepted).expect("a twin");
    b.receive(0, 1000);
    b.socket.step_aside(Departure::Unmarked).unwrap();
    a.socket.step_aside(Departure::Unmarked).unwrap();
    // The driver forgets flows at a tick at the latest.
    std::thread::sleep(Duration::from_millis(300));
    b.socket.close().unwrap();
    a.socket.close_left().unwrap();
    let again = TwinSide::take(accepted.as_fd(), 1).expect("a twin");
    assert!(again.socket.is_taken_aside());
    let left = again.socket.step_aside(Departure::Marked).unwrap();
    assert!(left.unmarked && !left.marks, "{left:?}");
    assert_eq!(again.socket.recv(1).unwrap_err().errno(), pd_client::core::ELSEWHERE);
    again.socket.close_left().unwrap();
    driver().wait_for("the connection is over", |report| report.connections.is_empty());
    driver().apply("");
    drop((fd, accepted));
}

/// A side that has shut both directions knows that its peer's stream is over. The peer's own end is one more edge all the same.
#[test]
fn the_end_of_a_stream_that_nobody_receives_is_an_edge() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    for closes in [true, false] {
        let (fd, a, accepted) = connect(&listener);
        let b = claim(&accepted).expect("a twin");
        b.socket.shutdown(Shutdown::Both).unwrap();
        let epoll = Epoll::new();
        epoll.add_as(&b.socket, 0, ready::RDHUP | ready::EDGE, 7).unwrap();
        let next = |timeout| {
            let mut found = 0;
            epoll.wait(1, Some(timeout), &mut |events, _| found = events).unwrap();
            found & (ready::RDHUP | ready::HUP)
        };
        assert_eq!(next(Duration::ZERO), ready::RDHUP | ready::HUP);
        assert_eq!(next(Duration::from_millis(20)), 0);
        // Its end waits for whoever has the kernel's socket.
        drop(fd);
        match closes {
            true => a.socket.close().unwrap(),
            false => a.socket.shutdown(Shutdown::Write).unwrap(),
        }
        assert_eq!(next(Duration::from_secs(20)), ready::RDHUP | ready::HUP, "closes: {closes}");
        if !closes {
            a.socket.close().unwrap();
        }
        drop(accepted);
        b.socket.close().unwrap();
    }
}

/// A single process takes the mark off, and never one whose end has gone to another. Its flows were over before, so that none brings it the news.
#[test]
fn one_process_claims_the_mark() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    driver().apply("path = \"offloaded\"");
    let (fd, a, accepted) = connect(&listener);
    let b = claim(&accepted).expect("a twin");
    a.socket.step_aside(Departure::Unmarked).unwrap();
    assert!(!b.socket.step_aside(Departure::Marked).unwrap().unmarked);
    // The driver forgets flows at a tick at the latest.
    std::thread::sleep(Duration::from_millis(300));
    let mut holder = Holder::new(&accepted, 1);
    holder.tell("take");
    assert_eq!(b.socket.claim_mark().unwrap_err().errno(), libc::ESTALE);
    // The driver's word for the previous process follows.
    let limit = Instant::now() + Duration::from_secs(10);
    while b.socket.check_present().is_ok() {
        assert!(Instant::now() < limit, "its line does not say that the end has gone");
        std::thread::sleep(Duration::from_millis(1));
    }
    holder.kill();
    let again = TwinSide::take(accepted.as_fd(), 1).expect("a twin");
    assert!(!again.socket.step_aside(Departure::Marked).unwrap().unmarked);
    assert!(again.socket.claim_mark().unwrap());
    assert!(!again.socket.claim_mark().unwrap());
    assert!(again.socket.step_aside(Departure::Marked).unwrap().unmarked);
    // The other side has asked for none.
    assert!(!a.socket.claim_mark().unwrap());
    again.socket.close_left().unwrap();
    a.socket.close_left().unwrap();
    driver().wait_for("the connection is over", |report| report.connections.is_empty());
    driver().apply("");
    drop((fd, accepted));
}

/// An end that cannot step aside is as shut as before.
#[test]
fn an_end_that_cannot_step_aside_stays_shut() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let (fd, a, accepted) = connect(&listener);
    a.socket.shutdown(Shutdown::Write).unwrap();
    assert_eq!(
        a.socket.step_aside(Departure::Marked).unwrap_err().errno(),
        libc::ENOTCONN,
        "nobody has claimed it"
    );
    let refused = a.socket.send_filled(1, &mut |_, _| Ok(1)).unwrap_err();
    assert_eq!(refused.errno(), libc::EPIPE);
    drop((fd, accepted));
}
