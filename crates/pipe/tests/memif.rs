//! Clients of memif: hostile ones, and ones that sleep.

#[path = "oracle/memif.rs"]
mod oracle;

use self::oracle::{Client, Stand, Things, BUFFERS};
use pd_pipe::{Agent, Device, Direction, Made, Pipe, Route, Shape, Unit};
use proptest::prelude::*;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fcntl_setfl, OFlags};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::sync::atomic::{fence, AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// Flag of a ring: its reader polls.
const MASK_INT: u16 = 1;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_port_survives_any_client_of_memif(program in prop::collection::vec(any::<u8>(), 0..400)) {
        oracle::run(&program);
    }
}

/// Runs an agent with a port, beside `run`, which gets a pipe that sends there and the port's address.
fn beside_agent(run: impl FnOnce(&mut Pipe, &SocketAddrUnix)) {
    let Stand { port, address } = Stand::new();
    let mut agent = Agent::new().unwrap();
    let port = agent.add_device(Box::new(port)).unwrap();
    let (made, files, offer) =
        Made::new(Shape::new(Direction::Send, Unit::Frames, 32 << 10).unwrap()).unwrap();
    let id = agent.adopt(made, &Route::to(port)).unwrap();
    let mut pipe = Pipe::map(offer).unwrap();
    files.seal().unwrap();
    agent.start(id).unwrap();
    let stop = AtomicBool::new(false);
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| agent.run(&stop));
        let _stop = Stop(&stop);
        run(&mut pipe, &address);
    });
}

fn connected(address: &SocketAddrUnix, own: &Things) -> Client {
    let client = loop {
        match Stand::client(address) {
            Some(client) => break client,
            None => std::thread::yield_now(),
        }
    };
    client.shake(own, std::thread::yield_now);
    (0..64).for_each(|number| own.set(1, number, 256 << 32, (BUFFERS + number * 256) as u32));
    client
}

/// Sends a frame, and returns when the port has taken it. The client's ring has it some time later.
fn send(pipe: &mut Pipe) {
    pipe.send(&[7; 64], 0).unwrap();
    pipe.flush();
    pipe.wait_room(32 << 10, PATIENCE).unwrap();
}

#[test]
fn a_client_of_memif_that_sleeps_is_woken_by_frames() {
    beside_agent(|pipe, address| {
        let own = Things::new();
        let _client = connected(address, &own);
        let offered = AtomicU16::new(0);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
                let mut seen = 0u16;
                while seen < 2000 {
                    // The client polls, and then sleeps unless a last look finds a frame.
                    own.head(1, seen + 32, MASK_INT);
                    offered.store(seen + 32, Ordering::Release);
                    if own.tail(1) == seen {
                        own.head(1, seen + 32, 0);
                        fence(Ordering::SeqCst);
                        if own.tail(1) == seen {
                            let mut fds = [PollFd::new(&own.doorbell, PollFlags::IN)];
                            assert_eq!(poll(&mut fds, Some(&patience)), Ok(1), "not woken at {seen}");
                        }
                        let _ = rustix::io::read(&own.doorbell, &mut [0; 8]);
                    }
                    seen = own.tail(1);
                }
            });
            for number in 0..2000 {
                // Spaced out, so that both sides sleep, and in a row.
                if number % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
                // A frame without a buffer would be lost.
                while offered.load(Ordering::Acquire) <= number && !client.is_finished() {
                    std::thread::yield_now();
                }
                send(pipe);
            }
        });
    });
}

#[test]
fn a_client_of_memif_that_polls_is_not_woken() {
    beside_agent(|pipe, address| {
        let own = Things::new();
        let _client = connected(address, &own);
        own.head(1, 32, MASK_INT);
        (0..20).for_each(|_| send(pipe));
        let since = Instant::now();
        while own.tail(1) != 20 {
            assert!(since.elapsed() < PATIENCE, "{} frames of 20", own.tail(1));
            std::thread::yield_now();
        }
        assert_eq!(rustix::io::read(&own.doorbell, &mut [0; 8]), Err(Errno::AGAIN));
    });
}

