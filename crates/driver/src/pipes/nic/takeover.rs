//! State of ports and pipes for another driver, while everything stands still.
//!
//! The other driver adds each port and opens each pipe as for the first time, by the policy that it has in force, and then gives them the
//! state that they had. Pipes that cannot go on end there: see [`Nic::take`].
use super::{accounts, Nic, Pipe};
use crate::ids::ClientId;
use crate::messages::Payer;
use crate::pipes::report::TenantCounts;
use crate::pipes::NewPort;
use crate::takeover::pack::{Fd, Hindrance, Pack, Unpacked, Wrong};
use pd_abi::pipe::PIPE_PORTS_MAX;
use pd_pipe::{
    end_resumed, Direction, Flow, Gen, GenState, LinkState, PipeId, PortCounts, PortId, Resumed, Route, Sink,
    TapDevice,
};
use pd_shm::ringer::{Ringer, WakeEnd};
use pd_shm::wake;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Name of a pipe: its client, and its number there.
type Name = (ClientId, u32);

/// State of the agent of pipes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicState {
    ports: Vec<PortState>,
    /// Names of ports that end with the driver which gives this.
    left: Vec<String>,
    pipes: Vec<PipeState>,
    links: Vec<LinkState<Name, String>>,
    /// By number.
    tenants: Vec<TenantState>,
    /// Numbers of the last offer of a direct path, and of the last sleep.
    last: [u32; 2],
}

/// A port. A link has the counts of both ends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortState {
    name: String,
    kind: Kind,
    counts: Vec<PortCounts>,
}

impl PortState {
    fn copies(&self, ports: &[String]) -> bool {
        matches!(&self.kind, Kind::Mirror { of } if ports.contains(of))
    }
}

