//! A driver whose agents get turns one at a time.
use super::kernel;
use crate::clock::Clock;
use crate::door::Sockets;
use crate::driver::{assemble, Agents, Parts, STOP_POLL};
use crate::messages::{Payer, ToConductor};
use crate::policy::Policy;
use crate::settings::Settings;
use pd_engine::Engine;
use rustix::net::{
    bind, getsockname, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A driver's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    Door,
    /// The conductor, with its mover where that has its thread.
    Conductor,
    Mover(usize),
    Helper(Payer),
}

/// How far an agent is on its way to sleep.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Busy,
    /// It has had nothing to do, and is to be woken by then.
    Idle(Duration),
    Asleep(Duration),
}

/// See the module.
pub struct Running {
    pub parts: Parts,
    pub address: SocketAddrUnix,
    clock: Arc<dyn Clock>,
    door: Rest,
    conductor: Rest,
    movers: Vec<Rest>,
    /// Helpers that are held up.
    pub held_up: BTreeMap<Payer, Duration>,
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
    /// `is_safe`: the kernel refuses descriptors, so that the door receives frames itself.
    pub fn start(settings: &Settings, clock: Arc<dyn Clock>, engine: &dyn Engine, is_safe: bool) -> Self {
        let ((attach, address), (admin, _)) = (listener(SocketType::SEQPACKET), listener(SocketType::STREAM));
        let sockets = Sockets { attach, admin, is_safe };
        let parts = assemble(settings, Arc::clone(&clock), engine, sockets, 4096).expect("a driver");
        let movers = match &parts.agents {
            Agents::Shared(_) => Vec::new(),
            Agents::Apart(_, movers) => vec![Rest::Busy; movers.len()],
        };
        let (door, conductor, held_up) = (Rest::Busy, Rest::Busy, BTreeMap::new());
        Self { parts, address, clock, door, conductor, movers, held_up }
    }

    /// All agents that there are.
    pub fn agents(&self) -> Vec<Agent> {
        let helpers = self.parts.door.helped().into_iter().map(Agent::Helper);
        let movers = (0..self.movers.len()).map(Agent::Mover);
        [Agent::Door, Agent::Conductor].into_iter().chain(movers).chain(helpers).collect()
    }

    /// Whether an agent can go on.
    pub fn can_go_on(&self, agent: Agent) -> bool {
        let now = self.clock.now();
        let rest = match agent {
            Agent::Door => self.door,
            Agent::Conductor => self.conductor,
            Agent::Mover(at) => self.movers[at],
            Agent::Helper(payer) => return self.held_up.get(&payer).is_none_or(|until| now >= *until),
        };
        match rest {
            Rest::Busy | Rest::Idle(_) => true,
            Rest::Asleep(until) => now >= until || self.is_rung(agent),
        }
    }

    fn is_rung(&self, agent: Agent) -> bool {
        match (agent, &self.parts.agents) {
            (Agent::Door, _) => self.parts.door.is_rung(),
            (Agent::Conductor, Agents::Shared(shared)) => shared.conductor.is_own_mover_rung(),
            (Agent::Conductor, Agents::Apart(conductor, _)) => conductor.is_rung(),
            (Agent::Mover(at), Agents::Apart(_, movers)) => movers[at].is_rung(),
            _ => false,
        }
    }

    /// When the clock lets somebody go on.
    pub fn wake_by(&self) -> Option<Duration> {
        let rests = [self.door, self.conductor].into_iter().chain(self.movers.iter().copied());
        let sleeps = rests.filter_map(|rest| match rest {
            Rest::Asleep(until) => Some(until),
            _ => None,
        });
        let helped = self.parts.door.helped();
        let held = self.held_up.iter().filter(|(payer, _)| helped.contains(payer)).map(|(_, until)| *until);
        sleeps.chain(held).min()
    }

