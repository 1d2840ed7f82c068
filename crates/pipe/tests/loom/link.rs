//! The path of a link between two programs: who reads a byte, when its place is free, and that no side sleeps for ever.
use super::*;

/// Number of the only offer.
const NUMBER: u32 = 1;

/// The words of a link between two programs: the receiver's own pipe, and what the direct path adds.
struct Link {
    own: Arc<Words>,
    /// Ring of the sender, with room for all that is sent.
    ring: Vec<UnsafeCell<u64>>,
    sent: AtomicU64,
    /// The agent's words for the sender and for the receiver.
    links: [AtomicU32; 2],
    from: AtomicU64,
    left: AtomicU32,
    left_at: AtomicU64,
    /// Number of the agent's sleep in which it wants to hear of the sender.
    need_wakeup: AtomicU32,
    sleep: TwoDoorbells,
}

/// The receiver's sleep, which the agent (0) and the sender (1) end.
struct TwoDoorbells {
    wake_at: [AtomicU64; 2],
    doorbells: [AtomicU32; 2],
    kernel: Mutex<()>,
    queue: Condvar,
    weak: Weak,
}

struct Sleeper<'a>(&'a TwoDoorbells, usize, Cell<u32>);

impl SleeperCells for Sleeper<'_> {
    fn load_doorbell(&self) -> u32 {
        self.2.set(self.0.doorbells[1].load(Acquire));
        self.0.doorbells[0].load(Acquire)
    }
    fn store_wake_at(&self, value: u64) {
        self.0.wake_at[self.1].store(value, Relaxed);
    }
    fn fence(&self) {
        self.0.weak.fence("fence of the receiver");
    }
    fn sleep(&self, seen: u32, _timeout: Duration) {
        let kernel = self.0.kernel.lock().unwrap();
        let now = self.0.doorbells.each_ref().map(|doorbell| doorbell.load(Relaxed));
        if now == [seen, self.2.get()] {
            drop(self.0.queue.wait(kernel).unwrap());
        }
    }
}

struct Ringer<'a>(&'a TwoDoorbells, usize);

impl WakerCells for Ringer<'_> {
    fn load_wake_at(&self) -> u64 {
        self.0.wake_at[self.1].load(Relaxed)
    }
    fn fence(&self) {
        self.0.weak.fence("fence of who wakes");
    }
    fn ring(&self) {
        self.0.doorbells[self.1].store(self.0.doorbells[self.1].load(Relaxed) + 1, Release);
        drop(self.0.kernel.lock().unwrap());
        self.0.queue.notify_all();
    }
}

/// The agent's words of one end: 0 the sender's, 1 the receiver's.
struct Side<'a>(&'a Link, usize);

impl GrantCells for Side<'_> {
    fn store_from(&self, position: u64) {
        self.0.from.store(position, Relaxed);
    }
    fn store_link(&self, word: u32) {
        self.0.links[self.1].store(word, self.0.own.weak.order("release of the grant", Release));
    }
}

impl LeaveCells for Link {
    fn store_left_at(&self, position: u64) {
        self.left_at.store(position, Relaxed);
    }
    fn store_left(&self, number: u32) {
        self.left.store(number, self.own.weak.order("release of the end", Release));
    }
}

impl LeftCells for Link {
    fn load_left(&self) -> u32 {
        self.left.load(self.own.weak.order("acquire of the end", Acquire))
    }
    fn load_left_at(&self) -> u64 {
        self.left_at.load(Relaxed)
    }
}

impl IntakeCells for Link {
    fn load_producer(&self) -> u64 {
        self.sent.load(self.own.weak.order("acquire of what is sent", Acquire))
    }
    fn load_entry(&self, _position: u64) -> u32 {
        unreachable!("bytes have no entries")
    }
    fn store_consumer(&self, _position: u64) {}
}

