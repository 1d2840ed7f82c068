//! The thread that keeps the kernel's half of the policy: see the parent module.
use super::generation::Generation;
use super::health::Health;
use super::known::{Change, Whose};
use super::lasting::Lasting;
use super::outcome::Outcome;
use super::plan::{binds, Verdict};
use super::program::{self, Loaded, Maps, Programs};
use super::scene::{Changes, Scene, World};
use super::services::Choice;
use super::sidecars;
use super::spaces::{self, Spaces};
use super::sweep;
use super::words::{OfGeneration, Staged, Words, ORIGINS, RATED, RULES, VIAS};
use crate::admin::Answer;
use crate::bpf;
use crate::clock::Clock;
use crate::ids::TenantId;
use crate::mailbox::Mailbox;
use crate::messages::ToConductor;
use crate::mounts::unified_hierarchy;
use crate::policy::rate::EPOCH_NS;
use crate::policy::{Action, Policy, DEFAULT_TENANT};
use crate::probe::Prober;
use crate::service::Chosen;
use crate::service::Slots;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::time::{clock_gettime, ClockId, Timespec};
use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval of looks for control groups and namespaces that the policy names and that did not exist.
const LOOK: Duration = Duration::from_secs(1);
/// Longest sleep, and so the latest time at which a stop is noticed.
const STOP_POLL: Duration = Duration::from_millis(200);
/// Time for which entries stay after no connect finds them: a program that has begun may still read them.
const RETIRED: Duration = Duration::from_millis(100);
/// Pause after work on the whole, as a multiple of the time that it took.
const PAUSE_FACTOR: u32 = 9;

/// An answer that waits until the kernel's half is in force.
#[derive(Debug)]
pub struct Sealed {
    pub to: Sender<Answer>,
    pub answer: Answer,
}

/// A policy that is now in force on the fabric.
#[derive(Debug)]
pub struct InForce {
    /// Kernel sockets whose bytes went by the fabric, which counts them.
    pub twins: HashSet<u32>,
    /// Gets the number of connections that it ends on the kernel.
    pub outcome: Arc<Outcome>,
}

/// Messages of the conductor to the keeper.
#[derive(Debug)]
pub enum ToGate {
    /// A policy to stage. Answered by [`ToConductor::Staged`]. `goes_on`: index of the hit counters with which another driver has it in
    /// force.
    Stage { policy: Box<Policy>, world: World, goes_on: Option<u32> },
    /// The staged policy is in force.
    InForce(InForce),
    /// The staged policy is discarded.
    Discard,
    /// Changes of namespaces or control groups, by the policy in force.
    Changed(Changes, Option<Sealed>),
    /// New tenants, which get the next numbers.
    Enrolled(Vec<String>),
}

/// The conductor's end.
#[derive(Debug)]
pub struct Gate {
    /// Words shared with the kernel's programs: counts and limits.
    pub words: Arc<Words>,
    /// Counts of services by the kernel and the driver, and the state of their backends.
    pub slots: Arc<Slots>,
    inbox: Arc<Mailbox<ToGate>>,
    /// Numbers of messages sent to the keeper, and carried out by it.
    sent: Cell<u64>,
    applied: Arc<AtomicU64>,
    /// Maps that go to the next driver.
    pub lasting: Lasting,
    /// Set if the maps are those of the driver whose place is taken.
    is_heir: bool,
    /// Backends that the conductor has chosen for sockets of the kernel.
    choices: Arc<OwnedFd>,
}

/// A policy on the kernel.
struct Kept {
    scene: Scene,
    generation: Generation,
    is_rated: bool,
    levels: u32,
}

/// Work on the whole that changes have made necessary, and that waits for its turn.
#[derive(Clone, Copy, Debug, Default)]
struct Due {
    /// Sweep of open connections that may be denied now.
    sweep: bool,
    /// New generation: entries are missing, or notes that programs keep with sockets are out of date.
    anew: bool,
}

