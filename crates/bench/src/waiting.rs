//! Ways of waiting of a scheme's ends: as shipped, without a look before each sleep, or all with the same bounded spin.
//!
//! A peer's process belongs to one scheme and waits in one way.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{ensure, Result};
use pd_shm::Spin;

use crate::catalogue::Waiting;

static WAITING: OnceLock<Waiting> = OnceLock::new();

thread_local! {
    static SPIN: RefCell<Spin> = RefCell::new(Spin::default());
}

/// Sets the way of waiting of all ends of this process. To be called before the first of them is made.
pub fn set(waiting: Waiting) -> Result<()> {
    ensure!(WAITING.set(waiting).is_ok(), "a process waits in one way");
    if waiting == Waiting::Blocks {
        pd_shm::limit_spins(Duration::ZERO);
    }
    Ok(())
}

/// Returns the way of waiting of this process's ends.
pub fn get() -> Waiting {
    WAITING.get().copied().unwrap_or_default()
}

/// Looks for `ready` before a sleep: `pauses` times as shipped, or as all schemes do that spin. Returns whether it came.
pub fn look(pauses: u32, mut ready: impl FnMut() -> bool) -> bool {
    match get() {
        Waiting::Shipped => (0..pauses).any(|_| {
            let found = ready();
            std::hint::spin_loop();
            found
        }),
        Waiting::Blocks => false,
        Waiting::Spins => SPIN.with_borrow_mut(|spin| spin.until(ready)),
    }
}

/// Tells the spin that a sleep after [`look`] has ended.
pub fn slept() {
    if get() == Waiting::Spins {
        SPIN.with_borrow_mut(Spin::slept);
    }
}
