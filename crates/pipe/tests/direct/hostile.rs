//! Ends with a hostile program: impossible words, bytes that change, memory that was not offered.
use super::*;

/// A faulty sender writes into a frame that is lent.
#[test]
fn bytes_of_a_frame_stay_as_they_were_whatever_its_sender_does() {
    let mut agent = Agent::new().unwrap();
    let ports = agent.add_link();
    let (to, receiver, to_words) = open(&mut agent, ports.1, Direction::Receive);
    let (from, offer) = agent.open(shape(Direction::Send), ports.0, &[], None).unwrap();
    let (from_words, ring) = (words(&offer), Region::<Own>::new(&offer.ring, RING as usize).unwrap());
    let sender = Pipe::map(offer).unwrap();
    agent.seal(from).unwrap();
    agent.set_owner(from, Some(7));
    let mut stand = Stand { agent, ports, ids: (from, to), sender, receiver, words: (from_words, to_words) };
    stand.go_direct();
    stand.send(1);
    stand.send(2);
    let mut frames = stand.receiver.frames().unwrap();
    let first = frames.next().unwrap();
    assert_eq!((first.length(), first.bytes()), (64, &frame(1, 64)[..]));
    ring.store_u64(0, 99, Ordering::Relaxed);
    let mut copy = [0; 8];
    assert_eq!((number(first.bytes()), first.copy_to(&mut copy)), (1, 8));
    // SAFETY: an aligned word of a frame that is lent, which nobody writes now.
    assert_eq!((number(&copy), unsafe { first.as_ptr().cast::<u64>().read_volatile() }), (99, 99));
    // The copy is of one frame.
    ring.store_u64(64, 98, Ordering::Relaxed);
    assert_eq!(number(frames.next().unwrap().bytes()), 98);
    assert!(frames.next().is_none());
}

#[test]
fn a_sender_with_impossible_words_is_cut_off_and_its_receiver_goes_on() {
    for value in [1, 63, RING + 63, u64::MAX - 63, u64::MAX, 1 << 63] {
        let mut stand = Stand::direct();
        stand.words.0.store_u64(pipe_control::SEND_PRODUCER, value, Ordering::Release);
        assert_eq!(stand.receive(), [], "{value}");
        assert!(!stand.receiver.is_direct());
        stand.agent.turn();
        stand.agent.turn();
        let violation = stand.agent.violation(stand.ids.0);
        assert_eq!(violation, Some(Violation::Index), "{value}");
        assert_eq!((stand.agent.violation(stand.ids.1), stand.receiver.ended()), (None, None));
        // The next sender has a direct path.
        stand.agent.close(stand.ids.0);
        let (id, sender, _words) = open(&mut stand.agent, stand.ports.0, Direction::Send);
        (stand.sender, stand.ids.0) = (sender, id);
        stand.go_direct();
    }
    // More than the ring has: no one can tell who is at fault. The two have no direct path again.
    let mut stand = Stand::direct();
    stand.words.0.store_u64(pipe_control::SEND_PRODUCER, RING + 64, Ordering::Release);
    assert_eq!(stand.receive(), []);
    stand.agent.turn();
    stand.agent.turn();
    assert_eq!([stand.ids.0, stand.ids.1].map(|id| stand.agent.violation(id)), [None, None]);
    assert!(stand.agent.peer(stand.ids.1).is_err());
    for length in [0, 13, 9217, u16::MAX, 65] {
        let mut stand = Stand::direct();
        stand.words.0.store_u32(entry_offset(0, RING), entry(length, 0), Ordering::Relaxed);
        stand.words.0.store_u64(pipe_control::SEND_PRODUCER, 64, Ordering::Release);
        assert_eq!(stand.receive(), []);
        stand.agent.turn();
        stand.agent.turn();
        assert_eq!(stand.agent.violation(stand.ids.0), Some(Violation::Length), "{length}");
        assert_eq!(stand.agent.violation(stand.ids.1), None);
    }
}

