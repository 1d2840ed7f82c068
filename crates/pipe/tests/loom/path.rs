//! The path of a link between two programs: each byte has one reader, and no side sleeps for ever.
use super::*;

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
    /// Number of the agent's sleep in which it wants to learn of the sender.
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
                reader.answer(0, &**own);
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
                reader.answer(0, &**own);
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
    check_large("path::bytes_have_one_reader_whatever_the_path", 2, &HANDOVER, |weak| {
        pass_bytes(weak, Link::receive)
    });
}

/// Bytes arrive once and in order where the receiver copies all of them before it follows the agent's word, as that of a stream does.
#[test]
fn bytes_are_gathered_in_order_whatever_the_path() {
    let parts = [&HANDOVER[..], &["look after the word"]].concat();
    check_large("path::bytes_are_gathered_in_order_whatever_the_path", 2, &parts, |weak| {
        pass_bytes(weak, Link::gather)
    });
}
