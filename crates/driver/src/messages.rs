//! Messages between conductor and movers.
pub use crate::ids::{payer, Payer, DRIVER};

use crate::gate::Staged;
use crate::ids::{ClientId, FlowId, MoverId, Slot, TenantId};
use crate::mailbox::Mailbox;
use crate::memory::{Account, ClientMemory, Events, Lease, Requests, UndrainedRing};
use crate::mirror::Showing;
use crate::policy::budget::Budget;
use crate::policy::Policy;
use crate::reader::{Asker, OpenFile, Replies};
use crate::refusal::Refusal;
use pd_abi::layout::{ENDED, LOST};
use pd_abi::limits::PAGE_BYTES;
use pd_abi::{Event, Request};
use pd_shm::ringer::WakeEnd;
use pd_shm::Mapping;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// A socket as a mover needs it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The socket's client.
    pub client: ClientId,
    /// The client's serial, for its lines in the counter region.
    pub serial: u64,
    /// The socket's line.
    pub slot: Slot,
    /// The line's generation.
    pub generation: u16,
    /// The client's lines.
    pub memory: Arc<ClientMemory>,
    /// The mover that serves the client.
    pub mover: MoverId,
}

impl Endpoint {
    /// Returns the destination of messages about the socket.
    pub fn place(&self) -> (MoverId, ClientId, Slot) {
        (self.mover, self.client, self.slot)
    }

    /// Clears the client if it is this one, which has ended: its number may be reused soon.
    pub fn forget(&mut self, client: ClientId) {
        if self.client == client {
            self.client = ClientId::NOBODY;
        }
    }
}

/// A channel as it begins.
#[derive(Debug)]
pub struct NewChannel {
    /// The channel's client.
    pub client: ClientId,
    /// The channel's number.
    pub channel: usize,
    /// Ring of the client's requests.
    pub requests: Requests,
    /// Ring of events to the client.
    pub events: Events,
    /// Descriptor that the client writes to wake the driver.
    pub doorbell: OwnedFd,
}

/// A direction of a connection as it begins.
#[derive(Clone, Debug)]
pub struct NewFlow {
    /// The flow's number.
    pub id: FlowId,
    /// Tenant whose rates bind the flow.
    pub tenant: TenantId,
    /// Set for a twin, whose ends may go to other clients.
    pub lasts: bool,
    /// Socket whose sends the flow carries.
    pub source: Endpoint,
    /// Socket that receives them.
    pub destination: Endpoint,
    /// Most bytes that may be sent and not yet delivered.
    pub send_ring_bytes: u64,
    /// Serial of the connection, for its lines in the counter region.
    pub serial: u64,
}

/// A receive ring handed to a flow.
#[derive(Clone, Debug)]
pub struct Ring {
    /// The receiving client, and its serial.
    pub client: ClientId,
    pub serial: u64,
    /// Region that it lies in, of the receiving client.
    pub region: u16,
    /// First page (of 4 KiB) in the region.
    pub page: u32,
    /// Pages; a power of two.
    pub pages: u32,
    /// Bytes that the receiver asked for: the ring may be exchanged for a larger one.
    pub wished: u64,
    /// Set for a ring that its flow begins with, and that is smaller than its share.
    pub is_first: bool,
    /// The driver's mapping of the region.
    pub map: Arc<Mapping>,
}

impl Ring {
    /// Returns the ring's offset in the region.
    pub fn offset(&self) -> usize {
        self.page as usize * PAGE_BYTES
    }

    /// Returns the ring's size.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES as u64
    }
}

/// Permit for one request of a client on its way to another agent. Its drop takes the request off the client's count, which bounds what
/// movers read of the client's rings (`FORWARDED_MAX`).
#[derive(Debug)]
pub struct Permit(Arc<ClientMemory>);

impl Permit {
    /// Counts one more request of the client that `memory` belongs to.
    pub fn new(memory: &Arc<ClientMemory>) -> Self {
        memory.forwarded.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(memory))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.forwarded.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Message to a client on the direct path whose peer's end has gone to another client.
#[derive(Clone, Debug)]
pub struct Leave {
    /// The client's end.
    pub to: Endpoint,
    /// New value of the end's `path` word.
    pub path: u32,
}

/// A step of a side of a connection that leaves the direct path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The flow's source writes nothing more into its ring.
    Writer,
    /// The flow's destination has read that ring to the end.
    Reader,
}

