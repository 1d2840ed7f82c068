//! As many pipes as a tenant may have, and as the tenants' shares let a driver have.
use super::*;
use pd_tests::{needs_root, own_files};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use std::collections::{BTreeSet, HashMap};
use std::thread;

const EACH: u16 = 240;
/// Pipes of the shares: half of 1,024, half of the rest, and so on.
const ALL: u16 = 1023;
/// Users that it takes.
const USERS: u32 = 10;
/// First of these.
const USER: u32 = 61_100;
/// Pipes that share one flow, and connections that a hash spreads over them.
const SPREAD: u16 = 8;
const CONNECTIONS: u16 = 64;

fn flow(port: u16) -> Flow {
    Flow { protocol: 17, ports: [0, port], ..Flow::default() }
}

/// Makes a frame of UDP.
fn frame(port: u16, round: u8) -> [u8; 64] {
    let mut frame = [round; 64];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[20..22].fill(0);
    frame[23] = 17;
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame
}

/// Opens a client's pipes, each with a flow of its own.
fn open(stand: &Stand, first: u16) -> (Raw, Vec<pd_pipe::Pipe>) {
    let mut raw = Raw::attach(&stand.driver, 1);
    let pipes = (first..first + EACH).map(|port| {
        let options =
            Options { ring_bytes: 32 << 10, flow: flow(port), ..Options::new(Direction::Receive, "wire.1") };
        let (number, offer) = ask_for(&mut raw, &options).unwrap();
        let pipe = pd_pipe::Pipe::map(offer).unwrap();
        tell(&mut raw, FrameKind::PipeMapped, number, FrameKind::Ready).unwrap();
        pipe
    });
    let pipes = pipes.collect();
    (raw, pipes)
}

#[test]
fn many_pipes_have_their_flows_while_half_of_them_die_and_leave_nothing() {
    let stand = Stand::new(&[("wire", PortSpec::Link)]);
    let (files, memory) = (own_files().len(), stand.driver.report().memory_used_bytes);
    {
        let mut sender = stand.open(&Options::new(Direction::Send, "wire.0")).unwrap();
        let (_stays, mut pipes) = open(&stand, 1);
        let other = open(&stand, 1 + EACH);
        let mut rounds = 0..;
        let mut exchange = |pipes: &mut Vec<pd_pipe::Pipe>| {
            let round = rounds.next().unwrap();
            for port in 1..=EACH {
                sender.pipe.send(&frame(port, round), 0).unwrap();
                sender.pipe.flush();
            }
            for (port, pipe) in (1..).zip(pipes) {
                pipe.wait(PATIENCE).unwrap();
                let mut frames = pipe.frames().unwrap();
                assert_eq!(frames.next().unwrap().bytes(), frame(port, round), "pipe {port}");
                assert!(frames.next().is_none());
            }
        };
        exchange(&mut pipes);
        drop(other);
        exchange(&mut pipes);
        stand.wait_for("half of the pipes are gone", |report| report.pipes.len() == 1 + usize::from(EACH));
        exchange(&mut pipes);
        // Their flows are free again.
        drop(open(&stand, 1 + EACH));
        exchange(&mut pipes);
        assert_eq!(stand.port("wire.1").frames_unbound, 0);
    }
    stand.settle(0, memory);
    stand.driver.wait_for("descriptors are closed", |_| own_files().len() <= files);
}

/// Opens a user's pipes until the user has its share, each with the flow of the next number. Adds a client for each 256.
fn open_share(stand: &Stand, user: u32, pipes: &mut Vec<pd_pipe::Pipe>, raws: &mut Vec<Raw>) {
    loop {
        // The kernel tells the driver the user of the thread that connects.
        let attach = || {
            let id = Uid::from_raw(user);
            set_thread_res_uid(id, id, id).unwrap();
            Raw::attach(&stand.driver, 1)
        };
        let mut raw = thread::scope(|scope| scope.spawn(attach).join().unwrap());
        let refused = loop {
            let number = pipes.len() as u16;
            let shared = Flow { protocol: 6, ..Flow::default() };
            let flow = if number < SPREAD { shared } else { flow(number) };
            let options =
                Options { ring_bytes: 32 << 10, flow, ..Options::new(Direction::Receive, "wire.1") };
            match ask_for(&mut raw, &options) {
                Ok((number, offer)) => {
                    pipes.push(pd_pipe::Pipe::map(offer).unwrap());
                    tell(&mut raw, FrameKind::PipeMapped, number, FrameKind::Ready).unwrap();
                }
                Err(refused) => break refused,
            }
        };
        raws.push(raw);
        assert_eq!(refused.errno as i32, libc::EMFILE, "{}", refused.reason());
        if !refused.reason().contains("a client has 256 pipes") {
            assert!(refused.reason().contains("share of the driver's 1024 pipes"), "{}", refused.reason());
            return;
        }
    }
}

