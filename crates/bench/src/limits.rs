//! Limits of this process and of the machine that many connections need raised.

use anyhow::{ensure, Result};
use pd_harness::container::state::Lock;
use pd_harness::sysctl::Raised;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

/// Descriptors beside those of connections.
const OTHERS: u64 = 256;

/// Mappings of a process for each connection, at most: the receiver maps each ring twice, and on the direct path
/// there are two rings.
const MAPPINGS: u64 = 4;
/// Mappings beside those of connections: Linux's default limit.
const OTHER_MAPPINGS: u64 = 65_530;

/// Lets each process of this machine have the mappings of `connections` connections while the result lives. If
/// the machine refuses, prints a warning and goes on: fewer connections may then work.
pub fn raise_mappings(connections: usize) -> Result<Option<Raised>> {
    let least = connections as u64 * MAPPINGS + OTHER_MAPPINGS;
    Ok(Raised::mappings(least, &Lock::acquire()?).unwrap_or_else(|e| {
        eprintln!("pd: warning: vm.max_map_count should be {least}: {e:#}");
        None
    }))
}

/// Lets this process have a descriptor for each of `connections`.
pub fn raise_descriptors(connections: usize) -> Result<()> {
    let wanted = connections as u64 + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|m| m.max(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    ensure!(
        raised.is_ok(),
        "{connections} connections need {wanted} descriptors and {} are allowed, which only CAP_SYS_RESOURCE can \
         change; raise ulimit -Hn before",
        limit.maximum.unwrap_or(u64::MAX)
    );
    Ok(())
}