/// State of a port, if it goes over by itself.
enum Given {
    Port(PortState),
    /// The far end of a link goes with the near one.
    WithAnother,
    Ends,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum Kind {
    Gen(Box<GenState>),
    Sink(Sink),
    Link,
    Mirror {
        of: String,
    },
    /// A TAP device, and the frame of it that is under way.
    Tap {
        fd: Fd,
        frame: Vec<u8>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PipeState {
    name: Name,
    ports: Vec<String>,
    flow: Flow,
    shares: bool,
    is_shown: bool,
    doorbell: Fd,
    wake_fd: Option<Fd>,
    pipe: pd_pipe::PipeState,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantState {
    account: TenantCounts,
    opened: u64,
    refused: u64,
    cut_off: u64,
}

/// Memory of a pipe that has come from another driver, and its client.
#[derive(Debug)]
pub struct PipeCame {
    /// The door's serial of the client.
    pub serial: u64,
    pub payer: Payer,
    pub ringer: Option<Arc<Ringer>>,
    pub resumed: Resumed,
}

/// Pipes that have come, by client and number.
pub type PipesCame = HashMap<Name, PipeCame>;

/// A pipe that ends.
pub(super) struct Ending {
    resumed: Resumed,
    /// Way to wake its program.
    wake_fd: Option<Arc<WakeEnd>>,
    /// Reason, for the program and for the log.
    why: Why,
}

type Why = (Errno, &'static str);

const WITH_DRIVER: Why = (Errno::CONNRESET, "it has ended, or ends with the driver before");

/// Ports and pipes that end when the agent begins.
#[derive(Default)]
pub(super) struct Leaving {
    /// Names of ports that another driver had.
    ports: Vec<String>,
    pipes: Vec<Ending>,
    /// Pipes that have come, of direct paths that cannot go on.
    parted: Vec<Name>,
}

impl Nic {
    /// Returns the state that another driver goes on with. Pipes that have ended are not in it, nor ports that end with this driver. The agent
    /// goes on itself if no driver takes the state.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(&mut self, pack: &mut Pack) -> Result<NicState, Hindrance> {
        self.agent.count_links();
        let all: Vec<_> = self.pipes.keys().copied().collect();
        all.iter().for_each(|&(client, number)| self.settle(client, number));
        let names: Vec<_> = self.ports.keys().cloned().collect();
        let (mut ports, mut left) = (Vec::new(), Vec::new());
        for name in names {
            match self.give_port(&name, pack)? {
                Given::Port(port) => ports.push(port),
                Given::WithAnother => {}
                Given::Ends => left.push(name),
            }
        }
        // A mirror ends with the port that it copies.
        let (stay, with_them) = ports.into_iter().partition(|port: &PortState| !port.copies(&left));
        let (ports, with_them): (Vec<_>, Vec<PortState>) = (stay, with_them);
        left.extend(with_them.into_iter().map(|port| port.name));
        let mut open: Vec<_> = self.pipes.iter().filter(|(_, pipe)| pipe.ended.is_none()).collect();
        open.sort_by_cached_key(|(_, pipe)| self.agent.place_of(pipe.id));
        let mut pipes = Vec::with_capacity(open.len());
        for (&name, pipe) in open {
            let Some(state) = self.agent.state(pipe.id) else { continue };
            let Some((doorbell, wake_fd)) = self.agent.descriptors(pipe.id) else { continue };
            let (ports, flow) = (pipe.ports.clone(), pipe.flow);
            let wake_fd = wake_fd.and_then(|end| end.fd()).map(|fd| pack.add(fd)).transpose()?;
            let (shares, is_shown, doorbell) = (pipe.shares, pipe.is_shown, pack.add(doorbell)?);
            pipes.push(PipeState { name, ports, flow, shares, is_shown, doorbell, wake_fd, pipe: state });
        }
        let (links, last) = self.agent.links();
        let port_names: HashMap<_, _> = self.ports.iter().map(|(name, port)| (port.id, name)).collect();
        let pipe_name = |id: PipeId| self.names.get(&id).copied();
        let port_name = |id: PortId| port_names.get(&id).map(|name| (*name).clone());
        let links = links.into_iter().filter_map(|link| link.named(pipe_name, port_name)).collect();
        let tenants = self.tenants.iter().map(|tenant| TenantState {
            account: tenant.account,
            opened: tenant.opened,
            refused: tenant.refused,
            cut_off: tenant.cut_off,
        });
        let tenants = tenants.collect();
        Ok(NicState { ports, left, pipes, links, tenants, last })
    }

    /// Returns the state of a port, of a link by its first end.
    fn give_port(&mut self, name: &str, pack: &mut Pack) -> Result<Given, Hindrance> {
        let Some(port) = self.ports.get(name) else { return Ok(Given::Ends) };
        let mut counts = vec![self.agent.port_counts(port.id)];
        let (kind, name) = match self.agent.port(port.id) {
            pd_pipe::Port::Gen(gen) => (Kind::Gen(Box::new(gen.state())), name),
            pd_pipe::Port::Sink(sink) => (Kind::Sink(*sink), name),
            pd_pipe::Port::Mirror => match port.of.clone() {
                Some(of) => (Kind::Mirror { of }, name),
                None => return Ok(Given::Ends),
            },
            pd_pipe::Port::Link(_) => {
                let Some(name) = name.strip_suffix(".0") else { return Ok(Given::WithAnother) };
                let Some(far) = self.ports.get(&format!("{name}.1")) else { return Ok(Given::Ends) };
                counts.push(self.agent.port_counts(far.id));
                (Kind::Link, name)
            }
            pd_pipe::Port::Device(device) => match device.lasting() {
                Some((fd, frame)) => (Kind::Tap { fd: pack.add(fd)?, frame: frame.to_vec() }, name),
                None => return Ok(Given::Ends),
            },
            pd_pipe::Port::Pcap(_) | pd_pipe::Port::Trace(_) => return Ok(Given::Ends),
        };
        Ok(Given::Port(PortState { name: name.to_owned(), kind, counts }))
    }

    /// Takes over state that another driver has given, into an agent without ports that has the policy. `came` is the memory of clients' pipes.
    /// These end with [`Self::begin`]: pipes that forward, whose rings no other process can write, pipes of ports that have not come, those that
    /// the policy denies by now, and all pipes of a driver that `is_killed`.
    ///
    /// # Errors
    /// The fault in it.
    pub fn take(
        &mut self,
        state: NicState,
        mut came: PipesCame,
        fds: &mut Unpacked,
        is_killed: bool,
    ) -> Result<(), Wrong> {
        let NicState { ports, left, pipes, links, tenants, last } = state;
        self.leaving.ports = left;
        Wrong::unless(tenants.len() <= self.tenants.len(), || "tenants of pipes".to_owned())?;
        for (tenant, state) in self.tenants.iter_mut().zip(tenants) {
            let TenantState { account, opened, refused, cut_off } = state;
            let are_sound = opened.max(refused).max(cut_off) <= u64::MAX / 2;
            Wrong::unless(are_sound, || "counts of pipes".to_owned())?;
            tenant.account = account;
            (tenant.opened, tenant.refused, tenant.cut_off) = (opened, refused, cut_off);
        }
        // A mirror is added after the port that it copies.
        let (mirrors, others): (Vec<_>, _) =
            ports.into_iter().partition(|port| matches!(port.kind, Kind::Mirror { .. }));
        for port in others.into_iter().chain(mirrors) {
            self.take_port(port, fds)?;
        }
        self.agent.number_from(last).map_err(|_| Wrong::of("numbers of the agent of pipes"))?;
        for pipe in pipes {
            let name = pipe.name;
            let wrong = |what: &str| Wrong::of(format!("pipe {} of client {}: {what}", name.1, name.0));
            let memory = came.remove(&name).ok_or_else(|| wrong("it is not there"))?;
            self.take_pipe(pipe, memory, fds, is_killed, &wrong)?;
        }
        let ended = |came: PipeCame| Ending { resumed: came.resumed, wake_fd: None, why: WITH_DRIVER };
        self.leaving.pipes.extend(came.into_values().map(ended));
        if !is_killed {
            links.into_iter().for_each(|link| self.take_link(link));
        }
        Ok(())
    }

    /// Goes on with a direct path. If it cannot, the pipes at its ends end: one knows nothing of the other's bytes.
    fn take_link(&mut self, link: LinkState<Name, String>) {
        let ends: Vec<_> = [link.sender, Some(link.receiver)].into_iter().flatten().collect();
        let id = |name: Name| self.pipes.get(&name).map(|pipe| pipe.id);
        let port = |name: String| self.ports.get(&name).map(|port| port.id);
        let named = link.named(id, port);
        let resumed = named.is_some_and(|link| self.agent.resume_link(link).is_ok());
        if !resumed {
            self.leaving.parted.extend(ends);
        }
    }

    fn take_port(&mut self, state: PortState, fds: &mut Unpacked) -> Result<(), Wrong> {
        let PortState { name, kind, counts } = state;
        let wrong = |why: String| Wrong::of(format!("port {name}: {why}"));
        let (word, port) = match kind {
            Kind::Gen(state) => {
                let gen = Gen::resume(*state).map_err(|_| wrong("its frames".to_owned()))?;
                ("gen", NewPort::One(Box::new(pd_pipe::Port::Gen(gen))))
            }
            Kind::Sink(sink) => ("sink", NewPort::One(Box::new(pd_pipe::Port::Sink(sink)))),
            Kind::Link => ("link", NewPort::Link),
            Kind::Mirror { of } => ("mirror", NewPort::Mirror { of }),
            Kind::Tap { fd, frame } => {
                let device = TapDevice::resume(fds.take(fd)?, &frame);
                let device = device.map_err(|errno| wrong(format!("its device: {errno}")))?;
                ("tap", NewPort::One(Box::new(pd_pipe::Port::Device(Box::new(device)))))
            }
        };
        let is_link = matches!(port, NewPort::Link);
        self.add_port(&name, word, port).map_err(wrong)?;
        let ends = if is_link { vec![format!("{name}.0"), format!("{name}.1")] } else { vec![name.clone()] };
        Wrong::unless(counts.len() == ends.len(), || format!("counts of port {name}"))?;
        for (end, counts) in ends.iter().zip(counts) {
            if let Some(port) = self.ports.get(end) {
                self.agent.resume_port_counts(port.id, counts);
            }
        }
        Ok(())
    }

    fn take_pipe(
        &mut self,
        pipe: PipeState,
        came: PipeCame,
        fds: &mut Unpacked,
        is_killed: bool,
        wrong: &dyn Fn(&str) -> Wrong,
    ) -> Result<(), Wrong> {
        let doorbell = fds.take(pipe.doorbell)?;
        let wake_fd = pipe.wake_fd.map(|fd| fds.take(fd)).transpose()?;
        // A send to another kind of socket may wait.
        if wake_fd.as_ref().map(wake::check).is_some_and(|checked| checked.is_err()) {
            return Err(wrong("its way to wake the program"));
        }
        let wake_fd = wake_fd.map(|fd: OwnedFd| WakeEnd::new(fd, came.ringer.clone()));
        let resumed = came.resumed.clone();
        let taken = match is_killed {
            true => Err(WITH_DRIVER),
            false => self.resume_pipe(&pipe, came, doorbell, wake_fd.clone()),
        };
        if let Err(why) = taken {
            self.leaving.pipes.push(Ending { resumed, wake_fd, why });
        }
        Ok(())
    }

    /// Goes on with a pipe, or says why it ends.
    fn resume_pipe(
        &mut self,
        state: &PipeState,
        came: PipeCame,
        doorbell: OwnedFd,
        wake_fd: Option<Arc<WakeEnd>>,
    ) -> Result<(), Why> {
        let &PipeState { name, ref ports, flow, shares, is_shown, ref pipe, .. } = state;
        let PipeCame { serial, payer, ringer: _, resumed } = came;
        let (client, shape) = (name.0, resumed.shape());
        if ports.is_empty() || ports.len() > PIPE_PORTS_MAX || !flow.is_sound() {
            return Err((Errno::INVAL, "its ports or frames cannot be"));
        }
        if shape.direction() == Direction::Forward {
            return Err((Errno::CONNRESET, "no other process can write the ring of a pipe that forwards"));
        }
        let ids: Option<Vec<_>> = ports.iter().map(|name| Some(self.ports.get(name)?.id)).collect();
        let ids = ids.ok_or((Errno::NODEV, "its port has ended"))?;
        if shape.receives() {
            let checked = self.receivers.check((client, serial), payer, ids[0], &flow, shares);
            checked.map_err(|_| (Errno::ADDRINUSE, "its frames are another one's"))?;
        }
        let made = resumed.with_doorbell(doorbell).map_err(|errno| (errno, "its doorbell is none"))?;
        // The policy is asked when all is there, as after each change of it.
        let route = Route { port: ids[0], others: ids[1..].to_vec(), flow, lease: None };
        let id = self.agent.adopt(made, &route).map_err(|errno| (errno, super::advice(errno)))?;
        self.agent.set_owner(id, Some(accounts::number_of(payer)));
        if let Some(wake_fd) = wake_fd {
            self.agent.set_wake_fd(id, wake_fd);
        }
        if let Err(errno) = self.agent.resume(id, pipe) {
            self.agent.close(id);
            return Err((errno, "no driver can have left its positions"));
        }
        let settled = self.agent.counts(id).unwrap_or_default();
        let (port, ports, ended) = (ids[0], ports.clone(), None);
        let pipe = Pipe { id, serial, payer, ports, port, flow, shares, shape, settled, ended, is_shown };
        self.receivers.add(client, &pipe);
        self.names.insert(id, name);
        self.pipes.insert(name, pipe);
        self.count_in(payer);
        Ok(())
    }

    /// Begins to serve the pipes that have come. Those that cannot go on end.
    pub fn begin(&mut self) {
        self.agent.begin();
        let Leaving { ports, pipes, parted } = std::mem::take(&mut self.leaving);
        for port in ports {
            tracing::warn!(
                port,
                "the port has ended with the driver before, and its pipes with it: add it anew"
            );
        }
        let mut reasons = BTreeMap::<&str, usize>::new();
        for Ending { resumed, wake_fd, why: (errno, why) } in pipes {
            *reasons.entry(why).or_default() += 1;
            end_resumed(resumed, wake_fd, errno);
        }
        for (client, number) in parted {
            let Some(id) = self.pipes.get(&(client, number)).map(|pipe| pipe.id) else { continue };
            let why = "its direct path could not go on";
            *reasons.entry(why).or_default() += 1;
            self.agent.end(id, Errno::CONNRESET);
            self.note_end(client, number, why.to_owned());
        }
        for (why, pipes) in reasons {
            tracing::info!(pipes, why, "pipes end");
        }
        let all: Vec<_> = self.pipes.keys().copied().collect();
        all.into_iter().for_each(|(client, number)| self.judge_again(client, number));
    }

    /// Leaves everything to another driver, and touches it no more.
    pub fn hand_over(&mut self) {
        self.agent.hand_over();
    }
}
