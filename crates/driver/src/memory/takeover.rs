//! State of regions that a take-over passes on.
use super::account::{Account, Amounts, Lease};
use super::pool::Region;
use crate::takeover::pack::{Fd, Hindrance, Pack, Unpacked, Wrong};
use pd_shm::memfd::Pages;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A region of a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionState {
    /// The region's number.
    pub number: u32,
    file: Fd,
    bytes: u64,
    page_bytes: u64,
}

impl RegionState {
    /// Returns the state of a region.
    ///
    /// # Errors
    /// The hindrance.
    pub fn of(number: u32, region: &Region, pack: &mut Pack) -> Result<Self, Hindrance> {
        let (bytes, page_bytes) = (region.map.len() as u64, region.pages.bytes() as u64);
        Ok(Self { number, file: pack.add(region.file())?, bytes, page_bytes })
    }

    /// Takes over the region, made by `resume` of the file. `account` pays for it.
    ///
    /// # Errors
    /// The fault in it.
    pub fn take(
        self,
        account: &Arc<Account>,
        fds: &mut Unpacked,
        resume: impl FnOnce(OwnedFd, Lease, Pages) -> rustix::io::Result<Region>,
    ) -> Result<Region, Wrong> {
        let Self { number, file, bytes, page_bytes } = self;
        let pages = Pages::from_bytes(page_bytes).ok_or_else(|| Wrong::of("pages of a region"))?;
        Wrong::unless(i64::try_from(bytes).is_ok(), || format!("region {number} is longer than any file"))?;
        let lease = account.lease_ring(Amounts::region(bytes));
        let lease = lease.map_err(|exhausted| Wrong::of(format!("region {number}: {exhausted}")))?;
        let region = resume(fds.take(file)?, lease, pages);
        region.map_err(|errno| Wrong::of(format!("region {number} of {bytes} bytes: {errno}")))
    }
}
