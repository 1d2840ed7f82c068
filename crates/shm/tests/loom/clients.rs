//! Memory shared by clients, which is the direct path, and locks shared by the threads of one client.
use super::*;
use loom::sync::Condvar;
use pd_shm::bias::{self, BiasCells};
use pd_shm::byte_ring::{self, ClaimCells};

/// A barrier on all cores (`pd_shm::barrier`): it comes at some point of the other thread's program, and is a fence
/// there. The lock orders no more than that fence does.
pub(super) struct Everywhere {
    state: Mutex<(bool, bool)>,
}

impl Default for Everywhere {
    fn default() -> Self {
        Self { state: Mutex::new((false, false)) }
    }
}

impl Everywhere {
    /// A point between two accesses of the thread that does not fence.
    pub(super) fn point(&self, ended: bool) {
        let mut state = self.state.lock().unwrap();
        if state.0 || ended {
            fence(SeqCst);
            // Once: what comes later is not fenced by it.
            *state = (false, true);
        }
    }

    pub(super) fn fence(&self) {
        fence(SeqCst);
        self.state.lock().unwrap().0 = true;
        while !self.state.lock().unwrap().1 {
            thread::yield_now();
        }
    }
}

/// A bias whose thread makes no fences: the barrier is [`Everywhere`].
struct Biased {
    owner: loom::sync::atomic::AtomicUsize,
    busy: loom::sync::atomic::AtomicBool,
    everywhere: Everywhere,
    weak: Weak,
}

impl BiasCells for Biased {
    fn load_owner(&self) -> usize {
        self.owner.load(Relaxed)
    }
    fn store_owner(&self, thread: usize) {
        self.owner.store(thread, Relaxed);
    }
    fn load_busy(&self) -> bool {
        self.busy.load(self.weak.order("bias: acquire of busy", Acquire))
    }
    fn store_busy(&self, busy: bool) {
        self.busy.store(busy, self.weak.order("bias: release of busy", Release));
    }
    fn compiler_fence(&self) {
        self.everywhere.point(false);
    }
    fn barrier(&self) {
        if !self.weak.leaves_out("bias: barrier") {
            self.everywhere.fence();
        }
    }
    fn pause(&self) {
        thread::yield_now();
    }
}

/// The lock of the client library: a thread that has the bias and one that takes it away are never in at the same time
/// (`SYNC POINT: bias-dekker`).
#[test]
fn bias_is_revoked() {
    let parts = ["bias: barrier", "bias: acquire of busy", "bias: release of busy"];
    check("clients::bias_is_revoked", 3, &parts, |weak| {
        let lock = Arc::new((
            Biased {
                owner: loom::sync::atomic::AtomicUsize::new(1),
                busy: loom::sync::atomic::AtomicBool::new(false),
                everywhere: Everywhere::default(),
                weak,
            },
            UnsafeCell::new(0),
        ));
        let owners = lock.clone();
        let owner = thread::spawn(move || {
            let (cells, state) = &*owners;
            for _ in 0..2 {
                cells.everywhere.point(false);
                if bias::enter(cells, 1) {
                    cells.everywhere.point(false);
                    // SAFETY: under the lock.
                    state.with_mut(|state| unsafe { *state += 1 });
                    cells.store_busy(false);
                }
            }
            cells.everywhere.point(true);
        });
        let (cells, state) = &*lock;
        bias::revoke(cells);
        // SAFETY: under the lock.
        state.with_mut(|state| unsafe { *state += 1 });
        owner.join().unwrap();
    });
}

/// Direct path, before both have a ring: whoever sends sees that the peer's is there, or the peer sees what was
/// sent (`SYNC POINT: direct-ready`).
#[test]
fn direct_ready() {
    check("clients::direct_ready", 5, &["direct: fence of the sender"], |weak| {
        let cells = Arc::new((Doorbell::new(weak), AtomicU64::new(0), AtomicU32::new(0)));
        let sender = cells.clone();
        let sending = thread::spawn(move || {
            let (doorbell, counter, path) = &*sender;
            counter.store(1, Release);
            weak.fence("direct: fence of the sender");
            if path.load(Acquire) != 0 {
                Waker::default().wake(doorbell, 1);
            }
        });
        // The driver, and then the client that it answers.
        let (doorbell, counter, path) = &*cells;
        path.store(1, Release);
        fence(SeqCst);
        sleep_until(doorbell, counter, 1);
        sending.join().unwrap();
    });
}

