//! The agent of pipes, on a thread of its own: ports by name, pipes by client, policy, rates and accounts.
//!
//! The agent takes commands from its mailbox, fills the purses of tenants with rates, and takes a turn. With nothing to do it sleeps on
//! the doorbells of pipes and on its mailbox. The agent alone reads clients' memory ([`pd_pipe::Agent`]).
mod accounts;
mod receivers;
mod takeover;

pub use self::takeover::{NicState, PipeCame, PipesCame};

use self::receivers::{count_down, Conflict, Receivers, KINDS_MAX};
use super::messages::{NewPort, NewTap, Opening, PipeName, TenantNow, ToNic};
use super::report::{is_port_name, TapOf, TenantCounts, NAME_BYTES_MAX};
use super::taps::Taps;
use crate::admin::Answer;
use crate::clock::Clock;
use crate::door::ToDoor;
use crate::ids::{ClientId, TenantId};
use crate::limiter::Limiter;
use crate::mailbox::{Loan, Mailbox};
use crate::messages::Payer;
use crate::policy::bind::{Binds, Denied};
use crate::policy::budget::Budget;
use crate::policy::rate::Meter;
use pd_abi::pipe::{PipeRequest, PIPE_PORTS_MAX};
use pd_pipe::{
    Agent, Eventfds, Flow, Net, PipeCounts, PipeId, PortId, Route, Shape, Tapped, Tokens, PIPES_MAX,
};
use pd_shm::Spin;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most ports of a driver.
const PORTS_MAX: usize = 1024;
/// Most commands of a turn, so that frames of others wait for few pipes that come or go.
const COMMANDS_MAX: usize = 8;

#[derive(Debug)]
struct Port {
    id: PortId,
    kind: &'static str,
    /// The port whose frames are copied.
    of: Option<String>,
    /// Set if the port shows connections: of this tenant, or of all.
    connections: Option<Option<String>>,
}

impl Port {
    fn new(id: PortId, kind: &'static str) -> Self {
        Self { id, kind, of: None, connections: None }
    }
}

#[derive(Debug)]
struct Pipe {
    id: PipeId,
    /// The door's serial of the client.
    serial: u64,
    payer: Payer,
    ports: Vec<String>,
    /// The first of these.
    port: PortId,
    flow: Flow,
    /// Set if pipes of other clients may have a share of the flow's frames.
    shares: bool,
    shape: Shape,
    /// Counts that are on the tenant's account already.
    settled: PipeCounts,
    /// Reason of the pipe's end.
    ended: Option<String>,
    /// Set when another client was shown its memory, for the direct path.
    is_shown: bool,
}

#[derive(Debug, Default)]
struct Tenant {
    name: String,
    budget: Option<Arc<Budget>>,
    bytes: Meter,
    messages: Meter,
    /// Tokens that were put into the purse.
    granted: Option<Tokens>,
    /// Bytes sent beyond the granted tokens.
    debt: u64,
    /// Pipes that were not closed.
    pipes: usize,
    account: TenantCounts,
    opened: u64,
    refused: u64,
    cut_off: u64,
}

