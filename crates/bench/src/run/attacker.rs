//! A hostile client in a container of its own tenant, as `pd bench` sees it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use pd_driver::admin::{Answer, Ask, HoldingReport};
use pd_harness::container::cgroup::Limits;
use pd_harness::container::Spec;
use pd_harness::driver::ChildDriver;
use pd_harness::peer::Peer;
use pd_harness::signals::Signals;
use pd_harness::tuning::Tuning;

use super::pair;
use crate::attack::{Attack, Done, Kind};
use crate::catalogue::{Scheme, Waiting};
use crate::protocol::{Reply, Request};

/// The attackers' tenant; see the policy of [`super::stand`].
const TENANT: &str = "bench-attacker";
/// Longest time until the driver lets go of a client that was killed.
const LET_GO: Duration = Duration::from_secs(10);

/// An attacker. Dropping it kills it.
pub struct Attacker(Peer);

impl Attacker {
    /// Starts it and its attack; returns once the attack is set up. `dir` is where the driver is.
    pub fn start(attack: Attack, dir: &Path, limits: Limits, signals: &Signals) -> Result<Attacker> {
        let name = format!("bench-{}-attacker", std::process::id());
        let spec = Spec { limits, ..pair::spec(TENANT, name, dir, &Tuning::linux()) };
        let library =
            if attack.kind == Kind::Twins { pair::environment(Scheme::Preload)? } else { Vec::new() };
        let command = [library, pair::command(dir, Waiting::Shipped)].concat();
        let mut peer = Peer::in_container(&spec, command)?;
        peer.ask(&Request::Attack { attack })?;
        match peer.answer(signals)? {
            Reply::Done => Ok(Attacker(peer)),
            other => bail!("a peer answered {other:?}"),
        }
    }

    /// Returns the bytes of its connections that came through between two moments of the monotonic clock.
    pub fn carried(&mut self, (from_ns, to_ns): (u64, u64), signals: &Signals) -> Result<f64> {
        self.0.ask(&Request::Carried { from_ns, to_ns })?;
        match self.0.answer(signals)? {
            Reply::Carried { bytes } => Ok(bytes),
            other => bail!("a peer answered {other:?}"),
        }
    }

    /// Returns the CPU time that it has used so far; `None` where nothing counts it.
    pub fn cpu_usage(&self) -> Option<Duration> {
        self.0.container()?.cpu_usage()
    }

    /// Returns the counts of the attack so far.
    pub fn done(&mut self, signals: &Signals) -> Result<Done> {
        self.0.ask(&Request::Attacked)?;
        match self.0.answer(signals)? {
            Reply::Attacked(done) => Ok(done),
            other => bail!("a peer answered {other:?}"),
        }
    }
}

/// Returns the clients, descriptors and bytes of ended attackers that are still on their tenant's account. Waits for zero, at most
/// [`LET_GO`].
pub fn left_behind(driver: &ChildDriver, signals: &Signals) -> Result<[u64; 3]> {
    let until = Instant::now() + LET_GO;
    loop {
        let left = held(driver)?;
        if left == [0; 3] || Instant::now() > until {
            return Ok(left);
        }
        signals.check()?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn held(driver: &ChildDriver) -> Result<[u64; 3]> {
    let Answer::Policy(policy) = driver.ask(&Ask::Policy)? else {
        bail!("the driver said nothing of its policy")
    };
    let tenant = policy.tenants.iter().find(|tenant| tenant.name == TENANT);
    let sum = |amount: fn(&HoldingReport) -> u64| {
        tenant.map_or(0, |tenant| tenant.holdings.iter().map(amount).sum())
    };
    Ok([sum(|held| held.clients.used), sum(|held| held.descriptors.used), sum(|held| held.memory_bytes.used)])
}