/// A polled ring has the flag, and the ring of a sleeping port does not. After the change a client may have seen the old word.
#[test]
fn a_client_of_memif_need_not_ring_while_its_port_polls() {
    let (mut stand, own) = (Stand::new(), Things::new());
    let client = stand.connect().unwrap();
    client.shake(&own, || {
        stand.turn(|_| {});
    });
    let mut sent = 0;
    let mut send = |stand: &mut Stand| {
        own.set(0, usize::from(sent), 64 << 32, BUFFERS as u32);
        sent += 1;
        own.move_head(0, sent);
        let mut came = 0;
        stand.turn(|_| came += 1);
        assert_eq!((came, own.tail(0)), (1, sent));
    };
    assert_eq!((own.flags(0), stand.port.rest()), (0, false), "nothing has come");
    for _ in 0..3 {
        send(&mut stand);
        send(&mut stand);
        assert_eq!(own.flags(0), MASK_INT);
        assert!(stand.port.rest(), "another look is due");
        assert_eq!(own.flags(0), 0);
        assert!(!stand.turn(|_| {}) && !stand.port.rest(), "once");
        assert_eq!(own.flags(0), 0);
    }
}

/// A client that rings only on request loses no frame, whenever the agent sleeps.
#[test]
fn an_agent_that_sleeps_is_rung_for_by_a_client_of_memif_that_obeys_the_mask() {
    let Stand { port, address } = Stand::new();
    let mut agent = Agent::new().unwrap();
    let port = agent.add_device(Box::new(port)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                if !agent.turn() {
                    // Longer than the test waits.
                    agent.wait(2 * PATIENCE);
                }
            }
            agent.port_counts(port).frames_unbound
        });
        let own = Things::new();
        let client = connected(&address, &own);
        for sent in 1..=2000u16 {
            if sent % 100 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            own.set(0, usize::from(sent - 1), 64 << 32, BUFFERS as u32);
            own.move_head(0, sent);
            if own.flags(0) & MASK_INT == 0 {
                rustix::io::write(&own.far_doorbell, &1u64.to_ne_bytes()).unwrap();
            }
            let until = std::time::Instant::now() + PATIENCE;
            while own.tail(0).wrapping_add(32) < sent {
                assert!(std::time::Instant::now() < until, "the agent sleeps over frame {sent}");
                std::thread::yield_now();
            }
        }
        let until = std::time::Instant::now() + PATIENCE;
        while own.tail(0) != 2000 {
            assert!(std::time::Instant::now() < until, "the agent sleeps over the last frames");
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Release);
        drop(client);
        assert_eq!(runs.join().unwrap(), 2000);
    });
}

/// More clients than the port has threads fill their eventfd, make it blocking, and leave. The port goes on, and wakes the next one.
#[test]
fn eventfds_that_block_hold_up_neither_a_port_nor_its_next_client() {
    beside_agent(|pipe, address| {
        let mut kept = Vec::new();
        for _ in 0..12 {
            let own = Things::new();
            let client = connected(address, &own);
            own.head(1, 32, 0);
            for number in 0..20u64 {
                fcntl_setfl(&own.doorbell, OFlags::NONBLOCK).unwrap();
                if number % 2 == 1 {
                    let _ = rustix::io::read(&own.doorbell, &mut [0; 8]);
                }
                let _ = rustix::io::write(&own.doorbell, &(u64::MAX - 1).to_ne_bytes());
                fcntl_setfl(&own.doorbell, OFlags::empty()).unwrap();
                send(pipe);
            }
            drop(client);
            kept.push(own);
        }
        let own = Things::new();
        let _client = connected(address, &own);
        own.head(1, 32, 0);
        send(pipe);
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&own.doorbell, PollFlags::IN)], Some(&patience)), Ok(1));
    });
}
