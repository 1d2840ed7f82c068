//! Reports to administrators, and registrations of `pd run`.
use super::client::SocketState;
use super::listing::Content;
use super::Conductor;
use crate::admin::{Answer, Ask, ClientReport, ConnectionReport, KernelReport, Report};
use crate::door::{Asked, Registering, ToDoor};
use crate::ids::{ClientId, ConnectionId, Side, Slot};
use crate::policy::Path;
use pd_abi::counters::Gauges;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::mpsc::Sender;
use std::sync::Arc;

impl Conductor {
    /// Answers an administrator's question, now or soon.
    pub(super) fn answer_administrator(&mut self, asked: Asked, reply: Sender<Answer>) {
        let answer = match asked {
            Asked::Plain(Ask::List) => {
                return self.begin_listing(Content::All(Vec::new(), Vec::new()), reply)
            }
            Asked::Plain(Ask::Kernel) => {
                return self.begin_listing(Content::Kernel(KernelReport::default()), reply)
            }
            Asked::Plain(Ask::Policy) => return self.begin_listing(Content::Policy, reply),
            Asked::Plain(Ask::Network { name }) => match self.network_report(&name) {
                Ok(report) => Answer::Network(Box::new(report)),
                Err(why) => Answer::Error(why),
            },
            Asked::Plain(Ask::TakeOver { .. }) => {
                Answer::Offer { policy: self.policy_text().map(|text| text.to_string()) }
            }
            Asked::Apply(_)
            | Asked::Register(_)
            | Asked::AddPort { .. }
            | Asked::AddTap(_)
            | Asked::Show { .. }
            | Asked::Plain(
                Ask::Counters
                | Ask::Apply { .. }
                | Ask::Register { .. }
                | Ask::PortAdd { .. }
                | Ask::PortRemove { .. }
                | Ask::Pipes
                | Ask::MayUse { .. }
                | Ask::Tap { .. },
            ) => Answer::Error("not the conductor's to answer".to_owned()),
        };
        // The asker may have gone.
        let _ = reply.send(answer);
    }

    pub(super) fn register(&mut self, registering: Registering) -> Result<(), String> {
        let Registering { registration, pidfd, namespace: id, namespace_fd, cgroup } = registering;
        let name = registration.name.clone();
        self.check_network(&registration).map_err(|why| format!("container {name}: {why}"))?;
        self.tenants.enroll(&registration.tenant)?;
        self.tell_pipes();
        self.names.enter(id, &Arc::new(namespace_fd));
        self.enter_container(id, &registration);
        if let Err(errno) = self.names.register(id, registration) {
            self.names.leave(id);
            // The gate may have been told of the network.
            self.tell_of_space(id);
            let why = match errno {
                Errno::ADDRNOTAVAIL => "a map of the policy gives an address to another network",
                _ => "an address is held by another namespace",
            };
            return Err(format!("container {name}: {why} ({errno})"));
        }
        // The registration ends with the process.
        self.door.send(ToDoor::Watch { pidfd: Arc::clone(&pidfd) });
        let previous = self.containers.add(id, pidfd, cgroup);
        if previous.is_some() {
            self.names.leave(id);
        }
        self.sort_anew();
        if let Some(Some(previous)) = previous {
            self.tell_of_container(id, Some(&previous), None);
        }
        Ok(())
    }

    pub(super) fn forget_registered(&mut self) {
        let ended = self.containers.forget_ended();
        ended.iter().for_each(|(id, _)| self.names.leave(*id));
        self.sort_anew();
        for (id, cgroup) in ended {
            self.tell_of_container(id, cgroup.as_deref(), None);
        }
    }

    /// Updates the gauges in the counter region.
    pub(super) fn set_gauges(&self) {
        self.metrics.set_gauges(&Gauges {
            memory_used_bytes: self.pool.usage().0,
            rings_waiting: self.rings_waiting() as u64,
            movers_working: self.movers.working().count() as u64,
        });
    }

    /// Reports everything, with lists that were made before.
    pub(super) fn report(
        &mut self,
        clients: Vec<ClientReport>,
        connections: Vec<ConnectionReport>,
    ) -> Report {
        let (services, sidecars) = (self.service_reports(), self.sidecar_reports());
        let (memory_used_bytes, memory_budget_bytes) = self.pool.usage();
        let total = self.metrics.region().total();
        Report {
            memory_used_bytes,
            memory_budget_bytes,
            rings_waiting: self.rings_waiting(),
            clients,
            connections,
            kernel_connections_by_reason: self.kernel.counts().by_label(),
            attaches_refused_by_reason: self.kernel.refusals(),
            policy_on_kernel: self.kernel_half(),
            services,
            sidecars,
            metrics: total.entries().map(|(name, value)| (name.to_owned(), value)).collect(),
            taken_over: self.taken_over.clone(),
            cores_scarce: self.cores_scarce,
        }
    }

    /// Reports a connection, if there is one of this number.
    pub(super) fn connection_report(&self, id: ConnectionId) -> Option<ConnectionReport> {
        let entry = self.connection(id)?;
        let side = |side: Side| -> Option<(u16, SocketAddr)> {
            let (client, slot) = entry.owner(side)?;
            match &self.client(client)?.socket(slot)?.state {
                SocketState::Connected(connected) => Some((client.get(), connected.local)),
                _ => None,
            }
        };
        let flow = |side| self.metrics.region().flow(id.flow(side).get(), entry.serial);
        let flows = Side::BOTH.map(|side| flow(side).unwrap_or_default());
        Some(ConnectionReport {
            connection: id.get(),
            serial: entry.serial,
            path: if entry.is_direct() { Path::Direct } else { Path::Offloaded },
            from: side(Side::Connecting),
            to: side(Side::Accepting),
            bytes: flows.map(|flow| flow.bytes),
            messages: flows.map(|flow| flow.messages),
            asked: entry.through.map(|chosen| chosen.asked),
        })
    }

    /// Returns the listeners among some places of a client's sockets, each with the number of connections that wait.
    pub(super) fn listeners_at(&self, id: ClientId, places: Range<usize>) -> Vec<(SocketAddr, usize)> {
        let Some(client) = self.client(id) else { return Vec::new() };
        let listeners = places.filter_map(|place| {
            let socket = client.socket(Slot::at(place))?;
            match &socket.state {
                SocketState::Listen(listener) => Some((socket.bound?, listener.backlog.len())),
                _ => None,
            }
        });
        listeners.collect()
    }

    /// Reports a client without its listeners, if there is one of this number.
    pub(super) fn client_report(&self, id: ClientId) -> Option<ClientReport> {
        let client = self.client(id)?;
        let registration = self.registration_of(&client.identity);
        let ring_bytes = client.regions.values();
        let ring_bytes =
            ring_bytes.map(|(region, space)| u64::from(space.taken()) * region.pages.bytes() as u64);
        Some(ClientReport {
            client: id.get(),
            serial: client.serial,
            pid: client.identity.pid,
            uid: client.identity.uid,
            container: registration.map(|r| r.name.clone()),
            network: self.network_name(client.identity.namespace).map(str::to_owned),
            image: None,
            pod: None,
            engine_container: client.identity.container.clone(),
            tenant: Some(self.tenants.name(client.tenant).to_owned()),
            channels: client.channels,
            regions: client.account.leases(),
            region_bytes: client.account.used().memory_bytes,
            ring_bytes: ring_bytes.sum(),
            sockets: client.sockets_open(),
            listening: Vec::new(),
            kernel_connections_by_reason: client.kernel.by_label(),
        })
    }
}
