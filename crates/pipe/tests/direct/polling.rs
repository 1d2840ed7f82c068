//! Programs that wait in `poll` or `epoll` on the direct path of a link.
use super::threads::{ask_from_afar, change_paths};
use super::*;
use pd_pipe::Eventfds;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{fcntl_setfl, OFlags};
use rustix::io::{read, write};
use std::os::fd::{AsRawFd, OwnedFd};

pub fn is_readable(pipe: &Pipe) -> bool {
    waits_at_most(pipe, Duration::ZERO)
}

pub fn waits_at_most(pipe: &Pipe, time: Duration) -> bool {
    let fd = pipe.wake_fd().unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time.try_into().unwrap())).unwrap() == 1
}

/// Has a pipe's program wait by its descriptor from now on.
pub fn begin_to_poll(agent: &mut Agent, id: PipeId, pipe: &mut Pipe) {
    let (theirs, own) = pd_shm::wake::pair().unwrap();
    pipe.set_wake_fd(theirs).unwrap();
    agent.set_wake_fd(id, pd_shm::ringer::WakeEnd::new(own, None));
}

/// Sleeps by a pipe's descriptor until there is something to do.
pub fn sleep(pipe: &mut Pipe) {
    while !pipe.arm().unwrap() {
        assert!(waits_at_most(pipe, PATIENCE), "nobody wakes");
    }
}

