//! The data agent: takes sends from request rings, has engines copy them, and tells both sides.
//!
//! A mover serves the request and event rings of its clients, and the flows that start at their sockets. Only its thread touches its state.
//! Commands come by its mailbox. In steady state there is no system call, allocation, lock or log line per message.
mod channel;
mod clients;
mod commands;
mod completion;
mod counting;
mod division;
mod doorbells;
mod engines;
mod events;
mod files;
mod flow;
mod flows;
pub mod load;
mod migration;
mod mirrors;
mod outbox;
mod price;
mod recovery;
mod requests;
mod ring_sizing;
mod scheduler;
mod serve;
mod table;
pub mod takeover;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub(crate) mod testing;
mod throttle;
mod ticks;
pub mod transfer;

pub use table::{BufferTable, Entry, ENTRIES_MAX};

use crate::clock::Clock;
use crate::crash::marks::{Marker, Marks};
use crate::ids::MoverId;
use crate::mailbox::{self, Mailbox};
use crate::messages::{ToConductor, ToMover};
use crate::metrics::Metrics;
use crate::nodes::Nodes;
use crate::reader::Readers;
use clients::Clients;
use division::Division;
use doorbells::{Doorbells, Rung};
use engines::Engines;
use flows::Flows;
use migration::Drains;
use mirrors::Mirrors;
use outbox::Outbox;
use pd_engine::Engine;
use pd_shm::Spin;
use price::Stopwatch;
use scheduler::Scheduler;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;
use throttle::Throttle;
use ticks::Ticks;

/// Looks before a sleep for each one that is at the doorbells, too.
const LOOKS_PER_POLL: u32 = 4;
/// Longest sleep while a doorbell cannot be watched.
const UNWATCHED_POLL: Duration = Duration::from_millis(10);

/// Settings of a mover.
#[derive(Clone, Debug)]
pub struct MoverSettings {
    /// Index of the mover.
    pub id: MoverId,
    /// Longest spin for work before a sleep.
    pub spin: Duration,
    /// Time for which an empty receive ring stays with an idle flow.
    pub ring_idle: Duration,
}

/// See the module.
pub struct Mover {
    settings: MoverSettings,
    clock: Arc<dyn Clock>,
    inbox: Arc<Mailbox<ToMover>>,
    metrics: Arc<Metrics>,
    /// Threads that open files and wait for disks.
    readers: Arc<Readers>,

    clients: Clients,
    flows: Flows,
    /// Turns of payers: channels that are looked at, and flows with bytes to copy.
    scheduler: Scheduler,
    /// Time that turns take.
    stopwatch: Stopwatch,
    /// Rates, and flows without tokens.
    throttle: Throttle,
    /// Sizes of receive rings.
    division: Division,
    drains: Drains,
    mirrors: Mirrors,
    engines: Engines,
    outbox: Outbox,
    doorbells: Doorbells,
    ticks: Ticks,
    spin: Spin,
    now: Duration,
    /// Node of memory that its thread was on lately. `None`: nodes do not matter.
    node: Option<u32>,
    /// Bytes of the requests that are being taken from a channel.
    bytes_taken: u64,
    /// Time since which there is nothing to do.
    idle_since: Option<Duration>,
    /// Set when its thread is to give it back.
    called_back: bool,
    /// Syncs for which the present step scans.
    scans: Vec<u64>,
    /// Space for the commands that are carried out next.
    commands: VecDeque<ToMover>,
    /// Notes for the driver after a crash.
    marks: Marker,
}

