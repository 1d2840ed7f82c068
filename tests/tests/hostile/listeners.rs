//! Listeners of another user in the same network namespace: who says that they are its own gets none of their connections.
use super::{stage_for_anyone, Scene};
use pd_abi::{Address, Operation, Request, TwinOperation};
use pd_tests::{bound, cookie_of, needs_root, program_path, Puppet, Raw};
use rustix::net::sockopt::socket_cookie;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;

const ANYWHERE: &str = "127.0.0.1:0";

/// Starts a client of another user, which does as it is told.
fn claimant(scene: &Scene) -> Puppet {
    let mut command = Command::new(program_path("claimant"));
    command.arg(scene.driver.socket()).arg("65534");
    let mut claimant = Puppet::new(scene.driver.spawn(&mut command));
    assert_eq!(claimant.answer().unwrap(), "attached");
    claimant
}

fn ask(puppet: &mut Puppet, command: String) -> Result<String, i32> {
    puppet.tell(&command);
    puppet.answer().map_err(|(errno, _)| errno)
}

/// Registers a listener. Returns the errno.
fn listens(raw: &mut Raw, listener: &TcpListener, at: SocketAddr) -> u32 {
    raw.call_about(TwinOperation::Listen, cookie_of(listener), [at.into(), Address::NONE]).errno
}

/// Asks for a twin towards an address. Returns the errno.
fn connect_twin(raw: &mut Raw, to: SocketAddr) -> i32 {
    let (socket, local) = bound();
    raw.call_about(TwinOperation::Connect, cookie_of(&socket), [local.into(), to.into()]).errno as i32
}

fn connect_natively(raw: &mut Raw, to: SocketAddr) -> i32 {
    let socket = raw.open(0);
    raw.call(0, Request::new(Operation::Connect, socket, 0).with_address(to.into())).errno as i32
}

/// Checks that the kernel brings a listener its connections.
fn expect_served(listener: &TcpListener) {
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut accepted = listener.accept().unwrap().0;
    client.write_all(b"whose?").unwrap();
    let mut came = [0; 6];
    accepted.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"whose?");
}

#[test]
fn a_listener_is_registered_by_who_holds_it_alone() {
    needs_root("a process of another user");
    let scene = stage_for_anyone();
    let (mut thief, mut client) = (claimant(&scene), Raw::attach(&scene.driver, 1));
    for anywhere in [ANYWHERE, "0.0.0.0:0"] {
        let innocent = TcpListener::bind(anywhere).unwrap();
        let (at, cookie) = (innocent.local_addr().unwrap(), socket_cookie(&innocent).unwrap());
        let to = SocketAddr::from(([127, 0, 0, 1], at.port()));
        let before = scene.driver.metrics().listeners_refused;
        // By no socket, by one that is not TCP, by the other's own cookie, and by a listener elsewhere.
        assert_eq!(ask(&mut thief, format!("says {at} 1")), Err(libc::EADDRNOTAVAIL));
        assert_eq!(ask(&mut thief, format!("says {at} own")), Err(libc::EADDRNOTAVAIL));
        assert_eq!(ask(&mut thief, format!("says {at} {cookie}")), Err(libc::EACCES));
        let own: SocketAddr = ask(&mut thief, format!("kernel {ANYWHERE}")).unwrap().parse().unwrap();
        assert_eq!(ask(&mut thief, format!("says {at} own")), Err(libc::EADDRNOTAVAIL));
        assert_eq!(ask(&mut thief, format!("says {at} {cookie}")), Err(libc::EACCES));
        assert_eq!(scene.driver.metrics().listeners_refused, before + 5);
        assert_eq!(connect_twin(&mut client, to), libc::ECONNREFUSED, "nobody takes twins there");
        expect_served(&innocent);
        // A holder registers its own, more than once if need be.
        assert_eq!(ask(&mut thief, format!("says {own} own")), Ok(String::new()));
        assert_eq!(ask(&mut thief, format!("says {own} own")), Ok(String::new()));
        assert_eq!((listens(&mut client, &innocent, at), connect_twin(&mut client, to)), (0, 0));
        ask(&mut thief, "shut".to_owned()).unwrap();
    }
    drop((thief, client));
    scene.end();
}

