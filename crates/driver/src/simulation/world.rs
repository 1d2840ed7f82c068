//! A run: a driver, clients, time, and events, each step drawn from the seed.
mod draw;
mod weather;

use super::agents::{Agent, Failed, Running};
use super::book::Book;
use super::honest::{Honest, Thread};
use super::hostile::Hostile;
use super::kernel::{self, Kernel, Person};
use super::random::{mix, Random};
use super::Mutation;
use crate::clock::Clock;
use crate::identity::NamespaceId;
use crate::ids::TenantId;
use crate::memory::{HugepageUse, Resource, Shelves};
use crate::messages::Payer;
use crate::policy::{Path, Policy, Rate};
use crate::settings::Settings;
use draw::{draw_engine, draw_kernel, draw_settings, Clients, Subject};
use pd_engine::Engine;
use rustix::event::{eventfd, EventfdFlags};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Steps in which all streams of honest clients have to end.
const FINAL_STEPS: u64 = 1_500_000;
/// Simulated time in which all streams of honest clients have to end.
const FINAL_TIME: Duration = Duration::from_secs(300);
/// Further steps of a run about rates.
const RATED_STEPS: u64 = 2000;
/// Steps after a new policy until all movers know its rates.
const RATES_STEPS: u64 = 500;
/// Steps after a new policy while tenants' holdings may still change.
const POLICY_STEPS: u64 = 2000;

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Hash of all that happened.
    pub trace: u64,
    /// Turns of agents and clients, and times without one.
    pub steps: u64,
    /// Bytes that honest clients received.
    pub arrived: u64,
    /// Streams that ended in order.
    pub finished: u64,
    /// Calls of the kernel that failed.
    pub failed: u64,
    /// Drivers that took another one's place.
    pub taken_over: u64,
}

#[derive(Default)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Frequencies of events.
#[derive(Debug)]
struct Weather {
    /// Events in a million steps.
    deaths: u64,
    policies: u64,
    restarts: u64,
    slow: u64,
    faults: u64,
    moves: u64,
    stops: u64,
    shrinks: u64,
    take_overs: u64,
}

#[derive(Clone, Copy, Debug)]
enum Task {
    Agent(Agent),
    Honest(usize),
    Hostile(usize),
}

/// See the module.
pub struct World {
    random: Random,
    /// Draws take-overs, so that seeds mean what they meant before there were any.
    successions: Random,
    taken_over: u64,
    clock: Arc<HandClock>,
    settings: Settings,
    engine: Box<dyn Engine>,
    is_safe: bool,
    driver: Option<Running>,
    honest: Vec<Honest>,
    hostile: Vec<Hostile>,
    pub book: Book,
    weather: Weather,
    trace: u64,
    steps: u64,
    /// Connections made so far.
    numbers: u64,
    pids: u32,
    ends: bool,
    policy_step: u64,
    held: BTreeMap<(Payer, u8), u64>,
    /// Set if the engine has nothing under way between two steps.
    copies_at_once: bool,
    is_about_rates: bool,
    /// Of tenants with a rate: the rate, the begin of the observation, and the bytes sent before it.
    spending: BTreeMap<TenantId, (Rate, Duration, u64)>,
    tasks: Vec<Task>,
    threads: Vec<Thread>,
    /// A deliberate fault, made once after this step.
    mutation: Option<(Mutation, u64)>,
}

fn person(pid: u32, random: &mut Random) -> Person {
    let home = random.between(1, 3);
    let cgroup = random.pick(&[None, Some("/red/one"), Some("/blue")]).map(str::to_owned);
    let life = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"));
    let namespace = NamespaceId::for_test(home);
    let uid = 1000 + random.below(3) as u32;
    Person { pid, uid, namespace, address: [10, 0, 0, home as u8], cgroup, life }
}

/// Returns the places of memory that another driver can take over, if there are to be take-overs.
fn shelves(take_overs: u64) -> Shelves {
    match take_overs {
        0 => Shelves::default(),
        _ => Shelves::open(HugepageUse::Off),
    }
}

