//! Streams of bytes and messages whose link changes its path.
use super::threads::{ask_from_afar, change_paths};
use super::*;
use pd_pipe::Prefix;
use std::time::Instant;

fn of_bytes(direction: Direction) -> Shape {
    Shape::new(direction, Unit::Bytes, RING).unwrap()
}

/// The byte at a position of the stream.
fn byte(position: u64) -> u8 {
    (position % 251) as u8
}

/// Checks that bytes are those of the stream from `position` on.
fn are_of_stream(bytes: &[u8], position: u64) -> bool {
    bytes.iter().zip(position..).all(|(&got, position)| got == byte(position))
}

/// A link of bytes, and the positions up to which they were sent and read.
struct Streams {
    stand: Stand,
    sent: u64,
    read: u64,
}

impl Streams {
    fn new() -> Self {
        let mut agent = Agent::new().unwrap();
        let ports = agent.add_link();
        let (to, receiver, to_words) = open_as(&mut agent, ports.1, of_bytes(Direction::Receive));
        let (from, sender, from_words) = open_as(&mut agent, ports.0, of_bytes(Direction::Send));
        let words = (from_words, to_words);
        let stand = Stand { agent, ports, ids: (from, to), sender, receiver, words };
        Self { stand, sent: 0, read: 0 }
    }

    fn direct() -> Self {
        let mut this = Self::new();
        this.go_direct();
        this
    }

    /// The receiver notices when it looks for more.
    fn go_direct(&mut self) {
        self.stand.agent.turn();
        self.stand.accept();
        self.stand.agent.turn();
        assert!(self.stand.is_direct());
        let _ = self.stand.receiver.wait_more(Duration::ZERO);
        assert!(self.stand.receiver.is_direct());
    }

    /// Has the agent take the path back, and pass on what is there.
    fn recall(&mut self) {
        self.stand.agent.set_owner(self.stand.ids.1, Some(8));
        self.turn();
        self.look();
        self.turn();
        assert!(!self.stand.is_direct() && !self.stand.receiver.is_direct());
    }

    fn allow(&mut self) {
        self.stand.agent.set_owner(self.stand.ids.1, Some(7));
    }

    fn turn(&mut self) {
        for _ in 0..3 {
            self.stand.agent.turn();
        }
    }

    /// Sends `len` bytes, if there is room for them.
    fn try_send(&mut self, len: usize) -> bool {
        let from = self.sent;
        match self.stand.sender.place(len) {
            Ok(place) => place.iter_mut().zip(from..).for_each(|(place, position)| *place = byte(position)),
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                return false;
            }
        }
        self.stand.sender.placed(BACK);
        self.sent += len as u64;
        true
    }

    fn send(&mut self, len: usize) {
        assert!(self.try_send(len));
        self.stand.sender.flush();
    }

    /// Looks for bytes. Returns the number of those that are unread, which are the stream's.
    fn look(&mut self) -> usize {
        match self.stand.receiver.peek() {
            Ok(bytes) => {
                assert!(are_of_stream(bytes, self.read));
                bytes.len()
            }
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                0
            }
        }
    }

    fn read(&mut self, len: usize) {
        assert!(self.look() >= len);
        self.stand.receiver.done(len).unwrap();
        self.read += len as u64;
    }

    fn counts(&mut self) -> (u64, u64) {
        let [sent, received] = self.stand.counts();
        (sent.bytes_sent, received.bytes_received)
    }
}

