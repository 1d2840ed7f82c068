//! Requests of POSIX aio on descriptors that the library knows. The C library carries requests out by functions of its own, past the
//! hooks: on the kernel's socket, where nothing comes. So such requests are queued here, and a thread for each descriptor carries them
//! out by the hooks, one after the other and by priority, as the C library's threads do.
//!
//! The state and the result of a request lie in the program's control block, at the C library's places: `aio_error` and `aio_return` of
//! the C library tell of these requests, too. Requests belong to the process that made them; a forked child has none.
mod events;
pub(crate) mod lists;
mod serving;
pub(crate) mod waiting;

pub(crate) use events::Event;

use crate::call::{lock, Failure, Outcome};
use libc::{c_int, c_void};
use lists::Batch;
use std::collections::{BTreeMap, VecDeque};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicIsize, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Operations, as the C library numbers them.
pub(crate) const LIO_READ: c_int = 0;
pub(crate) const LIO_WRITE: c_int = 1;
pub(crate) const LIO_NOP: c_int = 2;
pub(crate) const LIO_DSYNC: c_int = 3;
pub(crate) const LIO_SYNC: c_int = 4;

/// Modes of `lio_listio`.
pub(crate) const LIO_WAIT: c_int = 0;
pub(crate) const LIO_NOWAIT: c_int = 1;

/// Answers of `aio_cancel`.
pub(crate) const CANCELED: c_int = 0;
pub(crate) const NOT_CANCELED: c_int = 1;

/// Highest difference to the thread's priority that a request may ask for (`AIO_PRIO_DELTA_MAX`).
const PRIORITY_DELTA_MAX: c_int = 20;

/// The C library's `struct aiocb`, up to the result.
#[repr(C)]
pub(crate) struct Block {
    fd: c_int,
    operation: c_int,
    priority: c_int,
    buffer: *mut c_void,
    len: usize,
    event: Event,
    next: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    result: isize,
}

const _: () = assert!(offset_of!(libc::aiocb, aio_sigevent) == offset_of!(Block, event));
const _: () = assert!(offset_of!(libc::aiocb, aio_offset) == size_of::<Block>());
const _: () = assert!(size_of::<libc::sigevent>() == size_of::<Event>());

/// Work of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) fd: c_int,
    pub(crate) operation: c_int,
    pub(crate) buffer: *mut c_void,
    pub(crate) len: usize,
}

/// Carries a job out. Returns the result, or an errno.
pub(crate) type Carry = unsafe fn(Job) -> Result<isize, c_int>;

/// A request that is not done.
struct Request {
    block: *mut Block,
    job: Job,
    carry: Carry,
    priority: c_int,
    /// The list that it came with.
    batch: Option<Arc<Batch>>,
}

// SAFETY: the program leaves the control block and the buffer to the request until that is done.
unsafe impl Send for Request {}

#[derive(Default)]
struct Queues {
    /// Requests of each descriptor that has some. The first one is carried out, or is about to be.
    of: BTreeMap<c_int, VecDeque<Request>>,
    /// Descriptors whose first request no thread has begun.
    ready: VecDeque<c_int>,
    threads: usize,
    /// Threads without work.
    idle: usize,
}

impl Queues {
    fn has(&self, block: *const Block) -> bool {
        self.of.values().flatten().any(|request| std::ptr::eq(request.block, block))
    }
}

/// The requests of one process.
#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    /// Ends the sleep of a thread without work.
    work: Condvar,
    /// Counts requests that are done: the futex of waits for some.
    done: AtomicU32,
}

/// Leaked when made, and never freed. Null: there were no requests.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());
static ANY: AtomicBool = AtomicBool::new(false);

/// Returns whether this process has made such requests. Otherwise all are the C library's.
#[inline]
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

fn made() -> Option<&'static Shared> {
    // SAFETY: null, or leaked by `shared`.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

fn shared() -> &'static Shared {
    made().unwrap_or_else(|| {
        let fresh = Box::into_raw(Box::<Shared>::default());
        let none = std::ptr::null_mut();
        match SHARED.compare_exchange(none, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked just now, never freed.
            Ok(_) => unsafe { &*fresh },
            // SAFETY: `fresh` was never shared; `other` is another thread's, leaked as above.
            Err(other) => unsafe {
                drop(Box::from_raw(fresh));
                &*other
            },
        }
    })
}

/// Forgets all requests: those of a forked child are its parent's.
pub(crate) fn forget() {
    SHARED.store(std::ptr::null_mut(), Ordering::Release);
    ANY.store(false, Ordering::Relaxed);
}

/// Returns whether requests of the descriptor are not done. A further one has its turn after those.
pub(crate) fn has_requests(fd: c_int) -> bool {
    any() && made().is_some_and(|shared| lock(&shared.queues).of.contains_key(&fd))
}

/// Returns the errno of a request, or `EINPROGRESS`.
///
/// # Safety
/// `block` is a control block.
unsafe fn error_of(block: *const Block) -> c_int {
    // SAFETY: the caller's promise; stores are atomic, too.
    unsafe { AtomicI32::from_ptr((&raw const (*block).error).cast_mut()) }.load(Ordering::Acquire)
}

