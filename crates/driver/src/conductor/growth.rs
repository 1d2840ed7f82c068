//! Growth of a client's receive memory: the region that is being made, and the size that was not to be had.
use pd_abi::limits::PAGE_BYTES;

/// See the module.
#[derive(Debug)]
pub struct Growth {
    /// Size of the ring, in bytes, for which a receive region is being made.
    making: Option<u64>,
    /// Limit of ring sizes, in bytes, since a larger ring was not to be had.
    bytes_max: u64,
}

impl Default for Growth {
    fn default() -> Self {
        Self { making: None, bytes_max: u64::MAX }
    }
}

impl Growth {
    /// Goes on with the limit of another driver.
    pub fn resume(bytes_max: u64) -> Self {
        Self { bytes_max: bytes_max.max(PAGE_BYTES as u64), ..Self::default() }
    }

    /// Returns the limit of ring sizes.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Tells whether a larger ring was not to be had since the last region.
    pub fn is_limited(&self) -> bool {
        self.bytes_max != u64::MAX
    }

    /// Tells whether a region is being made.
    pub fn is_making(&self) -> bool {
        self.making.is_some()
    }

    /// Notes that a region is being made for a ring of `bytes` bytes.
    pub fn begin(&mut self, bytes: u64) {
        self.making = Some(bytes);
    }

    /// Notes that the region is there.
    pub fn made(&mut self) {
        (self.making, self.bytes_max) = (None, u64::MAX);
    }

    /// Notes that the region is not to be had. The next one is to be smaller.
    pub fn refused(&mut self) {
        let bytes = self.making.take().unwrap_or(PAGE_BYTES as u64);
        self.bytes_max = (bytes / 2).max(PAGE_BYTES as u64);
    }

    /// Forgets the region that is being made.
    pub fn stop(&mut self) {
        self.making = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_is_not_to_be_had_is_asked_for_at_half_the_size() {
        let mut growth = Growth::default();
        for expected in [8192, 4096, 4096] {
            growth.begin(growth.bytes_max().min(16 << 10));
            growth.refused();
            assert_eq!((growth.bytes_max(), growth.is_limited()), (expected, true));
        }
        growth.begin(4096);
        growth.made();
        assert!(!growth.is_limited());
    }
}
