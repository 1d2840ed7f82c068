//! Pipes under the loom model checker: notifications, and the path of a link.
//!
//! `pd_pipe::notify`, `pd_pipe::intake` and `pd_pipe::handover` run unchanged over loom's atomics, and so does `pd_shm::wait`. The
//! agent's sleep (`Agent::wait`) and the program's doorbell (`Pipe::ring`) are modelled with the same operations in the same order.
//! Each property is checked once unchanged, and once without each ordering, fence and step: loom has to find the failure.

#[path = "../../shm/tests/loom/parts.rs"]
#[allow(dead_code)]
mod parts;

#[path = "loom/loans.rs"]
mod loans;
#[path = "loom/notify.rs"]
mod notify;
#[path = "loom/path.rs"]
mod path;
#[path = "loom/polling.rs"]
mod polling;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use parts::{check, check_large, Doorbell, Edge, Weak};
use pd_abi::pipe::{link, LinkPath};
use pd_pipe::handover::{self, GrantCells, LeaveCells, LeftCells};
use pd_pipe::intake::{Intake, IntakeCells};
use pd_pipe::notify::{AnnounceCells, Announcer, ReadCells, Reader};
use pd_pipe::{Direction, Shape, Unit};
use pd_shm::wait::{self, SleeperCells, Waker, WakerCells};
use pd_shm::Spin;
use std::cell::Cell;
use std::time::Duration;
use Ordering::{Acquire, Relaxed, Release};

/// Number of the only offer.
const NUMBER: u32 = 1;

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
