//! The agents of a driver, put together.
use super::lead::Lead;
use crate::clock::Clock;
use crate::conductor::{Conductor, Crew, Inboxes, Movers, Others};
use crate::door::{self, Door, ToDoor};
use crate::gate::Gate;
use crate::ids::MoverId;
use crate::mailbox::{Mailbox, Outbox};
use crate::memory::{Amounts, HugepageUse, Pool, Shelves};
use crate::messages::{ToConductor, ToMover};
use crate::metrics::{self, Metrics};
use crate::mover::{Mover, MoverSettings};
use crate::pipes::Pipes;
use crate::reader::Readers;
use crate::settings::Settings;
use crate::start_error::StartError;
use pd_engine::Engine;
use pd_shm::counters::CounterRegion;
use rustix::process::{getrlimit, Resource};
use std::cell::RefCell;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

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

impl Holds {
    /// Returns those of this process.
    pub fn of_process(hugepages: HugepageUse) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self { descriptors, shelves: Shelves::open(hugepages) }
    }
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
    let mut movers =
        make_movers(settings, &clock, engine, (&inboxes, &conductor_inboxes), &counters, &readers)?;
    let crew = Crew {
        clock: Arc::clone(&clock),
        stop: Arc::new(AtomicBool::new(false)),
        broken: Arc::new(AtomicBool::new(false)),
        cores: settings.mover_cores.clone().into(),
    };
    let pipes = Pipes::new(Arc::clone(&clock), Arc::clone(&door_inbox), settings.spin)?;
    let others = Others {
        door: Arc::clone(&door_inbox),
        movers: Movers::new(movers.remove(0), movers, inboxes, crew.clone()),
        gate,
        pipes: Arc::clone(&pipes),
    };
    let of_conductor = Arc::new(Metrics::new(&counters, 0));
    let conductor = Conductor::new(
        settings.clone(),
        Arc::clone(&clock),
        conductor_inboxes.clone(),
        others,
        Arc::clone(&pool),
        of_conductor,
    )?;
    sockets.maps = conductor.lasting_maps();
    let of_door = (Arc::clone(&door_inbox), Arc::clone(&conductor_inboxes.door));
    let (own_clock, own_counters, own_pipes) =
        (Arc::clone(&clock), Arc::clone(&counters), Arc::clone(&pipes));
    let door = Door::new(settings, sockets, own_clock, of_door, pool, own_counters, own_pipes)?;
    let (lead, inbox) = (Lead::new(conductor, clock), conductor_inboxes.movers);
    Ok(Parts { lead, door, readers, counters, inbox, crew, pipes, door_inbox })
}

/// Makes the movers. The first shares the conductor's thread, so its messages need no mailbox.
fn make_movers(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
    engine: &dyn Engine,
    (inboxes, conductor): (&[Arc<Mailbox<ToMover>>], &Inboxes),
    counters: &Arc<CounterRegion>,
    readers: &Arc<Readers>,
) -> Result<Vec<Mover>, StartError> {
    let make = |index| {
        let id = MoverId::at(index);
        let outbox = match index {
            0 => Outbox::Kept(RefCell::default()),
            _ => Outbox::Mailbox(Arc::clone(&conductor.movers)),
        };
        let of_mover = MoverSettings { id, spin: settings.spin, ring_idle: settings.ring_idle };
        let metrics = Arc::new(Metrics::new(counters, 1 + index));
        Mover::new(of_mover, Arc::clone(clock), engine, inboxes, outbox, metrics, Arc::clone(readers))
    };
    (0..inboxes.len()).map(make).collect()
}
