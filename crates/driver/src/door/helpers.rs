//! Helpers: threads for work that takes long, or as long as a client likes. Each payer has one, so that nobody waits for the memory, the
//! descriptors or the disk of another tenant. A helper ends when it has had nothing to do for a while.
use super::claim::Claim;
use super::messages::{Made, Reading, ToDoor};
use crate::addresses;
use crate::calls::{may, simulated, Call};
use crate::hash::HashMap;
use crate::identity::NamespaceId;
use crate::ids::ClientId;
use crate::mailbox::Mailbox;
use crate::memory::{Lease, Lent, Pool, Region};
use crate::messages::{Payer, DRIVER};
use crate::pipes::{NewPipe, PipeMemory};
use pd_abi::pipe::PipeRequest;
use pd_abi::Frame;
use pd_pipe::Shape;
use pd_shm::{attach, memfd, Mapping};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::setpriority_process;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a helper waits for more to do.
const IDLE: Duration = Duration::from_secs(1);

/// Nice value of a helper: a third of the weight of movers and programs. The work is slow anyway, and of an attacker's choosing.
const NICE: i32 = 5;

/// Most held regions that are looked at in one sweep.
const HELD_LOOKS: usize = 256;

/// Work of a helper.
#[derive(Debug)]
pub enum Job {
    /// Makes a send region.
    SendRegion(Lease),
    /// Makes a receive region for rings of this number of bytes.
    ReceiveRegion(Lease, u64),
    /// Takes the pages of a receive region back, or makes them again.
    Empty(u32, Box<Region>),
    Fill(u32, Box<Region>),
    /// Seals a send region, and sees to it that the region is whole.
    Seal {
        number: u32,
        fd: OwnedFd,
        map: Arc<Mapping>,
    },
    /// Reads the addresses of a network namespace, for a payer.
    Addresses(Payer, NamespaceId, Arc<OwnedFd>),
    /// Proves that a client listens.
    Prove(Box<Claim>),
    /// Receives a frame, and any descriptors that come with it.
    Receive(Arc<OwnedFd>),
    /// Sends an answer with a socket. Takes as long as the kernel collects the sockets in flight.
    Tell(Arc<OwnedFd>, Box<Frame>, Vec<OwnedFd>),
    /// Lets regions go.
    Drop(Vec<Region>),
    /// Makes a pipe. The lease is for the pipe.
    Pipe(Box<(Lease, Shape, PipeRequest)>),
    /// Seals the memory of a pipe that a client has mapped, and sees to it that the memory is whole.
    SealPipe(u32, Arc<PipeMemory>),
    /// Lets other memory go.
    LetGo(Vec<Arc<dyn Lent>>),
}

/// All helpers.
#[derive(Debug)]
pub struct Helpers {
    pool: Arc<Pool>,
    door: Arc<Mailbox<ToDoor>>,
    queues: HashMap<Payer, Arc<Queue>>,
    /// Regions of previous clients that others hold.
    held: Vec<Region>,
    /// Other memory of previous clients that others hold.
    lent: Vec<Arc<dyn Lent>>,
}

/// Client for which a job is done, and its serial.
pub type For = (ClientId, u64);
/// No client: none has this serial.
pub const NOBODY: For = (ClientId::new(0), 0);

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<(For, Job)>,
    is_served: bool,
    /// Set while its helper has taken a job and not told of it yet.
    is_busy: bool,
}

impl Helpers {
    /// Makes an empty set. Helpers tell the door of their work.
    pub fn new(pool: Arc<Pool>, door: Arc<Mailbox<ToDoor>>) -> Self {
        Self { pool, door, queues: HashMap::default(), held: Vec::new(), lent: Vec::new() }
    }

    /// Gives a payer's helper a job.
    pub fn give(&mut self, payer: Payer, whose: For, job: Job) {
        let queue = Arc::clone(self.queues.entry(payer).or_default());
        let mut state = queue.lock();
        state.jobs.push_back((whose, job));
        queue.filled.notify_one();
        if !state.is_served {
            state.is_served = true;
            drop(state);
            self.serve(queue);
        }
    }

    fn serve(&self, queue: Arc<Queue>) {
        let (pool, door) = (Arc::clone(&self.pool), Arc::clone(&self.door));
        let served = Arc::clone(&queue);
        let start = || {
            may(Call::Thread)?;
            if simulated::is_on() {
                return Ok(()); // the simulation has the jobs done when it likes
            }
            std::thread::Builder::new()
                .name("pd-helper".into())
                .spawn(move || served.run(&pool, &door))
                .map(drop)
        };
        if let Err(error) = start() {
            tracing::warn!(%error, "cannot start a thread: its clients wait");
            queue.lock().is_served = false;
        }
    }

