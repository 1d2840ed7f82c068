//! Accounts of clients' resources, each a part of the one above it, and leases of their amounts.
//!
//! The pool's account has everything. Below it each payer ([`crate::messages::Payer`]) has one, and below that each of its
//! clients. A lease is taken of an account and of all above it, or of none. Dropping it gives the amounts back, even if the
//! client has gone or changed its payer.
//!
//! A payer may hold as much as its cap; without a cap, half of the amount that others leave. A payer's reserve is taken of
//! the pool from the start, so that others cannot have it.
//!
//! The last sixteenth of a payer's memory is kept from send regions, direct rings and large receive regions. Control memory and
//! receive regions of at most 64 KiB may have it, and only these regions its last quarter. A process can then still attach, and a
//! stream that has begun goes on.
//!
//! All accounts of a pool share one lock. It is held for a few steps only, and never taken for each message or request.
use super::pool::Exhausted;
use crate::calls::simulated;
use pd_abi::layout::CHANNEL_STRIDE;
use pd_abi::limits::PAGE_BYTES;
use pd_shm::ringer::Ringer;
use std::ops::{Add, AddAssign, SubAssign};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Amounts of all resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub clients: u64,
    /// Descriptors of the driver.
    pub descriptors: u64,
    /// Pages of control and status regions that the driver has made. The pool's budget does not cover them; the limit on clients
    /// bounds them.
    pub lines_bytes: u64,
    /// Bytes of regions and direct rings.
    pub memory_bytes: u64,
}

/// A resource that can run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    Clients,
    Descriptors,
    /// Regions, direct rings and lines.
    Memory,
}

/// The account with too little left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    Pool,
    Tenant,
    Client,
}

/// Caps and reserves of a payer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Clients.
    pub clients: Cap,
    /// Descriptors of the driver.
    pub descriptors: Cap,
    /// Bytes of regions, direct rings and lines.
    pub memory_bytes: Cap,
}

/// Cap and reserve of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cap {
    /// Most that the payer may hold. None: half of the amount that others leave.
    pub most: Option<u64>,
    /// Amount that others cannot have.
    pub reserved: u64,
}

/// A payer's use of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub used: u64,
    pub most: u64,
    pub reserved: u64,
    /// Requests for more that were refused.
    pub refused: u64,
}

/// See the module. Any thread may use it.
#[derive(Debug)]
pub struct Account {
    books: Arc<Mutex<Books>>,
    index: usize,
    /// Node for memory that the account pays for; [`NOWHERE`]: the kernel chooses.
    near: AtomicU32,
    /// Of a payer, for all its clients.
    ringer: Arc<Ringer>,
}

/// No node in particular.
const NOWHERE: u32 = u32::MAX;

/// Amounts taken from an [`Account`].
#[derive(Debug)]
pub struct Lease {
    account: Arc<Account>,
    amounts: Amounts,
}

#[derive(Debug, Default)]
struct Books {
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// Amounts in use of the pool; `used` of its account includes reserves.
    held: Amounts,
    /// See [`Account::set_exempt`].
    exempt: bool,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    used: Amounts,
    leases: usize,
    refused: [u64; 3],
}

#[derive(Debug)]
enum Kind {
    /// The pool, with its total. Its `used` includes reserves.
    Pool(Amounts),
    Payer(Caps),
    /// A client: most bytes of regions, and its payer.
    Client(u64, Arc<Account>),
}

impl Resource {
    pub const ALL: [Self; 3] = [Self::Clients, Self::Descriptors, Self::Memory];
}

/// Part of a payer's memory that is kept for control memory and small receive regions, at most [`KEPT_BYTES_MAX`].
const KEPT_PART: u64 = 16;
const KEPT_BYTES_MAX: u64 = 16 << 20;
/// A payer with less memory than this keeps none.
const KEEPS_FROM_BYTES: u64 = 4 << 20;
/// Largest receive region that may have kept memory.
const KEPT_REGION_BYTES: u64 = 64 << 10;

/// Part of the kept memory for receive regions alone, so that attaching processes do not take it.
const KEPT_OF_RINGS_PART: u64 = 4;

