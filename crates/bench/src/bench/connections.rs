//! `connections`: one pair of containers with 1 to 65,535 connections that get messages of 1 KB in turn (Figure 12).
//! Also the memory of a connection, idle and active, and the driver's time for idle connections. PipeDevice's rings
//! have 64 KB here.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use pd_harness::machine::memory;
use pd_harness::progress;
use pd_harness::signals::Signals;

use super::stream_cell::StreamCell;
use super::{Bench, Settings};
use crate::catalogue::Scheme;
use crate::limits::raise_mappings;
use crate::row::{Metrics, Params, Row};
use crate::run::interleave::{self, Cell};
use crate::run::stand::{Memory, Stand};

const SCHEMES: [Scheme; 6] = [
    Scheme::Pipedevice,
    Scheme::PipedeviceDefault,
    Scheme::PipedeviceDirect,
    Scheme::Tcp,
    Scheme::TcpTuned,
    Scheme::Unix,
];
const MESSAGE_BYTES: usize = 1 << 10;
/// The most: a client has 65,536 sockets, and one of the receiver's listens.
const COUNTS: [usize; 8] = [1, 16, 128, 1024, 4096, 16_384, 32_768, 65_535];
const COUNTS_QUICK: [usize; 4] = [1, 128, 1024, 16_384];
/// Number of connections whose throughput normalises results, as in the paper.
const NORMAL: f64 = 128.0;
/// With fewer connections their memory is lost in that of everything else.
const MEMORY_CONNECTIONS_MIN: usize = 1024;
/// Time that connections are idle before the driver's time is measured, and length of that measurement.
const IDLE: Duration = Duration::from_secs(1);

struct ConnectionsCell {
    stream: StreamCell,
    /// Memory in use before the first connection.
    before_bytes: u64,
}

/// Returns the used memory of the whole machine: of the kernel's sockets, the programs and the driver.
fn used_bytes() -> u64 {
    let Some(memory) = memory() else { return 0 };
    let free_huge = memory.hugepages_free.unwrap_or(0) * memory.hugepagesize.unwrap_or(0);
    memory.mem_total.saturating_sub(memory.mem_available.unwrap_or(0) + free_huge)
}

impl ConnectionsCell {
    fn bytes_per_connection(&self) -> f64 {
        used_bytes().saturating_sub(self.before_bytes) as f64 / self.stream.connections as f64
    }
}

impl Cell for ConnectionsCell {
    fn scheme(&self) -> Scheme {
        self.stream.scheme
    }

    fn params(&self) -> Params {
        let mut params = self.stream.params();
        params.retain(|(name, _)| *name != "connections");
        params.push(("connections", self.stream.connections.into()));
        params
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        // Peers that had other connections before hold memory for them, or give it back just now.
        stand.end_pairs(self.stream.scheme);
        let _ = stand.pair(self.stream.scheme)?;
        self.before_bytes = used_bytes();
        self.stream.connect(stand)?;
        let mut once = Metrics::new();
        if self.stream.connections >= MEMORY_CONNECTIONS_MIN {
            once.insert("idle_bytes_per_connection", self.bytes_per_connection());
            if self.stream.scheme.has_driver() {
                once.extend(idle_driver(stand)?);
            }
        }
        self.stream.warm_up(stand)?;
        if self.stream.connections >= MEMORY_CONNECTIONS_MIN {
            once.insert("active_bytes_per_connection", self.bytes_per_connection());
        }
        Ok(once)
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        self.stream.touch(stand)?;
        self.stream.measure(stand)
    }

    fn close(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        let closed = self.stream.close(stand);
        stand.end_pairs(self.stream.scheme);
        closed
    }
}

/// Returns the driver's share of a core while there are no requests.
fn idle_driver(stand: &Stand<'_>) -> Result<Option<(&'static str, f64)>> {
    sleep(IDLE);
    let (start, before) = (Instant::now(), stand.clocks()?.driver);
    sleep(IDLE);
    let after = stand.clocks()?.driver;
    let share = |(before, after): (Duration, Duration)| {
        100.0 * after.saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64()
    };
    Ok(before.zip(after).map(|times| ("idle_driver_core_percent", share(times))))
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&SCHEMES);
    let counts = settings.pick(&COUNTS_QUICK, &COUNTS);
    let _mappings = raise_mappings(counts.iter().copied().max().unwrap_or(0))?;
    let mut stand = Stand::set_up(&schemes, Memory::MANY, &settings.engine, signals)?;
    let bar = progress::bar((counts.len() * schemes.len() * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for connections in counts {
        let cells = schemes.iter().map(|&scheme| {
            let stream =
                StreamCell { connections, ..StreamCell::of(scheme, MESSAGE_BYTES, settings.round_s) };
            let cell: Box<dyn Cell> = Box::new(ConnectionsCell { stream, before_bytes: 0 });
            cell
        });
        let name = Bench::Connections.name();
        rows.extend(interleave::run(name, cells.collect(), settings, &mut stand, &bar)?);
    }
    bar.finish_and_clear();
    normalise(&mut rows);
    Ok(rows)
}

/// Adds the throughput relative to that with 128 connections.
fn normalise(rows: &mut [Row]) {
    let normal = |scheme: &str, rows: &[Row]| {
        let row = rows.iter().find(|r| r.scheme == scheme && r.param("connections") == Some(NORMAL))?;
        row.median("throughput_gbit_per_s")
    };
    for n in 0..rows.len() {
        let Some(normal) = normal(&rows[n].scheme, rows) else { continue };
        if let Some(summary) = rows[n].metrics.get("throughput_gbit_per_s").copied() {
            rows[n].metrics.insert("throughput_normalised", summary.scaled(1.0 / normal));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn throughput_is_normalised_by_that_of_128_connections() {
        let row = |connections: u64, gbit: f64| {
            let metrics = Metrics::from([("throughput_gbit_per_s", gbit)]);
            Row::of("connections", "tcp", vec![("connections", json!(connections))], &[metrics])
        };
        let mut rows = vec![row(1, 5.0), row(128, 10.0), row(4096, 9.0)];
        normalise(&mut rows);
        let of = |n: usize| rows[n].median("throughput_normalised").unwrap();
        assert_eq!((of(0), of(1), of(2)), (0.5, 1.0, 0.9));
    }
}
