//! What conductor and movers tell each other.
pub use crate::ids::{payer, Payer, DRIVER};

use crate::gate::Staged;
use crate::ids::{ClientId, FlowId, MoverId, Slot, TenantId};
use crate::mailbox::Mailbox;
use crate::memory::{Account, ClientMemory, Events, Lease, Remainder, Requests};
use crate::mirror::Showing;
use crate::policy::budget::Budget;
use crate::policy::Policy;
use crate::reader::{Asker, OpenFile, Replies};
use crate::refusal::Refusal;
use pd_abi::layout::{ELSEWHERE, ENDED};
use pd_abi::limits::PAGE_BYTES;
use pd_abi::{Event, Request};
use pd_shm::Mapping;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// A socket as a mover needs it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Whose it is.
    pub client: ClientId,
    /// The client's serial, for its lines in the counter region.
    pub serial: u64,
    /// Its line.
    pub slot: Slot,
    /// The line's generation.
    pub generation: u16,
    /// The client's lines.
    pub memory: Arc<ClientMemory>,
    /// The mover that serves the client.
    pub mover: MoverId,
}

impl Endpoint {
    /// Whom to tell of it.
    pub fn place(&self) -> (MoverId, ClientId, Slot) {
        (self.mover, self.client, self.slot)
    }

    /// Its client, if it is this one, is no more: the number may be another's soon.
    pub fn forget(&mut self, client: ClientId) {
        if self.client == client {
            self.client = ClientId::NOBODY;
        }
    }
}

/// A channel as it begins.
#[derive(Debug)]
pub struct NewChannel {
    /// Whose it is.
    pub client: ClientId,
    /// Its number.
    pub channel: usize,
    /// What the client asks.
    pub requests: Requests,
    /// What it is told.
    pub events: Events,
    /// What it rings.
    pub doorbell: OwnedFd,
}

/// A direction of a connection as it begins.
#[derive(Clone, Debug)]
pub struct NewFlow {
    /// Its number.
    pub id: FlowId,
    /// Whose rates it keeps to.
    pub tenant: TenantId,
    /// Whose sends it carries.
    pub source: Endpoint,
    /// Where to.
    pub destination: Endpoint,
    /// What may be sent and not yet delivered.
    pub send_ring_bytes: u64,
    /// The connection's, for its lines in the counter region.
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
    /// Bytes that the receiver wishes for: the ring may be exchanged for one that is larger.
    pub wished: u64,
    /// The driver's mapping of the region.
    pub map: Arc<Mapping>,
}

impl Ring {
    /// Where it begins in the region.
    pub fn offset(&self) -> usize {
        self.page as usize * PAGE_BYTES
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES as u64
    }
}

/// A client's request on its way to another agent: counted against the client until it is dropped there.
#[derive(Debug)]
pub struct Forwarded(Arc<ClientMemory>);

impl Forwarded {
    /// One more request of the client whose memory it is.
    pub fn new(memory: &Arc<ClientMemory>) -> Self {
        memory.forwarded.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(memory))
    }
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        self.0.forwarded.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a client on the direct path is told when its peer's end has gone to another.
#[derive(Clone, Debug)]
pub struct Leave {
    /// The client's end.
    pub to: Endpoint,
    /// What its `path` word says from then on.
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

/// A socket whose end of a connection is another's by now. Its slot is free when both flows have let go of it.
#[derive(Clone, Copy, Debug)]
pub struct Former {
    /// Its client, and that one's serial.
    pub client: ClientId,
    pub serial: u64,
    /// Its slot.
    pub slot: Slot,
}

/// What a flow has to know when one of its ends goes to another client.
#[derive(Debug, Default)]
pub struct Parted {
    /// Whose it was.
    pub former: Option<Former>,
    /// Of the destination: whether the connection has left the direct path with it, for good.
    pub left: bool,
    /// Then what it had not read.
    pub remainder: Option<Remainder>,
    /// Of the source on the direct path: nothing of the new one's is delivered before the destination says that it has
    /// read the ring of the former.
    pub held: bool,
    /// Of the source: the other end leaves the direct path, too.
    pub leave: Option<Leave>,
    /// The peer has left for the kernel.
    pub elsewhere: bool,
    /// Of the source: nobody has claimed the other end, so that no flow brings the former owner bytes, which could tell it.
    pub unclaimed: bool,
}

impl Parted {
    /// The end of the peer's stream, if it has ended.
    pub fn peers_end(&self) -> u32 {
        if self.elsewhere {
            ELSEWHERE
        } else {
            ENDED
        }
    }
}

/// How a flow's sending side ends.
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    /// What the receiver learns after the last byte: `ENDED`, or an errno.
    pub end: u32,
    /// What the receiver learns if bytes are left at the deadline: an errno.
    pub late_errno: u32,
    /// When to give up delivering; never, if none.
    pub deadline: Option<Duration>,
    /// The sending client has gone: nothing of it may be touched once the flow has ended.
    pub source_gone: bool,
}

