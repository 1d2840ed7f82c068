//! The movers as the conductor reaches them. The first has turns on the conductor's thread. Each other one has a thread of its own as long
//! as there is load for it.
//!
//! A thread works on a mover that it has been lent. The conductor takes all movers back for moments, so that parts of one can go to another
//! ([`crate::mover::transfer`]). The threads wait meanwhile.
#[cfg(any(test, fuzzing, feature = "testing"))]
use crate::calls::simulated;
use crate::calls::{may, Call};
use crate::clock::Clock;
use crate::ids::MoverId;
use crate::mailbox::Mailbox;
use crate::messages::{ToConductor, ToMover};
use crate::metrics::Metrics;
use crate::mover::takeover::MoverState;
use crate::mover::{transfer, Mover};
use crate::takeover::pack::{Hindrance, Pack};
use rustix::thread::{sched_setaffinity, CpuSet};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest sleep, hence the longest time until a stop is noticed.
const STOP_POLL: Duration = Duration::from_millis(200);

/// See the module.
pub struct Movers {
    own: RefCell<Box<Mover>>,
    /// Movers from the second on.
    others: Vec<Seat>,
    inboxes: Vec<Arc<Mailbox<ToMover>>>,
    metrics: Vec<Arc<Metrics>>,
    crew: Crew,
    /// Mailbox that gets all commands in place of the movers.
    #[cfg(test)]
    pub listener: Option<Arc<Mailbox<ToMover>>>,
}

/// State that the threads of movers share.
#[derive(Clone)]
pub struct Crew {
    /// The driver's clock.
    pub clock: Arc<dyn Clock>,
    /// Set when the threads are to end.
    pub stop: Arc<AtomicBool>,
    /// Set when one of them has panicked.
    pub broken: Arc<AtomicBool>,
    /// Processors that movers keep to, in turn. Empty: any processor.
    pub cores: Arc<[usize]>,
}

/// A mover and its thread.
#[derive(Default)]
struct Seat {
    /// `None` while the mover is lent, and for ever if the thread did not give it back.
    mover: Option<Box<Mover>>,
    worker: Option<Worker>,
    /// Set if the mover has turns without a thread: the simulation gives them.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    simulated: bool,
}

impl Seat {
    fn works(&self) -> bool {
        #[cfg(any(test, fuzzing, feature = "testing"))]
        if self.simulated {
            return true;
        }
        self.worker.is_some()
    }
}

struct Worker {
    thread: JoinHandle<()>,
    lent: Receiver<Box<Mover>>,
    back: Sender<Box<Mover>>,
}

impl Crew {
    /// Binds the calling thread to the processor of a mover.
    pub fn pin(&self, mover: MoverId) {
        let Some(&core) = self.cores.get(mover.index() % self.cores.len().max(1)) else { return };
        let mut set = CpuSet::new();
        set.set(core);
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::warn!(%mover, core, %error, "cannot keep a mover to its processor");
        }
    }
}

impl Movers {
    /// Makes the movers, of which only the first has turns until [`Self::start`].
    pub fn new(own: Mover, others: Vec<Mover>, inboxes: Vec<Arc<Mailbox<ToMover>>>, crew: Crew) -> Self {
        let metrics = std::iter::once(&own).chain(&others).map(Mover::metrics).collect();
        let own = Box::new(own);
        let others = others.into_iter().map(|mover| Seat { mover: Some(Box::new(mover)), ..Seat::default() });
        Self {
            others: others.collect(),
            own: RefCell::new(own),
            inboxes,
            metrics,
            crew,
            #[cfg(test)]
            listener: None,
        }
    }

    /// Returns the number of movers.
    pub fn len(&self) -> usize {
        self.inboxes.len()
    }

    /// Iterates over all movers.
    pub fn ids(&self) -> impl Iterator<Item = MoverId> {
        (0..self.len()).map(MoverId::at)
    }

    /// Tells whether a mover has turns.
    pub fn works(&self, id: MoverId) -> bool {
        id.index().checked_sub(1).is_none_or(|at| self.others.get(at).is_some_and(Seat::works))
    }

