//! The door: all work of which a client chooses the cost, on a thread of its own. The work costs neither the conductor nor a mover.
//!
//! The door accepts clients and identifies them, reads their frames, makes, populates and seals their memory, notices their deaths, and
//! serves administrators. Conductor and movers get finished objects from a mailbox ([`FromDoor`]). The conductor takes a bounded number of
//! them in a turn.
//!
//! In a turn the door accepts one process at most, and reads a few frames, never one socket until it is empty. Users take turns at being
//! accepted ([`accept`]), tenants and then clients at being read ([`turns`]), and each pays with tokens. Helpers do all work that may take
//! long, or as long as a client likes ([`helpers`]).
//!
//! The door never touches payload, and shares no table.
mod accept;
mod admin;
mod bucket;
mod claim;
mod commands;
mod frames;
mod guest;
mod helpers;
mod listen;
mod messages;
mod pipes;
mod takeover;
mod telling;
#[cfg(any(test, fuzzing, feature = "testing"))]
mod testing;
mod turns;

pub use claim::{Claim, Proved};
pub use listen::{listen, Sockets};
pub use messages::{Asked, FromDoor, Reading, Registering, Registration, ToDoor};
pub use takeover::DoorState;

use crate::clock::Clock;
use crate::crash::marks::{Marker, Marks};
use crate::ids::ClientId;
use crate::mailbox::{Loan, Mailbox};
use crate::memory::Pool;
use crate::pipes::Pipes;
use crate::settings::Settings;
use crate::standing::Host;
use crate::StartError;
use accept::Newcomers;
use admin::{Desk, Strangers};
use guest::Guests;
use helpers::Helpers;
use pd_shm::counters::CounterRegion;
use rustix::event::epoll;
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use turns::Turns;

/// Most frames that are read in one turn.
const FRAMES_PER_TURN: usize = 8;
/// Interval at which helpers, users and tenants that are gone are forgotten.
const SWEEP: Duration = Duration::from_secs(1);

fn dup(fd: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0)
}

const TOKEN_INBOX: u64 = 0;
const TOKEN_LISTENER: u64 = 1;
const TOKEN_ADMIN: u64 = 2;
const TOKEN_WATCHED: u64 = 3;
const TOKEN_SOCKET: u64 = 4;
const TOKEN_PIDFD: u64 = 5;

fn token(kind: u64, client: ClientId) -> epoll::EventData {
    epoll::EventData::new_u64(kind << 32 | u64::from(client.get()))
}

/// See the module.
pub struct Door {
    clock: Arc<dyn Clock>,
    inbox: Arc<Mailbox<ToDoor>>,
    conductor: Arc<Mailbox<FromDoor>>,
    pool: Arc<Pool>,
    pipes: Arc<Pipes>,
    clients_max: usize,
    epoll: OwnedFd,
    listener: OwnedFd,
    admin: OwnedFd,
    /// Set if the kernel lets no descriptors come in, so that receiving takes no longer than its bytes.
    is_safe: bool,
    newcomers: Newcomers,
    host: Host,
    guests: Guests,
    turns: Turns,
    helpers: Helpers,
    desk: Arc<Desk>,
    strangers: Strangers,
    /// Processes whose end is to be reported.
    watched: Vec<Arc<OwnedFd>>,
    commands: VecDeque<ToDoor>,
    /// Guests, with their serials, for whom a frame is held that the next sweep sends again.
    untold: Vec<(ClientId, u64)>,
    next_sweep: Duration,
    /// Loan of the door, if it is wanted elsewhere.
    loan: Option<Loan<Self>>,
    /// Writing end of the pipe that hangs up when the driver ends.
    _alive: OwnedFd,
    /// Notes for the driver after a crash.
    marks: Marker,
}

