//! Claims: what is found of a connection before it is claimed, and by whom.
use super::*;

#[test]
fn who_speaks_for_a_listener_later_finds_what_was_made_before() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let (_fd, a, accepted) = connect(&listener);
    // Without close-on-exec.
    // SAFETY: no memory is concerned; the descriptor is nobody else's.
    let inherited = unsafe { OwnedFd::from_raw_fd(libc::dup(listener.as_raw_fd())) };
    let mut b = Holder::new(&accepted, 1);
    b.tell(&format!("claim {}", inherited.as_raw_fd()));
    a.send(0, 1000);
    b.tell("receive 0 1000");
    b.tell("send 0 1000");
    a.receive(0, 1000);
    assert!(claim(&accepted).is_none(), "it is claimed");
    drop(inherited);
    b.kill();
}

/// Listeners that are bound to no address, and those that share a port, among which the kernel chooses.
#[test]
fn listeners_of_any_address_and_of_a_shared_port_have_twins() {
    let _alone = alone();
    driver();
    for at in ["0.0.0.0:0", "[::]:0"] {
        let Ok(listener) = TcpListener::bind(at) else {
            println!("SKIPPED: no sockets at {at}");
            continue;
        };
        twin::listen(listener.as_fd()).unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
        let fd = bound(to);
        let a = TwinSide::new(twin::connect(fd.as_fd(), to).unwrap(), 0);
        rustix::net::connect(&fd, &to).unwrap();
        let b = claim(&listener.accept().unwrap().0).expect("a twin");
        a.send(0, 3000);
        b.receive(0, 3000);
    }
    let mut at = SocketAddr::from(([127, 0, 0, 1], 0));
    let listeners: Vec<OwnedFd> = (0..8)
        .map(|_| {
            let socket =
                rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
            let socket = socket.unwrap();
            rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
            rustix::net::bind(&socket, &at).unwrap();
            rustix::net::listen(&socket, 8).unwrap();
            at = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
            twin::listen(socket.as_fd()).unwrap();
            socket
        })
        .collect();
    for _ in 0..8 {
        let fd = bound(at);
        twin::connect(fd.as_fd(), at).unwrap().close().unwrap();
    }
    listeners.iter().for_each(|socket| twin::unlisten(socket.as_fd()).unwrap());
}

#[test]
fn what_was_sent_before_the_claim_arrives() {
    let _alone = alone();
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(()) = TcpListener::bind(at).map(drop) else {
            println!("SKIPPED: no sockets at {at}");
            continue;
        };
        let listener = listener(at);
        let to = listener.local_addr().unwrap();
        let fd = bound(to);
        let a = TwinSide::new(twin::connect(fd.as_fd(), to).unwrap(), 0);
        a.send(0, 100_000);
        rustix::net::connect(&fd, &to).unwrap();
        a.send(100_000, 5000);
        let accepted = listener.accept().unwrap().0;
        assert!(!a.socket.has_answer());
        let b = claim(&accepted).expect("a twin");
        assert!(a.socket.has_answer(), "of the claim, before anything is sent");
        b.receive(0, 105_000);
        b.send(0, 70_000);
        a.receive(0, 70_000);
        a.socket.shutdown(Shutdown::Write).unwrap();
        b.expect_end();
        assert_eq!(a.socket.peer_addr().unwrap(), to);
        assert_eq!(b.socket.peer_addr().unwrap(), accepted.peer_addr().unwrap());
        drop(accepted);
        b.socket.close().unwrap();
        a.expect_end();
        assert!(twin::claim(TcpStream::connect(to).unwrap().as_fd()).unwrap().is_none(), "it connected");
    }
}

#[test]
fn an_end_before_the_claim_is_learned() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    // No more to send; still receives.
    let (_fd, a, accepted) = connect(&listener);
    a.socket.shutdown(Shutdown::Write).unwrap();
    let b = claim(&accepted).expect("a twin");
    b.expect_end();
    b.send(0, 3000);
    a.receive(0, 3000);
    // Closed with bytes on their way.
    let (fd, a, accepted) = connect(&listener);
    a.send(0, 40_000);
    drop(fd);
    a.socket.close().unwrap();
    let b = claim(&accepted).expect("a twin");
    b.receive(0, 40_000);
    b.expect_end();
}

#[test]
fn plain_and_withdrawn_connections_have_no_twin() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let to = listener.local_addr().unwrap();
    let plain = TcpStream::connect(to).unwrap();
    assert!(claim(&listener.accept().unwrap().0).is_none());
    assert!(twin::take(plain.as_fd()).unwrap().is_none());

    let (fd, a, accepted) = connect(&listener);
    twin::withdraw(&a.socket).unwrap();
    assert!(claim(&accepted).is_none());
    a.socket.close().unwrap();
    assert!(twin::take(fd.as_fd()).unwrap().is_none(), "though the kernel's socket is held");

    let (_fd, a, accepted) = connect(&listener);
    let _b = claim(&accepted).expect("a twin");
    assert_eq!(twin::withdraw(&a.socket).unwrap_err().errno(), libc::EISCONN);

    twin::unlisten(listener.as_fd()).unwrap();
    let refused = twin::connect(bound(to).as_fd(), to).unwrap_err();
    assert_eq!(refused.errno(), libc::ECONNREFUSED);
}

#[test]
fn who_does_not_hold_the_socket_gets_nothing() {
    let _alone = alone();
    let listener = listener("127.0.0.1:0");
    let (fd, _a, accepted) = connect(&listener);
    let b = claim(&accepted).expect("a twin");
    // A socket of the same process, but another.
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpStream::connect(elsewhere.local_addr().unwrap()).unwrap();
    assert!(twin::claim(other.as_fd()).unwrap().is_none());
    assert!(twin::take(other.as_fd()).unwrap().is_none());
    assert_eq!(twin::take(fd.as_fd()).unwrap_err().errno(), libc::EALREADY);
    // Another process that has inherited the other.
    let mut command = Command::new(program_path("twin"));
    let stranger = driver().spawn(command.args(["0", "1", "take"]));
    assert!(!stranger.wait_with_output().unwrap().status.success());
    b.send(0, 100);
}