/// See the module.
pub struct Nic {
    agent: Agent,
    clock: Arc<dyn Clock>,
    inbox: Arc<Mailbox<ToNic>>,
    door: Arc<Mailbox<ToDoor>>,
    /// Commands that later turns carry out.
    commands: VecDeque<ToNic>,
    binds: Binds,
    tenants: Vec<Tenant>,
    ports: BTreeMap<String, Port>,
    pipes: BTreeMap<(ClientId, u32), Pipe>,
    /// Names of pipes.
    names: HashMap<PipeId, (ClientId, u32)>,
    /// Numbers of payers' pipes.
    payers: HashMap<Payer, usize>,
    receivers: Receivers,
    taps: Taps,
    /// Tenants with pipes and rates.
    rated: BTreeSet<TenantId>,
    log: Limiter<(&'static str, Payer)>,
    spin: Duration,
    /// Place of the loan that a message speaks of.
    asked: Arc<Mutex<Option<Loan<Self>>>>,
    /// Loan of the agent, if it is wanted elsewhere.
    loan: Option<Loan<Self>>,
    /// Ports and pipes of another driver that end when this one begins.
    leaving: takeover::Leaving,
}

impl Nic {
    /// Begins without ports.
    ///
    /// # Errors
    /// Errors of making an epoll set.
    pub fn new(
        clock: Arc<dyn Clock>,
        inbox: Arc<Mailbox<ToNic>>,
        door: Arc<Mailbox<ToDoor>>,
        asked: Arc<Mutex<Option<Loan<Self>>>>,
        spin: Duration,
    ) -> rustix::io::Result<Self> {
        let agent = Agent::new()?;
        agent.watch(inbox.fd())?;
        Ok(Self {
            agent,
            clock,
            inbox,
            door,
            commands: VecDeque::new(),
            binds: Binds::default(),
            tenants: Vec::new(),
            ports: BTreeMap::new(),
            pipes: BTreeMap::new(),
            names: HashMap::new(),
            payers: HashMap::new(),
            receivers: Receivers::default(),
            taps: Taps::default(),
            rated: BTreeSet::new(),
            log: Limiter::default(),
            spin,
            asked,
            loan: None,
            leaving: takeover::Leaving::default(),
        })
    }

    /// Takes turns until `stop`; sleeps for `idle` at most where there is nothing to do.
    pub fn run(mut self: Box<Self>, stop: &AtomicBool, idle: Duration) {
        let mut spin = Spin::new(self.spin);
        let inbox = Arc::clone(&self.inbox);
        while !stop.load(Ordering::Acquire) {
            if let Some(Loan { to, back }) = self.loan.take() {
                if to.send(self).is_err() {
                    return;
                }
                // The agent belongs to another driver now, or this one ends.
                let Ok(again) = back.recv() else { return };
                self = again;
            }
            let (mut busy, mut until) = self.turn();
            if !busy && until.is_none() {
                busy = spin.until(|| {
                    let turn = self.turn();
                    until = turn.1;
                    turn.0 || until.is_some()
                });
            }
            // If tokens are lacking, all other work is done first, and the turn goes on after the sleep.
            if busy && until.is_none() {
                continue;
            }
            let timeout = until.map_or(idle, |until| until.saturating_sub(self.clock.now()).min(idle));
            inbox.set_asleep(true);
            if !inbox.is_filled() {
                self.agent.wait(if busy { Duration::ZERO } else { timeout });
            }
            inbox.set_asleep(false);
            spin.slept();
        }
    }

    /// Takes one turn. Returns whether there was work, and the time at which tenants without tokens have some again.
    fn turn(&mut self) -> (bool, Option<Duration>) {
        let mut busy = self.take_commands();
        let until = self.fill_purses();
        let clock = &self.clock;
        self.taps.look(&mut self.agent, || clock.now());
        busy |= self.agent.turn();
        for broken in self.agent.take_broken() {
            if let Some(&(client, number)) = self.names.get(&broken) {
                self.settle(client, number);
            }
        }
        for gone in self.agent.take_gone() {
            self.remove_gone(gone);
        }
        (busy, until.filter(|_| self.agent.lacks_tokens()))
    }

    /// Carries out some of the commands that have come. Returns whether there were any.
    pub fn take_commands(&mut self) -> bool {
        if self.commands.is_empty() && self.inbox.is_filled() {
            self.inbox.drain(&mut self.commands);
        }
        let busy = !self.commands.is_empty();
        for _ in 0..COMMANDS_MAX {
            let Some(command) = self.commands.pop_front() else { break };
            self.apply_command(command);
        }
        busy
    }

