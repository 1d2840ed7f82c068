//! Frames that are lent several at a time, also across the end of a path.
use super::*;
use std::collections::VecDeque;
use std::ptr::NonNull;

/// Frames that a program keeps, with what they hold.
#[derive(Default)]
pub struct Loans(pub VecDeque<(NonNull<u8>, Vec<u8>)>);

impl Loans {
    /// Lends the next frame, which has to be `expected`.
    pub fn lend(&mut self, pipe: &mut Pipe, expected: Vec<u8>) {
        let (at, length) = pipe.lend().unwrap();
        assert_eq!(usize::from(length), expected.len());
        self.0.push_back((at, expected));
        self.check();
    }

    /// All frames lent hold what they held.
    pub fn check(&self) {
        for (at, expected) in &self.0 {
            // SAFETY: a loan that has not ended, of a pipe that lives. Its sender is a part of this test, which writes nothing now.
            let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), expected.len()) };
            assert_eq!(bytes, expected);
        }
    }

    pub fn take_back(&mut self, pipe: &mut Pipe) {
        self.check();
        let (_, expected) = self.0.pop_front().unwrap();
        assert_eq!(pipe.take_back(usize::MAX, BACK), Ok(expected.len() as u16));
    }
}

impl Stand {
    /// Has the path recalled, and all frames passed on that are there.
    fn recall(&mut self) {
        self.agent.set_owner(self.ids.1, Some(8));
        self.agent.turn();
        let _ = self.receiver.wait(Duration::ZERO);
        self.agent.turn();
        self.agent.turn();
        assert!(!self.is_direct());
    }

    /// Sends frames until the ring is full. Returns the number after the last.
    fn fill(&mut self, mut number: u64) -> u64 {
        while self.sender.send(&frame(number, 64), BACK).is_ok() {
            self.sender.flush();
            number += 1;
        }
        number
    }
}

#[test]
fn frames_of_a_path_that_was_left_stay_lent_and_their_space_is_nobodys() {
    let mut stand = Stand::new();
    let mut loans = Loans::default();
    stand.send(0);
    stand.agent.turn();
    loans.lend(&mut stand.receiver, frame(0, 64));
    stand.agent.turn();
    stand.accept();
    stand.agent.turn();
    for number in 1..4 {
        stand.send(number);
        loans.lend(&mut stand.receiver, frame(number, 64));
    }
    assert!(stand.receiver.is_direct() && stand.receiver.lent() == 4 * 64);
    assert_eq!(stand.receiver.frames().err(), Some(Errno::BUSY));
    stand.send(4);
    stand.recall();
    // The path of before is not offered again while its frames are lent.
    stand.agent.set_owner(stand.ids.1, Some(7));
    stand.agent.turn();
    assert!(stand.agent.peer(stand.ids.1).is_err());
    loans.lend(&mut stand.receiver, frame(4, 64));
    // Three lines of the sender's ring are lent, and are not written over.
    let end = stand.fill(5);
    stand.receiver.prefetch().unwrap();
    for _ in 0..10 {
        stand.agent.turn();
    }
    assert_eq!(end, 1 + RING / 64);
    loans.check();
    for number in 5..20 {
        loans.lend(&mut stand.receiver, frame(number, 64));
    }
    // Given back in the order in which they were lent.
    for left in [0, 0, 64, 128, RING] {
        stand.agent.turn();
        assert_eq!(RING - stand.sender.untaken(), left);
        loans.take_back(&mut stand.receiver);
        stand.receiver.flush_back();
    }
    stand.agent.turn();
    stand.accept();
    stand.agent.turn();
    assert!(stand.is_direct());
    for number in 20..end {
        loans.lend(&mut stand.receiver, frame(number, 64));
    }
    stand.send(end);
    loans.lend(&mut stand.receiver, frame(end, 64));
    assert!(stand.receiver.is_direct());
    while !loans.0.is_empty() {
        loans.take_back(&mut stand.receiver);
    }
    assert_eq!(stand.receiver.take_back(64, BACK), Err(Errno::INVAL));
    stand.receiver.flush_back();
    assert_eq!((stand.sender.untaken(), stand.receiver.lent()), (0, 0));
}

#[test]
fn a_ring_that_is_lent_as_a_whole_is_known_on_every_path() {
    for leaves in [false, true] {
        let mut stand = Stand::direct();
        let (mut loans, end) = (Loans::default(), stand.fill(0));
        for number in 0..end {
            assert_eq!(
                stand.receiver.lends_too_much(),
                number * 64 > RING - stand.receiver.shape().headroom()
            );
            loans.lend(&mut stand.receiver, frame(number, 64));
        }
        if leaves {
            stand.recall();
        }
        assert_eq!(stand.receiver.lend().err(), Some(Errno::AGAIN));
        assert!(stand.receiver.lends_too_much() && stand.sender.send(&[1; 64], BACK).is_err());
        let second = Duration::from_secs(1);
        assert_eq!(stand.receiver.wait(second), Err(Errno::NOBUFS));
        assert_eq!(stand.receiver.wait_more(second), Err(Errno::NOBUFS));
        loans.take_back(&mut stand.receiver);
        stand.receiver.flush_back();
        stand.agent.turn();
        assert!(stand.receiver.lends_too_much() && stand.sender.send(&[1; 64], BACK).is_ok());
    }
}