impl Link {
    fn new(bytes: usize, weak: Weak) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        let none = || AtomicU32::new(0);
        let (wake_at, doorbells, kernel, queue) =
            ([zero(), zero()], [none(), none()], Mutex::new(()), Condvar::new());
        Arc::new(Self {
            own: Words::new(bytes, weak),
            ring: (0..bytes).map(|_| UnsafeCell::new(0)).collect(),
            sent: zero(),
            links: [none(), none()],
            from: zero(),
            left: none(),
            left_at: zero(),
            need_wakeup: none(),
            sleep: TwoDoorbells { wake_at, doorbells, kernel, queue, weak },
        })
    }

    fn link_of(&self, side: usize) -> u32 {
        self.links[side].load(self.own.weak.order("acquire of the grant", Acquire))
    }

    fn intake(&self) -> Intake {
        Intake::new(Shape::new(Direction::Send, Unit::Bytes, 32 << 10).unwrap(), 1)
    }

    /// Checks and takes the next byte of the sender's ring.
    fn read_sent(&self, intake: &mut Intake) {
        let at = intake.taken() as usize;
        // SAFETY: loom checks that no write is concurrent with this read.
        assert_eq!(self.ring[at].with(|place| unsafe { *place }), intake.taken());
        intake.next(self).unwrap();
        intake.take_part(1);
    }

    /// Models `Pipe::flush` of the sender.
    fn send(&self, byte: u64, rung: &mut u32, waker: &mut Waker) {
        // SAFETY: loom checks that no access is concurrent with this write.
        self.ring[byte as usize].with_mut(|place| unsafe { *place = byte });
        self.sent.store(byte + 1, self.own.weak.order("release of what is sent", Release));
        self.own.weak.fence("fence of the sender");
        let sleep = self.need_wakeup.load(Relaxed);
        if sleep != 0 && sleep != *rung {
            *rung = sleep;
            self.own.doorbell.write();
        }
        if self.link_of(0) == link(NUMBER, LinkPath::Direct) {
            waker.wake(&Ringer(&self.sleep, 1), byte + 1);
        }
    }

    /// Models the receiver.
    fn receive(&self, bytes: u64) {
        let (own, mut reader, mut intake) = (&self.own, Reader::new(u64::MAX), self.intake());
        let (mut seen, mut is_direct, mut has_left, mut rung, mut got) = (0, false, false, 0, 0);
        while got < bytes || !has_left {
            let mut spin = Spin::new(Duration::ZERO);
            let word = self.link_of(1);
            if is_direct {
                if intake.has_untaken() {
                    self.read_sent(&mut intake);
                    got += 1;
                } else if word != seen {
                    (seen, is_direct, has_left) = (word, false, true);
                    handover::leave(NUMBER, intake.taken(), self);
                    own.ring(&mut rung);
                } else if !intake.look(self, 0).unwrap() {
                    let known = intake.end();
                    self.sleep.wake_at[0].store(u64::MAX, Relaxed);
                    wait::sleep(
                        &Sleeper(&self.sleep, 1, Cell::new(0)),
                        known + 1,
                        &mut spin,
                        Duration::MAX,
                        || self.load_producer() != known || self.link_of(1) != seen,
                    );
                    self.sleep.wake_at[0].store(0, Relaxed);
                }
                continue;
            }
            if reader.refresh(&**own) > 0 {
                let at = reader.read() as usize;
                // SAFETY: loom checks that no write is concurrent with this read.
                assert_eq!(own.ring[at].with(|place| unsafe { *place }), got);
                reader.consume(1);
                got += 1;
            } else if word != seen {
                seen = word;
                if word >= link(NUMBER, LinkPath::Direct) {
                    (is_direct, seen) = (true, link(NUMBER, LinkPath::Direct));
                    intake.resume(self.from.load(Relaxed));
                    assert_eq!(intake.taken(), got);
                }
            } else {
                let known = reader.read();
                reader.answer(&**own);
                own.ring(&mut rung);
                wait::sleep(
                    &Sleeper(&self.sleep, 0, Cell::new(0)),
                    known + 1,
                    &mut spin,
                    Duration::MAX,
                    || own.load_producer() != known || self.link_of(1) != seen,
                );
            }
        }
    }

    /// Models the receiver of a stream: `Pipe::unread_stream` and the sleep of `Pipe::wait_for_stream`.
    fn gather(&self, bytes: u64) {
        let (own, mut reader, mut intake) = (&self.own, Reader::new(u64::MAX), self.intake());
        let (mut seen, mut is_direct, mut has_left, mut rung, mut got) = (0, false, false, 0, 0);
        let looks_late = own.weak.leaves_out("look after the word");
        while got < bytes || !has_left {
            let mut spin = Spin::new(Duration::ZERO);
            let word = self.link_of(1);
            if is_direct {
                if word != seen {
                    (seen, is_direct, has_left) = (word, false, true);
                    handover::leave(NUMBER, intake.taken(), self);
                    own.ring(&mut rung);
                } else if intake.look(self, 0).unwrap() {
                    while intake.has_untaken() {
                        self.read_sent(&mut intake);
                        got += 1;
                    }
                } else {
                    let known = intake.end();
                    self.sleep.wake_at[0].store(u64::MAX, Relaxed);
                    let news = || self.load_producer() != known || self.link_of(1) != seen;
                    let sleeper = Sleeper(&self.sleep, 1, Cell::new(0));
                    wait::sleep(&sleeper, known + 1, &mut spin, Duration::MAX, news);
                    self.sleep.wake_at[0].store(0, Relaxed);
                }
                continue;
            }
            let unread = reader.refresh(&**own);
            let word = if looks_late { self.link_of(1) } else { word };
            for _ in 0..unread {
                let at = reader.read() as usize;
                // SAFETY: loom checks that no write is concurrent with this read.
                assert_eq!(own.ring[at].with(|place| unsafe { *place }), got);
                reader.consume(1);
                got += 1;
            }
            if word != seen {
                seen = word;
                if word >= link(NUMBER, LinkPath::Direct) {
                    (is_direct, seen) = (true, link(NUMBER, LinkPath::Direct));
                    intake.resume(self.from.load(Relaxed));
                    assert_eq!(intake.taken(), got);
                }
            } else if unread == 0 {
                let known = reader.known();
                reader.answer(&**own);
                own.ring(&mut rung);
                let news = || own.load_producer() != known || self.link_of(1) != seen;
                let sleeper = Sleeper(&self.sleep, 0, Cell::new(0));
                wait::sleep(&sleeper, known + 1, &mut spin, Duration::MAX, news);
            }
        }
    }

    /// Models the agent: grants the path at once, recalls it, and passes on the rest.
    fn agent(&self, bytes: u64) {
        let (own, mut announcer, mut intake) = (&self.own, Announcer::new(bytes, 1), self.intake());
        let (mut path, mut waker, mut sleep) = (LinkPath::Agent, Waker::default(), 0);
        let weak = own.weak;
        let mut turn = |path: &mut LinkPath| {
            let mut busy = announcer.look(&**own).unwrap();
            match *path {
                LinkPath::Direct => {
                    *path = LinkPath::Recalled;
                    Side(self, 1).store_link(link(NUMBER, LinkPath::Recalled));
                    if !weak.leaves_out("wake-up of the recall") {
                        waker.wake_always(&Ringer(&self.sleep, 0));
                    }
                    busy = true;
                }
                LinkPath::Recalled => {
                    if let Some(at) = handover::left(NUMBER, self) {
                        intake.resume(at);
                        Side(self, 0).store_link(link(NUMBER, LinkPath::Agent));
                        (*path, busy) = (LinkPath::Last, true);
                    }
                }
                _ => {
                    busy |= intake.look(self, 0).unwrap();
                    while intake.has_untaken() {
                        let byte = intake.taken();
                        let at = announcer.tail() as usize;
                        // SAFETY: loom checks that no access is concurrent with this write.
                        own.ring[at].with_mut(|place| unsafe { *place = byte });
                        self.read_sent(&mut intake);
                        announcer.append(1);
                    }
                    if *path == LinkPath::Agent {
                        announcer.announce_all(&**own);
                        handover::grant(NUMBER, intake.taken(), &Side(self, 0), &Side(self, 1));
                        waker.wake_always(&Ringer(&self.sleep, 0));
                        (*path, busy) = (LinkPath::Direct, true);
                    }
                }
            }
            if let Some(position) = announcer.announce(&**own) {
                waker.wake(&Ringer(&self.sleep, 0), position);
                busy = true;
            }
            let is_over = *path == LinkPath::Last
                && intake.taken() == bytes
                && announcer.announced() == announcer.tail();
            (busy, is_over)
        };
        loop {
            let (busy, is_over) = turn(&mut path);
            if is_over {
                break;
            }
            if busy {
                continue;
            }
            // Models `Agent::wait`.
            sleep += 1;
            own.need_wakeup.store(sleep, Relaxed);
            let hears_sender = matches!(path, LinkPath::Agent | LinkPath::Last);
            self.need_wakeup.store(if hears_sender { sleep } else { 0 }, Relaxed);
            weak.fence("fence of the agent");
            let (busy, is_over) = turn(&mut path);
            if is_over {
                break;
            }
            if !busy {
                own.doorbell.wait();
            }
            own.need_wakeup.store(0, Relaxed);
            self.need_wakeup.store(0, Relaxed);
        }
    }
}

