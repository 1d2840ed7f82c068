//! `sidecar`: the cost of a proxy between client and server, on kernel TCP and on the fabric, compared with the same without one.
//!
//! Server and client are those of [`crate::web`], a thread each; connections stay open and have one request under way. On kernel TCP the proxy lives in the
//! client's network namespace, and rules of nftables redirect connections to it, as service meshes do. On the fabric it has a container of its own, and a rule of the
//! policy leads connections through it (`via`). Every answer says which proxy it has passed, and its bytes are checked.

mod proxy;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{bail, Context, Result};
use pd_driver::admin::{Answer, Ask};
use pd_harness::measure::stats::Summary;
use pd_harness::signals::Signals;
use pd_harness::{own_exe, progress};
use serde_json::json;

use self::proxy::{Lead, Proxy, ENTRANCE};
use super::{with_misses, Bench, Settings};
use crate::catalogue::Scheme;
use crate::row::{Metrics, Params, Row};
use crate::run::interleave::{self, Cell};
use crate::run::pair;
use crate::run::sidecar::Sidecar;
use crate::run::stand::{Memory, Stand};
use crate::web::{Load, Loaded};

const SCHEMES: [Scheme; 4] = [Scheme::PipedeviceDefault, Scheme::Pipedevice, Scheme::Tcp, Scheme::TcpTuned];
/// Bytes of an answer's body.
const SIZES: [usize; 3] = [1 << 10, 64 << 10, 1 << 20];
const CONNECTIONS: [usize; 2] = [8, 64];
const CONNECTIONS_QUICK: [usize; 1] = [8];
/// The part of a round before it, of which nothing is counted.
const WARM_UP: f64 = 0.3;
/// The ports of servers without a proxy; those behind one have the next ones.
const PORT: u16 = 8080;
/// Requests per second beside kernel TCP without a proxy, and beside kernel TCP with this proxy; CPU time of a request beside the latter.
const BARS: [(&str, f64, Bar); 4] = [
    ("over_tcp_without_proxy", 1.0, Bar::AtLeast),
    ("gain_over_tcp", 2.5, Bar::AtLeast),
    ("p99_over_tcp", 1.0, Bar::AtMost),
    ("cpu_over_tcp", 0.5, Bar::AtMost),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bar {
    AtLeast,
    AtMost,
}

/// Figures of rounds, by scheme, proxy and the round's number.
type Kept = Rc<RefCell<BTreeMap<(Scheme, Option<&'static str>, usize), Metrics>>>;

struct SidecarCell {
    scheme: Scheme,
    proxy: Option<Proxy>,
    answer_bytes: usize,
    connections: usize,
    round_s: f64,
    address: String,
    sidecar: Option<Sidecar>,
    last: Metrics,
    kept: Kept,
}

/// Returns the number of a pair of its own: cells of one scheme are open at the same time.
fn pair_number(proxy: Option<Proxy>) -> usize {
    1 + proxy.map_or(0, |proxy| 1 + proxy as usize)
}

/// Returns a server's port, by which rules tell schemes and proxies apart.
fn port(scheme: Scheme, proxy: Option<Proxy>) -> u16 {
    let place = SCHEMES.iter().position(|own| *own == scheme).unwrap_or_default();
    PORT + 10 * place as u16 + pair_number(proxy) as u16
}

/// Returns the name of a proxy's container.
fn container(scheme: Scheme, proxy: Proxy) -> String {
    format!("bench-{}-{}-{}", std::process::id(), scheme.name(), proxy.name())
}

/// Returns the command of this program as client or server of [`crate::web`].
fn program(words: Vec<String>) -> Vec<String> {
    [own_exe().display().to_string()].into_iter().chain(words).collect()
}

/// Bytes that the fabric has moved so far.
fn fabric_bytes(stand: &Stand<'_>) -> Result<f64> {
    let Answer::Report(report) = stand.driver()?.ask(&Ask::List)? else {
        bail!("the driver said nothing of its connections")
    };
    let of = |name: &str| report.metrics.get(name).copied().unwrap_or_default() as f64;
    Ok(of("bytes_delivered") + of("bytes_reported"))
}

impl SidecarCell {
    fn dir(&self, stand: &Stand<'_>) -> PathBuf {
        stand.dir().join(format!("{}-{}", self.scheme.name(), pair_number(self.proxy)))
    }

    fn start_proxy(&mut self, proxy: Proxy, stand: &mut Stand<'_>) -> Result<()> {
        let (signals, dir, port) = (stand.signals, self.dir(stand), port(self.scheme, self.proxy));
        let command = proxy.configure(&dir, &format!("{}:{port}", self.address))?;
        if self.scheme.has_driver() {
            let name = container(self.scheme, proxy);
            let sidecar = Sidecar::start(self.scheme, &name, stand.dir(), (command, ENTRANCE), signals)?;
            self.sidecar = Some(sidecar);
            return Sidecar::wait(stand.driver()?, &name, signals);
        }
        let rules = proxy::redirect(&dir, port)?;
        let pair = stand.pair_of(self.scheme, pair_number(self.proxy))?;
        pair.start_beside_client(command, ENTRANCE, signals)?;
        pair.run_client(rules, signals)?;
        Ok(())
    }

    fn load(&self, stand: &mut Stand<'_>, seconds: f64) -> Result<Loaded> {
        let load = Load {
            address: self.address.parse().with_context(|| format!("'{}' is no address", self.address))?,
            port: port(self.scheme, self.proxy),
            bytes: self.answer_bytes,
            connections: self.connections,
            warm_up_ms: (seconds * WARM_UP * 1e3) as u64,
            ms: (seconds * 1e3) as u64,
            proxy: self.proxy.map(|proxy| proxy.name().to_owned()),
        };
        let signals = stand.signals;
        let pair = stand.pair_of(self.scheme, pair_number(self.proxy))?;
        let text = pair.run_client(program(load.words()), signals)?;
        serde_json::from_str(&text).with_context(|| format!("the client says: {text}"))
    }
}

impl Cell for SidecarCell {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn pair(&self) -> Option<usize> {
        Some(pair_number(self.proxy))
    }

    fn params(&self) -> Params {
        params(self.answer_bytes, self.connections, self.proxy)
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let (signals, port) = (stand.signals, port(self.scheme, self.proxy));
        std::fs::create_dir_all(self.dir(stand))?;
        let server = ["internal-bench-web", "server", "--port", &port.to_string()].map(str::to_owned);
        let pair = stand.pair_of(self.scheme, pair_number(self.proxy))?;
        self.address = pair.start_server(program(server.into()), port, signals)?;
        if let Some(proxy) = self.proxy {
            self.start_proxy(proxy, stand)?;
        }
        Ok(Metrics::new())
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let before = if self.scheme.has_driver() { Some(fabric_bytes(stand)?) } else { None };
        let loaded = self.load(stand, self.round_s)?;
        self.last = Metrics::from([
            ("requests_per_s", loaded.requests as f64 / loaded.seconds),
            ("latency_us_p50", loaded.p50_us),
            ("latency_us_p99", loaded.p99_us),
            ("cpu_us_per_request", loaded.busy_s * 1e6 / loaded.requests as f64),
        ]);
        if let Some(before) = before {
            let legs = if self.proxy.is_some() { 2.0 } else { 1.0 };
            let bytes = legs * loaded.requests_all as f64 * self.answer_bytes as f64;
            let share = ((fabric_bytes(stand)? - before) / bytes).min(1.0);
            self.last.insert("fabric_share", share);
        }
        Ok(self.last.clone())
    }

    fn keep(&mut self, round: usize) {
        let proxy = self.proxy.map(Proxy::name);
        self.kept.borrow_mut().insert((self.scheme, proxy, round), self.last.clone());
    }

    fn close(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        self.sidecar = None;
        // The kernel's rules end with the network namespace.
        stand.end_pair(self.scheme, pair_number(self.proxy));
        Ok(())
    }
}

fn params(answer_bytes: usize, connections: usize, proxy: Option<Proxy>) -> Params {
    vec![
        ("answer_bytes", json!(answer_bytes)),
        ("connections", json!(connections)),
        ("proxy", json!(proxy.map_or("none", Proxy::name))),
    ]
}

/// Rules for all proxies on the fabric.
fn leads(schemes: &[Scheme]) -> Vec<Lead> {
    let fabric = schemes.iter().copied().filter(|scheme| scheme.has_driver());
    let of = |scheme| {
        Proxy::ALL.map(|proxy| Lead {
            tenant: pair::tenant(scheme),
            port: port(scheme, Some(proxy)),
            container: container(scheme, proxy),
            is_offloaded: scheme == Scheme::Pipedevice,
        })
    };
    fabric.flat_map(of).collect()
}

/// Returns the reason why a proxy cannot run with a scheme here.
fn missing(scheme: Scheme, proxy: Proxy) -> Option<String> {
    let has = |program: &str| {
        ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"]
            .iter()
            .any(|place| Path::new(place).join(program).exists())
    };
    let nft = ("nft", "nftables");
    let needs = [Some(proxy.program()), Some(nft).filter(|_| !scheme.has_driver())];
    let (program, package) = needs.into_iter().flatten().find(|(program, _)| !has(program))?;
    Some(format!("{program} is not installed; run: apt-get install --no-install-recommends {package}"))
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&SCHEMES);
    let name = Bench::Sidecar.name();
    if schemes.is_empty() {
        return Ok(Vec::new());
    }
    let mut stand = Stand::set_up(&schemes, Memory::PROGRAMS, &settings.engine, signals)?;
    // Proxies drop their privileges, and have to reach the driver then.
    std::fs::set_permissions(stand.dir(), Permissions::from_mode(0o711))?;
    if schemes.iter().any(|scheme| scheme.has_driver()) {
        stand.lead(&proxy::policy(&leads(&schemes)))?;
    }
    let connections = settings.pick(&CONNECTIONS_QUICK, &CONNECTIONS);
    let proxies: Vec<Option<Proxy>> = [None].into_iter().chain(Proxy::ALL.map(Some)).collect();
    let cells = SIZES.len() * connections.len() * schemes.len() * proxies.len();
    let bar = progress::bar((cells * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for answer_bytes in SIZES {
        for &connections in &connections {
            let kept = Kept::default();
            let mut cells: Vec<Box<dyn Cell>> = Vec::new();
            for &proxy in &proxies {
                for &scheme in &schemes {
                    if let Some(reason) = proxy.and_then(|proxy| missing(scheme, proxy)) {
                        let params = params(answer_bytes, connections, proxy);
                        rows.push(Row::not_run(name, scheme.name(), params, reason));
                        continue;
                    }
                    cells.push(Box::new(SidecarCell {
                        scheme,
                        proxy,
                        answer_bytes,
                        connections,
                        round_s: settings.round_s,
                        address: String::new(),
                        sidecar: None,
                        last: Metrics::new(),
                        kept: Rc::clone(&kept),
                    }));
                }
            }
            let mut found = interleave::run(name, cells, settings, &mut stand, &bar)?;
            compare(&mut found, &kept, settings.rounds);
            rows.extend(found);
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Returns the better kernel TCP with one proxy, or with none.
fn better_tcp(rows: &[Row], proxy: &str) -> Option<Scheme> {
    let rate = |scheme: &Scheme| {
        let own = |row: &&Row| row.scheme == scheme.name() && proxy_of(row) == Some(proxy);
        rows.iter().find(own)?.median("requests_per_s")
    };
    let all = SCHEMES.into_iter().filter(|scheme| scheme.is_baseline() && rate(scheme).is_some());
    all.max_by(|a, b| rate(a).unwrap_or(0.0).total_cmp(&rate(b).unwrap_or(0.0)))
}

fn proxy_of(row: &Row) -> Option<&str> {
    row.params.iter().find(|(name, _)| *name == "proxy")?.1.as_str()
}

/// Adds ratios to kernel TCP without a proxy, and of P99 to kernel TCP with the same one, round by round.
fn compare(rows: &mut [Row], kept: &Kept, rounds: usize) {
    let kept = kept.borrow();
    let bare = better_tcp(rows, "none");
    let same: Vec<Option<Scheme>> =
        rows.iter().map(|row| proxy_of(row).and_then(|proxy| better_tcp(rows, proxy))).collect();
    for (row, same) in rows.iter_mut().zip(same) {
        let Some(proxy) = proxy_of(row).map(str::to_owned) else { continue };
        let Some(scheme) = SCHEMES.into_iter().find(|scheme| scheme.name() == row.scheme) else { continue };
        let named = Proxy::ALL.map(Proxy::name).into_iter().find(|own| *own == proxy);
        for (ratio, figure, over) in [
            ("over_tcp_without_proxy", "requests_per_s", bare.map(|scheme| (scheme, None))),
            ("cpu_over_tcp_without_proxy", "cpu_us_per_request", bare.map(|scheme| (scheme, None))),
            ("p99_over_tcp", "latency_us_p99", same.map(|scheme| (scheme, named))),
        ] {
            let Some((other, other_proxy)) = over else { continue };
            let of_round = |round| {
                let own = kept.get(&(scheme, named, round))?.get(figure)?;
                Some(
                    own / kept
                        .get(&(other, other_proxy, round))?
                        .get(figure)
                        .filter(|value| **value > 0.0)?,
                )
            };
            let summary = Summary::of((1..=rounds).filter_map(of_round));
            row.metrics.extend(summary.filter(|_| row.not_run.is_none()).map(|summary| (ratio, summary)));
        }
    }
}

/// Bars that a row's medians miss; empty if none.
fn misses(row: &Row) -> Vec<String> {
    let is_fabric = row.scheme == Scheme::PipedeviceDefault.name() || row.scheme == Scheme::Pipedevice.name();
    if !is_fabric || proxy_of(row) == Some("none") {
        return Vec::new();
    }
    let missed = |(name, bar, kind): (&str, f64, Bar)| {
        let value = row.median(name)?;
        let is_missed = if kind == Bar::AtLeast { value < bar } else { value > bar };
        is_missed.then(|| format!("{name} {value:.2} of {bar}"))
    };
    BARS.into_iter().filter_map(missed).collect()
}

/// Returns the bars, and the rows that miss one, as text.
pub fn verdict(rows: &[&Row]) -> String {
    let bars = "bars with a proxy on the fabric: the requests/s of kernel TCP without a proxy, 2.5 times those of kernel TCP with the same one, no higher \
                    P99 than that, and half of its CPU time a request"
        .to_owned();
    with_misses(bars, rows, misses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scheme: Scheme, proxy: Option<Proxy>, rates: &[f64], kept: &Kept) -> Row {
        let rounds: Vec<Metrics> = rates
            .iter()
            .map(|rate| {
                Metrics::from([
                    ("requests_per_s", *rate),
                    ("latency_us_p99", 1e6 / rate),
                    ("cpu_us_per_request", 2e6 / rate),
                ])
            })
            .collect();
        for (round, metrics) in (1..).zip(&rounds) {
            kept.borrow_mut().insert((scheme, proxy.map(Proxy::name), round), metrics.clone());
        }
        Row::of("sidecar", scheme.name(), params(1024, 8, proxy), &rounds)
    }

    #[test]
    fn rows_are_compared_with_tcp_without_a_proxy_and_with_the_same_one() {
        let kept = Kept::default();
        let proxy = Some(Proxy::Nginx);
        let mut rows = [
            row(Scheme::Tcp, None, &[100.0, 50.0], &kept),
            row(Scheme::TcpTuned, None, &[10.0, 10.0], &kept),
            row(Scheme::Tcp, proxy, &[20.0, 10.0], &kept),
            row(Scheme::PipedeviceDefault, proxy, &[80.0, 40.0], &kept),
        ];
        compare(&mut rows, &kept, 2);
        let own = &rows[3];
        assert_eq!(own.median("over_tcp_without_proxy"), Some(0.8));
        assert_eq!(own.median("cpu_over_tcp_without_proxy"), Some(1.25));
        assert_eq!(own.median("p99_over_tcp"), Some(0.25));
        let text = verdict(&rows.iter().collect::<Vec<_>>());
        assert!(text.ends_with("proxy nginx: over_tcp_without_proxy 0.80 of 1"), "{text}");
    }

    #[test]
    fn no_two_servers_of_a_run_have_one_port() {
        let proxies = || [None].into_iter().chain(Proxy::ALL.map(Some));
        let mut ports: Vec<u16> =
            SCHEMES.into_iter().flat_map(|scheme| proxies().map(move |proxy| port(scheme, proxy))).collect();
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
    }
}
