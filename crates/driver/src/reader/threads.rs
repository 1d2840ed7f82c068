//! The threads of [`super`], two for each payer with a file socket, and the queues of their jobs.
//!
//! A thread ends a second after nobody can ask its payer's any more, so that who comes and goes costs few of them. One that
//! is held up stays, and so does its queue: clients that the payer gets meanwhile wait behind the same jobs, so that a payer never
//! has more threads than these two.
use super::apart::{Apart, Side};
use super::Job;
use crate::calls::{may, simulated, Call};
use crate::ids::Payer;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread stays that nobody can ask.
const LINGER: Duration = Duration::from_secs(1);

/// What a thread is held up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// By what a client has passed, for as long as the client likes. On the far side ([`super::apart`]).
    Opener,
    /// By disks.
    Reader,
}

/// All threads. Movers ask for those of a payer when a client gets its file socket, and never for a send.
#[derive(Debug, Default)]
pub struct Readers {
    shared: Arc<Shared>,
    /// Once it was needed.
    apart: OnceLock<Apart>,
}

/// For threads of both sides: nothing here has a descriptor.
#[derive(Debug, Default)]
struct Shared {
    queues: Mutex<HashMap<(Payer, Kind), Arc<Queue>>>,
    /// A thread has ended.
    ended: Condvar,
    /// One has panicked.
    is_broken: AtomicBool,
    /// Nobody will ask any more.
    is_ending: AtomicBool,
}

/// A payer's threads. Clones are of the same ones.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(super) opener: Handle,
    pub(super) reader: Handle,
}

/// A way to a thread, which lives at least as long.
#[derive(Debug)]
pub struct Handle(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    /// There is a job, or nobody can ask any more.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    handles: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Readers {
    /// The payer's threads, which are started unless they run.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn of(&self, payer: Payer) -> std::io::Result<Reader> {
        Ok(Reader { opener: self.handle(payer, Kind::Opener)?, reader: self.handle(payer, Kind::Reader)? })
    }

    /// Makes the side of openers, while there are few descriptors in the driver.
    ///
    /// # Errors
    /// Those of a socket pair, a thread, and a table of its own.
    pub fn prepare(&self) -> std::io::Result<()> {
        self.apart().map(drop)
    }

    /// The side of openers.
    ///
    /// # Errors
    /// Those of [`Apart::new`].
    pub(super) fn apart(&self) -> std::io::Result<&Apart> {
        if let Some(apart) = self.apart.get() {
            return Ok(apart);
        }
        // Of two that are made at once one is as good as the other.
        let made = Apart::new()?;
        Ok(self.apart.get_or_init(|| made))
    }

    fn handle(&self, payer: Payer, kind: Kind) -> std::io::Result<Handle> {
        may(Call::Thread)?;
        let apart = self.apart()?;
        let mut queues = lock(&self.shared.queues);
        if let Some(queue) = queues.get(&(payer, kind)) {
            return Ok(Handle::new(queue));
        }
        let queue = Arc::new(Queue::default());
        let handle = Handle::new(&queue);
        if simulated::is_on() {
            queues.insert((payer, kind), queue);
            return Ok(handle);
        }
        let running = Running { shared: Arc::clone(&self.shared), key: (payer, kind) };
        let served = Arc::clone(&queue);
        match kind {
            Kind::Opener => apart.spawn("pd-opener", Box::new(move |side| running.run(&served, side)))?,
            Kind::Reader => {
                let side = Arc::clone(apart.near());
                let run = move || running.run(&served, &side);
                std::thread::Builder::new().name("pd-reader".into()).spawn(run)?;
            }
        }
        queues.insert((payer, kind), queue);
        Ok(handle)
    }

    /// Payers for which a thread has something to do, in order.
    #[cfg(any(test, fuzzing, feature = "hostile"))]
    pub(super) fn busy(&self) -> Vec<(Payer, Kind)> {
        let queues = lock(&self.shared.queues);
        let busy = queues.iter().filter(|(_, queue)| !lock(&queue.state).jobs.is_empty());
        let mut busy: Vec<_> = busy.map(|(&key, _)| key).collect();
        busy.sort_unstable();
        busy
    }

    /// Changes a thread's jobs.
    #[cfg(any(test, fuzzing, feature = "hostile"))]
    pub(super) fn with_jobs<T>(
        &self,
        key: (Payer, Kind),
        change: impl FnOnce(&mut VecDeque<Job>) -> T,
    ) -> Option<T> {
        let queue = lock(&self.shared.queues).get(&key).cloned()?;
        let mut state = lock(&queue.state);
        Some(change(&mut state.jobs))
    }

    /// Waits until all threads have ended, or for so long. Nobody asks for one afterwards.
    pub fn wait_ended(&self, most: Duration) {
        let until = Instant::now() + most;
        let mut queues = lock(&self.shared.queues);
        self.shared.is_ending.store(true, Ordering::Relaxed);
        for queue in queues.values() {
            let _state = lock(&queue.state);
            queue.changed.notify_one();
        }
        while !queues.is_empty() {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                tracing::warn!(threads = queues.len(), "closing clients' files takes long");
                return;
            };
            queues = self.shared.ended.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether a thread has panicked.
    pub fn is_broken(&self) -> bool {
        self.shared.is_broken.load(Ordering::Relaxed)
    }

    /// Threads that run.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        lock(&self.shared.queues).len()
    }
}

