//! What a tenant may send in all, as movers count it.
use super::rate::Bucket;
use super::Limits;
use crate::gate::Words;
use crate::ids::TenantId;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// The buckets of one tenant, shared by all movers; a new one when its limits change.
#[derive(Debug)]
pub struct Budget {
    /// What it was made from.
    pub limits: Limits,
    /// Tokens, if its rate is limited.
    pub bytes: Option<Bucket>,
    /// See [`Self::bytes`].
    pub messages: Option<Bucket>,
    /// Times that a flow had to wait for tokens.
    pub waits: AtomicU64,
}

impl Budget {
    /// Full buckets.
    pub fn new(limits: Limits) -> Arc<Self> {
        let [bytes, messages] =
            [limits.tenant.bytes, limits.tenant.messages].map(|rate| rate.map(Bucket::new));
        Arc::new(Self { limits, bytes, messages, waits: AtomicU64::new(0) })
    }

    /// The same; what the tenant sends on the kernel draws from the bucket of bytes as well.
    pub fn shared(limits: Limits, words: &Arc<Words>, tenant: TenantId) -> Arc<Self> {
        let bytes = limits.tenant.bytes.map(|rate| Bucket::shared(rate, words, tenant));
        let messages = limits.tenant.messages.map(Bucket::new);
        Arc::new(Self { limits, bytes, messages, waits: AtomicU64::new(0) })
    }
}
