//! Connections to service addresses: the choice of backends, and reports for administrators.
use super::sidecars::Plane;
use super::Conductor;
use crate::admin::{BackendReport, ProbeFailure, ServiceCounts, ServiceReport};
use crate::identity::NamespaceId;
use crate::ids::ClientId;
use crate::policy::{Policy, PolicyError};
use crate::service::{
    Asker, Chosen, Slot, BACKLOG_FULL, NO_LISTENER, PROBED, PROBE_BAD_ANSWER, PROBE_REFUSED, PROBE_TIMED_OUT,
};
use pd_abi::SocketId;
use pd_maglev::mix;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

/// Most choices for sockets of the kernel that are remembered.
const REMEMBERED: usize = 4096;

/// Choices for sockets of the kernel, by namespace and cookie. A connected socket that asks again stays with its backend.
#[derive(Debug, Default)]
pub(super) struct OnKernel(VecDeque<((NamespaceId, u64), Chosen)>);

impl OnKernel {
    /// Remembers a choice. The oldest one is forgotten when there are many.
    pub(super) fn remember(&mut self, socket: (NamespaceId, u64), chosen: Chosen) {
        if self.0.len() >= REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back((socket, chosen));
    }

    /// Iterates over the choices, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = ((NamespaceId, u64), Chosen)> + '_ {
        self.0.iter().copied()
    }
}

impl Conductor {
    /// Assigns slots to the services and proxies of a policy. Services and proxies of the policies in force and staged keep theirs.
    ///
    /// # Errors
    /// Too many services and proxies.
    pub(super) fn assign_slots(&self, policy: &Policy) -> Result<(), PolicyError> {
        let policies = [self.tenants.policy()].into_iter().chain(self.gate.staging());
        let kept: Vec<_> = policies.collect();
        self.services.slots.assign(policy, &kept).map_err(PolicyError::of)
    }

    /// Chooses a backend for a native client's socket, if `to` is a service. The backend has a listener on the fabric, and no probe has
    /// found it down.
    ///
    /// # Errors
    /// `ECONNREFUSED` if there is no such backend.
    pub(super) fn choose(
        &mut self,
        id: ClientId,
        socket: SocketId,
        to: SocketAddr,
    ) -> Result<Option<Chosen>, Errno> {
        let Some(service) = self.services.find(to) else { return Ok(None) };
        let chosen = self.on_fabric(id, socket, service);
        // The client asks the kernel next if the gate is in force. The kernel counts refusals, too.
        if chosen.is_none() && !self.gate.is_in_force() {
            self.services.refuse(service);
        }
        chosen.map(Some).ok_or(Errno::CONNREFUSED)
    }

    /// Returns the address that a connect of a native client's socket to `to` would reach now.
    pub(super) fn would_reach(&mut self, id: ClientId, socket: SocketId, to: SocketAddr) -> SocketAddr {
        let service = self.services.find(to);
        let chosen = service.and_then(|service| self.on_fabric(id, socket, service));
        let led = self.would_lead(id, to, chosen.as_ref(), Plane::Fabric);
        led.or(chosen.map(|chosen| chosen.reached)).unwrap_or(to)
    }

    fn on_fabric(&mut self, id: ClientId, socket: SocketId, service: usize) -> Option<Chosen> {
        let client = self.clients.get(id)?;
        let namespace = client.identity.namespace;
        // The number is the same for every question about one connect.
        let connection = mix(client.serial).wrapping_add(u64::from(socket.0));
        let asker = Asker { client: namespace.number(), connection };
        let names = &mut self.names;
        let usable = |state, backend: &crate::policy::Backend| {
            state & PROBED == 0 && names.has_listener(namespace, backend.address)
        };
        self.services.choose(self.tenants.policy(), service, asker, usable)
    }

    /// Chooses a backend for a socket of the kernel with this cookie, if `to` is a service. Tells the kernel, which connects the socket
    /// there.
    ///
    /// # Errors
    /// `ECONNREFUSED` if there is none, `EHOSTUNREACH` if the kernel does not know services.
    pub(super) fn choose_on_kernel(
        &mut self,
        namespace: NamespaceId,
        cookie: u64,
        to: SocketAddr,
    ) -> Result<Option<Chosen>, Errno> {
        let Some(service) = self.services.find(to) else { return Ok(None) };
        if !self.gate.is_in_force() {
            return Err(Errno::HOSTUNREACH);
        }
        let before = self.on_kernel.0.iter().rev().find(|(name, _)| *name == (namespace, cookie)).copied();
        let asker = Asker { client: namespace.number(), connection: cookie };
        let policy = self.tenants.policy();
        let is_before = |reached| before.is_none_or(|(_, chosen)| chosen.reached == reached);
        let choose = |only: bool| {
            self.services.choose(policy, service, asker, |state, backend| {
                state == 0 && (!only || is_before(backend.address))
            })
        };
        // The kernel counts new connections, and refusals where there is no backend.
        let chosen = choose(true).or_else(|| choose(false)).ok_or(Errno::CONNREFUSED)?;
        if before.is_none_or(|(_, before)| before != chosen) {
            self.on_kernel.remember((namespace, cookie), chosen);
        }
        self.gate.choose(cookie, &chosen);
        Ok(Some(chosen))
    }

    /// Reports services to administrators.
    pub(super) fn service_reports(&mut self) -> Vec<ServiceReport> {
        let (services, names) = (&self.services, &mut self.names);
        let entries = self.tenants.policy().services.iter().enumerate();
        let report = entries.filter_map(|(index, service)| {
            let (own, numbers) = services.numbers(index)?;
            let slots = numbers.iter().map(|number| services.slots.slot(*number));
            let backends = service.backends.iter().zip(slots).map(|(backend, slot)| {
                let state = slot.state.load(Relaxed);
                BackendReport {
                    address: backend.address,
                    weight: backend.weight,
                    drain: backend.drain,
                    on_fabric: names.has_listener(NamespaceId::NONE, backend.address),
                    no_listener: state & NO_LISTENER != 0,
                    backlog_full: state & BACKLOG_FULL != 0,
                    probe: probe_failure(state),
                    counts: counts(slot),
                }
            });
            Some(ServiceReport {
                address: service.address,
                balance: service.balance,
                affinity_seconds: service.affinity.map(|affinity| affinity.as_secs()),
                counts: counts(services.slots.slot(own)),
                backends: backends.collect(),
            })
        });
        report.collect()
    }
}

fn probe_failure(state: u64) -> Option<ProbeFailure> {
    let failures = [
        (PROBE_REFUSED, ProbeFailure::Refused),
        (PROBE_TIMED_OUT, ProbeFailure::TimedOut),
        (PROBE_BAD_ANSWER, ProbeFailure::BadAnswer),
    ];
    failures.into_iter().find(|(part, _)| state & part != 0).map(|(_, failure)| failure)
}

pub(super) fn counts(slot: &Slot) -> ServiceCounts {
    ServiceCounts {
        connections_made: slot.made.load(Relaxed),
        connections_open: slot.active(),
        connections_failed: slot.failed.load(Relaxed),
        bytes_sent: slot.sent.load(Relaxed),
        bytes_received: slot.received.load(Relaxed),
    }
}