const HANDOVER: [&str; 12] = [
    "release of the grant",
    "acquire of the grant",
    "release of the end",
    "acquire of the end",
    "release of what is sent",
    "acquire of what is sent",
    "fence of the sender",
    "fence of the receiver",
    "fence of the program",
    "fence of the agent",
    "wake-up of the recall",
    "fence of who wakes",
];

/// Runs a sender, the agent and `receive` for two bytes, between which the path changes.
fn pass_bytes(weak: Weak, receive: fn(&Link, u64)) {
    const BYTES: u64 = 2;
    let link = Link::new(BYTES as usize, weak);
    let agent = {
        let link = Arc::clone(&link);
        thread::spawn(move || link.agent(BYTES))
    };
    let sender = {
        let link = Arc::clone(&link);
        thread::spawn(move || {
            let (mut rung, mut waker) = (0, Waker::default());
            (0..BYTES).for_each(|byte| link.send(byte, &mut rung, &mut waker));
        })
    };
    receive(&link, BYTES);
    sender.join().unwrap();
    agent.join().unwrap();
}

/// The path changes twice while a program sends. Each byte is read once and in order, by the receiver or by the agent, and no side
/// sleeps for ever.
#[test]
fn bytes_have_one_reader_whatever_the_path() {
    check_large("link::bytes_have_one_reader_whatever_the_path", 2, &HANDOVER, |weak| {
        pass_bytes(weak, Link::receive)
    });
}

