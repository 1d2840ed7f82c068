//! The data agent: takes sends from request rings, has engines copy them, tells both sides.
//!
//! A mover serves the request and event rings of its clients and the flows that start at their
//! sockets. Everything it owns is touched by its thread alone; commands come by its mailbox. In steady
//! state it makes no system call, allocation, lock or log line per message.
mod channel;
mod commands;
mod counting;
mod division;
mod engines;
mod events;
mod fair;
mod files;
mod fit;
mod flow;
mod flows;
mod migration;
mod requests;
mod serve;
mod table;
#[cfg(any(test, fuzzing, feature = "hostile"))]
pub(crate) mod testing;
mod throttle;
mod turns;

pub use table::{BufferTable, Entry, ENTRIES_MAX};

use crate::clock::Clock;
use crate::ids::{ClientId, FlowId, MoverId};
use crate::mailbox::{Mailbox, Outbox};
use crate::memory::{Account, ClientMemory};
use crate::messages::{ToConductor, ToMover};
use crate::metrics::Metrics;
use crate::reader::{FileSocket, Readers};
use channel::Channel;
use division::Division;
use engines::Engines;
use fair::{Fair, PayerId};
use files::FileSlot;
use flows::Flows;
use migration::Drains;
use pd_abi::Command;
use pd_engine::Engine;
use pd_shm::{Mapping, Spin};
use rustix::event::epoll;
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;
use throttle::Throttle;

/// Commands that one flow may write in its turn.
const COMMANDS_PER_TURN: usize = 128;
/// One look in so many before a sleep is at the doorbells, too.
const LOOKS_PER_POLL: u32 = 4;
/// A mover that does not sleep looks at its doorbells this often.
const BUSY_POLL: Duration = Duration::from_millis(1);

/// Settings of a mover.
#[derive(Clone, Debug)]
pub struct MoverSettings {
    /// Its index.
    pub id: MoverId,
    /// How long it looks for work at most before it sleeps.
    pub spin: Duration,
    /// How long an empty receive ring stays with an idle flow.
    pub ring_idle: Duration,
}

/// See the module.
pub struct Mover {
    settings: MoverSettings,
    clock: Arc<dyn Clock>,
    inbox: Arc<Mailbox<ToMover>>,
    peers: Vec<Arc<Mailbox<ToMover>>>,
    conductor: Outbox<ToConductor>,
    metrics: Arc<Metrics>,
    engines: Engines,
    /// Open files and wait for disks.
    readers: Arc<Readers>,
    epoll: OwnedFd,

    clients: Vec<Option<Client>>,
    flows: Flows,
    /// Whose turn it is: channels that are looked at, and flows with something to copy.
    fair: Fair,
    /// Bytes copied by requests as they were taken, and the charge for those passed on to the conductor. Not charged yet.
    uncharged: u64,
    /// Flows with a full receive ring.
    blocked: Vec<FlowId>,
    /// Rates, and flows without tokens.
    throttle: Throttle,
    /// Flows with something to tell.
    touched: Vec<FlowId>,
    /// Channels with events to publish.
    dirty: Vec<(ClientId, usize)>,
    overflowing: Vec<(ClientId, usize)>,
    drains: Drains,
    /// What receive rings may have.
    division: Division,
    commands: VecDeque<ToMover>,
    batch: Vec<Command>,
    completions: Vec<Command>,
    spin: Spin,
    now: Duration,
    next_tick: Duration,
    /// Whether any flow needs ticks: it has a ring that may fall idle, or is ending.
    ticking: bool,
    next_poll: Duration,
    watched: bool,
    sleeps: u32,
}

struct Client {
    payer: PayerId,
    account: Arc<Account>,
    memory: Arc<ClientMemory>,
    /// By which it passes files.
    file_socket: Option<Arc<FileSocket>>,
    files: Vec<FileSlot>,
    channels: Vec<Option<Channel>>,
    regions: Vec<Option<Arc<Mapping>>>,
    sockets: Vec<Socket>,
    removing: bool,
    cut_off: bool,
}