/// A server's worker has another user than the listener that it was given.
#[test]
fn a_listener_of_another_user_that_a_process_holds_is_its_own() {
    needs_root("a process of another user");
    let scene = stage_for_anyone();
    let mut client = Raw::attach(&scene.driver, 1);
    let listener = TcpListener::bind(ANYWHERE).unwrap();
    let at = listener.local_addr().unwrap();
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let mut worker = claimant(&scene);
    // Natively only when it is proved.
    assert_eq!(ask(&mut worker, format!("takes {at}")), Err(libc::EADDRINUSE));
    ask(&mut worker, format!("inherited {}", listener.as_raw_fd())).unwrap();
    ask(&mut worker, format!("says {at} own")).unwrap();
    assert_eq!(connect_twin(&mut client, at), 0);
    drop(worker);
    let mut worker = claimant(&scene);
    ask(&mut worker, format!("inherited {}", listener.as_raw_fd())).unwrap();
    ask(&mut worker, format!("says {at} own")).unwrap();
    ask(&mut worker, format!("takes {at}")).unwrap();
    assert_eq!(connect_natively(&mut client, at), 0);
    drop((worker, client, listener));
    scene.end();
}

/// A process may keep its word, and close the listener, before another user's listener has the address.
#[test]
fn a_registration_says_nothing_of_another_users_listener() {
    needs_root("a process of another user");
    let scene = stage_for_anyone();
    let (mut thief, mut client) = (claimant(&scene), Raw::attach(&scene.driver, 1));
    let at: SocketAddr = ask(&mut thief, format!("kernel {ANYWHERE}")).unwrap().parse().unwrap();
    ask(&mut thief, format!("says {at} own")).unwrap();
    assert_eq!(connect_twin(&mut client, at), 0);
    ask(&mut thief, "shut".to_owned()).unwrap();
    assert_eq!(connect_twin(&mut client, at), libc::ECONNREFUSED, "nobody listens");
    let innocent = TcpListener::bind(at).unwrap();
    assert_eq!(connect_twin(&mut client, at), libc::ECONNREFUSED);
    expect_served(&innocent);
    assert_eq!((listens(&mut client, &innocent, at), connect_twin(&mut client, at)), (0, 0));
    drop((thief, client));
    scene.end();
}

#[test]
fn a_native_listener_takes_no_address_of_another_users() {
    needs_root("a process of another user");
    let scene = stage_for_anyone();
    let (mut thief, mut client) = (claimant(&scene), Raw::attach(&scene.driver, 1));
    for anywhere in [ANYWHERE, "0.0.0.0:0", "[::]:0"] {
        let Ok(innocent) = TcpListener::bind(anywhere) else {
            println!("SKIPPED: no sockets at {anywhere}");
            continue;
        };
        let at = SocketAddr::from(([127, 0, 0, 1], innocent.local_addr().unwrap().port()));
        assert_eq!(ask(&mut thief, format!("takes {at}")), Err(libc::EADDRINUSE), "{anywhere}");
        assert_eq!(connect_natively(&mut client, at), libc::ECONNREFUSED, "the kernel is asked");
        expect_served(&innocent);
    }
    // The native listener is there first, at that address or at all.
    for wide in [false, true] {
        let free = TcpListener::bind(ANYWHERE).unwrap();
        let at = free.local_addr().unwrap();
        drop(free);
        let taken = if wide { SocketAddr::from(([0; 4], at.port())) } else { at };
        ask(&mut thief, format!("takes {taken}")).unwrap();
        assert_eq!(connect_natively(&mut client, at), 0);
        assert_eq!(ask(&mut thief, "took".to_owned()), Ok("1".to_owned()));
        let innocent = TcpListener::bind(at).unwrap();
        assert_eq!(connect_natively(&mut client, at), libc::ECONNREFUSED);
        assert_eq!(ask(&mut thief, "took".to_owned()), Ok("1".to_owned()));
        expect_served(&innocent);
    }
    // A user's own listener of the kernel, as the client library has beside each.
    let at = ask(&mut thief, format!("kernel {ANYWHERE}")).unwrap();
    ask(&mut thief, format!("takes {at}")).unwrap();
    assert_eq!(connect_natively(&mut client, at.parse().unwrap()), 0);
    drop((thief, client));
    scene.end();
}