impl World {
    pub fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        Self::make(seed, mutation, None)
    }

    /// Makes a world in which drivers are taken over so often in a million steps.
    pub fn with_take_overs(seed: u64, take_overs: u64) -> Self {
        Self::make(seed, None, Some(take_overs))
    }

    fn make(seed: u64, mutation: Option<Mutation>, take_overs: Option<u64>) -> Self {
        let mut random = Random::new(mix(seed));
        kernel::install(Some(draw_kernel(&mut random)));
        let settings = draw_settings(&mut random);
        let is_about_rates =
            mutation == Some(Mutation::RateForgotten) || mutation.is_none() && random.chance(100);
        let path = match (is_about_rates, mutation) {
            (true, _) => Path::Offloaded,
            (_, Some(Mutation::LastUnsaid | Mutation::ClaimIgnored | Mutation::EndsUnfixed)) => Path::Direct,
            (_, Some(Mutation::ReceivedUnfixed)) => Path::Offloaded,
            _ => settings.path,
        };
        let settings = Settings { path, ..settings };
        let engine = draw_engine(&mut random, is_about_rates);
        let copies_at_once = engine == "cpu";
        let engine: Box<dyn Engine> = Box::new(pd_engine::by_name(&engine).expect("an engine"));
        let clock = Arc::new(HandClock::default());
        clock.0.store(1_000_000_000, Ordering::Relaxed);
        let is_safe = random.chance(700);
        let as_clock: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let mut successions = Random::new(mix(seed ^ 0x7a6e_0f5e_ed00));
        let drawn = match is_about_rates || mutation.is_some() {
            true => 0,
            false => successions.pick(&[0, 0, 0, 1000, 5000]),
        };
        let take_overs = take_overs.unwrap_or(drawn);
        let driver = Running::start(&settings, as_clock, &*engine, is_safe, shelves(take_overs));
        let subject = Subject::draw(&mut random, seed, mutation, is_about_rates);
        kernel::sockets(|all| all.unlocked = subject.is_unlocked);
        let Clients { honest, hostile, people, pids } = subject.draw_clients(&mut random, &settings);
        let leaves_rings = mutation == Some(Mutation::LastUnsaid);
        let mutation = mutation.map(|mutation| (mutation, random.between(200, 2000)));
        let mut weather = Weather::draw(&mut random, take_overs);
        if leaves_rings {
            weather.policies = 2000;
        }
        if is_about_rates {
            (weather.deaths, weather.policies, weather.restarts) = (0, 0, 0);
        }
        Self {
            random,
            successions,
            taken_over: 0,
            clock,
            settings,
            engine,
            is_safe,
            driver: Some(driver),
            honest,
            hostile,
            book: Book { hangs_up: weather.faults > 0 || weather.restarts > 0, people, ..Book::default() },
            weather,
            trace: seed,
            steps: 0,
            numbers: 0,
            pids,
            ends: false,
            policy_step: 0,
            held: BTreeMap::new(),
            copies_at_once,
            is_about_rates,
            spending: BTreeMap::new(),
            tasks: Vec::new(),
            threads: Vec::new(),
            mutation,
        }
    }

    /// Runs all steps.
    pub fn run(&mut self) -> Outcome {
        self.pour_faults();
        if self.is_about_rates {
            self.set_rates();
        }
        let steps = self.random.between(200, 4000) + if self.is_about_rates { RATED_STEPS } else { 0 };
        for _ in 0..steps {
            self.step();
        }
        self.finish();
        if self.book.is_talking {
            eprintln!("{:?}", self.driver().parts.counters.total());
        }
        Outcome {
            trace: self.trace,
            steps: self.steps,
            arrived: self.book.arrived,
            finished: self.book.finished,
            failed: kernel::with(|kernel| kernel.failed).unwrap_or(0),
            taken_over: self.taken_over,
        }
    }

    /// Runs some steps.
    pub fn advance(&mut self, steps: u64) {
        self.pour_faults();
        (0..steps).for_each(|_| self.step());
    }

    /// Gives the state of the driver, which `shake` may change, to another one. Returns whether that one goes on with it; `None` if something
    /// hinders a take-over.
    pub fn give_to_another(
        &mut self,
        shake: impl FnOnce(&mut Vec<u8>, &mut Vec<std::os::fd::OwnedFd>),
    ) -> Option<bool> {
        match self.try_succeed(shake) {
            Ok(()) => Some(true),
            Err(Failed::Refused(_)) => Some(false),
            Err(Failed::Hindered(_)) => None,
        }
    }

    /// Returns the driver's conductor.
    #[cfg(test)]
    pub fn conductor(&mut self) -> &mut crate::conductor::Conductor {
        self.driver().conductor()
    }

    /// Gives the driver's agents some turns, and no client.
    pub fn agents_go_on(&mut self, turns: usize) {
        for _ in 0..turns {
            let driver = self.driver.as_mut().expect("a driver");
            let agents = driver.agents();
            match agents.into_iter().find(|agent| driver.can_go_on(*agent) && self.random.chance(600)) {
                Some(agent) => drop(driver.step(agent)),
                None => self.pass(Duration::from_millis(1)),
            }
            let (held, total) = self.driver().conductor().held();
            for resource in Resource::ALL {
                assert!(held.of_pool(resource) <= total.of_pool(resource), "{resource:?}");
            }
        }
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn note(&mut self, what: u64) {
        self.trace = mix(self.trace ^ what).wrapping_add(self.steps);
    }

    fn pass(&mut self, time: Duration) {
        self.clock.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn driver(&mut self) -> &mut Running {
        self.driver.as_mut().expect("a driver")
    }

    /// Runs one step of an agent or client that can go on, or lets time pass.
    fn step(&mut self) {
        self.steps += 1;
        if !self.ends {
            self.befall();
        }
        let now = self.now();
        self.honest.iter_mut().for_each(|honest| honest.go_on(now));
        if self.random.chance(200) {
            let micros = self.random.pick(&[1, 10, 100, 1000]);
            self.pass(Duration::from_micros(micros));
        }
        self.list_tasks();
        // Most of them can: a few tries are quicker than asking all.
        let count = self.tasks.len() as u64;
        for _ in 0..4 {
            let task = self.tasks[self.random.below(count) as usize];
            if self.try_task(task) {
                return self.check();
            }
        }
        let first = self.random.below(count) as usize;
        for at in 0..self.tasks.len() {
            let task = self.tasks[(first + at) % self.tasks.len()];
            if self.try_task(task) {
                return self.check();
            }
        }
        self.rest();
    }

    fn list_tasks(&mut self) {
        let mut tasks = std::mem::take(&mut self.tasks);
        tasks.clear();
        let agents = self.driver().agents();
        tasks.extend(agents.into_iter().map(Task::Agent));
        tasks.extend((0..self.honest.len()).map(Task::Honest));
        tasks.extend((0..self.hostile.len()).map(Task::Hostile));
        self.tasks = tasks;
    }

    /// Runs a task, if it can go on. Returns whether it could.
    fn try_task(&mut self, task: Task) -> bool {
        let now = self.now();
        self.numbers += 1;
        let number = self.numbers;
        let Self { driver, honest, hostile, book, random, threads, .. } = self;
        let driver = driver.as_mut().expect("a driver");
        let trace = match task {
            Task::Agent(agent) => {
                if !driver.can_go_on(agent) {
                    return false;
                }
                let trace = driver.step(agent);
                trace.wrapping_mul(8) + 1
            }
            Task::Honest(at) => {
                threads.clear();
                honest[at].runnable(now, threads);
                if threads.is_empty() {
                    return false;
                }
                let thread = random.pick(threads);
                honest[at].step(thread, now, &driver.address, number, book).wrapping_mul(8) + 2
            }
            Task::Hostile(at) => {
                if !hostile[at].is_runnable(now) {
                    return false;
                }
                hostile[at].step(now, &driver.address, number, book).wrapping_mul(8) + 3
            }
        };
        self.mutate();
        self.note(trace);
        true
    }

    /// Checks that nobody sleeps although an event has come, and lets time pass. Called when nobody can go on.
    fn rest(&mut self) {
        let all_run = !self.honest.iter().any(|honest| honest.is_stopped() || honest.is_in_call());
        if let Some(why) = self.honest.iter().find_map(|honest| honest.sleeps_in_vain(all_run)) {
            panic!("{why}: nobody woke it\n{}", self.describe());
        }
        let clients = self.honest.iter().filter_map(Honest::wake_by);
        let others = self.hostile.iter().filter_map(Hostile::wake_by);
        let driver = self.driver.as_ref().and_then(Running::wake_by);
        let next = clients.chain(others).chain(driver).min().expect("somebody who sleeps for a while");
        let now = self.now();
        self.pass(next.saturating_sub(now).max(Duration::from_nanos(1)));
        self.note(4);
    }

    fn check(&mut self) {
        let may_change = self.steps < self.policy_step + POLICY_STEPS;
        let every = self.steps % 16 == 0;
        let conductor = self.driver().conductor();
        let (held, total) = conductor.held();
        for resource in Resource::ALL {
            let (held, total) = (held.of_pool(resource), total.of_pool(resource));
            assert!(held <= total, "{resource:?}: {held} held of {total}");
        }
        if every {
            for (payer, resource, used, most) in conductor.holdings() {
                let before = self.held.insert((payer, resource as u8), used).unwrap_or(0);
                assert!(
                    used <= most || used <= before || may_change,
                    "{payer:?} holds {used} of {resource:?}, and may hold {most}"
                );
            }
            self.check_rates();
        }
    }

    /// Checks that no tenant has sent more than its rate and burst allow since the policy has settled. Not checked if an engine has
    /// bytes under way, or clients count themselves: the time of sending is then unknown.
    fn check_rates(&mut self) {
        if !self.copies_at_once || !self.hostile.is_empty() || self.book.by_rings > 0 {
            return;
        }
        let (now, movers) = (self.now(), self.settings.movers as u64);
        let spending = self.driver().conductor().spending();
        if self.steps < self.policy_step + RATES_STEPS {
            self.spending.clear();
        }
        for (tenant, rate, sent) in spending {
            let &mut (known, since, before) = self.spending.entry(tenant).or_insert((rate, now, sent));
            if known != rate {
                self.spending.insert(tenant, (rate, now, sent));
                continue;
            }
            let time = (now - since).as_nanos();
            let came = u128::from(rate.per_second) * time / 1_000_000_000;
            // Each mover may have a lease from before.
            let most = came as u64 + rate.burst + movers * rate.lease();
            let spent = sent - before;
            assert!(spent <= most, "{tenant:?} has sent {spent} bytes in {time} ns, {rate:?} allows {most}");
        }
    }

    /// Stops all faults, and checks that all streams end and that nothing is left when the clients have gone.
    fn finish(&mut self) {
        self.ends = true;
        kernel::with(|kernel| kernel.faults.clear());
        let now = self.now();
        self.driver().held_up.clear();
        self.driver().slow_files.clear();
        self.driver().apply(Policy::default());
        self.policy_step = self.steps;
        for hostile in &mut self.hostile {
            hostile.lose(now);
            hostile.is_gone = true;
        }
        self.honest.iter_mut().for_each(|honest| {
            honest.calm();
            honest.go_on(Duration::MAX);
        });
        let until = self.now() + FINAL_TIME;
        self.go_on("connections of honest clients do not come to their end", until, |world| {
            world.honest.iter_mut().for_each(|honest| honest.release_unused(&mut world.book));
            world.honest.iter().all(Honest::is_idle)
        });
        let until = self.now() + FINAL_TIME;
        self.go_on("an end or an error has no reason", until, |world| world.book.settle());
        for honest in &mut self.honest {
            honest.leave(&mut self.book);
        }
        let until = self.now() + FINAL_TIME;
        self.go_on("something is left of clients that have gone", until, |world| {
            world.driver().leftovers().is_empty()
        });
    }

    fn go_on(&mut self, otherwise: &str, until: Duration, is_done: impl Fn(&mut Self) -> bool) {
        let first = self.steps;
        let mut next_relief = self.now() + Duration::from_secs(20);
        loop {
            if (self.steps - first) % 64 == 0 && is_done(self) {
                return;
            }
            self.step();
            let now = self.now();
            if now >= until || self.steps > first + FINAL_STEPS {
                panic!("{otherwise}\n{}", self.describe());
            }
            if now >= next_relief && self.driver().conductor().flows_waiting() > 0 {
                // A client that holds memory that others wait for has to go.
                next_relief = now + Duration::from_secs(5);
                if let Some(honest) = self.honest.iter_mut().find(|honest| honest.is_up()) {
                    honest.leave(&mut self.book);
                    self.note(9);
                }
            }
        }
    }

    fn describe(&mut self) -> String {
        let honest: Vec<_> = self.honest.iter().map(|honest| honest.describe()).collect();
        let (settings, weather) = (&self.settings, &self.weather);
        let what = format!(
            "budget {}, movers {}, ring {}, {:?}, {weather:?}, step {}, {:?}\n{}",
            settings.budget_bytes,
            settings.movers,
            settings.ring_bytes_default,
            settings.path,
            self.steps,
            self.clock.now(),
            honest.join("\n"),
        );
        let driver = self.driver();
        let waiting = driver.conductor().flows_waiting();
        let mut flows = Vec::new();
        driver.conductor().with_all_movers(|movers| {
            flows.extend(movers.iter_mut().flat_map(|mover| mover.describe()));
        });
        let (agents, left) = (driver.describe(), driver.leftovers());
        let what = format!("{}{what}", self.book.describe());
        format!("{what}\n{agents}, {waiting} flows wait for memory, {left:?}\n{}", flows.join("\n"))
    }

    /// Makes the deliberate fault, once.
    fn mutate(&mut self) {
        let Some((mutation, _)) = self.mutation.filter(|(_, step)| self.steps >= *step) else { return };
        let is_broken = match mutation {
            Mutation::LostWake => self.honest.iter_mut().any(Honest::miss_wake),
            Mutation::LostAnswer => self.driver().conductor().lose_answer(),
            Mutation::RingGivenTwice => self.driver().conductor().give_back_twice(),
            Mutation::ByteTakenBack => self.driver().conductor().take_byte_back(),
            Mutation::Leak => {
                self.driver().conductor().leak();
                true
            }
            // Repeated.
            Mutation::LastUnsaid => {
                self.driver().conductor().forget_last();
                false
            }
            Mutation::ReadLost => self.driver().parts.readers.lose_read(),
            Mutation::HeldForgotten => self.driver().parts.door.forget_held(),
            Mutation::ByteNotMoved => {
                let mut is_there = false;
                self.driver().conductor().with_all_movers(|movers| {
                    is_there = movers.iter_mut().any(|mover| mover.skip_moved_byte());
                });
                is_there
            }
            Mutation::ElsewhereTooEarly => {
                let mut is_there = false;
                self.driver().conductor().with_all_movers(|movers| {
                    is_there = movers.iter_mut().any(|mover| mover.say_elsewhere_early());
                });
                is_there
            }
            // Repeated.
            Mutation::ClaimIgnored => {
                self.honest.iter().for_each(Honest::forget_claims);
                false
            }
            // Repeated.
            Mutation::EndsUnfixed => {
                self.driver().conductor().unfix_ends();
                false
            }
            // Repeated.
            Mutation::ReceivedUnfixed => {
                self.driver().conductor().count_all_received();
                false
            }
            // Repeated.
            Mutation::RateForgotten => {
                self.driver().conductor().forget_spending();
                false
            }
        };
        if is_broken {
            self.mutation = None;
        }
    }
}
