//! Reports to administrators, and registrations of `pd run`.
use super::client::{Client, SocketState};
use super::Conductor;
use crate::admin::{Answer, Ask, ClientReport, ConnectionReport, Report};
use crate::door::{Asked, Registering, ToDoor};
use crate::ids::{ClientId, Side};
use crate::policy::Path;
use pd_abi::counters::Gauges;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::Arc;

impl Conductor {
    /// Answers an administrator's question.
    pub(super) fn answer_administrator(&mut self, asked: Asked) -> Answer {
        match asked {
            Asked::Plain(Ask::List) => {
                self.collect_reports();
                self.take_all_kernel_counts();
                self.count_refused_on_kernel();
                let (services, sidecars) = (self.service_reports(), self.sidecar_reports());
                Answer::Report(Box::new(Report { services, sidecars, ..self.report() }))
            }
            Asked::Plain(Ask::Kernel) => Answer::Kernel(Box::new(self.kernel_report())),
            Asked::Plain(Ask::Policy) => Answer::Policy(Box::new(self.policy_report())),
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
        }
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

    fn report(&self) -> Report {
        let (memory_used_bytes, memory_budget_bytes) = self.pool.usage();
        let clients = self.clients.iter().map(|(id, client)| self.client_report(id, client)).collect();
        let connections = self.connections.iter().map(|(id, entry)| {
            let side = |side: Side| -> Option<(u16, SocketAddr)> {
                let (client, slot) = entry.owner(side)?;
                match &self.client(client)?.socket(slot)?.state {
                    SocketState::Connected(connected) => Some((client.get(), connected.local)),
                    _ => None,
                }
            };
            let flow = |side| self.metrics.region().flow(id.flow(side).get(), entry.serial);
            let flows = Side::BOTH.map(|side| flow(side).unwrap_or_default());
            ConnectionReport {
                connection: id.get(),
                serial: entry.serial,
                path: if entry.is_direct() { Path::Direct } else { Path::Offloaded },
                from: side(Side::Connecting),
                to: side(Side::Accepting),
                bytes: flows.map(|flow| flow.bytes),
                messages: flows.map(|flow| flow.messages),
                asked: entry.through.map(|chosen| chosen.asked),
            }
        });
        let total = self.metrics.region().total();
        Report {
            memory_used_bytes,
            memory_budget_bytes,
            rings_waiting: self.rings_waiting(),
            clients,
            connections: connections.collect(),
            kernel_connections_by_reason: self.kernel.counts().by_label(),
            attaches_refused_by_reason: self.kernel.refusals(),
            policy_on_kernel: self.kernel_half(),
            services: Vec::new(),
            sidecars: Vec::new(),
            metrics: total.entries().map(|(name, value)| (name.to_owned(), value)).collect(),
            taken_over: self.taken_over.clone(),
            cores_scarce: self.cores_scarce,
        }
    }

    fn client_report(&self, id: ClientId, client: &Client) -> ClientReport {
        let registration = self.registration_of(&client.identity);
        let slots = client.slots();
        let listening = slots.iter().filter_map(|&slot| {
            let socket = client.socket(slot)?;
            match &socket.state {
                SocketState::Listen(listener) => Some((socket.bound?, listener.backlog.len())),
                _ => None,
            }
        });
        let ring_bytes = client.regions.values();
        let ring_bytes =
            ring_bytes.map(|(region, space)| u64::from(space.taken()) * region.pages.bytes() as u64);
        ClientReport {
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
            sockets: slots.len(),
            listening: listening.collect(),
            kernel_connections_by_reason: client.kernel.by_label(),
        }
    }
}
