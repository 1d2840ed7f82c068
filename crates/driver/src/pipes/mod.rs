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

use crate::mailbox::Mailbox;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

type Starter = Box<dyn FnOnce() -> std::io::Result<()> + Send>;

/// Access of door and conductor to the agent.
pub struct Pipes {
    inbox: Arc<Mailbox<ToNic>>,
    started: AtomicBool,
    starter: Mutex<Option<Starter>>,
}

impl fmt::Debug for Pipes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipes").field("started", &self.started).finish_non_exhaustive()
    }
}

impl Pipes {
    /// Begins without an agent.
    ///
    /// # Errors
    /// Errors of `eventfd`.
    pub fn new() -> rustix::io::Result<Arc<Self>> {
        let (started, starter) = (AtomicBool::new(false), Mutex::default());
        Ok(Arc::new(Self { inbox: Mailbox::new()?, started, starter }))
    }

    /// Sets the function that starts the agent.
    pub fn set_starter(&self, start: Starter) {
        *self.starter.lock().unwrap_or_else(PoisonError::into_inner) = Some(start);
    }

    /// Starts the agent, unless it runs.
    ///
    /// # Errors
    /// Errors of making a thread; an error if no starter is set.
    pub fn start(&self) -> std::io::Result<()> {
        if self.is_started() {
            return Ok(());
        }
        let starter = self.starter.lock().unwrap_or_else(PoisonError::into_inner).take();
        starter.ok_or_else(|| std::io::Error::other("this driver has no agent for pipes"))?()?;
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

    /// Returns the agent's mailbox.
    pub fn inbox(&self) -> &Arc<Mailbox<ToNic>> {
        &self.inbox
    }
}
