//! The memory that the kernel's programs and the driver share: arrays that are mapped. The structures are those of `gate.bpf.h`.
//!
//! Only the kernel's programs and the driver can write it.
use crate::array::Array;
use crate::ids::TenantId;
use crate::policy::{Limits, Rate};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Tenants that the arrays have room for: all that the conductor knows.
pub const TENANTS: usize = 4096;
/// Rules of a policy, with the default behind them.
pub const RULES: usize = 65_536;
/// Words of the configuration.
const CONFIG_WORDS: usize = 6;
const MIB: u128 = 1 << 20;

/// A tenant's use and limits on the kernel.
#[derive(Debug)]
#[repr(C)]
pub struct TenantWords {
    /// Open connections on the kernel that the tenant has made.
    pub open: AtomicU64,
    /// Open connections on the fabric that the tenant has made.
    pub open_on_fabric: AtomicU64,
    /// Most open connections of the tenant.
    pub max: AtomicU64,
    /// Connections that the tenant made on the kernel. The next three count those made to it, denied, and beyond the quota.
    pub made: AtomicU64,
    /// See [`Self::made`].
    pub accepted: AtomicU64,
    /// See [`Self::made`].
    pub denied: AtomicU64,
    /// See [`Self::made`].
    pub over_quota: AtomicU64,
    /// Bytes of connections on the kernel that are over.
    pub sent: AtomicU64,
    /// See [`Self::sent`].
    pub received: AtomicU64,
    /// Time of the tenant's bucket of bytes, which the fabric draws from as well (`policy/rate.rs`).
    pub spent_until_ns: AtomicU64,
    /// Longest distance of the bucket's time behind the present.
    burst_ns: AtomicU64,
    /// Nanoseconds in which 1 MiB of tokens come; 0: no rate.
    ns_per_mib: AtomicU64,
    /// Values of the bucket that each connection has.
    one_burst_ns: AtomicU64,
    one_ns_per_mib: AtomicU64,
    /// Packets dropped for lack of tokens.
    pub drops: AtomicU64,
}

/// Flags of a generation: some tenant has a rate; some rule leads through proxies; accepted sockets know the address that was asked
/// for.
pub const RATED: u32 = 1;
pub const VIAS: u32 = 2;
pub const ORIGINS: u32 = 4;

/// Facts of a generation that the conductor gives the programs when it is staged.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfGeneration {
    pub levels: u32,
    pub otherwise: u32,
    pub flags: u32,
    pub hits: u32,
}

/// A staged policy.
#[derive(Clone, Copy, Debug)]
pub struct Staged {
    /// Generation to be put in force ([`Words::flip`]).
    pub generation: u32,
    /// Index of the policy's first hit counter.
    pub hits: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Words {
    config: Array,
    tenants: Array,
    hits: Array,
}

impl Words {
    /// Words of each array.
    pub const OF_CONFIG: usize = CONFIG_WORDS;
    pub const OF_TENANTS: usize = TENANTS * (size_of::<TenantWords>() / 8);
    pub const OF_HITS: usize = 2 * RULES;

    /// Uses these arrays, which the kernel's programs share.
    pub fn new(config: Array, tenants: Array, hits: Array) -> Self {
        Self { config, tenants, hits }
    }

    /// Goes on with the words of the driver whose place this one takes.
    pub(super) fn join(&self) {
        self.tenants.join();
        self.hits.join();
    }

    /// Returns the number of times that the programs were attached.
    pub fn epoch(&self) -> u32 {
        (self.config.word(0).load(Relaxed) >> 32) as u32
    }

    /// Goes on from an epoch of another driver, with no generation in force.
    pub(super) fn resume_epoch(&self, epoch: u32) {
        self.config.word(0).store(u64::from(epoch) << 32, Relaxed);
    }

    /// Returns the generation in force; 0: none.
    pub fn generation(&self) -> u32 {
        self.config.word(0).load(Acquire) as u32
    }

    /// Puts a staged generation in force, or none. The next connect is decided by it.
    pub fn flip(&self, generation: u32) {
        let epoch = self.config.word(0).load(Relaxed) >> 32 << 32;
        self.config.word(0).store(epoch | u64::from(generation), Release);
    }

    /// Begins an epoch, before the programs are attached for the first time or again. Only connections from now on are counted, and connections that closed
    /// unseen are not counted as open.
    pub(super) fn begin_epoch(&self) {
        (0..TENANTS).for_each(|id| self.tenant(TenantId::at(id)).open.store(0, Relaxed));
        self.config.word(0).fetch_add(1 << 32, Relaxed);
    }

    pub(super) fn set_generation(&self, generation: u32, of: OfGeneration) {
        let at = 1 + 2 * (generation as usize & 1);
        self.config.word(at).store(u64::from(of.levels) | u64::from(of.otherwise) << 32, Relaxed);
        self.config.word(at + 1).store(u64::from(of.flags) | u64::from(of.hits) << 32, Release);
    }

    /// Sets the offset from the kernel's clock to the clock of buckets.
    pub(super) fn set_shift(&self, shift_ns: u64) {
        self.config.word(5).store(shift_ns, Release);
    }

    /// Returns a tenant's words.
    pub fn tenant(&self, id: TenantId) -> &TenantWords {
        let (index, per_tenant) = (id.index().min(TENANTS - 1), size_of::<TenantWords>() / 8);
        let first = self.tenants.word(index * per_tenant);
        // SAFETY: `TENANTS` structures of atomic words lie in the array, this one inside.
        unsafe { &*std::ptr::from_ref(first).cast::<TenantWords>() }
    }

    /// Returns the counter of connects that a rule decided, of the policy whose hits begin at `base`.
    pub fn hits(&self, base: u32, rule: usize) -> &AtomicU64 {
        self.hits.word(base as usize + rule.min(RULES - 1))
    }
}

impl TenantWords {
    /// Sets the tenant's limits from a policy.
    pub fn set(&self, connections_max: Option<u64>, limits: &Limits) {
        self.max.store(connections_max.unwrap_or(u64::MAX), Relaxed);
        let words = |rate: Option<Rate>| {
            rate.map_or((0, 0), |rate| {
                let ns = |bytes: u128| (bytes * 1_000_000_000).div_ceil(rate.per_second.into()) as u64;
                (ns(MIB).max(1), ns(rate.burst.into()))
            })
        };
        let (ns_per_mib, burst_ns) = words(limits.tenant.bytes);
        self.burst_ns.store(burst_ns, Relaxed);
        self.ns_per_mib.store(ns_per_mib, Relaxed);
        let (one_ns_per_mib, one_burst_ns) = words(limits.connection.bytes);
        self.one_burst_ns.store(one_burst_ns, Relaxed);
        self.one_ns_per_mib.store(one_ns_per_mib, Relaxed);
    }
}
