//! Limits of this process that many connections need raised.

use anyhow::{ensure, Result};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

/// Descriptors beside those of connections.
const OTHERS: u64 = 256;

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
        "{connections} connections need {wanted} descriptors and {} are allowed; raise ulimit -n and \
         sysctl fs.nr_open",
        limit.maximum.unwrap_or(u64::MAX)
    );
    Ok(())
}
