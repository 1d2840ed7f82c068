//! Programs that violate the protocol: each is cut off for its reason, and no neighbour is affected.

#[path = "oracle/hostile.rs"]
mod oracle;

use pd_abi::pipe::{entry, entry_offset, pipe_control, table_bytes, DROP, FRAME_TABLE_OFFSET};
use pd_pipe::{
    Agent, Direction, Gen, Lease, Offer, Pipe, PipeId, Port, PortId, Recipe, Shape, Sink, Unit, Violation,
};
use pd_pipe::{PipeCounts, PIPES_MAX};
use pd_shm::{Own, Region};
use proptest::prelude::*;
use rustix::fs::{fcntl_setfl, OFlags};
use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const RING: u64 = 64 << 10;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn an_agent_survives_any_program(program in prop::collection::vec(any::<u8>(), 0..400)) {
        oracle::run(&program);
    }
}

struct Stand {
    agent: Agent,
    id: PipeId,
    control: Region<Own>,
    pipe: Pipe,
}

/// Makes a pipe on a generator, or for sending on a sink, and maps its control file once more.
fn stand(direction: Direction) -> Stand {
    let mut agent = Agent::new().unwrap();
    let recipe = Recipe { sizes: vec![64], flows: 1, frames: 0 };
    let gen = agent.add_port(Port::Gen(Gen::new(recipe).unwrap()));
    let sink = agent.add_port(Port::Sink(Sink::default()));
    let port = if direction == Direction::Send { sink } else { gen };
    let shape = Shape::new(direction, Unit::Frames, RING).unwrap();
    let (id, offer) = agent.open(shape, port, &[], None).unwrap();
    let control = control(&offer);
    let pipe = Pipe::map(offer).unwrap();
    agent.seal(id).unwrap();
    Stand { agent, id, control, pipe }
}

fn control(offer: &Offer) -> Region<Own> {
    Region::<Own>::new(&offer.control, FRAME_TABLE_OFFSET + table_bytes(offer.shape.ring_bytes())).unwrap()
}

impl Stand {
    fn store(&self, word: usize, value: u64) {
        self.control.store_u64(word, value, Ordering::Release);
    }

    fn entry(&self, position: u64, length: u16, verdict: u16) {
        self.control.store_u32(entry_offset(position, RING), entry(length, verdict), Ordering::Relaxed);
    }

    fn counts(&mut self) -> PipeCounts {
        self.agent.counts(self.id).unwrap()
    }

    /// Takes turns, and checks that the pipe is cut off for this reason and that its program sees it.
    fn expect(&mut self, violation: Violation) {
        for _ in 0..4 {
            self.agent.turn();
        }
        assert_eq!(self.agent.violation(self.id), Some(violation));
        let told = match self.pipe.shape().direction() {
            Direction::Send => self.pipe.place(64).map(drop),
            _ => loop {
                match self.pipe.frames() {
                    Ok(mut frames) => while frames.next().is_some() {},
                    Err(errno) => break Err(errno),
                }
            },
        };
        assert_eq!(told, Err(Errno::PROTO));
    }
}

#[test]
fn positions_out_of_range_are_cut_off() {
    use Direction::{Forward, Receive, Send};
    let cases = [(Receive, pipe_control::RECV_CONSUMER), (Send, pipe_control::SEND_PRODUCER)];
    for (direction, word) in [cases[0], cases[1], (Forward, pipe_control::SEND_PRODUCER)] {
        for value in [1, 63, RING + 64, u64::MAX - 63, u64::MAX, 1 << 63] {
            let mut stand = stand(direction);
            stand.agent.turn();
            stand.store(word, value);
            stand.expect(Violation::Index);
        }
    }
    // An index that runs backwards, after honest use.
    let mut stand = stand(Receive);
    stand.agent.turn();
    assert!(stand.pipe.frames().unwrap().next().is_some());
    stand.agent.turn();
    stand.store(pipe_control::RECV_CONSUMER, 0);
    stand.expect(Violation::Index);
}