    /// Gives an agent one turn. Returns something for the trace.
    pub fn step(&mut self, agent: Agent) -> u64 {
        let now = self.clock.now();
        let Parts { agents, door, .. } = &mut self.parts;
        let in_time = |timeout: Duration| Rest::Asleep(now + timeout);
        let (next, trace) = match (agent, agents) {
            (Agent::Helper(payer), _) => {
                door.help(payer);
                return 1;
            }
            (Agent::Door, _) => {
                self.door = match self.door {
                    Rest::Idle(_) => in_time(door.lie_down(STOP_POLL)),
                    _ if door.work(Duration::ZERO) => Rest::Busy,
                    _ => Rest::Idle(now),
                };
                return rest_number(self.door);
            }
            (Agent::Conductor, Agents::Shared(shared)) => {
                let inboxes = shared.conductor.inboxes().clone();
                let asleep = |asleep| inboxes.set_asleep(asleep);
                let mover = match self.conductor {
                    Rest::Busy => None,
                    _ => shared.conductor.mover(),
                };
                let next = match (self.conductor, mover) {
                    (Rest::Idle(by), Some(mover)) if !mover.is_copying() => {
                        match mover.lie_down(Some(by), &asleep, &|| inboxes.are_filled()) {
                            Some(timeout) => in_time(timeout.unwrap_or(STOP_POLL)),
                            None => {
                                mover.get_up(&asleep);
                                Rest::Busy
                            }
                        }
                    }
                    (Rest::Asleep(_), Some(mover)) => {
                        mover.sleep(Some(Duration::ZERO));
                        mover.get_up(&asleep);
                        Rest::Busy
                    }
                    _ => shared.turn().map_or(Rest::Busy, Rest::Idle),
                };
                self.conductor = next;
                return rest_number(next);
            }
            (Agent::Conductor, Agents::Apart(conductor, _)) => {
                self.conductor = match self.conductor {
                    Rest::Idle(_) => in_time(conductor.lie_down(STOP_POLL)),
                    Rest::Asleep(_) => {
                        conductor.poll(Some(Duration::ZERO));
                        conductor.get_up();
                        Rest::Busy
                    }
                    Rest::Busy if conductor.step() => Rest::Busy,
                    Rest::Busy => Rest::Idle(now),
                };
                return rest_number(self.conductor);
            }
            (Agent::Mover(at), Agents::Apart(_, movers)) => {
                let mover = &mut movers[at];
                let next = match self.movers[at] {
                    Rest::Idle(by) if !mover.is_copying() => {
                        match mover.lie_down(Some(by), &|_| {}, &|| false) {
                            Some(timeout) => in_time(timeout.unwrap_or(STOP_POLL)),
                            None => {
                                mover.get_up(&|_| {});
                                Rest::Busy
                            }
                        }
                    }
                    Rest::Asleep(_) => {
                        mover.sleep(Some(Duration::ZERO));
                        mover.get_up(&|_| {});
                        Rest::Busy
                    }
                    _ if mover.step() => Rest::Busy,
                    _ => Rest::Idle(now + STOP_POLL),
                };
                self.movers[at] = next;
                (next, 0)
            }
            (Agent::Mover(_), Agents::Shared(_)) => (Rest::Busy, 0),
        };
        rest_number(next) + trace
    }

    /// Has a policy put in force, soon.
    pub fn apply(&self, policy: Policy) {
        self.parts.inbox.send(ToConductor::Apply { policy: Box::new(policy) });
    }

    /// The conductor.
    pub fn conductor(&mut self) -> &mut crate::conductor::Conductor {
        match &mut self.parts.agents {
            Agents::Shared(shared) => &mut shared.conductor,
            Agents::Apart(conductor, _) => conductor,
        }
    }

    /// What is left although there is no client.
    pub fn leftovers(&mut self) -> Vec<String> {
        let mut left = self.parts.door.leftovers();
        left.extend(self.conductor().leftovers());
        match &mut self.parts.agents {
            Agents::Shared(shared) => {
                left.extend(shared.conductor.mover().map(|m| m.leftovers()).into_iter().flatten())
            }
            Agents::Apart(_, movers) => movers.iter_mut().for_each(|mover| left.extend(mover.leftovers())),
        }
        left
    }

    /// What an agent does, for those who wonder.
    pub fn describe(&self) -> String {
        format!("door {:?}, conductor {:?}, movers {:?}", self.door, self.conductor, self.movers)
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
        // What its agents let go is not to fail.
        kernel::with(|kernel| kernel.faults.clear());
    }
}
