//! Connections of the kernel whose bytes go by the fabric (`pd_client::core::twin`). They are made, claimed,
//! and passed between processes that hold the same socket, without a byte lost or doubled.
#[path = "twins/claims.rs"]
mod claims;
#[path = "twins/direct.rs"]
mod direct;
#[path = "twins/leaving.rs"]
mod leaving;
#[path = "twins/owners.rs"]
mod owners;
#[path = "twins/ring_ends.rs"]
mod ring_ends;

use pd_client::core::{ready, twin, Departure, Epoll, Left};
use pd_client::Shutdown;
use pd_tests::{alone, program_path, Random, TestDriver, TwinSide};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Unread bytes that a connection takes.
const ROOM: usize = 3_000_000;

/// Returns the driver of all tests of this binary: a process attaches once. Tests run one at a time, for they
/// count the remains.
fn driver() -> &'static TestDriver {
    static DRIVER: OnceLock<TestDriver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let driver = TestDriver::new();
        driver.attach_here();
        driver
    })
}

/// Makes a listener that takes twins. Waits until connections of earlier tests are over, so that rings have their
/// full size: these tests send unread bytes at once.
fn listener(at: &str) -> TcpListener {
    let driver = driver();
    let listener = TcpListener::bind(at).unwrap();
    twin::listen(listener.as_fd()).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let mut roomy = false;
    while !roomy {
        assert!(Instant::now() < until, "no connection takes {ROOM} bytes that nobody reads");
        driver.wait_for("earlier connections are over", |report| report.connections.is_empty());
        let (_fd, a, accepted) = connect(&listener);
        let _b = claim(&accepted).expect("a twin");
        a.socket.set_send_timeout(Some(Duration::from_millis(200))).unwrap();
        roomy = a.send_what_fits(0, ROOM) == ROOM;
    }
    driver.wait_for("the last one of them is over", |report| report.connections.is_empty());
    listener
}

/// Makes a socket that has a port and is not connected.
fn bound(to: SocketAddr) -> OwnedFd {
    use rustix::net::{bind, socket, AddressFamily, SocketType};
    let (family, any) = match to {
        SocketAddr::V4(_) => (AddressFamily::INET, "0.0.0.0:0"),
        SocketAddr::V6(_) => (AddressFamily::INET6, "[::]:0"),
    };
    let fd = socket(family, SocketType::STREAM, None).unwrap();
    bind(&fd, &any.parse::<SocketAddr>().unwrap()).unwrap();
    fd
}

/// Makes a connection of the kernel, its twin, and the accepted socket, unclaimed.
fn connect(listener: &TcpListener) -> (OwnedFd, TwinSide, TcpStream) {
    let to = listener.local_addr().unwrap();
    let fd = bound(to);
    let side = TwinSide::new(twin::connect(fd.as_fd(), to).unwrap(), 0);
    rustix::net::connect(&fd, &to).unwrap();
    let accepted = listener.accept().unwrap().0;
    (fd, side, accepted)
}

/// Claims the other end of it.
fn claim(accepted: &TcpStream) -> Option<TwinSide> {
    twin::claim(accepted.as_fd()).unwrap().map(|socket| TwinSide::new(socket, 1))
}

/// Another process that has inherited a socket.
pub struct Holder {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Holder {
    /// Starts a process that has not taken the socket.
    fn new(socket: &impl AsRawFd, side: u64) -> Self {
        let raw = socket.as_raw_fd();
        // Without close-on-exec, so that it is inherited under this number.
        // SAFETY: no memory is concerned.
        let inherited = unsafe { libc::dup(raw) };
        assert!(inherited >= 0);
        let mut command = Command::new(program_path("twin"));
        command.args([inherited.to_string(), side.to_string()]);
        let mut child = driver().spawn(&mut command);
        // SAFETY: made above.
        drop(unsafe { OwnedFd::from_raw_fd(inherited) });
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    fn say(&mut self, line: &str) {
        // In one piece: the process may end after reading it.
        self.input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) {
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        assert_eq!(answer, "ok\n");
    }

    /// Makes the process carry out a line; see the program `twin`.
    fn tell(&mut self, line: &str) {
        self.say(line);
        self.hear();
    }

    /// Kills it.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
