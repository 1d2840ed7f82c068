//! Messages of door, conductor and administrators to the agent of pipes.
use super::report::TapOf;
use crate::admin::Answer;
use crate::calls::{may, Call};
use crate::ids::ClientId;
use crate::memory::{Exhausted, Lease, Lent};
use crate::messages::Payer;
use crate::mirror::Frames;
use crate::policy::bind::Binds;
use crate::policy::budget::Budget;
use pd_abi::pipe::PipeRequest;
use pd_pipe::{Eventfds, Files, Made, Mapped, Offer, PeerOffer, Resumed, Shape};
use pd_shm::ringer::WakeEnd;
use pd_shm::shelf::Shelf;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

/// A tenant at present; messages list tenants in the order of their numbers.
#[derive(Debug)]
pub struct TenantNow {
    pub name: String,
    pub budget: Arc<Budget>,
}

/// A port to be added.
#[derive(Debug)]
pub enum NewPort {
    One(Box<pd_pipe::Port>),
    /// Two ends, `NAME.0` and `NAME.1`.
    Link,
    /// Copies of a port's frames.
    Mirror {
        of: String,
    },
    /// Copies of delivered bytes of connections of a tenant, or of all.
    Connections {
        frames: Box<Frames>,
        tenant: Option<String>,
    },
}

/// The memory of a pipe, and the lease that pays for it.
#[derive(Debug)]
pub struct PipeMemory {
    files: Files,
    /// The agent's mapping, unmapped by the payer's helper, and not by the agent.
    mapped: Mutex<Option<Mapped>>,
    _lease: Lease,
}

impl PipeMemory {
    /// Goes on with memory that another driver has made: see [`Files::resume`]. The lease is for it.
    ///
    /// # Errors
    /// Errors of [`Files::resume`].
    pub fn resume(
        lease: Lease,
        shape: Shape,
        files: [OwnedFd; 3],
        is_mapped: bool,
    ) -> rustix::io::Result<(Self, Resumed)> {
        let (files, resumed) = Files::resume(shape, files, is_mapped)?;
        if let Some(ringer) = lease.ringer() {
            resumed.set_ringer(ringer);
        }
        let mapped = Mutex::new(Some(resumed.mapped()));
        Ok((Self { files, mapped, _lease: lease }, resumed))
    }

    /// Returns the files, for another driver.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Seals the memory that the client has mapped.
    ///
    /// # Errors
    /// A violation if the client has taken pages away.
    pub fn seal(&self) -> Result<(), pd_pipe::Violation> {
        self.files.seal()
    }

    /// Opens what the pipe at the other end of a link may read, which has these eventfds.
    ///
    /// # Errors
    /// Errors of opening files.
    pub fn peer(&self, eventfds: Eventfds) -> rustix::io::Result<PeerOffer> {
        may(Call::Reopen)?;
        self.files.peer(eventfds)
    }
}

impl Lent for PipeMemory {
    fn is_let_go(&self) -> bool {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if mapped.as_ref().is_some_and(Mapped::is_in_use) {
            return false;
        }
        *mapped = None;
        self.files.are_let_go()
    }
}

/// A pipe that a helper has made.
#[derive(Debug)]
pub struct NewPipe {
    pub request: PipeRequest,
    pub made: Made,
    pub offer: Offer,
    pub memory: PipeMemory,
}

impl NewPipe {
    /// Makes the pipe. The lease is for its memory. What only the driver writes lies in the shelf, if there is one.
    ///
    /// # Errors
    /// Errors of making memory.
    pub fn make(
        lease: Lease,
        shelf: Option<&Shelf>,
        shape: Shape,
        request: PipeRequest,
    ) -> Result<Self, Exhausted> {
        may(Call::MakeMemory).map_err(Exhausted::Memory)?;
        let (made, files, offer) = Made::on(shelf, shape).map_err(Exhausted::Memory)?;
        if let Some(ringer) = lease.ringer() {
            made.set_ringer(ringer);
        }
        let memory = PipeMemory { files, mapped: Mutex::new(Some(made.mapped())), _lease: lease };
        Ok(Self { request, made, offer, memory })
    }
}

/// A tap to be added; its memory is sealed.
#[derive(Debug)]
pub struct NewTap {
    pub of: TapOf,
    pub snap_bytes: usize,
    pub made: Made,
    /// Hangs up when the observer has gone.
    pub life: OwnedFd,
}

/// A pipe to be opened. Answered by [`crate::door::ToDoor::PipeOpened`].
#[derive(Debug)]
pub struct Opening {
    pub client: ClientId,
    /// The door's serial of the client.
    pub serial: u64,
    pub payer: Payer,
    pub number: u32,
    pub request: PipeRequest,
    pub made: Made,
    pub offer: Offer,
}

/// A pipe as the door knows it: client, the door's serial of it, and number.
pub type PipeName = (ClientId, u64, u32);

/// Messages to the agent. Messages about one client come in order.
#[derive(Debug)]
pub enum ToNic {
    /// From the conductor: the policy's bindings, and all tenants. Pipes that it denies end.
    Policy {
        binds: Binds,
        tenants: Vec<TenantNow>,
    },
    AddPort {
        name: String,
        kind: &'static str,
        port: NewPort,
        reply: Sender<Answer>,
    },
    RemovePort {
        name: String,
        reply: Sender<Answer>,
    },
    Report {
        reply: Sender<Answer>,
    },
    MayUse {
        tenant: String,
        ports: Vec<String>,
        reply: Sender<Answer>,
    },
    AddTap {
        tap: Box<NewTap>,
        reply: Sender<Answer>,
    },
    Open(Box<Opening>),
    /// A new pipe's memory is sealed. Answered by [`crate::door::ToDoor::PipeStarted`].
    Start {
        client: ClientId,
        /// The door's serial of the client.
        serial: u64,
        number: u32,
    },
    /// A pipe's client waits by a pair of sockets, whose other end it is.
    WakeFd {
        client: ClientId,
        number: u32,
        wake_fd: Arc<WakeEnd>,
    },
    /// A client asks which pipe is at the other end of a link. Answered by [`crate::door::ToDoor::PipePeer`].
    Peer {
        client: ClientId,
        /// The door's serial of the client.
        serial: u64,
        number: u32,
    },
    /// A client no longer needs a pipe, or had taken pages away.
    Close {
        client: ClientId,
        number: u32,
    },
    /// Asks to pass the memory of closed pipes on to the door.
    LetGo {
        payer: Payer,
        memory: Vec<Arc<dyn Lent>>,
    },
    /// All pipes of a client that has gone.
    Left {
        client: ClientId,
    },
    /// Lends the agent itself, for a while or for good: see [`super::Pipes::lend`].
    Lend,
    /// A client has another payer than `left`.
    SetPayer {
        client: ClientId,
        left: Payer,
        payer: Payer,
    },
}