/// See the module.
pub struct Keeper {
    programs: Programs,
    maps: Maps,
    words: Arc<Words>,
    slots: Arc<Slots>,
    inbox: Arc<Mailbox<ToGate>>,
    applied: Arc<AtomicU64>,
    conductor: Arc<Mailbox<ToConductor>>,
    root: PathBuf,
    spaces: Spaces,
    /// Names of tenants, by number.
    names: Vec<String>,
    number: u32,
    in_force: Option<Kept>,
    /// Staged policy, until the conductor's word. `Some(None)`: the policy binds nothing here.
    staged: Option<Option<Kept>>,
    sealed: Vec<Sealed>,
    retired: VecDeque<(Instant, Generation)>,
    due: Due,
    /// End of the pause after work on the whole.
    rests_until: Instant,
    health: Health,
    /// Time of the next look at the listeners of proxies.
    proxies_at: Instant,
}

impl Gate {
    /// Loads the programs, and starts the process that probes backends. The driver must not be confined yet. `given`: maps of the driver
    /// whose place is taken.
    ///
    /// # Errors
    /// A sentence on what the kernel lacks.
    pub fn open(
        admin_socket: &Path,
        clock: &dyn Clock,
        conductor: Arc<Mailbox<ToConductor>>,
        prober: Option<&Path>,
        given: Option<Lasting>,
    ) -> Result<(Self, Keeper), String> {
        let is_heir = given.is_some();
        let Loaded { programs, maps, lasting, words, slots } = program::load(admin_socket, given)?;
        let now = clock_gettime(ClockId::Monotonic);
        let kernel_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        words.set_shift((EPOCH_NS + clock.now().as_nanos() as u64).wrapping_sub(kernel_ns));
        let (words, choices) = (Arc::new(words), Arc::clone(&maps.choices));
        let (inbox, applied) = (Mailbox::new().map_err(|errno| errno.to_string())?, Arc::default());
        let prober = prober.and_then(|program| {
            let started = Prober::start(program);
            started.inspect_err(|error| tracing::warn!(%error, "backends cannot be probed")).ok()
        });
        let keeper = Keeper {
            programs,
            maps,
            words: Arc::clone(&words),
            slots: Arc::clone(&slots),
            inbox: Arc::clone(&inbox),
            applied: Arc::clone(&applied),
            conductor,
            root: unified_hierarchy().unwrap_or_default(),
            spaces: Spaces::default(),
            names: Vec::new(),
            // Sockets keep notes of a generation: no driver uses the numbers of one before it.
            number: (kernel_ns / 1_000_000) as u32,
            in_force: None,
            staged: None,
            sealed: Vec::new(),
            retired: VecDeque::new(),
            due: Due::default(),
            rests_until: Instant::now(),
            health: Health::new(prober),
            proxies_at: Instant::now(),
        };
        let sent = Cell::new(0);
        Ok((Self { words, slots, inbox, sent, applied, lasting, is_heir, choices }, keeper))
    }

    /// Sends the keeper a message.
    pub fn send(&self, message: ToGate) {
        self.sent.set(self.sent.get() + 1);
        self.inbox.send(message);
    }

    /// Tells whether the keeper has carried out all messages.
    pub fn is_settled(&self) -> bool {
        self.applied.load(Ordering::Acquire) == self.sent.get()
    }

    /// Tells whether the maps are those of the driver whose place is taken.
    pub fn is_heir(&self) -> bool {
        self.is_heir
    }

    /// Goes on from an epoch of the driver whose place is taken. To be called before a policy is staged.
    pub fn resume_epoch(&self, epoch: u32) {
        self.words.resume_epoch(epoch);
    }

    /// Goes on with the words of the driver whose place is taken, if the maps are its. That one writes none any more.
    pub fn join(&self) {
        if self.is_heir {
            self.words.join();
            self.slots.join();
        }
    }

    /// Tells whether a policy is in force on the kernel.
    pub fn is_in_force(&self) -> bool {
        self.words.generation() != 0
    }

