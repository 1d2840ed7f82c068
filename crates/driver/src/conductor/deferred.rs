//! Requests that wait for the addresses of network namespaces. [`Names`](super::names::Names) says which lists a request needs. The helper
//! of the payer reads them, and the conductor goes on with other requests meanwhile.
//!
//! Requests of one channel are carried out in the order of its ring: one that waits holds up those behind it. A list counts for a request
//! if its reading began when the request was there, or shortly before. Each request thus waits for few lists, however long they take. A
//! request whose lists do not come fails with `ETIMEDOUT`.
use super::answer::Answer as Event;
use super::queues::Queues;
use super::sidecars::Plane;
use super::twins::is_unix;
use super::Conductor;
use crate::admin::Answer;
use crate::door::{Reading, Registering, ToDoor};
use crate::gate::Sealed;
use crate::hash::{HashMap, HashSet};
use crate::identity::NamespaceId;
use crate::ids::ClientId;
use crate::messages::{Payer, Permit, Violation, DRIVER};
use crate::metrics::Metrics;
use pd_abi::{Operation, Request, SocketId, TwinOperation, TwinRequest};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Time for which a request waits for lists.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Most waiting requests of one payer. Further ones fail with `ENOBUFS`.
const WAITING_MAX: usize = 4096;
/// Most waiting requests that are carried out in a turn of the conductor. Payers take turns.
const REPLAYED_PER_TURN: usize = 16;

/// A source of requests, which keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// A client's request ring.
    Channel(ClientId, usize),
    /// A client's attach socket.
    Frames(ClientId),
    /// An administrator's question.
    Registration(u64),
}

/// A request that waits.
#[derive(Debug)]
pub enum What {
    /// A request, with its permit, which the drop gives back.
    Request {
        request: Request,
        #[expect(dead_code, reason = "counts until its drop")]
        permit: Option<Permit>,
    },
    Twin(usize, TwinRequest),
    Register(Box<Registering>, Sender<Answer>),
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    what: What,
    payer: Payer,
    arrived: Duration,
    /// Missing lists, if this is the first request of its lane.
    unread: Vec<NamespaceId>,
}

/// All requests that wait.
#[derive(Debug, Default)]
pub struct Deferred {
    lanes: HashMap<Lane, VecDeque<Waiting>>,
    of_payer: HashMap<Payer, usize>,
    /// Lists on their way, each with the payer whose helper reads it.
    reading: HashSet<(NamespaceId, Payer)>,
    /// Lanes whose first request waits for a list.
    awaiting: HashMap<NamespaceId, HashSet<Lane>>,
    /// Lanes whose first request may have all lists that it needs.
    ready: Queues<Lane>,
    /// Requests in the order in which they came, some of which are done.
    order: VecDeque<(Duration, Lane, u64)>,
    numbered: u64,
}

