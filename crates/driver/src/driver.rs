//! Conductor and movers on threads.
use crate::clock::Clock;
use crate::conductor::{Conductor, Crew, Inboxes, Movers, Others};
use crate::cores::Watch;
use crate::door::{self, Door, Loan, ToDoor};
use crate::filter::{self, Confined};
use crate::gate::{Gate, Keeper};
use crate::ids::MoverId;
use crate::mailbox::{Mailbox, Outbox};
use crate::memory::{Amounts, Pool, Shelves};
use crate::messages::ToConductor;
use crate::metrics::{self, Metrics};
use crate::mover::{Mover, MoverSettings};
use crate::pipes::nic::Nic;
use crate::pipes::Pipes;
use crate::policy::Policy;
use crate::reader::Readers;
use crate::rights::{self, Namespaces};
use crate::settings::Settings;
use crate::start_error::StartError;
use crate::takeover::giving::{Outcome, Successor};
use crate::takeover::taking::{self, Predecessor};
use crate::takeover::warming::warm;
use pd_abi::counters::AgentCounters;
use pd_engine::Engine;
use pd_shm::counters::CounterRegion;
use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest sleep, and so the latest time at which a stop is noticed.
pub const STOP_POLL: Duration = Duration::from_millis(200);
/// Longest wait of a driver that stops for files to be closed.
const FILES_GRACE: Duration = Duration::from_secs(1);

/// A running driver. Stops when dropped; its clients then see `ECONNRESET`.
#[derive(Debug)]
pub struct Driver {
    stop: Arc<AtomicBool>,
    /// A thread of a mover has panicked.
    broken: Arc<AtomicBool>,
    /// Set when another driver has taken this one's place.
    handed_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    readers: Arc<Readers>,
    settings: Settings,
    counters: Arc<CounterRegion>,
    conductor: Arc<Mailbox<ToConductor>>,
    nic: NicThread,
    /// Ends after all other threads.
    keeper: Option<KeeperThread>,
}

/// The thread that keeps the kernel's half of the policy; it ends when dropped.
#[derive(Debug)]
struct KeeperThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl KeeperThread {
    /// Starts the thread, with one right more than the driver's other threads: to end connections
    /// of the kernel. After `handed_over` is set, the entries that it keeps belong to the other
    /// driver.
    fn start(keeper: Keeper, confined: Confined, handed_over: Arc<AtomicBool>) -> Result<Self, StartError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (started, ready) = std::sync::mpsc::channel();
        let run = move || {
            let confine = || {
                rights::drop_others(rights::Part::Gate)?;
                match confined {
                    // With all others.
                    Confined::Process => Ok(()),
                    Confined::Threads => filter::install(confined),
                }
            };
            let confined = confine();
            let is_confined = confined.is_ok();
            // The starting thread waits for this.
            let _ = started.send(confined);
            if is_confined {
                keeper.run(&stopped, &handed_over);
            }
        };
        let thread = std::thread::Builder::new().name("pd-gate".into()).spawn(run)?;
        let this = Self { stop, thread: Some(thread) };
        ready.recv().unwrap_or(Err(Errno::SRCH))?;
        Ok(this)
    }

    fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for KeeperThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the gate panicked");
        }
    }
}

/// The thread of the agent of pipes, once there is one.
type NicThread = Arc<Mutex<Option<JoinHandle<()>>>>;

/// Arranges that the agent of pipes starts with the first port.
fn start_nic_later(parts: &Parts, clock: &Arc<dyn Clock>, spin: Duration) -> NicThread {
    let thread = NicThread::default();
    let (place, clock, stop) = (Arc::clone(&thread), Arc::clone(clock), Arc::clone(&parts.crew.stop));
    let (inbox, door) = (Arc::clone(parts.pipes.inbox()), Arc::clone(&parts.door_inbox));
    parts.pipes.set_starter(Box::new(move || {
        let nic = Nic::new(clock, inbox, door, spin)?;
        let run = move || nic.run(&stop, STOP_POLL);
        let started = std::thread::Builder::new().name("pd-nic".into()).spawn(run)?;
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        Ok(())
    }));
    thread
}

/// Checks the rights, and raises the limit of descriptors.
fn prepare(settings: &Settings) -> Result<(), StartError> {
    let missing = rights::missing(settings);
    if !missing.is_empty() {
        return Err(StartError::Rights(missing));
    }
    // Each client takes several descriptors. Without free descriptors, clients wait.
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    Ok(())
}

