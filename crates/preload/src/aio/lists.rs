//! Lists of requests (`lio_listio`) with an event of their own, which is told when all are done.
use super::Event;
use libc::c_void;
use pd_client::core::Inside;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// One list whose end is told.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Parts that are not done.
    left: AtomicUsize,
    event: Event,
}

impl Batch {
    /// A list of so many parts.
    pub(crate) fn new(event: Event, parts: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(parts), event })
    }

    /// One part is done.
    pub(crate) fn one_is_done(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.event.tell();
        }
    }

    /// The event of the part that the C library carries out. It has to be told once.
    pub(crate) fn for_part(self: &Arc<Self>) -> Event {
        Event::calling(part_is_done, Arc::into_raw(self.clone()).cast_mut().cast::<c_void>())
    }
}

unsafe extern "C-unwind" fn part_is_done(batch: *mut c_void) {
    let _inside = Inside::enter();
    // SAFETY: of `Batch::for_part`, once.
    unsafe { Arc::from_raw(batch.cast::<Batch>()) }.one_is_done();
}