/// A socket whose end of a connection has gone to another client. Its slot is free when both flows have let go of it.
#[derive(Clone, Copy, Debug)]
pub struct PreviousOwner {
    /// The socket's client, and the client's serial.
    pub client: ClientId,
    pub serial: u64,
    /// The socket's slot.
    pub slot: Slot,
}

/// Facts for a flow when one of its ends goes to another client.
#[derive(Debug, Default)]
pub struct Handoff {
    /// The previous socket of the end.
    pub previous: Option<PreviousOwner>,
    /// End of the previous socket, for a flow that is over by then: its mover tells the previous client.
    pub previous_end: Option<Endpoint>,
    /// Of the destination: whether the connection has left the direct path with it, and stays off it.
    pub left: bool,
    /// Then the bytes that the previous socket had not read.
    pub undrained_ring: Option<UndrainedRing>,
    /// Of the source on the direct path: bytes of the new socket are held until the destination has read the ring of
    /// the previous one.
    pub held: bool,
    /// Of the source: the other end leaves the direct path, too.
    pub leave: Option<Leave>,
    /// Of the source: bytes of the previous socket's ring that count.
    pub ring_end: Option<u64>,
    /// End of the peer's part of the connection, or 0: `ELSEWHERE` of a peer that has left for the kernel, and an errno of a connection
    /// that was cut, whatever its peer has done before.
    pub peers_end: u32,
    /// Of the source: the other end is unclaimed, so that no flow brings the previous owner bytes that could tell it.
    pub unclaimed: bool,
}

impl Handoff {
    /// Returns the end for a client that takes an end of a flow which is over.
    pub fn end_of_over(&self) -> u32 {
        if self.peers_end == 0 {
            ENDED
        } else {
            self.peers_end
        }
    }
}

/// Terms on which a flow's sending side ends.
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    /// End that the receiver sees after the last byte: `ENDED`, or an errno.
    pub end: u32,
    /// Errno that the receiver sees if bytes are left at the deadline.
    pub late_errno: u32,
    /// Time to give up delivering; never, if none.
    pub deadline: Option<Duration>,
    /// Set if the sending client has gone: its memory must not be touched once the flow has ended.
    pub source_gone: bool,
}

/// End of a flow's sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendEnd {
    /// The word: `ENDED`, or an errno.
    pub word: u32,
    /// The word if the destination has not read all that was sent, then or later.
    pub if_lost: u32,
}

impl SendEnd {
    /// Makes the end by `word`, whatever is lost.
    pub fn by(word: u32) -> SendEnd {
        SendEnd { word, if_lost: word }
    }

    /// Makes the end of a stream by `word`. TCP answers bytes that come to a closed socket with a reset, and says `EPIPE` to their sender.
    pub fn of_stream(word: u32) -> SendEnd {
        SendEnd { word, if_lost: if word == ENDED { LOST } else { word } }
    }
}

/// Destination of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// The client, and its mover.
    pub client: ClientId,
    pub mover: MoverId,
    /// The channel of the question.
    pub channel: usize,
}