/// Returns the bytes that a payer keeps of `most` bytes.
fn kept(most: u64) -> u64 {
    match most {
        0..KEEPS_FROM_BYTES => 0,
        _ => (most / KEPT_PART).min(KEPT_BYTES_MAX),
    }
}

/// Descriptors of a client without channels: its socket, its process, its network namespace, and one of an answer that is held.
const CLIENT_DESCRIPTORS: u64 = 4;
/// Descriptors of a client's control and status regions.
const LINES_DESCRIPTORS: u64 = 2;
/// Descriptors of a channel: doorbell and wake pipe.
const CHANNEL_DESCRIPTORS: u64 = 2;
/// Bytes of one page in each of the two regions.
const PAGE_OF_LINES_BYTES: u64 = 2 * PAGE_BYTES as u64;

impl Amounts {
    /// Amounts of a client without channels.
    pub const CLIENT: Self =
        Self { clients: 1, descriptors: CLIENT_DESCRIPTORS, lines_bytes: 0, memory_bytes: 0 };
    /// Amounts of a client's control and status regions, until nobody holds them.
    pub const LINES: Self = Self {
        clients: 0,
        descriptors: LINES_DESCRIPTORS,
        lines_bytes: PAGE_OF_LINES_BYTES,
        memory_bytes: 0,
    };
    /// Amounts of a channel.
    pub const CHANNEL: Self =
        Self { clients: 0, descriptors: CHANNEL_DESCRIPTORS, lines_bytes: 0, memory_bytes: 0 };
    /// Amounts of a channel's pages in the two regions.
    pub const LINES_OF_CHANNEL: Self =
        Self { clients: 0, descriptors: 0, lines_bytes: 2 * CHANNEL_STRIDE as u64, memory_bytes: 0 };
    /// Amounts of a page of sockets' lines.
    pub const PAGE_OF_LINES: Self =
        Self { clients: 0, descriptors: 0, lines_bytes: PAGE_OF_LINES_BYTES, memory_bytes: 0 };

    /// Returns the amounts of bytes of regions.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn memory(memory_bytes: u64) -> Self {
        Self { memory_bytes, ..Self::default() }
    }

    /// Returns the amounts of a region or a direct ring of `memory_bytes`, with the driver's descriptor of it.
    pub fn region(memory_bytes: u64) -> Self {
        Self { memory_bytes, ..Self::descriptor() }
    }

    /// Returns the bytes of `most` that a payer cannot use for this request. `is_ring`: the request is for a receive region.
    fn kept_from(&self, most: u64, is_ring: bool) -> u64 {
        match self.memory_bytes {
            0 => kept(most) / KEPT_OF_RINGS_PART,
            1..=KEPT_REGION_BYTES if is_ring => 0,
            _ => kept(most),
        }
    }

    /// Returns the amounts of one descriptor of the driver.
    pub fn descriptor() -> Self {
        Self { descriptors: 1, ..Self::default() }
    }

    /// Returns the amount that a payer is charged.
    fn of_payer(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Clients => self.clients,
            Resource::Descriptors => self.descriptors,
            Resource::Memory => self.memory_bytes + self.lines_bytes,
        }
    }

    /// Returns the amount that is taken of the pool.
    pub fn of_pool(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Memory => self.memory_bytes,
            other => self.of_payer(other),
        }
    }
}

impl Add for Amounts {
    type Output = Self;

    fn add(mut self, more: Self) -> Self {
        self += more;
        self
    }
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, more: Self) {
        self.clients += more.clients;
        self.descriptors += more.descriptors;
        self.lines_bytes += more.lines_bytes;
        self.memory_bytes += more.memory_bytes;
    }
}

impl SubAssign for Amounts {
    fn sub_assign(&mut self, less: Self) {
        self.clients -= less.clients;
        self.descriptors -= less.descriptors;
        self.lines_bytes -= less.lines_bytes;
        self.memory_bytes -= less.memory_bytes;
    }
}

impl Caps {
    /// Returns the cap of one resource.
    pub fn of(&self, resource: Resource) -> Cap {
        match resource {
            Resource::Clients => self.clients,
            Resource::Descriptors => self.descriptors,
            Resource::Memory => self.memory_bytes,
        }
    }

