//! Connections that a rule leads through proxies: their ways, and reports for administrators. `gate.bpf.c` leads connections of the kernel
//! by the same steps.
use super::tenants::Reached;
use super::Conductor;
use crate::admin::{ProxyReport, SidecarReport};
use crate::identity::NamespaceId;
use crate::ids::{ClientId, TenantId};
use crate::metrics::Metrics;
use crate::policy::via::{At, Hop, OnFailure};
use crate::policy::{Action, Policy};
use crate::service::{Chosen, Slots, NO_LISTENER};
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;

/// Rules in force that lead through proxies.
#[derive(Debug, Default)]
pub(super) struct Chains {
    rules: Vec<Chain>,
    /// All proxies, each once.
    proxies: Vec<At>,
}

#[derive(Debug)]
struct Chain {
    rule: usize,
    slot: u16,
    hops: Vec<u16>,
}

/// A verdict, and the index of the deciding rule in `hits`.
type Verdict = (Action, usize);

/// A connection that is led: the proxy, and the verdict on it.
type Led = (Chosen, Verdict);

/// Listeners of a proxy that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plane {
    /// Listeners of native clients; where there is none, the kernel may lead the connection.
    Fabric,
    /// Listeners of the kernel, which leads the connection by itself: a twin goes along.
    Kernel,
}

/// Way of a connection.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// No rule leads it, or it has passed all proxies.
    Straight,
    /// A proxy, by a verdict.
    Led(Chosen, Verdict),
    /// No way: the proxy of these slots has to be passed, and is not there.
    Refused([u16; 2]),
    /// The kernel has to lead it.
    Kernels,
}

impl Chains {
    /// Makes the chains of a policy, which have slots.
    pub(super) fn new(policy: &Policy, slots: &Slots) -> Self {
        let mut this = Self::default();
        for (rule, entry, via) in policy.chains() {
            let number = |hop: Option<&Hop>| slots.number_of_proxy(entry, hop).unwrap_or_default();
            let hops = via.hops.iter().map(|hop| number(Some(hop))).collect();
            this.rules.push(Chain { rule, slot: number(None), hops });
            for hop in &via.hops {
                if !this.proxies.contains(&hop.at) {
                    this.proxies.push(hop.at.clone());
                }
            }
        }
        this
    }

    /// Tells whether there are no chains.
    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    fn of(&self, rule: usize) -> Option<&Chain> {
        self.rules.iter().find(|chain| chain.rule == rule)
    }
}

impl Conductor {
    /// Returns the proxy that a client's connection to `asked` is led to, and the verdict on it. `None`: it goes straight. `through`: the
    /// backend of a service.
    ///
    /// # Errors
    /// `ECONNREFUSED` if a proxy has to be passed and is not there, or is on the kernel alone. `EHOSTDOWN` if it is not there, without the
    /// kernel's half.
    pub(super) fn lead(
        &mut self,
        id: ClientId,
        asked: SocketAddr,
        through: Option<&Chosen>,
        plane: Plane,
    ) -> Result<Option<Led>, Errno> {
        if self.chains.is_empty() {
            return Ok(None);
        }
        let (way, skipped) = self.way(id, asked, through, plane);
        let slots = &self.services.slots;
        // The kernel counts connections that it leads or refuses.
        let counts = plane == Plane::Fabric;
        if let Some(rule) = skipped.filter(|_| counts && !matches!(way, Way::Kernels)) {
            slots.slot(rule).bypassed.fetch_add(1, Relaxed);
        }
        match way {
            Way::Straight => Ok(None),
            Way::Led(chosen, decision) => Ok(Some((chosen, decision))),
            Way::Refused(numbers) => {
                if self.gate.is_in_force() {
                    return Err(Errno::CONNREFUSED);
                }
                if counts {
                    for number in numbers {
                        slots.slot(number).failed.fetch_add(1, Relaxed);
                    }
                }
                // `EHOSTDOWN` keeps the client from asking the kernel, which would not lead the connection.
                Err(Errno::HOSTDOWN)
            }
            Way::Kernels => Err(Errno::CONNREFUSED),
        }
    }

    /// Returns the proxy that a client's connection would be led to now.
    pub(super) fn would_lead(
        &mut self,
        id: ClientId,
        asked: SocketAddr,
        through: Option<&Chosen>,
        plane: Plane,
    ) -> Option<SocketAddr> {
        if self.chains.is_empty() {
            return None;
        }
        match self.way(id, asked, through, plane).0 {
            Way::Led(chosen, _) => Some(chosen.reached),
            _ => None,
        }
    }

