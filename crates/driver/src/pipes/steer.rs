//! Tells the program of an interface (`openers/steer.bpf.c`) the flows that pipes are bound to.
use crate::bpf::{update, Plain};
use pd_pipe::{Flow, Steer};
use std::os::fd::OwnedFd;

/// Most flows that the program compares.
const FLOWS: usize = 64;

/// A flow, in the program's layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    from: [u8; 4],
    from_mask: [u8; 4],
    to: [u8; 4],
    to_mask: [u8; 4],
    ports: [[u8; 2]; 2],
    protocol: u32,
}

/// A list of flows, in the program's layout.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entries {
    count: u32,
    any: u32,
    list: [Entry; FLOWS],
}

// SAFETY: numbers and bytes without padding between.
unsafe impl Plain for Entries {}

impl Entries {
    fn of(flows: &[Flow]) -> Self {
        let mut this = Self { count: 0, any: 0, list: [Entry::default(); FLOWS] };
        for (entry, flow) in this.list.iter_mut().zip(flows) {
            let [(from, from_mask), (to, to_mask)] =
                flow.addresses.map(|net| (net.address, net.mask_bytes()));
            let ports = flow.ports.map(u16::to_be_bytes);
            *entry = Entry { from, from_mask, to, to_mask, ports, protocol: flow.protocol.into() };
            this.count += 1;
            this.any |= u32::from(flow.is_any());
        }
        this
    }
}

/// The maps of the program, and the link that keeps it attached.
#[derive(Debug)]
pub struct Steering {
    which: OwnedFd,
    flows: OwnedFd,
    _link: OwnedFd,
    current: u32,
}

impl Steering {
    /// Takes the descriptors of [`crate::openers`].
    pub fn new(which: OwnedFd, flows: OwnedFd, link: OwnedFd) -> Self {
        Self { which, flows, _link: link, current: 0 }
    }
}

impl Steer for Steering {
    fn flows_max(&self) -> usize {
        FLOWS
    }

    fn set(&mut self, flows: &[Flow]) {
        // Fills the list that is not in use, and then puts it into use.
        let next = self.current ^ 1;
        let set = update(&self.flows, &next, &Entries::of(flows));
        match set.and_then(|()| update(&self.which, &0u32, &next)) {
            Ok(()) => self.current = next,
            Err(errno) => tracing::warn!(%errno, "a port takes the flows that it took before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pd_pipe::Net;

    #[test]
    fn flows_are_written_as_frames_have_them() {
        let net = |address, prefix| Net { address, prefix };
        let flow =
            Flow { protocol: 17, addresses: [Net::default(), net([10, 1, 0, 0], 15)], ports: [0, 0x1234] };
        let entries = Entries::of(&[flow]);
        assert_eq!((entries.count, entries.any), (1, 0));
        let [entry, ..] = entries.list;
        assert_eq!((entry.from_mask, entry.to_mask), ([0; 4], [255, 254, 0, 0]));
        assert_eq!((entry.to, entry.ports, entry.protocol), ([10, 1, 0, 0], [[0, 0], [0x12, 0x34]], 17));
        assert_eq!(Entries::of(&[flow, Flow::default()]).any, 1);
        assert_eq!(size_of::<Entries>(), 8 + 24 * FLOWS);
        let many = Entries::of(&[flow; FLOWS + 1]);
        assert_eq!(many.count as usize, FLOWS);
    }
}
