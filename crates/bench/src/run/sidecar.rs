//! A proxy that a rule leads connections through, in a container of its own tenant, as `pd bench` sees it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Result};
use pd_driver::admin::{Answer, Ask};
use pd_harness::driver::ChildDriver;
use pd_harness::peer::Peer;
use pd_harness::signals::Signals;

use super::pair;
use crate::catalogue::{Scheme, Waiting};
use crate::protocol::{Reply, Request};

/// The tenant of proxies. Policies list their containers.
pub const TENANT: &str = "bench-proxy";
/// Longest time until the driver sees a listener.
const SEEN: Duration = Duration::from_secs(10);

/// A proxy. Dropping it kills it.
pub struct Sidecar {
    _peer: Peer,
}

impl Sidecar {
    /// Starts `command` in a container called `name`, as programs of `scheme` are run. Returns once it listens on `port`.
    pub fn start(
        scheme: Scheme,
        name: &str,
        dir: &Path,
        (command, port): (Vec<String>, u16),
        signals: &Signals,
    ) -> Result<Sidecar> {
        let spec = pair::spec(TENANT, name.to_owned(), dir, &scheme.tcp());
        let mut peer = Peer::in_container(&spec, pair::command(dir, Waiting::Shipped))?;
        peer.ask(&Request::Serve { scheme, command, port })?;
        match peer.answer(signals)? {
            Reply::At { .. } => Ok(Sidecar { _peer: peer }),
            other => bail!("a peer answered {other:?}"),
        }
    }

    /// Waits until connections are led through the container called `name`.
    pub fn wait(driver: &ChildDriver, name: &str, signals: &Signals) -> Result<()> {
        let (until, proxy) = (Instant::now() + SEEN, format!("container:{name}:"));
        loop {
            let Answer::Policy(policy) = driver.ask(&Ask::Policy)? else {
                bail!("the driver said nothing of its policy")
            };
            let mut own = policy.sidecars.iter().flat_map(|rule| &rule.proxies);
            if own.any(|own| own.proxy.starts_with(&proxy) && own.on_kernel) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "no connection is led through {name}: {:?}", policy.sidecars);
            signals.check()?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
