//! Choice of the connections that are on the direct path, and moves of open connections there and back.
//!
//! A connection takes the path with the fewest copies that the policy allows. On the direct path a side's sends go by rings where the peer
//! receives no bytes that the sender can still change. One of these is enough:
//!
//! - the peer's library copies, as all do that serve unmodified programs;
//! - the peer's program has asked for the bytes as they are;
//! - the policy says that the two trust each other.
//!
//! Sends to other native programs are offloaded: one copy does both there, and a ring would take two.
//!
//! All this is decided anew when the policy, a tenant or a socket changes. A connection that has no rings yet changes its path at once. A
//! connection with rings is *recalled*. Each side writes nothing more into its ring and says so (`LEFT`). Its peer reads the ring to the
//! end (`LAST`) and says so. Only then are the bytes delivered that came by the driver meanwhile. Until a side has said so, its peer reads
//! no more of the ring than lay there when it learned of the recall. A client that ignores that thus reaches nobody.
use super::Direct;
use crate::conductor::{Conductor, Connection};
use crate::ids::{ClientId, ConnectionId, FlowId, Side, Slot, TenantId};
use crate::messages::Gone;
use crate::metrics::Metrics;
use crate::policy::Path;
use pd_abi::layout::path;
use std::net::SocketAddr;
use std::sync::atomic::{fence, Ordering};

/// Plan of a direct connection: the paths of its sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::conductor) struct Plan {
    /// Set if the policy says that the sides trust each other.
    trusted: bool,
    /// Sides whose sends go by rings.
    sends: [bool; 2],
}

/// Progress of a recall.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Recall {
    /// Sides that write no more into their rings.
    pub(super) stopped: [bool; 2],
    /// Sides whose rings are read to the end.
    pub(super) read_up: [bool; 2],
}

impl Plan {
    /// Returns the first values of the sides' `path` words.
    pub(super) fn words(self) -> [u32; 2] {
        let trusted = if self.trusted { path::TRUSTED } else { 0 };
        self.sends.map(|sends| path::DIRECT | trusted | if sends { 0 } else { path::SENDS_OFFLOADED })
    }

    /// Tells whether `other` allows all that this plan allows.
    fn is_within(self, other: Self) -> bool {
        (!self.trusted || other.trusted)
            && Side::BOTH.into_iter().all(|side| !self.sends[side] || other.sends[side])
    }
}

impl Conductor {
    /// Returns the plan of a connection between two sockets. `None`: offloaded. `twin`: both belong to libraries that copy.
    pub(in crate::conductor) fn plan(
        &self,
        sides: [(ClientId, Slot); 2],
        tenants: [TenantId; 2],
        reached: SocketAddr,
        twin: bool,
    ) -> Option<Plan> {
        if self.is_shown(tenants, reached) {
            return None;
        }
        let [from, to] = [self.client(sides[0].0)?, self.client(sides[1].0)?];
        let kin = from.identity.namespace == to.identity.namespace && from.identity.uid == to.identity.uid;
        let (path, trusted) = self.tenants.path(tenants, kin, reached);
        let receives = |side: Side| {
            let socket = self.client(sides[side].0).and_then(|client| client.socket(sides[side].1));
            trusted || twin || socket.is_some_and(|socket| socket.receives_shared)
        };
        let sends = [receives(Side::Accepting), receives(Side::Connecting)];
        (path == Path::Direct && sends != [false; 2]).then_some(Plan { trusted, sends })
    }

    /// Tells whether a rate or a mirror needs movers to carry the bytes of a connection.
    pub(in crate::conductor) fn needs_mover(&self, index: ConnectionId) -> bool {
        let needs =
            |it: &Connection| self.tenants.have_rates(it.tenants) || self.is_shown(it.tenants, it.reached);
        self.connection(index).is_some_and(needs)
    }

    /// Puts an open connection on the direct path.
    pub(in crate::conductor) fn begin_direct(
        &mut self,
        index: ConnectionId,
        sides: [(ClientId, Slot); 2],
        plan: Plan,
    ) {
        if self.is_full(sides.map(|(client, _)| client)) {
            return;
        }
        let undrained = Side::BOTH.map(|side| self.undrained(index, side));
        let direct = Box::new(self.open_direct(sides, plan, undrained));
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.direct = Some(direct);
    }

    /// Puts an open connection on the path that policy and sockets ask for by now.
    pub(in crate::conductor) fn place(&mut self, index: ConnectionId) {
        let Some(connection) = self.connection(index).filter(|connection| !connection.is_cut()) else {
            return;
        };
        let &Connection { tenants, reached, .. } = connection;
        let [Some(from), Some(to)] = connection.owners() else {
            // A client that takes a parked side is judged by then. Rings would have been left when the side was parked.
            let path = self.tenants.path(tenants, false, reached).0;
            let is_denied = path != Path::Direct || self.is_shown(tenants, reached);
            if is_denied && connection.direct.as_ref().is_some_and(|it| it.is_unused() && it.is_in_use()) {
                self.recall(index);
            }
            return;
        };
        let plan = self.plan([from, to], tenants, reached, connection.twin.is_some());
        match (connection.direct.as_ref(), plan) {
            (None, Some(plan)) => self.begin_direct(index, [from, to], plan),
            (Some(direct), plan) if direct.is_in_use() && plan != Some(direct.plan) => match plan {
                Some(plan) if direct.plan.is_within(plan) => self.widen(index, plan),
                _ => self.recall(index),
            },
            _ => {}
        }
    }

    /// Puts a plan in force that allows more than before.
    fn widen(&mut self, index: ConnectionId, plan: Plan) {
        let Some(direct) = self.direct_mut(index) else { return };
        direct.plan = plan;
        for (word, begins) in direct.words.iter_mut().zip(plan.words()) {
            *word = begins | *word & (path::PEER_READY | path::RECV_UNDRAINED | path::SEND_UNDRAINED);
        }
        Side::BOTH.into_iter().for_each(|side| self.say(index, side, 0));
        self.wake_ends(index);
    }

    /// Takes a connection off the direct path without loss.
    fn recall(&mut self, index: ConnectionId) {
        self.report_sides(index);
        Metrics::add(&self.metrics.connections_recalled, 1);
        let Some(connection) = self.connections.get_mut(index) else { return };
        if let Some(direct) = connection.direct.take_if(|direct| direct.is_unused()) {
            Side::BOTH.into_iter().for_each(|side| self.tell_undrained(index, side));
            self.close_direct(*direct);
        } else if let Some(direct) = &mut connection.direct {
            direct.recall = Some(Recall::default());
            Side::BOTH.into_iter().for_each(|side| self.say(index, side, path::LEFT));
        }
        fence(Ordering::SeqCst);
        self.wake_ends(index);
    }

    /// Notes that one side of a connection that leaves the direct path has done its part. Its client says so, or has ended.
    pub(in crate::conductor) fn gone(&mut self, flow: FlowId, gone: Gone) {
        let (index, side) = (flow.connection(), flow.side());
        let Some(Direct { recall: Some(recall), .. }) = self.direct_mut(index) else { return };
        match gone {
            Gone::Reader => recall.read_up[side] = true,
            Gone::Writer if !std::mem::replace(&mut recall.stopped[side], true) => {
                // SYNC POINT: direct-left (the client has written its last byte, then said so)
                self.say(index, side.other(), path::LAST);
                fence(Ordering::SeqCst);
                self.wake_ends(index);
            }
            Gone::Writer => {}
        }
    }
}