#[test]
fn bytes_go_past_the_agent_and_are_counted() {
    let mut streams = Streams::direct();
    for len in [1, 63, 64, 1000, 7, RING as usize, 1] {
        streams.send(len);
        assert_eq!(streams.look(), len);
        // The sender has its space when they are copied.
        assert_eq!(streams.stand.sender.untaken(), 0);
        streams.read(len);
        assert_eq!(streams.look(), 0);
    }
    assert!(!streams.stand.agent.turn(), "the agent has nothing to do");
    assert_eq!(streams.counts(), (streams.sent, streams.sent));
    let ports = streams.stand.ports;
    let [near, far] = [ports.0, ports.1].map(|port| streams.stand.agent.port_counts(port));
    assert_eq!((near.bytes_sent, far.bytes_received), (streams.sent, streams.sent));
    // More than its program has room for waits in the sender's ring.
    streams.send(RING as usize);
    assert_eq!(streams.look(), RING as usize);
    streams.send(5000);
    assert_eq!((streams.look(), streams.stand.sender.untaken()), (RING as usize, 5000));
    assert_eq!(streams.stand.receiver.wait_more(Duration::ZERO), Err(Errno::MSGSIZE));
    streams.read(4000);
    assert_eq!((streams.look(), streams.stand.sender.untaken()), (RING as usize, 1000));
    streams.read(RING as usize);
    assert_eq!(streams.look(), 1000);
}

/// A part of a message that is there when the path changes is in one piece with what follows, and stays where it was lent.
#[test]
fn unread_bytes_are_in_one_piece_across_every_change() {
    let mut streams = Streams::new();
    streams.send(100);
    streams.turn();
    // The address that a program of C may keep.
    let kept = streams.stand.receiver.peek().unwrap().as_ptr();
    let check = |streams: &Streams| {
        // SAFETY: bytes that are not given back, of a pipe that lives.
        assert!(are_of_stream(unsafe { std::slice::from_raw_parts(kept, 100) }, 0), "{}", streams.read);
    };
    streams.go_direct();
    assert_eq!(streams.look(), 100);
    streams.send(50);
    assert_eq!(streams.look(), 150);
    check(&streams);
    streams.recall();
    streams.send(30);
    // The agent tells of them when the program asks for more than it has.
    assert_eq!(streams.stand.receiver.wait_more(Duration::ZERO), Err(Errno::AGAIN));
    streams.turn();
    assert_eq!(streams.look(), 180);
    // As much as fits: what was lent in the own ring stays there.
    while streams.try_send(1024) {
        streams.stand.sender.flush();
        streams.turn();
        let _ = streams.stand.receiver.wait_more(Duration::ZERO);
    }
    streams.turn();
    check(&streams);
    assert_eq!(streams.look(), RING as usize);
    streams.read(100);
    streams.turn();
    assert!(streams.look() > RING as usize - 100, "its place is free");
    streams.allow();
    let mut reads = 0;
    while streams.read < streams.sent {
        match streams.look() {
            0 => drop(streams.stand.receiver.wait_more(Duration::ZERO)),
            unread => streams.read(unread / 2 + 1),
        }
        streams.turn();
        streams.stand.accept();
        streams.turn();
        reads += 1;
        assert!(reads < 1000, "{} of {}", streams.read, streams.sent);
    }
    streams.go_direct();
    streams.send(10);
    assert_eq!(streams.look(), 10);
    streams.recall();
    // Read to the end, bytes are lent in the own ring again.
    streams.read(10);
    streams.send(20);
    streams.turn();
    assert_eq!(streams.look(), 20);
    streams.read(20);
    assert_eq!(streams.counts(), (streams.sent, streams.sent));
}

/// A program keeps the last of many bytes that were copied out of its own ring, and waits for what follows it there.
#[test]
fn a_byte_that_is_kept_across_a_change_holds_no_place_but_its_own() {
    let mut streams = Streams::new();
    streams.send(RING as usize);
    streams.turn();
    streams.go_direct();
    assert_eq!(streams.look(), RING as usize);
    streams.read(RING as usize - 1);
    streams.recall();
    streams.send(5000);
    for _ in 0..5 {
        streams.turn();
        let _ = streams.stand.receiver.wait_more(Duration::ZERO);
    }
    assert_eq!(streams.look(), 5001);
    streams.read(5001);
}

