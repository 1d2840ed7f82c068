//! Conductor and movers on threads.
mod assembly;
mod keeper;
pub mod lead;

use crate::clock::Clock;
use crate::conductor::Inboxes;
use crate::cores::Watch;
use crate::crash::keeping::{Keeping, StoreThread};
use crate::crash::kept::{self, Kept, Storing};
use crate::crash::store::{self, Manager};
use crate::door::{self, Door};
use crate::filter::{self, Confined};
use crate::gate::{Gate, Keeper};
use crate::mailbox::{Loan, Mailbox};
use crate::messages::ToConductor;
use crate::policy::Policy;
use crate::reader::Readers;
use crate::rights::{self, Namespaces};
use crate::settings::Settings;
use crate::start_error::StartError;
use crate::takeover::taking::{self, Predecessor};
pub use assembly::{assemble, Holds, Parts};
use keeper::KeeperThread;
use lead::{Leading, Taken};
use pd_abi::counters::AgentCounters;
use pd_engine::Engine;
use pd_shm::counters::CounterRegion;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Stores what the driver leaves to the one after a crash. Ends last: an orderly end leaves nothing.
    store: Option<StoreThread>,
}

/// Driver whose state this one goes on with.
enum Before {
    /// No driver.
    Nobody,
    /// A driver that runs.
    Running(Predecessor),
    /// A driver that was killed.
    Killed(Kept),
}

impl Before {
    fn running(&mut self) -> Option<&mut Predecessor> {
        match self {
            Self::Running(predecessor) => Some(predecessor),
            Self::Nobody | Self::Killed(_) => None,
        }
    }
}

/// The thread of the agent of pipes, once there is one.
type NicThread = Arc<Mutex<Option<JoinHandle<()>>>>;