/// Kept frames leave room for small ones, and the next is the longest: no wait sleeps for it.
#[test]
fn a_wait_is_refused_where_kept_frames_leave_too_little_room_for_the_longest() {
    #[derive(Debug)]
    enum Path {
        Agent,
        Direct,
        Left,
    }
    for path in [Path::Agent, Path::Direct, Path::Left] {
        let mut stand = if matches!(path, Path::Agent) { Stand::new() } else { Stand::direct() };
        let (mut loans, kept) = (Loans::default(), (RING - stand.receiver.shape().headroom()) / 64);
        for number in 0..=kept {
            // As many may be kept as leave room.
            let waited = stand.receiver.wait(Duration::ZERO);
            assert_eq!(waited, Err(Errno::AGAIN), "{number}");
            stand.send(number);
            stand.agent.turn();
            assert_eq!(stand.receiver.wait(PATIENCE), Ok(()));
            loans.lend(&mut stand.receiver, frame(number, 64));
        }
        if matches!(path, Path::Left) {
            stand.recall();
        }
        let long = vec![7; FRAME_BYTES_MAX.into()];
        while stand.sender.send(&long, BACK).is_ok() {
            stand.sender.flush();
        }
        for _ in 0..4 {
            stand.agent.turn();
        }
        let mut frames_behind = 0;
        while let Ok((_, length)) = stand.receiver.lend() {
            assert_eq!(length, FRAME_BYTES_MAX);
            frames_behind += 1;
        }
        let (agent_end, own) = pd_shm::wake::pair().unwrap();
        stand.receiver.set_wake_fd(own).unwrap();
        assert_eq!(stand.receiver.wait(PATIENCE), Err(Errno::NOBUFS));
        assert_eq!(stand.receiver.wait_more(PATIENCE), Err(Errno::NOBUFS));
        assert_eq!(stand.receiver.arm(), Err(Errno::NOBUFS));
        drop(agent_end);
        while !loans.0.is_empty() {
            loans.take_back(&mut stand.receiver);
        }
        for _ in 0..frames_behind {
            stand.receiver.take_back(usize::MAX, BACK).unwrap();
        }
        stand.receiver.flush_back();
        stand.agent.turn();
        let _ = stand.sender.send(&long, BACK);
        stand.sender.flush();
        for _ in 0..4 {
            stand.agent.turn();
        }
        assert_eq!(stand.receiver.wait(PATIENCE), Ok(()), "{path:?}");
        assert_eq!(stand.receiver.lend().unwrap().1, FRAME_BYTES_MAX);
    }
}

/// A forwarding program that keeps frames, and a port that loses what finds no room.
#[test]
fn a_wait_is_refused_in_a_forwarding_pipe_as_well() {
    let mut agent = Agent::new().unwrap();
    let ports = agent.add_link();
    let (_to, mut forwards, _) = open(&mut agent, ports.1, Direction::Forward);
    let (_from, mut sender, _) = open(&mut agent, ports.0, Direction::Send);
    let kept = (RING - forwards.shape().headroom()) / 64 + 1;
    for number in 0..kept {
        assert_eq!(forwards.wait(Duration::ZERO), Err(Errno::AGAIN), "{number}");
        sender.send(&frame(number, 64), BACK).unwrap();
        sender.flush();
        agent.turn();
        forwards.lend().unwrap();
    }
    sender.send(&[7; FRAME_BYTES_MAX as usize], BACK).unwrap();
    sender.flush();
    for _ in 0..4 {
        agent.turn();
    }
    assert_eq!(forwards.wait(PATIENCE), Err(Errno::NOBUFS));
    assert_eq!(forwards.wait_more(PATIENCE), Err(Errno::NOBUFS));
    assert_eq!(forwards.arm(), Err(Errno::NOBUFS));
    for _ in 0..kept {
        forwards.take_back(64, DROP).unwrap();
    }
    forwards.flush_back();
    for _ in 0..4 {
        agent.turn();
    }
    assert_eq!(forwards.wait(PATIENCE), Ok(()));
    assert_eq!(forwards.lend().unwrap().1, FRAME_BYTES_MAX);
}

