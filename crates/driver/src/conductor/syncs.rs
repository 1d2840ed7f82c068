//! Work for `Operation::Sync`: a client learns that the driver has brought what others had asked for before.
//!
//! Each mover scans: it looks at all doorbells and channels. A request that was in a ring before is taken in that scan. What the
//! conductor does with it reaches the movers before their second scan. So the sync is done after two scans. It has a constant cost. A sync for a
//! socket whose first receive region is being made waits for that, and for a scan more.
use super::client::{Client, Connected};
use super::Conductor;
use crate::hash::FastMap;
use crate::ids::{ClientId, FlowId, Slot};
use crate::messages::{Permit, ToMover};
use pd_abi::{Request, SocketId};
use std::time::Duration;

/// Time after which a sync is given up. A mover that has lost its thread does not scan.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);

/// Syncs under way, by number.
#[derive(Debug, Default)]
pub struct Syncs {
    last: u64,
    /// Syncs that wait for memory.
    parked: usize,
    under_way: FastMap<u64, Sync>,
    /// Time from which on the oldest one may have to be given up.
    given_up_at: Duration,
}

#[derive(Debug)]
struct Sync {
    client: ClientId,
    channel: usize,
    /// Number that the client has given it.
    number: u64,
    /// Flow into the socket.
    flow: Option<FlowId>,
    /// Waits for memory for the flow.
    is_parked: bool,
    /// Movers that have still to scan.
    missing: usize,
    is_second: bool,
    until: Duration,
    #[expect(dead_code, reason = "counts until its drop")]
    permit: Option<Permit>,
}

impl Conductor {
    /// Begins a client's sync. The client may know that the holders of the kernel's socket at the other end of its own have gone.
    pub(super) fn sync(
        &mut self,
        client: ClientId,
        channel: usize,
        request: &Request,
        permit: Option<Permit>,
    ) {
        let connected = self.connected(client, Slot::of(SocketId(request.socket)));
        let peer = connected.map(|Connected { connection, side, .. }| (connection, side.other())).ok();
        if let Some(peer) = peer {
            self.look_now(peer);
        }
        let flow = peer.map(|(connection, side)| connection.flow(side));
        let now = self.clock.now();
        self.give_up_syncs(now);
        let (number, until) = (request.numbers().0, now + GIVEN_UP_AFTER);
        self.syncs.last += 1;
        let (is_parked, is_second, missing) = (false, false, 0);
        let sync = Sync { client, channel, number, flow, is_parked, missing, is_second, until, permit };
        self.syncs.under_way.insert(self.syncs.last, sync);
        self.begin_scan(self.syncs.last);
    }

    fn begin_scan(&mut self, id: u64) {
        let movers: Vec<_> = self.movers.working().collect();
        if let Some(sync) = self.syncs.under_way.get_mut(&id) {
            sync.missing = movers.len();
            movers.into_iter().for_each(|mover| self.movers.send(mover, ToMover::Scan { sync: id }));
        }
    }

    /// Notes that a mover has scanned.
    pub(super) fn scanned(&mut self, id: u64) {
        let Some(sync) = self.syncs.under_way.get_mut(&id) else { return };
        sync.missing = sync.missing.saturating_sub(1);
        if sync.missing > 0 {
            return;
        }
        if !std::mem::replace(&mut sync.is_second, true) {
            return self.begin_scan(id);
        }
        let (client, flow) = (sync.client, sync.flow);
        if flow.is_some_and(|flow| self.awaits_region(client, flow)) {
            return self.park_sync(id);
        }
        let Some(Sync { channel, number, .. }) = self.syncs.under_way.remove(&id) else { return };
        if let Some(memory) = self.client(client).and_then(Client::memory) {
            memory.say_synced(channel, number);
        }
    }

    fn park_sync(&mut self, id: u64) {
        if let Some(sync) = self.syncs.under_way.get_mut(&id) {
            sync.is_parked = true;
            self.syncs.parked += 1;
        }
    }

    /// Goes on with the syncs that have waited for memory of this client.
    pub(super) fn resume_syncs(&mut self, client: ClientId) {
        if self.syncs.parked == 0 {
            return;
        }
        let of_client = |(_, sync): &(&u64, &mut Sync)| sync.is_parked && sync.client == client;
        let parked: Vec<_> = self.syncs.under_way.iter_mut().filter(of_client).collect();
        self.syncs.parked -= parked.len();
        let ids: Vec<_> = parked.into_iter().map(|(&id, sync)| (id, sync.is_parked = false).0).collect();
        ids.into_iter().for_each(|id| self.begin_scan(id));
    }

    fn give_up_syncs(&mut self, now: Duration) {
        let Syncs { under_way, given_up_at, parked, .. } = &mut self.syncs;
        if now >= *given_up_at {
            under_way.retain(|_, sync| now < sync.until);
            *parked = under_way.values().filter(|sync| sync.is_parked).count();
            *given_up_at = now + GIVEN_UP_AFTER;
        }
    }
}
