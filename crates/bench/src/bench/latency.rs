//! `latency`: a message there and back, by size (Figures 13 and 14), with the CPU time of the whole machine for each.
//!
//! First, schemes wait in their shipped ways: PipeDevice spins for a while before it sleeps, kernel sockets sleep at once. Then all block,
//! and then all spin alike. Each is measured with both ends on one core, on a core each, on one core with the driver, and where the
//! scheduler puts them.

use anyhow::Result;
use pd_harness::progress;
use pd_harness::signals::Signals;
use serde_json::json;

use super::{Bench, Settings};
use crate::catalogue::{Conditions, Placement, Scheme, Waiting, PEERS};
use crate::protocol::Order;
use crate::row::{Metrics, Params, Row};
use crate::run::interleave::{self, Cell};
use crate::run::stand::{Memory, Stand};

const SIZES: [usize; 6] = [64, 512, 4 << 10, 16 << 10, 64 << 10, 1 << 20];
const SIZES_QUICK: [usize; 3] = [64, 4 << 10, 64 << 10];
/// The sizes with which ends are placed, and with which all block or spin.
const SIZES_PLACED: [usize; 2] = [64, 64 << 10];
/// Round trips by which the time of one is estimated.
const PROBE: u64 = 200;
/// Part of a usual round: it has enough round trips.
const ROUND: f64 = 0.5;

struct LatencyCell {
    scheme: Scheme,
    message_bytes: usize,
    placement: Placement,
    under: Conditions,
    round_s: f64,
    round_trips: u64,
}

impl LatencyCell {
    fn order(&self, messages: u64) -> Order {
        Order::of(self.message_bytes, messages)
    }
}

impl Cell for LatencyCell {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn params(&self) -> Params {
        let size = [("message_bytes", json!(self.message_bytes))];
        size.into_iter().chain(self.placement.params()).chain(self.under.params()).collect()
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let (signals, order) = (stand.signals, self.order(PROBE));
        let pair = stand.pair(self.scheme)?;
        pair.open(self.message_bytes, 1, self.placement.cores(), signals)?;
        let probe = pair.ping_pong(&order, signals)?;
        self.round_trips = ((self.round_s * 1e6 / probe.mean_us.max(0.1)) as u64).max(PROBE);
        Ok(Metrics::new())
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        let before = stand.clocks()?;
        let latency = stand.pair(self.scheme)?.ping_pong(&self.order(self.round_trips), signals)?;
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
        stand.pair(self.scheme)?.close(signals)?;
        if self.placement != Placement::Free {
            // Peers that are on a core stay there.
            stand.end_pairs(self.scheme);
        }
        Ok(())
    }
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&PEERS);
    let sizes = settings.pick(&SIZES_QUICK, &SIZES);
    let mut rows = Vec::new();
    for waiting in [Waiting::Shipped, Waiting::Blocks, Waiting::Spins] {
        let under = Conditions { waiting, ..Conditions::default() };
        let mut stand = Stand::set_up_under(under, &schemes, Memory::FEW, &settings.engine, signals)?;
        let sizes_of = |placement| match (placement, waiting) {
            (Placement::Free, Waiting::Shipped) => sizes.clone(),
            _ => SIZES_PLACED.to_vec(),
        };
        let all = Placement::of_ends().into_iter().chain([Placement::All]);
        let groups: Vec<_> =
            all.flat_map(|at| sizes_of(at).into_iter().map(move |size| (size, at))).collect();
        let bar = progress::bar((groups.len() * schemes.len() * (settings.rounds + 1)) as u64);
        for (message_bytes, placement) in groups {
            stand.place_driver(placement.driver_core())?;
            let cells = schemes.iter().map(|&scheme| {
                let round_s = settings.round_s * ROUND;
                let cell: Box<dyn Cell> = Box::new(LatencyCell {
                    scheme,
                    message_bytes,
                    placement,
                    under,
                    round_s,
                    round_trips: 0,
                });
                cell
            });
            let name = Bench::Latency.name();
            rows.extend(interleave::run(name, cells.collect(), settings, &mut stand, &bar)?);
        }
        bar.finish_and_clear();
    }
    Ok(rows)
}