#[test]
fn a_wait_for_more_than_the_ring_has_is_refused_on_every_path() {
    for goes_direct in [false, true] {
        let mut streams = if goes_direct { Streams::direct() } else { Streams::new() };
        while streams.look() < RING as usize {
            let _ = streams.try_send(1024);
            streams.stand.sender.flush();
            streams.turn();
            let _ = streams.stand.receiver.wait_more(Duration::ZERO);
        }
        // One ring before the receiver, and one behind it.
        while streams.try_send(1024) {
            streams.stand.sender.flush();
        }
        assert_eq!(streams.stand.receiver.wait_more(Duration::from_secs(1)), Err(Errno::MSGSIZE));
        streams.read(1);
        streams.turn();
        assert_eq!(streams.stand.receiver.wait_more(PATIENCE), Ok(()));
        assert_eq!(streams.look(), RING as usize);
        // An end is told rather than that.
        streams.stand.agent.remove_port(streams.stand.ports.0);
        assert_eq!(streams.stand.receiver.wait_more(PATIENCE), Err(Errno::NODEV));
    }
}

/// Changes the path, or leaves it.
fn go(streams: &mut Streams, goes_direct: bool) {
    match goes_direct {
        true => {
            streams.allow();
            streams.turn();
            streams.stand.accept();
            streams.turn();
            streams.look();
        }
        false => streams.recall(),
    }
    assert_eq!(streams.stand.receiver.is_direct(), goes_direct);
}

/// A part of a message is nothing to do, however its program waits for the rest, and whichever way that comes.
#[test]
fn a_part_of_a_message_is_nothing_to_do() {
    for (goes_direct, changes) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut streams = Streams::new();
        polling::begin_to_poll(&mut streams.stand.agent, streams.stand.ids.1, &mut streams.stand.receiver);
        if goes_direct {
            go(&mut streams, true);
        }
        streams.send(10);
        streams.turn();
        assert_eq!((streams.look(), streams.stand.receiver.arm()), (10, Ok(true)));
        assert_eq!(streams.stand.receiver.need(RING as usize + 1), Err(Errno::MSGSIZE));
        streams.stand.receiver.need(1000).unwrap();
        assert_eq!(streams.stand.receiver.arm(), Ok(false));
        assert!(!polling::is_readable(&streams.stand.receiver));
        assert_eq!(streams.stand.receiver.wait(Duration::ZERO), Err(Errno::AGAIN));
        if changes {
            go(&mut streams, !goes_direct);
            assert_eq!(streams.stand.receiver.arm(), Ok(false));
        }
        for len in [1, 500, 488, 1] {
            let receiver = &mut streams.stand.receiver;
            assert_eq!((receiver.arm(), polling::is_readable(receiver)), (Ok(false), false));
            streams.send(len);
            streams.turn();
            assert!(polling::is_readable(&streams.stand.receiver), "{len}");
        }
        assert_eq!(streams.stand.receiver.arm(), Ok(true));
        assert_eq!(streams.stand.receiver.wait(Duration::ZERO), Ok(()));
        // From then on one byte is enough.
        streams.read(999);
        assert_eq!(streams.stand.receiver.arm(), Ok(true));
        streams.read(1);
        assert_eq!(streams.stand.receiver.arm(), Ok(false));
        // As much as the ring has.
        streams.stand.receiver.need(RING as usize).unwrap();
        for piece in 1..=16 {
            streams.send(RING as usize / 16);
            streams.turn();
            assert_eq!(streams.stand.receiver.arm(), Ok(piece == 16), "{piece}");
        }
        streams.read(RING as usize - 1);
        // An end is told though a part is unread.
        streams.stand.receiver.need(2).unwrap();
        assert_eq!(streams.stand.receiver.arm(), Ok(false));
        streams.stand.agent.remove_port(streams.stand.ports.0);
        let receiver = &mut streams.stand.receiver;
        assert!(polling::is_readable(receiver));
        assert_eq!((receiver.arm(), receiver.wait(PATIENCE)), (Err(Errno::NODEV), Err(Errno::NODEV)));
        assert_eq!(streams.look(), 1);
    }
}

