//! Receiving pipes by port and flow, and payers' pipes: what an opening is compared with, so that it costs no more beside many pipes.
use super::Pipe;
use crate::ids::ClientId;
use crate::messages::Payer;
use pd_pipe::{Fields, Flow, PortId, Unit};
use std::collections::HashMap;
use std::hash::Hash;

/// Most combinations of fields that a payer's flows of a port name. Each costs every frame of the port a look into a map, whoever
/// receives it.
pub(super) const KINDS_MAX: usize = 16;

/// A client, with the door's serial.
type Client = (ClientId, u64);

/// Reason why a client may not have a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// Another payer has it.
    Payer,
    /// Another client of the payer has it, and one of the two does not share.
    Client,
    /// The payer's flows of the port name [`KINDS_MAX`] other combinations of fields.
    Kinds,
}

/// Pipes of frames with one flow: all, and those that do not share it with other clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    all: usize,
    unshared: usize,
}

impl Count {
    fn of(pipe: &Pipe) -> Self {
        // A stream has one receiver anyway.
        let all = usize::from(pipe.shape.unit() == Unit::Frames);
        Self { all, unshared: if pipe.shares { 0 } else { all } }
    }

    fn add(&mut self, other: Self) {
        *self = Self { all: self.all + other.all, unshared: self.unshared + other.unshared };
    }

    fn remove(&mut self, other: Self) {
        *self = Self { all: self.all - other.all, unshared: self.unshared - other.unshared };
    }
}

/// Pipes with one flow of a port.
#[derive(Debug, Default)]
struct Group {
    payers: HashMap<Payer, usize>,
    all: Count,
    clients: HashMap<Client, Count>,
}

/// See the module. Pipes that have ended are not among them.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    groups: HashMap<(PortId, Flow), Group>,
    kinds: HashMap<(PortId, Payer), HashMap<Fields, usize>>,
}

impl Receivers {
    /// Adds a pipe, if it receives.
    pub fn add(&mut self, client: ClientId, pipe: &Pipe) {
        if !pipe.shape.receives() {
            return;
        }
        let (count, group) = (Count::of(pipe), self.groups.entry((pipe.port, pipe.flow)).or_default());
        *group.payers.entry(pipe.payer).or_default() += 1;
        group.all.add(count);
        group.clients.entry((client, pipe.serial)).or_default().add(count);
        let kinds = self.kinds.entry((pipe.port, pipe.payer)).or_default();
        *kinds.entry(pipe.flow.fields()).or_default() += 1;
    }

    /// Removes a pipe that was added.
    pub fn remove(&mut self, client: ClientId, pipe: &Pipe) {
        if !pipe.shape.receives() {
            return;
        }
        let key = (pipe.port, pipe.flow);
        if let Some(group) = self.groups.get_mut(&key) {
            let count = Count::of(pipe);
            group.all.remove(count);
            if let Some(of_client) = group.clients.get_mut(&(client, pipe.serial)) {
                of_client.remove(count);
                if *of_client == Count::default() {
                    group.clients.remove(&(client, pipe.serial));
                }
            }
            if count_down(&mut group.payers, &pipe.payer) {
                self.groups.remove(&key);
            }
        }
        let key = (pipe.port, pipe.payer);
        if self.kinds.get_mut(&key).is_some_and(|kinds| count_down(kinds, &pipe.flow.fields())) {
            self.kinds.remove(&key);
        }
    }

    /// Tells whether a client's pipe may receive frames of a flow, and share them with other clients of the payer, if it `shares`.
    pub fn check(
        &self,
        client: Client,
        payer: Payer,
        port: PortId,
        flow: &Flow,
        shares: bool,
    ) -> Result<(), Conflict> {
        if let Some(group) = self.groups.get(&(port, *flow)) {
            if group.payers.len() > 1 || !group.payers.contains_key(&payer) {
                return Err(Conflict::Payer);
            }
            let mut others = group.all;
            others.remove(group.clients.get(&client).copied().unwrap_or_default());
            if others.unshared > 0 || !shares && others.all > 0 {
                return Err(Conflict::Client);
            }
        }
        match self.kinds.get(&(port, payer)) {
            Some(kinds) if kinds.len() >= KINDS_MAX && !kinds.contains_key(&flow.fields()) => {
                Err(Conflict::Kinds)
            }
            _ => Ok(()),
        }
    }
}