    /// Finds the way of a connection without counting anything. Returns the slot of the rule as well, if a proxy was left out.
    fn way(
        &mut self,
        id: ClientId,
        asked: SocketAddr,
        through: Option<&Chosen>,
        plane: Plane,
    ) -> (Way, Option<u16>) {
        let Some(client) = self.client(id) else { return (Way::Straight, None) };
        let (namespace, from) = (client.identity.namespace, client.tenant);
        let target = through.map_or(asked, |chosen| chosen.reached);
        let Some((decision, leg)) = self.leg(namespace, from, asked, target, through.is_some()) else {
            return (Way::Straight, None);
        };
        let Some((rule, first)) = leg else { return (Way::Straight, None) };
        let Some(via) = self.tenants.policy().rules.get(rule).and_then(|rule| rule.via.clone()) else {
            return (Way::Straight, None);
        };
        let Some(chain) = self.chains.of(rule) else { return (Way::Straight, None) };
        let (own, numbers, mut skipped) = (chain.slot, chain.hops.clone(), None);
        for (hop, slot) in via.hops.iter().zip(numbers).skip(first) {
            let at = self.place_of(Some(namespace), &hop.at, asked.ip().to_canonical().is_ipv4());
            let at = at.map(|ip| SocketAddr::new(ip, hop.port.unwrap_or(asked.port())));
            if at == Some(SocketAddr::new(asked.ip().to_canonical(), asked.port())) {
                // The proxy is the destination.
                return (Way::Straight, skipped);
            }
            let on_kernel = self.gate.is_in_force()
                && !self.services.slots.slot(slot).is(NO_LISTENER)
                && self.is_near(namespace, &hop.at, at.map(|at| at.ip()));
            let led = |reached| {
                let (service, backend, slots) = (usize::MAX, usize::MAX, [own, slot]);
                Way::Led(Chosen { service, backend, slots, asked, reached, led: Some(target) }, decision)
            };
            match (at, plane) {
                (Some(at), Plane::Fabric) if self.names.has_listener(namespace, at) => {
                    return (led(at), skipped)
                }
                (Some(_), Plane::Fabric) if on_kernel => return (Way::Kernels, skipped),
                (Some(at), Plane::Kernel) if on_kernel => return (led(at), skipped),
                _ if via.on_failure == OnFailure::Close => return (Way::Refused([own, slot]), skipped),
                _ => skipped = Some(own),
            }
        }
        (Way::Straight, skipped)
    }

    /// Returns the verdict of the policy on a connection, and the rule and the first proxy that lead it. `None` within a network namespace,
    /// where nothing is led.
    fn leg(
        &mut self,
        namespace: NamespaceId,
        from: TenantId,
        asked: SocketAddr,
        target: SocketAddr,
        is_service: bool,
    ) -> Option<(Verdict, Option<(usize, usize)>)> {
        let there = self.names.namespace_of(namespace, target.ip()).ok();
        if there == Some(namespace) {
            return None;
        }
        let to = self.tenant_there(there);
        let own = self.own_proxies(namespace);
        let at = SocketAddr::new(self.names.place(namespace, target.ip()).1, target.port());
        let reached = Reached { at, asked: is_service.then_some(asked) };
        Some(self.tenants.decide_leg(from, to, reached, |hop| own.contains(&hop.at)))
    }

    /// Returns the tenant of a namespace; the default tenant if there is none.
    fn tenant_there(&self, there: Option<NamespaceId>) -> TenantId {
        there.and_then(|there| self.standing(there)).map(|(tenant, ..)| tenant).unwrap_or_default()
    }

    /// Returns the proxies that are in a network namespace.
    pub(super) fn own_proxies(&mut self, namespace: NamespaceId) -> Vec<At> {
        let (names, proxies) = (&mut self.names, &self.chains.proxies);
        let is_there = |at: &&At| match at {
            At::Container(name) => names.registration(namespace).is_some_and(|own| own.name == *name),
            At::Address(ip) => names.holds(namespace, *ip),
        };
        proxies.iter().filter(is_there).cloned().collect()
    }

    /// Tells whether the kernel's programs lead connections of a namespace to a proxy. The proxy has to be in the same network, or at an
    /// address of the common one. `ip` is the proxy's address.
    fn is_near(&self, namespace: NamespaceId, at: &At, ip: Option<IpAddr>) -> bool {
        match at {
            At::Container(_) => ip.is_some_and(|ip| !self.names.is_mapped(namespace, ip)),
            At::Address(_) => self.names.network(namespace).is_common(),
        }
    }