/// Direct path: a second epoll instance of the receiver has taken its doorbell back, on which only the first one sleeps. It sees what was
/// sent, or the sender sees that and has the driver tell both (`SYNC POINT: byte-ring-dekker`).
#[test]
fn direct_doorbell() {
    let parts = ["direct: fence of whoever rings", "direct: fence behind the doorbell that is taken back"];
    check("clients::direct_doorbell", 5, &parts, |weak| {
        // The index, the event asked for by the first instance, its doorbell, and whether the driver was asked.
        let cells = [0, 1, 5, 0].map(AtomicU64::new);
        let cells = Arc::new(cells);
        let sender = cells.clone();
        let sending = thread::spawn(move || {
            let [producer, event_at, doorbell, nudged] = &*sender;
            producer.store(1, Release);
            weak.fence("direct: fence of whoever rings");
            if event_at.load(Relaxed) == 1 && doorbell.load(Acquire) == 0 {
                nudged.store(1, Relaxed);
            }
        });
        let [producer, event_at, doorbell, nudged] = &*cells;
        doorbell.store(0, Release);
        event_at.store(1, Relaxed);
        weak.fence("direct: fence behind the doorbell that is taken back");
        let seen = producer.load(Acquire) == 1;
        sending.join().unwrap();
        assert!(seen || nudged.load(Relaxed) == 1);
    });
}

/// Direct path: the receiver that sees the first byte in the peer's ring also sees all that the driver has delivered
/// before (`SYNC POINT: direct-begin`).
#[test]
fn direct_begin() {
    let parts = [
        "direct: release of what is delivered",
        "direct: acquire of what is delivered",
        "direct: release of the first byte",
        "direct: acquire of the first byte",
    ];
    check("clients::direct_begin", 5, &parts, |weak| {
        let cells = Arc::new((AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)));
        let (driver, sender) = (cells.clone(), cells.clone());
        let driving = thread::spawn(move || {
            let (recv_producer, send_consumer, _) = &*driver;
            recv_producer.store(7, Relaxed);
            send_consumer.store(1, weak.order("direct: release of what is delivered", Release));
        });
        let sending = thread::spawn(move || {
            let (_, send_consumer, producer) = &*sender;
            if send_consumer.load(weak.order("direct: acquire of what is delivered", Acquire)) == 1 {
                producer.store(1, weak.order("direct: release of the first byte", Release));
            }
        });
        let (recv_producer, _, producer) = &*cells;
        if producer.load(weak.order("direct: acquire of the first byte", Acquire)) != 0 {
            assert_eq!(recv_producer.load(Relaxed), 7);
        }
        driving.join().unwrap();
        sending.join().unwrap();
    });
}

/// Direct path: when an end goes to another client, its peer sees the last byte of the previous one, and whoever reads the
/// peer's ring in the previous one's place sees the peer's last (`SYNC POINT: direct-left`).
#[test]
fn direct_left() {
    let parts = [
        "direct: release of the word that it leaves",
        "direct: acquire of the word that it leaves",
        "direct: release of the request that it has left",
        "direct: acquire of the request that it has left",
    ];
    check("clients::direct_left", 5, &parts, |weak| {
        // Indices of the previous client and of its peer, the path in the peer's line, the peer's request.
        let cells = Arc::new([(); 4].map(|()| AtomicU64::new(0)));
        let (previous, peer) = (cells.clone(), cells.clone());
        let handing_over = thread::spawn(move || {
            // One thread for the previous client and the driver, which learns of the move after all that it wrote.
            let [written, _, path, _] = &*previous;
            written.store(7, Relaxed);
            path.store(1, weak.order("direct: release of the word that it leaves", Release));
        });
        let leaving = thread::spawn(move || {
            let [written, own, path, request] = &*peer;
            own.store(1, Release);
            if path.load(weak.order("direct: acquire of the word that it leaves", Acquire)) != 0 {
                assert_eq!(written.load(Relaxed), 7, "the last of the previous client's bytes");
                request.store(1, weak.order("direct: release of the request that it has left", Release));
            } else {
                own.store(2, Relaxed);
                request.store(2, weak.order("direct: release of the request that it has left", Release));
            }
        });
        let [_, own, _, request] = &*cells;
        let left = request.load(weak.order("direct: acquire of the request that it has left", Acquire));
        if left != 0 {
            assert_eq!(own.load(Relaxed), left, "the last of the peer's bytes");
        }
        handing_over.join().unwrap();
        leaving.join().unwrap();
    });
}

