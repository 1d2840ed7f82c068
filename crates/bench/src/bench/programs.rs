//! `programs`: programs that know nothing of PipeDevice, with the library that puts their connections on it, beside
//! the same programs on kernel TCP over the same bridge. `tcp-preload` are programs that have the library and
//! no driver: what it costs those that stay on the kernel. `preload-short` is their mode for short connections. `tcp-tuned` has the
//! programs' own options for the kernel, too: iperf3 sends by `sendfile` (nginx always does).

use std::path::Path;

use anyhow::{Context, Result};
use pd_harness::progress;
use pd_harness::signals::Signals;
use serde_json::{json, Value};

use super::{Bench, Settings};
use crate::row::{Metrics, Params, Row};
use crate::run::interleave::{self, Cell};
use crate::run::stand::{Memory, Stand};
use crate::scheme::Scheme;

const SCHEMES: [Scheme; 7] = [
    Scheme::Pipedevice,
    Scheme::PipedeviceDefault,
    Scheme::PipedeviceDirect,
    Scheme::PreloadShort,
    Scheme::Tcp,
    Scheme::TcpTuned,
    Scheme::TcpPreload,
];
const CLIENTS: u32 = 50;
const NGINX_CONNECTIONS: u32 = 16;
/// Shorter rounds would measure how programs start and connect.
const ROUND_S_MIN: f64 = 2.0;
/// The first round, of which nothing is counted.
const WARM_UP_S: f64 = 1.0;
const WARM_UP_REQUESTS: u64 = 10_000;

/// A server, and a client that loads it.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// So many streams for a while.
    Iperf3 { streams: u32 },
    /// SET and GET of values of so many bytes, so many requests under way on each connection.
    Redis { bytes: u32, pipeline: u32 },
    /// Requests for a file of so many bytes, each on a connection of its own if so.
    Nginx { bytes: usize, short: bool },
}

const LOADS: [Load; 8] = [
    Load::Iperf3 { streams: 1 },
    Load::Iperf3 { streams: 4 },
    Load::Redis { bytes: 64, pipeline: 1 },
    Load::Redis { bytes: 64, pipeline: 16 },
    Load::Redis { bytes: 64 << 10, pipeline: 1 },
    Load::Redis { bytes: 64 << 10, pipeline: 16 },
    Load::Nginx { bytes: 1 << 20, short: false },
    Load::Nginx { bytes: 64, short: true },
];

/// One program with its arguments.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Load::Iperf3 { .. } => "iperf3",
            Load::Redis { .. } => "redis",
            Load::Nginx { .. } => "nginx",
        }
    }

    fn params(self) -> Params {
        let mut params: Params = vec![("program", json!(self.name()))];
        match self {
            Load::Iperf3 { streams } => params.push(("streams", json!(streams))),
            Load::Redis { bytes, pipeline } => {
                params.extend([("value_bytes", json!(bytes)), ("pipeline", json!(pipeline))]);
            }
            Load::Nginx { bytes, short } => {
                params.push(("file_bytes", json!(bytes)));
                params.extend(short.then_some(("keep_alive", json!(false))));
            }
        }
        params
    }

    /// Whether it is run with the scheme: the mode for short connections is for those only.
    fn suits(self, scheme: Scheme) -> bool {
        scheme != Scheme::PreloadShort || matches!(self, Load::Nginx { short: true, .. })
    }

    /// What has to be there: programs and their Debian packages.
    fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Load::Iperf3 { .. } => &[("iperf3", "iperf3")],
            Load::Redis { .. } => &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")],
            Load::Nginx { .. } => &[("nginx", "nginx-light"), ("wrk", "wrk")],
        }
    }

    /// Why it cannot run here.
    fn missing(self) -> Option<String> {
        let places = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
        let has = |program: &str| places.iter().any(|place| Path::new(place).join(program).is_file());
        let (program, package) = self.needs().iter().find(|(program, _)| !has(program))?;
        Some(format!("{program} is not installed; run: apt-get install --no-install-recommends {package}"))
    }

    fn port(self) -> u16 {
        match self {
            Load::Iperf3 { .. } => 5201,
            Load::Redis { .. } => 6379,
            Load::Nginx { .. } => 8080,
        }
    }

    /// The server's command; its files go to `dir`.
    fn server(self, dir: &Path) -> Result<Vec<String>> {
        let at = dir.display();
        Ok(words(&match self {
            Load::Iperf3 { .. } => "iperf3 --server".to_owned(),
            Load::Redis { .. } => {
                format!("redis-server --bind 0.0.0.0 --protected-mode no --appendonly no --dir {at} --save")
            }
            Load::Nginx { bytes, .. } => {
                std::fs::write(dir.join("file"), vec![b'x'; bytes])?;
                let text = format!(
                    "user root; worker_processes 1; daemon off; pid {at}/nginx.pid; error_log stderr;
                     events {{ worker_connections 512; }}
                     http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
                     client_body_temp_path {at}; proxy_temp_path {at}; fastcgi_temp_path {at};
                     uwsgi_temp_path {at}; scgi_temp_path {at};
                     server {{ listen {port}; root {at}; }} }}",
                    port = self.port()
                );
                std::fs::write(dir.join("nginx.conf"), text)?;
                format!("nginx -e stderr -c {at}/nginx.conf")
            }
        }))
    }

    /// The client's command: for about so many seconds, or so many requests.
    fn client(self, scheme: Scheme, server: &str, seconds: f64, requests: u64) -> Vec<String> {
        let seconds = seconds.ceil().max(1.0) as u64;
        words(&match self {
            Load::Iperf3 { streams } => {
                let zero_copy = if scheme == Scheme::TcpTuned { " --zerocopy" } else { "" };
                format!("iperf3 --json --client {server} --time {seconds} --parallel {streams}{zero_copy}")
            }
            Load::Redis { bytes, pipeline } => format!(
                "redis-benchmark -h {server} --csv -t set,get -c {CLIENTS} -d {bytes} -P {pipeline} -n {requests}"
            ),
            Load::Nginx { short, .. } => {
                let port = self.port();
                let load = format!("wrk -t 1 -c {NGINX_CONNECTIONS} -d {seconds} http://{server}:{port}/file");
                let header = short.then(|| ["-H".to_owned(), "Connection: close".to_owned()]);
                return words(&load).into_iter().chain(header.into_iter().flatten()).collect();
            }
        })
    }

    /// What the client has done, by what it has printed: units of work, and seconds.
    fn parse(self, text: &str, requests: u64) -> Result<Work> {
        let parsed = match self {
            Load::Iperf3 { .. } => serde_json::from_str(text).ok().and_then(|result: Value| {
                let sum = &result["end"]["sum_received"];
                Some(Work::Bytes(sum["bytes"].as_f64()?, sum["seconds"].as_f64()?))
            }),
            Load::Redis { .. } => {
                // "SET","52631.58",...: SET and GET one after the other.
                let rates: Option<Vec<f64>> = text
                    .lines()
                    .filter(|line| line.starts_with("\"SET\"") || line.starts_with("\"GET\""))
                    .map(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok())
                    .collect();
                rates.filter(|rates| rates.len() == 2).map(|rates| {
                    let seconds = rates.iter().map(|rate| requests as f64 / rate).sum();
                    Work::Requests(2.0 * requests as f64, seconds)
                })
            }
            Load::Nginx { .. } => {
                let number = |line: &str| line.split_whitespace().next()?.parse::<f64>().ok();
                let count = text.lines().find(|line| line.contains(" requests in ")).and_then(number);
                let rate = text.lines().find_map(|line| number(line.strip_prefix("Requests/sec:")?));
                let faulty = text.contains("Socket errors") || text.contains("Non-2xx");
                count.zip(rate).filter(|_| !faulty).map(|(count, rate)| Work::Requests(count, count / rate))
            }
        };
        parsed.with_context(|| format!("{} says: {text}", self.name()))
    }
}