impl Driver {
    /// Starts a driver: one thread for the door, one for the conductor and the first mover, and one for each further mover. Its threads
    /// keep only the rights and system calls that they need. The calling process is confined likewise if the settings say so.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(settings: Settings, clock: Arc<dyn Clock>, engine: &dyn Engine) -> Result<Self, StartError> {
        prepare(&settings)?;
        let sockets = door::listen(&settings)?;
        Self::start_with(settings, clock, engine, sockets, None)
    }

    /// Starts a driver in the place of the one that runs on the same sockets. Its clients, their sockets and connections, its policy and
    /// accounts are taken over, and the other driver ends. On failure the other driver goes on.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn take_over(
        mut settings: Settings,
        clock: Arc<dyn Clock>,
        engine: &dyn Engine,
    ) -> Result<Self, StartError> {
        prepare(&settings)?;
        let (predecessor, sockets) = Predecessor::ask(&mut settings)?;
        taking::announce(&sockets)?;
        Self::start_with(settings, clock, engine, sockets, Some(predecessor))
    }

    fn start_with(
        settings: Settings,
        clock: Arc<dyn Clock>,
        engine: &dyn Engine,
        sockets: door::Sockets,
        predecessor: Option<Predecessor>,
    ) -> Result<Self, StartError> {
        let confined = settings.confined;
        let start = || Self::start_confined(settings, clock, engine, sockets, predecessor);
        match confined {
            Confined::Process => start(),
            // New threads inherit the filters and rights of the thread that makes them.
            Confined::Threads => std::thread::scope(|scope| {
                let thread =
                    std::thread::Builder::new().name("pd-start".into()).spawn_scoped(scope, start)?;
                let panicked = |_| Err(std::io::Error::other("it panicked").into());
                thread.join().unwrap_or_else(panicked)
            }),
        }
    }

    fn start_confined(
        mut settings: Settings,
        clock: Arc<dyn Clock>,
        engine: &dyn Engine,
        sockets: door::Sockets,
        mut predecessor: Option<Predecessor>,
    ) -> Result<Self, StartError> {
        let conductor_inboxes = Inboxes::new()?;
        let opened = match settings.namespaces {
            Namespaces::All => {
                let inbox = Arc::clone(&conductor_inboxes.movers);
                let maps = predecessor.as_mut().map(Predecessor::take_maps).transpose()?.flatten();
                Gate::open(&settings.admin_socket, &*clock, inbox, settings.prober.as_deref(), maps)
            }
            Namespaces::Own => Err("driver.namespaces is \"own\"".to_owned()),
        };
        // Until the take-over is complete, the gate's entries belong to the predecessor.
        let handed_over = Arc::new(AtomicBool::new(predecessor.is_some()));
        let (gate, keeper) = match opened {
            Ok((gate, keeper)) => {
                let thread = KeeperThread::start(keeper, settings.confined, Arc::clone(&handed_over))?;
                (Ok(gate), Some(thread))
            }
            Err(why) => (Err(why), None),
        };
        if let Err(error) = pd_shm::procfs::mount() {
            tracing::debug!(%error, "processes that share /proc with the driver can hold up its look-ups there");
        }
        rights::drop_others(rights::Part::Driver)?;
        let holds = Holds {
            descriptors: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            shelves: Shelves::open(settings.hugepages),
        };
        let parts =
            assemble(&settings, Arc::clone(&clock), engine, sockets, holds, (conductor_inboxes, gate))?;
        let nic = start_nic_later(&parts, &clock, settings.spin);
        let Parts { mut lead, mut door, readers, counters, inbox, crew, door_inbox, .. } = parts;
        if predecessor.is_none() {
            lead.conductor.put_first_in_force()?;
        }
        let Crew { stop, broken, .. } = crew.clone();
        let cores = Watch::open().inspect_err(|error| {
            tracing::warn!(%error, "the number of runnable threads is not known: clients spin also where cores are scarce");
        });
        filter::install(settings.confined).map_err(StartError::Filter)?;
        readers.prepare()?;
        let mut threads = Vec::new();
        let mut spawn = |name: String, run: Box<dyn FnOnce(&AtomicBool) + Send>| {
            let stop = Arc::clone(&stop);
            let thread = std::thread::Builder::new().name(name).spawn(move || run(&stop))?;
            threads.push(thread);
            Ok::<_, std::io::Error>(())
        };
        let mut begun = None;
        if let Some(predecessor) = predecessor {
            let policy = std::mem::take(&mut settings.policy);
            let (ready, taken) = predecessor.take(policy, &mut lead.conductor, &mut door)?;
            handed_over.store(false, Ordering::Release);
            let cold = taking::begin(ready, &mut lead.conductor, &mut door);
            begun = Some((taken, cold));
        }
        if !settings.movers_auto {
            lead.conductor.start_movers()?;
        }
        let gone = Arc::clone(&handed_over);
        let work = move |stop: &AtomicBool| {
            crew.pin(MoverId::default());
            if let Some((begun, cold)) = begun {
                lead.conductor.note_taken_over(begun.now());
                // Not before: a thread that enters pages makes those wait that start.
                let stop = Arc::clone(&crew.stop);
                let warm = move || warm(cold, &stop);
                if let Err(error) = std::thread::Builder::new().name("pd-warm".into()).spawn(warm) {
                    tracing::warn!(%error, "memory of clients is entered page by page");
                }
            }
            if run(&mut lead, &door_inbox, stop) == Outcome::Gone {
                gone.store(true, Ordering::Release);
                crew.stop.store(true, Ordering::Release);
            }
            lead.conductor.join_movers();
        };
        spawn("pd-driver".into(), Box::new(work))?;
        spawn("pd-door".into(), Box::new(move |stop| run_door(Box::new(door), stop)))?;
        let conductor = inbox;
        if let Ok(cores) = cores {
            let conductor = Arc::clone(&conductor);
            spawn("pd-cores".into(), Box::new(move |stop| cores.run(stop, &conductor)))?;
        }
        Ok(Self { stop, broken, handed_over, threads, readers, settings, counters, conductor, nic, keeper })
    }

    /// Tells whether another driver has taken this one's place. The caller then only has to end the process.
    pub fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Puts another policy in force, soon.
    pub fn apply(&self, policy: Policy) {
        self.conductor.send(ToConductor::Apply { policy: Box::new(policy) });
    }

    /// Returns the counters so far.
    pub fn metrics(&self) -> AgentCounters {
        self.counters.total()
    }

    fn nic(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.nic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whether all of the driver's threads run; false after a bug ended one.
    pub fn is_running(&self) -> bool {
        let is_broken = self.broken.load(Ordering::Acquire) || self.readers.is_broken();
        !is_broken
            && self.threads.iter().all(|t| !t.is_finished())
            && !self.nic().as_ref().is_some_and(|nic| nic.is_finished())
            && self.keeper.as_ref().is_none_or(KeeperThread::is_running)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let nic = self.nic().take();
        for thread in self.threads.drain(..).chain(nic) {
            if thread.join().is_err() {
                tracing::error!("a thread of the driver panicked");
            }
        }
        // Clients' files may take any time to close.
        self.readers.wait_ended(FILES_GRACE);
        if self.is_handed_over() {
            return;
        }
        let _ = std::fs::remove_file(&self.settings.socket);
        let _ = std::fs::remove_file(&self.settings.admin_socket);
    }
}

