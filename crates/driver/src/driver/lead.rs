//! The driver's first thread: the conductor and the first mover, and the driver that follows.
use super::STOP_POLL;
use crate::clock::Clock;
use crate::conductor::{Conductor, Crew};
use crate::crash::keeping::Keeping;
use crate::crash::kept::{Kept, Storing};
use crate::door::{Door, ToDoor};
use crate::ids::MoverId;
use crate::mailbox::{Loan, Mailbox};
use crate::memory::Cold;
use crate::policy::Policy;
use crate::start_error::StartError;
use crate::takeover::giving::{Outcome, Successor};
use crate::takeover::taking::{self, Begun, Predecessor};
use crate::takeover::warming::warm;
use crate::takeover::Agents;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
fn run(lead: &mut Lead, door: &Mailbox<ToDoor>, stop: &AtomicBool, mut keeping: Option<Keeping>) -> Outcome {
    let inboxes = lead.conductor.inboxes().clone();
    let mut successor: Option<Successor> = None;
    while !stop.load(Ordering::Acquire) {
        if let Some(mut by) = lead.turn() {
            if let Some(waits) = successor.as_ref().and_then(Successor::waits) {
                by = by.min(lead.clock.now() + waits);
            }
            if let Some(due) = keeping.as_ref().and_then(Keeping::due_in) {
                by = by.min(lead.clock.now() + due);
            }
            let mover = lead.conductor.mover();
            mover.idle(Some(by), |asleep| inboxes.set_asleep(asleep), || inboxes.are_filled());
        }
        if let Some(keeping) = keeping.as_mut().filter(|keeping| keeping.due_in() == Some(Duration::ZERO)) {
            let begun = Instant::now();
            with_all(lead, door, stop, |agents| {
                keeping.take(begun, agents);
                Outcome::Stays
            });
        }
        if let Some((stream, early)) = lead.conductor.take_successor() {
            successor = Some(Successor::new(stream, early));
        }
        if let Some(waiting) = successor.as_mut().filter(|successor| successor.waits().is_none()) {
            waiting.begin();
            match with_all(lead, door, stop, |agents| waiting.attempt(agents)) {
                Outcome::Gone => {
                    keeping.iter().for_each(Keeping::hand_over);
                    return Outcome::Gone;
                }
                Outcome::Again => {}
                Outcome::Stays => successor = None,
            }
        }
    }
    Outcome::Stays
}

/// Holds all agents in this thread, and calls `look` with them. They go on unless another driver has taken them. Does nothing if the driver
/// is to stop.
fn with_all(
    lead: &mut Lead,
    door: &Mailbox<ToDoor>,
    stop: &AtomicBool,
    look: impl FnOnce(&mut Agents<'_>) -> Outcome,
) -> Outcome {
    let Some((mut door, door_back)) = borrow(stop, |loan| door.send(ToDoor::Lend(loan))) else {
        return Outcome::Stays;
    };
    let pipes = Arc::clone(lead.conductor.pipes());
    let mut nic = match pipes.is_started() {
        true => match borrow(stop, |loan| pipes.lend(loan)) {
            Some(nic) => Some(nic),
            None => return Outcome::Stays,
        },
        false => None,
    };
    let outcome = match lead.conductor.hold() {
        true => look(&mut Agents {
            conductor: &mut lead.conductor,
            door: &mut door,
            nic: nic.as_mut().map(|(nic, _)| &mut **nic),
        }),
        false => Outcome::Stays,
    };
    if outcome != Outcome::Gone {
        lead.conductor.let_go();
        // If the thread of one has ended, so does the driver.
        let _ = door_back.send(door);
        if let Some((nic, back)) = nic {
            let _ = back.send(nic);
        }
    } else if let Some((mut nic, _)) = nic {
        nic.hand_over();
    }
    outcome
}

/// Borrows an agent of another thread, which `ask` asks for it. Returns the way back, too. None: the driver is to stop.
fn borrow<T>(stop: &AtomicBool, ask: impl FnOnce(Loan<T>)) -> Option<(Box<T>, Sender<Box<T>>)> {
    let ((to, lent), (give_back, back)) = (channel(), channel());
    ask(Loan { to, back });
    loop {
        match lent.recv_timeout(STOP_POLL) {
            Ok(agent) => return Some((agent, give_back)),
            // The agent's thread may have ended before it saw the message.
            Err(RecvTimeoutError::Timeout) if !stop.load(Ordering::Acquire) => {}
            Err(_) => return None,
        }
    }
}

/// The state of another driver, taken.
pub(super) struct Taken {
    /// Facts of a take-over; none: the other driver was killed.
    begun: Option<Begun>,
    cold: Vec<Cold>,
}

impl Taken {
    /// Takes the predecessor's state, and begins with it. From then on the gate's entries are this driver's.
    ///
    /// # Errors
    /// [`StartError`]; the predecessor goes on.
    pub(super) fn from(
        predecessor: &Predecessor,
        policy: Policy,
        conductor: &mut Conductor,
        door: &mut Door,
        handed_over: &AtomicBool,
    ) -> Result<Self, StartError> {
        let (ready, begun) = predecessor.take(policy, conductor, door)?;
        handed_over.store(false, Ordering::Release);
        let cold = taking::begin(ready, conductor, door);
        Ok(Self { begun: Some(begun), cold })
    }

    /// Takes the state of a driver that was killed, and begins with what is left of it.
    ///
    /// # Errors
    /// The fault in the state, which is then given up.
    pub(super) fn from_killed(
        kept: &Kept,
        policy: Policy,
        conductor: &mut Conductor,
        door: &mut Door,
        storing: &Storing,
    ) -> Result<Self, StartError> {
        match taking::recover(kept, policy, conductor, door, &storing.marks) {
            Ok(cold) => Ok(Self { begun: None, cold }),
            Err(wrong) => {
                storing.give_up();
                Err(StartError::Recovery(wrong.to_string()))
            }
        }
    }

    /// Records the take-over, and enters the pages of the clients' memory in a thread of its own.
    fn report(self, conductor: &mut Conductor, stop: &Arc<AtomicBool>) {
        if let Some(begun) = self.begun {
            conductor.note_taken_over(begun.now());
        }
        // Not before: a thread that enters pages makes those wait that start.
        let (cold, stop) = (self.cold, Arc::clone(stop));
        let started = std::thread::Builder::new().name("pd-warm".into()).spawn(move || warm(cold, &stop));
        if let Err(error) = started {
            tracing::warn!(%error, "memory of clients is entered page by page");
        }
    }
}

/// The work of the first thread.
pub(super) struct Leading {
    pub(super) lead: Lead,
    /// The door's mailbox.
    pub(super) door: Arc<Mailbox<ToDoor>>,
    pub(super) crew: Crew,
    pub(super) taken: Option<Taken>,
    /// Set when another driver has taken this one's place.
    pub(super) handed_over: Arc<AtomicBool>,
    /// Snapshots for the driver after a crash.
    pub(super) keeping: Option<Keeping>,
}

impl Leading {
    /// Runs until `stop`, or until another driver has taken over.
    pub(super) fn run(self, stop: &AtomicBool) {
        let Self { mut lead, door, crew, taken, handed_over, keeping } = self;
        crew.pin(MoverId::default());
        if let Some(taken) = taken {
            taken.report(&mut lead.conductor, &crew.stop);
        }
        if run(&mut lead, &door, stop, keeping) == Outcome::Gone {
            handed_over.store(true, Ordering::Release);
            crew.stop.store(true, Ordering::Release);
        }
        lead.conductor.join_movers();
    }
}