/// Direct path: when the driver takes it away, the receiver sees the sender's last byte with the word that says which that is
/// (`SYNC POINT: direct-left`).
#[test]
fn direct_recalled() {
    let parts = [
        "recall: release of the request that the sender has left",
        "recall: acquire of the request that the sender has left",
        "recall: release of the word that the ring ends",
        "recall: acquire of the word that the ring ends",
    ];
    check("clients::direct_recalled", 5, &parts, |weak| {
        // The sender's index, its request, the path in the receiver's line.
        let cells = Arc::new([(); 3].map(|()| AtomicU64::new(0)));
        let (sender, driver) = (cells.clone(), cells.clone());
        let leaving = thread::spawn(move || {
            let [written, request, _] = &*sender;
            written.store(7, Relaxed);
            request.store(1, weak.order("recall: release of the request that the sender has left", Release));
        });
        let telling = thread::spawn(move || {
            let [_, request, last] = &*driver;
            let left = weak.order("recall: acquire of the request that the sender has left", Acquire);
            if request.load(left) != 0 {
                last.store(1, weak.order("recall: release of the word that the ring ends", Release));
            }
        });
        let [written, _, last] = &*cells;
        if last.load(weak.order("recall: acquire of the word that the ring ends", Acquire)) != 0 {
            assert_eq!(written.load(Relaxed), 7, "where the ring ends");
        }
        leaving.join().unwrap();
        telling.join().unwrap();
    });
}

/// Words of a ring whose writer's socket goes to another process.
struct Ends {
    data: UnsafeCell<u64>,
    sent: AtomicU64,
    producer: AtomicU64,
    taken: AtomicU32,
    /// End of the ring: the answer of the driver.
    end: Mutex<Option<u64>>,
    answered: Condvar,
    weak: Weak,
}

impl Ends {
    /// The previous owner sends a byte. Returns whether it counts.
    fn send(&self) -> bool {
        // SAFETY: nobody reads the byte before it is claimed.
        self.data.with_mut(|data| unsafe { *data = 7 });
        byte_ring::claim(self, 1);
        if self.taken.load(Acquire) != 0 && self.await_end() == 0 {
            return false;
        }
        self.producer.store(1, Release);
        true
    }

    /// The driver fixes the end.
    fn fix(&self) {
        self.taken.store(1, Release);
        self.weak.fence("ends: fence of the driver");
        let end = self.sent.load(Acquire).max(self.producer.load(Acquire));
        *self.end.lock().unwrap() = Some(end);
        self.answered.notify_all();
    }

    fn await_end(&self) -> u64 {
        let mut end = self.end.lock().unwrap();
        while end.is_none() {
            end = self.answered.wait(end).unwrap();
        }
        end.unwrap()
    }

    /// The peer reads what is published, then up to the end. Returns whether it got the byte.
    fn receive(&self) -> bool {
        // SAFETY: the owner writes the byte once, before it claims it.
        let read = || self.data.with(|data| assert_eq!(unsafe { *data }, 7));
        let early = self.producer.load(Acquire) != 0;
        if early {
            read();
        }
        let counts = self.await_end() != 0;
        if counts {
            read();
        }
        assert!(counts || !early, "a byte is received that does not count");
        counts
    }
}

impl ClaimCells for Ends {
    fn store_claim(&self, index: u64) {
        if !self.weak.leaves_out("ends: claim") {
            self.sent.store(index, self.weak.order("ends: release of the claim", Release));
        }
    }
    fn fence(&self) {
        self.weak.fence("ends: fence of the owner");
    }
}

/// Direct path: a socket goes to another process while its previous owner sends. A byte is sent if and only if it is received
/// (`SYNC POINT: ring-ends`).
#[test]
fn ends_of_rings() {
    let parts = [
        "ends: claim",
        "ends: release of the claim",
        "ends: fence of the owner",
        "ends: fence of the driver",
    ];
    check("clients::ends_of_rings", 3, &parts, |weak| {
        let ends = Arc::new(Ends {
            data: UnsafeCell::new(0),
            sent: AtomicU64::new(0),
            producer: AtomicU64::new(0),
            taken: AtomicU32::new(0),
            end: Mutex::new(None),
            answered: Condvar::new(),
            weak,
        });
        let (owner, peer) = (ends.clone(), ends.clone());
        let sending = thread::spawn(move || owner.send());
        let receiving = thread::spawn(move || peer.receive());
        ends.fix();
        assert_eq!(sending.join().unwrap(), receiving.join().unwrap(), "sent, and received");
    });
}