/// A forwarding program passes on bytes that were not announced: part of the ring that the agent writes at the time.
/// A turn looks at 32 of the pipes to which nothing is due.
#[test]
fn an_impossible_word_of_an_idle_pipe_is_found_among_many() {
    let mut stand = stand(Direction::Receive);
    let idle = stand.agent.add_link().1;
    let shape = Shape::new(Direction::Receive, Unit::Frames, 32 << 10).unwrap();
    let others: Vec<_> = (0..100)
        .map(|_| {
            let (id, offer) = stand.agent.open(shape, idle, &[], None).unwrap();
            let control = control(&offer);
            let pipe = Pipe::map(offer).unwrap();
            stand.agent.seal(id).unwrap();
            (id, control, pipe)
        })
        .collect();
    for at in [99, 40] {
        let (id, control, _) = &others[at];
        control.store_u64(pipe_control::RECV_CONSUMER, 64, Ordering::Release);
        for _ in 0..4 {
            stand.agent.turn();
        }
        assert_eq!(stand.agent.violation(*id), Some(Violation::Index), "pipe {at}");
    }
    assert_eq!(stand.agent.take_broken().len(), 2);
}

#[test]
fn frames_that_were_not_announced_are_not_forwarded() {
    let mut stand = stand(Direction::Forward);
    stand.agent.turn();
    let announced = {
        let mut frames = stand.pipe.frames().unwrap();
        let mut count = 0;
        while frames.next().is_some() {
            count += 1;
        }
        std::mem::forget(frames);
        count * 64
    };
    stand.store(pipe_control::SEND_PRODUCER, announced + 64);
    stand.expect(Violation::Index);
}

#[test]
fn impossible_lengths_are_cut_off() {
    for length in [0, 13, 9217, u16::MAX] {
        let mut stand = stand(Direction::Send);
        stand.entry(0, length, 0);
        stand.store(pipe_control::SEND_PRODUCER, 16 << 10);
        stand.expect(Violation::Length);
    }
    // Longer than the sent bytes.
    let mut stand = stand(Direction::Send);
    stand.entry(0, 65, 0);
    stand.store(pipe_control::SEND_PRODUCER, 64);
    stand.expect(Violation::Length);
}

#[test]
fn foreign_verdicts_are_dropped_and_counted_and_seventeen_in_a_row_cut_off() {
    let mut stand = stand(Direction::Send);
    let send = |stand: &mut Stand, number: u64, verdict: u16| {
        stand.entry(number * 64, 64, verdict);
        stand.store(pipe_control::SEND_PRODUCER, (number + 1) * 64);
        stand.agent.turn();
    };
    for number in 0..16 {
        send(&mut stand, number, 7);
    }
    send(&mut stand, 16, DROP);
    for number in 17..33 {
        send(&mut stand, number, 1);
    }
    let counts = stand.counts();
    assert_eq!((counts.frames_foreign, counts.frames_dropped, counts.frames_sent), (32, 1, 0));
    send(&mut stand, 33, 1);
    stand.expect(Violation::Verdict);
}

/// The entry of a frame that waits for its receiver is not read again.
#[test]
fn an_entry_changed_while_its_frame_waits_is_not_read_again() {
    let mut agent = Agent::new().unwrap();
    let (near, far) = agent.add_link();
    let shape = |direction| Shape::new(direction, Unit::Frames, RING).unwrap();
    let (from, offer) = agent.open(shape(Direction::Send), near, &[], None).unwrap();
    let control = control(&offer);
    let mut pipe = Pipe::map(offer).unwrap();
    agent.seal(from).unwrap();
    pipe.send(&[1; 100], 0).unwrap();
    pipe.flush();
    agent.turn();
    control.store_u32(entry_offset(0, RING), entry(u16::MAX, 9), Ordering::Relaxed);
    let (to, offer) = agent.open(shape(Direction::Receive), far, &[], None).unwrap();
    let mut receiver = Pipe::map(offer).unwrap();
    agent.seal(to).unwrap();
    agent.turn();
    assert_eq!(receiver.frames().unwrap().next().unwrap().bytes(), [1; 100]);
    assert_eq!(agent.violation(from), None);
}

