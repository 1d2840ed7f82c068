//! `setup`: connections opened and closed per second, one after the other.

use anyhow::Result;
use pd_harness::progress;
use pd_harness::signals::Signals;

use super::{Bench, Settings};
use crate::row::{Metrics, Params, Row};
use crate::run::interleave::{self, Cell};
use crate::run::pair;
use crate::run::stand::{Memory, Stand};
use crate::scheme::Scheme;

const SCHEMES: [Scheme; 4] = [Scheme::Pipedevice, Scheme::PipedeviceDirect, Scheme::Tcp, Scheme::Unix];
/// Connections of a round: fewer rounds' worth than there are ports, for TCP keeps those a minute.
const CONNECTIONS: u64 = 5_000;
const CONNECTIONS_QUICK: u64 = 2_000;

struct SetupCell {
    scheme: Scheme,
    connections: u64,
}

impl Cell for SetupCell {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn params(&self) -> Params {
        Params::new()
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        stand.pair(self.scheme)?.set_up(self.connections / 10, signals)?;
        Ok(Metrics::new())
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        let before = stand.clocks()?;
        let (opened, accepted) = stand.pair(self.scheme)?.set_up(self.connections, signals)?;
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
    let mut stand = Stand::set_up(&schemes, Memory::FEW, &settings.engine, signals)?;
    let bar = progress::bar((schemes.len() * (settings.rounds + 1)) as u64);
    let cells = schemes.iter().map(|&scheme| {
        let cell: Box<dyn Cell> = Box::new(SetupCell { scheme, connections });
        cell
    });
    let rows = interleave::run(Bench::Setup.name(), cells.collect(), settings.rounds, &mut stand, &bar)?;
    bar.finish_and_clear();
    Ok(rows)
}