    /// Has the kernel connect the socket with this cookie to the chosen backend. On failure the kernel chooses.
    pub fn choose(&self, cookie: u64, chosen: &Chosen) {
        let (service, backend) = (chosen.service as u16, chosen.backend as u16);
        let choice = Choice { generation: self.words.generation(), service, backend };
        if let Err(errno) = bpf::update(&self.choices, &cookie, &choice) {
            tracing::debug!(%errno, "the kernel does not take a choice");
        }
    }
}

impl Keeper {
    /// Runs until the driver stops. A driver that stops in order removes its programs. After a take-over the successor removes them, once
    /// its own are in force.
    pub fn run(mut self, stop: &AtomicBool, handed_over: &AtomicBool) {
        let (mut messages, mut look_at) = (VecDeque::new(), Instant::now() + LOOK);
        while !stop.load(Ordering::Acquire) {
            self.inbox.drain(&mut messages);
            for message in messages.drain(..) {
                self.apply(message);
                self.applied.fetch_add(1, Ordering::Release);
            }
            let now = Instant::now();
            for id in self.spaces.refresh(now) {
                self.change_all(|scene, spaces| scene.refresh(id, spaces));
            }
            if now >= look_at {
                self.look();
                // Tenants choose how many groups and threads there are.
                look_at = now + LOOK.max((1 + PAUSE_FACTOR) * now.elapsed());
                self.conductor.send(ToConductor::KernelCounted);
            }
            self.health.take_replies(&self.slots);
            self.look_at_backends(now);
            while self.retired.front().is_some_and(|(at, _)| now >= *at) {
                if let Some((_, mut generation)) = self.retired.pop_front() {
                    generation.clear();
                }
            }
            self.sleep();
        }
        if handed_over.load(Ordering::Acquire) {
            return;
        }
        self.words.flip(0);
        self.programs.end();
    }