/// Writes a result, and then the errno that makes it valid.
///
/// # Safety
/// `block` is a control block. With another errno than `EINPROGRESS` it is the program's from then on.
unsafe fn write_result(block: *mut Block, result: isize, error: c_int) {
    // SAFETY: the caller's promise.
    unsafe {
        AtomicIsize::from_ptr(&raw mut (*block).result).store(result, Ordering::Relaxed);
        AtomicI32::from_ptr(&raw mut (*block).error).store(error, Ordering::Release);
    }
}

/// Policy and priority of the calling thread.
fn scheduling() -> (c_int, c_int) {
    let (mut policy, mut param) = (0, libc::sched_param { sched_priority: 0 });
    // SAFETY: room for both.
    unsafe { libc::pthread_getschedparam(libc::pthread_self(), &mut policy, &mut param) };
    (policy, param.sched_priority)
}

/// Queues a request, which `carry` carries out.
///
/// # Errors
/// `EINVAL` for a priority out of range, `EAGAIN` if no thread can be started.
///
/// # Safety
/// `block` is a control block that no other request uses. It and its buffer live until the request is done.
pub(crate) unsafe fn enqueue(
    block: *mut Block,
    operation: c_int,
    carry: Carry,
    batch: Option<Arc<Batch>>,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let (job, lowered) = unsafe {
        if [LIO_DSYNC, LIO_SYNC].contains(&operation) {
            (*block).priority = 0;
        }
        let job = Job { fd: (*block).fd, operation, buffer: (*block).buffer, len: (*block).len };
        (job, (*block).priority)
    };
    if !(0..=PRIORITY_DELTA_MAX).contains(&lowered) {
        // SAFETY: the caller's promise.
        unsafe { write_result(block, -1, libc::EINVAL) };
        return Err(Failure::Errno(libc::EINVAL));
    }
    let (policy, own) = scheduling();
    let priority = own - lowered;
    ANY.store(true, Ordering::Relaxed);
    let shared = shared();
    let mut queues = lock(&shared.queues);
    // SAFETY: the caller's promise.
    unsafe {
        ((*block).absolute_priority, (*block).policy, (*block).operation) = (priority, policy, operation);
        write_result(block, 0, libc::EINPROGRESS);
    }
    let request = Request { block, job, carry, priority, batch };
    let queue = queues.of.entry(job.fd).or_default();
    if !queue.is_empty() {
        // Behind the first one, whatever that has.
        let later = queue.iter().skip(1).position(|known| known.priority < priority);
        let at = later.map_or(queue.len(), |at| at + 1);
        queue.insert(at, request);
        return Ok(());
    }
    queue.push_back(request);
    if queues.idle > queues.ready.len() {
        shared.work.notify_one();
    } else if let Err(errno) = serving::start(shared) {
        if queues.threads == 0 {
            queues.of.remove(&job.fd);
            // SAFETY: the caller's promise.
            unsafe { write_result(block, 0, errno) };
            return Err(Failure::Errno(errno));
        }
    } else {
        queues.threads += 1;
    }
    queues.ready.push_back(job.fd);
    Ok(())
}

/// Takes requests of a descriptor back that nobody has begun: `block`, or all. Returns what `aio_cancel` answers; none: there are none.
pub(crate) fn cancel(fd: c_int, block: Option<*const Block>) -> Option<c_int> {
    let shared = made()?;
    let mut queues = lock(&shared.queues);
    let begun = usize::from(!queues.ready.contains(&fd));
    let queue = queues.of.get_mut(&fd)?;
    let (taken, is_rest_begun): (Vec<Request>, bool) = match block {
        Some(block) => {
            let at = queue.iter().position(|request| std::ptr::eq(request.block, block))?;
            if at < begun {
                return Some(NOT_CANCELED);
            }
            (queue.remove(at).into_iter().collect(), false)
        }
        None => (queue.drain(begun..).collect(), begun > 0),
    };
    if queue.is_empty() {
        queues.of.remove(&fd);
        queues.ready.retain(|&ready| ready != fd);
    }
    let told: Vec<_> = taken.into_iter().map(|request| request.end(Err(libc::ECANCELED))).collect();
    drop(queues);
    told.into_iter().for_each(|told| told.tell(shared));
    Some(if is_rest_begun { NOT_CANCELED } else { CANCELED })
}

/// News of a request that is done.
struct Done {
    event: Event,
    batch: Option<Arc<Batch>>,
}

impl Request {
    /// Writes the outcome. The request is in no queue, and the lock of the queues is held: the program may use the control block anew from
    /// now on.
    fn end(self, outcome: Result<isize, c_int>) -> Done {
        // SAFETY: the block is the request's until the write.
        unsafe {
            let event = (&raw const (*self.block).event).read();
            let (result, error) = outcome.map_or_else(|errno| (-1, errno), |result| (result, 0));
            write_result(self.block, result, error);
            Done { event, batch: self.batch }
        }
    }
}

impl Done {
    /// Tells waits, and the program by its events. No lock is held.
    fn tell(self, shared: &Shared) {
        waiting::wake(shared);
        self.event.tell();
        self.batch.iter().for_each(|batch| batch.one_is_done());
    }
}
