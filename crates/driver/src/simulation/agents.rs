//! A driver whose agents run one turn at a time.
use super::kernel;
use crate::clock::Clock;
use crate::conductor::Inboxes;
use crate::door::Sockets;
use crate::driver::{assemble, Holds, Parts, STOP_POLL};
use crate::ids::MoverId;
use crate::memory::Shelves;
use crate::messages::{Payer, ToConductor};
use crate::mover::Mover;
use crate::policy::Policy;
use crate::reader::Kind;
use crate::settings::Settings;
use crate::takeover::early::{take, Given};
use crate::takeover::giving::gather;
use crate::takeover::pack::{Hindrance, Unpacked, Wrong};
use crate::takeover::state::{State, Stops};
use crate::takeover::taking;
use crate::takeover::Agents;
use pd_engine::Engine;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{
    bind, getsockname, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A driver's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    Door,
    /// The conductor, with the first mover.
    Conductor,
    /// Another mover.
    Mover(MoverId),
    Helper(Payer),
    /// An opener or a reader of files.
    Files(Payer, Kind),
}

/// An agent's progress on its way to sleep.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Busy,
    /// Had nothing to do, and has to be woken at the given time.
    Idle(Duration),
    Asleep(Duration),
}

/// Reason why a driver was not taken over.
#[derive(Debug)]
pub enum Failed {
    Hindered(#[allow(dead_code, reason = "shown")] Hindrance),
    Refused(#[allow(dead_code, reason = "shown")] Wrong),
}

impl From<Hindrance> for Failed {
    fn from(hindrance: Hindrance) -> Self {
        Self::Hindered(hindrance)
    }
}

impl From<Wrong> for Failed {
    fn from(wrong: Wrong) -> Self {
        Self::Refused(wrong)
    }
}

/// See the module.
pub struct Running {
    pub parts: Parts,
    pub address: SocketAddrUnix,
    /// The listening sockets, for a driver that takes over.
    listening: [OwnedFd; 2],
    clock: Arc<dyn Clock>,
    door: Rest,
    conductor: Rest,
    movers: BTreeMap<MoverId, Rest>,
    /// Helpers that are blocked, and until when.
    pub held_up: BTreeMap<Payer, Duration>,
    /// Openers and readers that are blocked, and until when.
    pub slow_files: BTreeMap<(Payer, Kind), Duration>,
}

fn listener(kind: SocketType) -> (OwnedFd, SocketAddrUnix) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None).expect("a socket");
    // The kernel gives it a name.
    bind(&socket, &SocketAddrUnix::new_unnamed()).expect("a name");
    let name = getsockname(&socket).expect("a name");
    listen(&socket, 64).expect("a listener");
    (socket, SocketAddrUnix::try_from(name).expect("a name"))
}

impl Running {
    /// Starts the driver. `is_safe`: the kernel refuses descriptors, so that the door receives frames itself.
    pub fn start(
        settings: &Settings,
        clock: Arc<dyn Clock>,
        engine: &dyn Engine,
        is_safe: bool,
        shelves: Shelves,
    ) -> Self {
        let ((attach, address), (admin, _)) = (listener(SocketType::SEQPACKET), listener(SocketType::STREAM));
        let make = (settings, clock, engine, is_safe);
        let mut this = Self::assemble(make, [attach, admin], address, shelves);
        this.conductor().put_first_in_force().expect("a policy");
        this.start_movers(settings);
        this
    }

    fn start_movers(&mut self, settings: &Settings) {
        if !settings.movers_auto {
            self.conductor().start_movers().expect("movers");
        }
    }

