//! Removal of the remains of a container, and of a `pd` that was killed.

use anyhow::Result;

use super::state::{self, Lock, Record};
use super::{cgroup, hosts, links};
use crate::{hugepages, sysctl};

/// Removes a container's record, and its name from the others' tables.
pub fn forget(record: &Record, lock: &Lock) {
    record.remove(lock);
    if let Err(error) = hosts::refresh(&record.bridge, lock) {
        eprintln!("pd: warning: {error:#}");
    }
}

/// Removes everything that a killed `pd` left: processes, links, control groups, directories,
/// bridges, hugepages, raised limits.
pub fn sweep(lock: &Lock) -> Result<()> {
    for record in state::records()?.into_iter().filter(|r| !r.owner.is_alive()) {
        record.init.end();
        links::delete(&record.link);
        forget(&record, lock);
    }
    cgroup::sweep();
    state::release_bridges(lock);
    state::sweep_dirs();
    hugepages::sweep(lock);
    sysctl::sweep(lock);
    Ok(())
}