impl Deferred {
    /// Tells whether no request waits, and no list is on its way.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.reading.is_empty()
    }

    /// Tells whether a request waits in a lane.
    fn holds(&self, lane: Lane) -> bool {
        !self.lanes.is_empty() && self.lanes.contains_key(&lane)
    }

    /// Lets a request wait. Gives it back if too many of the payer's requests wait.
    fn push(&mut self, lane: Lane, what: What, payer: Payer, now: Duration) -> Result<(), What> {
        let count = self.of_payer.entry(payer).or_default();
        if *count >= WAITING_MAX {
            return Err(what);
        }
        *count += 1;
        self.numbered += 1;
        let number = self.numbered;
        let waiting = Waiting { number, what, payer, arrived: now, unread: Vec::new() };
        self.lanes.entry(lane).or_default().push_back(waiting);
        self.order.push_back((now, lane, number));
        Ok(())
    }

    fn first(&self, lane: Lane) -> Option<&Waiting> {
        self.lanes.get(&lane)?.front()
    }

    fn payer_of(&self, lane: Lane) -> Payer {
        self.first(lane).map_or(DRIVER, |waiting| waiting.payer)
    }

    /// Takes the first request of a lane, which is not to wait any more. The next one gets its turn.
    fn take(&mut self, lane: Lane) -> Option<Waiting> {
        let queue = self.lanes.get_mut(&lane)?;
        let waiting = queue.pop_front()?;
        if queue.is_empty() {
            self.lanes.remove(&lane);
        } else {
            self.ready.push(waiting.payer, lane);
        }
        self.discount(waiting.payer);
        Some(waiting)
    }

    fn discount(&mut self, payer: Payer) {
        if let Some(count) = self.of_payer.get_mut(&payer) {
            *count -= 1;
            if *count == 0 {
                self.of_payer.remove(&payer);
            }
        }
        if self.lanes.is_empty() {
            self.order.clear();
        }
    }

    /// Has the first request of a lane wait for these lists. Returns the lists that no helper of its payer reads yet.
    fn wait(&mut self, lane: Lane, unread: Vec<NamespaceId>) -> Vec<NamespaceId> {
        let payer = self.payer_of(lane);
        let asked = unread.iter().copied().filter(|&id| self.reading.insert((id, payer))).collect();
        for &id in &unread {
            self.awaiting.entry(id).or_default().insert(lane);
        }
        if let Some(first) = self.lanes.get_mut(&lane).and_then(VecDeque::front_mut) {
            first.unread = unread;
        }
        asked
    }

    /// Notes that a list has come.
    fn learned(&mut self, id: NamespaceId, payer: Payer) {
        self.reading.remove(&(id, payer));
        for lane in self.awaiting.remove(&id).unwrap_or_default() {
            let Some(first) = self.lanes.get_mut(&lane).and_then(VecDeque::front_mut) else { continue };
            first.unread.retain(|other| *other != id);
            if first.unread.is_empty() {
                self.ready.push(first.payer, lane);
            }
        }
    }

    /// Returns a lane whose first request has waited for too long.
    fn expired(&mut self, now: Duration) -> Option<Lane> {
        while let Some(&(arrived, lane, number)) = self.order.front() {
            let waits = self.first(lane).is_some_and(|first| first.number == number);
            if waits && now < arrived + PATIENCE {
                return None;
            }
            self.order.pop_front();
            if waits {
                return Some(lane);
            }
        }
        None
    }

    /// Returns the time at which a request may have waited for too long.
    pub fn wake_by(&self) -> Option<Duration> {
        self.order.front().map(|(arrived, ..)| *arrived + PATIENCE)
    }

    /// Returns zero if nothing waits, and nothing is known of a request.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn leftovers(&self) -> usize {
        self.lanes.len() + self.of_payer.len() + self.awaiting.len() + self.reading.len() + self.ready.len()
    }

    /// Forgets the requests of a client that is no more.
    pub fn forget(&mut self, id: ClientId, channels: usize) {
        let lanes = (0..channels).map(|channel| Lane::Channel(id, channel)).chain([Lane::Frames(id)]);
        for lane in lanes {
            let Some(queue) = self.lanes.remove(&lane) else { continue };
            queue.iter().for_each(|waiting| self.discount(waiting.payer));
            self.awaiting.retain(|_, lanes| {
                lanes.remove(&lane);
                !lanes.is_empty()
            });
        }
    }
}

impl Conductor {
    /// Carries out a client's request, unless the request has to wait.
    pub(super) fn take_request(
        &mut self,
        id: ClientId,
        channel: usize,
        request: &Request,
        permit: Option<Permit>,
    ) {
        let lane = Lane::Channel(id, channel);
        if request.operation == Operation::Sync as u8 {
            return self.sync(id, channel, request, permit);
        }
        if !self.deferred.holds(lane) && self.unread_for(id, request, self.clock.now()).is_empty() {
            return self.control(id, channel, request);
        }
        self.defer(lane, What::Request { request: *request, permit });
    }

    /// Carries out a client's frame about a kernel socket, unless the frame has to wait.
    pub(super) fn take_twin_request(
        &mut self,
        id: ClientId,
        channel: usize,
        asked: TwinRequest,
    ) -> Result<(), Violation> {
        if self.unread_for_twin(id, &asked, self.clock.now()).is_empty() {
            return self.apply_twin_request(id, channel, &asked);
        }
        self.defer(Lane::Frames(id), What::Twin(channel, asked));
        Ok(())
    }