impl Door {
    /// Makes a door at the sockets, with its own mailbox and the conductor's.
    ///
    /// # Errors
    /// Errors of `epoll`, and of making a pipe.
    pub fn new(
        settings: &Settings,
        sockets: Sockets,
        clock: Arc<dyn Clock>,
        (inbox, conductor): (Arc<Mailbox<ToDoor>>, Arc<Mailbox<FromDoor>>),
        pool: Arc<Pool>,
        counters: Arc<CounterRegion>,
        pipes: Arc<Pipes>,
    ) -> Result<Self, StartError> {
        let Sockets { attach: listener, admin, is_safe, maps } = sockets;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, inbox.fd(), token(TOKEN_INBOX, ClientId::default()), edge)?;
        epoll::add(&epoll, &listener, token(TOKEN_LISTENER, ClientId::default()), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &admin, token(TOKEN_ADMIN, ClientId::default()), epoll::EventFlags::IN)?;
        let (alive, end) = pipe_with(PipeFlags::CLOEXEC)?;
        let listening = Sockets { attach: dup(&listener)?, admin: dup(&admin)?, is_safe, maps };
        let now = clock.now();
        Ok(Self {
            helpers: Helpers::new(Arc::clone(&pool), Arc::clone(&inbox)),
            desk: Desk::new(Arc::clone(&conductor), counters, alive, listening),
            strangers: Strangers::new(now),
            newcomers: Newcomers::new(now),
            clock,
            inbox,
            conductor,
            pool,
            pipes,
            clients_max: settings.clients_max,
            epoll,
            listener,
            admin,
            is_safe,
            host: Host::new(settings.socket_group),
            guests: Guests::default(),
            turns: Turns::default(),
            watched: Vec::new(),
            commands: VecDeque::new(),
            untold: Vec::new(),
            next_sweep: now + SWEEP,
            loan: None,
            _alive: end,
            marks: Marker::default(),
        })
    }

    /// Marks what changes from now on.
    pub fn set_marks(&mut self, marks: &Arc<Marks>) {
        self.marks.begin(marks);
    }

    /// Takes one turn. Sleeps for `idle` at most when there is nothing to do.
    pub fn turn(&mut self, idle: Duration, is_busy: &mut bool) {
        let timeout = if *is_busy { Duration::ZERO } else { self.lie_down(idle) };
        *is_busy = self.work(timeout);
    }

    /// Begins a sleep of at most `idle`, which [`Self::work`] ends. Returns its longest duration.
    pub fn lie_down(&mut self, idle: Duration) -> Duration {
        let now = self.clock.now();
        let wake_by = [self.newcomers.wake_by(), self.turns.wake_by(), self.strangers.wake_by()];
        let until = wake_by.into_iter().flatten().min();
        self.inbox.set_asleep(true);
        match self.inbox.is_filled() {
            true => Duration::ZERO,
            false => until.map_or(idle, |until| until.saturating_sub(now).min(idle)),
        }
    }

    /// Waits for news at most `timeout`, and does all work. Returns whether there was any.
    pub fn work(&mut self, timeout: Duration) -> bool {
        let knocks = self.look(timeout);
        self.inbox.set_asleep(false);
        self.reopen_desk();
        let mut worked = self.take_commands();
        worked |= self.welcome_one(knocks);
        for _ in 0..FRAMES_PER_TURN {
            if !self.serve_one() {
                break;
            }
            worked = true;
        }
        self.sweep();
        worked
    }

    /// Takes the kernel's news. Returns whether a process wants to attach.
    fn look(&mut self, timeout: Duration) -> bool {
        let nanoseconds = i64::from(timeout.subsec_nanos());
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: nanoseconds };
        let mut space = [MaybeUninit::uninit(); 64];
        // An interrupted wait is a wake-up like any other.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut space, Some(&timeout)) else { return false };
        let mut knocks = false;
        for event in ready {
            let word = event.data.u64();
            let (client, events) = (ClientId::new(word as u16), event.flags);
            match word >> 32 {
                TOKEN_LISTENER => knocks = true,
                TOKEN_ADMIN => self.answer_admin(),
                TOKEN_SOCKET => self.has_news(client, events),
                TOKEN_PIDFD => self.left(client),
                TOKEN_WATCHED => self.watched_ended(),
                _ => {}
            }
        }
        knocks
    }

    /// Takes the loan of the door, if it is wanted elsewhere.
    pub fn take_loan(&mut self) -> Option<Loan<Self>> {
        self.loan.take()
    }

    /// Ends a guest that has hung up, or died.
    fn left(&mut self, client: ClientId) {
        if self.guests.here(client).is_some() {
            self.close(client);
            self.conductor.send(FromDoor::Left { client });
        }
    }

    /// Stops serving a guest.
    fn close(&mut self, client: ClientId) {
        let begun = self.clock.now();
        self.marks.mark_client(client);
        if let Some(guest) = self.guests.leave(client) {
            let payer = guest.payer();
            let _ = epoll::delete(&self.epoll, &*guest.socket);
            let _ = epoll::delete(&self.epoll, &*guest.pidfd);
            let _ = rustix::net::shutdown(&*guest.socket, rustix::net::Shutdown::Both);
            self.charge_since(begun, payer);
            self.end_pipes(client);
        }
    }

    fn watched_ended(&mut self) {
        let epoll = &self.epoll;
        let before = self.watched.len();
        self.watched.retain(|pidfd| {
            let ended = crate::process::has_exited(pidfd).unwrap_or(false);
            if ended {
                let _ = epoll::delete(epoll, &**pidfd);
            }
            !ended
        });
        if self.watched.len() < before {
            self.conductor.send(FromDoor::WatchedEnded);
        }
    }

    fn sweep(&mut self) {
        let now = self.clock.now();
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP;
            self.tell_untold();
            self.helpers.sweep();
            self.newcomers.sweep(now);
            self.turns.sweep(now);
        }
    }
}
