//! `programs`: unmodified programs with the library that moves their connections to PipeDevice, beside the same programs on kernel
//! TCP over the same bridge. `tcp-preload` has the library and no driver: its cost for programs that stay on the kernel.
//! `preload-short` is the mode for short connections. `tcp-tuned` also has the programs' own options for the kernel: iperf3 sends
//! by `sendfile` (nginx always does).

mod databases;
mod iperf3;
mod python;
mod redis;
mod web;

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pd_harness::progress;
use pd_harness::signals::Signals;
use serde_json::json;

use super::{Bench, Settings};
use crate::catalogue::Scheme;
use crate::row::{Metrics, Params, Row};
use crate::run::interleave::{self, Cell};
use crate::run::stand::{Memory, Stand};

const SCHEMES: [Scheme; 7] = [
    Scheme::Pipedevice,
    Scheme::PipedeviceDefault,
    Scheme::PipedeviceDirect,
    Scheme::PreloadShort,
    Scheme::Tcp,
    Scheme::TcpTuned,
    Scheme::TcpPreload,
];
/// Shorter rounds would measure how programs start and connect.
const ROUND_S_MIN: f64 = 2.0;
/// The first round, of which nothing is counted.
const WARM_UP_S: f64 = 1.0;
const WARM_UP_REQUESTS: u64 = 10_000;
/// Most runs that find the number of requests of a round: a short one tells the rate of the start.
const WARM_UPS: u32 = 3;
/// Time within which a server that listens also answers, and between two attempts.
const SERVER_STARTS_WITHIN: Duration = Duration::from_secs(20);
const SET_UP_AGAIN: Duration = Duration::from_millis(200);

/// Returns all loads.
fn loads() -> Vec<Rc<dyn Load>> {
    let redis = |bytes, pipeline, connections| redis::Redis { bytes, pipeline, connections };
    let pgbench = |clients, unix| databases::Postgresql { clients, unix };
    vec![
        Rc::new(iperf3::Iperf3 { streams: 1 }),
        Rc::new(iperf3::Iperf3 { streams: 4 }),
        Rc::new(iperf3::Iperf3 { streams: 16 }),
        Rc::new(redis(64, 1, 50)),
        Rc::new(redis(64, 16, 50)),
        Rc::new(redis(64 << 10, 1, 50)),
        Rc::new(redis(64 << 10, 16, 50)),
        Rc::new(redis(64, 1, 500)),
        Rc::new(web::Web::Hyper { connections: 64 }),
        Rc::new(web::Web::Nginx { bytes: 1 << 20, short: false }),
        Rc::new(web::Web::Nginx { bytes: 64, short: true }),
        Rc::new(web::Web::Haproxy { bytes: 1 << 20, splices: true }),
        Rc::new(web::Web::Haproxy { bytes: 1 << 20, splices: false }),
        Rc::new(python::Python::GRPC_STREAM),
        Rc::new(python::Python::GRPC_UNARY),
        Rc::new(python::Python::UVLOOP),
        Rc::new(python::Python::gloo(2)),
        Rc::new(python::Python::gloo(4)),
        Rc::new(pgbench(8, false)),
        Rc::new(pgbench(32, false)),
        Rc::new(pgbench(8, true)),
        Rc::new(databases::Mariadb { threads: 16 }),
    ]
}

/// A server, and a client that loads it.
trait Load {
    /// Returns the program's name.
    fn name(&self) -> &'static str;

    /// Parameters that tell this load from others of the program.
    fn params(&self) -> Params;

    /// Tells whether the load is run with the scheme: the mode for short connections is for those only.
    fn suits(&self, scheme: Scheme) -> bool {
        scheme != Scheme::PreloadShort
    }

    /// Programs, or paths of files, that have to be there, and their Debian packages.
    fn needs(&self) -> &'static [(&'static str, &'static str)];

    /// Returns other missing things, and how to get them.
    fn lacks(&self) -> Option<&'static str> {
        None
    }

    /// Returns the server's TCP port.
    fn port(&self) -> u16;

    /// Returns the server's command. The server's files go to `dir`.
    fn server(&self, dir: &Path) -> Result<Vec<String>>;

    /// Returns a client's command that is run once before the others, if any.
    fn set_up(&self, _server: &str, _dir: &Path) -> Option<Vec<String>> {
        None
    }

    /// Returns the client's command, for about `seconds` or `requests`. `dir`: the folder of the server's files.
    fn client(&self, scheme: Scheme, server: &str, dir: &Path, seconds: f64, requests: u64) -> Vec<String>;

    /// Returns the work that the client has done, from its output.
    fn parse(&self, text: &str, requests: u64) -> Option<Work>;
}

/// Splits a program with its arguments.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Folders of Debian's programs.
const PLACES: [&str; 4] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];