/// Bytes arrive once and in order where the receiver copies all of them before it follows the agent's word, as that of a stream does.
#[test]
fn bytes_are_gathered_in_order_whatever_the_path() {
    let parts = [&HANDOVER[..], &["look after the word"]].concat();
    check_large("link::bytes_are_gathered_in_order_whatever_the_path", 2, &parts, |weak| {
        pass_bytes(weak, Link::gather)
    });
}

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
    check("link::a_byte_is_copied_before_its_place_is_given_back", 3, &COPYING, |weak| {
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
    check("link::a_byte_that_is_lent_is_not_written_over_after_the_path_is_left", 2, &LENDING, |weak| {
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

/// A descriptor of epoll: readable from a wake-up until that is taken note of.
#[derive(Default)]
struct Readable {
    is: Mutex<bool>,
    queue: Condvar,
}

impl Readable {
    fn wake(&self) {
        *self.is.lock().unwrap() = true;
        self.queue.notify_one();
    }

    fn clear(&self) {
        *self.is.lock().unwrap() = false;
    }

    fn wait(&self) {
        let mut is = self.is.lock().unwrap();
        while !*is {
            is = self.queue.wait(is).unwrap();
        }
    }
}

/// A receiver on the direct path that waits in epoll, its sender, and the agent.
struct Polling {
    sent: AtomicU64,
    link: AtomicU32,
    wake_at: AtomicU64,
    descriptor: Readable,
    ring: Vec<UnsafeCell<u64>>,
    weak: Weak,
}

impl WakerCells for Polling {
    fn load_wake_at(&self) -> u64 {
        self.wake_at.load(Relaxed)
    }
    fn fence(&self) {
        self.weak.fence("fence of the sender");
    }
    fn ring(&self) {
        if !self.weak.leaves_out("eventfd") {
            self.descriptor.wake();
        }
    }
}

impl Polling {
    /// Models `Pipe::flush`.
    fn send(&self, byte: u64, waker: &mut Waker) {
        // SAFETY: loom checks that no access is concurrent with this write.
        self.ring[byte as usize].with_mut(|place| unsafe { *place = byte });
        self.sent.store(byte + 1, self.weak.order("release of what is sent", Release));
        waker.wake(self, byte + 1);
    }

    /// Takes what is there. Returns whether there was news: bytes, or a word of the agent.
    fn look(&self, got: &mut u64, seen: &mut u32) -> bool {
        let (before, sent) = (*got, self.sent.load(self.weak.order("acquire of what is sent", Acquire)));
        while *got < sent {
            // SAFETY: loom checks that no write is concurrent with this read.
            assert_eq!(self.ring[*got as usize].with(|place| unsafe { *place }), *got);
            *got += 1;
        }
        let link = self.link.load(Acquire);
        *got > before || std::mem::replace(seen, link) != link
    }

    /// Models a program with `Pipe::arm` before each sleep.
    fn receive(&self, bytes: u64) {
        let (mut got, mut seen) = (0, 0);
        while got < bytes || seen == 0 {
            let is_late = self.weak.leaves_out("taking note before the look");
            if !is_late {
                self.descriptor.clear();
            }
            if self.look(&mut got, &mut seen) {
                continue;
            }
            self.wake_at.store(got + 1, Relaxed);
            self.weak.fence("fence of the sleeper");
            if !self.weak.leaves_out("look before the sleep") && self.look(&mut got, &mut seen) {
                continue;
            }
            if is_late {
                self.descriptor.clear();
            }
            self.descriptor.wait();
        }
    }
}

const POLLING: [&str; 8] = [
    "fence of the sender",
    "fence of the sleeper",
    "eventfd",
    "release of what is sent",
    "acquire of what is sent",
    "taking note before the look",
    "look before the sleep",
    "wake-up by the agent",
];

/// A program in epoll on the direct path hears its sender and the agent, by one descriptor.
#[test]
fn a_program_in_epoll_misses_no_wake_up() {
    check("link::a_program_in_epoll_misses_no_wake_up", 3, &POLLING, |weak| {
        const BYTES: u64 = 2;
        let polling = Arc::new(Polling {
            sent: AtomicU64::new(0),
            link: AtomicU32::new(0),
            wake_at: AtomicU64::new(0),
            descriptor: Readable::default(),
            ring: (0..BYTES).map(|_| UnsafeCell::new(0)).collect(),
            weak,
        });
        let sender = {
            let polling = Arc::clone(&polling);
            thread::spawn(move || {
                let mut waker = Waker::default();
                (0..BYTES).for_each(|byte| polling.send(byte, &mut waker));
            })
        };
        let agent = {
            let polling = Arc::clone(&polling);
            thread::spawn(move || {
                polling.link.store(link(NUMBER, LinkPath::Recalled), Release);
                // Models `End::set_link`, which asks for nothing.
                if !weak.leaves_out("wake-up by the agent") {
                    polling.descriptor.wake();
                }
            })
        };
        polling.receive(BYTES);
        sender.join().unwrap();
        agent.join().unwrap();
    });
}
