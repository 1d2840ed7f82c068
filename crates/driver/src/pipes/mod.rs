//! Pipes of clients ([`pd_pipe`]): packets of ports, in rings that a client shares with an agent of the driver.
//!
//! The door reads clients' requests, has memory made and sealed by the payer's helper, and keeps it until it is let go. A thread `pd-nic`
//! has the agent: ports, pipes, the bindings of the policy, and accounts ([`nic`]). The thread starts with the first port and sleeps while
//! nothing comes. The conductor sends it tenants and policies. No other thread touches a pipe, and no flow knows of one.
mod messages;
pub mod nic;
pub mod report;
mod steer;
mod taps;

#[cfg(test)]
pub(crate) use steer::Steering;

pub use messages::{NewPipe, NewPort, NewTap, Opening, PipeMemory, PipeName, TenantNow, ToNic};
pub use nic::{NicState, PipeCame, PipesCame};

use self::nic::Nic;
use crate::clock::Clock;
use crate::door::ToDoor;
use crate::mailbox::{Loan, Mailbox};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Starter = Box<dyn FnOnce(Box<Nic>) -> std::io::Result<()> + Send>;

/// Access of door and conductor to the agent.
pub struct Pipes {
    clock: Arc<dyn Clock>,
    door: Arc<Mailbox<ToDoor>>,
    spin: Duration,
    inbox: Arc<Mailbox<ToNic>>,
    /// Loan that the agent is asked for.
    loan: Arc<Mutex<Option<Loan<Nic>>>>,
    started: AtomicBool,
    starter: Mutex<Option<Starter>>,
}

impl fmt::Debug for Pipes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipes").field("started", &self.started).finish_non_exhaustive()
    }
}

impl Pipes {
    /// Begins without an agent. The agent will look for `spin` before it sleeps.
    ///
    /// # Errors
    /// Errors of `eventfd`.
    pub fn new(
        clock: Arc<dyn Clock>,
        door: Arc<Mailbox<ToDoor>>,
        spin: Duration,
    ) -> rustix::io::Result<Arc<Self>> {
        let (started, starter) = (AtomicBool::new(false), Mutex::default());
        let (inbox, loan) = (Mailbox::new()?, Arc::default());
        Ok(Arc::new(Self { clock, door, spin, inbox, loan, started, starter }))
    }

    /// Sets the function that runs the agent.
    pub fn set_starter(&self, start: Starter) {
        *self.starter.lock().unwrap_or_else(PoisonError::into_inner) = Some(start);
    }

    /// Makes the agent, without ports.
    ///
    /// # Errors
    /// Errors of making an epoll set.
    pub fn make(&self) -> rustix::io::Result<Box<Nic>> {
        let (clock, inbox, door) = (Arc::clone(&self.clock), Arc::clone(&self.inbox), Arc::clone(&self.door));
        Nic::new(clock, inbox, door, Arc::clone(&self.loan), self.spin).map(Box::new)
    }

    /// Starts the agent, unless it runs.
    ///
    /// # Errors
    /// Errors of making a thread; an error if no starter is set.
    pub fn start(&self) -> std::io::Result<()> {
        match self.is_started() {
            true => Ok(()),
            false => self.start_with(self.make()?),
        }
    }

    /// Starts this agent, which was made here.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_with(&self, nic: Box<Nic>) -> std::io::Result<()> {
        let starter = self.starter.lock().unwrap_or_else(PoisonError::into_inner).take();
        starter.ok_or_else(|| std::io::Error::other("this driver has no agent for pipes"))?(nic)?;
        self.started.store(true, Ordering::Release);
        Ok(())
    }

    /// Tells whether the agent has started, with the first port.
    pub fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// Sends to the agent, if there is one.
    pub fn send(&self, message: ToNic) {
        if self.is_started() {
            self.inbox.send(message);
        }
    }

    /// Asks the agent to lend itself, for a while or for good.
    pub fn lend(&self, loan: Loan<Nic>) {
        *self.loan.lock().unwrap_or_else(PoisonError::into_inner) = Some(loan);
        self.send(ToNic::Lend);
    }
}
