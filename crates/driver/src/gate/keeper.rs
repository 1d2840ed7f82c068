//! The thread that keeps the kernel's half of the policy: see the module above.
use super::bpf::{self, Plain};
use super::plan::{binds, Party, Plan};
use super::program::{self, hierarchy, Maps, Programs};
use super::spaces::{self, Spaces};
use super::sweep;
use super::words::{OfGeneration, Staged, Words, RULES};
use crate::admin::Answer;
use crate::clock::Clock;
use crate::identity::NamespaceId;
use crate::ids::TenantId;
use crate::mailbox::Mailbox;
use crate::messages::ToConductor;
use crate::policy::rate::EPOCH_NS;
use crate::policy::{Action, Policy};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::time::{clock_gettime, ClockId, Timespec};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the keeper looks for control groups and namespaces that the policy names and that were not there.
const LOOK: Duration = Duration::from_secs(1);
/// Longest sleep: how soon a stop is noticed.
const STOP_POLL: Duration = Duration::from_millis(200);
/// How long entries stay that no connect finds any more: a program that has begun may still read them.
const RETIRED: Duration = Duration::from_millis(100);
/// Deepest control group that programs tell apart.
const LEVELS_MAX: u32 = 8;

/// Whose a network namespace is.
#[derive(Clone, Debug)]
pub enum Whose {
    /// That of clients, or of a container.
    Known(NamespaceId, Arc<OwnedFd>),
    /// One that the policy names.
    File(PathBuf),
}

/// A network namespace as the conductor knows it.
#[derive(Clone, Debug)]
pub struct Space {
    pub whose: Whose,
    pub tenant: TenantId,
    /// Addresses that `pd run` registered.
    pub addresses: Vec<IpAddr>,
}

/// Everything that a policy can name.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Names of tenants, by number.
    pub tenants: Vec<String>,
    pub spaces: Vec<Space>,
    /// Control groups.
    pub groups: Vec<(String, TenantId)>,
}

/// An answer that waits until the kernel's half is in force.
#[derive(Debug)]
pub struct Sealed {
    pub to: Sender<Answer>,
    pub answer: Answer,
}

/// A policy that is in force on the fabric by now.
#[derive(Debug)]
pub struct InForce {
    /// Connections that it ended on the fabric.
    pub cut: u64,
    /// Kernel sockets whose bytes went by the fabric: they are counted there.
    pub twins: HashSet<u32>,
    pub reply: Option<Sender<Answer>>,
}

/// What the conductor tells the keeper.
#[derive(Debug)]
pub enum ToGate {
    /// A policy is to be staged. Answered by [`ToConductor::Staged`].
    Stage { policy: Box<Policy>, world: World },
    /// What was staged is in force.
    InForce(InForce),
    /// What was staged is not wanted.
    Discard,
    /// Namespaces, control groups or tenants have changed.
    World(World, Option<Sealed>),
}

