//! Twins that nobody has claimed: under another's name, many of one name, and many towards one listener.
use super::{stage, stage_for_anyone, Scene};
use pd_abi::layout::{path, socket_status};
use pd_abi::{Event, SocketId, TwinOperation};
use pd_tests::{bound, cookie_of, needs_root, program_path, Puppet, Raw};
use rustix::net;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::Ordering;

/// Twins that wait towards one listener, at most.
const UNCLAIMED_MAX: usize = pd_abi::limits::BACKLOG_MAX as usize;

/// Asks for something about a kernel socket and its twin.
fn ask(raw: &mut Raw, operation: TwinOperation, socket: impl AsFd, ends: (SocketAddr, SocketAddr)) -> Event {
    raw.call_about(operation, cookie_of(socket), [ends.0.into(), ends.1.into()])
}

/// Makes a client of this process that speaks for a listener of the kernel.
fn server(scene: &Scene) -> (Raw, TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let mut raw = Raw::attach(&scene.driver, 1);
    assert_eq!(ask(&mut raw, TwinOperation::Listen, &listener, (at, at)).errno, 0);
    (raw, listener, at)
}

/// Has a process of another user make twins towards a listener. Returns the process, and how many it has made.
fn crowd(scene: &Scene, at: SocketAddr, what: &str, uid: u32) -> (Puppet, usize) {
    let mut command = Command::new(program_path("attacker"));
    command.arg(scene.driver.socket()).args([what, &(UNCLAIMED_MAX + 1).to_string(), &uid.to_string()]);
    let mut crowd = Puppet::new(scene.driver.spawn(command.arg(at.to_string())));
    let line = crowd.line();
    let made = line.strip_prefix("made ").and_then(|count| count.parse().ok());
    (crowd, made.unwrap_or_else(|| panic!("{line}")))
}

/// A process may become a set-id program, whose sockets are not for its child that has the attach socket.
#[test]
fn a_process_that_has_become_another_program_proves_nothing() {
    needs_root("a process of another user");
    let scene = stage_for_anyone();
    let mut command = Command::new(program_path("attacker"));
    command.arg(scene.driver.socket()).args(["becomes", "1"]);
    let mut attacker = Puppet::new(scene.driver.spawn(&mut command));
    assert_eq!(attacker.line(), format!("before 0, after {}", libc::EOPNOTSUPP));
    attacker.close_input();
    attacker.finish();
    scene.end();
}

#[test]
fn one_user_leaves_others_room_for_twins_towards_a_listener() {
    needs_root("processes of other users");
    let scene = stage_for_anyone();
    let (mut server, listener, at) = server(&scene);
    let (first, made) = crowd(&scene, at, "unclaimed", 65_534);
    assert_eq!(made, UNCLAIMED_MAX / 2);
    let (second, made) = crowd(&scene, at, "unclaimed", 65_533);
    assert_eq!(made, UNCLAIMED_MAX / 4);
    let (own, local) = bound();
    let made = ask(&mut server, TwinOperation::Connect, &own, (local, at));
    assert_eq!(made.errno, 0, "the listener's own user");
    drop(own);
    // Twins of a client that has gone are no longer counted.
    drop(first);
    let others = |report: &pd_driver::admin::Report| report.connections.len() <= 2 + UNCLAIMED_MAX / 4;
    scene.driver.wait_for("the first user's are over", others);
    let (third, made) = crowd(&scene, at, "unclaimed", 65_532);
    assert!(made > UNCLAIMED_MAX / 4, "{made}");
    drop((second, third, server, listener));
    scene.end();
}

#[test]
fn twins_of_one_name_are_few() {
    needs_root("processes of other users");
    let scene = stage_for_anyone();
    let (server, listener, at) = server(&scene);
    let (crowd, made) = crowd(&scene, at, "namesakes", 65_534);
    assert_eq!(made, 8);
    drop((crowd, server, listener));
    scene.end();
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

/// A process attaches, and makes sockets in a network namespace that it enters afterwards: with the addresses of another's.
#[test]
fn sockets_of_a_namespace_that_a_process_has_entered_since_prove_nothing() {
    needs_root("a network namespace");
    let scene = stage();
    let (mut server, listener, at) = server(&scene);
    let mut thief = Raw::attach(&scene.driver, 1);
    let elsewhere = std::thread::scope(|scope| {
        let listen = || {
            // SAFETY: of this thread alone, which ends.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            TcpListener::bind(at).expect("a port of a namespace of its own")
        };
        scope.spawn(listen).join().expect("a socket")
    });
    let ((socket, local), mut client) = (bound(), Raw::attach(&scene.driver, 1));
    assert_eq!(ask(&mut client, TwinOperation::Connect, &socket, (local, at)).errno, 0);
    net::connect(&socket, &at).unwrap();
    let accepted = listener.accept().unwrap().0;
    // With the addresses of the connection, and a socket of its own.
    for operation in [TwinOperation::Claim, TwinOperation::Take] {
        assert_ne!(ask(&mut thief, operation, &elsewhere, (at, local)).errno, 0, "{operation:?}");
    }
    assert_eq!(ask(&mut server, TwinOperation::Claim, &accepted, (at, local)).errno, 0);
    drop((elsewhere, socket, accepted, client, thief, server, listener));
    scene.end();
}
