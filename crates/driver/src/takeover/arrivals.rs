//! Clients that have come from another driver, in the form that agents pass on.
use crate::identity::NamespaceId;
use crate::ids::{ClientId, TenantId};
use crate::memory::{Account, ClientMemory, Lease};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A client that has come, as the door needs it.
#[derive(Debug)]
pub struct Came {
    pub tenant: TenantId,
    pub uid: u32,
    pub pid: u32,
    pub namespace: NamespaceId,
    pub pidfd: Arc<OwnedFd>,
    pub account: Arc<Account>,
    /// Lease of the client itself.
    pub lease: Lease,
    pub memory: Arc<ClientMemory>,
    pub channels: usize,
}

/// Arrived clients, by number.
pub type Arrivals = HashMap<ClientId, Came>;
