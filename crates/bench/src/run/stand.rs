//! Resources of a benchmark on the machine: a driver, hugepages, a directory, and a pair of peers for each
//! scheme, started when first asked for. Dropping it removes everything.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use pd_driver::admin::{Answer, Ask, PortSpec};
use pd_driver::{Bytes, HugepageUse};
use pd_harness::config::Config;
use pd_harness::container::cgroup::Limits;
use pd_harness::driver::ChildDriver;
use pd_harness::measure::cpu::MachineTimes;
use pd_harness::signals::Signals;
use pd_harness::site::Site;
use pd_harness::tuning::Tuning;

use super::pair::{self, Pair};
use crate::catalogue::{Conditions, Scheme, Waiting};
use crate::scheme::shm_ring;

/// The driver's memory budget, for which hugepages are made.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes of all regions.
    pub budget_bytes: u64,
    /// Default ring.
    pub ring_bytes: u64,
}

impl Memory {
    /// Enough for a few connections with rings of 4 MB.
    pub const FEW: Memory = Memory { budget_bytes: 256 << 20, ring_bytes: 4 << 20 };
    /// Enough for the connections of a few programs, each with rings of its own.
    pub const PROGRAMS: Memory = Memory { budget_bytes: 1 << 30, ring_bytes: 4 << 20 };
    /// Memory for the smallest ring for each of 65,536 connections, and that ring size.
    pub const MANY: Memory = Memory { budget_bytes: 5 << 30, ring_bytes: 64 << 10 };
}

/// The policy that decides each scheme's path. Attackers may not connect to victims. The policy does not
/// mention the containers of `pipedevice-default`.
const POLICY: &str = r#"
[[tenant]]
name = "bench-mediated"
[[tenant]]
name = "bench-direct"
[[tenant]]
name = "bench-attacker"
[[rule]]
from = "bench-attacker"
to = "bench-attacker"
action = "allow"
path = "offloaded"
[[rule]]
from = "bench-attacker"
to = ["bench-mediated", "bench-direct"]
action = "deny"
[[rule]]
from = "bench-mediated"
to = "bench-mediated"
action = "allow"
path = "offloaded"
[[rule]]
from = "bench-direct"
to = "bench-direct"
action = "allow"
path = "direct"
"#;

/// Fields are dropped in this order.
pub struct Stand<'a> {
    pairs: BTreeMap<(Scheme, usize), Pair>,
    conditions: Conditions,
    /// Limits of pairs' containers.
    limits: Limits,
    site: Site,
    /// Tunings of kernel TCP for pairs with a number of their own, from number 1.
    tunings: Vec<Tuning>,
    /// Signals that may interrupt.
    pub signals: &'a Signals,
}

impl Drop for Stand<'_> {
    fn drop(&mut self) {
        self.pairs.clear();
        // Files of peers that were killed while they connected.
        shm_ring::remove_all(self.site.dir());
    }
}

/// CPU time so far, of the machine and of the driver.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// All of the machine.
    pub machine: MachineTimes,
    /// The driver.
    pub driver: Option<Duration>,
    /// Time that the driver's first mover waited for a core.
    pub mover_wait: Option<Duration>,
}