    /// Returns the address of a proxy in a family, if there is one that `viewer` can name. Without a viewer: the proxy's own.
    fn place_of(&self, viewer: Option<NamespaceId>, at: &At, is_v4: bool) -> Option<IpAddr> {
        match at {
            At::Container(name) => {
                let known = self.names.known().filter_map(|(id, _, registration)| Some((id, registration?)));
                let (owner, container) =
                    known.into_iter().find(|(_, registration)| registration.name == *name)?;
                let mut addresses = container.addresses.iter().map(IpAddr::to_canonical);
                let own = addresses.find(|ip| ip.is_ipv4() == is_v4)?;
                viewer.map_or(Some(own), |viewer| self.names.seen(viewer, owner, own))
            }
            // The fabric's names and the gate know whether anyone listens there.
            At::Address(ip) => Some(*ip).filter(|ip| ip.is_ipv4() == is_v4),
        }
    }

    /// Counts a decision on a connection that is led. Returns the tenants of the two.
    ///
    /// # Errors
    /// `EMFILE`; `ECONNREFUSED` if one of the clients has gone.
    pub(super) fn admit_led(
        &mut self,
        id: ClientId,
        peer: ClientId,
        decision: Verdict,
        counted: bool,
    ) -> Result<[TenantId; 2], Errno> {
        let (Some(client), Some(other)) = (self.client(id), self.client(peer)) else {
            return Err(Errno::CONNREFUSED);
        };
        let tenants = [client.tenant, other.tenant];
        if counted {
            self.tenants.admit(tenants[0], decision).inspect_err(|_| {
                Metrics::add(&self.metrics.connections_over_quota, 1);
            })?;
        }
        Ok(tenants)
    }

    /// Tells whether an open connection of a client to `reached` may stay by the policy in force. `through`: the service or proxy by which
    /// it came there.
    pub(super) fn may_stay(
        &mut self,
        id: ClientId,
        (to, peer): (TenantId, NamespaceId),
        reached: SocketAddr,
        through: Option<Chosen>,
    ) -> bool {
        let Some(client) = self.client(id) else { return true };
        let (namespace, from) = (client.identity.namespace, client.tenant);
        let led = through.filter(|chosen| chosen.led.is_some());
        let asked = through.map_or(reached, |chosen| chosen.asked);
        let (target, there, to, is_service) = match led.and_then(|chosen| chosen.led) {
            None => (reached, Some(peer), to, through.is_some()),
            Some(target) => {
                let there = self.names.namespace_of(namespace, target.ip()).ok();
                let real = SocketAddr::new(self.names.place(namespace, target.ip()).1, target.port());
                (real, there, self.tenant_there(there), asked != target)
            }
        };
        let at = Reached { at: target, asked: is_service.then_some(asked) };
        if there == Some(namespace) {
            return self.tenants.decide(from, to, true, at).0 == Action::Allow;
        }
        let own = self.own_proxies(namespace);
        let ((action, _), leg) = self.tenants.decide_leg(from, to, at, |hop| own.contains(&hop.at));
        if action == Action::Deny {
            return false;
        }
        let Some((rule, first)) = leg else { return true };
        let Some(via) = self.tenants.policy().rules.get(rule).and_then(|rule| rule.via.clone()) else {
            return true;
        };
        let has_passed = via.hops[first..].iter().any(|hop| {
            let at = self.place_of(None, &hop.at, reached.ip().to_canonical().is_ipv4());
            at == Some(reached.ip().to_canonical()) && hop.port.unwrap_or(asked.port()) == reached.port()
        });
        has_passed || via.on_failure == OnFailure::Bypass
    }

    /// Reports on rules that lead through proxies.
    pub(super) fn sidecar_reports(&mut self) -> Vec<SidecarReport> {
        let mut reports = Vec::new();
        let chains: Vec<_> =
            self.tenants.policy().chains().map(|(rule, _, via)| (rule, via.clone())).collect();
        for (rule, via) in chains {
            let Some(chain) = self.chains.of(rule) else { continue };
            let (own, numbers) = (chain.slot, chain.hops.clone());
            let mut proxies = Vec::new();
            for (hop, number) in via.hops.iter().zip(numbers) {
                let addresses = [true, false].map(|is_v4| self.place_of(None, &hop.at, is_v4));
                let port = |ip: IpAddr| hop.port.map(|port| SocketAddr::new(ip, port));
                let mut at = addresses.into_iter().flatten().filter_map(port);
                let on_fabric = at.any(|at| self.names.has_listener(NamespaceId::NONE, at));
                let slot = self.services.slots.slot(number);
                proxies.push(ProxyReport {
                    proxy: hop.to_string(),
                    addresses: addresses.into_iter().flatten().collect(),
                    on_fabric,
                    on_kernel: self.gate.is_in_force() && !slot.is(NO_LISTENER),
                    counts: super::services::counts(slot),
                });
            }
            let slot = self.services.slots.slot(own);
            reports.push(SidecarReport {
                rule: rule + 1,
                on_failure: via.on_failure,
                connections_bypassed: slot.bypassed.load(Relaxed),
                counts: super::services::counts(slot),
                proxies,
            });
        }
        reports
    }
}
