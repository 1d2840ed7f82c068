//! Connections of the kernel whose bytes go by the fabric (`pd_client::core::twin`). They are made, claimed,
//! and passed between processes that hold the same socket, without a byte lost or doubled.
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
pub fn driver() -> &'static TestDriver {
    static DRIVER: OnceLock<TestDriver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let driver = TestDriver::new();
        driver.attach_here();
        driver
    })
}

/// Makes a listener that takes twins. Waits until connections of earlier tests are over, so that rings have their
/// full size: these tests send unread bytes at once.
pub fn listener(at: &str) -> TcpListener {
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
pub fn connect(listener: &TcpListener) -> (OwnedFd, TwinSide, TcpStream) {
    let to = listener.local_addr().unwrap();
    let fd = bound(to);
    let side = TwinSide::new(twin::connect(fd.as_fd(), to).unwrap(), 0);
    rustix::net::connect(&fd, &to).unwrap();
    let accepted = listener.accept().unwrap().0;
    (fd, side, accepted)
}

/// Claims the other end of it.
pub fn claim(accepted: &TcpStream) -> Option<TwinSide> {
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
    pub fn new(socket: &impl AsRawFd, side: u64) -> Self {
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
    pub fn tell(&mut self, line: &str) {
        self.say(line);
        self.hear();
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

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
        assert!(!a.socket.has_heard());
        let b = claim(&accepted).expect("a twin");
        assert!(a.socket.has_heard(), "of the claim, before anything is sent");
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