    fn apply_command(&mut self, command: ToNic) {
        match command {
            ToNic::Policy { binds, tenants } => self.apply(binds, tenants),
            ToNic::AddPort { name, kind, port, reply } => {
                let answer = self.add_port(&name, kind, port).map_or_else(Answer::Error, |()| Answer::Done);
                let _ = reply.send(answer);
            }
            ToNic::RemovePort { name, reply } => match self.remove_port(&name) {
                Ok(port) => close(port, reply),
                Err(why) => drop(reply.send(Answer::Error(why))),
            },
            ToNic::Report { reply } => {
                let _ = reply.send(Answer::Pipes(Box::new(self.report())));
            }
            ToNic::MayUse { tenant, ports, reply } => {
                let answer = self.check_ports(&tenant, &ports).map_or_else(Answer::Error, |()| Answer::Done);
                let _ = reply.send(answer);
            }
            ToNic::AddTap { tap, reply } => {
                let answer = self.add_tap(*tap).map_or_else(Answer::Error, |()| Answer::Done);
                let _ = reply.send(answer);
            }
            ToNic::Open(opening) => self.open(*opening),
            ToNic::Start { client, serial, number } => {
                let started = self.start(client, number);
                self.door.send(ToDoor::PipeStarted { client, serial, number, started });
            }
            ToNic::WakeFd { client, number, wake_fd } => {
                if let Some(pipe) = self.pipes.get(&(client, number)) {
                    self.agent.set_wake_fd(pipe.id, wake_fd);
                }
            }
            ToNic::Peer { client, serial, number } => {
                let peer = self.show_peer(client, number);
                self.door.send(ToDoor::PipePeer { client, serial, peer });
            }
            ToNic::Close { client, number } => self.close(client, number),
            ToNic::LetGo { payer, memory } => self.door.send(ToDoor::PipesClosed { payer, memory }),
            ToNic::Left { client } => {
                let mut numbers = self.of(client);
                let (first, more) = (numbers.next(), numbers.next().is_some());
                drop(numbers);
                first.into_iter().for_each(|number| self.close(client, number));
                // A client may have many pipes, and what follows in the mailbox is about their memory.
                if more {
                    self.commands.push_front(ToNic::Left { client });
                }
            }
            ToNic::Lend => self.loan = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take(),
            ToNic::SetPayer { client, left, payer } => {
                if left != payer {
                    self.end_shown(left);
                }
                self.agent.count_links();
                let numbers: Vec<_> = self.of(client).collect();
                for number in numbers {
                    self.settle(client, number);
                    self.move_pipe(client, number, payer);
                    self.judge_again(client, number);
                }
            }
        }
    }

    /// Returns the numbers of a client's pipes.
    fn of(&self, client: ClientId) -> impl Iterator<Item = u32> + '_ {
        self.pipes.range((client, 0)..=(client, u32::MAX)).map(|((_, number), _)| *number)
    }

    /// Moves a pipe to another payer.
    fn move_pipe(&mut self, client: ClientId, number: u32, payer: Payer) {
        let Some(pipe) = self.pipes.get_mut(&(client, number)) else { return };
        if pipe.ended.is_none() {
            self.receivers.remove(client, pipe);
        }
        let (left, id) = (std::mem::replace(&mut pipe.payer, payer), pipe.id);
        if pipe.ended.is_none() {
            self.receivers.add(client, pipe);
        }
        self.count_out(left);
        self.count_in(payer);
        self.agent.set_owner(id, Some(accounts::number_of(payer)));
    }

    /// Counts a pipe more of a payer.
    fn count_in(&mut self, payer: Payer) {
        *self.payers.entry(payer).or_default() += 1;
        self.tenant(payer.0).pipes += 1;
    }

    /// Counts a pipe less of a payer. No tokens are drawn for a tenant without pipes.
    fn count_out(&mut self, payer: Payer) {
        count_down(&mut self.payers, &payer);
        self.tenant(payer.0).pipes -= 1;
        if self.tenant(payer.0).pipes == 0 {
            self.rated.remove(&payer.0);
        }
    }

