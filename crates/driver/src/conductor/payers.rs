//! Accounts of payers: holdings and caps ([`crate::memory::Account`]).
use super::client::Client;
use super::tenants::Tenants;
use super::Conductor;
use crate::admin::{HoldingReport, StandingReport};
use crate::ids::ClientId;
use crate::memory::{Account, Amounts, Exhausted, Lease, Pool, Resource, Whose};
use crate::messages::Payer;
use crate::metrics::Metrics;
use crate::policy::Policy;
use std::collections::HashMap;
use std::sync::Arc;

const OVER_CAP: [&str; 3] = [
    "a tenant has as many clients as it may have",
    "a tenant has as many of the driver's descriptors as it may have",
    "a tenant has as much memory as it may have",
];

/// Accounts of payers with clients, with holdings, or with reserves.
#[derive(Debug, Default)]
pub struct Payers {
    accounts: HashMap<Payer, Arc<Account>>,
}

impl Payers {
    /// Returns the payer's account. Makes one if there is none.
    pub fn account(&mut self, payer: Payer, tenants: &Tenants, pool: &Pool) -> &Arc<Account> {
        if !self.accounts.contains_key(&payer) {
            self.forget_idle(tenants);
        }
        self.accounts.entry(payer).or_insert_with(|| pool.root().payer(tenants.caps(payer.0)))
    }

    /// Applies the caps and reserves of a policy that has been put in force.
    pub fn apply(&mut self, tenants: &Tenants, pool: &Pool) {
        for tenant in tenants.with_reserves() {
            self.account((tenant, None), tenants, pool);
        }
        for (payer, account) in &self.accounts {
            account.set_caps(tenants.caps(payer.0));
        }
    }

    /// Forgets accounts that hold nothing, unless something is reserved there. A new account would be the same. Clients hold theirs.
    fn forget_idle(&mut self, tenants: &Tenants) {
        self.accounts.retain(|payer, account| {
            let is_idle = Arc::strong_count(account) == 1 && account.used() == Amounts::default();
            !is_idle || tenants.has_reserve(payer.0)
        });
    }

    /// Iterates over all accounts.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn accounts(&self) -> impl Iterator<Item = (Payer, &Arc<Account>)> {
        self.accounts.iter().map(|(payer, account)| (*payer, account))
    }

    /// Reports the holdings of a tenant's payers, ordered by user.
    pub fn report(&self, tenant: crate::ids::TenantId) -> Vec<HoldingReport> {
        let of_tenant = self.accounts.iter().filter(|(payer, _)| payer.0 == tenant);
        let report = of_tenant.map(|(payer, account)| {
            let [clients, descriptors, memory_bytes] =
                Resource::ALL.map(|resource| StandingReport::from(account.standing(resource)));
            HoldingReport { user: payer.1, clients, descriptors, memory_bytes }
        });
        let mut report: Vec<_> = report.collect();
        report.sort_by_key(|holding| holding.user);
        report
    }
}

impl Conductor {
    /// Opens an account for a new client of this payer. Returns it with a lease of the amounts that each client takes.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub(super) fn open_account(&mut self, payer: Payer) -> Result<(Arc<Account>, Lease), Exhausted> {
        let of_payer = self.payers.account(payer, &self.tenants, &self.pool);
        let account = of_payer.client(self.settings.client_budget_bytes);
        let lease = account
            .lease(Amounts::CLIENT)
            .inspect_err(|exhausted| self.note_cap(payer, exhausted.clone()))?;
        Ok((account, lease))
    }

    /// Moves a client's holdings to its present payer's account.
    pub(super) fn move_account(&mut self, client: ClientId) {
        let Some((payer, account)) = self.client(client).map(|c| (c.payer(), Arc::clone(&c.account))) else {
            return;
        };
        account.move_below(self.payers.account(payer, &self.tenants, &self.pool));
    }

    /// Counts and logs that a tenant was refused a resource because of a cap.
    pub(super) fn note_cap(&mut self, payer: Payer, exhausted: Exhausted) {
        let Exhausted::Budget { resource, whose: Whose::Tenant, most } = exhausted else { return };
        Metrics::add(&self.metrics.caps_reached, 1);
        let what = OVER_CAP[resource as usize];
        if self.log.may_say((what, payer), self.clock.now()) {
            let tenant = self.tenants.name(payer.0);
            tracing::warn!(tenant, user = payer.1, most, "{what}: {exhausted}");
        }
    }

    /// Calls [`Self::note_cap`] for a client's payer.
    pub(super) fn note_cap_of(&mut self, client: ClientId, exhausted: Exhausted) {
        if let Some(payer) = self.client(client).map(Client::payer) {
            self.note_cap(payer, exhausted);
        }
    }

    /// Checks that the driver has the resources that a policy reserves.
    ///
    /// # Errors
    /// The tenant whose reserve does not fit.
    pub(super) fn check_reserves(&self, policy: &Policy) -> Result<(), crate::policy::PolicyError> {
        policy.check_reserves(&self.pool.root().total())
    }
}