    /// Tells whether all jobs are done, and told of.
    pub fn are_idle(&self) -> bool {
        self.queues.values().all(|queue| {
            let state = queue.lock();
            state.jobs.is_empty() && !state.is_busy
        })
    }

    /// Takes regions that are not let go. Each sweep looks whether they are.
    pub fn hold(&mut self, regions: Vec<Region>) {
        self.held.extend(regions);
    }

    /// Takes other memory that is not let go. Each sweep looks whether it is.
    pub fn hold_lent(&mut self, memory: Vec<Arc<dyn Lent>>) {
        self.lent.extend(memory);
    }

    /// Starts threads that could not be started before, forgets helpers that have ended, and looks at some of the held regions.
    pub fn sweep(&mut self) {
        if !self.held.is_empty() {
            let looks = self.held.len().min(HELD_LOOKS);
            let looked_at = self.held.drain(..looks).collect();
            self.give(DRIVER, NOBODY, Job::Drop(looked_at));
        }
        if !self.lent.is_empty() {
            let looks = self.lent.len().min(HELD_LOOKS);
            let looked_at = self.lent.drain(..looks).collect();
            self.give(DRIVER, NOBODY, Job::LetGo(looked_at));
        }
        let stuck: Vec<_> = self.queues.values().filter(|queue| queue.take_over()).cloned().collect();
        stuck.into_iter().for_each(|queue| self.serve(queue));
        self.queues.retain(|_, queue| {
            let state = queue.lock();
            state.is_served || !state.jobs.is_empty()
        });
    }
}

#[cfg(any(test, fuzzing, feature = "testing"))]
impl Helpers {
    /// Lists the payers whose helper has something to do.
    pub fn helped(&self) -> Vec<Payer> {
        let has_jobs = |queue: &Queue| {
            let state = queue.lock();
            state.is_served && !state.jobs.is_empty()
        };
        let helped = self.queues.iter().filter(|(_, queue)| has_jobs(queue));
        let mut helped: Vec<_> = helped.map(|(payer, _)| *payer).collect();
        helped.sort_unstable();
        helped
    }

    /// Does one job of a payer's helper.
    pub fn help(&self, payer: Payer) {
        let job = self.queues.get(&payer).and_then(|queue| queue.lock().jobs.pop_front());
        if let Some(((client, serial), made)) =
            job.and_then(|(whose, job)| Some((whose, job.run(&self.pool)?)))
        {
            self.door.send(ToDoor::Made { client, serial, made });
        }
    }

    /// Ends helpers that have nothing to do.
    pub fn end_idle(&self) {
        for queue in self.queues.values() {
            let mut state = queue.lock();
            state.is_served &= !state.jobs.is_empty();
        }
    }

    /// Returns the number of jobs, and of regions that others hold.
    pub fn leftovers(&self) -> usize {
        self.held.len()
            + self.lent.len()
            + self.queues.values().map(|queue| queue.lock().jobs.len()).sum::<usize>()
    }
}

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whether there are jobs that no thread does. The caller is to start one.
    fn take_over(&self) -> bool {
        let mut state = self.lock();
        let is_stuck = !state.is_served && !state.jobs.is_empty();
        state.is_served |= is_stuck;
        is_stuck
    }

    fn run(&self, pool: &Pool, door: &Mailbox<ToDoor>) {
        if let Err(error) = setpriority_process(None, NICE) {
            tracing::debug!(%error, "a helper has the weight of other threads");
        }
        let mut state = self.lock();
        loop {
            let waited = self.filled.wait_timeout_while(state, IDLE, |state| state.jobs.is_empty());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let Some(((client, serial), job)) = state.jobs.pop_front() else {
                state.is_served = false;
                return;
            };
            state.is_busy = true;
            drop(state);
            if let Some(made) = job.run(pool) {
                door.send(ToDoor::Made { client, serial, made });
            }
            state = self.lock();
            state.is_busy = false;
        }
    }
}