    /// Returns a driver that has taken this one's place. This one must not go on. `shake` may change the state and the descriptors on
    /// their way. With `early` the direct rings go first.
    ///
    /// # Errors
    /// The hindrance, or the fault; this driver goes on.
    pub fn taken_over(
        &mut self,
        (settings, engine, is_safe): (&Settings, &dyn Engine, bool),
        shelves: Shelves,
        early: bool,
        shake: impl FnOnce(&mut Vec<u8>, &mut Vec<OwnedFd>),
    ) -> Result<Self, Failed> {
        let Parts { lead, door, .. } = &mut self.parts;
        let conductor = &mut lead.conductor;
        let again = |fds: &mut dyn Iterator<Item = BorrowedFd<'_>>| -> Vec<OwnedFd> {
            fds.map(|fd| fcntl_dupfd_cloexec(fd, 0).expect("a descriptor")).collect()
        };
        let given = if early { conductor.early_rings() } else { Given::default() };
        let (list, files, numbers) = given.into_parts().expect("memory");
        let rings = take(&list, again(&mut files.iter().map(|file| file.as_fd())))?;
        let (state, pack) = gather(Stops::default(), &numbers, &mut Agents { conductor, door, nic: None })?;
        let (mut bytes, mut fds) = (state.to_bytes().expect("memory"), again(&mut pack.fds()));
        shake(&mut bytes, &mut fds);
        let state = State::from_bytes(&bytes)?;
        let policy = match conductor.policy_text() {
            Some(text) => Policy::parse(&text).expect("a policy that is in force"),
            None => settings.policy.clone(),
        };
        let make = (settings, Arc::clone(&self.clock), engine, is_safe);
        let listening = again(&mut self.listening.iter().map(AsFd::as_fd));
        let listening = listening.try_into().expect("two sockets");
        let mut next = Self::assemble(make, listening, self.address.clone(), shelves);
        let Parts { lead, door, .. } = &mut next.parts;
        let ready =
            taking::take(state, policy, &mut Unpacked::new(fds, rings), &mut lead.conductor, door, None)?;
        taking::begin(ready, &mut lead.conductor, door);
        next.start_movers(settings);
        Ok(next)
    }

    fn assemble(
        (settings, clock, engine, is_safe): (&Settings, Arc<dyn Clock>, &dyn Engine, bool),
        [attach, admin]: [OwnedFd; 2],
        address: SocketAddrUnix,
        shelves: Shelves,
    ) -> Self {
        let listening = [&attach, &admin].map(|socket| socket.try_clone().expect("a descriptor"));
        let sockets = Sockets { attach, admin, is_safe, maps: Vec::new() };
        let of_conductor = (Inboxes::new().expect("inboxes"), Err("the kernel is simulated".to_owned()));
        let holds = Holds { descriptors: 4096, shelves };
        let parts =
            assemble(settings, Arc::clone(&clock), engine, sockets, holds, of_conductor).expect("a driver");
        let (door, conductor, movers, held_up) = (Rest::Busy, Rest::Busy, BTreeMap::new(), BTreeMap::new());
        let slow_files = BTreeMap::new();
        Self { parts, address, listening, clock, door, conductor, movers, held_up, slow_files }
    }

    /// Returns all agents.
    pub fn agents(&self) -> Vec<Agent> {
        let helpers = self.parts.door.helped().into_iter().map(Agent::Helper);
        let movers = self.parts.lead.conductor.other_movers().map(Agent::Mover);
        let files = self.parts.readers.helped().into_iter().map(|(payer, kind)| Agent::Files(payer, kind));
        [Agent::Door, Agent::Conductor].into_iter().chain(movers).chain(helpers).chain(files).collect()
    }

    /// Tells whether an agent can go on.
    pub fn can_go_on(&self, agent: Agent) -> bool {
        let now = self.clock.now();
        let rest = match agent {
            Agent::Door => self.door,
            Agent::Conductor => self.conductor,
            Agent::Mover(id) => self.movers.get(&id).copied().unwrap_or(Rest::Busy),
            Agent::Helper(payer) => return self.held_up.get(&payer).is_none_or(|until| now >= *until),
            Agent::Files(payer, kind) => {
                return self.slow_files.get(&(payer, kind)).is_none_or(|until| now >= *until)
            }
        };
        match rest {
            Rest::Busy | Rest::Idle(_) => true,
            Rest::Asleep(until) => now >= until || self.is_rung(agent),
        }
    }

    fn is_rung(&self, agent: Agent) -> bool {
        let conductor = &self.parts.lead.conductor;
        match agent {
            Agent::Door => self.parts.door.is_rung(),
            Agent::Conductor => conductor.is_own_mover_rung(),
            Agent::Mover(id) => conductor.is_mover_rung(id),
            Agent::Helper(_) | Agent::Files(..) => false,
        }
    }

    /// Returns the time at which the clock lets an agent go on.
    pub fn wake_by(&self) -> Option<Duration> {
        let rests = [self.door, self.conductor].into_iter().chain(self.movers.values().copied());
        let sleeps = rests.filter_map(|rest| match rest {
            Rest::Asleep(until) => Some(until),
            _ => None,
        });
        let helped = self.parts.door.helped();
        let held = self.held_up.iter().filter(|(payer, _)| helped.contains(payer)).map(|(_, until)| *until);
        let files = self.parts.readers.helped();
        let slow = self.slow_files.iter().filter(|(key, _)| files.contains(key)).map(|(_, until)| *until);
        sleeps.chain(held).chain(slow).min()
    }

    /// Gives an agent one turn. Returns something for the trace.
    pub fn step(&mut self, agent: Agent) -> u64 {
        let now = self.clock.now();
        let Parts { lead, door, .. } = &mut self.parts;
        let in_time = |timeout: Duration| Rest::Asleep(now + timeout);
        let next = match agent {
            Agent::Helper(payer) => {
                door.help(payer);
                return 1;
            }
            Agent::Files(payer, kind) => {
                self.parts.readers.help((payer, kind));
                return 4;
            }
            Agent::Door => {
                self.door = match self.door {
                    Rest::Idle(_) => in_time(door.lie_down(STOP_POLL)),
                    _ if door.work(Duration::ZERO) => Rest::Busy,
                    _ => Rest::Idle(now),
                };
                self.door
            }
            Agent::Conductor => {
                let inboxes = lead.conductor.inboxes().clone();
                let asleep = |asleep| inboxes.set_asleep(asleep);
                let next = rest(self.conductor, lead.conductor.mover(), &asleep, &|| inboxes.are_filled());
                let next = next.map(|next| next.map_or(Rest::Busy, in_time));
                self.conductor = next.unwrap_or_else(|| lead.turn().map_or(Rest::Busy, Rest::Idle));
                self.conductor
            }
            Agent::Mover(id) => {
                // The mover may have been parked since.
                let Some(mover) = lead.conductor.other_mover(id) else { return 0 };
                let was = self.movers.get(&id).copied().unwrap_or(Rest::Busy);
                let next = match rest(was, mover, &|_| {}, &|| false) {
                    Some(next) => next.map_or(Rest::Busy, in_time),
                    None if mover.step() => Rest::Busy,
                    None => Rest::Idle(now + STOP_POLL),
                };
                self.movers.insert(id, next);
                next
            }
        };
        rest_number(next)
    }

    /// Puts a policy in force, soon.
    pub fn apply(&self, policy: Policy) {
        self.parts.inbox.send(ToConductor::Apply { policy: Box::new(policy) });
    }

    /// Returns the conductor.
    pub fn conductor(&mut self) -> &mut crate::conductor::Conductor {
        &mut self.parts.lead.conductor
    }

    /// Returns the state that is left without any client.
    pub fn leftovers(&mut self) -> Vec<String> {
        let mut left = self.parts.door.leftovers();
        let files = self.parts.readers.helped();
        left.extend((!files.is_empty()).then(|| format!("jobs of files {files:?}")));
        left.extend(self.conductor().leftovers());
        self.conductor().with_all_movers(|movers| {
            movers.iter_mut().for_each(|mover| left.extend(mover.leftovers()));
        });
        left
    }

    /// Describes the state of all agents, for diagnosis.
    pub fn describe(&self) -> String {
        format!("door {:?}, conductor {:?}, movers {:?}", self.door, self.conductor, self.movers)
    }
}

/// Puts a mover that had nothing to do to sleep, or wakes it. None: it takes a turn; otherwise the length of its sleep, if any.
fn rest(
    was: Rest,
    mover: &mut Mover,
    asleep: &dyn Fn(bool),
    is_filled: &dyn Fn() -> bool,
) -> Option<Option<Duration>> {
    match was {
        Rest::Idle(by) if !mover.is_copying() => match mover.lie_down(Some(by), asleep, is_filled) {
            Some(timeout) => Some(Some(timeout.unwrap_or(STOP_POLL))),
            None => {
                mover.get_up(asleep);
                Some(None)
            }
        },
        Rest::Asleep(_) => {
            mover.sleep(Some(Duration::ZERO));
            mover.get_up(asleep);
            Some(None)
        }
        _ => None,
    }
}

fn rest_number(rest: Rest) -> u64 {
    match rest {
        Rest::Busy => 1,
        Rest::Idle(_) => 2,
        Rest::Asleep(until) => 3 + until.as_nanos() as u64,
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Faults do not apply to the agents' drop.
        kernel::with(|kernel| kernel.faults.clear());
        // Jobs hold handles of their own threads.
        while let Some(&key) = self.parts.readers.helped().first() {
            self.parts.readers.help(key);
        }
    }
}