    fn sleep(&self) {
        let now = Instant::now();
        let until = self.spaces.wake_by(now).map_or(STOP_POLL, |at| at.saturating_duration_since(now));
        let mut timeout = self.health.wait(now, until.min(STOP_POLL));
        if self.in_force.as_ref().is_some_and(|kept| leads(kept.generation.policy())) {
            timeout = timeout.min(self.proxies_at.saturating_duration_since(now));
        }
        self.inbox.set_asleep(true);
        if !self.inbox.is_filled() {
            let inbox = PollFd::from_borrowed_fd(self.inbox.fd(), PollFlags::IN);
            let replies = self.health.replies().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let mut fds: Vec<_> = [inbox].into_iter().chain(self.spaces.news(now)).chain(replies).collect();
            // Rounded up, so that the thread does not wake too early.
            let nanos = (timeout + Duration::from_micros(1)).as_nanos() as i64;
            let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: nanos }));
        }
        self.inbox.set_asleep(false);
        let mut count = [0; 8];
        let _ = rustix::io::read(self.inbox.fd(), &mut count);
    }

    fn apply(&mut self, message: ToGate) {
        match message {
            ToGate::Enrolled(names) => self.names.extend(names),
            ToGate::Stage { policy, world, goes_on } => {
                let staged = self.stage_policy(Arc::from(policy), world, goes_on);
                self.conductor.send(ToConductor::Staged { staged });
            }
            ToGate::InForce(in_force) => self.settle(in_force),
            ToGate::Discard => {
                if let Some(Some(mut kept)) = self.staged.take() {
                    kept.generation.clear();
                }
                self.unseal();
            }
            ToGate::Changed(told, sealed) => {
                if let Some(mut kept) = self.in_force.take() {
                    let changes = kept.scene.tell(&told, &self.root, &mut self.spaces);
                    self.change(&mut kept, &changes);
                    self.in_force = Some(kept);
                }
                for (id, _) in told.spaces.iter().filter(|(_, space)| space.is_none()) {
                    if !self.kept().any(|kept| kept.scene.has(*id)) {
                        self.spaces.forget(*id);
                    }
                }
                self.sealed.extend(sealed);
                // Answers wait for the staged policy to be in force.
                if self.staged.is_none() {
                    self.unseal();
                }
            }
        }
    }

    fn kept(&self) -> impl Iterator<Item = &Kept> {
        self.in_force.iter().chain(self.staged.iter().flatten())
    }

    fn unseal(&mut self) {
        for Sealed { to, answer } in self.sealed.drain(..) {
            // The asker may be gone.
            let _ = to.send(answer);
        }
    }

    /// Applies a change to each policy that is kept.
    fn change_all(&mut self, mut change: impl FnMut(&mut Scene, &mut Spaces) -> Vec<Change>) {
        let (mut in_force, mut staged) = (self.in_force.take(), self.staged.take());
        for kept in in_force.iter_mut().chain(staged.iter_mut().flatten()) {
            let changes = change(&mut kept.scene, &mut self.spaces);
            self.change(kept, &changes);
        }
        (self.in_force, self.staged) = (in_force, staged);
    }

    /// Adds and removes the entries that changes concern.
    fn change(&mut self, kept: &mut Kept, changes: &[Change]) {
        if changes.is_empty() {
            return;
        }
        let was_short = kept.generation.is_short();
        let levels = kept.scene.known().levels();
        if kept.levels != levels {
            kept.levels = levels;
            self.words.set_generation(kept.generation.number(), kept.words());
        }
        if let (Err(why), false) = (kept.generation.put(changes, &self.names), was_short) {
            tracing::error!("the policy on the kernel does not know a newcomer: {why}");
        }
        self.due.sweep = true;
        // Programs note with a socket whose it is, and look again in another generation.
        let is_noted = changes.iter().any(|change| matches!(change, Change::Place { .. }));
        self.due.anew |= kept.generation.is_short() || kept.is_rated && is_noted;
    }

    /// Looks for unreported changes, and does the work that is due.
    fn look(&mut self) {
        let root = self.root.clone();
        self.change_all(|scene, spaces| scene.look(&root, spaces));
        let mut spaces = std::mem::take(&mut self.spaces);
        spaces.retain(|id| self.kept().any(|kept| kept.scene.has(id)));
        self.spaces = spaces;
        let begun = Instant::now();
        if begun < self.rests_until || self.staged.is_some() {
            return;
        }
        let Due { sweep, anew } = std::mem::take(&mut self.due);
        if anew {
            self.renew();
        }
        if sweep {
            self.sweep(&HashSet::new());
        }
        self.rests_until = begun + begun.elapsed() * (1 + PAUSE_FACTOR);
    }

    /// Puts the policy in force anew, in a generation of its own.
    fn renew(&mut self) {
        let Some(Kept { scene, generation: old, is_rated, levels }) = self.in_force.take() else { return };
        let (policy, hits) = (Arc::clone(old.policy()), old.hits());
        let generation = match self.fill(policy, &scene, hits, Some(old.number())) {
            Ok(new) => {
                let kept = Kept { scene, generation: new, is_rated, levels };
                self.words.set_generation(kept.generation.number(), kept.words());
                self.words.flip(kept.generation.number());
                self.retired.push_back((Instant::now() + RETIRED, old));
                self.in_force = Some(kept);
                return;
            }
            Err(why) => {
                tracing::error!("the policy on the kernel does not know a newcomer: {why}");
                old
            }
        };
        self.due.anew = true;
        self.in_force = Some(Kept { scene, generation, is_rated, levels });
    }

    /// Fills a new generation with all entries, or with none. `beside`: the generation in force.
    fn fill(
        &mut self,
        policy: Arc<Policy>,
        scene: &Scene,
        hits: u32,
        beside: Option<u32>,
    ) -> Result<Generation, String> {
        self.number = following(self.number, beside);
        let names = Arc::clone(scene.maps());
        let mut generation = Generation::new(self.number, policy, names, hits, Some(&self.maps))?;
        if let Err(why) = generation.put(&scene.known().all(), &self.names) {
            generation.clear();
            return Err(why);
        }
        Ok(generation)
    }

    fn stage_policy(
        &mut self,
        policy: Arc<Policy>,
        world: World,
        goes_on: Option<u32>,
    ) -> Result<Staged, String> {
        if let Some(Some(mut kept)) = self.staged.take() {
            kept.generation.clear();
        }
        if !binds(&policy) {
            self.staged = Some(None);
            return Ok(Staged { generation: 0, hits: 0 });
        }
        let mut scene = Scene::new(world);
        scene.look(&self.root, &mut self.spaces);
        let hits = goes_on.unwrap_or(match &self.in_force {
            Some(old) if old.generation.hits() == 0 => RULES as u32,
            _ => 0,
        });
        if goes_on.is_none() {
            (0..=policy.rules.len()).for_each(|rule| self.words.hits(hits, rule).store(0, Ordering::Relaxed));
        }
        let is_rated = policy
            .tenants
            .iter()
            .any(|tenant| tenant.limits.tenant.bytes.is_some() || tenant.limits.connection.bytes.is_some());
        let beside = self.in_force.as_ref().map(|kept| kept.generation.number());
        let generation = self.fill(policy, &scene, hits, beside)?;
        let levels = scene.known().levels();
        let mut kept = Kept { scene, generation, is_rated, levels };
        self.words.set_generation(kept.generation.number(), kept.words());
        let staged = Staged { generation: kept.generation.number(), hits };
        // Attached before it is in force: programs without a generation let everything pass.
        let answers = has_origins(kept.generation.policy());
        if goes_on.is_none() && !self.programs.are_attached() {
            self.words.begin_epoch();
            self.slots.begin_epoch();
        }
        if let Err(errno) = self.programs.attach(answers) {
            kept.generation.clear();
            return Err(format!("attaching programs to {}: {errno}", self.root.display()));
        }
        self.staged = Some(Some(kept));
        Ok(staged)
    }

    fn settle(&mut self, InForce { twins, outcome }: InForce) {
        let Some(kept) = self.staged.take() else { return };
        let is_bound = kept.is_some();
        let is_news = is_bound || self.in_force.is_some();
        if let Some(old) = std::mem::replace(&mut self.in_force, kept) {
            self.retired.push_back((Instant::now() + RETIRED, old.generation));
        }
        let services = self.in_force.as_ref().map_or(&[][..], |kept| &kept.generation.policy().services);
        self.health.watch(services, &self.slots);
        self.proxies_at = Instant::now();
        self.look_at_backends(Instant::now());
        self.programs.succeed(is_bound);
        if !self.in_force.as_ref().is_some_and(|kept| has_origins(kept.generation.policy())) {
            self.programs.fall_silent();
        }
        if !is_bound {
            self.programs.detach();
        }
        let (cut_on_kernel, kept) = self.sweep(&twins);
        self.due = Due::default();
        if !is_bound {
            // Namespaces that go are not reported.
            self.spaces = Spaces::default();
            self.unseal();
        }
        outcome.add_on_kernel(cut_on_kernel, kept);
        if !is_news {
            outcome.silence();
        }
    }

    /// Looks at the backends of services that are due, and at proxies.
    fn look_at_backends(&mut self, now: Instant) {
        let Some(Kept { scene, generation, .. }) = &self.in_force else { return };
        if leads(generation.policy()) && now >= self.proxies_at {
            self.proxies_at = now + sidecars::LOOK;
            generation.sidecars().look(generation.policy(), &self.spaces);
        }
        self.health.look(now, |ip| scene.known().owners(ip), &self.spaces, &self.slots);
    }

    /// Ends open connections that are denied. Returns the number ended, without those of `twins`, and the number that the kernel
    /// would not end.
    fn sweep(&mut self, twins: &HashSet<u32>) -> (u64, u64) {
        let Some(Kept { scene, generation, .. }) = &self.in_force else { return (0, 0) };
        let policy = generation.policy();
        let allows = policy.rules.iter().all(|rule| rule.action == Action::Allow);
        if policy.default == Action::Allow && allows && !leads(policy) && scene.maps().is_empty() {
            return (0, 0);
        }
        let (mut ended, mut kept, mut found) = (0, 0, Vec::new());
        for (cookie, whose) in scene.known().spaces() {
            let Some(seen) = self.spaces.by_cookie(cookie) else { continue };
            match sweep::sockets(&seen.diag) {
                Ok((sockets, listened)) => found.push((seen, whose, sockets, listened)),
                Err(error) => {
                    tracing::warn!(%error, "cannot look for denied connections in a network namespace");
                }
            }
        }
        // Read after the sockets, so that the group of a socket that has come since is not taken for one that is gone.
        let named = scene.known().groups();
        let groups = if named.is_empty() { HashMap::new() } else { spaces::groups(&self.root, &named) };
        for (seen, Whose { tenant, space: number, network }, sockets, listened) in &found {
            let (number, network) = (*number, *network);
            for socket in sockets.iter().filter(|socket| socket.connects(listened)) {
                let to = socket.peer.ip().to_canonical();
                let is_home = to.is_loopback()
                    || scene.known().owner(network, to).is_some_and(|(_, space)| space == number);
                let (port, sidecars) = (socket.peer.port(), generation.sidecars());
                // The address now means one of another network.
                let is_far = scene.maps().real(network, to).is_some();
                let has_to_end = |from: TenantId| {
                    let verdict = generation.plan().decide(from, network, to, port);
                    let Some(verdict) = verdict.or(is_far.then_some(Verdict::DENIED)) else { return false };
                    let may_stay = || match verdict.is_denied() {
                        _ if is_far => false,
                        true => sidecars.rules_at(policy, number).iter().any(|&rule| {
                            // The connection is one of the rule's proxies'.
                            (rule as usize) < verdict.rule() && policy.rules[rule as usize].names(to, port)
                        }),
                        false => !sidecars.has_to_be_led(policy, verdict.rule(), number),
                    };
                    let tenant = self.names.get(from.index()).map_or(DEFAULT_TENANT, |name| name);
                    !is_home && !may_stay() && !sidecars.is_leg(policy, tenant, number, to, port)
                };
                let is_over = match groups.get(&socket.group) {
                    Some(Some(member)) => has_to_end(*member),
                    // A process can leave the group in which it made the socket, and remove it: then it may have been anyone's.
                    None if socket.group != 0 && named.values().any(|&member| has_to_end(member)) => true,
                    _ => has_to_end(*tenant),
                };
                if !is_over {
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

impl Kept {
    /// Returns the facts of the generation that programs need beside its entries.
    fn words(&self) -> OfGeneration {
        let otherwise = self.generation.plan().otherwise();
        let policy = self.generation.policy();
        let flags = [(self.is_rated, RATED), (leads(policy), VIAS), (has_origins(policy), ORIGINS)];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
        OfGeneration { levels: self.levels, otherwise, flags, hits: self.generation.hits() }
    }
}

/// Tells whether some rule leads through proxies.
fn leads(policy: &Policy) -> bool {
    policy.chains().next().is_some()
}

/// Tells whether connections may lead elsewhere than was asked, so that the accepting side may ask for the original address.
fn has_origins(policy: &Policy) -> bool {
    leads(policy) || !policy.services.is_empty()
}

/// Returns the number of the next generation, never 0. Programs keep separate words for even and odd generations. Its parity
/// therefore differs from that of `beside`.
fn following(mut number: u32, beside: Option<u32>) -> u32 {
    loop {
        number = number.checked_add(1).unwrap_or(1);
        if beside.is_none_or(|beside| beside % 2 != number % 2) {
            return number;
        }
    }
}

#[cfg(test)]
mod tests;
