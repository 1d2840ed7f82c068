//! Notifications of pipes under the loom model checker.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p pd-pipe --test loom --target-dir target/loom
//! ```
//!
//! `pd_pipe::notify` runs unchanged over loom's atomics, and so does `pd_shm::wait`. The agent's sleep (`Agent::wait`) and the program's
//! doorbell (`Pipe::ring`) are modelled with the same operations in the same order. Each property is checked once unchanged, and once
//! without each ordering, fence and step: loom has to find the failure.
#![cfg(loom)]

#[path = "../../shm/tests/loom/parts.rs"]
#[allow(dead_code)]
mod parts;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;
use parts::{check, Doorbell, Edge, Weak};
use pd_pipe::notify::{AnnounceCells, Announcer, ReadCells, Reader};
use pd_shm::wait::{self, Waker};
use pd_shm::Spin;
use std::time::Duration;
use Ordering::{Acquire, Relaxed, Release};

struct Words {
    producer: AtomicU64,
    given_back: AtomicU64,
    wanted: AtomicU32,
    need_wakeup: AtomicU32,
    doorbell: Edge,
    sleep: Doorbell,
    ring: Vec<UnsafeCell<u64>>,
    weak: Weak,
}

impl Words {
    fn new(ring: usize, weak: Weak) -> Arc<Self> {
        Arc::new(Self {
            producer: AtomicU64::new(0),
            given_back: AtomicU64::new(0),
            wanted: AtomicU32::new(0),
            need_wakeup: AtomicU32::new(0),
            doorbell: Edge::default(),
            sleep: Doorbell::new(weak),
            ring: (0..ring).map(|_| UnsafeCell::new(0)).collect(),
            weak,
        })
    }

    fn append(&self, announcer: &mut Announcer) {
        let at = announcer.tail() as usize % self.ring.len();
        // SAFETY: loom checks that no access is concurrent with this write.
        self.ring[at].with_mut(|place| unsafe { *place = announcer.tail() });
        announcer.append(1);
    }

    fn read(&self, reader: &Reader) {
        let at = reader.read() as usize % self.ring.len();
        // SAFETY: loom checks that no write is concurrent with this read.
        assert_eq!(self.ring[at].with(|place| unsafe { *place }), reader.read());
    }

    /// Models `Pipe::ring`.
    fn ring(&self, rung: &mut u32) {
        self.weak.fence("fence of the program");
        let sleep = self.need_wakeup.load(Relaxed);
        if sleep != 0 && sleep != *rung {
            *rung = sleep;
            self.doorbell.write();
        }
    }
}

impl AnnounceCells for Words {
    fn load_given_back(&self) -> u64 {
        self.given_back.load(self.weak.order("acquire of what is given back", Acquire))
    }
    fn load_wanted(&self) -> u32 {
        self.wanted.load(Relaxed)
    }
    fn store_producer(&self, position: u64) {
        self.producer.store(position, self.weak.order("release of the announcement", Release));
    }
}

impl ReadCells for Words {
    fn load_producer(&self) -> u64 {
        self.producer.load(self.weak.order("acquire of the announcement", Acquire))
    }
    fn store_given_back(&self, position: u64) {
        self.given_back.store(position, self.weak.order("release of what is given back", Release));
    }
    fn store_wanted(&self, count: u32) {
        self.wanted.store(count, Relaxed);
    }
}

const ORDERS: [&str; 4] = [
    "acquire of what is given back",
    "release of what is given back",
    "acquire of the announcement",
    "release of the announcement",
];

/// Announced bytes are written, and not overwritten before they are given back.
#[test]
fn bytes_belong_to_one_side_at_a_time() {
    check("bytes_belong_to_one_side_at_a_time", 4, &ORDERS, |weak| {
        const BYTES: u64 = 3;
        let words = Words::new(1, weak);
        let agent = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let mut announcer = Announcer::new(1, 1);
                while announcer.announced() < BYTES {
                    announcer.look(&*words).unwrap();
                    if announcer.room(announcer.given_back()) > 0 && announcer.tail() < BYTES {
                        words.append(&mut announcer);
                    }
                    if announcer.announce(&*words).is_none() {
                        thread::yield_now();
                    }
                }
            })
        };
        let mut reader = Reader::new(1);
        while reader.read() < BYTES {
            if reader.refresh(&*words) == 0 {
                thread::yield_now();
                continue;
            }
            words.read(&reader);
            reader.consume(1);
            reader.give_back(&*words);
        }
        agent.join().unwrap();
    });
}

const SLEEPS: [&str; 6] = [
    "fence of the program",
    "fence of the agent",
    "look of the agent",
    "sleep: fence of the sleeper",
    "sleep: fence of the waker",
    "answer before the sleep",
];

/// Both sides sleep. A byte appended while a notification is outstanding is announced when that one is answered, even though the
/// program gives nothing back. No side sleeps for ever.
#[test]
fn no_notification_is_lost() {
    check("no_notification_is_lost", 3, &SLEEPS, |weak| {
        const BYTES: u64 = 2;
        let words = Words::new(BYTES as usize, weak);
        let agent = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let (mut announcer, mut waker) = (Announcer::new(BYTES, 1), Waker::default());
                let mut notifications = 0;
                let mut turn = |announcer: &mut Announcer| {
                    let mut busy = announcer.look(&*words).unwrap();
                    if announcer.tail() < BYTES {
                        words.append(announcer);
                        busy = true;
                    }
                    if let Some(position) = announcer.announce(&*words) {
                        notifications += 1;
                        waker.wake(&words.sleep, position);
                        busy = true;
                    }
                    busy
                };
                let mut sleep = 0;
                while announcer.announced() < BYTES {
                    if turn(&mut announcer) {
                        continue;
                    }
                    // Models `Agent::wait`.
                    sleep += 1;
                    words.need_wakeup.store(sleep, Relaxed);
                    weak.fence("fence of the agent");
                    if weak.leaves_out("look of the agent") || !turn(&mut announcer) {
                        words.doorbell.wait();
                    }
                    words.need_wakeup.store(0, Relaxed);
                }
                assert!(notifications <= 2, "one for each answer");
            })
        };
        // A piece that is never complete: only the answer gives bytes back.
        let (mut reader, mut rung) = (Reader::new(u64::MAX), 0);
        while reader.read() < BYTES {
            if reader.refresh(&*words) == 0 {
                // Models `Pipe::wait`.
                let known = reader.read();
                if !weak.leaves_out("answer before the sleep") {
                    reader.answer(&*words);
                }
                words.ring(&mut rung);
                wait::sleep(&words.sleep, known + 1, &mut Spin::new(Duration::ZERO), Duration::MAX, || {
                    words.load_producer() != known
                });
                continue;
            }
            reader.consume(reader.unread());
        }
        agent.join().unwrap();
    });
}