/// Messages of the conductor (or another mover) to a mover. They are carried out in place: owned parts are taken out of them.
#[derive(Debug)]
pub enum ToMover {
    /// A client attached.
    AddClient { client: ClientId, payer: Payer, account: Arc<Account>, memory: Arc<ClientMemory> },
    /// The mover is to look at all doorbells and channels, and to say so.
    Scan { sync: u64 },
    /// A client has one more channel.
    AddChannel(Option<Box<NewChannel>>),
    /// The client passes files by this socket, which the lease covers.
    AddFileSocket { client: ClientId, payer: Payer, socket: Option<Box<(OwnedFd, Lease)>> },
    /// The mover writes this pipe when the channel's reader asks for it.
    AddPipe { client: ClientId, channel: usize, pipe: Option<Arc<WakeEnd>> },
    /// Spans of this region may be sent.
    AddRegion { client: ClientId, region: u16, map: Arc<Mapping> },
    /// A socket exists; its events go to `channel`.
    OpenSocket { client: ClientId, slot: Slot, generation: u16, channel: usize },
    /// The socket's events go to another channel.
    Home { client: ClientId, slot: Slot, channel: usize },
    /// The socket is no more.
    CloseSocket { client: ClientId, slot: Slot },
    /// `count` connections have entered the listener's backlog, and its line says so already: wakes its waiters.
    Backlog { client: ClientId, slot: Slot, count: u64 },
    /// A direction of a connection; this mover serves its source. There is no [`Self::Incoming`] if it serves
    /// the destination, too.
    AddFlow(Option<Box<NewFlow>>),
    /// Sets a flow's mirrors; none: it has none.
    Show { flow: FlowId, showing: Option<Box<Showing>> },
    /// Has both ends of a direct flow look again.
    WakeEnds { flow: FlowId },
    /// The source of a direct flow says that it has sent `bytes` and `messages` more.
    Reported { flow: FlowId, bytes: u64, messages: u64 },
    /// `flow`, served by `mover`, brings data to this socket.
    Incoming { client: ClientId, slot: Slot, flow: FlowId, mover: MoverId },
    /// Sets the send ring's size.
    SetSendRing { flow: FlowId, bytes: u64 },
    /// Receive ring, or none for now: the mover asks again when told to.
    Ring { flow: FlowId, ring: Option<Ring> },
    /// The source sends no more.
    Finish { flow: FlowId, finish: Finish },
    /// The destination takes no more; the source learns `send_end`. With `recv_end`, the destination is ended as well.
    Abort { flow: FlowId, send_end: SendEnd, recv_end: Option<u32> },
    /// The flow's destination receives later bytes elsewhere, and the source learns that at once. `event` is posted to the asker,
    /// with the position of the last byte that is still delivered. `source`: the socket that learns it if its client has shut the
    /// flow down. `is_over`: the destination had shut down both directions before, of which the source knows.
    Elsewhere { flow: FlowId, source: Option<Box<Endpoint>>, is_over: bool, asker: Asking, event: Event },
    /// The flow's bytes go to another client's socket from now on, unread ones first.
    HandoffDestination { flow: FlowId, destination: Endpoint, handoff: Option<Box<Handoff>> },
    /// The sends of another client's socket are the flow's from now on, after those of its present one.
    HandoffSource { flow: FlowId, source: Endpoint, handoff: Box<Handoff> },
    /// Message from the mover that has carried out [`Self::HandoffSource`] of this flow to the mover of the flow back.
    Leave { flow: FlowId, leave: Box<Leave> },
    /// Message from the mover of the flow's destination, which has read the ring of a previous source.
    Release {
        flow: FlowId,
        #[expect(dead_code, reason = "counts until its drop")]
        permit: Permit,
    },
    /// Another payer pays for the client from now on.
    SetPayer { client: ClientId, payer: Payer },
    /// Weight of a tenant's payers in the mover's time.
    SetWeight { tenant: TenantId, weight: u32 },
    /// The flow belongs to another tenant from now on.
    SetTenant { flow: FlowId, tenant: TenantId },
    /// Limits and buckets of a tenant from now on.
    SetBudget { tenant: TenantId, budget: Arc<Budget> },
    /// Posts an event.
    Post { client: ClientId, channel: usize, event: Event },
    /// The socket has news (from another mover).
    Ready { client: ClientId, slot: Slot },
    /// A peer on the direct path says that the socket has news.
    Nudge {
        client: ClientId,
        slot: Slot,
        #[expect(dead_code, reason = "counts until its drop")]
        permit: Permit,
    },
    /// A peer on the direct path says that the socket at the flow's source has news.
    NudgeSource {
        flow: FlowId,
        #[expect(dead_code, reason = "counts until its drop")]
        permit: Permit,
    },
    /// The flow's receiver says (to its own mover) that it has given bytes back.
    Space {
        flow: FlowId,
        #[expect(dead_code, reason = "counts until its drop")]
        permit: Permit,
    },
    /// Has the mover give back empty rings: memory is short.
    Reclaim,
    /// The conductor asks for the mover itself.
    ComeBack,
    /// Has the mover take the client's outstanding requests, and look at its channels no more.
    Drain { client: ClientId },
    /// Has the mover forget the client as soon as no flow needs it.
    RemoveClient { client: ClientId },
    /// From an opener: a client's file, or the error of opening it.
    FileOpened(Option<Box<(Asker, rustix::io::Result<Arc<OpenFile>>)>>),
    /// From a reader: a piece of a file has been read, completely or not.
    FileRead { flow: FlowId, entry_seq: u16, whole: bool },
}

