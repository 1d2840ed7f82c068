//! State that a process has one of, made at first use and leaked. A forked child starts with fresh state: its parent's objects
//! are unreachable from it.
use crate::forks::forks;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// See the module.
pub(crate) struct PerProcess<T>(AtomicPtr<Made<T>>);

/// State, and the process that it is of.
struct Made<T> {
    forks: u32,
    state: T,
}

impl<T: Default + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the process's state, made if there is none.
    #[inline]
    pub(crate) fn get(&self) -> &'static T {
        match self.made() {
            Some(state) => state,
            None => self.make(),
        }
    }

    /// Returns the process's state, if there is any.
    #[inline]
    pub(crate) fn made(&self) -> Option<&'static T> {
        Self::of_this_process(self.0.load(Ordering::Acquire))
    }

    #[inline]
    fn of_this_process(made: *mut Made<T>) -> Option<&'static T> {
        // SAFETY: null, or leaked by `make`, never freed and shared by reference only.
        let made = unsafe { made.as_ref() }?;
        (made.forks == forks()).then_some(&made.state)
    }

    #[cold]
    fn make(&self) -> &'static T {
        let before = self.0.load(Ordering::Acquire);
        if let Some(state) = Self::of_this_process(before) {
            return state;
        }
        let fresh = Box::into_raw(Box::new(Made { forks: forks(), state: T::default() }));
        match self.0.compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked just now, never freed.
            Ok(_) => unsafe { &(*fresh).state },
            // SAFETY: `fresh` was never shared; `other` is another thread's, leaked as above.
            Err(other) => unsafe {
                drop(Box::from_raw(fresh));
                &(*other).state
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forks::count_fork;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn a_forked_child_has_state_of_its_own() {
        static STATE: PerProcess<AtomicU32> = PerProcess::new();
        assert!(STATE.made().is_none());
        STATE.get().store(1, Ordering::Relaxed);
        // SAFETY: the child makes state and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            count_fork();
            let is_fresh = STATE.made().is_none() && STATE.get().load(Ordering::Relaxed) == 0;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_fresh)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(STATE.get().load(Ordering::Relaxed), 1);
    }
}
