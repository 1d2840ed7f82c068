//! All that a benchmark makes on the machine: a driver, hugepages, a directory, and a pair of peers for
//! each scheme, started when first asked for. Dropping it removes everything.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use pd_harness::config::Config;
use pd_harness::container::state::{self, Lock, ScratchDir};
use pd_harness::driver::ChildDriver;
use pd_harness::hugepages::Guard;
use pd_harness::measure::cpu::MachineTimes;
use pd_harness::signals::Signals;
use pd_harness::size::Bytes;

use super::pair::Pair;
use crate::scheme::{shm_ring, Scheme};

/// What the driver may use, and what hugepages are made for.
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
    /// Enough for the smallest ring for each of 65,536 connections, which is what they get.
    pub const MANY: Memory = Memory { budget_bytes: 5 << 30, ring_bytes: 64 << 10 };
}

/// Fields are dropped in this order.
pub struct Stand<'a> {
    pairs: BTreeMap<(Scheme, usize), Pair>,
    driver: Option<ChildDriver>,
    _hugepages: Option<Guard>,
    dir: ScratchDir,
    /// What may interrupt.
    pub signals: &'a Signals,
}

impl Drop for Stand<'_> {
    fn drop(&mut self) {
        self.pairs.clear();
        // What peers that were killed while they connected have left.
        shm_ring::remove_all(self.dir.path());
    }
}

/// CPU time so far, of the machine and of the driver.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// All of the machine.
    pub machine: MachineTimes,
    /// The driver.
    pub driver: Option<Duration>,
}

impl<'a> Stand<'a> {
    /// With a driver if one of the schemes needs it.
    pub fn set_up(
        schemes: &[Scheme],
        memory: Memory,
        engine: &str,
        signals: &'a Signals,
    ) -> Result<Stand<'a>> {
        let lock = Lock::acquire()?;
        state::sweep(&lock)?;
        let dir = ScratchDir::create(&lock)?;
        let (mut driver, mut hugepages) = (None, None);
        if schemes.contains(&Scheme::Pipedevice) {
            hugepages = Some(Guard::raise(memory.budget_bytes, &lock));
            let mut config = Config::default();
            config.driver.engine = engine.to_owned();
            config.driver.connections_max = 1 << 18;
            config.memory.budget_bytes = Bytes(memory.budget_bytes);
            // The receiver has nearly all of the rings.
            config.memory.client_budget_bytes = Some(Bytes(memory.budget_bytes));
            config.memory.ring_bytes_default = Bytes(memory.ring_bytes);
            let started = ChildDriver::start(dir.path(), config, &lock, signals);
            // What was made so far takes the lock to be removed.
            drop(lock);
            driver = Some(started?);
        }
        Ok(Stand { pairs: BTreeMap::new(), driver, _hugepages: hugepages, dir, signals })
    }

    /// The driver.
    pub fn driver(&self) -> Result<&ChildDriver> {
        self.driver.as_ref().context("this benchmark has no driver")
    }

    /// The directory that all peers share.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The peers of a scheme.
    pub fn pair(&mut self, scheme: Scheme) -> Result<&mut Pair> {
        self.pair_of(scheme, 0)
    }

    /// The peers of a scheme that has several pairs.
    pub fn pair_of(&mut self, scheme: Scheme, number: usize) -> Result<&mut Pair> {
        if !self.pairs.contains_key(&(scheme, number)) {
            let pair = Pair::start(scheme, number, self.dir.path())
                .with_context(|| format!("cannot start the peers of {}", scheme.name()))?;
            self.pairs.insert((scheme, number), pair);
        }
        Ok(self.pairs.get_mut(&(scheme, number)).expect("inserted above"))
    }

    /// Ends the peers of a scheme, whatever state they are in.
    pub fn end_pairs(&mut self, scheme: Scheme) {
        self.pairs.retain(|(s, _), _| *s != scheme);
    }

    /// CPU time so far.
    pub fn clocks(&self) -> Result<Clocks> {
        let driver = self.driver.as_ref().and_then(ChildDriver::cpu_usage);
        Ok(Clocks { machine: MachineTimes::now()?, driver })
    }
}