#[test]
fn frames_with_another_source_are_refused_and_counted() {
    let lease = Lease { mac: [2, 0, 0, 0, 0, 7], ipv4: [10, 0, 0, 7] };
    let mut frame = [0u8; 64];
    frame[6..12].copy_from_slice(&lease.mac);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[26..30].copy_from_slice(&lease.ipv4);
    let mut forged = frame;
    forged[29] = 8;
    for linked in [false, true] {
        let mut agent = Agent::new().unwrap();
        let shape = |direction| Shape::new(direction, Unit::Frames, RING).unwrap();
        let (near, far) = agent.add_link();
        let sink = agent.add_port(Port::Sink(Sink::default()));
        let port = if linked { near } else { sink };
        let (id, offer) = agent.open(shape(Direction::Send), port, &[], Some(lease)).unwrap();
        let mut pipe = Pipe::map(offer).unwrap();
        let (other, offer) = agent.open(shape(Direction::Receive), far, &[], None).unwrap();
        let mut receiver = Pipe::map(offer).unwrap();
        agent.seal(id).unwrap();
        agent.seal(other).unwrap();
        for bytes in [&forged, &frame, &forged] {
            pipe.send(bytes, 0).unwrap();
        }
        pipe.flush();
        agent.turn();
        let counts = agent.counts(id).unwrap();
        assert_eq!((counts.frames_refused, counts.frames_sent), (2, 1));
        if linked {
            let mut frames = receiver.frames().unwrap();
            assert_eq!(frames.next().unwrap().bytes(), frame);
            assert!(frames.next().is_none());
        }
    }
}

#[test]
fn a_program_opens_no_more_pipes_than_there_are_and_a_closed_one_is_gone() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let mut agent = Agent::new().unwrap();
    let sink = agent.add_port(Port::Sink(Sink::default()));
    let shape = Shape::new(Direction::Send, Unit::Frames, 32 << 10).unwrap();
    let mut pipes = Vec::new();
    let refused = loop {
        match agent.open(shape, sink, &[], None) {
            Ok((id, offer)) => {
                let pipe = Pipe::map(offer).unwrap();
                agent.seal(id).unwrap();
                pipes.push((id, pipe));
            }
            Err(errno) => break errno,
        }
    };
    assert_eq!((refused, pipes.len()), (Errno::MFILE, PIPES_MAX));
    let (id, mut pipe) = pipes.swap_remove(7);
    agent.close(id);
    assert_eq!(pipe.place(64).map(drop), Err(Errno::CONNRESET));
    assert!(agent.open(shape, sink, &[], None).is_ok());
    assert_eq!(agent.seal(id), Err(Errno::BADF));
}

#[test]
fn pipes_that_do_not_fit_their_port_are_refused() {
    let mut agent = Agent::new().unwrap();
    let sink = agent.add_port(Port::Sink(Sink::default()));
    let recipe = Recipe { sizes: vec![64], flows: 1, frames: 0 };
    let gen = agent.add_port(Port::Gen(Gen::new(recipe).unwrap()));
    let (near, far) = agent.add_link();
    let shape = |direction, unit| Shape::new(direction, unit, RING).unwrap();
    let mut pipes = Vec::new();
    let mut open = |direction, unit, port, others: &[_], lease| {
        agent.open(shape(direction, unit), port, others, lease).map(|(id, _)| pipes.push(id))
    };
    use {Direction::*, Unit::*};
    assert_eq!(open(Receive, Frames, sink, &[], None), Err(Errno::INVAL));
    assert_eq!(open(Receive, Bytes, gen, &[], None), Err(Errno::INVAL));
    assert_eq!(open(Forward, Frames, near, &[far], None), Err(Errno::INVAL));
    let lease = Some(Lease { mac: [0; 6], ipv4: [0; 4] });
    assert_eq!(open(Send, Bytes, sink, &[], lease), Err(Errno::INVAL));
    assert_eq!(open(Send, Bytes, near, &[], None), Ok(()));
    assert_eq!(open(Send, Bytes, near, &[], None), Err(Errno::ADDRINUSE));
    assert_eq!(open(Receive, Frames, far, &[], None), Err(Errno::INVAL));
    assert_eq!(open(Receive, Bytes, far, &[], None), Ok(()));
    assert_eq!(open(Forward, Bytes, far, &[], None), Err(Errno::ADDRINUSE));
    // The unit is that of the pipes that are there, at either end.
    let [sender, receiver] = pipes[..] else { panic!("{pipes:?}") };
    agent.close(receiver);
    assert_eq!(agent.open(shape(Send, Frames), far, &[], None).map(drop), Err(Errno::INVAL));
    agent.end(sender, Errno::ACCESS);
    let (_frames, _) = agent.open(shape(Send, Frames), sink, &[near], None).unwrap();
    assert_eq!(agent.open(shape(Send, Bytes), far, &[], None).map(drop), Err(Errno::INVAL));
    assert!(agent.open(shape(Receive, Frames), far, &[], None).is_ok());
}

