//! A twin: the part of a connection's state that concerns the kernel's connection, and the names of kernel sockets. Plain data: nothing
//! else is asked or changed.
use crate::identity::NamespaceId;
use crate::ids::{ClientId, Side};
use crate::messages::SendEnd;
use crate::wanted::Wanted;
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
    /// Namespace and port of the connecting side, and of the listener.
    Tcp([(NamespaceId, u16); 2]),
    /// Inode of the socket that connects.
    Unix(u32),
}

/// Name of a kernel socket.
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
    /// Inode of the socket when it was first learned of.
    pub inode: u32,
    /// Set for AF_UNIX: the inode names the socket, and there are no addresses.
    pub unix: bool,
}

/// Part of a connection's state that concerns the kernel's connection.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Twin {
    key: Key,
    /// Place that the twin was made towards.
    place: Place,
    /// Clients that may find the twin there as long as it is unclaimed, by number and serial.
    told: Vec<(ClientId, u64)>,
    sides: [Held; 2],
    claimed: bool,
    /// Set when the connection is the kernel's alone.
    withdrawn: bool,
    /// Sides that go on in the kernel.
    aside: [bool; 2],
    /// Sides that go on in the kernel and have received everything. No process will want them any more.
    over: [bool; 2],
    /// Sides to which no mark comes over the kernel's connection.
    unmarked: [bool; 2],
    /// Sides that more than one client has had. Their processes know nothing of each other.
    passed: [bool; 2],
    /// Sides whose sends have had a receive ring. Not handed over: the next ring is the first again then.
    #[serde(skip)]
    pub(in crate::conductor) has_had_ring: [bool; 2],
    /// News for the claimer if the other side has ended: its sends reach nobody.
    send_end: Option<u32>,
}