/// Its receiver has read what the sender then says was never sent.
#[test]
fn a_sender_that_takes_back_what_was_read_does_not_end_its_receiver() {
    for leaves_first in [false, true] {
        let mut stand = Stand::direct();
        stand.send(0);
        stand.send(1);
        assert_eq!(stand.receive(), [0, 1]);
        if leaves_first {
            stand.agent.set_owner(stand.ids.1, Some(8));
            stand.agent.turn();
            assert_eq!(stand.receive(), []);
            assert!(!stand.receiver.is_direct());
        }
        stand.words.0.store_u64(pipe_control::SEND_PRODUCER, 64, Ordering::Release);
        assert_eq!(stand.receive(), []);
        assert!(!stand.receiver.is_direct());
        stand.agent.turn();
        stand.agent.turn();
        assert_eq!((stand.agent.violation(stand.ids.1), stand.receiver.ended()), (None, None));
        // The receiver can have the direct path with the next sender.
        stand.agent.close(stand.ids.0);
        let (id, sender, _words) = open(&mut stand.agent, stand.ports.0, Direction::Send);
        (stand.sender, stand.ids.0) = (sender, id);
        stand.send(2);
        stand.agent.turn();
        assert_eq!(stand.receive(), [2]);
    }
}

/// A sender that drops all its frames, and sends on without waiting for space.
#[test]
fn a_sender_that_drops_frames_without_end_holds_up_no_look() {
    let mut stand = Stand::direct();
    for line in 0..RING / 64 {
        stand.words.0.store_u32(entry_offset(line * 64, RING), entry(64, DROP), Ordering::Relaxed);
    }
    let stop = AtomicBool::new(false);
    let words = &stand.words.0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut producer = 0u64;
            while !stop.load(Ordering::Acquire) {
                producer = producer.wrapping_add(64);
                words.store_u64(pipe_control::SEND_PRODUCER, producer, Ordering::Release);
            }
        });
        let receiver = &mut stand.receiver;
        while receiver.is_direct() {
            assert_eq!(receiver.frames().map(drop), Err(Errno::AGAIN));
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Release);
    });
    stand.agent.turn();
    stand.agent.turn();
    assert_eq!((stand.agent.violation(stand.ids.1), stand.receiver.ended()), (None, None));
}

#[test]
fn a_receiver_with_impossible_words_gains_nothing() {
    // Space that it never had.
    let mut stand = Stand::direct();
    for value in [1, 64, RING, u64::MAX, 1 << 63] {
        stand.words.1.store_u64(pipe_control::LINK_CONSUMER, value, Ordering::Release);
        assert_eq!(stand.sender.untaken(), 0, "{value}");
    }
    for number in 0..RING / 64 {
        stand.sender.send(&frame(number, 64), BACK).unwrap();
    }
    assert_eq!(stand.sender.send(&[1; 64], BACK), Err(Errno::AGAIN));
    stand.words.1.store_u64(pipe_control::LINK_CONSUMER, RING + 64, Ordering::Release);
    assert_eq!(stand.sender.send(&[1; 64], BACK), Err(Errno::AGAIN));
    // An end that cannot be, whatever was sent.
    for at in [1, 64 * 3 + 1, u64::MAX - 63, 1 << 63] {
        let mut stand = Stand::direct();
        stand.send(0);
        let number = stand.words.1.load_u32(pipe_control::LINK_MAPPED, Ordering::Relaxed);
        stand.words.1.store_u64(pipe_control::LINK_LEFT_AT, at, Ordering::Relaxed);
        stand.words.1.store_u32(pipe_control::LINK_LEFT, number, Ordering::Release);
        stand.agent.turn();
        assert_eq!(stand.agent.violation(stand.ids.1), Some(Violation::Index), "{at}");
        stand.agent.turn();
        assert_eq!((stand.agent.violation(stand.ids.0), stand.sender.ended()), (None, None));
        let (id, receiver, _words) = open(&mut stand.agent, stand.ports.1, Direction::Receive);
        (stand.receiver, stand.ids.1) = (receiver, id);
        stand.send(1);
        stand.agent.turn();
        assert_eq!(stand.receive(), [1]);
    }
    // More than was sent, by the sender's word: either may be at fault.
    for at in [128, RING + 64, 1 << 40] {
        let mut stand = Stand::direct();
        stand.send(0);
        let number = stand.words.1.load_u32(pipe_control::LINK_MAPPED, Ordering::Relaxed);
        stand.words.1.store_u64(pipe_control::LINK_CONSUMER, at, Ordering::Release);
        stand.words.1.store_u64(pipe_control::LINK_LEFT_AT, at, Ordering::Relaxed);
        stand.words.1.store_u32(pipe_control::LINK_LEFT, number, Ordering::Release);
        stand.agent.turn();
        stand.send(1);
        stand.agent.turn();
        assert_eq!([stand.ids.0, stand.ids.1].map(|id| stand.agent.violation(id)), [None, None], "{at}");
        assert_eq!((stand.receive(), stand.sender.ended()), (vec![1], None));
    }
    // Counts that only it writes.
    let mut stand = Stand::direct();
    for value in [u64::MAX, 5, 1 << 63, 0] {
        for word in [pipe_control::LINK_FRAMES, pipe_control::LINK_BYTES, pipe_control::LINK_FOREIGN] {
            stand.words.1.store_u64(word, value, Ordering::Relaxed);
        }
        assert!(stand.counts()[1].frames_received <= 1 << 49);
    }
}