impl<'a> Stand<'a> {
    /// Sets up a stand, with a driver if one of the schemes needs it.
    pub fn set_up(
        schemes: &[Scheme],
        memory: Memory,
        engine: &str,
        signals: &'a Signals,
    ) -> Result<Stand<'a>> {
        Stand::set_up_under(Conditions::default(), schemes, memory, engine, signals)
    }

    /// Sets up a stand under other conditions.
    pub fn set_up_under(
        conditions: Conditions,
        schemes: &[Scheme],
        memory: Memory,
        engine: &str,
        signals: &'a Signals,
    ) -> Result<Stand<'a>> {
        let config = schemes.iter().any(|scheme| scheme.has_driver()).then(|| {
            let mut config = Config::default();
            config.driver.engine = engine.to_owned();
            config.driver.movers = conditions.movers;
            config.driver.connections_max = 1 << 18;
            config.memory.budget_bytes = Bytes(memory.budget_bytes);
            // The receiver has nearly all of the rings.
            config.memory.client_budget_bytes = Some(Bytes(memory.budget_bytes));
            config.memory.ring_bytes_default = Bytes(memory.ring_bytes);
            if conditions.waiting == Waiting::Blocks {
                config.driver.spin_us = 0;
            }
            if !conditions.hugepages {
                config.memory.hugepages = HugepageUse::Off;
            }
            config
        });
        Ok(Stand {
            pairs: BTreeMap::new(),
            conditions,
            limits: Limits::default(),
            tunings: Vec::new(),
            site: Site::set_up(config.map(|config| (config, POLICY)), signals)?,
            signals,
        })
    }

    /// Sets the tunings of the pairs of `tcp-tuned` from number 1 on.
    pub fn set_tunings(&mut self, tunings: Vec<Tuning>) {
        self.tunings = tunings;
    }

    /// Returns the driver.
    pub fn driver(&self) -> Result<&ChildDriver> {
        self.site.driver().context("this benchmark has no driver")
    }

    /// Gives the driver, and each container of pairs that are started from now on, a CPU weight.
    pub fn weigh(&mut self, driver: u64, container: u64) -> Result<()> {
        self.site.driver_mut().map_or(Ok(()), |known| known.weigh(driver))?;
        self.limits.weight = Some(container);
        Ok(())
    }

    /// Pins the driver's threads to a core, or to none. Does nothing without a driver.
    pub fn place_driver(&self, core: Option<usize>) -> Result<()> {
        self.site.driver().map_or(Ok(()), |driver| driver.stay_on(core))
    }

    /// Makes the policy deny connections of the scheme's containers, until [`Stand::allow`].
    pub fn deny(&self, scheme: Scheme) -> Result<()> {
        let tenant = pair::tenant(scheme);
        let rule = format!("[[rule]]\nfrom = \"{tenant}\"\nto = \"{tenant}\"\naction = \"deny\"\n");
        // The first rule that matches decides.
        self.apply(POLICY.replacen("[[rule]]", &(rule + "[[rule]]"), 1))
    }

    /// Adds an unused service to the policy, until [`Stand::allow`]. The kernel then asks the policy's programs about options of
    /// sockets.
    pub fn offer_service(&self) -> Result<()> {
        let service = "[[service]]\naddress = \"10.96.0.1:80\"\nbackends = [\"10.96.1.1:80\"]\n";
        self.apply(format!("{POLICY}{service}"))
    }

    /// Adds a port of packets, which makes frames as fast as they are taken, or removes it.
    pub fn port(&self, name: &str, is_wanted: bool) -> Result<()> {
        let name = name.to_owned();
        let port = PortSpec::Gen { sizes: vec![64, 1500], flows: 3, frames: 0 };
        let ask = if is_wanted { Ask::PortAdd { name, port } } else { Ask::PortRemove { name } };
        match self.driver()?.ask(&ask)? {
            Answer::Done => Ok(()),
            other => bail!("the driver answered {other:?}"),
        }
    }

    /// Makes the policy allow what [`Stand::deny`] denied.
    pub fn allow(&self) -> Result<()> {
        self.apply(POLICY.to_owned())
    }

    /// Adds these tenants to the policy, and these rules before its others.
    pub fn lead(&self, more: &str) -> Result<()> {
        self.apply(POLICY.replacen("[[rule]]", &format!("{more}[[rule]]"), 1))
    }

    fn apply(&self, text: String) -> Result<()> {
        match self.driver()?.ask(&Ask::Apply { text })? {
            Answer::Applied { .. } => Ok(()),
            other => bail!("the driver answered {other:?}"),
        }
    }

    /// Returns the directory that all peers share.
    pub fn dir(&self) -> &Path {
        self.site.dir()
    }

    /// Returns the peers of a scheme.
    pub fn pair(&mut self, scheme: Scheme) -> Result<&mut Pair> {
        self.pair_of(scheme, 0)
    }

    /// Returns the peers of a scheme that has several pairs.
    pub fn pair_of(&mut self, scheme: Scheme, number: usize) -> Result<&mut Pair> {
        if !self.pairs.contains_key(&(scheme, number)) {
            let own = number.checked_sub(1).and_then(|n| self.tunings.get(n)).cloned();
            let tcp = own.unwrap_or_else(|| scheme.tcp());
            let pair = Pair::start(scheme, number, self.site.dir(), &tcp, self.conditions, self.limits)
                .with_context(|| format!("cannot start the peers of {}", scheme.name()))?;
            self.pairs.insert((scheme, number), pair);
        }
        Ok(self.pairs.get_mut(&(scheme, number)).expect("inserted above"))
    }

    /// Ends the peers of a scheme, whatever state they are in.
    pub fn end_pairs(&mut self, scheme: Scheme) {
        self.pairs.retain(|(s, _), _| *s != scheme);
    }

    /// Ends one pair of a scheme, whatever state it is in.
    pub fn end_pair(&mut self, scheme: Scheme, number: usize) {
        self.pairs.remove(&(scheme, number));
    }

    /// Returns the CPU times so far.
    pub fn clocks(&self) -> Result<Clocks> {
        let driver = self.site.driver().and_then(ChildDriver::cpu_usage);
        let mover_wait = self.site.driver().and_then(ChildDriver::mover_wait);
        Ok(Clocks { machine: MachineTimes::now()?, driver, mover_wait })
    }
}
