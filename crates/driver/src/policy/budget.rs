//! A tenant's limits on sends, as movers count them.
use super::rate::Bucket;
use super::Limits;
use crate::gate::Words;
use crate::ids::TenantId;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// The buckets of one tenant, shared by all movers; a new one when its limits change.
#[derive(Debug)]
pub struct Budget {
    /// Limits that the buckets were made from.
    pub limits: Limits,
    /// Tokens, if its rate is limited.
    pub bytes: Option<Bucket>,
    /// Tokens, if its rate is limited; see [`Self::bytes`].
    pub messages: Option<Bucket>,
    /// Times that a flow had to wait for tokens.
    pub waits: AtomicU64,
}

impl Budget {
    /// Makes full buckets.
    pub fn new(limits: Limits) -> Arc<Self> {
        let [bytes, messages] =
            [limits.tenant.bytes, limits.tenant.messages].map(|rate| rate.map(Bucket::new));
        Arc::new(Self { limits, bytes, messages, waits: AtomicU64::new(0) })
    }

    /// Makes full buckets; bytes that the tenant sends on the kernel draw from the bucket of bytes as well.
    pub fn shared(limits: Limits, words: &Arc<Words>, tenant: TenantId) -> Arc<Self> {
        let bytes = limits.tenant.bytes.map(|rate| Bucket::shared(rate, words, tenant));
        let messages = limits.tenant.messages.map(Bucket::new);
        Arc::new(Self { limits, bytes, messages, waits: AtomicU64::new(0) })
    }
}
