//! The counter region: what the driver has done so far, for those who may use its admin socket.
//!
//! A memory file, made by the driver, sealed, and handed out read-only. Every line has one writer, which stores
//! whole words without any ordering; a reader sees each word as of some moment, and words of one line as of
//! nearly the same. Counters only ever grow, so that two looks and a subtraction give a rate.
//!
//! | what | lines | written by |
//! |---|---|---|
//! | [`Header`] | 1 | the driver, before it hands the region out |
//! | [`Gauges`] | 1 | conductor |
//! | [`AgentCounters`] | one for each agent: the conductor, then the movers | that agent |
//! | [`ClientCounters`] | for each mover, one for each client | that mover |
//! | [`FlowCounters`] | one for each direction of a connection | the mover that serves it |
//!
//! Lines of clients and flows are used again and again. Each carries the serial of its user, a number from 1 up
//! that is never used twice: the writer stores 0, clears the rest, and stores the serial last (release); a reader
//! looks at the serial before (acquire) and after.
use crate::declare::{constants, entry};
use crate::limits::{LINE_BYTES, PAGE_BYTES};
use core::mem::{offset_of, size_of};

constants! {
    IDENTITY:
    /// Version of this module's layout. Grows without [`crate::VERSION`], which clients know.
    VERSION: u32 = 7;
    /// First word of the region: "PipeCnt1", little endian.
    MAGIC: u64 = u64::from_le_bytes(*b"PipeCnt1");
}

/// Counters of 64 bits, in the order of their declaration.
macro_rules! counters {
    ($(#[$about:meta])* $name:ident in $bytes:literal { $($(#[doc = $text:literal])+ $field:ident,)+ }) => {
        entry! {
            $(#[$about])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            struct $name in $bytes {
                $($(#[doc = $text])+ $field: u64,)+
            }
        }

        impl $name {
            /// Names and values, in order.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),+].into_iter()
            }

            /// Word by word, both together.
            #[must_use]
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($field: self.$field.wrapping_add(other.$field)),+ }
            }

            /// Word by word, what has been added since `earlier`; 0 where it was more then.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.saturating_sub(earlier.$field)),+ }
            }
        }
    };
}