impl Replies for Mailbox<ToMover> {
    fn file_opened(&self, asker: Asker, file: rustix::io::Result<Arc<OpenFile>>) {
        self.send(ToMover::FileOpened(Some(Box::new((asker, file)))));
    }

    fn file_read(&self, flow: FlowId, entry_seq: u16, whole: bool) {
        self.send(ToMover::FileRead { flow, entry_seq, whole });
    }
}

/// Messages of movers, and of other agents, to the conductor.
#[derive(Debug)]
pub enum ToConductor {
    /// A request other than a send. In one thread it is carried out before the next one is taken, and not counted.
    Control { client: ClientId, channel: usize, request: Request, permit: Option<Permit> },
    /// The mover has looked at all doorbells and channels.
    Scanned { sync: u64 },
    /// The client broke the protocol.
    Violation { client: ClientId, violation: Violation },
    /// The client wrote impossible words into a direct ring that a mover reads: the connection ends.
    BrokeRing { client: ClientId },
    /// The flow has something to deliver and no ring.
    NeedRing { flow: FlowId, bytes_max: u64 },
    /// A send region is known: the client may now send from it.
    RegionAdded { client: ClientId, region: u16 },
    /// A flow no longer needs this ring.
    FreeRing { ring: Ring },
    /// A flow of this socket has another source, after all sends of the socket; or another destination.
    Released { previous: PreviousOwner },
    /// The flow is over and forgotten.
    FlowDone { flow: FlowId },
    /// All bytes of the previous clients of one end of a flow have been handled. The end had `moves` new clients since the last such
    /// message.
    Drained { flow: FlowId, end: FlowEnd, moves: u32 },
    /// A client has said that it leaves the direct path, in one direction.
    Gone { flow: FlowId, gone: Gone },
    /// From the caller that runs the driver: this policy is in force from now on.
    Apply { policy: Box<Policy> },
    /// The mover has forgotten the client.
    ClientGone { client: ClientId },
    /// From the gate: a policy is staged on the kernel, or cannot be.
    Staged { staged: Result<Staged, String> },
    /// From the gate: the kernel may have counted something.
    KernelCounted,
    /// From the watch on the machine's cores: see [`pd_abi::layout::header::CORES_SCARCE`].
    Cores { scarce: bool },
}

/// An end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEnd {
    /// The source: all bytes sent by its previous clients are delivered.
    Source,
    /// The destination: it has all bytes that its previous clients had not read.
    Destination,
}

/// Reason for which a client is cut off.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Violation {
    /// Request ring.
    #[error("impossible counter in its request ring")]
    RequestRing,
    /// Event ring.
    #[error("impossible counter in its event ring")]
    EventRing,
    /// Event ring not read.
    #[error("does not read its events")]
    Events,
    /// Operation.
    #[error("unknown operation {0} requested")]
    Operation(u8),
    /// Span.
    #[error("send of a span outside its send regions")]
    Span,
    /// More in flight than agreed.
    #[error("sends beyond its send ring")]
    SendRing,
    /// Receive ring.
    #[error("gave back bytes that were never delivered")]
    ReceiveRing,
    /// File.
    #[error("send of a piece of a file that is not open")]
    File,
    /// Version of the protocol.
    #[error("speaks version {0} of the protocol, not the driver's {own}", own = pd_abi::VERSION)]
    Version(u32),
    /// Attach socket.
    #[error("unexpected message on the attach socket")]
    Frame,
    /// A new policy, without a fault of the client.
    #[error("the policy does not let it attach any more ({})", .0.label())]
    NotAllowed(Refusal),
}

impl Violation {
    /// Returns the errno for a client that is cut off for it.
    pub fn errno(self) -> Errno {
        match self {
            Self::NotAllowed(_) => Errno::ACCESS,
            _ => Errno::PROTO,
        }
    }
}

// Messages are copied from agent to agent: large parts go by a pointer.
const _: () = assert!(size_of::<ToMover>() <= 64 && size_of::<ToConductor>() <= 72);