    /// Notes the reason of a pipe's end, the first if there are several. It receives no more.
    fn note_end(&mut self, client: ClientId, number: u32, why: String) {
        let pipe = self.pipes.get_mut(&(client, number)).filter(|pipe| pipe.ended.is_none());
        if let Some(pipe) = pipe {
            pipe.ended = Some(why);
            self.receivers.remove(client, pipe);
        }
    }

    fn add_port(&mut self, name: &str, kind: &'static str, port: NewPort) -> Result<(), String> {
        if !is_port_name(name) {
            return Err(format!(
                "'{name}' is no name for a port; use 1 to {NAME_BYTES_MAX} letters, digits, '-' or '_'"
            ));
        }
        if self.ports.contains_key(name) || self.ports.contains_key(&format!("{name}.0")) {
            return Err(format!("there is a port {name} already"));
        }
        if self.ports.len() + 2 > PORTS_MAX {
            return Err(format!("a driver has {PORTS_MAX} ports at most"));
        }
        match port {
            NewPort::One(port) => {
                let id = match *port {
                    pd_pipe::Port::Device(device) => {
                        self.agent.add_device(device).map_err(|why| format!("port {name}: {why}"))?
                    }
                    port => self.agent.add_port(port),
                };
                self.ports.insert(name.to_owned(), Port::new(id, kind));
            }
            NewPort::Link => {
                let (near, far) = self.agent.add_link();
                self.ports.insert(format!("{name}.0"), Port::new(near, kind));
                self.ports.insert(format!("{name}.1"), Port::new(far, kind));
            }
            NewPort::Mirror { of } => {
                let copied = self.ports.get(&of).ok_or_else(|| no_port(&of))?;
                let id = self.agent.add_mirror(copied.id).map_err(|errno| match errno {
                    Errno::MFILE => "a driver has 16 mirrors at most".to_owned(),
                    _ => format!("port {of} is a mirror itself: copy the port that it copies"),
                })?;
                self.ports.insert(name.to_owned(), Port { of: Some(of), ..Port::new(id, kind) });
            }
            NewPort::Connections { frames, tenant } => {
                let id = self.agent.add_device(frames).map_err(|errno| format!("port {name}: {errno}"))?;
                self.ports.insert(name.to_owned(), Port { connections: Some(tenant), ..Port::new(id, kind) });
            }
        }
        Ok(())
    }

    /// Removes a port whose interface was deleted. A port that has a mirror stays, without frames.
    fn remove_gone(&mut self, gone: PortId) {
        let named = self.ports.iter().find(|(_, port)| port.id == gone).map(|(name, _)| name.clone());
        let Some(name) = named else { return };
        match self.remove_port(&name) {
            Ok(port) => {
                tracing::warn!(
                    port = name,
                    "the port's interface has gone: its pipes end, and so does the port"
                );
                close(port, std::sync::mpsc::channel().0);
            }
            Err(why) => tracing::warn!(port = name, why, "the port's interface has gone"),
        }
    }

    /// Removes a port. Returns the part of it that is left to close.
    fn remove_port(&mut self, name: &str) -> Result<Option<pd_pipe::Port>, String> {
        let ends = [name.to_owned(), format!("{name}.0"), format!("{name}.1")];
        let gone: Vec<_> = ends.iter().filter_map(|end| Some((end, self.ports.get(end)?.id))).collect();
        if let Some((link, _)) = name.rsplit_once('.').filter(|_| !gone.is_empty()) {
            return Err(format!("port {name} is an end of a link: remove both by the name {link}"));
        }
        if gone.is_empty() {
            return Err(no_port(name));
        }
        let copies = |port: &&Port| port.of.as_ref().is_some_and(|of| ends.contains(of));
        if let Some((mirror, _)) = self.ports.iter().find(|(_, port)| copies(port)) {
            return Err(format!("port {mirror} copies its frames: remove that one first"));
        }
        let ending = |pipe: &Pipe| pipe.ended.is_none() && pipe.ports.iter().any(|port| ends.contains(port));
        let ending: Vec<_> =
            self.pipes.iter().filter(|(_, pipe)| ending(pipe)).map(|(key, _)| *key).collect();
        for (client, number) in ending {
            tracing::debug!(number, name, "a pipe ends with its port");
            self.note_end(client, number, "its port was removed".to_owned());
        }
        let names: Vec<_> = gone.iter().map(|(end, _)| (*end).clone()).collect();
        // Removing the first end of a link removes both.
        let port = self.agent.remove_port(gone[0].1);
        self.ports.retain(|name, _| !names.contains(name));
        Ok(port)
    }