/// Declares counters like `counters`, and passes their names on to another macro.
macro_rules! named_counters {
    (
        $d:tt, $names:ident,
        $(#[$about:meta])* $name:ident in $bytes:literal { $($(#[doc = $text:literal])+ $field:ident,)+ }
    ) => {
        counters! { $(#[$about])* $name in $bytes { $($(#[doc = $text])+ $field,)+ } }

        /// Calls another macro with the names of the counters.
        #[macro_export]
        macro_rules! $names {
            ($d with:ident) => { $d with! { $($field,)+ } };
        }
    };
}

entry! {
    /// Shape of the region. Nothing in it changes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Header in 64 {
        /// [`MAGIC`].
        magic: u64,
        /// [`VERSION`].
        version: u32,
        /// Movers.
        movers: u32,
        /// Clients that each mover has lines for.
        clients: u32,
        /// Connections that there are lines for, two each.
        connections: u32,
        /// When the driver started, in nanoseconds of `CLOCK_REALTIME`.
        started_ns: u64,
        /// Bytes that the regions of all clients may have.
        memory_budget_bytes: u64,
        /// Zero.
        reserved: [u64; 3],
    }
}

counters! {
    /// Present state. Unlike the rest, these go up and down.
    Gauges in 24 {
        /// Bytes of all clients' regions.
        memory_used_bytes,
        /// Flows that wait for memory for their receive ring.
        rings_waiting,
        /// Movers that have a thread.
        movers_working,
    }
}

named_counters! {
    $, agent_counters,
    /// Work of one agent. The sum over all agents is the driver's.
    AgentCounters in 264 {
        /// Clients that attached.
        clients_attached,
        /// Clients that left, died or were cut off after they had attached.
        clients_left,
        /// Clients refused or cut off.
        clients_cut_off,
        /// Times that nobody was accepted for a while, because no descriptors were left.
        accepts_paused,
        /// Connections made.
        connections_made,
        /// Connections that are over in both directions.
        connections_closed,
        /// Connections that the policy denied.
        connections_denied,
        /// Connections beyond what their tenant may have.
        connections_over_quota,
        /// Connections that a new policy ended.
        connections_cut,
        /// Requests answered with an errno.
        requests_refused,
        /// Sends on sockets that were not connected any more.
        sends_dropped,
        /// Bytes delivered.
        bytes_delivered,
        /// Sends completed.
        messages_completed,
        /// Times that a receive ring was full with more to deliver.
        rings_full,
        /// Times that a flow had to wait for memory for its ring.
        rings_denied,
        /// Sleeping clients woken: receivers of bytes, and senders that waited for room.
        wake_ups,
        /// Times that a mover slept.
        mover_sleeps,
        /// Nanoseconds that movers had nothing to do: looked for work, waited for an engine, or slept.
        mover_idle_ns,
        /// Channels that went from one mover to another.
        channels_moved,
        /// Times that a channel was to go to another mover, and stayed because copies of it did not end.
        moves_put_off,
        /// Commands that an engine failed and the cpu engine did again.
        commands_redone,
        /// Engines no longer used because they kept failing.
        engines_quarantined,
        /// Connections made on the direct path.
        connections_direct,
        /// Connections on the direct path that a client ended because its peer's words were impossible.
        connections_broken,
        /// Connections that left the direct path because policy or tenants changed.
        connections_recalled,
        /// Bytes that clients say they have sent on the direct path.
        bytes_reported,
        /// Sends that they say these were.
        messages_reported,
        /// Bytes of files that the driver read for clients.
        file_bytes,
        /// Reads of files that had to wait for a disk.
        files_cold,
        /// Connections that were ended because a file was shorter than what was sent of it, or could not be read.
        files_failed,
        /// Times that a tenant was refused clients, descriptors or memory beyond what it may hold.
        caps_reached,
        /// Times that the memory of an idle receive region was taken back, because memory was short.
        regions_emptied,
        /// Claims of clients to listen that the kernel did not confirm.
        listeners_refused,
    }
}

counters! {
    /// Traffic that one mover has moved for one client.
    ClientCounters in 56 {
        /// Serial of the client whose line this is. 0: nobody's.
        serial,
        /// Bytes delivered that it had sent.
        bytes_sent,
        /// Its sends completed.
        messages_sent,
        /// Bytes delivered to it.
        bytes_received,
        /// Sends to it completed.
        messages_received,
        /// Times that one of its receive rings was full with more to deliver.
        rings_full,
        /// Times that it was woken.
        wake_ups,
    }
}

counters! {
    /// Traffic in one direction of a connection.
    FlowCounters in 40 {
        /// Serial of the connection whose line this is. 0: nobody's.
        serial,
        /// Bytes delivered.
        bytes,
        /// Sends completed.
        messages,
        /// Times that the receive ring was full with more to deliver.
        rings_full,
        /// Times that sender or receiver were woken.
        wake_ups,
    }
}

/// Numbers of lines. Places are offsets from the start of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Movers.
    pub movers: u32,
    /// Clients.
    pub clients: u32,
    /// Connections.
    pub connections: u32,
}

constants! {
    PLACES:
    /// Place of [`Header`].
    HEADER: usize = 0;
    /// Place of [`Gauges`].
    GAUGES: usize = LINE_BYTES;
    /// From one agent's line to the next.
    AGENT_STRIDE: usize = 512;
    /// From one client's or flow's line to the next.
    LINE_STRIDE: usize = LINE_BYTES;
}

impl Shape {
    /// The place of an agent's [`AgentCounters`]: 0 is the conductor, 1 the first mover.
    pub const fn agent(&self, agent: u32) -> usize {
        PAGE_BYTES + agent as usize * AGENT_STRIDE
    }

    /// The place of a client's [`ClientCounters`] of `mover`.
    pub const fn client(&self, mover: u32, client: u32) -> usize {
        let agents = self.agent(self.movers + 1).next_multiple_of(PAGE_BYTES);
        agents + (mover as usize * self.clients as usize + client as usize) * LINE_STRIDE
    }

    /// The place of a flow's [`FlowCounters`].
    pub const fn flow(&self, flow: u32) -> usize {
        let clients = self.client(self.movers, 0).next_multiple_of(PAGE_BYTES);
        clients + flow as usize * LINE_STRIDE
    }

    /// Bytes of the whole region: whole pages, which come into being when they are used.
    pub const fn bytes(&self) -> usize {
        self.flow(2 * self.connections).next_multiple_of(PAGE_BYTES)
    }

    /// Returns whether a driver can have so many: what a reader may believe.
    pub const fn is_sane(&self) -> bool {
        self.movers >= 1
            && self.movers <= MOVERS_MAX
            && self.clients <= CLIENTS_MAX
            && self.connections <= CONNECTIONS_MAX
    }
}

constants! {
    LIMITS:
    /// Most movers of a driver.
    MOVERS_MAX: u32 = 64;
    /// Most clients of a driver: their numbers have 16 bits.
    CLIENTS_MAX: u32 = 1 << 16;
    /// Most connections of a driver.
    CONNECTIONS_MAX: u32 = 1 << 24;
}

const _: () = {
    assert!(HEADER + size_of::<Header>() <= GAUGES && GAUGES + size_of::<Gauges>() <= PAGE_BYTES);
    assert!(size_of::<AgentCounters>() <= AGENT_STRIDE);
    assert!(size_of::<ClientCounters>() <= LINE_STRIDE && size_of::<FlowCounters>() <= LINE_STRIDE);
    // A reader finds the serial of either without its version.
    assert!(offset_of!(ClientCounters, serial) == 0 && offset_of!(FlowCounters, serial) == 0);
    assert!(AGENT_STRIDE % LINE_BYTES == 0 && LINE_STRIDE % LINE_BYTES == 0);
    // The whole region of the largest shape can be addressed.
    let largest = Shape { movers: MOVERS_MAX, clients: CLIENTS_MAX, connections: CONNECTIONS_MAX };
    assert!(largest.bytes() < 1 << 32);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_different_writers_share_no_cache_line_and_fill_the_region() {
        let shape = Shape { movers: 3, clients: 5, connections: 7 };
        let mut places = std::vec![HEADER, GAUGES];
        places.extend((0..4).map(|agent| shape.agent(agent)));
        places.extend((0..3).flat_map(|mover| (0..5).map(move |client| shape.client(mover, client))));
        places.extend((0..14).map(|flow| shape.flow(flow)));
        assert!(places.iter().all(|place| place % LINE_BYTES == 0));
        assert!(places.windows(2).all(|pair| pair[0] + LINE_STRIDE <= pair[1]), "{places:?}");
        assert!(places[places.len() - 1] + LINE_STRIDE <= shape.bytes());
        assert_eq!(shape.bytes() % PAGE_BYTES, 0);
    }

    #[test]
    fn sums_and_differences_are_word_by_word() {
        let one = FlowCounters { serial: 1, bytes: 10, messages: 2, rings_full: 0, wake_ups: 5 };
        let other = FlowCounters { serial: 1, bytes: 4, messages: 3, rings_full: 0, wake_ups: 1 };
        let more = one.since(&other);
        assert_eq!((more.bytes, more.messages, more.wake_ups), (6, 0, 4));
        assert_eq!(one.plus(&other).bytes, 14);
        let names: std::vec::Vec<_> = one.entries().map(|(name, _)| name).collect();
        assert_eq!(names, ["serial", "bytes", "messages", "rings_full", "wake_ups"]);
    }
}
