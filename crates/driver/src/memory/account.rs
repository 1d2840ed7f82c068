//! Who pays for memory: accounts, each a part of the one above it, and leases of their bytes.
//!
//! A lease is taken of an account and of all above it, or of none, and is given back to the same when it is dropped, whatever has
//! become of the client meanwhile.
use super::pool::Exhausted;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;

/// See the module. Any thread may use it.
#[derive(Debug)]
pub struct Account {
    budget: u64,
    used: AtomicU64,
    leases: AtomicUsize,
    above: Option<Arc<Account>>,
}

/// Bytes taken from an [`Account`].
#[derive(Debug)]
pub struct Lease {
    account: Arc<Account>,
    bytes: u64,
}

impl Account {
    /// An account with nothing above it.
    pub fn new(budget: u64) -> Arc<Self> {
        Arc::new(Self { budget, used: AtomicU64::new(0), leases: AtomicUsize::new(0), above: None })
    }

    /// A part of this account, of `budget` bytes at most.
    pub fn below(self: &Arc<Self>, budget: u64) -> Arc<Self> {
        let above = Some(Arc::clone(self));
        Arc::new(Self { budget, used: AtomicU64::new(0), leases: AtomicUsize::new(0), above })
    }

    /// Bytes leased.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Bytes that may be leased.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Leases there are.
    pub fn leases(&self) -> usize {
        self.leases.load(Relaxed)
    }

    /// Bytes that can be leased at the moment.
    pub fn free(&self) -> u64 {
        self.chain().map(|account| account.budget.saturating_sub(account.used())).min().unwrap_or(0)
    }

    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |account| account.above.as_deref())
    }

    /// Takes bytes of this account and of those above it.
    ///
    /// # Errors
    /// [`Exhausted::Budget`] with the budget that is too small.
    pub fn lease(self: &Arc<Self>, bytes: u64) -> Result<Lease, Exhausted> {
        for (taken, account) in self.chain().enumerate() {
            let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= account.budget);
            if account.used.fetch_update(Relaxed, Relaxed, fits).is_err() {
                self.chain().take(taken).for_each(|account| {
                    account.used.fetch_sub(bytes, Relaxed);
                });
                return Err(Exhausted::Budget { budget: account.budget });
            }
        }
        self.leases.fetch_add(1, Relaxed);
        Ok(Lease { account: Arc::clone(self), bytes })
    }
}

impl Lease {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.account.leases.fetch_sub(1, Relaxed);
        for account in self.account.chain() {
            account.used.fetch_sub(self.bytes, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_accounts_pay_or_none() {
        let root = Account::new(100);
        let tenant = root.below(50);
        let (one, two) = (tenant.below(40), tenant.below(40));
        let lease = one.lease(40).unwrap();
        assert_eq!((one.used(), tenant.used(), root.used(), one.leases()), (40, 40, 40, 1));
        assert_eq!(one.lease(1).unwrap_err(), Exhausted::Budget { budget: 40 });
        assert_eq!(two.free(), 10);
        assert_eq!(two.lease(11).unwrap_err(), Exhausted::Budget { budget: 50 });
        assert_eq!((two.used(), tenant.used(), root.used()), (0, 40, 40));
        drop(lease);
        assert_eq!((one.used(), tenant.used(), root.used(), one.leases()), (0, 0, 0, 0));
    }
}