/// Arranges that the agent of pipes gets a thread when it starts.
fn start_nic_later(parts: &Parts) -> NicThread {
    let thread = NicThread::default();
    let (place, stop) = (Arc::clone(&thread), Arc::clone(&parts.crew.stop));
    parts.pipes.set_starter(Box::new(move |nic| {
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
    // Memory of clients is locked: see [`crate::memory`]. Fails without CAP_SYS_RESOURCE, and then less is.
    let locked = getrlimit(Resource::Memlock);
    if setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None }).is_err() {
        let _ = setrlimit(Resource::Memlock, Rlimit { current: locked.maximum, ..locked });
    }
    Ok(())
}

/// Opens the kernel's half of the policy, with the maps of a driver that this one follows. An inner error says why there is none.
fn open_gate(
    settings: &Settings,
    clock: &dyn Clock,
    inboxes: &Inboxes,
    predecessor: Option<&mut Predecessor>,
) -> Result<Result<(Gate, Keeper), String>, StartError> {
    match settings.namespaces {
        Namespaces::All => {
            let maps = predecessor.map(Predecessor::take_maps).transpose()?.flatten();
            let inbox = Arc::clone(&inboxes.movers);
            Ok(Gate::open(&settings.admin_socket, clock, inbox, settings.prober.as_deref(), maps))
        }
        Namespaces::Own => Ok(Err("driver.namespaces is \"own\"".to_owned())),
    }
}

/// Drops the rights that the driver's threads do without. `/proc` is mounted before, which takes one of them.
fn drop_rights() -> Result<(), StartError> {
    if let Err(error) = pd_shm::procfs::mount() {
        tracing::debug!(%error, "processes that share /proc with the driver can hold up its look-ups there");
    }
    Ok(rights::drop_others(rights::Part::Driver)?)
}

/// Opens the watch on the machine's cores, before the process is confined.
fn watch_cores() -> Option<Watch> {
    let watch = Watch::open().inspect_err(|error| {
        tracing::warn!(%error, "the number of runnable threads is not known: clients spin also where cores are scarce");
    });
    watch.ok()
}

/// Starts a thread that runs until `stop`.
fn spawn(
    name: &str,
    stop: &Arc<AtomicBool>,
    run: impl FnOnce(&AtomicBool) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let stop = Arc::clone(stop);
    std::thread::Builder::new().name(name.into()).spawn(move || run(&stop))
}

impl Driver {
    /// Starts a driver: one thread for the door, one for the conductor and the first mover, and one for each further mover. It goes on where one
    /// that was killed has ended, if the service manager has kept the state of that one. Its threads
    /// keep only the rights and system calls that they need. The calling process is confined likewise if the settings say so.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(settings: Settings, clock: Arc<dyn Clock>, engine: &dyn Engine) -> Result<Self, StartError> {
        prepare(&settings)?;
        let manager = if settings.crash_store { Manager::of_environment() } else { None };
        let inherited = store::inherited();
        let Some(manager) = manager else {
            let sockets = door::listen(&settings)?;
            return Self::start_with(settings, clock, engine, sockets, (Before::Nobody, None));
        };
        let (storing, sockets, kept) = kept::sort(manager, inherited, &settings)?;
        let sockets = match sockets {
            Some(sockets) => sockets,
            None => {
                let sockets = door::listen(&settings)?;
                storing.store_sockets(&sockets)?;
                sockets
            }
        };
        let before = kept.map_or(Before::Nobody, Before::Killed);
        Self::start_with(settings, clock, engine, sockets, (before, Some(storing)))
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
        Self::start_with(settings, clock, engine, sockets, (Before::Running(predecessor), None))
    }

    fn start_with(
        settings: Settings,
        clock: Arc<dyn Clock>,
        engine: &dyn Engine,
        sockets: door::Sockets,
        before: (Before, Option<Storing>),
    ) -> Result<Self, StartError> {
        let confined = settings.confined;
        let start = || Self::start_confined(settings, clock, engine, sockets, before);
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
        (mut before, storing): (Before, Option<Storing>),
    ) -> Result<Self, StartError> {
        let inboxes = Inboxes::new()?;
        // Until the take-over is complete, the gate's entries belong to the predecessor.
        let handed_over = Arc::new(AtomicBool::new(before.running().is_some()));
        let (gate, keeper) = match open_gate(&settings, &*clock, &inboxes, before.running())? {
            Ok((gate, keeper)) => {
                let thread = KeeperThread::start(keeper, settings.confined, Arc::clone(&handed_over))?;
                (Ok(gate), Some(thread))
            }
            Err(why) => (Err(why), None),
        };
        drop_rights()?;
        let holds = Holds::of_process(settings.hugepages);
        let parts = assemble(&settings, Arc::clone(&clock), engine, sockets, holds, (inboxes, gate))?;
        let nic = start_nic_later(&parts);
        let Parts { mut lead, mut door, readers, counters, inbox: conductor, crew, door_inbox, .. } = parts;
        if matches!(before, Before::Nobody) {
            lead.conductor.put_first_in_force()?;
        }
        if let Some(storing) = &storing {
            lead.conductor.mark_at_movers(&storing.marks);
            door.set_marks(&storing.marks);
        }
        let cores = watch_cores();
        filter::install(settings.confined).map_err(StartError::Filter)?;
        readers.prepare()?;
        let policy = std::mem::take(&mut settings.policy);
        let taken = match (before, &storing) {
            (Before::Running(predecessor), _) => {
                Some(Taken::from(&predecessor, policy, &mut lead.conductor, &mut door, &handed_over)?)
            }
            (Before::Killed(kept), Some(storing)) => {
                Some(Taken::from_killed(&kept, policy, &mut lead.conductor, &mut door, storing)?)
            }
            (Before::Killed(_) | Before::Nobody, _) => None,
        };
        let (store, keeping) = match storing {
            Some(Storing { manager, marks, former }) => {
                lead.conductor.begin_to_mark(&marks);
                let (thread, keeping) = Keeping::start(manager, marks, former)?;
                (Some(thread), Some(keeping))
            }
            None => (None, None),
        };
        if !settings.movers_auto {
            lead.conductor.start_movers()?;
        }
        let (stop, broken) = (Arc::clone(&crew.stop), Arc::clone(&crew.broken));
        let handed = Arc::clone(&handed_over);
        let leading = Leading { lead, door: door_inbox, crew, taken, handed_over: handed, keeping };
        let mut threads = vec![
            spawn("pd-driver", &stop, |stop| leading.run(stop))?,
            spawn("pd-door", &stop, |stop| run_door(Box::new(door), stop))?,
        ];
        if let Some(cores) = cores {
            let conductor = Arc::clone(&conductor);
            threads.push(spawn("pd-cores", &stop, move |stop| cores.run(stop, &conductor))?);
        }
        Ok(Self {
            stop,
            broken,
            handed_over,
            threads,
            readers,
            settings,
            counters,
            conductor,
            nic,
            keeper,
            store,
        })
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
            && self.store.as_ref().is_none_or(StoreThread::is_running)
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