    /// Returns the amounts that a payer with these caps takes of the pool when it uses `used`.
    fn taken(&self, used: &Amounts) -> Amounts {
        let of = |resource| used.of_pool(resource).max(self.of(resource).reserved);
        Amounts {
            clients: of(Resource::Clients),
            descriptors: of(Resource::Descriptors),
            lines_bytes: used.lines_bytes,
            memory_bytes: of(Resource::Memory),
        }
    }
}

impl Books {
    fn entry(&self, index: usize) -> &Entry {
        self.entries[index].as_ref().expect("an account that somebody has")
    }

    fn entry_mut(&mut self, index: usize) -> &mut Entry {
        self.entries[index].as_mut().expect("an account that somebody has")
    }

    fn open(&mut self, kind: Kind) -> usize {
        let entry = Some(Entry { kind, used: Amounts::default(), leases: 0, refused: [0; 3] });
        match self.free.pop() {
            Some(index) => {
                self.entries[index] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        }
    }

    fn total(&self) -> Amounts {
        match self.entry(POOL).kind {
            Kind::Pool(total) => total,
            _ => Amounts::default(),
        }
    }

    /// Returns the most that a payer may use at the moment.
    fn most(&self, payer: usize, caps: &Caps, resource: Resource) -> u64 {
        let Cap { most, reserved } = caps.of(resource);
        most.unwrap_or_else(|| {
            let own = caps.taken(&self.entry(payer).used).of_pool(resource);
            let others = self.entry(POOL).used.of_pool(resource) - own;
            (self.total().of_pool(resource).saturating_sub(others) / 2).max(reserved)
        })
    }

    /// Changes the used amounts of an account and those above it.
    fn change(&mut self, index: usize, change: &dyn Fn(&mut Amounts)) {
        let entry = self.entry_mut(index);
        let before = entry.used;
        change(&mut entry.used);
        let now = entry.used;
        match &self.entry(index).kind {
            Kind::Pool(_) => change(&mut self.held),
            Kind::Client(_, payer) => {
                let payer = payer.index;
                self.change(payer, change);
            }
            Kind::Payer(caps) => {
                let (before, now) = (caps.taken(&before), caps.taken(&now));
                let pool = &mut self.entry_mut(POOL).used;
                *pool += now;
                *pool -= before;
                change(&mut self.held);
            }
        }
    }

    /// Takes amounts of an account and of those above it.
    fn take(&mut self, index: usize, want: &Amounts, is_ring: bool) -> Result<(), Exhausted> {
        let mut at = index;
        if let Kind::Client(budget, payer) = &self.entry(at).kind {
            let (budget, payer) = (*budget, payer.index);
            let sum = self.entry(at).used.memory_bytes.saturating_add(want.memory_bytes);
            if sum > budget && !self.exempt {
                return Err(self.refuse(at, Resource::Memory, Whose::Client, budget));
            }
            at = payer;
        }
        let mut more = *want;
        if let Kind::Payer(caps) = self.entry(at).kind {
            let used = self.entry(at).used;
            for resource in Resource::ALL {
                let most = self.most(at, &caps, resource);
                let kept = if resource == Resource::Memory { want.kept_from(most, is_ring) } else { 0 };
                let (want, left) = (want.of_payer(resource), most - kept);
                if want > 0 && used.of_payer(resource).saturating_add(want) > left && !self.exempt {
                    return Err(self.refuse(at, resource, Whose::Tenant, most));
                }
            }
            more = caps.taken(&(used + *want));
            more -= caps.taken(&used);
        }
        let (used, total) = (self.entry(POOL).used, self.total());
        for resource in Resource::ALL {
            let (more, want, total) =
                (more.of_pool(resource), want.of_pool(resource), total.of_pool(resource));
            // A reserve made while others hold everything becomes available as they give back.
            let is_held = want > 0 && self.held.of_pool(resource).saturating_add(want) > total;
            let is_reserved = more > 0 && used.of_pool(resource).saturating_add(more) > total;
            if is_held || is_reserved && !self.exempt {
                return Err(self.refuse(at, resource, Whose::Pool, total));
            }
        }
        self.change(index, &|used| *used += *want);
        Ok(())
    }

    fn refuse(&mut self, at: usize, resource: Resource, whose: Whose, most: u64) -> Exhausted {
        self.entry_mut(at).refused[resource as usize] += 1;
        Exhausted::Budget { resource, whose, most }
    }
}

/// The first account of the books.
const POOL: usize = 0;

impl Account {
    /// Makes the account of a pool with this total.
    pub fn new(total: Amounts) -> Arc<Self> {
        let mut books = Books::default();
        let index = books.open(Kind::Pool(total));
        let (near, ringer) = (AtomicU32::new(NOWHERE), Arc::default());
        Arc::new(Self { books: Arc::new(Mutex::new(books)), index, near, ringer })
    }

