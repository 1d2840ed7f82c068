//! Memory that the card may touch: the bytes that commands in flight name, and nothing else.
//!
//! This is the place of an IOMMU: the driver checks addresses before they become commands, and this checks
//! that the hardware keeps to them.
use std::collections::HashMap;

const PAGE_BYTES: u64 = 4096;

/// A set of ranges, each held as often as it was granted.
#[derive(Default)]
pub struct Grants {
    /// The ranges that touch a page: first byte, end, how often.
    pages: HashMap<u64, Vec<(u64, u64, u32)>>,
}

impl Grants {
    /// Allows `len` bytes from `addr`.
    pub fn grant(&mut self, addr: u64, len: u64) {
        let end = addr + len;
        for page in pages(addr, len) {
            let ranges = self.pages.entry(page).or_default();
            match ranges.iter_mut().find(|range| (range.0, range.1) == (addr, end)) {
                Some(range) => range.2 += 1,
                None => ranges.push((addr, end, 1)),
            }
        }
    }

    /// Takes back one grant of exactly this range.
    pub fn revoke(&mut self, addr: u64, len: u64) {
        for page in pages(addr, len) {
            let Some(ranges) = self.pages.get_mut(&page) else { continue };
            let Some(at) = ranges.iter().position(|range| (range.0, range.1) == (addr, addr + len)) else {
                continue;
            };
            ranges[at].2 -= 1;
            if ranges[at].2 == 0 {
                ranges.swap_remove(at);
            }
            if ranges.is_empty() {
                self.pages.remove(&page);
            }
        }
    }

    /// Returns whether `len` bytes from `addr` lie in one range that is allowed now.
    pub fn covers(&self, addr: u64, len: u64) -> bool {
        let Some(end) = addr.checked_add(len) else { return false };
        let ranges = self.pages.get(&(addr / PAGE_BYTES));
        ranges.is_some_and(|ranges| ranges.iter().any(|range| range.0 <= addr && end <= range.1))
    }
}

fn pages(addr: u64, len: u64) -> impl Iterator<Item = u64> {
    addr / PAGE_BYTES..=(addr + len - 1) / PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_what_is_granted_and_not_a_byte_more() {
        let mut grants = Grants::default();
        grants.grant(0x1ff0, 0x20);
        assert!(grants.covers(0x1ff0, 0x20) && grants.covers(0x2000, 0x10) && grants.covers(0x2001, 1));
        for (addr, len) in [(0x1fef, 1), (0x1fef, 2), (0x1ff0, 0x21), (0x2010, 1), (0x200f, 2), (u64::MAX, 2)]
        {
            assert!(!grants.covers(addr, len), "{addr:#x} {len}");
        }
    }

    #[test]
    fn a_range_granted_twice_is_revoked_twice() {
        let mut grants = Grants::default();
        grants.grant(100, 50);
        grants.grant(100, 50);
        grants.grant(120, 50);
        grants.revoke(100, 50);
        assert!(grants.covers(100, 50));
        grants.revoke(100, 50);
        assert!(!grants.covers(100, 50) && grants.covers(120, 50));
        grants.revoke(120, 50);
        assert!(grants.pages.is_empty());
    }
}