    /// Tells whether a tenant may have pipes on these ports, and whether they are there.
    fn check_ports(&self, tenant: &str, ports: &[String]) -> Result<(), String> {
        for port in ports {
            let denied = self.binds.check_port(tenant, port, self.is_mirror(port));
            denied
                .and_then(|()| self.may_see(tenant, [&**port]))
                .map_err(|why| format!("tenant {tenant} may have no pipe on port {port}: {why}"))?;
            if !self.ports.contains_key(port) {
                return Err(no_port(port));
            }
        }
        Ok(())
    }

    fn is_mirror(&self, port: &str) -> bool {
        self.ports.get(port).is_some_and(|port| port.of.is_some() || port.connections.is_some())
    }

    /// Tells whether a tenant may see the connections that these ports show: its own alone, whatever a binding says.
    fn may_see<'a>(&self, tenant: &str, ports: impl IntoIterator<Item = &'a str>) -> Result<(), Denied> {
        for name in ports {
            let of = self.ports.get(name).and_then(|port| port.connections.as_ref());
            if of.is_some_and(|of| of.as_deref() != Some(tenant)) {
                return Err(Denied::Connections(name.to_owned()));
            }
        }
        Ok(())
    }

    fn add_tap(&mut self, tap: NewTap) -> Result<(), String> {
        let tapped = match &tap.of {
            TapOf::Port { name } => self.ports.get(name).map(|port| Tapped::Port(port.id)),
            TapOf::Pipe { client, number } => {
                let of = |key: &(ClientId, u32)| key.0.get() == *client && key.1 == *number;
                self.pipes.iter().find(|(key, _)| of(key)).map(|(_, pipe)| Tapped::Pipe(pipe.id))
            }
        };
        let tapped = tapped.ok_or_else(|| format!("there is no {}", tap.of))?;
        self.taps.add(&mut self.agent, tapped, tap)
    }

    fn tenant(&mut self, id: TenantId) -> &mut Tenant {
        if self.tenants.len() <= id.index() {
            self.tenants.resize_with(id.index() + 1, Tenant::default);
        }
        &mut self.tenants[id.index()]
    }

    fn open(&mut self, opening: Opening) {
        let Opening { client, serial, payer, number, request, made, offer } = opening;
        let opened = self.try_open((client, serial, number), payer, &request, made);
        match &opened {
            Ok(()) => self.tenant(payer.0).opened += 1,
            Err(_) => self.tenant(payer.0).refused += 1,
        }
        let opened = opened.map(|()| Box::new(offer));
        self.door.send(ToDoor::PipeOpened { client, serial, number, opened });
    }

    fn try_open(
        &mut self,
        (client, serial, number): PipeName,
        payer: Payer,
        request: &PipeRequest,
        made: pd_pipe::Made,
    ) -> Result<(), (Errno, String)> {
        let names: Vec<&str> = request.names().map(Iterator::collect).unwrap_or_default();
        let flow = flow(request);
        if names.is_empty() || names.len() > PIPE_PORTS_MAX {
            return Err((Errno::INVAL, "a pipe belongs to a port".to_owned()));
        }
        let tenant = self.tenant(payer.0).name.clone();
        // First, so that a tenant learns nothing of ports that it may not use.
        let judged = self.binds.judge(&tenant, &names, &flow, |port| self.is_mirror(port));
        let judged = judged.and_then(|lease| self.may_see(&tenant, names.iter().copied()).map(|()| lease));
        let lease = judged.map_err(|why| (Errno::ACCESS, why.to_string()))?;
        let mut ids = Vec::new();
        for name in &names {
            let port = self.ports.get(*name).ok_or_else(|| (Errno::NOENT, no_port(name)))?;
            ids.push(port.id);
        }
        self.check_share(payer)?;
        let shape = made.shape();
        if shape.receives() {
            let checked = self.receivers.check((client, serial), payer, ids[0], &flow, request.shares);
            checked.map_err(|conflict| refused(conflict, names[0]))?;
        }
        let route = Route { port: ids[0], others: ids[1..].to_vec(), flow, lease };
        let id = self.agent.adopt(made, &route).map_err(|errno| (errno, advice(errno).to_owned()))?;
        self.set_purse(id, payer);
        self.agent.set_owner(id, Some(accounts::number_of(payer)));
        let ports = names.iter().map(|&name| name.to_owned()).collect();
        let settled = PipeCounts::default();
        let shares = request.shares;
        let port = ids[0];
        let (ended, is_shown) = (None, false);
        let pipe = Pipe { id, serial, payer, ports, port, flow, shares, shape, settled, ended, is_shown };
        self.receivers.add(client, &pipe);
        self.names.insert(id, (client, number));
        self.pipes.insert((client, number), pipe);
        self.count_in(payer);
        Ok(())
    }

    /// Starts a pipe, unless it has ended since it was opened: by a policy, with its port, or with its tenant.
    fn start(&mut self, client: ClientId, number: u32) -> Result<(), (Errno, String)> {
        let pipe =
            self.pipes.get(&(client, number)).ok_or((Errno::BADF, "the pipe was closed".to_owned()))?;
        self.agent.start(pipe.id).map_err(|errno| {
            let why = pipe.ended.clone().unwrap_or_else(|| advice(errno).to_owned());
            (errno, why)
        })
    }

    /// Finds the pipe whose memory a client is to map for the direct path of a link.
    fn show_peer(&mut self, client: ClientId, number: u32) -> Option<(PipeName, Eventfds)> {
        let own = self.pipes.get(&(client, number))?.id;
        let (id, eventfds) = (self.agent.partner(own)?, self.agent.eventfds(own).ok()?);
        let (client, number) = *self.names.get(&id)?;
        let pipe = self.pipes.get_mut(&(client, number))?;
        pipe.is_shown = true;
        Some(((client, pipe.serial, number), eventfds))
    }

    /// Ends pipes of a payer that a client leaves, if others may have mapped what is sent by them: also a client that has no pipe any more.
    fn end_shown(&mut self, left: Payer) {
        let is_shown = |pipe: &Pipe| pipe.payer == left && pipe.is_shown && pipe.shape.sends();
        let shown: Vec<_> =
            self.pipes.iter().filter(|(_, pipe)| is_shown(pipe)).map(|(key, _)| *key).collect();
        for key in shown {
            self.agent.end(self.pipes[&key].id, Errno::ACCESS);
            self.note_end(key.0, key.1, "a client with its memory has left the tenant".to_owned());
        }
    }

    /// Tells whether a payer may have one more pipe: at most half of the pipes that others leave.
    fn check_share(&self, payer: Payer) -> Result<(), (Errno, String)> {
        let own = self.payers.get(&payer).copied().unwrap_or_default();
        let others = self.pipes.len() - own;
        if own + 1 > (PIPES_MAX - others) / 2 {
            return Err((
                Errno::MFILE,
                format!("the tenant has its share of the driver's {PIPES_MAX} pipes"),
            ));
        }
        Ok(())
    }

    fn close(&mut self, client: ClientId, number: u32) {
        if let Some(pipe) = self.pipes.get(&(client, number)) {
            self.agent.count_link(pipe.id);
        }
        self.settle(client, number);
        if let Some(pipe) = self.pipes.remove(&(client, number)) {
            self.agent.close(pipe.id);
            self.names.remove(&pipe.id);
            if pipe.ended.is_none() {
                self.receivers.remove(client, &pipe);
            }
            self.count_out(pipe.payer);
        }
    }

    /// Puts bindings in force, with all tenants. Pipes that they deny end.
    pub fn apply(&mut self, binds: Binds, tenants: Vec<TenantNow>) {
        self.binds = binds;
        for (index, TenantNow { name, budget }) in tenants.into_iter().enumerate() {
            let tenant = self.tenant(TenantId::at(index));
            tenant.name = name;
            tenant.budget = Some(budget);
        }
        let all: Vec<_> = self.pipes.keys().copied().collect();
        for (client, number) in all {
            self.judge_again(client, number);
        }
    }

    /// Ends a pipe that the policy denies now. Otherwise updates its lease of source addresses.
    fn judge_again(&mut self, client: ClientId, number: u32) {
        let Some(pipe) = self.pipes.get(&(client, number)) else { return };
        let (id, payer) = (pipe.id, pipe.payer);
        let names: Vec<&str> = pipe.ports.iter().map(String::as_str).collect();
        let tenant = self.tenants.get(payer.0.index()).map_or("", |tenant| &*tenant.name);
        let judged = self.binds.judge(tenant, &names, &pipe.flow, |port| self.is_mirror(port));
        match judged.and_then(|lease| self.may_see(tenant, names.iter().copied()).map(|()| lease)) {
            Ok(lease) => {
                self.agent.set_lease(id, lease);
                self.set_purse(id, payer);
            }
            Err(why) => {
                self.agent.end(id, Errno::ACCESS);
                self.note_end(client, number, why.to_string());
            }
        }
    }
}

