//! Guests: clients as the door knows them, from `accept` until every agent has forgotten them.
use crate::hash::HashMap;
use crate::identity::NamespaceId;
use crate::ids::{ClientId, TenantId};
use crate::memory::{Account, Amounts, ClientMemory, Exhausted, Lease, Region};
use crate::messages::{payer, Payer};
use crate::pipes::PipeMemory;
use crate::takeover::arrivals::Came;
use pd_abi::{Frame, FrameKind};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Stage of a guest.
#[derive(Debug)]
pub enum Phase {
    /// The conductor has to name its tenant.
    Arriving,
    /// The guest has to say hello.
    Greeting,
    /// The guest has to map its control region, which is then sealed.
    Mapping,
    /// Attached.
    Attached,
    /// Dead or cut off: the agents have to forget it.
    Leaving,
}

/// Event that a guest waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// A message of its own, of which the kernel tells.
    Message,
    /// The guest's turn.
    Turn,
    /// The answer to its frame.
    Answer,
    /// Room for the frames that are held for it.
    Room,
}

/// News for a guest that has no room for it.
#[derive(Debug)]
pub enum Held {
    /// An answer, with its descriptors: the client's account has paid for one.
    Answer(Box<Frame>, Vec<OwnedFd>),
    /// An answer that a helper sends.
    Away,
    /// A receive region by number, with a descriptor for the guest.
    Region(Box<Frame>, u32, Box<Region>, OwnedFd),
}

/// A pipe of a guest.
#[derive(Debug)]
pub struct GuestPipe {
    pub memory: Arc<PipeMemory>,
    /// Set when the guest has said so: the pipe is sealed, or about to be.
    pub is_mapped: bool,
    pub has_wake_fd: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Guest {
    pub serial: u64,
    pub socket: Arc<OwnedFd>,
    pub pidfd: Arc<OwnedFd>,
    pub namespace: NamespaceId,
    pub phase: Phase,
    pub waits: Waits,
    pub memory: Option<Arc<ClientMemory>>,
    pub channels: usize,
    pub has_file_socket: bool,
    /// Number of regions made, and the number of the next.
    pub regions: u32,
    /// Send regions by number, and whether they are sealed.
    pub send_regions: HashMap<u32, (Region, bool)>,
    /// Pipes by number.
    pub pipes: HashMap<u32, GuestPipe>,
    /// Number of pipes made, and the number of the last.
    pipes_made: u32,
    /// Frames that are held: at most an answer and a receive region.
    held: VecDeque<Held>,
    uid: u32,
    tenant: TenantId,
    account: Option<Arc<Account>>,
    /// Leases of the guest itself, and of each of its channels.
    leases: Vec<Lease>,
}

impl Guest {
    fn new(serial: u64, socket: OwnedFd, pidfd: Arc<OwnedFd>, namespace: NamespaceId, uid: u32) -> Self {
        Self {
            serial,
            socket: Arc::new(socket),
            pidfd,
            namespace,
            phase: Phase::Arriving,
            waits: Waits::Answer,
            memory: None,
            channels: 0,
            has_file_socket: false,
            regions: 0,
            send_regions: HashMap::default(),
            pipes: HashMap::default(),
            pipes_made: 0,
            held: VecDeque::new(),
            uid,
            tenant: TenantId::default(),
            account: None,
            leases: Vec::new(),
        }
    }

    /// Admits the guest: the conductor has named its tenant.
    pub fn admit(&mut self, tenant: TenantId, account: Arc<Account>, lease: Lease) {
        self.tenant = tenant;
        self.account = Some(account);
        self.leases.push(lease);
        if self.is_here() {
            self.phase = Phase::Greeting;
        }
    }

    /// Pays for resources that the guest has until it is forgotten.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn pay(&mut self, amounts: Amounts) -> Result<(), Exhausted> {
        let Some(account) = &self.account else { return Ok(()) };
        self.leases.push(account.lease(amounts)?);
        Ok(())
    }

    /// Sets the tenant.
    pub fn set_tenant(&mut self, tenant: TenantId) {
        self.tenant = tenant;
    }

