//! `maglev`: a load balancer (Eisenbud et al., NSDI 2016).
//!
//! A frame for the service's address leads to one of the backends: destination addresses of IPv4 and Ethernet are rewritten, and both
//! checksums by their difference. A flow keeps its backend by the table of Maglev hashing, and by a cache of flows when backends
//! change. A first frame of TCP is not cached: a flood of them puts no other flow out of the cache.
use crate::frame::{difference, update, updated, Parts, ETHERNET, TCP, UDP};
use crate::{App, Verdict};
use pd_maglev::{mix, Table};
use std::net::Ipv4Addr;

/// Most backends.
pub const BACKENDS_MAX: usize = 1000;
/// Most flows whose backends are remembered.
pub const CACHE_FLOWS: usize = 1024;
/// Bits of TCP's flags: SYN and ACK.
const SYN: u8 = 2;
const ACK: u8 = 16;

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Address of the backend.
    pub address: Ipv4Addr,
    /// MAC address of the backend, or of the next hop.
    pub mac: [u8; 6],
}

/// A backend as frames need it.
#[derive(Clone, Copy, Debug)]
struct Place {
    mac: [u8; 6],
    address: [u8; 4],
    /// Of checksums, between the service's address and this.
    difference: u16,
}

/// A flow in the cache. Source 0.0.0.0 with ports 0 is an empty entry.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Source address and ports.
    key: u64,
    protocol: u8,
    backend: u16,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames led to a backend.
    pub forwarded: u64,
    /// Of these, with a backend from the cache.
    pub cached: u64,
    /// Frames that are not the service's, dropped.
    pub foreign: u64,
}

/// The load balancer.
#[derive(Debug)]
pub struct Maglev {
    service: u32,
    /// 0: any.
    port: u16,
    /// Destination of frames.
    out: Verdict,
    backends: Vec<Backend>,
    places: Vec<Place>,
    table: Table,
    cache: Box<[Flow; CACHE_FLOWS]>,
    counts: Counts,
}

impl Maglev {
    /// Leads frames for `address` and `port` (0: any port) to `backends`, and on to `out`.
    pub fn new(address: Ipv4Addr, port: u16, backends: &[Backend], out: Verdict) -> Self {
        let mut this = Self {
            service: address.into(),
            port,
            out,
            backends: Vec::new(),
            places: Vec::new(),
            table: Table::new(&[]),
            cache: Box::new([Flow::default(); CACHE_FLOWS]),
            counts: Counts::default(),
        };
        this.set_backends(backends);
        this
    }

    /// Changes the backends; those beyond [`BACKENDS_MAX`] are left out. Flows in the cache keep theirs, unless it is gone.
    pub fn set_backends(&mut self, backends: &[Backend]) {
        let backends = &backends[..backends.len().min(BACKENDS_MAX)];
        let names: Vec<[u8; 4]> = backends.iter().map(|backend| backend.address.octets()).collect();
        self.table = Table::new(&names.iter().map(|name| (&name[..], 1)).collect::<Vec<_>>());
        let now = |old: &Backend| backends.iter().position(|new| new.address == old.address);
        let moved: Vec<Option<usize>> = self.backends.iter().map(now).collect();
        for flow in self.cache.iter_mut().filter(|flow| flow.key != 0) {
            match moved[usize::from(flow.backend)] {
                Some(backend) => flow.backend = backend as u16,
                None => *flow = Flow::default(),
            }
        }
        let place = |backend: &Backend| Place {
            mac: backend.mac,
            address: backend.address.octets(),
            difference: difference(self.service, backend.address.into()),
        };
        self.places = backends.iter().map(place).collect();
        self.backends = backends.to_vec();
    }

    /// Counters so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the backend of a flow.
    #[inline]
    fn choose(&mut self, parts: &Parts, ports: u32, first: bool) -> Option<usize> {
        let key = u64::from(parts.source) << 32 | u64::from(ports);
        let hash = mix(key ^ u64::from(parts.protocol) << 56);
        let flow = &mut self.cache[(hash >> 32) as usize % CACHE_FLOWS];
        if flow.key == key && flow.protocol == parts.protocol && key != 0 {
            self.counts.cached += 1;
            return Some(flow.backend.into());
        }
        let backend = self.table.find(hash)?;
        if !first {
            *flow = Flow { key, protocol: parts.protocol, backend: backend as u16 };
        }
        Some(backend)
    }

    #[inline]
    fn lead(&mut self, frame: &mut [u8]) -> Option<()> {
        let parts = Parts::of(frame)?;
        let ports = parts.ports?;
        if parts.destination != self.service || self.port != 0 && ports as u16 != self.port {
            return None;
        }
        let first = parts.protocol == TCP && frame[parts.transport + 13] & (SYN | ACK) == SYN;
        let backend = self.choose(&parts, ports, first)?;
        let place = self.places[backend];
        // From this balancer to the backend.
        frame.copy_within(..6, 6);
        frame[..6].copy_from_slice(&place.mac);
        frame[ETHERNET + 16..ETHERNET + 20].copy_from_slice(&place.address);
        update(frame, ETHERNET + 10, place.difference);
        let at = parts.checksum_offset();
        let old = u16::from_be_bytes([frame[at], frame[at + 1]]);
        // UDP: no checksum stays none, and none becomes that.
        if parts.protocol != UDP || old != 0 {
            let new = match updated(old, place.difference) {
                0 if parts.protocol == UDP => 0xffff,
                new => new,
            };
            frame[at..at + 2].copy_from_slice(&new.to_be_bytes());
        }
        Some(())
    }
}

