//! `memory`: computed bytes that a fabric needs for n containers with m active sockets each. Also the
//! measured memory of PipeDevice's pool for sockets that are all active (section V-A2).
//!
//! The comparison is with regions that are shared pairwise: each socket's ring is fixed memory of its
//! pair. PipeDevice takes rings from one pool when bytes come, and takes idle ones back.

use anyhow::{bail, Result};
use pd_driver::admin::{Answer, Ask};
use pd_harness::progress;
use pd_harness::signals::Signals;
use serde_json::json;

use super::{Bench, Settings};
use crate::catalogue::{Cores, Scheme};
use crate::protocol::Order;
use crate::row::{Metrics, Params, Row};
use crate::run::stand::{Memory, Stand};

/// The paper's: a ring, sockets of a container, its pool.
const RING_BYTES: u64 = 4 << 20;
const SOCKETS: u64 = 512;
const POOL_BYTES: u64 = 4 << 30;
const CONTAINERS: [u64; 6] = [2, 4, 8, 16, 32, 64];
/// Measured: pairs of containers, and connections of each.
const PAIRS: usize = 4;
const PAIRS_QUICK: usize = 2;
const CONNECTIONS: usize = 128;
const MESSAGE_BYTES: usize = 64 << 10;

/// Returns the bytes for `containers` with `sockets` each, if every connection of a pair has a ring of its
/// own in each direction. A container has `sockets` rings, and a pair shares one region.
fn pairwise_bytes(containers: u64, sockets: u64) -> u64 {
    containers / 2 * sockets * RING_BYTES
}

fn computed() -> Vec<Row> {
    let mut rows = Vec::new();
    for containers in CONTAINERS {
        let params = || -> Params { vec![("containers", json!(containers)), ("sockets", json!(SOCKETS))] };
        for (scheme, bytes) in [
            ("pairwise-computed", pairwise_bytes(containers, SOCKETS)),
            ("pipedevice-computed", POOL_BYTES.min(pairwise_bytes(containers, SOCKETS))),
        ] {
            let metrics = Metrics::from([("memory_bytes", bytes as f64)]);
            rows.push(Row::of(Bench::Memory.name(), scheme, params(), &[metrics]));
        }
    }
    rows
}

fn used(stand: &Stand<'_>) -> Result<f64> {
    match stand.driver()?.ask(&Ask::List)? {
        Answer::Report(report) => Ok(report.memory_used_bytes as f64),
        other => bail!("the driver answered {other:?}"),
    }
}

fn measured(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let pairs = if settings.quick { PAIRS_QUICK } else { PAIRS };
    let memory = Memory { budget_bytes: 1 << 30, ring_bytes: RING_BYTES };
    let mut stand = Stand::set_up(&[Scheme::Pipedevice], memory, &settings.engine, signals)?;
    let bar = progress::bar(pairs as u64);
    let mut rows = Vec::new();
    for pair in 0..pairs {
        bar.set_message(format!("memory: {} containers", 2 * (pair + 1)));
        let peers = stand.pair_of(Scheme::Pipedevice, pair)?;
        peers.open(MESSAGE_BYTES, CONNECTIONS, Cores::default(), signals)?;
        let idle = used(&stand)?;
        for number in 0..=pair {
            let order = Order::of(MESSAGE_BYTES, 4 * CONNECTIONS as u64);
            stand.pair_of(Scheme::Pipedevice, number)?.stream(&order, signals)?;
        }
        let (containers, sockets) = (2 * (pair as u64 + 1), CONNECTIONS as u64);
        let metrics = Metrics::from([
            ("memory_bytes_idle", idle),
            ("memory_bytes", used(&stand)?),
            ("memory_bytes_pairwise", pairwise_bytes(containers, sockets) as f64),
        ]);
        let params: Params = vec![("containers", json!(containers)), ("sockets", json!(sockets))];
        rows.push(Row::of(Bench::Memory.name(), "pipedevice", params, &[metrics]));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let mut rows = computed();
    if settings.among(&[Scheme::Pipedevice]).is_empty() {
        return Ok(rows);
    }
    rows.extend(measured(settings, signals)?);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_example_needs_32_gb_pairwise() {
        assert_eq!(pairwise_bytes(32, 512), 32 << 30);
        assert_eq!(pairwise_bytes(32, 512) / POOL_BYTES, 8);
    }
}