/// A program fills its doorbell, empties it and has it block. The agent sleeps and wakes as before, and another program's doorbell is not
/// affected.
#[test]
fn a_spoiled_doorbell_holds_up_neither_agent_nor_neighbours() {
    let mut agent = Agent::new().unwrap();
    let sink = agent.add_port(Port::Sink(Sink::default()));
    let shape = Shape::new(Direction::Send, Unit::Frames, RING).unwrap();
    let (_, offer) = agent.open(shape, sink, &[], None).unwrap();
    let (neighbour, other) = agent.open(shape, sink, &[], None).unwrap();
    let mut pipe = Pipe::map(other).unwrap();
    agent.seal(neighbour).unwrap();
    let short = Duration::from_millis(1);
    fcntl_setfl(&offer.doorbell, OFlags::empty()).unwrap();
    agent.wait(short);
    rustix::io::write(&offer.doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    agent.wait(short);
    agent.wait(short);
    rustix::io::read(&offer.doorbell, &mut [0; 8]).unwrap();
    agent.wait(short);
    // The neighbour rings while the agent sleeps for long.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| agent.run(&stop));
        for _ in 0..20 {
            pipe.send(&[0; 64], 0).unwrap();
            pipe.wait_room(RING, Duration::from_secs(60)).unwrap();
            std::thread::sleep(short);
        }
        stop.store(true, Ordering::Release);
    });
    assert_eq!(agent.counts(neighbour).unwrap().frames_sent, 20);
}

/// A sending pipe of a payer, which sends frames of a kind as fast as there is room.
struct Flood {
    id: PipeId,
    pipe: Pipe,
    verdict: u16,
}

impl Flood {
    fn new(agent: &mut Agent, port: PortId, lease: Option<Lease>, payer: u64, verdict: u16) -> Self {
        let shape = Shape::new(Direction::Send, Unit::Frames, RING).unwrap();
        let (id, offer) = agent.open(shape, port, &[], lease).unwrap();
        let pipe = Pipe::map(offer).unwrap();
        agent.seal(id).unwrap();
        agent.set_payer(id, payer);
        Self { id, pipe, verdict }
    }

    fn fill(&mut self) {
        while self.pipe.send(&[0; 64], self.verdict).is_ok() {}
        self.pipe.flush();
    }
}

/// Many pipes of one payer send frames that are refused, dropped, or tiny. A pipe of another payer gets as much of the agent.
#[test]
fn many_pipes_with_bad_frames_take_nothing_of_another_payers_share() {
    let nobodys = Lease { mac: [2; 6], ipv4: [10, 0, 0, 1] };
    for (lease, verdict) in [(Some(nobodys), 0), (None, DROP), (None, 0)] {
        let mut agent = Agent::new().unwrap();
        let sink = agent.add_port(Port::Sink(Sink::default()));
        let mut floods: Vec<_> = (0..60).map(|_| Flood::new(&mut agent, sink, lease, 1, verdict)).collect();
        let mut honest = Flood::new(&mut agent, sink, None, 2, 0);
        let turns = 200;
        for _ in 0..turns {
            floods.iter_mut().for_each(Flood::fill);
            honest.fill();
            agent.turn();
        }
        let sent = agent.counts(honest.id).unwrap().frames_sent;
        let of = |counts: PipeCounts| counts.frames_sent + counts.frames_refused + counts.frames_dropped;
        let others: u64 = floods.iter().map(|flood| of(agent.counts(flood.id).unwrap())).sum();
        // One pipe moves a quarter of a thousand frames in a turn at most, and the others together a thousand.
        assert_eq!(sent, turns * 256, "beside {others} bad frames");
        assert!((turns * 700..turns * 1100).contains(&others), "{others} bad frames in {turns} turns");
    }
}

/// A payer with more pipes than the agent may look at in a turn is looked at in some turns only, and is not forgotten.
#[test]
fn a_payer_in_debt_is_served_later() {
    let mut agent = Agent::new().unwrap();
    let sink = agent.add_port(Port::Sink(Sink::default()));
    let mut floods: Vec<_> = (0..200).map(|_| Flood::new(&mut agent, sink, None, 1, 0)).collect();
    let _other = Flood::new(&mut agent, sink, None, 2, 0);
    floods.iter_mut().for_each(Flood::fill);
    let sent: u64 = floods.iter_mut().map(|flood| flood.pipe.untaken() / 64).sum();
    let mut turns = 0;
    // A turn without work would let the agent sleep.
    while agent.turn() {
        turns += 1;
    }
    let taken: u64 = floods.iter().map(|flood| agent.counts(flood.id).unwrap().frames_sent).sum();
    assert_eq!(taken, sent);
    assert!(turns > 200 * 1024 / 1000, "{turns}");
}