/// A driver that does not run yet.
pub struct Parts {
    pub lead: Lead,
    pub door: Door,
    pub readers: Arc<Readers>,
    pub counters: Arc<CounterRegion>,
    /// The conductor's mailbox, for the caller that runs the driver.
    pub inbox: Arc<Mailbox<ToConductor>>,
    /// State that all threads share.
    pub crew: Crew,
    pub pipes: Arc<Pipes>,
    /// The door's.
    pub door_inbox: Arc<Mailbox<ToDoor>>,
}

/// Limits of a process, and where it makes its memory.
#[derive(Debug)]
pub struct Holds {
    /// Descriptors.
    pub descriptors: u64,
    /// See [`Shelves`].
    pub shelves: Shelves,
}

/// Makes the agents. The conductor has the inboxes, and the kernel's half of the policy if there is one.
///
/// # Errors
/// [`StartError`].
pub fn assemble(
    settings: &Settings,
    clock: Arc<dyn Clock>,
    engine: &dyn Engine,
    mut sockets: door::Sockets,
    Holds { descriptors, shelves }: Holds,
    (conductor_inboxes, gate): (Inboxes, Result<Gate, String>),
) -> Result<Parts, StartError> {
    let count = settings.movers.max(1);
    let (clients, connections) = (settings.clients_max, settings.connections_max);
    let counters = metrics::region(count, clients, connections, settings.budget_bytes)?;
    let inboxes = (0..count).map(|_| Mailbox::new()).collect::<Result<Vec<_>, _>>()?;
    let door_inbox = Mailbox::new()?;
    let total = Amounts {
        clients: clients as u64,
        descriptors,
        lines_bytes: u64::MAX,
        memory_bytes: settings.budget_bytes,
    };
    let pool = Pool::of(total, settings.hugepages, shelves);
    let readers = Arc::new(Readers::default());
    let mut movers = Vec::new();
    for id in 0..inboxes.len() {
        let of_mover =
            MoverSettings { id: MoverId::at(id), spin: settings.spin, ring_idle: settings.ring_idle };
        movers.push(Mover::new(
            of_mover,
            Arc::clone(&clock),
            engine,
            &inboxes,
            match id {
                0 => Outbox::Kept(RefCell::default()),
                _ => Outbox::Mailbox(Arc::clone(&conductor_inboxes.movers)),
            },
            Arc::new(Metrics::new(&counters, 1 + id)),
            Arc::clone(&readers),
        )?);
    }
    let crew = Crew {
        clock: Arc::clone(&clock),
        stop: Arc::new(AtomicBool::new(false)),
        broken: Arc::new(AtomicBool::new(false)),
        cores: settings.mover_cores.clone().into(),
    };
    let pipes = Pipes::new()?;
    let conductor = Conductor::new(
        settings.clone(),
        Arc::clone(&clock),
        conductor_inboxes.clone(),
        Others {
            door: Arc::clone(&door_inbox),
            movers: Movers::new(movers.remove(0), movers, inboxes, crew.clone()),
            gate,
            pipes: Arc::clone(&pipes),
        },
        Arc::clone(&pool),
        Arc::new(Metrics::new(&counters, 0)),
    )?;
    sockets.maps = conductor.lasting_maps();
    let door = Door::new(
        settings,
        sockets,
        Arc::clone(&clock),
        (Arc::clone(&door_inbox), Arc::clone(&conductor_inboxes.door)),
        pool,
        Arc::clone(&counters),
        Arc::clone(&pipes),
    )?;
    Ok(Parts {
        lead: Lead::new(conductor, clock),
        door,
        readers,
        counters,
        inbox: conductor_inboxes.movers,
        crew,
        pipes,
        door_inbox,
    })
}

