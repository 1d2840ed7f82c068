//! Flows that another driver goes on with: without a copy under way, and with offsets in place of addresses.
use super::migration::{Migration, MigrationState};
use super::schedule::Schedule;
use super::sink::{Sink, SinkState};
use super::source::{Source, SourceState};
use super::Flow;
use crate::ids::{ClientId, FlowId, Slot, TenantId};
use crate::messages::{Endpoint, Finish, Ring};
use crate::reader::OpenFile;
use crate::takeover::pack::{Hindrance, Wrong};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// State of a flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowState {
    /// Number of the flow.
    pub id: FlowId,
    /// Tenant whose rates it keeps to.
    pub tenant: TenantId,
    /// Sending and receiving end: socket, and serial of the client. `None`: no client.
    pub ends: [Option<((ClientId, Slot), u64)>; 2],
    /// Bytes that may be sent and not yet delivered, for a flow that has never had anything to do.
    pub send_ring_bytes: u64,
    /// State of a flow that has had something to do.
    pub moving: Option<Box<Moving>>,
}

/// A flow that has had something to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moving {
    source: SourceState,
    /// State of the destination, with its receive ring.
    pub sink: SinkState,
    finish: Option<Finishing>,
    aborted: bool,
    ends_told: (u32, u32),
    lost_end: u32,
    migration: Option<MigrationState>,
}

/// A [`Finish`] by the time that is left.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Finishing {
    end: u32,
    late_errno: u32,
    left: Option<Duration>,
    source_gone: bool,
}

impl Flow {
    /// Returns the state that another driver goes on with. `place` returns region and offset of an address in a client's send regions,
    /// `file` the place of a file among the client's.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(
        &self,
        now: Duration,
        place: impl Fn(u64, u64) -> Option<(u16, u64)>,
        file: impl FnMut(&Arc<OpenFile>) -> Option<Result<u32, Hindrance>>,
    ) -> Result<Moving, Hindrance> {
        let finish = self.finish.map(|Finish { end, late_errno, deadline, source_gone }| Finishing {
            end,
            late_errno,
            left: deadline.map(|deadline| deadline.saturating_sub(now)),
            source_gone,
        });
        Ok(Moving {
            source: self.source.give(place, file)?,
            sink: self.sink.give()?,
            finish,
            aborted: self.aborted,
            ends_told: self.ends_told,
            lost_end: self.lost_end,
            migration: self.migration.as_ref().map(|migration| migration.give()).transpose()?,
        })
    }

    /// Takes over state that another driver has given. The functions return the address of bytes in the
    /// source's send regions, and the source's file of a place.
    ///
    /// # Errors
    /// The fault in it.
    pub fn resume(
        (id, tenant, lasts): (FlowId, TenantId, bool),
        [source, destination]: [Endpoint; 2],
        ring: Option<Ring>,
        state: Moving,
        now: Duration,
        (address, file): (impl Fn(u16, u64, u64) -> Option<u64>, impl Fn(u32) -> Option<Arc<OpenFile>>),
    ) -> Result<Self, Wrong> {
        let (source, left) = Source::resume(source, state.source, address, file)?;
        let sink = Sink::resume(destination, state.sink, ring)?;
        if state.aborted && left > 0 {
            return Err(Wrong::of(format!("flow {id} was given up, and has something to deliver")));
        }
        let finish = state.finish.map(|Finishing { end, late_errno, left, source_gone }| {
            let deadline = left.map(|left| now.saturating_add(left));
            Finish { end, late_errno, deadline, source_gone }
        });
        let migration = state.migration.map(|state| Box::new(Migration::resume(state)));
        Ok(Self {
            id,
            tenant,
            lasts,
            source,
            sink,
            pending: left,
            schedule: Schedule::Idle,
            touched: false,
            own: None,
            finish,
            aborted: state.aborted,
            ends_told: state.ends_told,
            lost_end: state.lost_end,
            last_active: now,
            migration,
        })
    }
}
