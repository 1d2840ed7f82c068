//! What the door, its helpers and the conductor tell each other.
use super::Door;
use crate::addresses::Addresses;
use crate::admin::{Answer, Ask};
use crate::identity::{Identity, NamespaceId};
use crate::ids::{ClientId, TenantId};
use crate::memory::{Account, ClientMemory, Exhausted, Lease, Lent, Region};
use crate::messages::{NewChannel, Payer, Violation};
use crate::mirror::Copies;
use crate::pipes::{NewPipe, NewPort, NewTap};
use crate::refusal::Refused;
use crate::standing::Place;
use pd_abi::Frame;
use pd_pipe::Offer;
use pd_shm::Mapping;
use rustix::io::Errno;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::Arc;
use std::time::Duration;

/// Conductor, or a helper, to door.
#[derive(Debug)]
pub enum ToDoor {
    /// The newcomer is known: whose it is, and who pays for its memory. If the addresses of its network namespace are `unread`,
    /// they are read before it is heard ([`FromDoor::Addresses`]).
    Admit {
        client: ClientId,
        tenant: TenantId,
        account: Arc<Account>,
        lease: Lease,
        unread: Option<Arc<OwnedFd>>,
    },
    /// The newcomer is not let in: the errno and the reason that it is told.
    TurnAway { client: ClientId, errno: Errno, why: Box<str> },
    /// The client is another tenant's from now on.
    SetTenant { client: ClientId, tenant: TenantId },
    /// Answer the client's frame, with a descriptor. Then its next frame is read.
    Answer { client: ClientId, frame: Box<Frame>, fd: Option<OwnedFd> },
    /// The client's frame has been carried out, and there is no frame in answer.
    Done { client: ClientId },
    /// Hear the client no more. With a violation: tell it so.
    CutOff { client: ClientId, violation: Option<Violation> },
    /// Every agent has forgotten the client: its number is free, and its memory can go.
    Forget { client: ClientId, regions: Vec<Region> },
    /// Make a receive region of the lease's bytes for rings of `ring_bytes`.
    MakeReceiveRegion { client: ClientId, lease: Lease, ring_bytes: u64 },
    /// Have the payer's helper read the addresses of a network namespace ([`FromDoor::Addresses`]).
    ReadAddresses { payer: Payer, id: NamespaceId, namespace: Arc<OwnedFd> },
    /// Say when this process has ended.
    Watch { pidfd: Arc<OwnedFd> },
    /// From the agent of pipes: what the client is to map, or why it gets nothing.
    PipeOpened { client: ClientId, serial: u64, number: u32, opened: Result<Box<Offer>, (Errno, String)> },
    /// From the agent of pipes: what had this memory is closed, and the payer's helper lets it go.
    PipesClosed { payer: Payer, memory: Vec<Arc<dyn Lent>> },
    /// From a helper.
    Made { client: ClientId, serial: u64, made: Made },
    /// The door itself is wanted, for a while or for good.
    Lend(Loan),
}

/// Where the door goes, and from where it comes back; it does not if nothing comes.
pub struct Loan {
    pub to: Sender<Box<Door>>,
    pub back: Receiver<Box<Door>>,
}

impl std::fmt::Debug for Loan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Loan")
    }
}

/// What a helper has done for a client.
#[derive(Debug)]
pub enum Made {
    /// A region for the client to write, and its descriptor.
    SendRegion(Result<(Region, OwnedFd), Exhausted>),
    /// A region that the driver writes, and its descriptor.
    ReceiveRegion(Result<(Region, OwnedFd), Exhausted>),
    /// A send region is sealed and whole.
    Sealed { number: u32, sealed: Result<Arc<Mapping>, Errno> },
    /// The addresses of a network namespace are read.
    Addresses(Box<Reading>),
    /// Regions that clients which have gone passed on.
    Held(Vec<Region>),
    /// A pipe.
    Pipe(Result<Box<NewPipe>, Exhausted>),
    /// A pipe's memory is sealed and whole, or it is not.
    PipeSealed(u32, Result<(), pd_pipe::Violation>),
    /// As [`Self::Held`], of other memory.
    StillLent(Vec<Arc<dyn Lent>>),
    /// A frame was received, and whether descriptors came with it; none at the end.
    Received(Result<Option<(Box<Frame>, bool)>, Errno>),
}