/// Messages that are looked for ask for the rest of a part by themselves.
#[test]
fn a_program_waits_for_whole_messages() {
    for goes_direct in [false, true] {
        let mut streams = if goes_direct { Streams::direct() } else { Streams::new() };
        let mut message = vec![0; 104];
        Prefix::Four.write(&[9; 100], &mut message).unwrap();
        for (cut, needed) in [(1, 4), (3, 4), (4, 104), (103, 104)] {
            for (part, is_whole) in [(&message[..cut], false), (&message[cut..], true)] {
                assert_eq!(streams.stand.receiver.arm(), Ok(false));
                streams.stand.sender.send(part, BACK).unwrap();
                streams.stand.sender.flush();
                streams.turn();
                if streams.stand.receiver.arm() == Ok(true) {
                    let mut messages = streams.stand.receiver.messages(Prefix::Four).unwrap();
                    assert_eq!(messages.next().unwrap(), is_whole.then_some(&[9; 100][..]));
                    assert_eq!(messages.next(), Ok(None));
                }
                let expected = if is_whole { 1 } else { needed };
                assert_eq!(streams.stand.receiver.needed(), expected, "{cut}");
            }
        }
        // One that is longer than the ring.
        streams.stand.sender.send(&(RING as u32 - 3).to_be_bytes(), BACK).unwrap();
        streams.stand.sender.flush();
        streams.turn();
        assert_eq!(streams.stand.receiver.wait(PATIENCE), Ok(()));
        let mut messages = streams.stand.receiver.messages(Prefix::Four).unwrap();
        assert_eq!(messages.next(), Err(Errno::MSGSIZE));
    }
}

/// A sender that wants more room than a quarter of the ring has nothing to do until it is there.
#[test]
fn a_sender_is_told_of_as_much_room_as_it_has_asked_for() {
    for goes_direct in [false, true] {
        let mut streams = Streams::new();
        polling::begin_to_poll(&mut streams.stand.agent, streams.stand.ids.0, &mut streams.stand.sender);
        if goes_direct {
            streams.go_direct();
        }
        let half = RING as usize / 2;
        // Of three halves one is read where the path is direct, and two by the agent into the receiver's ring.
        let sent = if goes_direct { 2 } else { 4 };
        for _ in 0..sent {
            streams.send(half);
            if !goes_direct {
                streams.turn();
            }
        }
        assert!(!streams.try_send(half + 1));
        assert_eq!(streams.stand.sender.arm(), Ok(false));
        if goes_direct {
            assert_eq!(streams.look(), RING as usize);
            streams.send(half);
            assert!(!streams.try_send(half + 1));
            assert_eq!(streams.stand.sender.arm(), Ok(false), "a half is free");
        }
        let mut read = 0;
        while streams.stand.sender.arm() == Ok(false) {
            assert!(!streams.try_send(half + 1), "{read}");
            streams.read(1024);
            streams.turn();
            read += 1;
            assert!(read < 100);
            let has_room = streams.stand.sender.untaken() < RING / 2;
            assert_eq!(polling::is_readable(&streams.stand.sender), has_room, "{read}");
        }
        assert!(streams.try_send(half + 1), "{read}");
        streams.stand.sender.flush();
        // Then a quarter is enough again.
        while streams.stand.sender.arm() == Ok(false) {
            let unread = streams.look();
            streams.read(unread.min(1024));
            streams.turn();
        }
        assert!(streams.stand.sender.untaken() > RING / 2);
    }
}