impl Mover {
    /// Makes a mover that copies with `engine`.
    ///
    /// # Errors
    /// Errors of the engine, `epoll` and `eventfd`.
    pub fn new(
        settings: MoverSettings,
        clock: Arc<dyn Clock>,
        engine: &dyn Engine,
        inboxes: &[Arc<Mailbox<ToMover>>],
        conductor: mailbox::Outbox<ToConductor>,
        metrics: Arc<Metrics>,
        readers: Arc<Readers>,
    ) -> Result<Self, crate::StartError> {
        let inbox = Arc::clone(&inboxes[settings.id.index()]);
        Ok(Self {
            doorbells: Doorbells::new(inbox.fd())?,
            engines: Engines::new(engine, Arc::clone(&metrics))?,
            outbox: Outbox::new(settings.id, conductor, inboxes),
            spin: Spin::new(settings.spin),
            inbox,
            settings,
            now: clock.now(),
            clock,
            metrics,
            readers,
            clients: Clients::default(),
            flows: Flows::default(),
            scheduler: Scheduler::default(),
            stopwatch: Stopwatch::default(),
            throttle: Throttle::default(),
            division: Division::default(),
            drains: Drains::default(),
            mirrors: Mirrors::default(),
            ticks: Ticks::default(),
            node: None,
            bytes_taken: 0,
            idle_since: None,
            called_back: false,
            scans: Vec::new(),
            commands: VecDeque::new(),
            marks: Marker::default(),
        })
    }

    /// Marks what changes from now on.
    pub fn set_marks(&mut self, marks: &Arc<Marks>) {
        self.marks.begin(marks);
    }

    /// Returns a number for the sleep that begins.
    fn number_sleep(&mut self) -> u32 {
        let number = self.doorbells.number_sleep();
        if let Some(marks) = self.marks.get() {
            marks.set_sleeps(self.settings.id, number);
        }
        number
    }

    /// Tells whether the thread is to give the mover back to the conductor. True once.
    pub fn is_called_back(&mut self) -> bool {
        std::mem::take(&mut self.called_back)
    }

    /// Lets [`Self::idle`] wake up for another descriptor as well.
    ///
    /// # Errors
    /// Errors of `epoll_ctl`.
    pub fn watch(&mut self, fd: impl AsFd) -> rustix::io::Result<()> {
        self.doorbells.watch(fd)
    }

    /// Takes one turn: commands, requests, copies, completions, news. Returns whether there was anything to do.
    pub fn step(&mut self) -> bool {
        self.now = self.clock.now();
        if let Some(since) = self.idle_since.take() {
            self.count_idle(since);
        }
        let mut worked = self.take_commands();
        if self.ticks.next().is_some_and(|at| self.now >= at) {
            self.tick(self.settings.ring_idle);
        }
        if self.drains.next().is_some_and(|at| self.now >= at) {
            self.look_at_drains();
        }
        if self.ticks.is_poll_due(self.now) {
            // The mover has been busy for a while, and looks at doorbells all the same.
            self.wait(Some(Duration::ZERO));
            self.ticks.polled(self.now);
            self.node = Nodes::here();
        }
        if self.throttle.is_limited() {
            self.take_alarms();
        }
        worked |= self.poll_blocked();
        worked |= self.serve();
        worked |= self.reap();
        self.publish();
        self.flush_events();
        for sync in std::mem::take(&mut self.scans) {
            self.tell_conductor(ToConductor::Scanned { sync });
        }
        worked
    }

    #[inline]
    fn tell_conductor(&self, message: ToConductor) {
        self.outbox.tell_conductor(message);
    }

    /// Moves the messages for a conductor of the same thread into `into`, which is empty.
    pub fn take_messages(&self, into: &mut VecDeque<ToConductor>) {
        self.outbox.take_messages(into);
    }

    /// Waits for work: a bounded spin, then a sleep, at most until `wake_by`. `news` looks for work that comes neither by a ring nor by the
    /// mailbox. `asleep` is told of each sleep.
    pub fn idle(&mut self, wake_by: Option<Duration>, asleep: impl Fn(bool), news: impl Fn() -> bool) {
        self.idle_since = Some(self.now);
        if self.engines.in_flight() > 0 {
            std::thread::yield_now();
            return;
        }
        let (mut spin, mut looks) = (self.spin.clone(), 0u32);
        let found = spin.until(|| {
            looks += 1;
            news() || self.has_news(true) || looks % LOOKS_PER_POLL == 0 && self.wait(Some(Duration::ZERO))
        });
        self.spin = spin;
        if found {
            return;
        }
        if let Some(timeout) = self.lie_down(wake_by, &asleep, &news) {
            self.sleep(timeout);
        }
        self.get_up(&asleep);
    }