    /// Returns the payer of the guest's costs, which takes turns.
    pub fn payer(&self) -> Payer {
        payer(self.tenant, self.uid)
    }

    /// Returns the account that pays for its memory, from [`Self::admit`] on.
    pub fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    /// Tells whether the guest is to be served.
    pub fn is_here(&self) -> bool {
        !matches!(self.phase, Phase::Leaving)
    }

    /// Holds a frame until there is room for it.
    pub fn hold(&mut self, held: Held) {
        self.held.push_back(held);
        debug_assert!(self.held.len() <= 2, "an answer and a region");
    }

    /// Returns the frame that is held longest.
    pub fn held(&self) -> Option<&Held> {
        self.held.front()
    }

    /// Takes the frame that is held longest, which has been sent.
    pub fn unhold(&mut self) -> Option<Held> {
        self.held.pop_front()
    }

    /// Takes the answer that is held longest to a helper, if it has a socket for the guest.
    pub fn send_away(&mut self) -> Option<(Box<Frame>, Vec<OwnedFd>)> {
        let front = self.held.front_mut()?;
        let has_socket = |frame: &Frame| {
            let kind = frame.checked_kind();
            matches!(kind, Some(FrameKind::WakePipe | FrameKind::FileSocket | FrameKind::PipeWakeFd))
        };
        if !matches!(front, Held::Answer(frame, fds) if !fds.is_empty() && has_socket(frame)) {
            return None;
        }
        match std::mem::replace(front, Held::Away) {
            Held::Answer(frame, fds) => Some((frame, fds)),
            Held::Away | Held::Region(..) => None,
        }
    }

    /// Takes an answer back from a helper, which could not send it.
    pub fn take_back(&mut self, frame: Box<Frame>, fds: Vec<OwnedFd>) {
        if let Some(front @ Held::Away) = self.held.front_mut() {
            *front = Held::Answer(frame, fds);
        }
    }

    /// Tells whether a frame is held.
    pub fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns all memory that was made for the guest and is the door's.
    pub fn into_regions(self) -> impl Iterator<Item = Region> {
        let held = self.held.into_iter().filter_map(|held| match held {
            Held::Region(_, _, region, _) => Some(*region),
            Held::Answer(..) | Held::Away => None,
        });
        self.send_regions.into_values().map(|(region, _)| region).chain(held)
    }

    /// Returns the number of one more pipe.
    pub fn number_pipe(&mut self) -> u32 {
        self.pipes_made = self.pipes_made.wrapping_add(1);
        self.pipes_made
    }

    /// Returns the number of the last pipe.
    pub fn pipes_made(&self) -> u32 {
        self.pipes_made
    }

    /// Goes on with pipes that another driver has made.
    pub fn resume_pipes(&mut self, pipes: impl IntoIterator<Item = (u32, GuestPipe)>, made: u32) {
        self.pipes.extend(pipes);
        self.pipes_made = made;
    }

    /// Takes the memory of all its pipes.
    pub fn take_pipes(&mut self) -> Vec<Arc<PipeMemory>> {
        std::mem::take(&mut self.pipes).into_values().map(|pipe| pipe.memory).collect()
    }

    /// Returns the number of one more region.
    pub fn number_region(&mut self) -> u32 {
        self.regions += 1;
        self.regions - 1
    }
}

/// All guests, by number.
#[derive(Debug, Default)]
pub struct Guests {
    list: Vec<Option<Guest>>,
    free: Vec<ClientId>,
    /// Number of guests that are not leaving.
    here: usize,
    /// Number of guests of each network namespace that are not forgotten.
    of_namespace: HashMap<NamespaceId, usize>,
    serial: u64,
}

