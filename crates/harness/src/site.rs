//! Everything that a measurement makes on the machine beside its peers.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pd_driver::HugepageUse;

use crate::config::Config;
use crate::container::state::{Lock, ScratchDir};
use crate::container::sweep::sweep;
use crate::driver::ChildDriver;
use crate::hugepages::Guard;
use crate::signals::Signals;

/// A directory and, for PipeDevice, a driver in it with hugepages for its memory. Fields are dropped in this order.
pub struct Site {
    driver: Option<ChildDriver>,
    _hugepages: Option<Guard>,
    dir: ScratchDir,
}

impl Site {
    /// Sets up a site, with a driver if `config` has a configuration and the text of a policy. First removes the remains of
    /// killed processes.
    pub fn set_up(config: Option<(Config, &str)>, signals: &Signals) -> Result<Site> {
        let lock = Lock::acquire()?;
        sweep(&lock)?;
        let dir = ScratchDir::create(&lock)?;
        let large = config.as_ref().filter(|(config, _)| config.memory.hugepages != HugepageUse::Off);
        let hugepages = large.map(|(config, _)| Guard::raise(config.memory.budget_bytes.0, &lock));
        let started = config.map(|(mut config, policy)| {
            let file = dir.path().join("policy.toml");
            std::fs::write(&file, policy).with_context(|| format!("cannot write {}", file.display()))?;
            config.policy = Some(file);
            ChildDriver::start(dir.path(), config, &lock, signals)
        });
        // Parts that were made so far take the lock to be removed.
        drop(lock);
        Ok(Site { driver: started.transpose()?, _hugepages: hugepages, dir })
    }

    /// Returns the driver, if there is one, to be changed.
    pub fn driver_mut(&mut self) -> Option<&mut ChildDriver> {
        self.driver.as_mut()
    }

    /// Returns the driver, if there is one.
    pub fn driver(&self) -> Option<&ChildDriver> {
        self.driver.as_ref()
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the socket for clients, which need not exist.
    pub fn socket(&self) -> PathBuf {
        self.dir().join("driver.sock")
    }
}
