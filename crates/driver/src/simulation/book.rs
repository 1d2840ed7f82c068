//! Record of honest clients' streams and fates: every byte that arrives is compared with it.
use super::arriving::{Arriving, From, Number};
use super::kernel::{self, End};
use super::random::mix;
use crate::identity::NamespaceId;
use pd_abi::layout::ENDED;
use std::net::SocketAddr;

/// Upper half of the first eight bytes of an honest stream; the lower one is the sending socket's number.
const MAGIC: u64 = 0x5049_5045 << 32;
/// All that hostile clients have to send.
pub const MARK: u8 = 0xEE;

/// See the module.
#[derive(Default)]
pub struct Book {
    pub sockets: Vec<Record>,
    pub listening: Vec<Listening>,
    /// Listeners of the kernel that connections with twins may go to.
    pub twin_listening: Vec<TwinListening>,
    /// Honest clients' processes, each with its family.
    pub people: Vec<(u32, usize)>,
    /// Set if a policy may have ended any connection.
    pub cuts: bool,
    /// Bytes that arrived, in all.
    pub arrived: u64,
    /// Bytes of them that came by rings of two clients.
    pub by_rings: u64,
    /// Connections whose both directions ended in order.
    pub finished: u64,
    /// Set if the driver may hang up on honest clients: calls fail, or it starts anew.
    pub hangs_up: bool,
    /// Ends and errors without a known reason so far: the socket that saw one, its peer, and the value.
    pub doubts: Vec<(Number, Number, u32)>,
    /// Set to print each event.
    pub is_talking: bool,
}

/// An honest client's connected socket.
#[derive(Debug, Default)]
pub struct Record {
    /// Bytes sent.
    pub sent: u64,
    /// Set when the socket sends no more.
    pub is_over: bool,
    /// Set when the client has died or reset the connection: its peer may see that instead of anything else.
    pub is_excused: bool,
    /// Set when the driver has hung up on the client, which may learn of it later than others.
    pub is_hung_up: bool,
    /// The inode of the file that the socket sends.
    pub file: Option<u64>,
    /// Set when one of several processes has taken the socket over, or has left it to the others.
    pub is_moved: bool,
    /// Set when nobody may receive any byte of the socket's.
    pub is_withdrawn: bool,
    /// Bytes sent by the fabric, once the socket sends by the kernel.
    left_at: Option<u64>,
    /// Bytes that the fabric still brings to a peer that has left.
    pub sent_before: u64,
    /// Bytes of a ring that the socket had claimed and not published when its process died. They are lost if no other process takes the end.
    pub unsure: u64,
    /// Set when bytes of it went by a ring of two clients, which the driver does not count.
    pub uses_ring: bool,
    /// The socket that receives the bytes.
    peer: Option<Number>,
}

/// A listener that others may connect to.
#[derive(Clone, Copy, Debug)]
pub struct Listening {
    pub owner: usize,
    pub at: SocketAddr,
}

/// A listener of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct TwinListening {
    pub inode: u32,
    pub namespace: NamespaceId,
    /// Address by which other namespaces reach it.
    pub home: [u8; 4],
    /// Address, unless the listener is bound to a file.
    pub at: Option<SocketAddr>,
}

/// Returns the byte of a stream at a position.
pub fn byte(number: Number, at: u64) -> u8 {
    let word = match at / 8 {
        0 => MAGIC | number as u64,
        place => mix(number as u64 ^ place << 24),
    };
    word.to_le_bytes()[(at % 8) as usize]
}

impl Book {
    pub fn open(&mut self) -> Number {
        self.sockets.push(Record::default());
        self.sockets.len() - 1
    }