/// Whom an answer goes to.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// The client, and its mover.
    pub client: ClientId,
    pub mover: MoverId,
    /// The channel of the question.
    pub channel: usize,
}

/// Conductor (or another mover) to mover. It is carried out where it lies: what has to be owned is taken out of it.
#[derive(Debug)]
pub enum ToMover {
    /// A client attached.
    AddClient { client: ClientId, payer: Payer, account: Arc<Account>, memory: Arc<ClientMemory> },
    /// One more channel of a client.
    AddChannel(Option<Box<NewChannel>>),
    /// The client passes files by this socket, for which the lease is.
    AddFileSocket { client: ClientId, payer: Payer, socket: Option<Box<(OwnedFd, Lease)>> },
    /// Write this pipe when the channel's reader asks for it.
    AddPipe { client: ClientId, channel: usize, pipe: Option<OwnedFd> },
    /// Spans of this region may be sent.
    AddRegion { client: ClientId, region: u16, map: Arc<Mapping> },
    /// A socket exists; its events go to `channel`.
    OpenSocket { client: ClientId, slot: Slot, generation: u16, channel: usize },
    /// Its events go to another channel.
    Home { client: ClientId, slot: Slot, channel: usize },
    /// The socket is no more.
    CloseSocket { client: ClientId, slot: Slot },
    /// So many connections have entered the listener's backlog, which its line says already: wake who waits for them.
    Backlog { client: ClientId, slot: Slot, count: u64 },
    /// A direction of a connection; this mover serves its source. If it serves the destination, too, there is no
    /// [`Self::Incoming`].
    AddFlow(Option<Box<NewFlow>>),
    /// A flow's mirrors from now on; none: it has none.
    Show { flow: FlowId, showing: Option<Box<Showing>> },
    /// Both ends of a direct flow shall look again.
    Kick { flow: FlowId },
    /// The source of a direct flow says that it has sent so much more.
    Reported { flow: FlowId, bytes: u64, messages: u64 },
    /// `flow`, served by `mover`, brings data to this socket.
    Incoming { client: ClientId, slot: Slot, flow: FlowId, mover: MoverId },
    /// The send ring's size.
    SetSendRing { flow: FlowId, bytes: u64 },
    /// A receive ring, or none for now: ask again when told to.
    Ring { flow: FlowId, ring: Option<Ring> },
    /// The source sends no more.
    Finish { flow: FlowId, finish: Finish },
    /// The destination takes no more; the source learns `send_end`. With `recv_end`, so does the
    /// destination.
    Abort { flow: FlowId, send_end: u32, recv_end: Option<u32> },
    /// The flow's destination receives elsewhere what the source sends from now on, which learns that at once. `event` is
    /// posted to the asker with the position of the last byte that is still delivered. `source`: the socket that learns it where the
    /// flow is over, because its client has shut it down.
    Elsewhere { flow: FlowId, source: Option<Box<Endpoint>>, asker: Asking, event: Event },
    /// A twin's flow: its bytes go by rings of the two clients as long as its ends stay where they are.
    GoDirect { flow: FlowId },
    /// The flow's bytes go to another client's socket from now on, what was not read first.
    Retarget { flow: FlowId, destination: Endpoint, parted: Option<Box<Parted>> },
    /// The sends of another client's socket are the flow's from now on, after those of its present one.
    HandOver { flow: FlowId, source: Endpoint, parted: Box<Parted> },
    /// From the mover that has carried out [`Self::HandOver`] of this flow to that of the flow back.
    Leave { flow: FlowId, leave: Box<Leave> },
    /// From the mover of the flow's destination, which has read the ring of a former source.
    Release { flow: FlowId, _forwarded: Forwarded },
    /// What the client costs is another payer's from now on.
    SetPayer { client: ClientId, payer: Payer },
    /// How much more of the mover's time than others a tenant's payers get.
    SetWeight { tenant: TenantId, weight: u32 },
    /// A flow is another tenant's from now on.
    SetTenant { flow: FlowId, tenant: TenantId },
    /// What a tenant may send from now on.
    SetBudget { tenant: TenantId, budget: Arc<Budget> },
    /// Post an event.
    Post { client: ClientId, channel: usize, event: Event },
    /// The socket has news (from another mover).
    Ready { client: ClientId, slot: Slot },
    /// A peer on the direct path says that the socket has news.
    Nudge { client: ClientId, slot: Slot, _forwarded: Forwarded },
    /// The same, of the socket that the flow starts at.
    NudgeSource { flow: FlowId, _forwarded: Forwarded },
    /// The flow's receiver says (to its own mover) that it has given bytes back.
    Space { flow: FlowId, _forwarded: Forwarded },
    /// There is memory again.
    Resume { flow: FlowId },
    /// Give back rings that are empty: memory is short.
    Reclaim,
    /// The conductor wants to have the mover itself.
    ComeBack,
    /// Take what the client has sent and look at its channels no more.
    Drain { client: ClientId },
    /// Forget the client as soon as no flow needs it.
    RemoveClient { client: ClientId },
    /// From an opener: a client's file, or why it is not opened.
    FileOpened(Option<Box<(Asker, rustix::io::Result<Arc<OpenFile>>)>>),
    /// From a reader: the piece of a file is where it belongs, whole or not.
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

/// Mover to conductor.
#[derive(Debug)]
pub enum ToConductor {
    /// A request other than a send. In one thread it is carried out before more are taken, and not counted.
    Control { client: ClientId, channel: usize, request: Request, _forwarded: Option<Forwarded> },
    /// The client broke the protocol.
    Violation { client: ClientId, violation: Violation },
    /// The client's words about a direct ring, which a mover reads, are impossible: their connection ends.
    BrokeRing { client: ClientId },
    /// The flow has something to deliver and no ring.
    NeedRing { flow: FlowId, bytes_max: u64 },
    /// A send region is known: the client may send from it.
    RegionAdded { client: ClientId, region: u16 },
    /// A flow needs this ring no more.
    FreeRing { ring: Ring },
    /// A flow of this socket's has another source, all its sends being done; or another destination.
    LetGo { former: Former },
    /// The flow is over and forgotten.
    FlowDone { flow: FlowId },
    /// Nothing is under way that concerns the former clients of one end of a flow, which has had `moves` new ones since the last time.
    Drained { flow: FlowId, end: FlowEnd, moves: u32 },
    /// A client has said that it leaves the direct path, in one direction.
    Gone { flow: FlowId, gone: Gone },
    /// From whoever runs the driver: this policy is in force from now on.
    Apply { policy: Box<Policy> },
    /// The mover has forgotten the client.
    ClientGone { client: ClientId },
    /// From the gate: a policy is staged on the kernel, or cannot be.
    Staged { staged: Result<Staged, String> },
    /// From the gate: the kernel may have counted something.
    KernelCounted,
}

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEnd {
    /// All that its former clients have sent is delivered.
    Source,
    /// It has what its former clients were brought and had not read.
    Destination,
}

/// Why a client is cut off.
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
    /// None of the client's doing: a new policy.
    #[error("the policy does not let it attach any more ({})", .0.label())]
    NotAllowed(Refusal),
}

impl Violation {
    /// Errno for a client that is cut off for it.
    pub fn errno(self) -> Errno {
        match self {
            Self::NotAllowed(_) => Errno::ACCESS,
            _ => Errno::PROTO,
        }
    }
}

// Records of the control plane are copied from agent to agent: what is large goes by a pointer.
const _: () = assert!(size_of::<ToMover>() <= 64 && size_of::<ToConductor>() <= 72);