#[test]
fn a_pipe_maps_nothing_that_is_not_offered() {
    let mut stand = Stand::new();
    stand.agent.turn();
    let [for_sender, for_receiver] = [stand.ids.0, stand.ids.1].map(|id| stand.agent.peer(id).unwrap());
    assert_eq!(stand.receiver.accept(&for_sender), Err(Errno::INVAL));
    assert_eq!(stand.sender.accept(&for_receiver), Err(Errno::INVAL));
    // Withdrawn before it was accepted, and after.
    stand.agent.set_owner(stand.ids.0, None);
    stand.agent.turn();
    assert_eq!(stand.receiver.accept(&for_receiver), Err(Errno::INVAL));
    stand.agent.set_owner(stand.ids.0, Some(7));
    stand.agent.turn();
    stand.accept();
    stand.agent.set_owner(stand.ids.0, None);
    stand.agent.turn();
    stand.send(0);
    stand.agent.turn();
    assert!(!stand.is_direct());
    assert_eq!(stand.receive(), [0]);
    // Pipes of no owner, of two, and those that forward are offered nothing.
    stand.agent.set_owner(stand.ids.1, None);
    stand.agent.turn();
    assert!(stand.agent.peer(stand.ids.0).is_err());
    for unit in [Unit::Frames, Unit::Bytes] {
        for directions in [(Direction::Send, Direction::Forward), (Direction::Forward, Direction::Receive)] {
            let mut agent = Agent::new().unwrap();
            let (near, far) = agent.add_link();
            for (direction, port) in [(directions.0, near), (directions.1, far)] {
                let (made, files, offer) = Made::new(Shape::new(direction, unit, RING).unwrap()).unwrap();
                let id = agent.adopt(made, &Route::to(port)).unwrap();
                let pipe = Pipe::map(offer).unwrap();
                files.seal().unwrap();
                agent.start(id).unwrap();
                agent.set_owner(id, Some(7));
                agent.turn();
                assert!(!pipe.is_offered());
            }
        }
    }
}

#[test]
fn words_of_a_path_are_the_agents() {
    let mut agent = Agent::new().unwrap();
    let (near, _far) = agent.add_link();
    let (_, offer) = agent.open(shape(Direction::Send), near, &[], None).unwrap();
    let words = Region::<Own>::new(&offer.status, 4096);
    assert_eq!(words.map(drop), Err(Errno::PERM));
    let status = Region::<pd_shm::Theirs>::new(&offer.status, 4096).unwrap();
    assert_eq!(status.load_u32(pipe_status::LINK, Ordering::Relaxed), link(0, LinkPath::Agent));
}