impl Guests {
    /// Adds a new guest. Returns its number.
    pub fn enter(
        &mut self,
        socket: OwnedFd,
        pidfd: Arc<OwnedFd>,
        namespace: NamespaceId,
        uid: u32,
    ) -> ClientId {
        self.serial += 1;
        let guest = Guest::new(self.serial, socket, pidfd, namespace, uid);
        *self.of_namespace.entry(namespace).or_default() += 1;
        self.here += 1;
        match self.free.pop() {
            Some(id) => {
                self.list[id.index()] = Some(guest);
                id
            }
            None => {
                self.list.push(Some(guest));
                ClientId::at(self.list.len() - 1)
            }
        }
    }

    /// Takes over a guest that another driver has given, and that waits for nothing. Returns whether its number is free.
    pub fn resume(
        &mut self,
        id: ClientId,
        serial: u64,
        socket: OwnedFd,
        came: Came,
        leases: Vec<Lease>,
    ) -> bool {
        let Came { tenant, uid, pid: _, namespace, pidfd, account, lease, memory, channels } = came;
        if self.list.get(id.index()).is_some_and(Option::is_some) {
            return false;
        }
        let mut guest = Guest::new(serial, socket, pidfd, namespace, uid);
        (guest.phase, guest.waits) = (Phase::Attached, Waits::Message);
        (guest.memory, guest.channels, guest.tenant, guest.account) =
            (Some(memory), channels, tenant, Some(account));
        guest.leases = leases;
        guest.leases.push(lease);
        while self.list.len() <= id.index() {
            self.free.push(ClientId::at(self.list.len()));
            self.list.push(None);
        }
        self.free.retain(|free| *free != id);
        self.list[id.index()] = Some(guest);
        *self.of_namespace.entry(namespace).or_default() += 1;
        self.here += 1;
        true
    }

    /// Iterates over all guests, leaving or not.
    pub fn iter(&self) -> impl Iterator<Item = (ClientId, &Guest)> {
        self.list.iter().enumerate().filter_map(|(at, guest)| Some((ClientId::at(at), guest.as_ref()?)))
    }

    /// Iterates over all guests, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Guest> {
        self.list.iter_mut().flatten()
    }

    /// Returns the serial of the last guest.
    pub fn last_serial(&self) -> u64 {
        self.serial
    }

    /// Numbers further guests beyond this serial.
    pub fn number_from(&mut self, last: u64) {
        self.serial = last;
    }

    /// Returns a guest, leaving or not.
    pub fn get(&mut self, id: ClientId) -> Option<&mut Guest> {
        self.list.get_mut(id.index())?.as_mut()
    }

    /// Returns a guest that is to be served.
    pub fn here(&mut self, id: ClientId) -> Option<&mut Guest> {
        self.get(id).filter(|guest| guest.is_here())
    }

    /// Marks a guest as leaving.
    pub fn leave(&mut self, id: ClientId) -> Option<&mut Guest> {
        let guest = self.list.get_mut(id.index())?.as_mut().filter(|guest| guest.is_here())?;
        guest.phase = Phase::Leaving;
        self.here -= 1;
        Some(guest)
    }

    /// Forgets a guest, and frees its number.
    pub fn forget(&mut self, id: ClientId) -> Option<Guest> {
        self.leave(id);
        let guest = self.list.get_mut(id.index())?.take()?;
        self.free.push(id);
        if let Some(count) = self.of_namespace.get_mut(&guest.namespace) {
            *count -= 1;
            if *count == 0 {
                self.of_namespace.remove(&guest.namespace);
            }
        }
        Some(guest)
    }

    /// Returns zero if all guests are forgotten.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn total(&self) -> usize {
        self.list.iter().flatten().count() + self.of_namespace.len()
    }

    /// Forgets the frames that are held for guests that are here. Returns whether there were any.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn forget_held(&mut self) -> bool {
        let here = self.list.iter_mut().flatten().filter(|guest| guest.is_here());
        here.map(|guest| std::mem::take(&mut guest.held).len()).sum::<usize>() > 0
    }

    /// Returns the number of guests that are not leaving.
    pub fn count(&self) -> usize {
        self.here
    }

    /// Returns the number of guests of a network namespace that are not forgotten.
    pub fn count_in(&self, namespace: NamespaceId) -> usize {
        self.of_namespace.get(&namespace).copied().unwrap_or(0)
    }
}