/// A thread, from its start to its end.
struct Running {
    shared: Arc<Shared>,
    key: (Payer, Kind),
}

impl Running {
    fn run(self, queue: &Queue, side: &Side) {
        loop {
            while let Some(job) = queue.next(&self.shared.is_ending) {
                job.carry_out(side);
            }
            // Under this lock nobody gets a handle.
            let mut queues = lock(&self.shared.queues);
            let is_over = {
                let state = lock(&queue.state);
                state.handles == 0 && state.jobs.is_empty()
            };
            if is_over {
                queues.remove(&self.key);
                self.shared.ended.notify_all();
                return;
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

impl Queue {
    /// The next job. None: nobody can ask any more, and nobody has come for a while.
    fn next(&self, is_ending: &AtomicBool) -> Option<Job> {
        let mut state = lock(&self.state);
        let mut until = None;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.handles > 0 {
                until = None;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let left =
                until.get_or_insert_with(|| Instant::now() + LINGER).checked_duration_since(Instant::now());
            let left = left.filter(|left| !left.is_zero() && !is_ending.load(Ordering::Relaxed))?;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Handle {
    fn new(queue: &Arc<Queue>) -> Self {
        lock(&queue.state).handles += 1;
        Self(Arc::clone(queue))
    }

    /// Has the thread do something, after all that was asked before.
    pub(super) fn give(&self, job: Job) {
        lock(&self.0.state).jobs.push_back(job);
        self.0.changed.notify_one();
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.handles -= 1;
        if state.handles == 0 {
            self.0.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{payer, TenantId};

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A job that waits until the sender has gone.
    fn held_up() -> (std::sync::mpsc::Sender<()>, Job) {
        let (sender, receiver) = std::sync::mpsc::channel();
        (sender, Job::Wait(receiver))
    }

    #[test]
    fn a_payer_has_two_threads_until_nobody_can_ask() {
        let readers = Readers::default();
        let (one, again) = (
            readers.of(payer(TenantId::new(1), 0)).unwrap(),
            readers.of(payer(TenantId::new(1), 5)).unwrap(),
        );
        assert_eq!(readers.count(), 2);
        let other = readers.of(payer(TenantId::new(0), 5)).unwrap();
        assert_eq!(readers.count(), 4);
        drop((one, other));
        let until = Instant::now() + PATIENCE;
        while readers.count() > 2 {
            assert!(Instant::now() < until, "{readers:?}");
            std::thread::yield_now();
        }
        drop(again);
        readers.wait_ended(PATIENCE);
        assert_eq!((readers.count(), readers.is_broken()), (0, false));
    }

    #[test]
    fn a_payer_that_is_held_up_waits_alone_and_gets_no_second_thread() {
        let readers = Readers::default();
        let (held, job) = held_up();
        let slow = readers.of(payer(TenantId::new(1), 0)).unwrap();
        slow.opener.give(job);
        // Who has gone leaves the thread behind, and whoever comes finds it.
        drop(slow);
        let slow = readers.of(payer(TenantId::new(1), 0)).unwrap();
        let (answer, later) = std::sync::mpsc::channel();
        slow.opener.give(Job::Say(answer));
        let (answer, at_once) = std::sync::mpsc::channel();
        readers.of(payer(TenantId::new(2), 0)).unwrap().opener.give(Job::Say(answer));
        at_once.recv_timeout(PATIENCE).unwrap();
        // Disks are waited for elsewhere.
        let (answer, at_once) = std::sync::mpsc::channel();
        slow.reader.give(Job::Say(answer));
        at_once.recv_timeout(PATIENCE).unwrap();
        assert!(later.try_recv().is_err());
        drop(slow);
        readers.wait_ended(Duration::from_millis(10));
        assert!(readers.count() >= 1);
        drop(held);
        later.recv_timeout(PATIENCE).unwrap();
        readers.wait_ended(PATIENCE);
        assert_eq!(readers.count(), 0);
    }
}