#[derive(Clone, Copy, Default)]
struct Socket {
    /// 0: none.
    generation: u16,
    channel: u8,
    outgoing: Option<FlowId>,
    /// The flow that has sends of this socket's, also after it was closed.
    sends: Option<FlowId>,
    incoming: Option<(MoverId, FlowId)>,
}

const TOKEN_INBOX: u64 = u64::MAX;
const TOKEN_EXTRA: u64 = u64::MAX - 1;

fn token(client: ClientId, channel: usize) -> u64 {
    u64::from(client.get()) << 32 | channel as u64
}

impl Mover {
    /// A mover with `engine` to copy.
    ///
    /// # Errors
    /// Those of the engine, `epoll` and `eventfd`.
    pub fn new(
        settings: MoverSettings,
        clock: Arc<dyn Clock>,
        engine: &dyn Engine,
        inboxes: &[Arc<Mailbox<ToMover>>],
        conductor: Outbox<ToConductor>,
        metrics: Arc<Metrics>,
        readers: Arc<Readers>,
    ) -> Result<Self, crate::StartError> {
        let inbox = Arc::clone(&inboxes[settings.id.index()]);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, inbox.fd(), epoll::EventData::new_u64(TOKEN_INBOX), edge)?;
        Ok(Self {
            engines: Engines::new(engine, Arc::clone(&metrics))?,
            spin: Spin::new(settings.spin),
            peers: inboxes.to_vec(),
            inbox,
            settings,
            now: clock.now(),
            clock,
            conductor,
            metrics,
            readers,
            epoll,
            clients: Vec::new(),
            flows: Flows::default(),
            fair: Fair::default(),
            uncharged: 0,
            blocked: Vec::new(),
            throttle: Throttle::default(),
            touched: Vec::new(),
            dirty: Vec::new(),
            overflowing: Vec::new(),
            drains: Drains::default(),
            division: Division::default(),
            commands: VecDeque::new(),
            batch: Vec::with_capacity(COMMANDS_PER_TURN),
            completions: vec![Command::default(); COMMANDS_PER_TURN],
            next_tick: Duration::ZERO,
            ticking: false,
            next_poll: Duration::ZERO,
            watched: false,
            sleeps: 0,
        })
    }

    /// Lets [`Self::idle`] wake up for another descriptor as well.
    ///
    /// # Errors
    /// Those of `epoll_ctl`.
    pub fn watch(&mut self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(TOKEN_EXTRA), epoll::EventFlags::IN)
    }

    /// One turn: commands, requests, copies, completions, news. Says whether there was anything to do.
    pub fn step(&mut self) -> bool {
        self.now = self.clock.now();
        let mut worked = self.take_commands();
        if self.ticking && self.now >= self.next_tick {
            self.tick(self.settings.ring_idle);
        }
        if self.drains.next().is_some_and(|at| self.now >= at) {
            self.look_at_drains();
        }
        if self.now >= self.next_poll {
            // Busy for a while: hear those that ring all the same.
            self.wait(Some(Duration::ZERO));
            self.next_poll = self.now + BUSY_POLL;
        }
        if self.throttle.is_limited() {
            self.take_alarms();
        }
        worked |= self.poll_blocked();
        worked |= self.serve();
        worked |= self.reap();
        self.publish();
        self.flush_events();
        worked
    }

    #[inline]
    fn tell_conductor(&self, message: ToConductor) {
        self.conductor.send(message);
    }

    /// What it has to tell a conductor of its own thread; `into` is empty.
    pub fn take_messages(&self, into: &mut VecDeque<ToConductor>) {
        self.conductor.drain(into);
    }

    /// Waits for something to do: a bounded spin, then a sleep, at most until `wake_by`. `news` looks
    /// for work that comes neither by a ring nor by the mailbox; `asleep` is told of each sleep.
    pub fn idle(&mut self, wake_by: Option<Duration>, asleep: impl Fn(bool), news: impl Fn() -> bool) {
        if self.engines.in_flight() > 0 {
            std::thread::yield_now();
            return;
        }
        let (mut spin, mut looks) = (self.spin.clone(), 0u32);
        let found = spin.until(|| {
            looks += 1;
            news() || self.has_news() || looks % LOOKS_PER_POLL == 0 && self.wait(Some(Duration::ZERO))
        });
        self.spin = spin;
        if found {
            return;
        }
        self.arm();
        asleep(true);
        self.inbox.set_asleep(true);
        // SYNC POINT: need-wakeup-dekker
        fence(Ordering::SeqCst);
        if !news() && !self.has_news() {
            let tick = self.ticking.then_some(self.next_tick);
            let look = self.drains.next();
            let until = [tick, look, wake_by, self.throttle.next()].into_iter().flatten().min();
            let now = self.clock.now();
            self.wait(until.map(|until| until.saturating_sub(now).max(Duration::from_millis(1))));
            self.next_poll = self.clock.now() + BUSY_POLL;
            Metrics::add(&self.metrics.mover_sleeps, 1);
        }
        self.inbox.set_asleep(false);
        asleep(false);
        self.disarm();
        self.spin.slept();
    }

    /// Whether the descriptor given to [`Self::watch`] has become readable since the last call.
    pub fn take_watched(&mut self) -> bool {
        std::mem::take(&mut self.watched)
    }

    /// Waits in the kernel; says whether anybody rang.
    fn wait(&mut self, timeout: Option<Duration>) -> bool {
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        let mut space = [MaybeUninit::uninit(); 64];
        // An interrupted or failed wait is a wake-up like any other: everything is looked at.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut space, timeout.as_ref()) else { return false };
        let rung = !ready.is_empty();
        for event in ready {
            match event.data.u64() {
                TOKEN_INBOX => {}
                TOKEN_EXTRA => self.watched = true,
                token => self.activate(ClientId::new((token >> 32) as u16), token as u32 as usize),
            }
        }
        rung
    }

    /// Asks all clients that are looked at to ring, and blocked receivers to say when there is room.
    fn arm(&mut self) {
        self.sleeps = self.sleeps.wrapping_add(1).max(1);
        for (client, index) in self.fair.channels() {
            let Some(Some(client)) = self.clients.get(client.index()) else { continue };
            client.memory.set_need_wakeup(index, self.sleeps);
        }
        for &id in &self.blocked {
            if let Some(flow) = self.flows.used(id) {
                flow.ask_for_room();
            }
        }
    }

    fn disarm(&mut self) {
        for (client, index) in self.fair.channels() {
            let Some(Some(client)) = self.clients.get(client.index()) else { continue };
            client.memory.set_need_wakeup(index, 0);
        }
        for &id in &self.blocked {
            if let Some(flow) = self.flows.used(id) {
                flow.ask_for_nothing();
            }
        }
    }

    fn has_news(&mut self) -> bool {
        if self.inbox.is_filled() || self.fair.has_flows() {
            return true;
        }
        for (client, index) in self.fair.channels() {
            if channel_of(&mut self.clients, client, index).is_some_and(|c| c.has_requests()) {
                return true;
            }
        }
        for &id in &self.blocked {
            // A broken receiver is news as well.
            if self.flows.used(id).is_some_and(|f| f.has_room().unwrap_or(true)) {
                return true;
            }
        }
        false
    }
}

fn put<T>(list: &mut Vec<Option<T>>, index: usize, item: T) {
    if list.len() <= index {
        list.resize_with(index + 1, || None);
    }
    list[index] = Some(item);
}

fn channel_of(clients: &mut [Option<Client>], client: ClientId, channel: usize) -> Option<&mut Channel> {
    clients.get_mut(client.index())?.as_mut()?.channels.get_mut(channel)?.as_mut()
}