/// The conductor's end.
#[derive(Debug)]
pub struct Gate {
    /// What the kernel counts, and what it is told.
    pub words: Arc<Words>,
    /// The keeper's.
    pub inbox: Arc<Mailbox<ToGate>>,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct SourceKey {
    id: u64,
    generation: u32,
    is_group: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PlaceKey {
    prefix: u32,
    generation: u32,
    address: [u8; 16],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PairKey {
    prefix: u32,
    generation: u32,
    from: u32,
    to: u32,
    port: [u8; 2],
    zero: [u8; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Whom {
    tenant: u32,
    class: u32,
    space: u32,
}

// SAFETY: structures of numbers without padding, as `gate.bpf.c` has them.
unsafe impl Plain for SourceKey {}
// SAFETY: see above.
unsafe impl Plain for PlaceKey {}
// SAFETY: see above.
unsafe impl Plain for PairKey {}
// SAFETY: see above.
unsafe impl Plain for Whom {}

/// What one generation has put into the maps.
#[derive(Default)]
struct Entries {
    sources: Vec<SourceKey>,
    places: Vec<PlaceKey>,
    verdicts: Vec<PairKey>,
}

/// What the entries were made from.
#[derive(Default, PartialEq)]
struct Facts {
    /// Cookie and number, tenant.
    spaces: Vec<(u64, u32, TenantId)>,
    /// Number, depth, tenant.
    groups: Vec<(u64, u32, TenantId)>,
    /// Address, tenant, number of the namespace.
    places: Vec<(IpAddr, TenantId, u32)>,
}

/// A generation.
struct Generation {
    number: u32,
    hits: u32,
    policy: Arc<Policy>,
    facts: Facts,
    plan: Plan,
    entries: Entries,
    /// Control groups and their descendants, for sockets that are open.
    members: HashMap<u64, TenantId>,
}

/// See the module.
pub struct Keeper {
    programs: Programs,
    maps: Maps,
    words: Arc<Words>,
    inbox: Arc<Mailbox<ToGate>>,
    conductor: Arc<Mailbox<ToConductor>>,
    root: PathBuf,
    spaces: Spaces,
    world: World,
    number: u32,
    in_force: Option<Generation>,
    /// Waits for the conductor's word; without one the policy binds nothing here.
    staged: Option<Option<Generation>>,
    /// Has to be staged anew when that has come.
    is_late: bool,
    sealed: Vec<Sealed>,
    retired: VecDeque<(Instant, Entries)>,
}

impl Gate {
    /// Loads the programs. The driver must not be confined yet.
    ///
    /// # Errors
    /// What the kernel lacks.
    pub fn open(
        admin_socket: &Path,
        clock: &dyn Clock,
        conductor: Arc<Mailbox<ToConductor>>,
    ) -> Result<(Self, Keeper), String> {
        let (programs, maps, words) = program::load(admin_socket)?;
        let now = clock_gettime(ClockId::Monotonic);
        let kernel_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        words.set_shift((EPOCH_NS + clock.now().as_nanos() as u64).wrapping_sub(kernel_ns));
        let words = Arc::new(words);
        let inbox = Mailbox::new().map_err(|errno| errno.to_string())?;
        let keeper = Keeper {
            programs,
            maps,
            words: Arc::clone(&words),
            inbox: Arc::clone(&inbox),
            conductor,
            root: hierarchy().unwrap_or_default(),
            spaces: Spaces::default(),
            world: World::default(),
            number: 0,
            in_force: None,
            staged: None,
            is_late: false,
            sealed: Vec::new(),
            retired: VecDeque::new(),
        };
        Ok((Self { words, inbox }, keeper))
    }

    /// Whether a policy is in force on the kernel.
    pub fn is_in_force(&self) -> bool {
        self.words.generation() != 0
    }
}

impl Keeper {
    /// Runs until the driver stops. A driver that stops in order takes its programs along.
    pub fn run(mut self, stop: &AtomicBool) {
        let (mut messages, mut look_at) = (VecDeque::new(), Instant::now() + LOOK);
        while !stop.load(Ordering::Acquire) {
            self.inbox.drain(&mut messages);
            messages.drain(..).for_each(|message| self.hear(message));
            let now = Instant::now();
            let mut changed = self.in_force.is_some() && self.spaces.refresh();
            if now >= look_at {
                look_at = now + LOOK;
                changed |= self.in_force.is_some();
                self.conductor.send(ToConductor::KernelCounted);
            }
            if changed {
                self.renew();
            }
            while self.retired.front().is_some_and(|(at, _)| now >= *at) {
                if let Some((_, entries)) = self.retired.pop_front() {
                    self.remove(&entries);
                }
            }
            self.sleep();
        }
        self.words.flip(0);
        self.programs.end();
    }

    fn sleep(&self) {
        self.inbox.set_asleep(true);
        if !self.inbox.is_filled() {
            let mut fds: Vec<_> = [PollFd::from_borrowed_fd(self.inbox.fd(), PollFlags::IN)]
                .into_iter()
                .chain(self.spaces.news())
                .collect();
            let nanos = STOP_POLL.as_nanos() as i64;
            let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: nanos }));
        }
        self.inbox.set_asleep(false);
        let mut count = [0; 8];
        let _ = rustix::io::read(self.inbox.fd(), &mut count);
    }

    fn hear(&mut self, message: ToGate) {
        match message {
            ToGate::Stage { policy, world } => {
                self.world = world;
                let staged = self.stage_policy(Arc::from(policy));
                self.conductor.send(ToConductor::Staged { staged });
            }
            ToGate::InForce(in_force) => self.settle(in_force),
            ToGate::Discard => {
                if let Some(Some(generation)) = self.staged.take() {
                    self.remove(&generation.entries);
                }
                self.catch_up();
            }
            ToGate::World(world, sealed) => {
                self.world = world;
                self.sealed.extend(sealed);
                self.renew();
            }
        }
    }

    /// Puts what the world is by now in force, if a policy is.
    fn renew(&mut self) {
        if self.staged.is_some() {
            self.is_late = true;
            return;
        }
        if let Some((policy, hits)) = self.in_force.as_ref().map(|old| (Arc::clone(&old.policy), old.hits)) {
            let facts = self.look();
            if self.in_force.as_ref().is_some_and(|old| old.facts != facts) {
                match self.stage(policy, facts, hits) {
                    Ok(generation) => {
                        self.words.flip(generation.number);
                        self.replace(Some(generation));
                        self.sweep(&HashSet::new());
                    }
                    Err(error) => {
                        tracing::error!("the policy on the kernel does not know a newcomer: {error}")
                    }
                }
            }
        }
        for Sealed { to, answer } in self.sealed.drain(..) {
            // Who asked may have gone.
            let _ = to.send(answer);
        }
    }

    /// After the conductor's word on what was staged.
    fn catch_up(&mut self) {
        if std::mem::take(&mut self.is_late) {
            self.renew();
        }
    }

    fn stage_policy(&mut self, policy: Arc<Policy>) -> Result<Staged, String> {
        if let Some(Some(generation)) = self.staged.take() {
            self.remove(&generation.entries);
        }
        if !binds(&policy) {
            self.staged = Some(None);
            return Ok(Staged { generation: 0, hits: 0 });
        }
        let facts = self.look();
        let hits = match &self.in_force {
            Some(old) if old.hits == 0 => RULES as u32,
            _ => 0,
        };
        (0..=policy.rules.len()).for_each(|rule| self.words.hits(hits, rule).store(0, Ordering::Relaxed));
        let generation = self.stage(policy, facts, hits)?;
        let staged = Staged { generation: generation.number, hits };
        // Attached before it is in force: programs without a generation let everything pass.
        if let Err(errno) = self.programs.attach(&self.words) {
            self.remove(&generation.entries);
            return Err(format!("attaching programs to {}: {errno}", self.root.display()));
        }
        self.staged = Some(Some(generation));
        Ok(staged)
    }

    fn settle(&mut self, InForce { cut, twins, reply }: InForce) {
        let Some(generation) = self.staged.take() else { return };
        let is_bound = generation.is_some();
        let is_news = is_bound || self.in_force.is_some();
        self.replace(generation);
        self.programs.succeed();
        if !is_bound {
            self.programs.detach();
        }
        let (cut_on_kernel, kept) = self.sweep(&twins);
        if !is_bound {
            // Nobody tells of namespaces that go.
            (self.world, self.spaces) = Default::default();
        }
        match reply {
            Some(reply) => {
                // Who asked may have gone.
                let _ = reply.send(Answer::Applied {
                    cut,
                    cut_on_kernel,
                    kept_on_kernel: kept,
                    not_on_kernel: None,
                });
            }
            None if is_news => tracing::info!(cut, cut_on_kernel, kept, "policy applied"),
            None => {}
        }
        self.catch_up();
    }

    fn replace(&mut self, generation: Option<Generation>) {
        if let Some(old) = std::mem::replace(&mut self.in_force, generation) {
            self.retired.push_back((Instant::now() + RETIRED, old.entries));
        }
    }

    /// What there is of all that the policy can name.
    fn look(&mut self) -> Facts {
        let mut facts = Facts::default();
        let mut found: Vec<(NamespaceId, Arc<OwnedFd>, TenantId, Vec<IpAddr>)> = Vec::new();
        for space in &self.world.spaces {
            let opened = match &space.whose {
                Whose::Known(id, file) => Some((*id, Arc::clone(file))),
                Whose::File(path) => spaces::open_file(path).ok(),
            };
            found.extend(opened.map(|(id, file)| (id, file, space.tenant, space.addresses.clone())));
        }
        for (path, tenant) in &self.world.groups {
            let depth = path.split('/').filter(|part| !part.is_empty()).count() as u32;
            if let Some(number) = spaces::group(&self.root, path).filter(|_| depth <= LEVELS_MAX) {
                facts.groups.push((number, depth, *tenant));
            }
            for (id, file) in spaces::below(&self.root, path).1 {
                if !found.iter().any(|(known, ..)| *known == id) {
                    found.push((id, file, *tenant, Vec::new()));
                }
            }
        }
        let known: HashSet<_> = found.iter().map(|(id, ..)| *id).collect();
        self.spaces.retain(&known);
        // Registered addresses first: they are nobody else's. Then the first namespace that holds one has it.
        let mut held = HashMap::new();
        for is_registered in [true, false] {
            for (id, file, tenant, registered) in &found {
                let seen = match self.spaces.enter(*id, file) {
                    Ok(seen) => seen,
                    Err(error) => {
                        tracing::warn!(%error, "a network namespace cannot be entered: the policy does not bind it on the kernel");
                        continue;
                    }
                };
                let addresses = if is_registered { registered } else { &seen.addresses };
                for ip in addresses {
                    held.entry(ip.to_canonical()).or_insert((*tenant, seen.number));
                }
                if is_registered {
                    facts.spaces.push((seen.cookie, seen.number, *tenant));
                }
            }
        }
        facts.places = held.into_iter().map(|(ip, (tenant, number))| (ip, tenant, number)).collect();
        facts.places.sort_unstable();
        facts.spaces.sort_unstable();
        facts.spaces.dedup_by_key(|(cookie, ..)| *cookie);
        facts
    }

    /// Adds the entries of a new generation, or none of them.
    fn stage(&mut self, policy: Arc<Policy>, facts: Facts, hits: u32) -> Result<Generation, String> {
        let spaces = facts.spaces.iter().map(|(.., tenant)| *tenant);
        let mut from: Vec<_> = spaces.chain(facts.groups.iter().map(|(.., tenant)| *tenant)).collect();
        from.sort_unstable();
        from.dedup();
        let places: Vec<_> = facts.places.iter().map(|(ip, tenant, _)| (*ip, *tenant)).collect();
        let plan = Plan::new(&policy, &self.world.tenants, &from, &places)?;
        // 0 is none.
        self.number = self.number.checked_add(1).unwrap_or(1).max(1);
        let mut generation = Generation {
            number: self.number,
            hits,
            policy,
            facts,
            plan,
            entries: Entries::default(),
            members: HashMap::new(),
        };
        if let Err(errno) = self.fill(&mut generation) {
            self.remove(&generation.entries);
            return Err(format!("the kernel takes no more entries: {errno}"));
        }
        let is_rated = |tenant: &crate::policy::Tenant| {
            tenant.limits.tenant.bytes.is_some() || tenant.limits.connection.bytes.is_some()
        };
        let of = OfGeneration {
            levels: generation.facts.groups.iter().fold(0, |all, (_, depth, _)| all | 1 << depth),
            otherwise: generation.plan.otherwise(),
            rated: generation.policy.tenants.iter().any(is_rated),
            hits,
        };
        self.words.set_generation(self.number, of);
        Ok(generation)
    }

    fn fill(&self, generation: &mut Generation) -> Result<(), Errno> {
        let Generation { number, facts, plan, entries, .. } = generation;
        let number = *number;
        let whom = |party: &Party, space: u32| Whom {
            tenant: u32::from(party.tenant.get()),
            class: party.class,
            space,
        };
        let spaces = facts.spaces.iter().map(|(id, space, tenant)| (*id, 0, *space, *tenant));
        let groups = facts.groups.iter().map(|(id, _, tenant)| (*id, 1, 0, *tenant));
        for (id, is_group, space, tenant) in spaces.chain(groups) {
            let key = SourceKey { id, generation: number, is_group };
            let Some(party) = plan.from.get(&tenant) else { continue };
            bpf::update(&self.maps.sources, &key, &whom(party, space))?;
            entries.sources.push(key);
        }
        // An address that is known takes the place of a network of one address.
        let nets = plan.networks.iter().map(|(net, party)| (net.addr(), net.prefix_len(), *party, 0));
        let places = facts.places.iter().filter_map(|(ip, _, space)| {
            let bits = if ip.is_ipv4() { 32 } else { 128 };
            Some((*ip, bits, *plan.places.get(ip)?, *space))
        });
        for (ip, bits, party, space) in nets.chain(places) {
            let (address, bits) = match ip {
                IpAddr::V4(v4) => (v4.to_ipv6_mapped(), u32::from(bits) + 96),
                IpAddr::V6(v6) => (v6, u32::from(bits)),
            };
            let key = PlaceKey { prefix: 32 + bits, generation: number, address: address.octets() };
            bpf::update(&self.maps.places, &key, &whom(&party, space))?;
            entries.places.push(key);
        }
        for (&(from, to, port, bits), verdict) in &plan.verdicts {
            let prefix = 96 + u32::from(bits);
            let key =
                PairKey { prefix, generation: number, from, to, port: port.to_be_bytes(), zero: [0; 2] };
            bpf::update(&self.maps.verdicts, &key, &verdict.0)?;
            entries.verdicts.push(key);
        }
        Ok(())
    }

    fn remove(&self, entries: &Entries) {
        // Where an entry was there twice, it has gone by now.
        for key in &entries.sources {
            let _ = bpf::delete(&self.maps.sources, key);
        }
        for key in &entries.places {
            let _ = bpf::delete(&self.maps.places, key);
        }
        for key in &entries.verdicts {
            let _ = bpf::delete(&self.maps.verdicts, key);
        }
    }

    /// Ends open connections that are denied. How many, without those of `twins`; and how many the kernel would not end.
    fn sweep(&mut self, twins: &HashSet<u32>) -> (u64, u64) {
        let Some(generation) = &mut self.in_force else { return (0, 0) };
        let policy = &generation.policy;
        if policy.default == Action::Allow && policy.rules.iter().all(|rule| rule.action == Action::Allow) {
            return (0, 0);
        }
        generation.members.clear();
        for (path, tenant) in &self.world.groups {
            for number in spaces::below(&self.root, path).0 {
                generation.members.insert(number, *tenant);
            }
        }
        let (mut ended, mut kept) = (0, 0);
        for (cookie, number, tenant) in &generation.facts.spaces {
            let Some(seen) = self.spaces.by_cookie(*cookie) else { continue };
            let (sockets, listened) = match sweep::sockets(&seen.diag) {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(%error, "cannot look for denied connections in a network namespace");
                    continue;
                }
            };
            for socket in sockets.iter().filter(|socket| socket.connects(&listened)) {
                let to = socket.peer.ip().to_canonical();
                let is_home = to.is_loopback()
                    || generation.facts.places.iter().any(|(ip, _, space)| *ip == to && space == number);
                let from = generation.members.get(&socket.group).unwrap_or(tenant);
                let verdict = generation.plan.decide(*from, to, socket.peer.port());
                if is_home || !verdict.is_some_and(|verdict| verdict.is_denied()) {
                    continue;
                }
                match sweep::destroy(&seen.diag, socket) {
                    Ok(()) => ended += u64::from(!twins.contains(&socket.inode)),
                    Err(Errno::NOENT) => {}
                    Err(errno) => {
                        tracing::warn!(%errno, peer = %socket.peer, "a denied connection on the kernel stays open");
                        kept += 1;
                    }
                }
            }
        }
        (ended, kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::network_namespace;
    use crate::SystemClock;
    use std::net::TcpStream;

    /// Nobody else connects there.
    const PLACE: &str = "127.0.0.77";

    fn errno(port: u16) -> i32 {
        TcpStream::connect((PLACE, port)).unwrap_err().raw_os_error().unwrap()
    }

    /// Takes the programs of whoever opened a gate there away.
    struct End(PathBuf);

    impl Drop for End {
        fn drop(&mut self) {
            if let Ok((_, mut keeper)) = Gate::open(&self.0, &SystemClock::default(), Mailbox::new().unwrap())
            {
                keeper.programs.end();
            }
        }
    }

    /// In this process's own network namespace, towards an address that a rule names.
    #[test]
    fn a_staged_policy_binds_when_it_is_in_force_and_a_dead_drivers_until_the_next() {
        assert!(rustix::process::geteuid().is_root(), "attaching programs needs root");
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let conductor = Mailbox::new().unwrap();
            let opened = Gate::open(&folder.path().join("admin.sock"), &SystemClock::default(), conductor);
            let (gate, keeper) = opened.unwrap_or_else(|why| panic!("{why}"));
            gate.words.tenant(TenantId::default()).set(None, &crate::policy::Limits::default());
            (gate, keeper)
        };
        // However the test ends, nothing stays attached.
        let _end = End(folder.path().join("admin.sock"));
        let (gate, mut keeper) = open();
        let (id, file) = network_namespace(rustix::process::getpid()).unwrap();
        let whose = Whose::Known(id, Arc::new(file));
        let tenant = TenantId::default();
        keeper.world = World {
            tenants: vec!["default".to_owned()],
            spaces: vec![Space { whose, tenant, addresses: Vec::new() }],
            groups: Vec::new(),
        };
        let rules = |port: u16| {
            let text = format!("[[rule]]\naddress = \"{PLACE}\"\nport = {port}\naction = \"deny\"\n");
            Arc::new(Policy::parse(&text).unwrap())
        };
        let in_force = || InForce { cut: 0, twins: HashSet::new(), reply: None };
        let staged = keeper.stage_policy(rules(1)).unwrap();
        assert_eq!(errno(1), libc::ECONNREFUSED, "staged only");
        gate.words.flip(staged.generation);
        keeper.settle(in_force());
        assert_eq!((errno(1), errno(2)), (libc::EACCES, libc::ECONNREFUSED));
        assert_eq!([0, 1].map(|rule| gate.words.hits(staged.hits, rule).load(Ordering::Relaxed)), [1, 1]);
        assert_eq!(gate.words.tenant(tenant).denied.load(Ordering::Relaxed), 1);
        // What was staged and is not wanted leaves no trace.
        keeper.stage_policy(rules(2)).unwrap();
        keeper.hear(ToGate::Discard);
        assert_eq!((errno(1), errno(2)), (libc::EACCES, libc::ECONNREFUSED));
        // The driver dies.
        drop((gate, keeper));
        assert_eq!((errno(1), errno(2)), (libc::EACCES, libc::ECONNREFUSED));
        let (gate, mut keeper) = open();
        assert_eq!(errno(1), libc::EACCES, "until the next one has a word");
        let staged = keeper.stage_policy(Arc::new(Policy::default())).unwrap();
        gate.words.flip(staged.generation);
        keeper.settle(in_force());
        assert_eq!(errno(1), libc::ECONNREFUSED);
        keeper.programs.end();
        assert!(!folder.path().join("admin.gate").exists());
    }
}
