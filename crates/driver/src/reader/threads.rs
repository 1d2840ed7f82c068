//! The threads of [`super`], two for each payer with a file socket, and the queues of their jobs.
//!
//! A thread ends a second after the last handle of its payer is dropped, so that clients that come and go start few threads. A
//! blocked thread stays, and so does its queue. New clients of the payer wait behind the same jobs, so that a payer never has more
//! than these two threads.
use super::apart::{Apart, Side};
use super::Job;
use crate::calls::{may, simulated, Call};
use crate::ids::Payer;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a thread without handles stays.
const LINGER: Duration = Duration::from_secs(1);

/// Kind of a thread, by the cause of its waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Waits for passed descriptors, for as long as the client likes. Runs on the far side ([`super::apart`]).
    Opener,
    /// Waits for disks.
    Reader,
}

/// All threads. Movers take those of a payer when a client gets its file socket, and never for a send.
#[derive(Debug, Default)]
pub struct Readers {
    shared: Arc<Shared>,
    /// The far side, once it was needed.
    apart: OnceLock<Apart>,
}

/// State for threads of both sides, without descriptors.
#[derive(Debug, Default)]
struct Shared {
    queues: Mutex<HashMap<(Payer, Kind), Arc<Queue>>>,
    /// Signals the end of a thread.
    ended: Condvar,
    /// Set when a thread has panicked.
    is_broken: AtomicBool,
    /// Set when no more handles are given out.
    is_ending: AtomicBool,
}

/// A payer's threads. Clones refer to the same ones.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(super) opener: Handle,
    pub(super) reader: Handle,
}

/// A handle of a thread, which lives at least as long.
#[derive(Debug)]
pub struct Handle(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    /// Signals a job, or the loss of the last handle.
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
    /// Returns the payer's threads, and starts them unless they run.
    ///
    /// # Errors
    /// Errors of starting a thread.
    pub fn of(&self, payer: Payer) -> std::io::Result<Reader> {
        Ok(Reader { opener: self.handle(payer, Kind::Opener)?, reader: self.handle(payer, Kind::Reader)? })
    }

    /// Makes the side of openers, while the driver has few descriptors.
    ///
    /// # Errors
    /// Errors of a socket pair, a thread, and a table of its own.
    pub fn prepare(&self) -> std::io::Result<()> {
        self.apart().map(drop)
    }

    /// Returns the side of openers.
    ///
    /// # Errors
    /// Errors of [`Apart::new`].
    pub(super) fn apart(&self) -> std::io::Result<&Apart> {
        if let Some(apart) = self.apart.get() {
            return Ok(apart);
        }
        // Two threads may make one at once; either will do.
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

    /// Returns the threads that have jobs, by payer, in order.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub(super) fn busy(&self) -> Vec<(Payer, Kind)> {
        let queues = lock(&self.shared.queues);
        let busy = queues.iter().filter(|(_, queue)| !lock(&queue.state).jobs.is_empty());
        let mut busy: Vec<_> = busy.map(|(&key, _)| key).collect();
        busy.sort_unstable();
        busy
    }

    /// Changes a thread's jobs.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub(super) fn with_jobs<T>(
        &self,
        key: (Payer, Kind),
        change: impl FnOnce(&mut VecDeque<Job>) -> T,
    ) -> Option<T> {
        let queue = lock(&self.shared.queues).get(&key).cloned()?;
        let mut state = lock(&queue.state);
        Some(change(&mut state.jobs))
    }

    /// Waits until all threads have ended, or for `most`. No threads are started afterwards.
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

    /// Tells whether a thread has panicked.
    pub fn is_broken(&self) -> bool {
        self.shared.is_broken.load(Ordering::Relaxed)
    }

    /// Returns the number of running threads.
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
                job.run(side);
            }
            // No handle is given out under this lock.
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
    /// Returns the next job. None: there was no handle for a while.
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

    /// Queues a job, behind all earlier ones.
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

    /// Makes a job that waits until the sender is dropped.
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
        // A client that goes leaves the thread behind, and the next one finds it.
        drop(slow);
        let slow = readers.of(payer(TenantId::new(1), 0)).unwrap();
        let (answer, later) = std::sync::mpsc::channel();
        slow.opener.give(Job::Say(answer));
        let (answer, at_once) = std::sync::mpsc::channel();
        readers.of(payer(TenantId::new(2), 0)).unwrap().opener.give(Job::Say(answer));
        at_once.recv_timeout(PATIENCE).unwrap();
        // Another thread waits for disks.
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
