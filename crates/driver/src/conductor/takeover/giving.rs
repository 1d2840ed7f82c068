//! State of the conductor for another driver, while everything stands still.
use super::{ClientState, ConductorState, ConnectionState, ContainerState};
use crate::conductor::client::{Client, Phase};
use crate::conductor::connections::Connection;
use crate::conductor::direct::DoorbellsGiven;
use crate::conductor::Conductor;
use crate::identity::Identity;
use crate::ids::{ClientId, ConnectionId, Slot};
use crate::memory::RegionState;
use crate::mover::takeover::MoverState;
use crate::takeover::pack::{Hindrance, Pack};
use pd_shm::memfd::Pages;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Conductor {
    /// Delivers everything that is on its way between the movers, which the caller holds, and the conductor. Returns whether there was
    /// anything.
    pub fn settle(&mut self) -> bool {
        let mut worked = self.movers.settle();
        worked |= self.step();
        worked
    }

    /// Stops all movers until [`Self::let_go`]. Returns false if one did not come back, since the driver ends.
    pub fn hold(&mut self) -> bool {
        self.movers.hold()
    }

    /// Lets all movers go on after [`Self::hold`].
    pub fn let_go(&mut self) {
        self.movers.let_go();
    }

    /// Returns the text of the policy in force, if it came as one.
    pub fn policy_text(&self) -> Option<Arc<str>> {
        self.tenants.policy().source.text()
    }

    /// Returns the state that another driver goes on with, while everything stands still. The conductor and the movers go on themselves if
    /// this fails, or no driver takes the state.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(&mut self, pack: &mut Pack) -> Result<(ConductorState, Vec<MoverState>), Hindrance> {
        self.check_still()?;
        self.report_all();
        let (mut clients, mut connections) = (Vec::new(), Vec::new());
        for (id, client) in self.clients.iter().filter(|(_, client)| client.is_attached()) {
            clients.push(client.give(id, pack)?);
        }
        let mut doorbells = DoorbellsGiven::default();
        for (id, connection) in self.connections.iter() {
            connections.push(self.give_connection(id, connection, &mut doorbells, pack)?);
        }
        let mut containers = Vec::new();
        for (namespace, pidfd, cgroup) in self.containers.iter() {
            let (pidfd, cgroup) = (pack.add(&**pidfd)?, cgroup.map(str::to_owned));
            containers.push(ContainerState { namespace, pidfd, cgroup });
        }
        let network = |id| self.networks.name(id).map(str::to_owned);
        let names = self.names.give(pack, network)?;
        let (tenants, hits) = self.tenants.give();
        let twins = self.give_twins(pack)?;
        let (serial, doorbells) = (self.serial, self.rings.last_doorbell());
        let through = self.connections.iter().filter_map(|(_, connection)| {
            connection.through.as_ref().map(|chosen| (chosen, connection.moved()))
        });
        let services = self.services.slots.give(through);
        let on_kernel = self.on_kernel.iter().collect();
        let state = ConductorState {
            serial,
            doorbells,
            tenants,
            hits,
            kernel: self.give_kernel(),
            names,
            containers,
            clients,
            connections,
            twins,
            services,
            on_kernel,
        };
        Ok((state, self.movers.give(pack)?))
    }

    fn check_still(&self) -> Result<(), Hindrance> {
        if !self.deferred.is_empty() {
            return Err(Hindrance::passing("requests wait for addresses of a network namespace"));
        }
        if self.twins.is_proving() {
            return Err(Hindrance::passing("a helper proves that a client listens"));
        }
        if self.gate.is_applying() || self.review.is_under_way() {
            return Err(Hindrance::passing("a policy is being put in force"));
        }
        for (id, client) in self.clients.iter() {
            let pid = client.identity.pid;
            match client.phase() {
                Phase::Attached if client.is_settled() => {}
                Phase::Attached => {
                    return Err(Hindrance::passing(format!(
                        "memory is being made for client {id} (process {pid})"
                    )))
                }
                Phase::Arriving => {
                    return Err(Hindrance::passing(format!("process {pid} is attaching")));
                }
                Phase::Leaving => {
                    return Err(Hindrance::passing("a process that has left is being forgotten"));
                }
            }
            let slots = client.slots();
            let parts = |slot: &Slot| client.socket(*slot).is_some_and(|socket| socket.flows_left > 0);
            if slots.iter().any(parts) {
                return Err(Hindrance::passing("a connection is on its way from one process to another"));
            }
        }
        Ok(())
    }

    /// Adds the traffic of connections to their tenants' accounts.
    fn report_all(&mut self) {
        self.collect_reports();
        self.movers.settle();
        for (index, connection) in self.connections.iter_mut() {
            self.tenants.settle(index, connection, self.metrics.region());
        }
    }

    fn give_connection(
        &self,
        id: ConnectionId,
        connection: &Connection,
        doorbells: &mut DoorbellsGiven,
        pack: &mut Pack,
    ) -> Result<ConnectionState, Hindrance> {
        if !connection.is_drained() {
            return Err(Hindrance::passing("a connection is on its way from one process to another"));
        }
        let direct = connection.direct.as_ref();
        let direct =
            direct.map(|direct| self.give_direct(direct, doorbells, pack).map(Box::new)).transpose()?;
        Ok(ConnectionState {
            id,
            sides: connection.owners(),
            life: connection.life(),
            serial: connection.serial,
            tenants: connection.tenants,
            cut: connection.is_cut(),
            counted: connection.counted,
            reached: connection.reached,
            mapped: connection.mapped,
            lent: connection.lent,
            through: connection.through,
            receives_no_more: connection.receives_no_more,
            sends_no_more: connection.sends_no_more,
            twin: connection.twin.clone(),
            direct,
        })
    }
}

impl Client {
    fn give(&self, id: ClientId, pack: &mut Pack) -> Result<ClientState, Hindrance> {
        let pid = self.identity.pid;
        let memory = self.memory();
        let memory = memory.ok_or_else(|| Hindrance::passing(format!("process {pid} is attaching")))?;
        let lasting = |file: &OwnedFd, bytes: usize, pages| {
            pd_shm::shelf::check(file, bytes, pages).map_err(|_| {
                Hindrance::lasting(
                    "memory of clients cannot go to another process: start the driver with CAP_SYS_ADMIN, on Linux 5.12 or newer",
                )
            })
        };
        let [control, status] = memory.files();
        lasting(status, pd_abi::layout::REGION_BYTES, Pages::Ordinary)?;
        let mut regions = Vec::with_capacity(self.regions.len());
        for (&number, (region, _)) in &self.regions {
            lasting(region.file(), region.map.len(), region.pages)?;
            regions.push(RegionState::of(number, region, pack)?);
        }
        let (generations, sockets) = self.give_slots();
        let Identity { uid, ref pidfd, namespace, ref namespace_fd, ref cgroup, ref container, .. } =
            self.identity;
        Ok(ClientState {
            id,
            serial: self.serial,
            pid,
            uid,
            pidfd: pack.add(&**pidfd)?,
            namespace,
            namespace_fd: pack.add(namespace_fd)?,
            cgroup: cgroup.clone(),
            container: container.clone(),
            place: self.place,
            control: pack.add(control)?,
            status: pack.add(status)?,
            pages_of_lines: self.pages_of_lines,
            channels: self.channels,
            regions,
            generations,
            sockets,
            ring_bytes_max: self.growth.bytes_max(),
            is_bound: self.is_bound,
            passes_files: self.passes_files,
        })
    }
}