/// So many bytes or requests, in so many seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Bytes(f64, f64),
    Requests(f64, f64),
}

struct ProgramCell {
    scheme: Scheme,
    load: Load,
    round_s: f64,
    server: String,
    requests: u64,
}

impl ProgramCell {
    fn run(&self, stand: &mut Stand<'_>, seconds: f64, requests: u64) -> Result<Work> {
        let signals = stand.signals;
        let command = self.load.client(self.scheme, &self.server, seconds, requests);
        let text = stand.pair(self.scheme)?.run_client(command, signals)?;
        self.load.parse(&text, requests)
    }
}

impl Cell for ProgramCell {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn params(&self) -> Params {
        self.load.params()
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        let dir = stand.dir().join(self.scheme.name());
        std::fs::create_dir_all(&dir)?;
        let command = self.load.server(&dir)?;
        self.server = stand.pair(self.scheme)?.start_server(command, self.load.port(), signals)?;
        self.requests = WARM_UP_REQUESTS;
        if let Work::Requests(requests, seconds) = self.run(stand, WARM_UP_S, self.requests)? {
            self.requests = (requests / seconds * self.round_s / 2.0).max(1_000.0) as u64;
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
    let suitable = |load: Load| schemes.iter().copied().filter(move |&scheme| load.suits(scheme));
    let cells = LOADS.iter().map(|&load| suitable(load).count()).sum::<usize>();
    let bar = progress::bar((cells * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for load in LOADS {
        if let Some(reason) = load.missing() {
            rows.extend(suitable(load).map(|s| Row::not_run(name, s.name(), load.params(), reason.clone())));
            continue;
        }
        let cells = suitable(load).map(|scheme| {
            let server = String::new();
            let cell: Box<dyn Cell> = Box::new(ProgramCell { scheme, load, round_s, server, requests: 0 });
            cell
        });
        rows.extend(interleave::run(name, cells.collect(), settings, &mut stand, &bar)?);
    }
    bar.finish_and_clear();
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_print_is_understood() {
        let redis = Load::Redis { bytes: 64, pipeline: 1 };
        let text = "\"test\",\"rps\"\n\"SET\",\"50000.00\",\"1\"\n\"GET\",\"100000.00\",\"1\"\n";
        assert_eq!(redis.parse(text, 1000).unwrap(), Work::Requests(2000.0, 0.03));
        assert!(redis.parse("\"SET\",\"50000.00\"\n", 1000).is_err());

        let nginx = Load::Nginx { bytes: 64, short: false };
        let text = "  2000 requests in 1.00s, 2.0GB read\nRequests/sec:   1000.00\n";
        assert_eq!(nginx.parse(text, 0).unwrap(), Work::Requests(2000.0, 2.0));
        assert!(nginx.parse(&format!("{text}  Non-2xx or 3xx responses: 7\n"), 0).is_err());

        let iperf3 = Load::Iperf3 { streams: 1 };
        let text = r#"{"end":{"sum_received":{"bytes":1000,"seconds":2.0}}}"#;
        assert_eq!(iperf3.parse(text, 0).unwrap(), Work::Bytes(1000.0, 2.0));
        assert!(iperf3.parse(r#"{"error":"refused"}"#, 0).is_err());
    }
}
