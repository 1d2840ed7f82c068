//! Messages between the door, its helpers and the conductor.
use super::claim::{Claim, Proved};
use super::Door;
use crate::addresses::Addresses;
use crate::admin::{Answer, Ask};
use crate::identity::{Identity, NamespaceId};
use crate::ids::{ClientId, TenantId};
use crate::mailbox::Loan;
use crate::memory::{Account, ClientMemory, Exhausted, Lease, Lent, Region};
use crate::messages::{NewChannel, Payer, Violation};
use crate::mirror::Copies;
use crate::pipes::{NewPipe, NewPort, NewTap, PipeName};
use crate::refusal::Refused;
use crate::standing::Place;
use crate::takeover::early::{Given, Numbers};
use pd_abi::Frame;
use pd_pipe::{Eventfds, Offer};
use pd_shm::ringer::WakeEnd;
use pd_shm::Mapping;
use rustix::io::Errno;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::Duration;

/// Messages to the door, from the conductor or a helper.
#[derive(Debug)]
pub enum ToDoor {
    /// Admits a newcomer, with its tenant and the account that pays for its memory. Addresses of its network namespace that are `unread`
    /// are read before it is served ([`FromDoor::Addresses`]).
    Admit {
        client: ClientId,
        tenant: TenantId,
        account: Arc<Account>,
        lease: Lease,
        unread: Option<Arc<OwnedFd>>,
    },
    /// Refuses a newcomer, which is told the errno and the reason.
    TurnAway { client: ClientId, errno: Errno, why: Box<str> },
    /// Sets the tenant of a client.
    SetTenant { client: ClientId, tenant: TenantId },
    /// Answers the client's frame, with a descriptor. Then the client's next frame is read.
    Answer { client: ClientId, frame: Box<Frame>, fd: Option<OwnedFd> },
    /// The client's frame has been carried out, and there is no frame in answer.
    Done { client: ClientId },
    /// Stops serving the client. A violation is told to the client.
    CutOff { client: ClientId, violation: Option<Violation> },
    /// Every agent has forgotten the client: its number is free, and its memory can go.
    Forget { client: ClientId, regions: Vec<Region> },
    /// Makes a receive region of the lease's bytes for rings of `ring_bytes`.
    MakeReceiveRegion { client: ClientId, lease: Lease, ring_bytes: u64 },
    /// Has the pages of the client's receive region taken back ([`FromDoor::Emptied`]).
    EmptyReceiveRegion { client: ClientId, number: u32, region: Box<Region> },
    /// Has the pages of the client's receive region made again. The answer is that of [`Self::MakeReceiveRegion`]; if there are none to be
    /// had, the region comes back by [`FromDoor::Emptied`] first.
    FillReceiveRegion { client: ClientId, number: u32, region: Box<Region> },
    /// Lets a receive region go that no client of the conductor's has.
    DropReceiveRegion { region: Box<Region> },
    /// Has the payer's helper read the addresses of a network namespace ([`FromDoor::Addresses`]).
    ReadAddresses { payer: Payer, id: NamespaceId, namespace: Arc<OwnedFd> },
    /// Has the payer's helper prove that a client listens ([`FromDoor::Proved`]).
    Prove { payer: Payer, claim: Box<Claim> },
    /// Watches a process for its end ([`FromDoor::WatchedEnded`]).
    Watch { pidfd: Arc<OwnedFd> },
    /// From the agent of pipes: the files that the client is to map, or the reason why it gets none.
    PipeOpened { client: ClientId, serial: u64, number: u32, opened: Result<Box<Offer>, (Errno, String)> },
    /// From the agent of pipes: a pipe receives and sends from now on, or the reason why it does not.
    PipeStarted { client: ClientId, serial: u64, number: u32, started: Result<(), (Errno, String)> },
    /// From the agent of pipes: the pipe at the other end of a link, if the direct path is offered.
    PipePeer { client: ClientId, serial: u64, peer: Option<(PipeName, Eventfds)> },
    /// From the agent of pipes: the pipes of this memory are closed, and the payer's helper lets the memory go.
    PipesClosed { payer: Payer, memory: Vec<Arc<dyn Lent>> },
    /// From a helper: the result of its work.
    Made { client: ClientId, serial: u64, made: Made },
    /// Lends the door itself, for a while or for good.
    Lend(Loan<Door>),
}

