//! `setup`: connections opened and closed per second, one after the other or many at a time, and the same with a
//! round trip of a message on each.

use anyhow::Result;
use pd_harness::progress;
use pd_harness::signals::Signals;

use super::{Bench, Settings};
use crate::catalogue::Scheme;
use crate::row::{Metrics, Params, Row};
use crate::run::interleave::{self, Cell};
use crate::run::pair;
use crate::run::stand::{Memory, Stand};

const SCHEMES: [Scheme; 8] = [
    Scheme::Pipedevice,
    Scheme::PipedeviceDefault,
    Scheme::PipedeviceDirect,
    Scheme::Preload,
    Scheme::PreloadShort,
    Scheme::Tcp,
    Scheme::TcpTuned,
    Scheme::Unix,
];
/// Bytes of each connection's message (0: none), and connections at a time.
const CASES: [(usize, usize); 6] = [(0, 1), (64, 1), (0, 16), (64, 16), (0, 64), (64, 64)];
/// Connections of a round: about a second's for TCP, and fewer than there are ports, which it keeps for a second.
const CONNECTIONS: u64 = 20_000;
const CONNECTIONS_QUICK: u64 = 5_000;

struct SetupCell {
    scheme: Scheme,
    message_bytes: usize,
    at_a_time: usize,
    connections: u64,
}

impl Cell for SetupCell {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn params(&self) -> Params {
        let message = (self.message_bytes > 0).then(|| ("message_bytes", self.message_bytes.into()));
        message.into_iter().chain([("at_a_time", self.at_a_time.into())]).collect()
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        stand.pair(self.scheme)?.set_up(
            self.connections / 10,
            self.message_bytes,
            self.at_a_time,
            signals,
        )?;
        Ok(Metrics::new())
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        let before = stand.clocks()?;
        let pair = stand.pair(self.scheme)?;
        let (opened, accepted) =
            pair.set_up(self.connections, self.message_bytes, self.at_a_time, signals)?;
        let machine = stand.clocks()?.machine - before.machine;
        let count = self.connections as f64;
        Ok(Metrics::from([
            ("connections_per_s", count / pair::seconds(&opened, &accepted)?),
            ("cpu_us_per_connection", machine.busy_s * 1e6 / count),
        ]))
    }

    fn close(&mut self, _stand: &mut Stand<'_>) -> Result<()> {
        Ok(())
    }
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&SCHEMES);
    let connections = if settings.quick { CONNECTIONS_QUICK } else { CONNECTIONS };
    let mut stand = Stand::set_up(&schemes, Memory::MANY, &settings.engine, signals)?;
    let bar = progress::bar((schemes.len() * CASES.len() * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for (message_bytes, at_a_time) in CASES {
        let cells = schemes.iter().map(|&scheme| {
            let cell: Box<dyn Cell> = Box::new(SetupCell { scheme, message_bytes, at_a_time, connections });
            cell
        });
        let name = Bench::Setup.name();
        rows.extend(interleave::run(name, cells.collect(), settings, &mut stand, &bar)?);
    }
    bar.finish_and_clear();
    Ok(rows)
}