/// Maps a pipe of an owner and payer. Returns the ring once more, for a program that writes there.
fn open_of(
    agent: &mut Agent,
    direction: Direction,
    port: PortId,
    of: u64,
) -> (PipeId, Pipe, Option<Region<Own>>) {
    let shape = Shape::new(direction, Unit::Frames, RING).unwrap();
    let (id, offer) = agent.open(shape, port, &[], None).unwrap();
    let ring = shape.sends().then(|| Region::<Own>::new(&offer.ring, RING as usize).unwrap());
    let pipe = Pipe::map(offer).unwrap();
    agent.seal(id).unwrap();
    agent.set_owner(id, Some(of));
    agent.set_payer(id, of);
    (id, pipe, ring)
}

/// Fills a sending pipe with frames. Returns their number.
fn fill(pipe: &mut Pipe) -> u64 {
    let sent = (0..).take_while(|_| pipe.send(&[7; 64], 0).is_ok()).count();
    pipe.flush();
    sent as u64
}

/// Receivers of many links never look: of one tenant and of several, by the agent and directly. Each holds up the sender of its link, and no other
/// pipe; nothing of what they leave is kept but in rings; and the agent sleeps.
#[test]
fn receivers_that_never_look_hold_up_their_own_links_alone() {
    const IDLE: u64 = 40;
    const FRAMES: u64 = RING / 64;
    let mut agent = Agent::new().unwrap();
    let (near, far) = agent.add_link();
    let (_, mut live, _) = open_of(&mut agent, Direction::Send, near, 1);
    let (live_id, mut receiver, _) = open_of(&mut agent, Direction::Receive, far, 2);
    let mut idle: Vec<_> = (0..IDLE)
        .map(|number| {
            let (near, far) = agent.add_link();
            // The live pipes' tenants, another one, and two pipes of one: that link is direct.
            let owners = [(1, 2), (2, 1), (3, 1), (1, 1)][number as usize % 4];
            let from = open_of(&mut agent, Direction::Send, near, owners.0);
            let to = open_of(&mut agent, Direction::Receive, far, owners.1);
            (from.1, to.1, from.0, to.0)
        })
        .collect();
    agent.turn();
    for (sender, receiver, from, to) in idle.iter_mut().skip(3).step_by(4) {
        for (id, pipe) in [(from, sender), (to, receiver)] {
            pipe.accept(&agent.peer(*id).unwrap()).unwrap();
        }
    }
    let mut sent = vec![0; IDLE as usize];
    let (turns, mut before) = (100, 0);
    for turn in 0..30 + turns {
        if turn == 30 {
            // All idle rings are full.
            before = agent.counts(live_id).unwrap().frames_received;
        }
        for ((sender, ..), sent) in idle.iter_mut().zip(&mut sent) {
            *sent += fill(sender);
        }
        fill(&mut live);
        agent.turn();
        if let Ok(mut frames) = receiver.frames() {
            while frames.next().is_some() {}
        }
    }
    // As many as a pipe moves in a turn.
    assert_eq!(agent.counts(live_id).unwrap().frames_received - before, turns * 256);
    for (number, (.., from, to)) in idle.iter().enumerate() {
        let [from, to] = [from, to].map(|id| agent.counts(*id).unwrap());
        let is_direct = agent.is_direct(idle[number].2);
        assert_eq!(is_direct, number % 4 == 3);
        // By the agent a link holds a ring before its receiver and one behind it.
        let most = if is_direct { 0..=FRAMES } else { FRAMES..=FRAMES };
        assert!(
            most.contains(&from.frames_sent) && from.frames_sent == to.frames_received,
            "{number}: {from:?}"
        );
        assert_eq!((from.frames_unbound, to.frames_lost), (0, 0));
        assert!((FRAMES..=2 * FRAMES).contains(&sent[number]), "{number}: {}", sent[number]);
    }
    // Without the live link there is nothing to do: the agent sleeps.
    while receiver.frames().is_ok_and(|mut frames| frames.next().is_some()) || agent.turn() {}
    assert!(!agent.turn());
    // A receiver that looks again has all frames of its link.
    let (mut got, number) = (0, 0);
    for _ in 0..10 {
        if let Ok(mut frames) = idle[number].1.frames() {
            while frames.next().is_some() {
                got += 1;
            }
        }
        agent.turn();
    }
    assert_eq!(got, sent[number]);
}