    /// Begins a sleep: asks all clients to ring. Returns the longest duration of the sleep; `Some(None)` if there is no limit. `None`:
    /// there is work after all. [`Self::get_up`] ends the sleep in either case.
    pub fn lie_down(
        &mut self,
        wake_by: Option<Duration>,
        asleep: &dyn Fn(bool),
        news: &dyn Fn() -> bool,
    ) -> Option<Option<Duration>> {
        let all_watched = self.arm();
        asleep(true);
        self.inbox.set_asleep(true);
        // SYNC POINT: need-wakeup-dekker
        fence(Ordering::SeqCst);
        if news() || self.has_news(false) {
            return None;
        }
        let now = self.clock.now();
        let next_look = (!all_watched).then(|| now + UNWATCHED_POLL);
        let until = [self.ticks.next(), self.drains.next(), wake_by, self.throttle.next(), next_look];
        let until = until.into_iter().flatten().min();
        Some(until.map(|until| until.saturating_sub(now).max(Duration::from_millis(1))))
    }

    /// Sleeps in the kernel.
    pub fn sleep(&mut self, timeout: Option<Duration>) {
        self.wait(timeout);
        self.ticks.polled(self.clock.now());
        Metrics::add(&self.metrics.mover_sleeps, 1);
    }

    /// Ends a sleep that [`Self::lie_down`] has begun.
    pub fn get_up(&mut self, asleep: &dyn Fn(bool)) {
        self.inbox.set_asleep(false);
        asleep(false);
        self.disarm();
        self.spin.slept();
    }

    /// Tells whether the descriptor given to [`Self::watch`] has become readable since the last call.
    pub fn take_watched(&mut self) -> bool {
        self.doorbells.take_watched()
    }

    /// Waits in the kernel. Returns whether a doorbell rang.
    fn wait(&mut self, timeout: Option<Duration>) -> bool {
        let mut space = [MaybeUninit::uninit(); 64];
        let ready = self.doorbells.wait(&mut space, timeout);
        for event in ready {
            if let Rung::Channel(client, channel) = self.doorbells.take(event) {
                self.activate(client, channel);
            }
        }
        !ready.is_empty()
    }

    /// Asks all clients that are looked at to ring, and blocked receivers to report room. Returns whether each ring would be noticed.
    fn arm(&mut self) -> bool {
        let number = self.number_sleep();
        let mut all_watched = true;
        for (id, index) in self.scheduler.channels() {
            let Some(client) = self.clients.get_mut(id) else { continue };
            client.memory().set_need_wakeup(index, number);
            all_watched &=
                client.channel(index).is_none_or(|channel| self.doorbells.take_channel(id, index, channel));
        }
        for id in self.scheduler.blocked() {
            if let Some(flow) = self.flows.used(id) {
                flow.ask_for_room();
            }
        }
        all_watched
    }

    fn disarm(&mut self) {
        for (client, index) in self.scheduler.channels() {
            let Some(client) = self.clients.get(client) else { continue };
            client.memory().set_need_wakeup(index, 0);
        }
        for id in self.scheduler.blocked() {
            if let Some(flow) = self.flows.used(id) {
                flow.ask_for_nothing();
            }
        }
    }

    /// Looks for work. With `rests` it skips channels that are left alone for a while.
    fn has_news(&mut self, rests: bool) -> bool {
        if self.inbox.is_filled() || self.scheduler.has_flows() {
            return true;
        }
        for (client, index) in self.scheduler.channels() {
            let Some(channel) = self.clients.channel(client, index) else { continue };
            // A channel that rests is spared even a look at its memory.
            if !(rests && channel.rests(|| self.clock.now())) && channel.has_requests() {
                return true;
            }
        }
        for id in self.scheduler.blocked() {
            // A broken receiver is news as well.
            if self.flows.used(id).is_some_and(|f| f.has_room().unwrap_or(true)) {
                return true;
            }
        }
        false
    }
}
