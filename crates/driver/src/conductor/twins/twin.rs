//! A twin: the state that a connection has of the kernel's, and the names of kernel sockets. Plain data: nothing else is asked or
//! changed.
use crate::identity::NamespaceId;
use crate::ids::{ClientId, Side};
use crate::kernel_socket::Wanted;
use pd_abi::{Address, TwinRequest};
use pd_abi::{LEFT_BEFORE, PEER_LEFT, PEER_UNMARKED, UNMARKED};

/// Name of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(in crate::conductor) enum Place {
    /// Namespace and port.
    Tcp(NamespaceId, u16),
    /// Device and inode.
    Unix(u64, u64),
}

/// Name of a connection to both sides before they know each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(in crate::conductor) enum Key {
    /// Port and namespace of the listener and of the one who connects.
    Tcp([(NamespaceId, u16); 2]),
    /// Inode of the socket that connects.
    Unix(u32),
}

/// Name of a kernel's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(super) enum End {
    /// Namespace and cookie.
    Tcp(NamespaceId, u64),
    /// Inode.
    Unix(u32),
}

/// The kernel's socket of one side.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(in crate::conductor) struct Held {
    pub namespace: NamespaceId,
    pub wanted: Wanted,
    /// When it was first heard of.
    pub inode: u32,
    /// Of AF_UNIX: the inode names it, and there are no addresses.
    pub unix: bool,
}

/// The part of a connection that is about the kernel's.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Twin {
    key: Key,
    /// The place that it was made towards, and the clients that may find it there, by number and serial: as long as it is not claimed.
    place: Place,
    told: Vec<(ClientId, u64)>,
    sides: [Held; 2],
    claimed: bool,
    /// Its connection is the kernel's alone.
    withdrawn: bool,
    /// Sides that go on in the kernel.
    aside: [bool; 2],
    /// The same, and they have received all: nobody will want them any more.
    over: [bool; 2],
    /// Sides to which no mark comes over the kernel's connection.
    unmarked: [bool; 2],
    /// Sides that more than one client has had. Their processes know nothing of each other.
    passed: [bool; 2],
    /// News for the claimer if the other side has ended: its sends reach nobody.
    send_end: Option<u32>,
}

impl Twin {
    /// A twin that nobody has claimed, towards `place`, which these clients were `told` of.
    pub(super) fn new(key: Key, place: Place, told: Vec<(ClientId, u64)>, sides: [Held; 2]) -> Self {
        Self {
            key,
            place,
            told,
            sides,
            claimed: false,
            withdrawn: false,
            aside: [false; 2],
            over: [false; 2],
            unmarked: [false; 2],
            passed: [false; 2],
            send_end: None,
        }
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// A side's socket.
    pub(super) fn side(&self, side: Side) -> &Held {
        &self.sides[side]
    }

    /// Each side with its socket.
    pub(super) fn sides(&self) -> impl Iterator<Item = (Side, &Held)> {
        Side::BOTH.into_iter().zip(&self.sides)
    }

    /// Where a side's socket is.
    pub(in crate::conductor) fn namespace(&self, side: Side) -> NamespaceId {
        self.sides[side].namespace
    }

    /// The kernel has agreed to what a side's socket is found by.
    pub(super) fn set_wanted(&mut self, side: Side, wanted: Wanted) {
        self.sides[side].wanted = wanted;
    }

    /// A client speaks for listeners at `place`. Returns whether it may find this twin from now on, and could not before.
    pub(super) fn tell(&mut self, place: Place, client: (ClientId, u64)) -> bool {
        let is_news = self.place == place && !self.told.contains(&client);
        if is_news {
            self.told.push(client);
        }
        is_news
    }

    /// Hides it from all clients. Returns those that could find it.
    pub(super) fn take_told(&mut self) -> Vec<(ClientId, u64)> {
        std::mem::take(&mut self.told)
    }

    /// Tells whether its connection is the kernel's alone.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.withdrawn
    }

    pub(super) fn is_claimed(&self) -> bool {
        self.claimed
    }

    /// The accepting side has an owner, which holds this socket. Returns what it learns if the other side has ended.
    pub(super) fn claim(&mut self, held: Held) -> Option<u32> {
        (self.claimed, self.sides[Side::Accepting]) = (true, held);
        self.send_end
    }

    /// The connecting side has ended before anybody has claimed the other.
    pub(super) fn detach(&mut self, send_end: u32) {
        self.send_end = Some(send_end);
    }

    /// Its connection is the kernel's alone from now on.
    pub(super) fn withdraw(&mut self) {
        self.withdrawn = true;
    }

    /// Whether a process that holds a side's socket may still want the side.
    pub(super) fn may_be_wanted(&self, side: Side) -> bool {
        !self.withdrawn && !self.over[side]
    }

    /// A side goes to another client.
    pub(super) fn pass(&mut self, side: Side) {
        self.passed[side] = true;
    }

    /// Sockets of sides that several clients have had and that the kernel has for good.
    pub(super) fn departed(&self) -> impl Iterator<Item = (Side, End)> + '_ {
        let departed = |(side, _): &(Side, &Held)| self.over[*side] && self.passed[*side];
        self.sides().filter(departed).map(|(side, held)| (side, held.end()))
    }

    /// The kernel's sockets whose bytes go by this.
    pub(in crate::conductor) fn inodes(&self) -> impl Iterator<Item = u32> + '_ {
        let sides = self.sides.iter().zip(self.aside).filter(|(_, aside)| !aside && !self.withdrawn);
        sides.map(|(held, _)| held.inode).filter(|&inode| inode != 0)
    }

    /// One side goes on in the kernel; `unmarked`: it wants no mark, if it is the first. Returns what it learns of the two
    /// ([`PEER_LEFT`] and others); none: it cannot, for the two are not both here.
    ///
    /// A mark is taken off once. Of processes that know nothing of each other none could tell whether it was, so a side that several
    /// have had gets none.
    pub(in crate::conductor) fn step_aside(&mut self, side: Side, unmarked: bool) -> Option<u64> {
        if !self.claimed {
            return None;
        }
        let other = side.other();
        let again = std::mem::replace(&mut self.aside[side], true);
        if !again && !self.aside[other] {
            self.unmarked[side] = unmarked;
            self.unmarked[other] = self.passed[other];
        }
        let learnt = [
            (again, LEFT_BEFORE),
            (self.aside[other], PEER_LEFT),
            (self.unmarked[other], PEER_UNMARKED),
            (self.unmarked[side], UNMARKED),
        ];
        Some(learnt.into_iter().filter(|(is, _)| *is).fold(0, |all, (_, bit)| all | bit))
    }

    /// The mark has been taken off on a side.
    pub(in crate::conductor) fn mark_taken(&mut self, side: Side) {
        self.unmarked[side] = true;
    }

    /// Whether the flow that starts at a side ends with its going on in the kernel.
    pub(in crate::conductor) fn is_aside(&self, side: Side) -> bool {
        self.aside[side]
    }

    /// A side has received all, and is the kernel's.
    pub(in crate::conductor) fn leave_for_good(&mut self, side: Side) {
        self.over[side] = self.aside[side];
    }

    /// Whether it has.
    pub(super) fn is_over(&self, side: Side) -> bool {
        self.over[side]
    }
}

impl Held {
    pub(super) fn end(&self) -> End {
        match self.unix {
            true => End::Unix(self.inode),
            false => End::Tcp(self.namespace, self.wanted.cookie),
        }
    }
}

/// Whether a question is about a socket of AF_UNIX.
pub(in crate::conductor) fn is_unix(asked: &TwinRequest) -> bool {
    asked.local.family == Address::FILE.family
}