    /// Records that no process holds an end of a connection any more.
    pub fn over(&mut self, end: &End) {
        let record = &mut self.sockets[end.number];
        (record.is_over, record.is_excused) = (true, true);
    }

    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.is_talking {
            eprintln!("{}", what());
        }
    }

    /// Records that a socket received the next byte of its stream, and checks it.
    pub fn take(&mut self, to: Number, arriving: &mut Arriving, got: u8) {
        let at = arriving.received;
        arriving.received += 1;
        self.arrived += 1;
        if at < 8 {
            arriving.head[at as usize] = got;
            if at == 7 {
                arriving.from = self.meet(to, arriving.head);
            }
            return;
        }
        match arriving.from {
            From::Honest(number) => {
                assert!(at < self.sockets[number].sent, "socket {to} gets more than {number} has sent: {at}");
                let sent = byte(number, at);
                assert_eq!(got, sent, "socket {to} gets another byte at {at} than socket {number} has sent");
            }
            From::Hostile => assert_eq!(got, MARK, "socket {to} gets what no hostile client has"),
            From::Unknown => unreachable!("after the head"),
        }
    }

    fn meet(&mut self, to: Number, head: [u8; 8]) -> From {
        if head == [MARK; 8] {
            return From::Hostile;
        }
        let head = u64::from_le_bytes(head);
        let number = (head & u64::from(u32::MAX)) as usize;
        assert!(head & MAGIC == MAGIC && number < self.sockets.len(), "socket {to} gets {head:#x}");
        assert!(self.sockets[number].sent >= 8, "socket {to} gets what {number} has not sent");
        assert!(!self.sockets[number].is_withdrawn, "socket {to} gets what {number} has withdrawn");
        for (one, other) in [(number, to), (to, number)] {
            let known = *self.sockets[one].peer.get_or_insert(other);
            assert_eq!(known, other, "socket {one} is connected to both");
        }
        From::Honest(number)
    }

    /// Records that two sockets are connected.
    pub fn pair(&mut self, one: Number, other: Number) {
        for (one, other) in [(one, other), (other, one)] {
            let known = *self.sockets[one].peer.get_or_insert(other);
            assert_eq!(known, other, "socket {one} is connected to both");
        }
    }

    /// Records that a socket sends nothing more by the fabric after `sent` bytes, and the rest of `total` by the kernel.
    pub fn leave(&mut self, number: Number, sent: u64, total: u64) {
        let record = &mut self.sockets[number];
        record.left_at.get_or_insert(sent);
        (record.sent, record.is_over) = (total, true);
    }

    /// Records that a socket has not left after all.
    pub fn stay(&mut self, number: Number) {
        let record = &mut self.sockets[number];
        if let Some(sent) = record.left_at.take() {
            (record.sent, record.is_over) = (sent, false);
        }
    }

    pub fn has_left(&self, number: Number) -> bool {
        self.sockets[number].left_at.is_some()
    }

    /// Checks the position up to which a socket that has left still gets bytes by the fabric.
    pub fn promised(&self, to: Number, position: u64) {
        let Some(peer) = self.sockets[to].peer else { return };
        let record = &self.sockets[peer];
        if record.uses_ring {
            return;
        }
        let most = record.left_at.unwrap_or(record.sent);
        assert!(
            (record.sent_before..=most).contains(&position),
            "socket {to} leaves, and is told to wait for {position} bytes of {peer}, which has sent {} to {most}",
            record.sent_before
        );
    }

    /// Checks that the rest of a stream may come by the kernel.
    pub fn left(&mut self, to: Number, arriving: &Arriving) {
        let Some(peer) = self.sockets[to].peer else { return };
        let left_at = self.sockets[peer].left_at;
        assert_eq!(left_at, Some(arriving.received), "socket {to} is told that {peer} has left");
        self.finished += 1;
    }

    /// Checks that the stream of a socket may have ended in order.
    pub fn ended(&mut self, to: Number, arriving: &Arriving) {
        if let From::Honest(number) = arriving.from {
            let Record { is_over, mut sent, left_at, is_excused, unsure, .. } = self.sockets[number];
            if arriving.received + unsure == sent {
                sent -= unsure;
            }
            if let Some(left_at) = left_at.filter(|_| is_excused) {
                // The process died before the driver read that it leaves.
                sent = left_at;
            }
            if self.hangs_up && (!is_over || arriving.received < sent) {
                self.doubts.push((to, number, ENDED));
                return;
            }
            assert!(is_over, "socket {to} is told of an end that {number} has not made");
            assert_eq!(arriving.received, sent, "socket {to} is told of the end of socket {number}");
            self.finished += 1;
        } else {
            assert!(arriving.received < 8 || matches!(arriving.from, From::Hostile));
        }
    }

    /// Checks that a socket may have failed with an error.
    pub fn failed(&mut self, to: Number, arriving: &Arriving, errno: u32) {
        let peer = match arriving.from {
            From::Honest(number) => Some(number),
            From::Hostile => return,
            From::Unknown => self.sockets[to].peer,
        };
        let Some(peer) = peer else { return };
        let is_excused = |number: Number| {
            let record = &self.sockets[number];
            record.is_excused || record.file.is_some_and(kernel::is_broken)
        };
        // A side that cannot be given to another process, or kept for one, for lack of a resource ends.
        let is_stuck = self.hangs_up && [to, peer].iter().any(|&number| self.sockets[number].is_moved);
        let is_known = self.cuts || is_stuck || is_excused(peer) || is_excused(to);
        if !is_known {
            assert!(self.hangs_up, "socket {to} is told of error {errno}; its peer {peer} has done nothing");
            self.doubts.push((to, peer, errno));
        }
    }

    /// Tells whether each end and each error had a reason. The client of a side may learn later than its peer that the driver has hung up on
    /// it, and goes on sending until then.
    pub fn settle(&mut self) -> bool {
        let Self { doubts, sockets, .. } = self;
        // A side that cannot be given to another process, or kept for one, for lack of a resource ends: the process may have no answer yet.
        let has_reason = |number: Number| sockets[number].is_hung_up || sockets[number].is_moved;
        doubts.retain(|&(to, peer, _)| !has_reason(to) && !has_reason(peer));
        doubts.is_empty()
    }

    /// Describes ends and errors without a reason, for diagnosis.
    pub fn describe(&self) -> String {
        let doubt = |(to, peer, errno): &(Number, Number, u32)| {
            format!("socket {to} was told of error {errno}; its peer {peer} has done nothing\n")
        };
        self.doubts.iter().map(doubt).collect()
    }
}
