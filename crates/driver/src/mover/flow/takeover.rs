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

/// Words of a flow's sockets, and what its driver has noted of it, after that was killed.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// Sends that it has accepted.
    pub sends: u64,
    /// Sends that its source was told are done; none: there is no source.
    pub done: Option<u64>,
    /// End that its source was told.
    pub send_end: Option<u32>,
    /// Bytes that its destination was told of; none: there is no destination.
    pub delivered: Option<u64>,
    /// End that its destination was told.
    pub recv_end: Option<u32>,
    /// Bytes that its destination says that it has given back; none: it has not begun.
    pub consumed: Option<u64>,
    /// Bytes of the receive ring.
    pub room: u64,
}

impl Said {
    /// Tells whether the flow has never had anything to do.
    pub fn is_nothing(&self) -> bool {
        let ends = [self.send_end, self.recv_end].map(Option::unwrap_or_default);
        self.sends == 0 && self.delivered.unwrap_or(0) == 0 && ends == [0; 2]
    }
}

impl Moving {
    /// Returns the state of a flow that has had nothing to do.
    pub fn fresh(send_ring_bytes: u64) -> Self {
        Self {
            source: SourceState::fresh(send_ring_bytes),
            sink: SinkState::default(),
            finish: None,
            aborted: false,
            ends_told: (0, 0),
            lost_end: 0,
            migration: None,
        }
    }

    /// Brings the state up to what was said of the flow later. Returns whether every byte that was sent is where the state says. Otherwise the
    /// state has nothing to deliver, and the connection is to be cut.
    pub fn catch_up(&mut self, said: Said) -> bool {
        let told = if self.aborted { self.ends_told.0 } else { 0 };
        let are_ends_same = said.send_end.is_none_or(|end| end == told)
            && said.recv_end.is_none_or(|end| (end != 0) == self.sink.is_end_published());
        // Of a flow whose ends have moved between clients, the lines count from somewhere else.
        let has_moved = self.migration.is_some();
        let done = said.done.filter(|_| !has_moved);
        let is_same =
            self.source.is_at(said.sends, done) && said.delivered.is_none_or(|at| self.sink.is_at(at));
        let mut is_proved = are_ends_same;
        if !is_same {
            is_proved &= self.source.catch_up(said.sends, done) && !has_moved;
        }
        // The receiver may have given back more in either case.
        is_proved & self.sink.catch_up(said.delivered, said.consumed, said.room)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: Said = Said {
        sends: 5,
        done: Some(5),
        send_end: Some(0),
        delivered: Some(500),
        recv_end: Some(0),
        consumed: Some(200),
        room: 4096,
    };

    #[test]
    fn a_flow_is_proved_by_what_was_delivered() {
        let after = |said| Moving::fresh(1000).catch_up(said);
        assert!(after(SAID));
        assert!(after(Said { consumed: None, ..SAID }), "the receiver has not begun");
        assert!(after(Said { delivered: None, recv_end: None, consumed: None, ..SAID }), "it has gone");
        assert!(!after(Said { done: Some(4), ..SAID }), "a send is somewhere");
        assert!(!after(Said { done: Some(6), ..SAID }), "the line is another socket's");
        assert!(!after(Said { send_end: Some(104), ..SAID }), "the sender was told of an end");
        assert!(!after(Said { recv_end: Some(104), ..SAID }), "the receiver was told of an end");
        assert!(!after(Said { consumed: Some(501), ..SAID }), "more was given back than delivered");
        assert!(!after(Said { room: 299, ..SAID }), "the ring is another");
        let nothing = Said { sends: 0, done: Some(0), delivered: Some(0), consumed: None, room: 0, ..SAID };
        assert!(nothing.is_nothing() && !SAID.is_nothing());
        assert!(!Said { recv_end: Some(104), ..nothing }.is_nothing());
    }

    #[test]
    fn a_flow_that_has_not_changed_is_as_it_was() {
        let mut moving = Moving::fresh(1000);
        assert!(!moving.catch_up(Said { sends: 7, ..SAID }));
        // Two of its sends are still to be delivered: they were when the snapshot was taken, too.
        assert!(moving.catch_up(Said { sends: 7, ..SAID }));
        assert!(moving.catch_up(Said { sends: 7, consumed: Some(300), ..SAID }));
        assert!(
            !moving.catch_up(Said { sends: 7, consumed: Some(299), ..SAID }),
            "given back, and taken again"
        );
        assert!(!moving.catch_up(Said { sends: 8, ..SAID }));
    }

    #[test]
    fn a_flow_whose_ends_have_moved_is_proved_if_nothing_has_changed() {
        let mut moving = Moving::fresh(1000);
        assert!(moving.catch_up(SAID));
        moving.migration = Some(Migration::default().give().unwrap());
        assert!(moving.catch_up(Said { done: Some(1), ..SAID }), "the line counts the present owner's sends");
        assert!(!moving.catch_up(Said { sends: 6, done: Some(6), ..SAID }));
    }
}