    /// Iterates over the movers that have turns.
    pub fn working(&self) -> impl Iterator<Item = MoverId> + '_ {
        self.ids().filter(|&id| self.works(id))
    }

    /// Starts a mover's thread.
    ///
    /// # Errors
    /// Errors of making a thread. An error without errno where the driver ends.
    pub fn start(&mut self, id: MoverId) -> std::io::Result<()> {
        let Some(seat) = id.index().checked_sub(1).and_then(|at| self.others.get_mut(at)) else {
            return Ok(());
        };
        if seat.works() {
            return Ok(());
        }
        if seat.mover.is_none() {
            // Its last thread has ended with it. A new one would wait for it without end, and the conductor for the thread.
            return Err(std::io::Error::other("the driver ends"));
        }
        may(Call::Thread)?;
        #[cfg(any(test, fuzzing, feature = "testing"))]
        if simulated::is_on() {
            seat.simulated = true;
            return Ok(());
        }
        let ((lend, lent), (back, again)) = (channel(), channel::<Box<Mover>>());
        let crew = self.crew.clone();
        let work = move || {
            let _alarm = Alarm(&crew.broken);
            crew.pin(id);
            run(&lend, &again, &*crew.clock, &crew.stop);
        };
        let thread = std::thread::Builder::new().name(format!("pd-mover-{id}")).spawn(work)?;
        if let Some(mover) = seat.mover.take() {
            // A thread that has ended already is noticed when it is to give the mover back.
            let _ = back.send(mover);
        }
        seat.worker = Some(Worker { thread, lent, back });
        Ok(())
    }

    /// Ends a mover's thread. The mover must serve no client.
    pub fn park(&mut self, id: MoverId) {
        self.take_back();
        let Some(seat) = id.index().checked_sub(1).and_then(|at| self.others.get_mut(at)) else { return };
        #[cfg(any(test, fuzzing, feature = "testing"))]
        {
            seat.simulated = false;
        }
        if let Some(Worker { thread, back, .. }) = seat.worker.take() {
            drop(back);
            // A panic has set off its alarm.
            let _ = thread.join();
        }
        self.give_back();
    }

    /// Stops all movers with nothing on its way between them, and calls `change` with them. `None`: a mover did not come back, because the
    /// driver ends.
    pub fn with_all<T>(&mut self, change: impl FnOnce(&mut [&mut Mover]) -> T) -> Option<T> {
        let are_there = self.take_back();
        let own = self.own.get_mut();
        let mut all = vec![&mut **own];
        all.extend(self.others.iter_mut().filter_map(|seat| seat.mover.as_deref_mut()));
        let done = are_there.then(|| {
            transfer::settle(&mut all);
            change(&mut all)
        });
        self.give_back();
        done
    }

    /// Stops all movers until [`Self::let_go`]. Returns whether all have come back.
    pub fn hold(&mut self) -> bool {
        self.take_back()
    }

    /// Lets threads go on with the movers that they were lent.
    pub fn let_go(&mut self) {
        self.give_back();
    }

    /// Delivers everything that is on its way between movers, which stand still. Returns whether there was anything.
    pub fn settle(&mut self) -> bool {
        transfer::settle(&mut self.all())
    }

    /// Returns the state that another driver goes on with. Movers stand still.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(&mut self, pack: &mut Pack) -> Result<Vec<MoverState>, Hindrance> {
        self.all().into_iter().map(|mover| mover.give(pack)).collect()
    }

    /// Returns all movers, which stand still.
    pub fn all(&mut self) -> Vec<&mut Mover> {
        let mut all = vec![&mut **self.own.get_mut()];
        all.extend(self.others.iter_mut().filter_map(|seat| seat.mover.as_deref_mut()));
        all
    }

    /// Takes all movers back from their threads. Returns whether all are there.
    fn take_back(&mut self) -> bool {
        let lent = |seat: &Seat| seat.worker.is_some() && seat.mover.is_none();
        for (_, inbox) in self.others.iter().zip(&self.inboxes[1..]).filter(|(seat, _)| lent(seat)) {
            inbox.send(ToMover::ComeBack);
        }
        for seat in self.others.iter_mut().filter(|seat| lent(seat)) {
            seat.mover = seat.worker.as_ref().and_then(|worker| worker.lent.recv().ok());
        }
        self.others.iter().all(|seat| seat.mover.is_some())
    }

    fn give_back(&mut self) {
        for Seat { mover, worker, .. } in &mut self.others {
            let Some(worker) = worker else { continue };
            if let Some(mover) = mover.take() {
                // The driver ends if the thread has ended.
                let _ = worker.back.send(mover);
            }
        }
    }

    /// Returns the time for which a mover has had nothing to do, in all.
    pub fn idle_time(&self, id: MoverId) -> Duration {
        Duration::from_nanos(self.metrics[id.index()].mover_idle_ns.get())
    }

    /// Tells whether a mover's thread sleeps.
    pub fn is_asleep(&self, id: MoverId) -> bool {
        self.inboxes[id.index()].is_asleep()
    }

    /// Sends a command to a mover.
    #[inline]
    pub fn send(&self, to: MoverId, mut command: ToMover) {
        #[cfg(test)]
        if let Some(listener) = &self.listener {
            return listener.send(command);
        }
        match to.index() {
            0 => self.own.borrow_mut().apply_command(&mut command),
            other => self.inboxes[other].send(command),
        }
    }

    /// Moves the messages of the mover of the same thread into `into`, which is empty.
    pub fn take_messages(&mut self, into: &mut VecDeque<ToConductor>) {
        self.own().take_messages(into);
    }

    /// Returns the mover of the same thread.
    pub fn own(&mut self) -> &mut Mover {
        self.own.get_mut()
    }

    /// Joins the threads, which have been told to stop.
    pub fn join(&mut self) {
        for Worker { thread, back, .. } in self.others.iter_mut().filter_map(|seat| seat.worker.take()) {
            drop(back);
            // A panic has set off its alarm.
            let _ = thread.join();
        }
    }
}

#[cfg(any(test, fuzzing, feature = "testing"))]
impl Movers {
    /// Returns a mover other than the first, if the simulation gives it turns.
    pub fn simulated(&mut self, id: MoverId) -> Option<&mut Mover> {
        let seat = self.others.get_mut(id.index().checked_sub(1)?)?;
        seat.mover.as_deref_mut().filter(|_| seat.simulated)
    }

    /// Tells whether the doorbell of a mover that has no thread was rung.
    pub fn is_rung(&self, id: MoverId) -> bool {
        match id.index().checked_sub(1) {
            None => self.own.borrow().is_rung(),
            Some(at) => self.others.get(at).and_then(|s| s.mover.as_ref()).is_some_and(|m| m.is_rung()),
        }
    }
}

/// Guard that sets a flag when its thread panics.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

/// Gives a mover its turns until it is called back, then waits for another.
fn run(lend: &Sender<Box<Mover>>, again: &Receiver<Box<Mover>>, clock: &dyn Clock, stop: &AtomicBool) {
    while let Ok(mut mover) = again.recv() {
        loop {
            if stop.load(Ordering::Acquire) {
                return;
            }
            let worked = mover.step();
            if mover.is_called_back() {
                break;
            }
            if !worked {
                mover.idle(Some(clock.now() + STOP_POLL), |_| {}, || false);
            }
        }
        if lend.send(mover).is_err() {
            return;
        }
    }
}
