//! Twins that nobody has claimed, under another's name.
use super::{stage, Scene};
use pd_abi::layout::{path, socket_status};
use pd_abi::{Event, EventKind, Frame, FrameKind, SocketId, TwinOperation, TwinRequest};
use pd_tests::{send_frame, Raw};
use rustix::net::{self, sockopt::socket_cookie};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const TAG: u32 = 4711;

/// Asks for something about a kernel socket and its twin, and waits for the answer.
fn ask(
    raw: &mut Raw,
    operation: TwinOperation,
    socket: impl AsFd,
    (local, peer): (SocketAddr, SocketAddr),
) -> Event {
    let request = TwinRequest {
        operation: operation as u32,
        tag: TAG,
        descriptor: socket.as_fd().as_raw_fd() as u32,
        cookie: socket_cookie(&socket).unwrap(),
        local: local.into(),
        peer: peer.into(),
    };
    send_frame(&raw.socket, &Frame::new(FrameKind::Twin).with_twin(&request)).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match raw.event(0) {
            Some(event) if event.kind == EventKind::Answer as u8 && event.tag == TAG => return event,
            _ => assert!(Instant::now() < until, "no answer to {request:?}"),
        }
    }
}

/// Makes a client of this process that speaks for a listener of the kernel.
fn server(scene: &Scene) -> (Raw, TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let mut raw = Raw::attach(&scene.driver, 1);
    assert_eq!(ask(&mut raw, TwinOperation::Listen, &listener, (at, at)).errno, 0);
    (raw, listener, at)
}

/// Makes a socket that has a port and is not connected. Returns it with its address.
fn bound() -> (OwnedFd, SocketAddr) {
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let local = net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, local)
}

/// A client says of a socket that is not connected yet what the kernel cannot confirm: from which port it is going to connect.
#[test]
fn a_twin_under_anothers_name_is_not_found() {
    let scene = stage();
    let (mut server, listener, to) = server(&scene);
    // The connection has no twin; has one that was made later; has none, and is closed before it is accepted.
    for (has_twin, is_closed) in [(false, false), (true, false), (false, true)] {
        let mut thief = Raw::attach(&scene.driver, 1);
        let ((socket, local), (another, _)) = (bound(), bound());
        assert_eq!(ask(&mut thief, TwinOperation::Connect, &another, (local, to)).errno, 0);
        let mut client = Raw::attach(&scene.driver, 1);
        let made = has_twin.then(|| ask(&mut client, TwinOperation::Connect, &socket, (local, to)));
        net::connect(&socket, &to).unwrap();
        let held = (!is_closed).then_some(socket);
        let accepted = listener.accept().unwrap().0;
        let claimed = ask(&mut server, TwinOperation::Claim, &accepted, (to, local));
        let Some(made) = made else {
            assert_eq!(claimed.errno as i32, libc::ENOENT, "closed: {is_closed}");
            continue;
        };
        assert_eq!((made.errno, claimed.errno), (0, 0));
        let at = Raw::socket_word(SocketId(made.socket), socket_status::PATH);
        assert_eq!(client.status.load_u32(at, Ordering::Acquire), path::CLAIMED);
        drop(held);
    }
    drop((server, listener));
    scene.end();
}
