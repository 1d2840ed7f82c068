//! `latency`: a message there and back, by size (Figures 13 and 14), with the CPU time of the whole machine for each.
//!
//! All waits block. PipeDevice looks and yields for a while before that, kernel sockets do not: `tcp-spin` and `unix-spin` are those
//! with the same waiting. Schemes that all people have are also placed: both ends on one core, and each on a core of its own.

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
/// Those that are placed, and the sizes with which they are.
const PLACED: [Scheme; 8] = [
    Scheme::Pipedevice,
    Scheme::PipedeviceDefault,
    Scheme::PipedeviceDirect,
    Scheme::Tcp,
    Scheme::TcpTuned,
    Scheme::TcpSpin,
    Scheme::Unix,
    Scheme::UnixSpin,
];
const SIZES_PLACED: [usize; 3] = SIZES_QUICK;
/// Round trips of a round; the paper has 5,000 in all.
const ROUND_TRIPS: u64 = 5_000;
const ROUND_TRIPS_QUICK: u64 = 2_000;
/// Bytes that a round moves at most in each direction.
const ROUND_BYTES_MAX: u64 = 512 << 20;

/// Where the two ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// Wherever the scheduler puts them.
    Free,
    /// On one core.
    One,
    /// On a core each.
    Two,
}

impl Placement {
    fn cores(self) -> Cores {
        match self {
            Placement::Free => Cores::default(),
            Placement::One => Cores { send: Some(0), recv: Some(0) },
            Placement::Two => Cores { send: Some(0), recv: Some(1) },
        }
    }
}

struct LatencyCell {
    scheme: Scheme,
    message_bytes: usize,
    placement: Placement,
    round_trips: u64,
}

impl Cell for LatencyCell {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn params(&self) -> Params {
        let mut params: Params = vec![("message_bytes", json!(self.message_bytes))];
        match self.placement {
            Placement::Free => {}
            Placement::One => params.push(("cores_of_ends", json!(1))),
            Placement::Two => params.push(("cores_of_ends", json!(2))),
        }
        params
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        stand.pair(self.scheme)?.open(self.message_bytes, 1, self.placement.cores(), signals)?;
        Ok(Metrics::new())
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        let messages = self.round_trips.min(ROUND_BYTES_MAX / self.message_bytes as u64);
        let order =
            Order { message_bytes: self.message_bytes, messages, target_gbit_per_s: None, gaps: false };
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
    let spinning = [Scheme::TcpSpin, Scheme::UnixSpin];
    let schemes = settings.among(&[&PEERS[..], &spinning[..]].concat());
    let sizes = settings.pick(&SIZES_QUICK, &SIZES);
    let round_trips = if settings.quick { ROUND_TRIPS_QUICK } else { ROUND_TRIPS };
    let mut stand = Stand::set_up(&schemes, Memory::FEW, &settings.engine, signals)?;
    let placed = settings.among(&PLACED);
    let mut groups: Vec<_> = sizes.into_iter().map(|size| (size, Placement::Free, &schemes)).collect();
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        let both = |size| [Placement::One, Placement::Two].map(|placement| (size, placement, &placed));
        groups.extend(SIZES_PLACED.into_iter().flat_map(both));
    }
    let cells: usize = groups.iter().map(|(_, _, schemes)| schemes.len()).sum();
    let bar = progress::bar((cells * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for (message_bytes, placement, schemes) in groups {
        let cells = schemes.iter().map(|&scheme| {
            let cell: Box<dyn Cell> = Box::new(LatencyCell { scheme, message_bytes, placement, round_trips });
            cell
        });
        let name = Bench::Latency.name();
        rows.extend(interleave::run(name, cells.collect(), settings, &mut stand, &bar)?);
    }
    bar.finish_and_clear();
    Ok(rows)
}