/// Makes a frame of a connection that a hash spreads.
fn spread(connection: u16, round: u8) -> [u8; 64] {
    let mut frame = frame(9, round);
    frame[23] = 6;
    frame[26..34].fill(10);
    frame[34..36].copy_from_slice(&connection.to_be_bytes());
    frame
}

/// All pipes of all users' shares at once: each receives the frames of its flow, all of them, in order and unchanged, and no other's.
#[test]
fn as_many_pipes_as_the_shares_let_receive_their_own_frames_alone() {
    needs_root("pipes of several users");
    let stand = Stand::new(&[("wire", PortSpec::Link)]);
    let mut sender = stand.open(&Options::new(Direction::Send, "wire.0")).unwrap();
    let (mut pipes, mut raws) = (Vec::new(), Vec::new());
    for user in USER..USER + USERS {
        open_share(&stand, user, &mut pipes, &mut raws);
    }
    // The sender is a pipe of another user.
    assert_eq!(pipes.len() + 1, usize::from(ALL), "pipes of {} clients", raws.len());
    let mut homes = HashMap::new();
    for round in 0..3 {
        let numbers = SPREAD..pipes.len() as u16;
        // Two of a kind, one behind all the others.
        for half in [2 * round, 2 * round + 1] {
            let own = numbers.clone().map(|number| frame(number, half));
            for bytes in own.chain((0..CONNECTIONS).map(|connection| spread(connection, half))) {
                while sender.pipe.send(&bytes, 0).is_err() {
                    sender.pipe.wait_room(64, PATIENCE).unwrap();
                }
            }
        }
        sender.pipe.flush();
        for number in numbers {
            let pipe = &mut pipes[usize::from(number)];
            let wished = [2 * round, 2 * round + 1].map(|half| frame(number, half).to_vec());
            assert_eq!(received(pipe, 2), wished, "pipe {number}");
        }
        receive_spread(&mut pipes[..SPREAD.into()], &mut homes, 2 * CONNECTIONS);
    }
    let used: BTreeSet<usize> = homes.values().map(|(home, _)| *home).collect();
    assert_eq!(used.len(), usize::from(SPREAD), "pipes that a hash chooses");
    assert_eq!(stand.port("wire.1").frames_unbound, 0);
    drop((sender, pipes, raws));
    stand.settle(0, 0);
}

/// Receives `count` frames of connections, of which each keeps to its pipe and its order. `homes`: that pipe and the number of frames so far.
fn receive_spread(pipes: &mut [pd_pipe::Pipe], homes: &mut HashMap<u16, (usize, u8)>, count: u16) {
    let (start, mut left) = (Instant::now(), count);
    while left > 0 {
        assert!(start.elapsed() < PATIENCE, "{left} frames are missing");
        for (place, pipe) in pipes.iter_mut().enumerate() {
            let Ok(mut frames) = pipe.frames() else { continue };
            while let Some(frame) = frames.next() {
                let connection = u16::from_be_bytes(*frame.bytes()[34..].first_chunk().unwrap());
                let (home, number) = homes.entry(connection).or_insert((place, 0));
                assert_eq!((*home, frame.bytes()), (place, &spread(connection, *number)[..]));
                *number += 1;
                left -= 1;
            }
        }
        thread::yield_now();
    }
}

/// Receives `count` frames.
fn received(pipe: &mut pd_pipe::Pipe, count: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while all.len() < count {
        pipe.wait(PATIENCE).unwrap();
        let mut frames = pipe.frames().unwrap();
        while let Some(frame) = frames.next() {
            all.push(frame.bytes().to_vec());
        }
    }
    all
}