#[test]
fn bytes_stay_as_they_were_whatever_their_sender_does() {
    let mut agent = Agent::new().unwrap();
    let ports = agent.add_link();
    let (to, receiver, to_words) = open_as(&mut agent, ports.1, of_bytes(Direction::Receive));
    let (from, offer) = agent.open(of_bytes(Direction::Send), ports.0, &[], None).unwrap();
    let (from_words, ring) = (words(&offer), Region::<Own>::new(&offer.ring, RING as usize).unwrap());
    let sender = Pipe::map(offer).unwrap();
    agent.seal(from).unwrap();
    agent.set_owner(from, Some(7));
    let stand = Stand { agent, ports, ids: (from, to), sender, receiver, words: (from_words, to_words) };
    let mut streams = Streams { stand, sent: 0, read: 0 };
    streams.go_direct();
    streams.send(100);
    let bytes = streams.stand.receiver.peek().unwrap();
    (0..RING as usize).step_by(8).for_each(|at| ring.store_u64(at, u64::MAX, Ordering::Relaxed));
    assert!(bytes.len() == 100 && are_of_stream(bytes, 0));
}

#[test]
fn messages_come_whole_across_every_change() {
    for cut in [1, 3, 5, 40, 99] {
        let mut streams = Streams::new();
        let mut message = vec![0; 104];
        Prefix::Four.write(&[9; 100], &mut message).unwrap();
        let (stand, mut got) = (&mut streams.stand, 0);
        let receive = |stand: &mut Stand, got: &mut u64| {
            let Ok(mut messages) = stand.receiver.messages(Prefix::Four) else { return };
            while let Some(message) = messages.next().unwrap() {
                assert_eq!(message, [9; 100]);
                *got += 1;
            }
        };
        // Two messages for each change; the second has a part on either side.
        for change in 0..40 {
            for part in [&message[..], &message[..cut]] {
                stand.sender.send(part, BACK).unwrap();
                stand.sender.flush();
            }
            stand.agent.turn();
            receive(stand, &mut got);
            stand.agent.set_owner(stand.ids.1, Some(7 + change % 2));
            stand.agent.turn();
            stand.accept();
            receive(stand, &mut got);
            stand.agent.turn();
            receive(stand, &mut got);
            stand.sender.send(&message[cut..], BACK).unwrap();
            stand.sender.flush();
            for _ in 0..3 {
                let _ = stand.receiver.wait_more(Duration::ZERO);
                stand.agent.turn();
            }
            receive(stand, &mut got);
            assert_eq!((stand.is_direct(), got), (change % 2 == 0, 2 * (change + 1)), "{cut}");
        }
    }
}

/// As frames: what a sender had sent is there, also where its receiver has no room for it at once, and then comes what the next one sends.
#[test]
fn a_side_that_ends_leaves_the_other_with_a_clear_end() {
    let mut streams = Streams::direct();
    streams.send(3000);
    assert_eq!(streams.look(), 3000);
    streams.send(RING as usize);
    streams.stand.agent.close(streams.stand.ids.0);
    let next = |streams: &mut Streams| {
        let stand = &mut streams.stand;
        let (id, sender, words) = open_as(&mut stand.agent, stand.ports.0, of_bytes(Direction::Send));
        (stand.sender, stand.ids.0, stand.words.0) = (sender, id, words);
    };
    next(&mut streams);
    streams.send(500);
    streams.turn();
    let mut reads = 0;
    while streams.read < streams.sent {
        let unread = streams.look();
        streams.read(unread.min(1000));
        streams.turn();
        reads += 1;
        assert!(reads < 100, "{} of {}", streams.read, streams.sent);
    }
    streams.go_direct();
    // The receiver goes with what it has copied, and with what it has not.
    streams.send(100);
    assert_eq!(streams.look(), 100);
    streams.send(50);
    streams.stand.agent.close(streams.stand.ids.1);
    let stand = &mut streams.stand;
    let (id, receiver, words) = open_as(&mut stand.agent, stand.ports.1, of_bytes(Direction::Receive));
    (stand.receiver, stand.ids.1, stand.words.1) = (receiver, id, words);
    streams.read = streams.sent;
    streams.send(70);
    streams.turn();
    assert_eq!(streams.look(), 70);
    streams.read(70);
    streams.go_direct();
    // Its port goes: what is known is read, and then the end is told.
    streams.send(10);
    assert_eq!(streams.look(), 10);
    streams.stand.agent.remove_port(streams.stand.ports.0);
    assert_eq!(streams.stand.receiver.wait_more(PATIENCE), Err(Errno::NODEV));
    streams.read(10);
    assert_eq!(streams.stand.receiver.wait(PATIENCE), Err(Errno::NODEV));
    assert_eq!(streams.stand.sender.wait_room(RING, PATIENCE), Err(Errno::NODEV));
}