/// A sender writes other addresses over its frames while the agent checks and copies them. None that was not the sender's is received.
#[test]
fn a_frame_is_what_was_checked_whatever_its_sender_writes_meanwhile() {
    let lease = Lease { mac: [2, 0, 0, 0, 0, 7], ipv4: [10, 0, 0, 7] };
    // Eight frames fill the ring, so that their headers stay where they are.
    const LENGTH: usize = RING as usize / 8;
    let mut frame = [0u8; LENGTH];
    frame[6..12].copy_from_slice(&lease.mac);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[26..30].copy_from_slice(&lease.ipv4);
    let mut agent = Agent::new().unwrap();
    let (near, far) = agent.add_link();
    let (from, mut sender, ring) = open_of(&mut agent, Direction::Send, near, 1);
    let (_, mut receiver, _) = open_of(&mut agent, Direction::Receive, far, 2);
    agent.set_lease(from, Some(lease));
    let (ring, is_over) = (ring.unwrap(), AtomicBool::new(false));
    let (mut received, mut turns) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Bytes 24 to 31: end of the checksum's word, source, and the beginning of the destination.
            let own = u64::from_ne_bytes(*frame[24..].first_chunk().unwrap());
            let mut forged = frame;
            forged[29] = 8;
            let forged = u64::from_ne_bytes(*forged[24..].first_chunk().unwrap());
            while !is_over.load(Ordering::Relaxed) {
                for word in [forged, own] {
                    (24..RING as usize)
                        .step_by(64)
                        .for_each(|at| ring.store_u64(at, word, Ordering::Relaxed));
                }
            }
        });
        let refused = |agent: &Agent| agent.counts(from).unwrap().frames_refused;
        let mut forged = 0;
        while turns < 100_000 || (received == 0 || refused(&agent) == 0) && turns < 1_000_000 {
            while sender.send(&frame, 0).is_ok() {}
            sender.flush();
            agent.turn();
            if let Ok(mut frames) = receiver.frames() {
                while let Some(got) = frames.next() {
                    forged += u32::from(got.bytes()[26..30] != lease.ipv4);
                    received += 1;
                }
            }
            turns += 1;
        }
        // First, for the other thread ends by it.
        is_over.store(true, Ordering::Relaxed);
        assert!(received > 0 && refused(&agent) > 0, "{received} received, {} refused", refused(&agent));
        assert_eq!(forged, 0, "of {received}");
    });
}

/// Programs ask for notifications and wake-ups without end, and read nothing. Their payer pays for each, and another has as much of the agent.
#[test]
fn a_flood_of_questions_for_notifications_takes_nothing_of_another_payers_share() {
    let mut agent = Agent::new().unwrap();
    let recipe = Recipe { sizes: vec![64], flows: 1, frames: 0 };
    let mut floods = Vec::new();
    for _ in 0..200 {
        let gen = agent.add_port(Port::Gen(Gen::new(recipe.clone()).unwrap()));
        let shape = Shape::new(Direction::Receive, Unit::Frames, RING).unwrap();
        let (id, offer) = agent.open(shape, gen, &[], None).unwrap();
        let words = control(&offer);
        let pipe = Pipe::map(offer).unwrap();
        agent.seal(id).unwrap();
        agent.set_payer(id, 1);
        floods.push((id, words, pipe));
    }
    // One frame each turn, so that there is always something to tell of.
    agent.set_burst(1);
    let sink = agent.add_port(Port::Sink(Sink::default()));
    let mut honest = Flood::new(&mut agent, sink, None, 2, 0);
    let turns = 400;
    for turn in 1..=turns {
        for (_, words, _) in &floods {
            words.store_u32(pipe_control::RECV_WANTED, turn as u32, Ordering::Relaxed);
            words.store_u64(pipe_control::RECV_WAKE_AT, turn, Ordering::Relaxed);
        }
        honest.fill();
        agent.turn();
    }
    assert_eq!(agent.counts(honest.id).unwrap().frames_sent, turns);
    let told: u64 = floods.iter().map(|(id, ..)| agent.counts(*id).unwrap().notifications).sum();
    // A wake-up costs a 64th of a turn. Without that cost all 200 would be told in each.
    assert!((turns * 20..turns * 80).contains(&told), "{told} notifications in {turns} turns");
}
