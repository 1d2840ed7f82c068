//! A simulated card that runs on a thread of its own, as a real one runs on its own clock.
//!
//! Queue pairs reach it as they would reach hardware: through their queues in memory and a doorbell. A card with nothing
//! to do stops its clock, and the next doorbell starts it again.
use crate::memory::{EngineMemory, Rings};
use crate::model::Hardware;
use crate::port::{Counts, Port};
use crate::timing::Timing;
use pd_abi::registers::{self, global, queue, queue_offset, QUEUES_MAX};
use std::path::PathBuf;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

const QUEUES: usize = QUEUES_MAX as usize;
/// Cycles between two looks at whether there is anything left to do.
const LOOK_CYCLES: u64 = 64;
/// Cycles that a queue has to drain after it was disabled.
const DRAIN_CYCLES_MAX: u64 = 10_000_000;

/// Requests to the card's thread. The answer says that one is done.
enum Order {
    Add(usize, Arc<Rings>, SyncSender<()>),
    Remove(usize, SyncSender<()>),
    Count(SyncSender<Counts>),
    Stop,
}

/// State that the card's thread and the queue pairs share.
struct Shared {
    /// The last value written to each queue's doorbell.
    doorbells: [AtomicU32; QUEUES],
    /// Which doorbells have been written since the card looked.
    rung: [AtomicU64; QUEUES / 64],
    /// A doorbell or an order came.
    news: AtomicBool,
    asleep: AtomicBool,
}

/// A running card.
pub struct Card {
    shared: Arc<Shared>,
    orders: Mutex<Sender<Order>>,
    free: Mutex<Vec<usize>>,
    thread: Option<JoinHandle<()>>,
}