impl Job {
    fn run(self, pool: &Pool) -> Option<Made> {
        match self {
            Self::SendRegion(lease) => Some(Made::SendRegion(pool.send_region(lease))),
            Self::ReceiveRegion(lease, ring_bytes) => {
                Some(Made::ReceiveRegion(pool.receive_region(lease, ring_bytes)))
            }
            Self::Empty(number, mut region) => {
                if let Err(error) = region.empty() {
                    tracing::debug!(%error, "an idle receive region keeps its pages");
                }
                Some(Made::Emptied(number, region))
            }
            Self::Fill(number, mut region) => {
                let filled = region.fill();
                Some(Made::Filled(number, region, filled))
            }
            Self::Seal { number, fd, map } => {
                let seal = || {
                    memfd::seal_against_all(&fd)?;
                    // The client may have punched holes since the region was made: every page exists again.
                    may(Call::Populate)?;
                    map.populate(0, map.len())
                };
                let sealed = seal().map(|()| Arc::clone(&map));
                Some(Made::Sealed { number, sealed })
            }
            Self::Addresses(payer, id, namespace) => {
                let read = || {
                    let begun = Instant::now();
                    let found = addresses::list(&namespace);
                    (found, begun.elapsed())
                };
                let (found, took) = simulated::addresses(id).unwrap_or_else(read);
                Some(Made::Addresses(Box::new(Reading { payer, id, _namespace: namespace, found, took })))
            }
            Self::Prove(claim) => Some(Made::Proved(Box::new(claim.prove()))),
            Self::Receive(socket) => Some(Made::Received(receive(&socket))),
            Self::Tell(socket, frame, fds) => {
                Some(Made::Told(send(&socket, &frame, &fds).map_err(|errno| (errno, frame, fds))))
            }
            Self::Drop(mut regions) => {
                regions.retain(|region| !region.is_let_go());
                (!regions.is_empty()).then_some(Made::Held(regions))
            }
            Self::Pipe(wished) => {
                let (lease, shape, request) = *wished;
                Some(Made::Pipe(NewPipe::make(lease, pool.shelf(), shape, request).map(Box::new)))
            }
            Self::SealPipe(number, memory) => Some(Made::PipeSealed(number, memory.seal())),
            Self::LetGo(mut lent) => {
                lent.retain(|memory| !memory.is_let_go());
                (!lent.is_empty()).then_some(Made::StillLent(lent))
            }
        }
    }
}

/// Sends a frame, without waiting for room.
pub(super) fn send(socket: &OwnedFd, frame: &Frame, fds: &[OwnedFd]) -> Result<(), Errno> {
    may(Call::Send)?;
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    attach::send(socket, frame, &fds, SendFlags::DONTWAIT)
}

/// Receives a frame, and lets go of any descriptors that come with it. Returns whether there were any. `None`: the end.
pub(super) fn receive(socket: &OwnedFd) -> Result<Option<(Box<Frame>, bool)>, Errno> {
    may(Call::Receive)?;
    let received = attach::receive(socket, RecvFlags::DONTWAIT)?;
    Ok(received.map(|(frame, fds)| {
        let gives = !fds.is_empty();
        attach::close_elsewhere(fds);
        (Box::new(frame), gives)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::memory::{Amounts, HugepageUse};

    fn take(door: &Mailbox<ToDoor>) -> VecDeque<ToDoor> {
        let until = Instant::now() + Duration::from_secs(10);
        let mut taken = VecDeque::new();
        while taken.is_empty() {
            assert!(Instant::now() < until, "nothing made");
            std::thread::sleep(Duration::from_millis(1));
            door.drain(&mut taken);
        }
        taken
    }

    #[test]
    fn jobs_are_done_in_order_and_helpers_end() {
        let pool = Pool::new(1 << 20, HugepageUse::Off);
        let door = Mailbox::new().unwrap();
        let mut helpers = Helpers::new(Arc::clone(&pool), Arc::clone(&door));
        let (payer, whose) = ((TenantId::new(3), None), (ClientId::new(1), 7));
        helpers.give(payer, whose, Job::SendRegion(pool.root().lease(Amounts::memory(8192)).unwrap()));
        let made = take(&door).pop_front();
        let Some(ToDoor::Made { client, serial, made: Made::SendRegion(Ok((region, fd))) }) = made else {
            panic!("{made:?}")
        };
        assert_eq!((client, serial), whose);
        let map = Arc::clone(&region.map);
        helpers.give(payer, whose, Job::Seal { number: 5, fd, map });
        let made = take(&door).pop_front();
        assert!(
            matches!(made, Some(ToDoor::Made { made: Made::Sealed { number: 5, sealed: Ok(_) }, .. })),
            "{made:?}"
        );
        helpers.give(payer, whose, Job::Drop(vec![region]));
        let until = Instant::now() + Duration::from_secs(10);
        while !helpers.queues.is_empty() || pool.usage().0 > 0 {
            assert!(Instant::now() < until, "{helpers:?}");
            std::thread::sleep(Duration::from_millis(5));
            helpers.sweep();
        }
    }
}
