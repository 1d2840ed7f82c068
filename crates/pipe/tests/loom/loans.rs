//! Places of a link's ring: one is free when its byte is copied or given back, and not before.
use super::*;

/// The words of a stream on the direct path. The sender's ring has room for one byte.
struct Copying {
    place: UnsafeCell<u64>,
    sent: AtomicU64,
    given: AtomicU64,
    weak: Weak,
}

impl IntakeCells for Copying {
    fn load_producer(&self) -> u64 {
        self.sent.load(self.weak.order("acquire of what is sent", Acquire))
    }
    fn load_entry(&self, _position: u64) -> u32 {
        unreachable!("bytes have no entries")
    }
    fn store_consumer(&self, position: u64) {
        self.given.store(position, self.weak.order("release of the space", Release));
    }
}

const COPYING: [&str; 4] =
    ["release of what is sent", "acquire of what is sent", "release of the space", "acquire of the space"];

/// The receiver of a stream gives a place back when it has copied the byte, and not before.
#[test]
fn a_byte_is_copied_before_its_place_is_given_back() {
    check("loans::a_byte_is_copied_before_its_place_is_given_back", 3, &COPYING, |weak| {
        const BYTES: u64 = 2;
        let zero = || AtomicU64::new(0);
        let words = Arc::new(Copying { place: UnsafeCell::new(9), sent: zero(), given: zero(), weak });
        let sender = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                for byte in 0..BYTES {
                    while words.given.load(weak.order("acquire of the space", Acquire)) < byte {
                        thread::yield_now();
                    }
                    // SAFETY: loom checks that no access is concurrent with this write.
                    words.place.with_mut(|place| unsafe { *place = byte });
                    words.sent.store(byte + 1, weak.order("release of what is sent", Release));
                }
            })
        };
        let mut intake = Intake::new(Shape::new(Direction::Send, Unit::Bytes, 32 << 10).unwrap(), 1);
        while intake.taken() < BYTES {
            if !intake.look(&*words, 0).unwrap() {
                thread::yield_now();
            }
            // Models `Pipe::gather_piece`.
            while intake.next(&*words).unwrap().is_some() {
                // SAFETY: loom checks that no write is concurrent with this read.
                assert_eq!(words.place.with(|place| unsafe { *place }), intake.taken());
                intake.take_part(1);
                intake.publish(&*words);
            }
        }
        sender.join().unwrap();
    });
}

/// The words of a receiver that leaves with a frame lent. The sender's ring has room for one.
struct Lending {
    own: Arc<Words>,
    place: UnsafeCell<u64>,
    sent: AtomicU64,
    /// Position up to which the receiver has given back.
    given: AtomicU64,
    left: AtomicU32,
    left_at: AtomicU64,
    /// Position up to which the agent says that the ring is free, and its wake-up of the sender.
    free: AtomicU64,
    woken: Edge,
}

impl LeaveCells for Lending {
    fn store_left_at(&self, position: u64) {
        self.left_at.store(position, Relaxed);
    }
    fn store_left(&self, number: u32) {
        self.left.store(number, Release);
    }
}

impl LeftCells for Lending {
    fn load_left(&self) -> u32 {
        self.left.load(Acquire)
    }
    fn load_left_at(&self) -> u64 {
        self.left_at.load(Relaxed)
    }
}

/// The receiver's side of the sender's ring.
struct Borrower<'a>(&'a Lending);

/// The agent's side.
struct Passer<'a>(&'a Lending);

impl IntakeCells for Borrower<'_> {
    fn load_producer(&self) -> u64 {
        self.0.sent.load(Acquire)
    }
    fn load_entry(&self, _position: u64) -> u32 {
        unreachable!("bytes have no entries")
    }
    fn store_consumer(&self, position: u64) {
        self.0.given.store(position, self.0.own.weak.order("release of a loan", Release));
    }
}

impl IntakeCells for Passer<'_> {
    fn load_producer(&self) -> u64 {
        self.0.sent.load(Acquire)
    }
    fn load_entry(&self, _position: u64) -> u32 {
        unreachable!("bytes have no entries")
    }
    fn store_consumer(&self, position: u64) {
        self.0.free.store(position, self.0.own.weak.order("release of the space", Release));
    }
}

