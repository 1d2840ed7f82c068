//! Steps of work that a change of pipes causes: looks at a group of pipes or at a way of a link. Tests count them.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a step, in tests.
#[inline]
pub(super) fn step() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// Returns the steps of this thread.
#[cfg(test)]
pub(super) fn steps() -> u64 {
    STEPS.get()
}
