//! Services as the kernel's programs look them up: an entry for each service, one for each backend, and the service's table in pieces.
//!
//! The structures are those of `gate.bpf.h`.
use super::table::{Table, ANY};
use crate::bpf::{self, Plain};
use crate::policy::Balance;
use crate::policy::Service as OfPolicy;
use crate::policy::BACKENDS_MAX;
use crate::service::Slots;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::Arc;

/// Entries of a table that are kept together.
const CHUNK: usize = 2048;

/// Descriptors of the maps, and the slots.
#[derive(Clone, Debug)]
pub struct ServiceMaps {
    pub services: Arc<OwnedFd>,
    pub backends: Arc<OwnedFd>,
    pub tables: Arc<OwnedFd>,
    /// Slots of the services of a policy.
    pub slots: Arc<Slots>,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct ServiceKey {
    generation: u32,
    port: [u8; 2],
    zero: [u8; 2],
    address: [u8; 16],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Member {
    slot: u16,
    weight: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Service {
    number: u32,
    slot: u16,
    count: u16,
    is_least: u32,
    zero: u32,
    affinity_ms: u64,
    list: [Member; BACKENDS_MAX],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
struct PartKey {
    generation: u32,
    service: u16,
    part: u16,
}

/// Key of a backend, in the network with a holder of its address, or [`ANY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
struct BackendKey {
    part: PartKey,
    network: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Backend {
    address: [u8; 16],
    port: [u8; 2],
    slot: u16,
    class: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Chunk([u16; CHUNK]);

/// The backend that the driver has chosen for a socket.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Choice {
    pub generation: u32,
    pub service: u16,
    pub backend: u16,
}

// SAFETY: structures of numbers without padding, as `gate.bpf.h` has them.
unsafe impl Plain for ServiceKey {}
// SAFETY: see above.
unsafe impl Plain for Service {}
// SAFETY: see above.
unsafe impl Plain for PartKey {}
// SAFETY: see above.
unsafe impl Plain for BackendKey {}
// SAFETY: see above.
unsafe impl Plain for Backend {}
// SAFETY: see above.
unsafe impl Plain for Chunk {}
// SAFETY: see above.
unsafe impl Plain for Choice {}

/// Entries of one generation. Its backends may change their class later.
#[derive(Debug)]
pub struct Services {
    generation: u32,
    /// Maps of the kernel; none in tests of the entries.
    maps: Option<ServiceMaps>,
    services: Vec<ServiceKey>,
    backends: Table<BackendKey, Backend>,
    tables: Vec<PartKey>,
}

fn name(at: SocketAddr) -> ([u8; 16], [u8; 2]) {
    let ip = match at.ip() {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        std::net::IpAddr::V6(v6) => v6,
    };
    (ip.octets(), at.port().to_be_bytes())
}

impl Services {
    /// Begins a generation without any service.
    pub fn new(generation: u32, maps: Option<&ServiceMaps>) -> Self {
        let backends = Table::new(maps.map(|maps| &maps.backends));
        Self { generation, maps: maps.cloned(), services: Vec::new(), backends, tables: Vec::new() }
    }

    /// Adds services, which have slots. `classes`: classes of their backends.
    ///
    /// # Errors
    /// `ENOMEM`, `E2BIG`. Some services are added then.
    pub fn fill(&mut self, services: &[OfPolicy], classes: &[Vec<u32>]) -> Result<(), Errno> {
        for (number, (service, classes)) in services.iter().zip(classes).enumerate() {
            let mut list = [Member { slot: 0, weight: 0 }; BACKENDS_MAX];
            for (part, (backend, class)) in service.backends.iter().zip(classes).enumerate() {
                let slot = self.slot(service, Some(backend.address))?;
                list[part] = Member { slot, weight: backend.weight as u16 };
                let (address, port) = name(backend.address);
                let value = Backend { address, port, slot, class: *class };
                self.backends.put(self.backend((number, part), ANY), value)?;
            }
            let slot = self.slot(service, None)?;
            let Some(maps) = &self.maps else { continue };
            for (part, piece) in service.table.entries().chunks(CHUNK).enumerate() {
                let key = self.part(number, part);
                let mut chunk = Chunk([0; CHUNK]);
                chunk.0[..piece.len()].copy_from_slice(piece);
                bpf::update(&maps.tables, &key, &chunk)?;
                self.tables.push(key);
            }
            let (address, port) = name(service.address);
            let key = ServiceKey { generation: self.generation, port, zero: [0; 2], address };
            let value = Service {
                number: number as u32,
                slot,
                count: service.backends.len() as u16,
                is_least: u32::from(service.balance == Balance::LeastConnections),
                zero: 0,
                affinity_ms: service.affinity.map_or(0, |affinity| affinity.as_millis() as u64),
                list,
            };
            // Last, so that programs that find the service find all of its entries.
            bpf::update(&maps.services, &key, &value)?;
            self.services.push(key);
        }
        Ok(())
    }

    /// Sets the class of a backend in a network.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub fn classify(&mut self, backend: (usize, usize), network: u32, class: u32) -> Result<(), Errno> {
        let Some(&known) = self.backends.there.get(&self.backend(backend, ANY)) else { return Ok(()) };
        self.backends.put(self.backend(backend, network), Backend { class, ..known })
    }

    /// Removes a backend's entry of a network, where its address has no holder now.
    pub fn free(&mut self, backend: (usize, usize), network: u32) {
        self.backends.take(self.backend(backend, network));
    }

    /// Returns the class of a backend in the common network.
    #[cfg(test)]
    pub fn class(&self, backend: (usize, usize)) -> Option<u32> {
        let in_network = |network| self.backends.there.get(&self.backend(backend, network));
        in_network(0).or_else(|| in_network(ANY)).map(|known| known.class)
    }

    /// Removes all of them.
    pub fn clear(&mut self) {
        if let Some(maps) = &self.maps {
            for key in self.services.drain(..) {
                let _ = bpf::delete(&maps.services, &key);
            }
            for key in self.tables.drain(..) {
                let _ = bpf::delete(&maps.tables, &key);
            }
        }
        self.backends.clear();
    }

    fn slot(&self, service: &OfPolicy, backend: Option<SocketAddr>) -> Result<u16, Errno> {
        let Some(maps) = &self.maps else { return Ok(0) };
        maps.slots.number(service.address, backend).ok_or(Errno::NOSPC)
    }

    fn backend(&self, (service, backend): (usize, usize), network: u32) -> BackendKey {
        BackendKey { part: self.part(service, backend), network }
    }

    fn part(&self, service: usize, part: usize) -> PartKey {
        PartKey { generation: self.generation, service: service as u16, part: part as u16 }
    }
}
