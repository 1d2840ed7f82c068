//! Page tables of a driver that has taken another one's place.
//!
//! All pages of the clients' regions exist, but this process has not touched them. Entering them into its tables takes longer than all else
//! of a take-over, and nothing depends on it: a thread does so while the driver serves. A page that is used before is entered by a fault.
use crate::memory::Cold;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that are entered at a time.
const STEP_BYTES: usize = 1 << 20;

/// Enters the pages of these regions, until it is to stop. Lets go of each region as soon as it is done.
pub fn warm(regions: Vec<Cold>, stop: &AtomicBool) {
    for region in regions {
        for at in (0..region.len()).step_by(STEP_BYTES) {
            if stop.load(Ordering::Acquire) {
                return;
            }
            match region.warm(at, STEP_BYTES.min(region.len() - at)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "memory of a client is entered page by page");
                    break;
                }
            }
        }
    }
}
