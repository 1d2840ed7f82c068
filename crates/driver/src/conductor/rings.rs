//! Receive rings: carved from a client's receive regions on first use, given back when idle.
use super::client::{Client, RegionUse};
use super::Conductor;
use crate::memory::{Exhausted, Region, Space};
use crate::messages::{ClientId, FlowId, Ring, ToMover};
use crate::metrics::Metrics;
use pd_abi::limits::{HUGEPAGE_BYTES, PAGE_BYTES, REGIONS_MAX};
use pd_abi::{Frame, FrameKind};
use std::sync::Arc;

/// Smallest and largest region for rings that are smaller than a hugepage: making one takes milliseconds.
const SMALL_REGION_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=8 << 20;

impl Conductor {
    /// A flow has something to deliver and no ring. Its mover wants it to get `bytes_max` bytes at most.
    pub(super) fn need_ring(&mut self, flow: FlowId, bytes_max: u64) {
        let Some(mover) = self.source_mover(flow) else { return };
        let Some((client, slot)) = self.destination(flow) else {
            // Nobody yet, if it is a twin that nobody has claimed: its mover asks again when somebody does.
            return self.movers.send(mover, ToMover::Ring { flow, ring: None });
        };
        let Some(wished) = self.client(client).and_then(|c| c.socket(slot)).map(|s| s.receive_ring_bytes)
        else {
            return;
        };
        let ring = self.allocate_ring(client, wished.min(bytes_max)).map(|ring| Ring { wished, ..ring });
        if ring.is_none() {
            Metrics::add(&self.metrics.rings_denied, 1);
            self.waiting_rings.push(flow);
            self.reclaim();
        }
        self.movers.send(mover, ToMover::Ring { flow, ring });
    }

    fn allocate_ring(&mut self, id: ClientId, wanted: u64) -> Option<Ring> {
        let mut bytes = wanted.min(self.fair_ring_bytes(id)).next_power_of_two().max(PAGE_BYTES as u64);
        while bytes >= PAGE_BYTES as u64 {
            if let Some(ring) = self.client_mut(id).and_then(|client| client.carve(id, bytes)) {
                return Some(ring);
            }
            match self.grow(id, bytes) {
                Ok(()) => {}
                Err(exhausted) => {
                    self.warn_exhausted(&exhausted);
                    if exhausted == Exhausted::Hugepages {
                        return None;
                    }
                    bytes /= 2;
                }
            }
        }
        None
    }

    /// The largest ring that leaves room for others: a sixteenth of what is free. Rings shrink as memory
    /// gets short, so that late connections are slow rather than stuck.
    pub(super) fn fair_ring_bytes(&self, id: ClientId) -> u64 {
        let (used, budget) = self.pool.usage();
        let taken = self.client(id).map_or(0, |c| c.region_bytes);
        let free = (budget - used).min(self.settings.client_budget_bytes.saturating_sub(taken));
        let carved: u64 = self.client(id).map_or(0, Client::free_ring_bytes);
        let share = (free + carved) / 16;
        if share.is_power_of_two() {
            share
        } else {
            share.next_power_of_two() / 2
        }
    }

    /// Has movers take back rings that are empty right now.
    pub(super) fn reclaim(&self) {
        (0..self.movers.len()).for_each(|mover| self.movers.send(mover, ToMover::Reclaim));
    }

    /// Makes a receive region with room for a ring of `bytes` bytes.
    fn grow(&mut self, id: ClientId, bytes: u64) -> Result<(), Exhausted> {
        let budget = self.settings.client_budget_bytes;
        let pool = Arc::clone(&self.pool);
        let Some(client) = self.client_mut(id) else { return Err(Exhausted::Budget { budget: 0 }) };
        let generous = if bytes >= HUGEPAGE_BYTES as u64 {
            bytes
        } else {
            // Half as much again as there is, so that regions stay few.
            (client.region_bytes / 2)
                .clamp(*SMALL_REGION_BYTES.start(), *SMALL_REGION_BYTES.end())
                .next_multiple_of(bytes)
        };
        let make = |region: u64| match client.region_bytes + region <= budget
            && client.regions.len() < REGIONS_MAX
        {
            true => pool.receive_region(region, bytes),
            false => Err(Exhausted::Budget { budget }),
        };
        let (region, fd) = make(generous).or_else(|_| make(bytes))?;
        let number = client.regions.len() as u32;
        let len = region.map.len() as u64;
        let frame =
            Frame::new(FrameKind::ReceiveRegion).with_id(number).with_bytes(len, region.pages.bytes() as u64);
        client.region_bytes += len;
        let space = Space::new((len / region.pages.bytes() as u64) as u32);
        client.regions.push(RegionUse::Receive(region, space));
        self.tell_client(id, &frame, &[fd]);
        Ok(())
    }

    /// A flow gives a ring back.
    pub(super) fn free_ring(&mut self, ring: &Ring) {
        let Some(client) = self.client_mut(ring.client).filter(|c| c.serial == ring.serial) else { return };
        if let Some(RegionUse::Receive(region, space)) = client.regions.get_mut(ring.region as usize) {
            let unit = units(region);
            space.give(ring.page / unit, ring.pages / unit);
        }
        self.retry_rings();
    }

    /// Lets flows that wait for a ring ask again.
    pub(super) fn retry_rings(&mut self) {
        for flow in std::mem::take(&mut self.waiting_rings) {
            if let Some(mover) = self.source_mover(flow) {
                self.movers.send(mover, ToMover::Resume { flow });
            }
        }
    }
}

impl Client {
    /// Bytes of its receive regions that no ring takes.
    pub(super) fn free_ring_bytes(&self) -> u64 {
        let free = self.regions.iter().map(|entry| match entry {
            RegionUse::Receive(region, space) => {
                region.map.len() - space.taken() as usize * region.pages.bytes()
            }
            RegionUse::Send(..) => 0,
        });
        free.sum::<usize>() as u64
    }

    fn carve(&mut self, client: ClientId, bytes: u64) -> Option<Ring> {
        let pages = (bytes / PAGE_BYTES as u64) as u32;
        self.regions.iter_mut().enumerate().find_map(|(number, entry)| {
            let RegionUse::Receive(region, space) = entry else { return None };
            let unit = units(region);
            if pages % unit != 0 {
                return None;
            }
            let page = space.take(pages / unit)? * unit;
            let map = Arc::clone(&region.map);
            let serial = self.serial;
            Some(Ring { client, serial, region: number as u16, page, pages, wished: bytes, map })
        })
    }
}

/// Ordinary pages per page of the region.
fn units(region: &Region) -> u32 {
    (region.pages.bytes() / PAGE_BYTES) as u32
}