/// A sender that has ended sends on.
#[test]
fn a_sender_that_has_ended_is_read_no_further() {
    let mut streams = Streams::direct();
    streams.send(100);
    let old = streams.stand.ids.0;
    streams.stand.agent.close(old);
    assert_eq!(streams.look(), 100);
    streams.stand.words.0.store_u64(pipe_control::SEND_PRODUCER, 200, Ordering::Release);
    assert_eq!(streams.look(), 100);
    assert!(!streams.stand.receiver.is_direct());
}

#[test]
fn impossible_words_end_their_program_alone() {
    // The sender's.
    for value in [RING + 1, u64::MAX, 1 << 63] {
        let mut streams = Streams::direct();
        streams.stand.words.0.store_u64(pipe_control::SEND_PRODUCER, value, Ordering::Release);
        assert_eq!(streams.look(), 0, "{value}");
        assert!(!streams.stand.receiver.is_direct());
        streams.turn();
        let is_known = value > u64::MAX / 2;
        let violation = streams.stand.agent.violation(streams.stand.ids.0);
        assert_eq!(violation, is_known.then_some(Violation::Index), "{value}");
        let receiver = (streams.stand.agent.violation(streams.stand.ids.1), streams.stand.receiver.ended());
        assert_eq!(receiver, (None, None));
    }
    // The receiver's: an end before the path began, and one at which more is lent than there is.
    for (given, at) in [(0, u64::MAX), (0, 1 << 63), (101, 100), (u64::MAX, 100), (0, RING + 1)] {
        let mut streams = Streams::direct();
        streams.send(100);
        let words = &streams.stand.words.1;
        let number = words.load_u32(pipe_control::LINK_MAPPED, Ordering::Relaxed);
        words.store_u64(pipe_control::LINK_CONSUMER, given, Ordering::Release);
        words.store_u64(pipe_control::LINK_LEFT_AT, at, Ordering::Relaxed);
        words.store_u32(pipe_control::LINK_LEFT, number, Ordering::Release);
        streams.turn();
        let violation = streams.stand.agent.violation(streams.stand.ids.1);
        assert_eq!(violation, Some(Violation::Index), "{given} {at}");
        let sender = (streams.stand.agent.violation(streams.stand.ids.0), streams.stand.sender.ended());
        assert_eq!(sender, (None, None));
        assert_eq!(streams.stand.sender.untaken(), 0);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Flush,
    Turn,
    Read(usize),
    Messages,
    Wait,
    Arm,
    Need(usize),
    Accept,
    Recall,
    Allow,
    /// All that was sent is there, as far as there is room.
    Full,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (1..9000usize).prop_map(Step::Send),
        5 => (1..200usize).prop_map(Step::Send),
        4 => Just(Step::Flush),
        5 => Just(Step::Turn),
        6 => (0usize..40).prop_map(Step::Read),
        3 => Just(Step::Messages),
        2 => Just(Step::Wait),
        2 => Just(Step::Arm),
        1 => (1..RING as usize).prop_map(Step::Need),
        3 => Just(Step::Accept),
        1 => Just(Step::Recall),
        2 => Just(Step::Allow),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Bytes arrive once and in order, in one piece, whoever passes them on and wherever the program cuts them.
    #[test]
    fn a_link_that_changes_paths_is_a_stream(steps in steps()) {
        let mut streams = Streams::new();
        // A program that waits for the rest of a message, and reads nothing of it, sees as much as the ring has.
        let waits = (0..60).map(|n| if n % 2 == 0 { Step::Turn } else { Step::Wait });
        let end = (0..200).map(|n| if n % 2 == 0 { Step::Turn } else { Step::Read(39) });
        for step in steps.into_iter().chain([Step::Flush]).chain(waits).chain([Step::Full]).chain(end) {
            match step {
                Step::Full => {
                    let expected = (streams.sent - streams.read).min(RING);
                    prop_assert_eq!(streams.look() as u64, expected);
                }
                Step::Send(len) => drop(streams.try_send(len)),
                Step::Flush => streams.stand.sender.flush(),
                Step::Turn => drop(streams.stand.agent.turn()),
                Step::Read(part) => {
                    let len = streams.look() * (part + 1) / 40;
                    streams.read(len);
                }
                Step::Messages => {
                    // Lengths are those that two bytes of the stream make.
                    let Ok(mut messages) = streams.stand.receiver.messages(Prefix::Two) else { continue };
                    while let Ok(Some(message)) = messages.next() {
                        let expected = usize::from(byte(streams.read)) << 8 | usize::from(byte(streams.read + 1));
                        prop_assert_eq!(message.len(), expected);
                        prop_assert!(are_of_stream(message, streams.read + 2));
                        streams.read += 2 + expected as u64;
                    }
                }
                Step::Wait => {
                    let known = streams.stand.receiver.waiting();
                    match streams.stand.receiver.wait_more(Duration::ZERO) {
                        Ok(()) => prop_assert!(streams.stand.receiver.waiting() > known),
                        Err(errno) if known == RING => prop_assert_eq!(errno, Errno::MSGSIZE),
                        Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                    }
                }
                Step::Arm => {
                    let is_there = streams.stand.receiver.arm().unwrap();
                    let needed = streams.stand.receiver.needed();
                    prop_assert_eq!(is_there, streams.look() as u64 >= needed);
                }
                Step::Need(len) => streams.stand.receiver.need(len).unwrap(),
                Step::Accept => streams.stand.accept(),
                Step::Recall => streams.stand.agent.set_owner(streams.stand.ids.1, Some(8)),
                Step::Allow => streams.allow(),
            }
        }
        prop_assert_eq!(streams.read, streams.sent);
        let ids = streams.stand.ids;
        prop_assert_eq!([ids.0, ids.1].map(|id| streams.stand.agent.violation(id)), [None, None]);
        prop_assert_eq!(streams.counts(), (streams.sent, streams.sent));
    }

    /// Whatever the sender writes into its words, the receiver's library reads nothing outside, goes on, and is not ended.
    #[test]
    fn a_receiver_survives_any_sender(writes in prop::collection::vec((any::<u64>(), 0..4u8, any::<bool>()), 0..60)) {
        let mut streams = Streams::direct();
        let mut producer = 0u64;
        for (value, kind, turns) in writes {
            producer = match kind {
                0 => value,
                1 => producer.wrapping_sub(value % 100),
                _ => producer.wrapping_add(value % 20_000),
            };
            streams.stand.words.0.store_u64(pipe_control::SEND_PRODUCER, producer, Ordering::Release);
            if let Ok(bytes) = streams.stand.receiver.peek() {
                prop_assert!(bytes.len() <= RING as usize);
                std::hint::black_box(bytes.iter().fold(0u8, |sum, &byte| sum ^ byte));
                let len = bytes.len() / 2 + 1;
                streams.stand.receiver.done(len).unwrap();
            }
            if turns {
                streams.stand.agent.turn();
            }
        }
        let id = streams.stand.ids.1;
        prop_assert_eq!((streams.stand.agent.violation(id), streams.stand.receiver.ended()), (None, None));
    }
}

/// Repeats a wait that ends early, without news, until there are some.
fn sleep_until(mut wait: impl FnMut() -> rustix::io::Result<()>) {
    let begun = Instant::now();
    while let Err(errno) = wait() {
        assert_eq!(errno, Errno::AGAIN);
        assert!(begun.elapsed() < PATIENCE, "nobody wakes");
    }
}

/// Two programs and an agent, each in a thread that sleeps, while the path changes all the time. `polls`: they wait by their descriptors.
fn exchange_while_the_path_changes(polls: bool) {
    let Streams { stand, .. } = Streams::new();
    let Stand { mut agent, ids, mut sender, mut receiver, .. } = stand;
    if polls {
        polling::begin_to_poll(&mut agent, ids.0, &mut sender);
        polling::begin_to_poll(&mut agent, ids.1, &mut receiver);
    }
    let asked = ask_from_afar(ids, &mut sender, &mut receiver);
    let (enough, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (enough, stop) = (&enough, &stop);
    // The stream ends with bytes that are none of its own, more than the program waits for beyond what is there.
    const END: u8 = 255;
    const ENDS: usize = 1000;
    std::thread::scope(|scope| {
        let agent = scope.spawn(move || {
            change_paths(&mut agent, ids, &asked, [enough, stop]);
            agent.count_links();
            [ids.0, ids.1].map(|id| agent.counts(id).unwrap())
        });
        let sender = scope.spawn(move || {
            let wait = |sender: &mut Pipe| match polls {
                true => polling::sleep(sender),
                false => sleep_until(|| sender.wait_room(RING / 4, PATIENCE)),
            };
            let mut sent = 0;
            while !enough.load(Ordering::Acquire) {
                let len = 1 + sent % 4001;
                match sender.place(len as usize) {
                    Ok(place) => place.iter_mut().zip(sent..).for_each(|(place, at)| *place = byte(at)),
                    Err(errno) => {
                        assert_eq!(errno, Errno::AGAIN);
                        wait(&mut sender);
                        continue;
                    }
                }
                sender.placed(BACK);
                sent += len;
                if sent % 3 == 0 {
                    sender.flush();
                }
            }
            while sender.send(&[END; ENDS], BACK).is_err() {
                wait(&mut sender);
            }
            sleep_until(|| sender.wait_room(RING, PATIENCE));
            sent
        });
        let (mut read, mut is_over) = (0, false);
        while !is_over {
            match polls {
                true => polling::sleep(&mut receiver),
                // Every other time more than a part is waited for.
                false if read % 2 == 0 => sleep_until(|| receiver.wait(PATIENCE)),
                false => sleep_until(|| receiver.wait_more(PATIENCE)),
            }
            let Ok(bytes) = receiver.peek() else { continue };
            let len = bytes.iter().position(|&byte| byte == END).unwrap_or(bytes.len());
            is_over = bytes.len() - len == ENDS;
            let ends = bytes.len() > len;
            assert!(are_of_stream(&bytes[..len], read));
            // A part stays unread, of which every third time a message is made.
            let kept = if is_over { 0 } else { len / 3 };
            receiver.done(len - kept + if is_over { ENDS } else { 0 }).unwrap();
            read += (len - kept) as u64;
            if !ends && read % 3 == 0 {
                receiver.need(kept + 1 + read as usize % ENDS).unwrap();
            }
        }
        let _ = receiver.arm();
        assert_eq!(sender.join().unwrap(), read);
        stop.store(true, Ordering::Release);
        let [sent, received] = agent.join().unwrap();
        let all = read + ENDS as u64;
        assert_eq!((sent.bytes_sent, received.bytes_received), (all, all));
    });
}

#[test]
fn programs_that_sleep_lose_no_byte_while_the_path_changes() {
    exchange_while_the_path_changes(false);
}

#[test]
fn programs_in_poll_lose_no_byte_while_the_path_changes() {
    exchange_while_the_path_changes(true);
}