/// Returns the reason why a load cannot run here.
fn missing(load: &dyn Load) -> Option<String> {
    let has = |program: &str| PLACES.iter().any(|place| Path::new(place).join(program).exists());
    if let Some(lacks) = load.lacks() {
        return Some(lacks.to_owned());
    }
    let (program, package) = load.needs().iter().find(|(program, _)| !has(program))?;
    Some(format!("{program} is not installed; run: apt-get install --no-install-recommends {package}"))
}

/// Returns the program's name and the parameters of the load.
fn params(load: &dyn Load) -> Params {
    [("program", json!(load.name()))].into_iter().chain(load.params()).collect()
}

/// Bytes or requests, and their seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Bytes(f64, f64),
    Requests(f64, f64),
}

struct ProgramCell {
    scheme: Scheme,
    load: Rc<dyn Load>,
    round_s: f64,
    server: String,
    requests: u64,
}

impl ProgramCell {
    fn run(&self, stand: &mut Stand<'_>, seconds: f64, requests: u64) -> Result<Work> {
        let signals = stand.signals;
        let dir = stand.dir().join(self.scheme.name());
        let command = self.load.client(self.scheme, &self.server, &dir, seconds, requests);
        let text = stand.pair(self.scheme)?.run_client(command, signals)?;
        let work = self.load.parse(&text, requests);
        work.with_context(|| format!("{} says: {text}", self.load.name()))
    }
}

impl Cell for ProgramCell {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn params(&self) -> Params {
        params(self.load.as_ref())
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        let dir = stand.dir().join(self.scheme.name());
        std::fs::create_dir_all(&dir)?;
        let command = self.load.server(&dir)?;
        self.server = stand.pair(self.scheme)?.start_server(command, self.load.port(), signals)?;
        if let Some(command) = self.load.set_up(&self.server, &dir) {
            let pair = stand.pair(self.scheme)?;
            let until = Instant::now() + SERVER_STARTS_WITHIN;
            // A server that listens may still refuse: PostgreSQL recovers first, and makes its socket file after its port.
            while let Err(error) = pair.run_client(command.clone(), signals) {
                signals.check()?;
                if Instant::now() > until {
                    return Err(error);
                }
                std::thread::sleep(SET_UP_AGAIN);
            }
        }
        self.requests = WARM_UP_REQUESTS;
        for _ in 0..WARM_UPS {
            let Work::Requests(requests, seconds) = self.run(stand, WARM_UP_S, self.requests)? else { break };
            self.requests = (requests / seconds * self.round_s / 2.0).max(1_000.0) as u64;
            if seconds >= WARM_UP_S / 2.0 {
                break;
            }
        }
        Ok(Metrics::new())
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let before = stand.clocks()?;
        let work = self.run(stand, self.round_s, self.requests)?;
        let after = stand.clocks()?;
        let machine = after.machine - before.machine;
        let driver = after.driver.zip(before.driver).map(|(after, before)| (after - before).as_secs_f64());
        let driver = driver.filter(|_| self.scheme.has_driver()).unwrap_or(0.0);
        Ok(match work {
            Work::Bytes(bytes, seconds) => Metrics::from([
                ("throughput_gbit_per_s", bytes * 8e-9 / seconds),
                ("cpu_s_per_gb", machine.busy_s / bytes * 1e9),
                ("driver_s_per_gb", driver / bytes * 1e9),
            ]),
            Work::Requests(requests, seconds) => Metrics::from([
                ("requests_per_s", requests / seconds),
                ("cpu_us_per_request", machine.busy_s * 1e6 / requests),
                ("driver_us_per_request", driver * 1e6 / requests),
            ]),
        })
    }

    fn close(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        let signals = stand.signals;
        stand.pair(self.scheme)?.close(signals)
    }
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&SCHEMES);
    let (name, round_s) = (Bench::Programs.name(), settings.round_s.max(ROUND_S_MIN));
    let mut stand = Stand::set_up(&schemes, Memory::PROGRAMS, &settings.engine, signals)?;
    let loads = loads();
    let suitable = |load: &dyn Load| -> Vec<Scheme> {
        schemes.iter().copied().filter(|&scheme| load.suits(scheme)).collect()
    };
    let cells = loads.iter().map(|load| suitable(load.as_ref()).len()).sum::<usize>();
    let bar = progress::bar((cells * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for load in &loads {
        let schemes = suitable(load.as_ref());
        if let Some(reason) = missing(load.as_ref()) {
            rows.extend(
                schemes.iter().map(|s| Row::not_run(name, s.name(), params(load.as_ref()), reason.clone())),
            );
            continue;
        }
        let cells = schemes.into_iter().map(|scheme| {
            let server = String::new();
            let load = Rc::clone(load);
            let cell: Box<dyn Cell> = Box::new(ProgramCell { scheme, load, round_s, server, requests: 0 });
            cell
        });
        rows.extend(interleave::run(name, cells.collect(), settings, &mut stand, &bar)?);
    }
    bar.finish_and_clear();
    Ok(rows)
}
