//! Reasons for which connections of this process are the kernel's, as written into the control region
//! ([`control_header`]). Administrators see them by way of the driver. Nothing else depends on them.
use crate::turn::lock;
use pd_abi::layout::control_header;
use pd_abi::limits::KERNEL_CONNECTIONS_MAX;
use pd_abi::{KernelReason, KERNEL_REASONS};
use pd_shm::{Own, Region};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Mutex;

/// Reasons that one attachment has given.
#[derive(Debug, Default)]
pub(crate) struct Reasons(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    counts: [u32; KERNEL_REASONS],
    next: usize,
}

impl Reasons {
    /// Counts a connection.
    pub(crate) fn add(&self, control: &Region<Own>, reason: KernelReason, inode: u32) {
        let mut said = lock(&self.0);
        let count = said.counts[reason.index()].saturating_add(1);
        said.counts[reason.index()] = count;
        control.store_u32(control_header::KERNEL_COUNTS + 4 * reason.index(), count, Relaxed);
        let at = control_header::KERNEL_CONNECTIONS + 8 * said.next;
        control.store_u64(at, u64::from(inode) | (reason as u64) << 32, Relaxed);
        said.next = (said.next + 1) % KERNEL_CONNECTIONS_MAX;
    }
}