/// The conductor and the first mover, which take turns on one thread.
pub struct Lead {
    pub conductor: Conductor,
    clock: Arc<dyn Clock>,
}

impl Lead {
    /// Makes the pair from a conductor and its mover.
    pub fn new(conductor: Conductor, clock: Arc<dyn Clock>) -> Self {
        Self { conductor, clock }
    }

    /// Runs one turn of both. None: there may be more to do; otherwise the longest time until the next turn.
    pub fn turn(&mut self) -> Option<Duration> {
        let Self { conductor, clock } = self;
        let mover = conductor.mover();
        let mut worked = mover.step();
        let watched = mover.take_watched();
        let begun = mover.begin_controls();
        worked |= conductor.step();
        if let Some(begun) = begun {
            conductor.mover().settle_controls(begun);
        }
        worked |= conductor.balance();
        if watched {
            conductor.poll(Some(Duration::ZERO));
            worked = true;
        }
        // Computed anew each time: new work may be due before known work.
        let wake_by = conductor.wake_by();
        if wake_by.is_some_and(|at| clock.now() >= at) {
            conductor.tick();
            worked = true;
        }
        (!worked).then(|| wake_by.into_iter().fold(clock.now() + STOP_POLL, Duration::min))
    }
}

/// Runs until it is to stop, or another driver has taken over.
fn run(lead: &mut Lead, door: &Mailbox<ToDoor>, stop: &AtomicBool) -> Outcome {
    let inboxes = lead.conductor.inboxes().clone();
    let mut successor: Option<Successor> = None;
    while !stop.load(Ordering::Acquire) {
        if let Some(mut by) = lead.turn() {
            if let Some(waits) = successor.as_ref().and_then(Successor::waits) {
                by = by.min(lead.clock.now() + waits);
            }
            let mover = lead.conductor.mover();
            mover.idle(Some(by), |asleep| inboxes.set_asleep(asleep), || inboxes.are_filled());
        }
        if let Some((stream, early)) = lead.conductor.take_successor() {
            successor = Some(Successor::new(stream, early));
        }
        if let Some(waiting) = successor.as_mut().filter(|successor| successor.waits().is_none()) {
            match hand_over(lead, door, waiting) {
                Outcome::Gone => return Outcome::Gone,
                Outcome::Again => {}
                Outcome::Stays => successor = None,
            }
        }
    }
    Outcome::Stays
}

/// Holds all agents in this thread, and gives them to another driver if it takes them.
fn hand_over(lead: &mut Lead, door: &Mailbox<ToDoor>, successor: &mut Successor) -> Outcome {
    let ((to, lent), (give_back, back)) = (channel(), channel());
    successor.begin();
    door.send(ToDoor::Lend(Loan { to, back }));
    let Ok(mut door) = lent.recv() else { return Outcome::Stays };
    let outcome = match lead.conductor.hold() {
        true => successor.attempt(&mut lead.conductor, &mut door),
        false => Outcome::Stays,
    };
    if outcome != Outcome::Gone {
        lead.conductor.let_go();
        // If the door's thread has ended, so does the driver.
        let _ = give_back.send(door);
    }
    outcome
}

fn run_door(mut door: Box<Door>, stop: &AtomicBool) {
    let mut is_busy = false;
    while !stop.load(Ordering::Acquire) {
        door.turn(STOP_POLL, &mut is_busy);
        if let Some(Loan { to, back }) = door.take_loan() {
            if to.send(door).is_err() {
                return;
            }
            // The door belongs to another driver now, or this one ends.
            let Ok(again) = back.recv() else { return };
            (door, is_busy) = (again, true);
        }
    }
}