/// Counts one less of `key`. Returns whether nothing is left.
pub(super) fn count_down<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) -> bool {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
    counts.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use pd_pipe::{Agent, Direction, PipeId, Port, Shape};
    use proptest::prelude::*;

    /// Searches all pipes, as the index is to do without.
    fn search(
        pipes: &[(ClientId, Pipe)],
        (client, serial): Client,
        payer: Payer,
        port: PortId,
        flow: &Flow,
        shares: bool,
    ) -> Result<(), Conflict> {
        let here = || pipes.iter().filter(|(_, pipe)| pipe.shape.receives() && pipe.port == port);
        let same = || here().filter(|(_, pipe)| pipe.flow == *flow);
        if same().any(|(_, pipe)| pipe.payer != payer) {
            return Err(Conflict::Payer);
        }
        let may = |(other, pipe): &&(ClientId, Pipe)| {
            let is_own = (*other, pipe.serial) == (client, serial) || pipe.shape.unit() == Unit::Bytes;
            is_own || shares && pipe.shares
        };
        if !same().all(|pipe| may(&pipe)) {
            return Err(Conflict::Client);
        }
        let mut kinds = Vec::new();
        for (_, pipe) in here().filter(|(_, pipe)| pipe.payer == payer) {
            if pipe.flow.fields() == flow.fields() {
                return Ok(());
            }
            if !kinds.contains(&pipe.flow.fields()) {
                kinds.push(pipe.flow.fields());
            }
        }
        if kinds.len() < KINDS_MAX {
            Ok(())
        } else {
            Err(Conflict::Kinds)
        }
    }

    fn flow(number: u8) -> Flow {
        let mut flow = Flow::default();
        flow.addresses[0].prefix = number % 20;
        flow.ports[0] = u16::from(number / 20);
        flow
    }

    fn ids() -> (PipeId, [PortId; 2]) {
        let mut agent = Agent::new().unwrap();
        let ports = [0; 2].map(|_| agent.add_port(Port::Sink(Default::default())));
        let shape = Shape::new(Direction::Send, Unit::Frames, 32 << 10).unwrap();
        (agent.open(shape, ports[0], &[], None).unwrap().0, ports)
    }

    proptest! {
        /// Pipes come, go and move to another payer. Model: a search through all.
        #[test]
        fn an_index_says_what_a_search_says(
            steps in prop::collection::vec((0..8u8, 0..40u8, 0..3u16, 0..2u16, 0..4u8, 0..2usize), 1..150),
            few in any::<bool>(),
        ) {
            let (id, ports) = ids();
            let (mut index, mut pipes) = (Receivers::default(), Vec::<(ClientId, Pipe)>::new());
            for (step, number, client, tenant, bits, port) in steps {
                let payer = (TenantId::new(tenant), None);
                let (client, serial) = (ClientId::new(client), u64::from(bits & 1));
                let (flow, shares) = (flow(if few { number % 3 } else { number }), bits & 2 != 0);
                let port = ports[port];
                match step {
                    0 | 1 if !pipes.is_empty() => {
                        let at = usize::from(number) % pipes.len();
                        let (client, mut pipe) = pipes.swap_remove(at);
                        index.remove(client, &pipe);
                        if step == 1 {
                            pipe.payer = payer;
                            index.add(client, &pipe);
                            pipes.push((client, pipe));
                        }
                    }
                    _ => {
                        let said = index.check((client, serial), payer, port, &flow, shares);
                        prop_assert_eq!(said, search(&pipes, (client, serial), payer, port, &flow, shares));
                        if said.is_ok() {
                            let direction = if number == 39 { Direction::Send } else { Direction::Receive };
                            let unit = if number == 38 { Unit::Bytes } else { Unit::Frames };
                            let pipe = Pipe {
                                id,
                                serial,
                                payer,
                                ports: Vec::new(),
                                port,
                                flow,
                                shares,
                                shape: Shape::new(direction, unit, 32 << 10).unwrap(),
                                settled: Default::default(),
                                ended: None,
                                is_shown: false,
                            };
                            index.add(client, &pipe);
                            pipes.push((client, pipe));
                        }
                    }
                }
            }
            for (client, pipe) in pipes {
                index.remove(client, &pipe);
            }
            prop_assert!(index.groups.is_empty() && index.kinds.is_empty());
        }
    }
}