    /// Carries out a registration by `pd run`, unless the registration has to wait.
    pub(super) fn take_registration(&mut self, registering: Registering, reply: Sender<Answer>) {
        let lane = Lane::Registration(self.deferred.numbered);
        let now = self.clock.now();
        if self.names.unread_owners(&registering.registration.addresses, now).is_empty() {
            return self.answer_registration(registering, &reply);
        }
        self.defer(lane, What::Register(Box::new(registering), reply));
    }

    fn apply_twin_request(
        &mut self,
        id: ClientId,
        channel: usize,
        asked: &TwinRequest,
    ) -> Result<(), Violation> {
        let is_answered = self.twin(id, channel, asked);
        if is_answered != Ok(false) {
            self.door.send(ToDoor::Done { client: id });
        }
        is_answered.map(drop)
    }

    fn answer_registration(&mut self, registering: Registering, reply: &Sender<Answer>) {
        let (id, cgroup) = (registering.namespace, registering.cgroup.clone());
        match self.register(registering) {
            // The container begins when the policy binds it on the kernel, too.
            Ok(()) => {
                let sealed = Sealed { to: reply.clone(), answer: Answer::Done };
                self.tell_of_container(id, cgroup.as_deref(), Some(sealed));
            }
            // The asker may have gone.
            Err(why) => drop(reply.send(Answer::Error(why))),
        }
    }

    fn unread_for(&mut self, id: ClientId, request: &Request, as_of: Duration) -> Vec<NamespaceId> {
        let (Some(operation), Some(client)) = (Operation::from_raw(request.operation), self.client(id))
        else {
            return Vec::new();
        };
        let (Operation::Bind | Operation::Connect, Some(at)) =
            (operation, request.address().to_socket_addr())
        else {
            return Vec::new();
        };
        let reach = operation == Operation::Connect;
        let namespace = client.identity.namespace;
        let at = if reach { self.would_reach(id, SocketId(request.socket), at) } else { at };
        self.names.unread(namespace, at.ip(), reach, as_of)
    }

    fn unread_for_twin(&mut self, id: ClientId, asked: &TwinRequest, as_of: Duration) -> Vec<NamespaceId> {
        let (asked_of, reach) = match TwinOperation::from_raw(asked.operation) {
            _ if is_unix(asked) => return Vec::new(),
            Some(TwinOperation::Listen) => (&asked.local, false),
            Some(TwinOperation::Connect | TwinOperation::Claim) => (&asked.peer, true),
            _ => return Vec::new(),
        };
        let (Some(client), Some(at)) = (self.client(id), asked_of.to_socket_addr()) else {
            return Vec::new();
        };
        let namespace = client.identity.namespace;
        // The kernel connects to backends by itself. A twin towards the container of a previous holder is never claimed.
        if self.services.find(at).is_some() {
            return Vec::new();
        }
        let connects = TwinOperation::from_raw(asked.operation) == Some(TwinOperation::Connect);
        let led = connects.then(|| self.would_lead(id, at, None, Plane::Kernel)).flatten();
        self.names.unread(namespace, led.unwrap_or(at).ip(), reach, as_of)
    }

    fn unread_for_first(&mut self, lane: Lane) -> Vec<NamespaceId> {
        let Some(Waiting { what, arrived, .. }) = self.deferred.first(lane) else { return Vec::new() };
        match (lane, what) {
            (Lane::Channel(id, _), What::Request { request, .. }) => {
                let (request, arrived) = (*request, *arrived);
                self.unread_for(id, &request, arrived)
            }
            (Lane::Frames(id), What::Twin(_, asked)) => {
                let (asked, arrived) = (*asked, *arrived);
                self.unread_for_twin(id, &asked, arrived)
            }
            (_, What::Register(registering, _)) => {
                self.names.unread_owners(&registering.registration.addresses, *arrived)
            }
            _ => Vec::new(),
        }
    }

