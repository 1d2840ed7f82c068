//! A program on the direct path that waits in `epoll`: it misses no wake-up.
use super::*;

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
    check("polling::a_program_in_epoll_misses_no_wake_up", 3, &POLLING, |weak| {
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