    /// Makes a payer's account, below the pool's.
    pub fn payer(self: &Arc<Self>, caps: Caps) -> Arc<Self> {
        let payer = self.below(Kind::Payer(Caps::default()), Arc::default());
        payer.set_caps(caps);
        payer
    }

    /// Makes a client's account, below a payer's, of up to `budget` bytes of regions.
    pub fn client(self: &Arc<Self>, budget: u64) -> Arc<Self> {
        self.below(Kind::Client(budget, Arc::clone(self)), Arc::clone(&self.ringer))
    }

    fn below(&self, kind: Kind, ringer: Arc<Ringer>) -> Arc<Self> {
        let index = self.lock().open(kind);
        Arc::new(Self { books: Arc::clone(&self.books), index, near: AtomicU32::new(NOWHERE), ringer })
    }

    /// Returns the payer's ringer; none in a simulation.
    pub fn ringer(&self) -> Option<Arc<Ringer>> {
        (!simulated::is_on()).then(|| Arc::clone(&self.ringer))
    }

    /// Sets the node for memory that the account pays for from now on; none: the kernel chooses.
    pub fn set_near(&self, node: Option<u32>) {
        self.near.store(node.unwrap_or(NOWHERE), Relaxed);
    }

    /// Returns the node for memory, if one is preferred.
    pub fn near(&self) -> Option<u32> {
        Some(self.near.load(Relaxed)).filter(|node| *node != NOWHERE)
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the caps of a payer. Amounts that it holds beyond them stay.
    pub fn set_caps(&self, caps: Caps) {
        let mut books = self.lock();
        let used = books.entry(self.index).used;
        let Kind::Payer(own) = &mut books.entry_mut(self.index).kind else { return };
        let before = std::mem::replace(own, caps).taken(&used);
        let pool = &mut books.entry_mut(POOL).used;
        *pool += caps.taken(&used);
        *pool -= before;
    }

    /// Moves a client and all that it holds to another payer, whatever that payer may hold.
    pub fn move_below(&self, payer: &Arc<Self>) {
        let mut books = self.lock();
        let used = books.entry(self.index).used;
        let Kind::Client(_, above) = &mut books.entry_mut(self.index).kind else { return };
        let before = std::mem::replace(above, Arc::clone(payer));
        books.change(before.index, &|amounts| *amounts -= used);
        books.change(payer.index, &|amounts| *amounts += used);
        // The previous payer's account may end with this reference.
        drop(books);
        drop(before);
    }

    /// Returns the amounts that are held.
    pub fn used(&self) -> Amounts {
        let books = self.lock();
        if self.index == POOL {
            books.held
        } else {
            books.entry(self.index).used
        }
    }

    /// Returns the pool's total.
    pub fn total(&self) -> Amounts {
        self.lock().total()
    }

    /// Returns the number of leases.
    pub fn leases(&self) -> usize {
        self.lock().entry(self.index).leases
    }

    /// Returns a payer's use of a resource.
    pub fn standing(&self, resource: Resource) -> Standing {
        let books = self.lock();
        let entry = books.entry(self.index);
        let Kind::Payer(caps) = &entry.kind else { return Standing::default() };
        Standing {
            used: entry.used.of_payer(resource),
            most: books.most(self.index, caps, resource),
            reserved: caps.of(resource).reserved,
            refused: entry.refused[resource as usize],
        }
    }

    /// Returns the bytes of regions that can be leased at the moment.
    pub fn free(&self) -> u64 {
        let books = self.lock();
        let entry = books.entry(self.index);
        let Kind::Client(budget, payer) = &entry.kind else { return 0 };
        let of_client = budget.saturating_sub(entry.used.memory_bytes);
        let payer = payer.index;
        let Kind::Payer(caps) = &books.entry(payer).kind else { return of_client };
        let used = books.entry(payer).used;
        let most = books.most(payer, caps, Resource::Memory);
        let of_payer = most.saturating_sub(used.of_payer(Resource::Memory));
        let reserve = caps.taken(&used).memory_bytes - used.memory_bytes;
        let of_pool =
            books.total().memory_bytes.saturating_sub(books.entry(POOL).used.memory_bytes) + reserve;
        let unheld = books.total().memory_bytes.saturating_sub(books.held.memory_bytes);
        of_client.min(of_payer).min(of_pool).min(unheld)
    }

    /// Takes amounts of this account and of those above it.
    ///
    /// # Errors
    /// [`Exhausted::Budget`], which names the account that has too little.
    pub fn lease(self: &Arc<Self>, amounts: Amounts) -> Result<Lease, Exhausted> {
        self.lease_of(amounts, false)
    }

    /// Takes amounts as [`Self::lease`] does, for a receive region, which may use the kept memory for small ones.
    ///
    /// # Errors
    /// [`Exhausted::Budget`], which names the account that has too little.
    pub fn lease_ring(self: &Arc<Self>, amounts: Amounts) -> Result<Lease, Exhausted> {
        self.lease_of(amounts, true)
    }

    /// Sets whether all accounts may hold more than they may take, as long as there is enough for all. A driver that takes over
    /// sets it.
    pub fn set_exempt(&self, exempt: bool) {
        self.lock().exempt = exempt;
    }

    fn lease_of(self: &Arc<Self>, amounts: Amounts, is_ring: bool) -> Result<Lease, Exhausted> {
        let mut books = self.lock();
        books.take(self.index, &amounts, is_ring)?;
        books.entry_mut(self.index).leases += usize::from(amounts.memory_bytes > 0);
        Ok(Lease { account: Arc::clone(self), amounts })
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if self.index == POOL {
            return; // goes with the books
        }
        let mut books = self.lock();
        let entry = books.entries[self.index].take();
        if let Some(Entry { kind: Kind::Payer(caps), used, .. }) = &entry {
            let kept = caps.taken(used);
            books.entry_mut(POOL).used -= kept;
        }
        books.free.push(self.index);
        drop(books);
        // Dropping the entry drops its reference to the account above, which locks the books.
        drop(entry);
    }
}

impl Lease {
    /// Returns the payer's ringer; none in a simulation.
    pub fn ringer(&self) -> Option<Arc<Ringer>> {
        self.account.ringer()
    }