impl Card {
    /// Plugs a card in and starts its clock.
    ///
    /// # Errors
    /// A sentence: no waveform, no thread, or hardware that does not answer.
    pub fn start(hardware: &Hardware, trace: Option<PathBuf>) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            doorbells: [const { AtomicU32::new(0) }; QUEUES],
            rung: [const { AtomicU64::new(0) }; QUEUES / 64],
            news: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
        });
        let (orders, inbox) = channel();
        let (up, is_up) = sync_channel(1);
        let hardware = hardware.clone();
        let of_thread = Arc::clone(&shared);
        let run = move || match Clocked::new(&hardware, trace, of_thread, inbox) {
            Ok((mut clocked, queues)) => {
                let _ = up.send(Ok(queues));
                clocked.run();
            }
            Err(error) => {
                let _ = up.send(Err(error));
            }
        };
        let thread =
            thread::Builder::new().name("pd-rtl".to_owned()).spawn(run).map_err(|e| e.to_string())?;
        let queues = is_up.recv().map_err(|_| "the card's thread ended".to_owned())??;
        let free = Mutex::new((0..queues).rev().collect());
        Ok(Self { shared, orders: Mutex::new(orders), free, thread: Some(thread) })
    }

    /// Takes a queue pair into use; `None` if all are.
    pub fn add(&self, rings: Arc<Rings>) -> Option<usize> {
        let index = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        self.ask(|answer| Order::Add(index, rings, answer));
        Some(index)
    }

    /// Gives it back; returns when the card touches nothing of it any more.
    pub fn remove(&self, index: usize) {
        self.ask(|answer| Order::Remove(index, answer));
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(index);
    }

    /// Returns what has gone over the card's port.
    pub fn counts(&self) -> Counts {
        self.ask(Order::Count).unwrap_or_default()
    }

    /// Writes the doorbell of pair `index`. What was stored before is seen by the card.
    pub fn ring(&self, index: usize, sq_producer_index: u16, cq_consumer_index: u16) {
        let value = queue::DOORBELL_SQ_PRODUCER.with(sq_producer_index.into())
            | queue::DOORBELL_CQ_CONSUMER.with(cq_consumer_index.into());
        // SYNC POINT: rtl-doorbell
        self.shared.doorbells[index].store(value, Ordering::Release);
        self.shared.rung[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
        self.tell();
    }

    fn tell(&self) {
        self.shared.news.store(true, Ordering::Release);
        // SYNC POINT: rtl-sleep
        fence(Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::Relaxed) {
            if let Some(thread) = &self.thread {
                thread.thread().unpark();
            }
        }
    }

    fn ask<T>(&self, order: impl FnOnce(SyncSender<T>) -> Order) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.send(order(answer)).ok()?;
        drop(orders);
        self.tell();
        answered.recv().ok()
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let _ = self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(Order::Stop);
        self.tell();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The card's thread.
struct Clocked {
    port: Port<EngineMemory>,
    shared: Arc<Shared>,
    inbox: Receiver<Order>,
}

impl Clocked {
    fn new(
        hardware: &Hardware,
        trace: Option<PathBuf>,
        shared: Arc<Shared>,
        inbox: Receiver<Order>,
    ) -> Result<(Self, usize), String> {
        let model = hardware.card(trace.as_deref())?;
        let mut port = Port::new(model, hardware.data_bytes(), Timing::IDEAL, EngineMemory::default());
        let queues = enable(&mut port)?;
        Ok((Self { port, shared, inbox }, queues as usize))
    }

    fn run(&mut self) {
        loop {
            if self.shared.news.load(Ordering::Relaxed) {
                // An order or a doorbell was there before `news`.
                self.shared.news.swap(false, Ordering::AcqRel);
                if self.take_orders() {
                    return;
                }
                self.take_doorbells();
            }
            self.port.cycle();
            if self.port.now() % LOOK_CYCLES == 0 && !self.port.host.is_busy() {
                self.sleep();
            }
        }
    }

    fn sleep(&self) {
        self.shared.asleep.store(true, Ordering::Relaxed);
        // SYNC POINT: rtl-sleep
        fence(Ordering::SeqCst);
        while !self.shared.news.load(Ordering::Relaxed) {
            thread::park();
        }
        self.shared.asleep.store(false, Ordering::Relaxed);
    }

    fn take_doorbells(&mut self) {
        for (number, rung) in self.shared.rung.iter().enumerate() {
            let mut bits = rung.swap(0, Ordering::Acquire);
            while bits != 0 {
                let index = number * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                // Perhaps of a later doorbell than the one that set the bit; then its entries must be seen too.
                // SYNC POINT: rtl-doorbell
                let value = self.shared.doorbells[index].load(Ordering::Acquire);
                self.port.host.submit(index, queue::DOORBELL_SQ_PRODUCER.get(value) as u16);
                self.port.write(queue_offset(index as u32, queue::DOORBELL), value);
            }
        }
    }

    /// Carries out orders; true if one was to stop.
    fn take_orders(&mut self) -> bool {
        while let Ok(order) = self.inbox.try_recv() {
            match order {
                Order::Add(index, rings, answer) => {
                    let (sq, cq) = (rings.sq.addr(), rings.cq.addr());
                    self.port.host.add(index, rings);
                    open_queue(&mut self.port, index as u32, sq, cq, None);
                    let _ = answer.send(());
                }
                Order::Remove(index, answer) => {
                    close_queue(&mut self.port, index as u32);
                    self.port.host.remove(index);
                    // A doorbell not looked at yet must not ring for the pair that gets this number next.
                    self.shared.rung[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Relaxed);
                    let _ = answer.send(());
                }
                Order::Count(answer) => {
                    let _ = answer.send(self.port.counts());
                }
                Order::Stop => return true,
            }
        }
        false
    }
}

/// Turns the device on; returns how many queue pairs it has.
///
/// # Errors
/// A sentence: it is not the device that this program knows.
pub fn enable<H: crate::port::Host>(port: &mut Port<H>) -> Result<u32, String> {
    const POLLS_MAX: u32 = 10_000;
    let known = (Some(registers::DEVICE_ID), Some(registers::DEVICE_VERSION));
    let found = (port.read(global::ID), port.read(global::VERSION));
    if found != known {
        return Err(format!("the device says id and version {found:x?}, expected {known:x?}"));
    }
    port.write(global::CONTROL, global::CONTROL_ENABLE.with(1));
    for _ in 0..POLLS_MAX {
        let status = port.read(global::STATUS).unwrap_or_default();
        if global::STATUS_READY.get(status) == 1 {
            let caps = port.read(global::CAPS).unwrap_or_default();
            return Ok(global::CAPS_QUEUES.get(caps));
        }
    }
    Err("the device does not become ready".to_owned())
}

/// Enables a queue pair with its queues at these addresses and its interrupts, if any, on `vector`.
pub fn open_queue<H: crate::port::Host>(
    port: &mut Port<H>,
    index: u32,
    sq: u64,
    cq: u64,
    vector: Option<u32>,
) {
    let config =
        vector.map_or(0, |vector| queue::CONFIG_VECTOR.with(vector) | queue::CONFIG_IRQ_ENABLE.with(1));
    for (register, value) in [
        (queue::SQ_BASE_LO, sq as u32),
        (queue::SQ_BASE_HI, (sq >> 32) as u32),
        (queue::CQ_BASE_LO, cq as u32),
        (queue::CQ_BASE_HI, (cq >> 32) as u32),
        (queue::CONFIG, config),
        (queue::CONTROL, queue::CONTROL_ENABLE.with(1)),
    ] {
        port.write(queue_offset(index, register), value);
    }
}

/// Disables a queue pair and waits until the card is done with what it had fetched.
fn close_queue<H: crate::port::Host>(port: &mut Port<H>, index: u32) {
    port.write(queue_offset(index, queue::CONTROL), 0);
    let start = port.now();
    while port.now() - start < DRAIN_CYCLES_MAX {
        let state = port.read(queue_offset(index, queue::STATE)).unwrap_or_default();
        if queue::STATE_BATCHES.get(state) == 0 {
            return;
        }
    }
}
