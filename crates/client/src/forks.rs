//! The count of forks since the first process that used the library. A forked child tells its parent's objects by it. And the locks of
//! statics during a fork: a child has the statics, and no thread that would let go of a lock which another one of the parent's had.
use crate::handlers::Inside;
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

/// Longest time that a fork waits for the locks of statics. Their holders wait for the driver at most.
const HELD_WITHIN: Duration = Duration::from_secs(1);
/// Time between two tries.
const TRY_EVERY: Duration = Duration::from_micros(50);

static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks between this process and the first that used the library. Objects remember the number.
/// An object with another number belongs to an ancestor.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Counts a fork, in the child.
pub(crate) fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A lock of a static that a forked child uses, too.
pub trait StaticLock: Sync {
    /// Takes the lock if nobody has it.
    fn try_hold(&'static self) -> Option<Box<dyn Guard>>;
}

/// A lock that is held.
pub trait Guard {}
impl<T> Guard for MutexGuard<'static, T> {}
impl<T> Guard for RwLockWriteGuard<'static, T> {}

fn held<G: Guard + 'static>(tried: Result<G, TryLockError<G>>) -> Option<Box<dyn Guard>> {
    match tried {
        Ok(guard) => Some(Box::new(guard)),
        Err(TryLockError::Poisoned(guard)) => Some(Box::new(guard.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl<T: Send> StaticLock for Mutex<T> {
    fn try_hold(&'static self) -> Option<Box<dyn Guard>> {
        held(self.try_lock())
    }
}

impl<T: Send + Sync> StaticLock for RwLock<T> {
    fn try_hold(&'static self) -> Option<Box<dyn Guard>> {
        held(self.try_write())
    }
}

/// Locks that a thread that forks holds. Its signal handlers run when it has let go: they may want the locks, too.
struct Holding {
    guards: Vec<Box<dyn Guard>>,
    _inside: Inside,
}

thread_local! {
    /// Locks that the thread holds while it forks. A pointer, so that the thread's end has nothing to do.
    static HOLDING: Cell<*mut Holding> = const { Cell::new(ptr::null_mut()) };
}

/// Takes locks before a fork. [`let_go`] follows in the parent and in the child, on this thread. Takes all or none at a time: so it waits for nobody
/// who waits for one of them.
pub fn hold(locks: &[&'static dyn StaticLock]) {
    let inside = Inside::enter();
    let until = Instant::now() + HELD_WITHIN;
    let mut guards = loop {
        let guards: Vec<_> = locks.iter().map_while(|lock| lock.try_hold()).collect();
        if guards.len() == locks.len() || Instant::now() >= until {
            break guards;
        }
        drop(guards);
        std::thread::sleep(TRY_EVERY);
    };
    let before = taken();
    guards.extend(before.into_iter().flat_map(|mut before| std::mem::take(&mut before.guards)));
    HOLDING.set(Box::into_raw(Box::new(Holding { guards, _inside: inside })));
}

/// Lets go of what [`hold`] has taken.
pub fn let_go() {
    drop(taken());
}

fn taken() -> Option<Box<Holding>> {
    let known = HOLDING.replace(ptr::null_mut());
    // SAFETY: made by `hold`, and the place has it no more.
    (!known.is_null()).then(|| unsafe { Box::from_raw(known) })
}