    /// Returns the node for the leased memory, if one is preferred.
    pub fn near(&self) -> Option<u32> {
        self.account.near()
    }

    /// Returns the bytes of regions.
    pub fn bytes(&self) -> u64 {
        self.amounts.memory_bytes
    }

    /// Gives the bytes of regions back. Other amounts stay.
    pub fn give_bytes(&mut self) {
        let bytes = std::mem::take(&mut self.amounts.memory_bytes);
        if bytes > 0 {
            let mut books = self.account.lock();
            books.change(self.account.index, &|used| used.memory_bytes -= bytes);
            books.entry_mut(self.account.index).leases -= 1;
        }
    }

    /// Takes bytes for a receive region, after [`Self::give_bytes`].
    ///
    /// # Errors
    /// [`Exhausted::Budget`], which names the account that has too little.
    pub fn take_bytes(&mut self, bytes: u64) -> Result<(), Exhausted> {
        debug_assert_eq!(self.amounts.memory_bytes, 0, "one region");
        let mut books = self.account.lock();
        let want = Amounts { memory_bytes: bytes, ..Amounts::default() };
        books.take(self.account.index, &want, true)?;
        books.entry_mut(self.account.index).leases += usize::from(bytes > 0);
        self.amounts.memory_bytes = bytes;
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let amounts = self.amounts;
        let mut books = self.account.lock();
        books.change(self.account.index, &|used| *used -= amounts);
        books.entry_mut(self.account.index).leases -= usize::from(amounts.memory_bytes > 0);
    }
}

#[cfg(test)]
mod tests;