#[test]
fn a_side_that_ends_while_frames_are_lent_keeps_nothing_from_the_other() {
    // The sender goes: its frames stay, and those of the next come by the agent until they are given back.
    let (mut stand, mut loans) = (Stand::direct(), Loans::default());
    stand.send(0);
    stand.send(1);
    loans.lend(&mut stand.receiver, frame(0, 64));
    stand.agent.close(stand.ids.0);
    let (id, sender, _words) = open(&mut stand.agent, stand.ports.0, Direction::Send);
    drop((std::mem::replace(&mut stand.sender, sender), std::mem::replace(&mut stand.ids.0, id)));
    stand.send(2);
    stand.agent.turn();
    loans.lend(&mut stand.receiver, frame(1, 64));
    loans.lend(&mut stand.receiver, frame(2, 64));
    stand.agent.turn();
    assert!(stand.agent.peer(id).is_err());
    while !loans.0.is_empty() {
        loans.take_back(&mut stand.receiver);
    }
    stand.receiver.flush_back();
    stand.go_direct();
    // The receiver goes after it has left: the sender has its whole ring.
    stand.send(3);
    loans.lend(&mut stand.receiver, frame(3, 64));
    stand.recall();
    assert_eq!(stand.sender.untaken(), 64);
    stand.agent.close(stand.ids.1);
    stand.agent.turn();
    assert_eq!(stand.sender.untaken(), 0);
    loans.check();
    // The sender goes after it.
    let (mut stand, mut loans) = (Stand::direct(), Loans::default());
    stand.send(0);
    loans.lend(&mut stand.receiver, frame(0, 64));
    stand.recall();
    stand.agent.set_owner(stand.ids.1, Some(7));
    stand.agent.close(stand.ids.0);
    let (id, sender, _words) = open(&mut stand.agent, stand.ports.0, Direction::Send);
    drop((std::mem::replace(&mut stand.sender, sender), std::mem::replace(&mut stand.ids.0, id)));
    stand.agent.turn();
    assert!(stand.agent.peer(id).is_err());
    loans.take_back(&mut stand.receiver);
    stand.receiver.flush_back();
    stand.go_direct();
}

#[test]
fn loans_that_contradict_each_other_end_their_program_alone() {
    let left = |stand: &Stand, consumer: u64, at: u64| {
        let words = &stand.words.1;
        let number = words.load_u32(pipe_control::LINK_MAPPED, Ordering::Relaxed);
        words.store_u64(pipe_control::LINK_CONSUMER, consumer, Ordering::Release);
        words.store_u64(pipe_control::LINK_LEFT_AT, at, Ordering::Relaxed);
        words.store_u32(pipe_control::LINK_LEFT, number, Ordering::Release);
    };
    let is_cut_off = |stand: &mut Stand, name: &str| {
        stand.agent.turn();
        assert_eq!(stand.agent.violation(stand.ids.1), Some(Violation::Index), "{name}");
        stand.agent.turn();
        assert_eq!((stand.agent.violation(stand.ids.0), stand.sender.ended()), (None, None));
        let (id, receiver, _words) = open(&mut stand.agent, stand.ports.1, Direction::Receive);
        (stand.receiver, stand.ids.1) = (receiver, id);
        stand.send(9);
        stand.agent.turn();
        assert_eq!(stand.receive().last(), Some(&9), "{name}");
        assert_eq!(stand.sender.untaken(), 0, "{name}");
    };
    // Given back at the end of the path: more than there was, less than its beginning, or off a line.
    for consumer in [128 + 64, 1, u64::MAX - 63, u64::MAX, 1 << 63] {
        let mut stand = Stand::direct();
        stand.send(0);
        stand.send(1);
        left(&stand, consumer, 128);
        is_cut_off(&mut stand, &format!("at the end {consumer}"));
    }
    // And after it: backwards, beyond the end, or off a line.
    for consumer in [0, 192, 65, u64::MAX, 1 << 63] {
        let mut stand = Stand::direct();
        stand.send(0);
        stand.send(1);
        left(&stand, 64, 128);
        stand.agent.turn();
        assert_eq!((stand.agent.violation(stand.ids.1), stand.sender.untaken()), (None, 64));
        stand.words.1.store_u64(pipe_control::LINK_CONSUMER, consumer, Ordering::Release);
        is_cut_off(&mut stand, &format!("after it {consumer}"));
    }
    // More than a ring between the two positions.
    let mut stand = Stand::direct();
    for number in 0..RING / 64 + 1 {
        stand.send(number);
        assert_eq!(stand.receive(), [number]);
    }
    left(&stand, 0, RING + 64);
    is_cut_off(&mut stand, "more than the ring");
    // A sender that writes over what is lent: found by the bound of its ring.
    let (mut stand, mut loans) = (Stand::direct(), Loans::default());
    stand.send(0);
    loans.lend(&mut stand.receiver, frame(0, 64));
    stand.recall();
    stand.words.0.store_u64(pipe_control::SEND_PRODUCER, RING + 64, Ordering::Release);
    stand.agent.turn();
    assert_eq!(stand.agent.violation(stand.ids.0), Some(Violation::Index));
    assert_eq!((stand.agent.violation(stand.ids.1), stand.receiver.ended()), (None, None));
}