/// Signals of an eventfd so far, which is emptied.
fn signals(eventfd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    read(eventfd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

impl Stand {
    /// Both programs wait by their descriptors.
    fn polling() -> Self {
        let mut this = Self::new();
        begin_to_poll(&mut this.agent, this.ids.0, &mut this.sender);
        begin_to_poll(&mut this.agent, this.ids.1, &mut this.receiver);
        this
    }

    /// Goes direct. Returns the eventfds of the sender and of the receiver.
    fn go_direct_with_eventfds(&mut self) -> [OwnedFd; 2] {
        self.agent.turn();
        let Eventfds { own, peer } = self.agent.eventfds(self.ids.0).unwrap();
        self.go_direct();
        [own, peer].map(Option::unwrap)
    }

    /// Fills the ring up.
    fn fill_up(&mut self) -> u64 {
        let mut sent = 0;
        while self.sender.send(&frame(sent, 64), BACK).is_ok() {
            sent += 1;
        }
        self.sender.flush();
        sent
    }
}

#[test]
fn programs_in_poll_wake_each_other_and_the_agent_sleeps() {
    let mut stand = Stand::polling();
    let [of_sender, of_receiver] = stand.go_direct_with_eventfds();
    let numbers = [&stand.sender, &stand.receiver].map(|pipe| pipe.wake_fd().unwrap().as_raw_fd());
    for number in 0..10 {
        assert_eq!(stand.receiver.arm(), Ok(false));
        assert!(!is_readable(&stand.receiver));
        stand.send(number);
        assert!(is_readable(&stand.receiver), "{number}");
        // As long as it is awake, no message costs a call.
        (0..100).for_each(|_| stand.send(number));
        assert_eq!(signals(&of_receiver), 1, "{number}");
        assert_eq!(stand.receiver.arm(), Ok(true));
        assert_eq!(stand.receive(), [number; 101]);
        (0..100).for_each(|_| stand.send(number));
        assert_eq!(stand.receive(), [number; 100]);
        assert_eq!(signals(&of_receiver), 0, "{number}");
    }
    for round in 0..10 {
        assert_eq!(stand.sender.arm(), Ok(true), "there is room");
        let sent = stand.fill_up();
        assert_eq!(stand.sender.arm(), Ok(false));
        // Too little for a wake-up, and then enough.
        let mut frames = stand.receiver.frames().unwrap();
        (0..sent / 8).for_each(|_| assert!(frames.next().is_some()));
        drop(frames);
        stand.receiver.arm().unwrap();
        assert!(!is_readable(&stand.sender), "{round}");
        assert_eq!(stand.receive().len() as u64, sent - sent / 8);
        assert!(is_readable(&stand.sender), "{round}");
        assert_eq!(signals(&of_sender), 1, "{round}");
        assert_eq!(stand.receiver.arm(), Ok(false));
    }
    assert!(!stand.agent.turn(), "the agent has nothing to do");
    assert_eq!(numbers, [&stand.sender, &stand.receiver].map(|pipe| pipe.wake_fd().unwrap().as_raw_fd()));
}

/// One that begins to wait so is recalled, and has an eventfd the next time. It is woken all the time.
#[test]
fn a_program_that_begins_to_poll_is_offered_a_path_with_an_eventfd() {
    for is_sender in [false, true] {
        let mut stand = Stand::direct();
        let mut left = if is_sender { stand.fill_up() as usize } else { 0 };
        if is_sender {
            // Its receiver knows of all frames, and need not look again for a while.
            stand.receiver.frames().unwrap().next().unwrap();
            left -= 1;
        }
        let id = if is_sender { stand.ids.0 } else { stand.ids.1 };
        let pipe = if is_sender { &mut stand.sender } else { &mut stand.receiver };
        begin_to_poll(&mut stand.agent, id, pipe);
        for _ in 0..2 {
            // The second time it has been recalled.
            assert_eq!(if is_sender { stand.sender.arm() } else { stand.receiver.arm() }, Ok(false));
            stand.agent.turn();
        }
        if is_sender {
            let mut frames = stand.receiver.frames().unwrap();
            (0..left / 4).for_each(|_| assert!(frames.next().is_some()));
            drop(frames);
            left -= left / 4;
            stand.agent.turn();
            assert!(is_readable(&stand.sender));
        }
        while left > 0 || stand.is_direct() {
            left -= stand.receive().len();
            stand.agent.turn();
        }
        stand.go_direct();
        assert_eq!(stand.receiver.wake_fd().is_some(), !is_sender);
        if !is_sender {
            assert_eq!(stand.receiver.arm(), Ok(false));
            stand.send(7);
            assert!(is_readable(&stand.receiver));
            assert_eq!(stand.receive(), [7]);
        }
    }
    // An offer that was accepted before counts no more, and none is accepted without its eventfd.
    let mut stand = Stand::new();
    stand.agent.turn();
    let without = stand.agent.peer(stand.ids.1).unwrap();
    begin_to_poll(&mut stand.agent, stand.ids.1, &mut stand.receiver);
    assert_eq!(stand.receiver.accept(&without), Err(Errno::INVAL));
    stand.go_direct();
}

/// Whatever ends the path or the pipe wakes a program that sleeps.
#[test]
fn a_recall_and_an_end_wake_who_sleeps_in_poll() {
    type Change = fn(&mut Stand);
    let recalls: [(&str, Change); 3] = [
        ("owner", |stand| stand.agent.set_owner(stand.ids.1, Some(8))),
        ("mirror", |stand| assert!(stand.agent.add_mirror(stand.ports.1).is_ok())),
        ("third", |stand| drop(open(&mut stand.agent, stand.ports.0, Direction::Send))),
    ];
    for (name, change) in recalls {
        let mut stand = Stand::polling();
        stand.go_direct();
        assert_eq!(stand.receiver.arm(), Ok(false));
        change(&mut stand);
        stand.agent.turn();
        assert!(is_readable(&stand.receiver), "{name}");
        // The receiver leaves, and waits for the agent's frames at once.
        assert_eq!(stand.receiver.arm(), Ok(false));
        assert!(!stand.receiver.is_direct());
        stand.agent.turn();
        assert!(!stand.is_direct(), "{name}");
        let _ = stand.receiver.arm();
        stand.send(3);
        stand.agent.turn();
        assert!(is_readable(&stand.receiver), "{name}");
        assert_eq!(stand.receive(), [3], "{name}");
    }
    let mut stand = Stand::polling();
    stand.go_direct();
    stand.fill_up();
    assert_eq!(stand.sender.arm(), Ok(false));
    stand.agent.set_owner(stand.ids.1, Some(8));
    stand.agent.turn();
    stand.receive();
    stand.agent.turn();
    assert!(is_readable(&stand.sender), "the agent has taken what was left");
    // The sender goes, then the port.
    let mut stand = Stand::polling();
    stand.go_direct();
    stand.send(1);
    assert_eq!(stand.receive(), [1]);
    assert_eq!(stand.receiver.arm(), Ok(false));
    stand.agent.close(stand.ids.0);
    stand.agent.turn();
    assert!(is_readable(&stand.receiver));
    let _ = stand.receiver.arm();
    stand.agent.turn();
    assert_eq!(stand.receiver.arm(), Ok(false));
    stand.agent.remove_port(stand.ports.0);
    assert!(is_readable(&stand.receiver));
    assert_eq!(stand.receiver.arm(), Err(Errno::NODEV));
    // The receiver goes while its sender sleeps.
    let mut stand = Stand::polling();
    stand.go_direct();
    stand.fill_up();
    assert_eq!(stand.sender.arm(), Ok(false));
    stand.agent.close(stand.ids.1);
    stand.agent.turn();
    assert!(is_readable(&stand.sender), "what lay before it is lost with it, and its space is free");
}

/// A peer fills the counter, has the description block, and rings without end, also after the path.
#[test]
fn an_eventfd_in_the_hands_of_a_hostile_peer_costs_a_wake_up_in_vain() {
    let mut stand = Stand::polling();
    let [of_sender, of_receiver] = stand.go_direct_with_eventfds();
    for eventfd in [&of_sender, &of_receiver] {
        fcntl_setfl(eventfd, OFlags::empty()).unwrap();
        write(eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    }
    for number in 0..100 {
        assert_eq!(stand.receiver.arm(), Ok(false));
        assert!(!is_readable(&stand.receiver));
        stand.send(number);
        assert!(is_readable(&stand.receiver));
        assert_eq!(stand.receive(), [number]);
        stand.fill_up();
        assert_eq!(stand.sender.arm(), Ok(false));
        stand.receive();
        stand.receiver.arm().unwrap();
        assert!(is_readable(&stand.sender));
        stand.sender.arm().unwrap();
    }
    // Emptied, and rung in vain.
    read(&of_receiver, &mut [0; 8]).unwrap();
    for _ in 0..100 {
        write(&of_receiver, &1u64.to_ne_bytes()).unwrap();
        assert!(is_readable(&stand.receiver));
        assert_eq!(stand.receiver.arm(), Ok(false));
        assert!(!is_readable(&stand.receiver));
    }
    stand.agent.set_owner(stand.ids.1, Some(8));
    stand.agent.turn();
    assert_eq!(stand.receiver.arm(), Ok(false));
    stand.agent.turn();
    let _ = stand.receiver.arm();
    write(&of_receiver, &1u64.to_ne_bytes()).unwrap();
    assert!(!is_readable(&stand.receiver), "a previous peer wakes nobody");
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Turn,
    Receive(usize),
    Accept,
    Own(u64),
    ArmReceiver,
    ArmSender,
    Poll(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..9000usize).prop_map(Step::Send),
        4 => (1..200usize).prop_map(Step::Send),
        5 => Just(Step::Turn),
        4 => (1usize..40).prop_map(Step::Receive),
        3 => Just(Step::Accept),
        2 => prop_oneof![3 => Just(7), 1 => Just(8u64)].prop_map(Step::Own),
        5 => Just(Step::ArmReceiver),
        5 => Just(Step::ArmSender),
        1 => any::<bool>().prop_map(Step::Poll),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// A program that has armed its pipe and is not woken misses nothing, whichever way the frames go, and however the way changes.
    #[test]
    fn who_is_not_woken_misses_nothing(steps in steps()) {
        let mut stand = Stand::new();
        let (mut model, mut count) = (VecDeque::new(), 0u64);
        let mut armed = [false; 2];
        for step in steps.into_iter().chain([Step::ArmReceiver, Step::ArmSender]) {
            match step {
                Step::Send(len) => {
                    count += 1;
                    if stand.sender.send(&frame(count, len), BACK).is_ok() {
                        stand.sender.flush();
                        model.push_back(count);
                        // Its program knows how much room there is now.
                        armed[0] = false;
                    }
                }
                Step::Turn => drop(stand.agent.turn()),
                // Of one that polls by now, an offer without an eventfd is refused.
                Step::Accept => {
                    for (id, pipe) in [(stand.ids.0, &mut stand.sender), (stand.ids.1, &mut stand.receiver)] {
                        let accepted = stand.agent.peer(id).map(|offer| pipe.accept(&offer));
                        prop_assert!(matches!(accepted, Err(Errno::AGAIN) | Ok(Ok(()) | Err(Errno::INVAL))));
                    }
                }
                Step::Own(owner) => stand.agent.set_owner(stand.ids.1, Some(owner)),
                Step::Receive(most) => {
                    let Ok(mut frames) = stand.receiver.frames() else { continue };
                    for _ in 0..most {
                        let Some(frame) = frames.next() else { break };
                        prop_assert_eq!(Some(number(frame.bytes())), model.pop_front());
                    }
                    armed[1] = false;
                }
                Step::Poll(is_sender) => {
                    let (id, pipe) = match is_sender {
                        true => (stand.ids.0, &mut stand.sender),
                        false => (stand.ids.1, &mut stand.receiver),
                    };
                    if pipe.wake_fd().is_none() {
                        begin_to_poll(&mut stand.agent, id, pipe);
                    }
                }
                Step::ArmReceiver if stand.receiver.wake_fd().is_some() => {
                    armed[1] = stand.receiver.arm() == Ok(false);
                }
                Step::ArmSender if stand.sender.wake_fd().is_some() => {
                    armed[0] = stand.sender.arm() == Ok(false);
                }
                Step::ArmReceiver | Step::ArmSender => {}
            }
            // The agent does all that it has to.
            if armed != [false; 2] {
                (0..50).find(|_| !stand.agent.turn());
            }
            if armed[1] && !is_readable(&stand.receiver) {
                prop_assert!(model.is_empty(), "{} frames are there, and nobody wakes", model.len());
            }
            if armed[0] && !is_readable(&stand.sender) {
                prop_assert!(stand.sender.untaken() > RING - stand.sender.shape().headroom(), "there is room, and nobody wakes");
            }
        }
    }
}

/// Two programs, each of which sleeps in `poll` whenever it has nothing to do, and an agent, while the path changes all the time.
#[test]
fn programs_in_poll_lose_no_frame_while_the_path_changes() {
    let stand = Stand::polling();
    let Stand { mut agent, ids, mut sender, mut receiver, .. } = stand;
    let asked = ask_from_afar(ids, &mut sender, &mut receiver);
    let (enough, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (enough, stop) = (&enough, &stop);
    std::thread::scope(|scope| {
        let agent = scope.spawn(move || {
            change_paths(&mut agent, ids, &asked, [enough, stop]);
        });
        let sender = scope.spawn(move || {
            let mut count = 0;
            let mut send = |number: u64| {
                while let Err(errno) = sender.send(&frame(number, 64 + (number % 3) as usize * 100), BACK) {
                    assert_eq!(errno, Errno::AGAIN);
                    sleep(&mut sender);
                }
                if number % 50 == 0 {
                    sender.flush();
                }
            };
            while !enough.load(Ordering::Acquire) {
                send(count);
                count += 1;
                // Now and then the receiver falls asleep.
                if count % 4096 == 0 {
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
            send(u64::MAX);
            sender.flush();
            while sender.untaken() > 0 {
                sender.wait_room(RING, PATIENCE).unwrap();
            }
            count
        });
        let (mut expected, mut is_over) = (0, false);
        while !is_over {
            sleep(&mut receiver);
            let Ok(mut frames) = receiver.frames() else { continue };
            while let Some(frame) = frames.next() {
                is_over = number(frame.bytes()) == u64::MAX;
                if !is_over {
                    assert_eq!(number(frame.bytes()), expected);
                    expected += 1;
                }
            }
        }
        let _ = receiver.arm();
        assert_eq!(sender.join().unwrap(), expected);
        stop.store(true, Ordering::Release);
        agent.join().unwrap();
    });
}

/// Receivers that were recalled stay, and move the words for which their senders are to be woken, who wait in `poll` without an eventfd.
#[test]
fn wake_ups_that_receivers_ask_for_are_paid_by_their_payer() {
    const PAIRS: usize = 70;
    let mut agent = Agent::new().unwrap();
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        let ports = agent.add_link();
        let to = open(&mut agent, ports.1, Direction::Receive);
        let from = open(&mut agent, ports.0, Direction::Send);
        [from.0, to.0].into_iter().for_each(|id| agent.set_payer(id, 1));
        pairs.push((from, to));
    }
    let sink = agent.add_port(pd_pipe::Port::Sink(Default::default()));
    let (other, _pipe, _words) = open(&mut agent, sink, Direction::Send);
    agent.set_payer(other, 2);
    agent.turn();
    for (from, to) in &mut pairs {
        from.1.accept(&agent.peer(from.0).unwrap()).unwrap();
        to.1.accept(&agent.peer(to.0).unwrap()).unwrap();
    }
    agent.turn();
    let mut programs = Vec::new();
    for (from, to) in &pairs {
        assert!(agent.is_direct(from.0));
        let (theirs, own) = pd_shm::wake::pair().unwrap();
        agent.set_wake_fd(from.0, pd_shm::ringer::WakeEnd::new(own, None));
        programs.push((theirs, &to.2));
    }
    agent.turn();
    let (turns, mut woken) = (100, 0);
    let mut bytes = [0; 64];
    for turn in 0..=turns {
        programs
            .iter()
            .for_each(|(_, words)| words.store_u64(pipe_control::LINK_CONSUMER, turn, Ordering::Release));
        agent.turn();
        for (theirs, _) in &programs {
            while let Ok(more @ 1..) = read(theirs, &mut bytes) {
                woken += if turn == 0 { 0 } else { more as u64 };
            }
        }
    }
    // A payer's share of a turn is 64 wake-ups.
    assert!((turns * 32..turns * 66).contains(&woken), "{woken} wake-ups in {turns} turns");
}