/// The addresses of a network namespace, as the helper of `payer` has read them.
#[derive(Debug)]
pub struct Reading {
    pub payer: Payer,
    pub id: NamespaceId,
    /// Holds the namespace, so that its id is not reused.
    pub _namespace: Arc<OwnedFd>,
    pub found: std::io::Result<Addresses>,
    pub took: Duration,
}

/// Door to conductor. Those of one client come in order.
#[derive(Debug)]
pub enum FromDoor {
    /// A process has connected. Answered by [`ToDoor::Admit`] or [`ToDoor::TurnAway`]. With a second descriptor of its network namespace.
    Arrived { client: ClientId, identity: Box<Identity>, place: Place, namespace: OwnedFd },
    /// The addresses of a network namespace.
    Addresses(Box<Reading>),
    /// It has been given its regions.
    Welcomed { client: ClientId, memory: Arc<ClientMemory> },
    /// It has mapped them.
    Attached { client: ClientId },
    /// It gets a channel. Answered, as the following.
    AddChannel(Box<NewChannel>, OwnedFd),
    /// It gets a wake pipe: the ends to write and to read.
    AddPipe { client: ClientId, channel: usize, pipe: OwnedFd, theirs: OwnedFd },
    /// It gets a file socket: the driver's end, with what it is charged, and the client's.
    AddFileSocket { client: ClientId, socket: Box<(OwnedFd, Lease)>, theirs: OwnedFd },
    /// One of its send regions is in use.
    AddSendRegion { client: ClientId, number: u32, map: Arc<Mapping> },
    /// What it says of a kernel socket or a direct ring.
    Frame { client: ClientId, frame: Box<Frame> },
    /// [`ToDoor::MakeReceiveRegion`] was carried out, and the client told.
    ReceiveRegion { client: ClientId, number: u32, region: Box<Region> },
    /// It was not.
    NoReceiveRegion { client: ClientId, exhausted: Exhausted },
    /// It was refused something.
    Refused { client: ClientId, errno: Errno, exhausted: Option<Exhausted> },
    /// It has hung up, or died.
    Left { client: ClientId },
    /// It broke the protocol.
    Broke { client: ClientId, violation: Violation },
    /// Somebody was turned away; who, of those that wanted to attach.
    TurnedAway { refused: Option<Box<Refused>> },
    /// There are no descriptors to accept anybody.
    Paused { error: Errno },
    /// An administrator asks.
    Asked { asked: Box<Asked>, reply: Sender<Answer> },
    /// A process that was to be watched has ended.
    WatchedEnded,
    /// Another driver is to take this one's place. It waits at the other end.
    TakeOver { successor: UnixStream },
}

/// What an administrator asks, with what could be found out about it without the conductor.
#[derive(Debug)]
pub enum Asked {
    /// As it was asked.
    Plain(Ask),
    /// [`Ask::Apply`], understood.
    Apply(crate::policy::Policy),
    /// [`Ask::Register`], looked up.
    Register(Registering),
    /// [`Ask::PortAdd`], made.
    AddPort { name: String, kind: &'static str, port: NewPort },
    /// Show connections of a tenant, or of all, at a port that the agent of pipes has.
    Show { name: String, tenant: Option<String>, copies: Arc<Copies> },
    /// [`Ask::Tap`], made and mapped.
    AddTap(Box<NewTap>),
}

/// The note of `pd run` about a namespace.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Registration {
    /// The container's name.
    pub name: String,
    /// Its tenant.
    pub tenant: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The network that it was run in, by name.
    #[serde(default)]
    pub network: Option<String>,
}

/// A container to be registered, by a process in it.
#[derive(Debug)]
pub struct Registering {
    /// What it is.
    pub registration: Registration,
    /// The process.
    pub pidfd: Arc<OwnedFd>,
    /// Its network namespace.
    pub namespace: NamespaceId,
    pub namespace_fd: OwnedFd,
    /// The control group made for the container, if the process is in it.
    pub cgroup: Option<String>,
}