impl Twin {
    /// Makes an unclaimed twin towards `place`, which these clients were `told` of.
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
            has_had_ring: [false; 2],
            send_end: None,
        }
    }

    /// Returns the end of a peer's sends by `word`. The kernel refuses a send to a closed socket of AF_UNIX, and loses none.
    pub(in crate::conductor) fn send_end(&self, word: u32) -> SendEnd {
        match self.is_unix() {
            true => SendEnd::by(word),
            false => SendEnd::of_stream(word),
        }
    }

    /// Tells whether the kernel's connection is one of AF_UNIX.
    pub(in crate::conductor) fn is_unix(&self) -> bool {
        matches!(self.key, Key::Unix(_))
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the place that the twin was made towards.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Tells whether a client may find the twin as long as it is unclaimed.
    pub(in crate::conductor) fn is_told(&self, client: (ClientId, u64)) -> bool {
        self.told.contains(&client)
    }

    /// Returns a side's socket.
    pub(in crate::conductor) fn side(&self, side: Side) -> &Held {
        &self.sides[side]
    }

    /// Iterates over the sides, each with its socket.
    pub(super) fn sides(&self) -> impl Iterator<Item = (Side, &Held)> {
        Side::BOTH.into_iter().zip(&self.sides)
    }

    /// Returns the network namespace of a side's socket.
    pub(in crate::conductor) fn namespace(&self, side: Side) -> NamespaceId {
        self.sides[side].namespace
    }

    /// Sets the terms that find a side's socket, to which the kernel has agreed.
    pub(super) fn set_wanted(&mut self, side: Side, wanted: Wanted) {
        self.sides[side].wanted = wanted;
    }

    /// Lets a client with registered listeners at `place` find this twin. Returns whether it may from now on, and could not before.
    pub(super) fn tell(&mut self, place: Place, client: (ClientId, u64)) -> bool {
        let is_news = self.place == place && !self.told.contains(&client);
        if is_news {
            self.told.push(client);
        }
        is_news
    }

    /// Hides the twin from all clients. Returns the clients that could find it.
    pub(super) fn take_told(&mut self) -> Vec<(ClientId, u64)> {
        std::mem::take(&mut self.told)
    }

    /// Tells whether the connection is the kernel's alone.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.withdrawn
    }

    pub(super) fn is_claimed(&self) -> bool {
        self.claimed
    }

    /// Gives the accepting side an owner, which holds this socket. Returns news for the owner if the other side has ended.
    pub(super) fn claim(&mut self, held: Held) -> Option<u32> {
        (self.claimed, self.sides[Side::Accepting]) = (true, held);
        self.send_end
    }

    /// Notes that the connecting side has ended while the other is unclaimed.
    pub(super) fn detach(&mut self, send_end: u32) {
        self.send_end = Some(send_end);
    }

    /// Leaves the connection to the kernel alone.
    pub(super) fn withdraw(&mut self) {
        self.withdrawn = true;
    }

    /// Tells whether a process that holds a side's socket may still want the side.
    pub(super) fn may_be_wanted(&self, side: Side) -> bool {
        !self.withdrawn && !self.over[side]
    }

    /// Notes that a side goes to another client.
    pub(super) fn pass(&mut self, side: Side) {
        self.passed[side] = true;
    }

    /// Iterates over the sockets of sides that several clients have had, and that the kernel has for good.
    pub(super) fn departed(&self) -> impl Iterator<Item = (Side, End)> + '_ {
        let departed = |(side, _): &(Side, &Held)| self.over[*side] && self.passed[*side];
        self.sides().filter(departed).map(|(side, held)| (side, held.end()))
    }

    /// Iterates over the kernel's sockets whose bytes go by this twin.
    pub(in crate::conductor) fn inodes(&self) -> impl Iterator<Item = u32> + '_ {
        let sides = self.sides.iter().zip(self.aside).filter(|(_, aside)| !aside && !self.withdrawn);
        sides.map(|(held, _)| held.inode).filter(|&inode| inode != 0)
    }

    /// Lets one side go on in the kernel. `unmarked`: the side wants no mark, if it is the first. Returns facts of the two ([`PEER_LEFT`]
    /// and others). `None`: the side cannot, because the two are not both here.
    ///
    /// A mark is taken off once. Processes that know nothing of each other could not tell whether it was. A side that several clients have
    /// had thus gets none.
    pub(in crate::conductor) fn step_aside(&mut self, side: Side, unmarked: bool) -> Option<u64> {
        if !self.claimed {
            return None;
        }
        let other = side.other();
        let again = std::mem::replace(&mut self.aside[side], true);
        if !again && !self.aside[other] {
            self.unmarked[side] |= unmarked;
            self.unmarked[other] |= self.passed[other];
        }
        let learnt = [
            (again, LEFT_BEFORE),
            (self.aside[other], PEER_LEFT),
            (self.unmarked[other], PEER_UNMARKED),
            (self.unmarked[side], UNMARKED),
        ];
        Some(learnt.into_iter().filter(|(is, _)| *is).fold(0, |all, (_, bit)| all | bit))
    }

    /// Lets a side's client take the mark off. Returns facts of the two: [`PEER_LEFT`], and [`UNMARKED`] to all but the one that may. A peer
    /// that has not left sends no mark when it follows.
    pub(in crate::conductor) fn claim_mark(&mut self, side: Side) -> u64 {
        let was_unmarked = std::mem::replace(&mut self.unmarked[side], true);
        let left = if self.aside[side.other()] { PEER_LEFT } else { 0 };
        left | if was_unmarked { UNMARKED } else { 0 }
    }

    /// Tells whether a side that leaves now sends a mark.
    pub(in crate::conductor) fn may_mark(&self, side: Side) -> bool {
        self.claimed && !self.aside[side] && !self.unmarked[side.other()]
    }

    /// Sends no mark to a side.
    pub(in crate::conductor) fn decline_mark(&mut self, side: Side) {
        self.unmarked[side] = true;
    }

    /// Tells whether the flow that starts at a side ends because the side goes on in the kernel.
    pub(in crate::conductor) fn is_aside(&self, side: Side) -> bool {
        self.aside[side]
    }

    /// Notes that a side has received everything, and is the kernel's.
    pub(in crate::conductor) fn leave_for_good(&mut self, side: Side) {
        self.over[side] = self.aside[side];
    }

    /// Tells whether a side has received everything, and is the kernel's.
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

/// Tells whether a question is about a socket of AF_UNIX.
pub(in crate::conductor) fn is_unix(asked: &TwinRequest) -> bool {
    asked.local.family == Address::FILE.family
}
