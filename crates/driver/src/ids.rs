//! Numbers by which agents name things. Each has a type of its own, and only this module computes one from another.
//!
//! A connection has two sides and two flows. The flow of a side starts there:
//!
//! ```text
//! connection 7    Side::Connecting ──── flow 14 ───▶ Side::Accepting
//!                                  ◀─── flow 15 ────
//! ```
//!
//! Numbers that clients and engines see have the widths of the shared layouts.
use pd_abi::SocketId;
use std::fmt;
use std::ops::{Index, IndexMut};

/// Numbers that are places in a table.
pub trait Number: Copy {
    /// Returns the number of a place.
    fn of_place(place: usize) -> Self;
    /// Returns the place of a number.
    fn place(self) -> usize;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($raw:ty),)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name($raw);

        #[allow(dead_code)] // not each of them is used in each way
        impl $name {
            /// Returns the one with this number.
            #[inline]
            pub const fn new(number: $raw) -> Self {
                Self(number)
            }

            /// Returns the one at this place of its table.
            #[inline]
            pub const fn at(index: usize) -> Self {
                Self(index as $raw)
            }

            /// Returns the raw number, for parties that know it without a type: clients, engines, administrators.
            #[inline]
            pub const fn get(self) -> $raw {
                self.0
            }

            /// Returns the number's place in its table.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl Number for $name {
            #[inline]
            fn of_place(place: usize) -> Self {
                Self::at(place)
            }

            #[inline]
            fn place(self) -> usize {
                self.index()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

ids! {
    /// A client: its place in the conductor's table, reused when every mover has forgotten it.
    ClientId(u16),
    /// A mover.
    MoverId(u32),
    /// A tenant, for as long as the driver runs. The default one is 0.
    TenantId(u16),
    /// A socket of a client: the place of its lines.
    Slot(u16),
    /// A connection: its place in the conductor's table, reused when its flows are over and its sockets closed.
    ConnectionId(u32),
    /// A flow: one direction of a connection.
    FlowId(u32),
}

impl ClientId {
    /// No client: the end of a connection without an owner, or the source of a flow that has outlived it.
    pub const NOBODY: Self = Self(u16::MAX);
}

impl TenantId {
    /// No tenant: pays for costs that no client has caused.
    pub const DRIVER: Self = Self(u16::MAX);
}

impl Slot {
    /// Returns the slot of a socket, as its client names it.
    #[inline]
    pub const fn of(socket: SocketId) -> Self {
        Self(socket.slot())
    }

    /// Returns the id of the socket that has the slot in this generation.
    #[inline]
    pub const fn socket(self, generation: u16) -> SocketId {
        SocketId::new(self.0, generation)
    }
}

/// A side of a connection. Index of pairs that have one element for each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[repr(u32)]
pub enum Side {
    /// The side that has connected.
    Connecting = 0,
    /// The side that was accepted.
    Accepting = 1,
}

impl Side {
    /// Both sides, in order.
    pub const BOTH: [Self; 2] = [Self::Connecting, Self::Accepting];

    /// Returns the other side.
    #[inline]
    pub const fn other(self) -> Self {
        match self {
            Self::Connecting => Self::Accepting,
            Self::Accepting => Self::Connecting,
        }
    }
}

impl<T> Index<Side> for [T; 2] {
    type Output = T;

    #[inline]
    fn index(&self, side: Side) -> &T {
        &self[side as usize]
    }
}

impl<T> IndexMut<Side> for [T; 2] {
    #[inline]
    fn index_mut(&mut self, side: Side) -> &mut T {
        &mut self[side as usize]
    }
}

impl ConnectionId {
    /// Returns the flow that starts at a side.
    #[inline]
    pub const fn flow(self, side: Side) -> FlowId {
        FlowId(self.0 * 2 + side as u32)
    }
}

impl FlowId {
    /// Returns the flow's connection.
    #[inline]
    pub const fn connection(self) -> ConnectionId {
        ConnectionId(self.0 / 2)
    }

    /// Returns the side where the flow starts.
    #[inline]
    pub const fn side(self) -> Side {
        match self.0 % 2 {
            0 => Side::Connecting,
            _ => Side::Accepting,
        }
    }

    /// Returns the other flow of the same connection.
    #[inline]
    pub const fn peer(self) -> Self {
        self.connection().flow(self.side().other())
    }
}

/// Payer of clients' costs, served in turn at the door and at movers: a tenant. Clients of the default tenant are told apart by user.
pub type Payer = (TenantId, Option<u32>);
/// Payer of costs that no client has caused.
pub const DRIVER: Payer = (TenantId::DRIVER, None);

/// Returns the payer for a client of this tenant and user.
pub fn payer(tenant: TenantId, uid: u32) -> Payer {
    (tenant, (tenant == TenantId::default()).then_some(uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_flow_is_a_side_of_a_connection(number in 0..=u32::MAX / 2) {
            let connection = ConnectionId::new(number);
            for side in Side::BOTH {
                let flow = connection.flow(side);
                prop_assert_eq!((flow.connection(), flow.side()), (connection, side));
                prop_assert_eq!(flow.peer(), connection.flow(side.other()));
                prop_assert_eq!(flow.peer().peer(), flow);
            }
        }

        #[test]
        fn a_number_is_a_flow(number: u32) {
            let flow = FlowId::new(number);
            prop_assert_eq!(flow.connection().flow(flow.side()), flow);
            prop_assert_eq!((flow.get(), flow.index()), (number, number as usize));
            prop_assert_eq!(flow.to_string(), number.to_string());
        }

        #[test]
        fn a_socket_is_a_slot_in_a_generation(slot: u16, generation: u16) {
            let socket = Slot::new(slot).socket(generation);
            prop_assert_eq!((Slot::of(socket), socket.generation()), (Slot::new(slot), generation));
            prop_assert_eq!(Slot::at(Slot::new(slot).index()), Slot::new(slot));
        }
    }

    #[test]
    fn sides_are_places_of_pairs() {
        let mut pair = ["connects", "accepts"];
        assert_eq!(Side::BOTH.map(|side| pair[side]), pair);
        pair[Side::Accepting] = "neither";
        assert_eq!((pair[1], pair[Side::Connecting.other()]), ("neither", "neither"));
        assert_eq!(Side::BOTH.map(|side| side.other().other()), Side::BOTH);
    }
}