/// Closes a port, and then answers. The kernel takes some time to close an interface, in which pipes go on.
fn close(port: Option<pd_pipe::Port>, reply: Sender<Answer>) {
    let leads_out = matches!(port, Some(pd_pipe::Port::Device(_)));
    let run = move || {
        drop(port);
        let _ = reply.send(Answer::Done);
    };
    if leads_out {
        // Without a thread the port is closed all the same, and no answer is sent.
        let _ = std::thread::Builder::new().name("pd-close".into()).spawn(run);
    } else {
        run();
    }
}

fn no_port(name: &str) -> String {
    format!("there is no port {name}: pd port ls says which there are")
}

fn flow(request: &PipeRequest) -> Flow {
    let addresses = request.addresses.map(|(address, prefix)| Net { address, prefix });
    Flow { protocol: request.protocol, addresses, ports: request.ports }
}

fn refused(conflict: Conflict, port: &str) -> (Errno, String) {
    match conflict {
        Conflict::Payer => (Errno::ADDRINUSE, format!("another tenant has these frames of port {port}")),
        // Started by mistake, it would take a part of the frames unseen: both have to want it.
        Conflict::Client => {
            let why = "another process has these frames; to share them: Options::shares, PD_PIPE_SHARE";
            (Errno::ADDRINUSE, why.to_owned())
        }
        Conflict::Kinds => {
            let why = format!(
                "the tenant's flows on port {port} name {KINDS_MAX} combinations of protocol, prefix lengths and ports, which is the most: \
                 use one of them"
            );
            (Errno::NOSPC, why)
        }
    }
}

fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::INVAL => "port, direction, unit (frames or bytes) and flow do not fit each other",
        Errno::ADDRINUSE => "an unmarked stream has an end there already",
        Errno::MFILE => "no pipes left in the driver",
        Errno::NOSPC => "the port tells 64 flows apart, and has as many: share one of them",
        _ => "the driver cannot open a pipe",
    }
}

#[cfg(test)]
mod tests;