impl App for Maglev {
    #[inline]
    fn process(&mut self, frame: &mut [u8]) -> Verdict {
        if self.lead(frame).is_none() {
            self.counts.foreign += 1;
            return Verdict::Drop;
        }
        self.counts.forwarded += 1;
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{is_sound, tcp, udp};
    use crate::traffic::{backends, syn_flood, SERVICE};
    use proptest::prelude::*;

    fn balancer(count: usize) -> Maglev {
        Maglev::new(SERVICE.into(), 80, &backends(count), Verdict::Back)
    }

    /// Returns the index of the backend that a frame was led to.
    fn led_to(frame: &[u8]) -> usize {
        let to = Parts::of(frame).unwrap().destination;
        backends(BACKENDS_MAX).iter().position(|backend| u32::from(backend.address) == to).unwrap()
    }

    #[test]
    fn a_flood_is_spread_evenly_with_right_checksums_and_stays_out_of_the_cache() {
        let mut app = balancer(1000);
        let mut hits = vec![0u32; 1000];
        for mut frame in syn_flood(7).take(200_000) {
            let before = frame.clone();
            assert_eq!(app.process(&mut frame), Verdict::Back);
            assert!(is_sound(&frame));
            let backend = led_to(&frame);
            hits[backend] += 1;
            assert_eq!(frame[..6], backends(1000)[backend].mac);
            // The rest is as it was: source, ports, and all behind the checksum.
            assert_eq!((&frame[26..30], &frame[34..50]), (&before[26..30], &before[34..50]));
            assert_eq!(frame[52..], before[52..]);
        }
        let counts = app.counts();
        assert_eq!((counts.forwarded, counts.cached, counts.foreign), (200_000, 0, 0));
        // 200 each: six standard deviations, and the table's unevenness.
        assert!(hits.iter().all(|&count| (110..=300).contains(&count)), "{hits:?}");
    }

    #[test]
    fn an_established_flow_keeps_its_backend_through_a_flood_and_changes() {
        let mut app = balancer(1000);
        let mut ends = crate::traffic::client_ends(9);
        ends.ports[1] = 80;
        let send = |app: &mut Maglev, flags| {
            let mut frame = tcp(&ends, 1, flags, 64);
            (app.process(&mut frame), led_to(&frame))
        };
        let (verdict, backend) = send(&mut app, SYN);
        assert_eq!(verdict, Verdict::Back);
        assert_eq!(send(&mut app, ACK).1, backend);
        for mut frame in syn_flood(1).take(100_000) {
            app.process(&mut frame);
        }
        // The others change places; half of them go.
        let mut others = backends(1000);
        others.reverse();
        others.retain(|other| led_index(other) % 2 == backend % 2);
        app.set_backends(&others);
        assert_eq!(send(&mut app, ACK).1, backend);
        assert_eq!(app.counts().cached, 1);
        // The flow's own backend goes.
        others.retain(|other| led_index(other) != backend);
        app.set_backends(&others);
        let (verdict, other) = send(&mut app, ACK);
        assert!(verdict == Verdict::Back && other != backend);
        app.set_backends(&[]);
        let mut frame = tcp(&ends, 1, ACK, 64);
        assert_eq!(app.process(&mut frame), Verdict::Drop);
    }

    fn led_index(backend: &Backend) -> usize {
        backends(BACKENDS_MAX).iter().position(|other| other == backend).unwrap()
    }

    #[test]
    fn a_datagram_without_a_checksum_gets_none_and_others_have_one() {
        let mut app = Maglev::new(SERVICE.into(), 0, &backends(50), Verdict::To(1));
        for client in 0..2000u64 {
            let mut frame = udp(&crate::traffic::client_ends(client), &client.to_be_bytes(), 60);
            if client % 2 == 0 {
                frame[40..42].fill(0);
            }
            assert_eq!(app.process(&mut frame), Verdict::To(1));
            assert_eq!(frame[40..42] == [0, 0], client % 2 == 0);
            assert!(is_sound(&frame));
        }
    }

    proptest! {
        #[test]
        fn frames_of_any_bytes_are_dropped_or_for_the_service(mut frame in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut app = balancer(10);
            let before = frame.clone();
            if app.process(&mut frame) == Verdict::Drop {
                prop_assert_eq!(frame, before);
            } else {
                prop_assert_eq!(Parts::of(&before).unwrap().destination, u32::from(Ipv4Addr::from(SERVICE)));
            }
        }
    }
}