/// Result of a helper's work for a client.
#[derive(Debug)]
pub enum Made {
    /// A region for the client to write, and its descriptor.
    SendRegion(Result<(Region, OwnedFd), Exhausted>),
    /// A region that the driver writes, and its descriptor.
    ReceiveRegion(Result<(Region, OwnedFd), Exhausted>),
    /// A receive region whose pages were taken back, unless the kernel refused.
    Emptied(u32, Box<Region>),
    /// A receive region whose pages were made again, or were not to be had.
    Filled(u32, Box<Region>, Result<(), Exhausted>),
    /// A send region is sealed and whole.
    Sealed { number: u32, sealed: Result<Arc<Mapping>, Errno> },
    /// Addresses of a network namespace.
    Addresses(Box<Reading>),
    /// A claim, compared with what the kernel says.
    Proved(Box<Proved>),
    /// Regions that clients which have gone passed on, and that others hold.
    Held(Vec<Region>),
    /// A pipe.
    Pipe(Result<Box<NewPipe>, Exhausted>),
    /// Memory of a pipe that is sealed and whole, or is not.
    PipeSealed(u32, Result<(), pd_pipe::Violation>),
    /// Other memory that others hold.
    StillLent(Vec<Arc<dyn Lent>>),
    /// A frame, and whether descriptors came with it. `None`: the end.
    Received(Result<Option<(Box<Frame>, bool)>, Errno>),
    /// An answer with a socket is sent, or is not.
    Told(Result<(), (Errno, Box<Frame>, Vec<OwnedFd>)>),
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

/// Messages of the door to the conductor. Messages about one client come in order.
#[derive(Debug)]
pub enum FromDoor {
    /// A process has connected. [`ToDoor::Admit`] or [`ToDoor::TurnAway`] answers. `namespace` is a second descriptor of its network
    /// namespace.
    Arrived { client: ClientId, identity: Box<Identity>, place: Place, namespace: OwnedFd },
    /// Addresses of a network namespace.
    Addresses(Box<Reading>),
    /// A claim, compared with what the kernel says.
    Proved(Box<Proved>),
    /// The client has been given its regions.
    Welcomed { client: ClientId, memory: Arc<ClientMemory> },
    /// The client has mapped its regions.
    Attached { client: ClientId },
    /// The client gets a channel. The conductor answers, as it does the next four.
    AddChannel(Box<NewChannel>, OwnedFd),
    /// The client gets a wake pipe: the driver's end and the client's.
    AddPipe { client: ClientId, channel: usize, pipe: Arc<WakeEnd>, theirs: OwnedFd },
    /// The client gets a file socket: the driver's end, with the lease of that, and the client's.
    AddFileSocket { client: ClientId, socket: Box<(OwnedFd, Lease)>, theirs: OwnedFd },
    /// A send region of the client is in use.
    AddSendRegion { client: ClientId, number: u32, map: Arc<Mapping> },
    /// A frame of the client about a kernel socket or a direct ring.
    Frame { client: ClientId, frame: Box<Frame> },
    /// [`ToDoor::MakeReceiveRegion`] was carried out, and the client told.
    ReceiveRegion { client: ClientId, number: u32, region: Box<Region> },
    /// [`ToDoor::MakeReceiveRegion`] could not be carried out.
    NoReceiveRegion { client: ClientId, exhausted: Exhausted },
    /// [`ToDoor::EmptyReceiveRegion`] was carried out. The region has its pages still if the kernel refused.
    Emptied { client: ClientId, number: u32, region: Box<Region> },
    /// The client was refused a request.
    Refused { client: ClientId, errno: Errno, exhausted: Option<Exhausted> },
    /// The client has hung up, or died.
    Left { client: ClientId },
    /// The client broke the protocol.
    Broke { client: ClientId, violation: Violation },
    /// A process was turned away: which one, if it wanted to attach.
    TurnedAway { refused: Option<Box<Refused>> },
    /// No descriptors are left to accept anybody.
    Paused { error: Errno },
    /// An administrator asks.
    Asked { asked: Box<Asked>, reply: Sender<Answer> },
    /// A process that was to be watched has ended.
    WatchedEnded,
    /// Another driver is to take this one's place, and waits at the other end.
    TakeOver { successor: UnixStream, early: Numbers },
    /// Another driver is to have the direct rings that it can have before the take-over.
    Early { reply: Sender<Given> },
}

/// Question of an administrator, with everything that could be found out without the conductor.
#[derive(Debug)]
pub enum Asked {
    /// The question as it was asked.
    Plain(Ask),
    /// [`Ask::Apply`], understood.
    Apply(crate::policy::Policy),
    /// [`Ask::Register`], looked up.
    Register(Registering),
    /// [`Ask::PortAdd`], made.
    AddPort { name: String, kind: &'static str, port: NewPort },
    /// Shows connections of a tenant, or of all, at a port that the agent of pipes has.
    Show { name: String, tenant: Option<String>, copies: Arc<Copies> },
    /// [`Ask::Tap`], made and mapped.
    AddTap(Box<NewTap>),
}

/// The note of `pd run` about a namespace.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Registration {
    /// The container's name.
    pub name: String,
    /// Tenant of the container.
    pub tenant: String,
    /// Addresses of the container.
    pub addresses: Vec<IpAddr>,
    /// The network that it was run in, by name.
    #[serde(default)]
    pub network: Option<String>,
}

/// A container to be registered, by a process in it.
#[derive(Debug)]
pub struct Registering {
    /// Note of `pd run` about the container.
    pub registration: Registration,
    /// Pidfd of the process.
    pub pidfd: Arc<OwnedFd>,
    /// Network namespace of the process.
    pub namespace: NamespaceId,
    pub namespace_fd: OwnedFd,
    /// The control group made for the container, if the process is in it.
    pub cgroup: Option<String>,
}