impl Lending {
    fn intake() -> Intake {
        Intake::new(Shape::new(Direction::Send, Unit::Bytes, 32 << 10).unwrap(), 1)
    }

    fn check(&self, byte: u64) {
        // SAFETY: loom checks that no write is concurrent with this read.
        assert_eq!(self.place.with(|place| unsafe { *place }), byte);
    }

    fn receive(&self) {
        let (mut intake, mut rung, cells) = (Self::intake(), 0, Borrower(self));
        assert!(intake.look(&cells, 0).unwrap());
        intake.lend(Some(0));
        intake.next(&cells).unwrap();
        intake.take_part(1);
        assert_eq!(intake.publish(&cells), None);
        handover::leave(NUMBER, intake.taken(), self);
        self.own.ring(&mut rung);
        self.check(0);
        intake.lend(None);
        assert_eq!(intake.publish(&cells), Some(1));
        self.own.ring(&mut rung);
    }

    /// Models the agent, until it has passed on the second byte.
    fn agent(&self) {
        let (weak, mut intake, mut lent, mut sleep) = (self.own.weak, Self::intake(), None, 0);
        let mut turn = || {
            if let Some((given, left)) = lent {
                let now = self.given.load(weak.order("acquire of a loan", Acquire));
                if now != given {
                    lent = Some((now, left));
                    intake.lend(Some(now).filter(|_| now != left));
                }
            } else if let Some(left) = handover::left(NUMBER, self) {
                let given = self.given.load(Acquire);
                intake.resume(left);
                intake.lend(
                    Some(given).filter(|_| given != left && !weak.leaves_out("keeping of what is lent")),
                );
                lent = Some((given, left));
                if intake.publish(&Passer(self)).is_none() {
                    Passer(self).store_consumer(left);
                    self.woken.write();
                }
            } else {
                return (false, false);
            }
            let is_news = intake.publish(&Passer(self)).is_some();
            if is_news {
                self.woken.write();
            }
            let busy = is_news | intake.look(&Passer(self), 0).unwrap();
            if intake.has_untaken() {
                self.check(1);
            }
            (busy, intake.has_untaken())
        };
        loop {
            let (busy, is_over) = turn();
            if is_over {
                return;
            }
            if busy {
                continue;
            }
            // Models `Agent::wait`.
            sleep += 1;
            self.own.need_wakeup.store(sleep, Relaxed);
            weak.fence("fence of the agent");
            let (busy, is_over) = turn();
            if is_over {
                return;
            }
            if !busy {
                self.own.doorbell.wait();
            }
            self.own.need_wakeup.store(0, Relaxed);
        }
    }

    /// Models the sender, which has sent one byte already.
    fn send(&self) {
        while self.free.load(self.own.weak.order("acquire of the space", Acquire)) < 1 {
            self.woken.wait();
        }
        // SAFETY: loom checks that no access is concurrent with this write.
        self.place.with_mut(|place| unsafe { *place = 1 });
        self.sent.store(2, Release);
        self.own.ring(&mut 0);
    }
}

const LENDING: [&str; 5] = [
    "release of a loan",
    "acquire of a loan",
    "release of the space",
    "acquire of the space",
    "keeping of what is lent",
];

/// A receiver leaves the direct path with a byte lent. Its sender writes in the same place when the byte is given back, and not before.
#[test]
fn a_byte_that_is_lent_is_not_written_over_after_the_path_is_left() {
    check("loans::a_byte_that_is_lent_is_not_written_over_after_the_path_is_left", 2, &LENDING, |weak| {
        let zero = || AtomicU64::new(0);
        let lending = Arc::new(Lending {
            own: Words::new(1, weak),
            place: UnsafeCell::new(0),
            sent: AtomicU64::new(1),
            given: zero(),
            left: AtomicU32::new(0),
            left_at: zero(),
            free: zero(),
            woken: Edge::default(),
        });
        let (agent, sender) = (Arc::clone(&lending), Arc::clone(&lending));
        let agent = thread::spawn(move || agent.agent());
        let sender = thread::spawn(move || sender.send());
        lending.receive();
        sender.join().unwrap();
        agent.join().unwrap();
    });
}
