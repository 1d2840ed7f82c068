//! Growth of a client's receive memory: the region that is being made, the flows that wait for it, and the size that was not to be had.
use crate::ids::FlowId;
use pd_abi::limits::PAGE_BYTES;
use std::collections::VecDeque;

/// A flow that asks for a receive ring of `bytes_max` bytes at most.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub flow: FlowId,
    /// Serial number of its connection: the flow may be over, and its number reused.
    pub serial: u64,
    pub bytes_max: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Growth {
    /// Size of the ring, in bytes, for which a receive region is being made.
    making: Option<u64>,
    /// Flows that wait for that region, in the order of their requests.
    asked: VecDeque<Asked>,
    /// Limit of ring sizes, in bytes, since a larger ring was not to be had.
    bytes_max: u64,
}

impl Default for Growth {
    fn default() -> Self {
        Self { making: None, asked: VecDeque::new(), bytes_max: u64::MAX }
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

    /// Forgets the region that is being made. Returns the flows that waited for it.
    pub fn stop(&mut self) -> VecDeque<Asked> {
        self.making = None;
        std::mem::take(&mut self.asked)
    }

    /// Tells whether a flow has to wait. `is_first`: it was the first of those that wait.
    pub fn holds_up(&self, is_first: bool) -> bool {
        self.is_making() || !is_first && !self.asked.is_empty()
    }

    /// Lets a flow wait behind the others.
    pub fn wait(&mut self, asked: Asked) {
        self.asked.push_back(asked);
    }

    /// Returns the number of flows that wait.
    pub fn waiting(&self) -> usize {
        self.asked.len()
    }

    /// Takes the flow that waits first, unless a region is being made.
    pub fn next(&mut self) -> Option<Asked> {
        if self.is_making() {
            return None;
        }
        self.asked.pop_front()
    }

    /// Makes a flow the first again that was taken and waits again. `before`: number of flows that waited behind it. Returns whether it does.
    pub fn put_back(&mut self, before: usize) -> bool {
        let waits = self.asked.len() > before;
        if waits {
            self.asked.rotate_right(1);
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ConnectionId, Side};

    fn asked(number: u32) -> Asked {
        Asked { flow: ConnectionId::new(number).flow(Side::Connecting), serial: 1, bytes_max: 4096 }
    }

    #[test]
    fn a_flow_that_waits_again_is_the_first_again() {
        let mut growth = Growth::default();
        (1..4).for_each(|number| growth.wait(asked(number)));
        growth.begin(1 << 20);
        assert!(growth.next().is_none() && growth.holds_up(true));
        growth.made();
        let first = growth.next().unwrap();
        assert!(growth.holds_up(false) && !growth.holds_up(true));
        growth.wait(first);
        assert!(growth.put_back(2) && growth.next().unwrap().flow == first.flow);
        assert!(!growth.put_back(2) && growth.stop().len() == 2);
    }

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
