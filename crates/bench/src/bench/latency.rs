//! `latency`: a message there and back, by size (Figures 13 and 14). All waits block.

use anyhow::Result;
use pd_harness::progress;
use pd_harness::signals::Signals;
use serde_json::json;

use super::{Bench, Settings, PEERS};
use crate::protocol::Order;
use crate::row::{Metrics, Params, Row};
use crate::run::interleave::{self, Cell};
use crate::run::pair::Cores;
use crate::run::stand::{Memory, Stand};
use crate::scheme::Scheme;

const SIZES: [usize; 6] = [64, 512, 4 << 10, 16 << 10, 64 << 10, 1 << 20];
const SIZES_QUICK: [usize; 3] = [64, 4 << 10, 64 << 10];
/// Round trips of a round; the paper has 5,000 in all.
const ROUND_TRIPS: u64 = 5_000;
const ROUND_TRIPS_QUICK: u64 = 2_000;
/// Bytes that a round moves at most in each direction.
const ROUND_BYTES_MAX: u64 = 512 << 20;

struct LatencyCell {
    scheme: Scheme,
    message_bytes: usize,
    round_trips: u64,
}

impl Cell for LatencyCell {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn params(&self) -> Params {
        vec![("message_bytes", json!(self.message_bytes))]
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        stand.pair(self.scheme)?.open(self.message_bytes, 1, Cores::default(), signals)?;
        Ok(Metrics::new())
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        let messages = self.round_trips.min(ROUND_BYTES_MAX / self.message_bytes as u64);
        let order = Order { message_bytes: self.message_bytes, messages, target_gbit_per_s: None };
        let before = stand.clocks()?;
        let latency = stand.pair(self.scheme)?.ping_pong(&order, signals)?;
        let machine = stand.clocks()?.machine - before.machine;
        Ok(Metrics::from([
            ("round_trips", latency.count as f64),
            ("latency_us_mean", latency.mean_us),
            ("latency_us_p50", latency.p50_us),
            ("latency_us_p99", latency.p99_us),
            ("latency_us_p999", latency.p999_us),
            ("latency_us_worst", latency.max_us),
            ("cpu_us_per_round_trip", machine.busy_s * 1e6 / latency.count.max(1) as f64),
        ]))
    }

    fn close(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        let signals = stand.signals;
        stand.pair(self.scheme)?.close(signals)
    }
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&PEERS);
    let sizes = settings.pick(&SIZES_QUICK, &SIZES);
    let round_trips = if settings.quick { ROUND_TRIPS_QUICK } else { ROUND_TRIPS };
    let mut stand = Stand::set_up(&schemes, Memory::FEW, &settings.engine, signals)?;
    let bar = progress::bar((sizes.len() * schemes.len() * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for message_bytes in sizes {
        let cells = schemes.iter().map(|&scheme| {
            let cell: Box<dyn Cell> = Box::new(LatencyCell { scheme, message_bytes, round_trips });
            cell
        });
        let name = Bench::Latency.name();
        rows.extend(interleave::run(name, cells.collect(), settings, &mut stand, &bar)?);
    }
    bar.finish_and_clear();
    Ok(rows)
}