    fn defer(&mut self, lane: Lane, what: What) {
        let payer = match lane {
            Lane::Channel(id, _) | Lane::Frames(id) => {
                self.client(id).map_or(DRIVER, |client| client.payer())
            }
            Lane::Registration(_) => DRIVER,
        };
        let is_first = !self.deferred.holds(lane);
        match self.deferred.push(lane, what, payer, self.clock.now()) {
            Err(what) => self.fail(lane, what, Errno::NOBUFS),
            Ok(()) if is_first => {
                self.look_at_first(lane);
            }
            Ok(()) => {}
        }
    }

    /// Has the lists read that the first request of a lane waits for. Returns whether it waits.
    fn look_at_first(&mut self, lane: Lane) -> bool {
        let unread = self.unread_for_first(lane);
        let waits = !unread.is_empty();
        let payer = self.deferred.payer_of(lane);
        for id in self.deferred.wait(lane, unread) {
            if let Some(namespace) = self.names.file(id).cloned() {
                self.door.send(ToDoor::ReadAddresses { payer, id, namespace });
            }
        }
        waits
    }

    /// Takes a list that a helper has read.
    pub(super) fn learn_addresses(&mut self, reading: Reading) {
        const UNREADABLE: &str = "cannot read the addresses of a network namespace";
        let Reading { payer, id, found, took, .. } = reading;
        let now = self.clock.now();
        if let Err(error) = &found {
            if self.log.may_say((UNREADABLE, payer), now) {
                tracing::warn!(%error, "{UNREADABLE}");
            }
        }
        self.names.learn(id, found.ok(), took, now);
        self.deferred.learned(id, payer);
    }

    /// Carries out requests whose lists have come. Returns whether there were any.
    pub(super) fn replay(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..REPLAYED_PER_TURN {
            let Some((_, lane)) = self.deferred.ready.pop() else { break };
            worked = true;
            if self.look_at_first(lane) {
                continue;
            }
            let Some(Waiting { what, .. }) = self.deferred.take(lane) else { continue };
            match (lane, what) {
                (Lane::Channel(id, channel), What::Request { request, .. }) => {
                    self.control(id, channel, &request)
                }
                (Lane::Frames(id), What::Twin(channel, asked)) => {
                    if let Err(violation) = self.apply_twin_request(id, channel, &asked) {
                        self.disconnect(id, Some(violation));
                    }
                }
                (_, What::Register(registering, reply)) => self.answer_registration(*registering, &reply),
                _ => {}
            }
        }
        worked
    }

    /// Fails the requests that have waited for too long.
    pub(super) fn give_up_deferred(&mut self) {
        while let Some(lane) = self.deferred.expired(self.clock.now()) {
            if let Some(Waiting { what, .. }) = self.deferred.take(lane) {
                self.fail(lane, what, Errno::TIMEDOUT);
            }
        }
    }

    fn fail(&mut self, lane: Lane, what: What, errno: Errno) {
        if let (Lane::Channel(id, channel), What::Request { request, .. }) = (lane, &what) {
            let operation = Operation::from_raw(request.operation);
            if matches!(operation, Some(Operation::Close | Operation::Broken)) {
                // A `Close` or `Broken` has no answer, and is carried out in any case.
                return self.control(id, channel, request);
            }
        }
        Metrics::add(&self.metrics.requests_refused, 1);
        let refused: Event = Err(errno);
        match (lane, what) {
            (Lane::Channel(id, channel), What::Request { request, .. }) => {
                self.answer((id, channel), SocketId(request.socket), request.tag, refused);
            }
            (Lane::Frames(id), What::Twin(channel, asked)) => {
                self.answer((id, channel), SocketId(0), asked.tag, refused);
                self.door.send(ToDoor::Done { client: id });
            }
            (_, What::Register(registering, reply)) => {
                let name = &registering.registration.name;
                let why = format!("container {name}: the addresses of others could not be read ({errno})");
                let _ = reply.send(Answer::Error(why));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
