//! `isolation`: a pair of containers that streams, alone and beside a hostile client of another tenant, in turns.
//!
//! The pair streams at full rate, then at a fifth of it, and then measures round trips. Bytes are checked. Each round has the victim alone
//! and under attack, with the order reversed every other round. The attacker is started for each round and killed after it, and the
//! driver's accounts show its remains. `spin` attacks only a core: it shows the effect of the scheduler alone.

mod denied;

use std::fs::{set_permissions, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use pd_harness::container::cgroup::Limits;
use pd_harness::measure::stats::jain_index;
use pd_harness::progress;
use pd_harness::signals::Signals;
use serde_json::json;

use denied::DeniedCell;

use super::stream_cell::StreamCell;
use super::{with_misses, Bench, Settings};
use crate::attack::{self, Attack, Kind};
use crate::catalogue::Scheme;
use crate::protocol::Order;
use crate::row::{Metrics, Params, Row};
use crate::run::attacker::{left_behind, Attacker};
use crate::run::interleave::{self, Cell};
use crate::run::stand::{Memory, Stand};

/// Kernel TCP, for victim and attacker, shows what the machine alone takes.
const SCHEMES: [Scheme; 3] = [Scheme::Tcp, Scheme::Pipedevice, Scheme::PipedeviceDirect];
const MESSAGE_BYTES: usize = 64 << 10;
/// The time for an attack to take effect before the victim is measured.
const SETTLE: Duration = Duration::from_millis(100);

/// The pair, apart from the victim's, of which one listens.
const LISTENER: usize = 2;
/// Bytes of a question and of its answer.
const QUESTION_BYTES: usize = 64;
/// Questions by which the time of one is estimated.
const QUESTIONS_PROBE: u64 = 200;
/// The part of a round for questions.
const QUESTIONS_ROUND: f64 = 0.5;

/// Bars of the part of its rate that a victim keeps: when it could use all, and when it asks for less than its share.
const KEPT_BUSY: f64 = 0.45;
const KEPT_BELOW_SHARE: f64 = 0.9;
const GAP_MS: f64 = 20.0;
const JAIN: f64 = 0.99;
/// Longest time for which a denied connection may go on.
const ENDED_MS: f64 = 200.0;
/// CPU weight of a tenant and of the driver. Each of the victim's two containers has half of it.
const TENANT_WEIGHT: u64 = 200;
const DRIVER_WEIGHT: u64 = 200;
/// Part of its own full rate that a victim with a demand below its share sends.
const DEMAND: f64 = 0.2;

/// An attack.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    /// Connections of the attacker; 0 if it needs none.
    connections: usize,
    /// Tells whether tenants and the driver have the same weight where processors are short. The kernel divides them by threads otherwise.
    weighs: bool,
}

impl Case {
    const fn new(kind: Kind) -> Case {
        Case { kind, connections: 0, weighs: false }
    }

    const fn traffic(kind: Kind, connections: usize) -> Case {
        Case { kind, connections, weighs: false }
    }

    const fn weighed(self) -> Case {
        Case { weighs: true, ..self }
    }

    /// Returns whether the case is one of the scheme. Kernel TCP has those that need no driver.
    fn is_of(&self, scheme: Scheme) -> bool {
        scheme != Scheme::Tcp || [Kind::Spin, Kind::Spins, Kind::Files, Kind::Bulk].contains(&self.kind)
    }

    /// Returns whether the case is measured with `--quick`. Fewer cases have many connections. A few attacks suffice on the direct
    /// path, whose bytes the driver does not move.
    fn is_quick(&self, scheme: Scheme) -> bool {
        let few = [Kind::Spin, Kind::Attaches, Kind::Twins];
        match scheme {
            Scheme::PipedeviceDirect => few.contains(&self.kind) || self.connections == 100,
            _ => self.connections != 8 || self.kind != Kind::Bulk,
        }
    }
}

const CASES: [Case; 33] = [
    Case::new(Kind::Spin),
    Case::new(Kind::Spins),
    Case::new(Kind::Descriptors),
    Case::new(Kind::AdminDescriptors),
    Case::new(Kind::Connects),
    Case::new(Kind::Attaches),
    Case::new(Kind::Ports),
    Case::new(Kind::Frames),
    Case::new(Kind::Regions),
    Case::new(Kind::HandedRegions),
    Case::new(Kind::Violations),
    Case::new(Kind::Addresses),
    Case::new(Kind::RecordLocks),
    Case::new(Kind::Doorbells),
    Case::new(Kind::Requests),
    Case::new(Kind::ImpossibleSends),
    Case::new(Kind::Unread),
    Case::new(Kind::Pipes),
    Case::new(Kind::DeniedConnects),
    Case::new(Kind::Churn),
    Case::new(Kind::Twins),
    Case::new(Kind::Options),
    Case::traffic(Kind::Files, 8),
    Case::traffic(Kind::Huge, 1),
    Case::traffic(Kind::Tiny, 1),
    Case::traffic(Kind::Tiny, 100),
    Case::traffic(Kind::Bulk, 1),
    Case::traffic(Kind::Bulk, 8),
    Case::traffic(Kind::Bulk, 100),
    Case::traffic(Kind::Bulk, 1000),
    Case::new(Kind::Spins).weighed(),
    Case::traffic(Kind::Bulk, 1).weighed(),
    Case::traffic(Kind::Bulk, 100).weighed(),
];

struct IsolationCell {
    stream: StreamCell,
    case: Case,
    quick: bool,
    /// Tells whether the next round begins with the victim alone.
    alone_first: bool,
    /// Throughput of the stream that asks for less than its share.
    paced_gbit_per_s: f64,
    /// Questions of a round.
    questions: u64,
    /// Address of the victim's listener, which an attacker connects to.
    listener: Option<SocketAddr>,
}

impl IsolationCell {
    fn of(scheme: Scheme, case: Case, settings: &Settings) -> IsolationCell {
        let stream = StreamCell { gaps: true, ..StreamCell::of(scheme, MESSAGE_BYTES, settings.round_s) };
        let quick = settings.quick;
        IsolationCell {
            stream,
            case,
            quick,
            alone_first: true,
            paced_gbit_per_s: 0.0,
            questions: 0,
            listener: None,
        }
    }

    /// Measures the victim's stream at full rate.
    fn busy(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        // Rings of a victim that has waited are taken back.
        self.stream.touch(stand)?;
        let before = stand.clocks()?;
        let mut metrics = self.stream.measure(stand)?;
        let after = stand.clocks()?;
        let seconds = metrics["round_s"];
        let cores = |before: Option<Duration>, after: Option<Duration>| {
            Some(after?.saturating_sub(before?).as_secs_f64() / seconds)
        };
        let driver = cores(before.driver, after.driver).map(|cores| ("driver_cores", cores));
        metrics.extend(driver);
        metrics.extend(cores(before.mover_wait, after.mover_wait).map(|cores| ("mover_wait_cores", cores)));
        Ok(metrics)
    }

    /// Adds its stream below its share, and its questions.
    fn below_share(&self, metrics: &mut Metrics, stand: &mut Stand<'_>) -> Result<()> {
        let mut stream = StreamCell {
            target_gbit_per_s: Some(self.paced_gbit_per_s),
            messages: (self.stream.messages as f64 * DEMAND).ceil() as u64,
            ..self.stream.clone()
        };
        let paced = stream.measure(stand)?;
        let (signals, questions) = (stand.signals, Order::of(QUESTION_BYTES, self.questions));
        let answered = stand.pair(self.stream.scheme)?.ping_pong(&questions, signals)?;
        metrics.extend([
            ("longest_gap_ms", metrics["longest_gap_ms"].max(paced["longest_gap_ms"])),
            ("throughput_gbit_per_s_paced", paced["throughput_gbit_per_s"]),
            ("latency_us_p50", answered.p50_us),
            ("latency_us_p99", answered.p99_us),
            ("latency_us_worst", answered.max_us),
        ]);
        Ok(())
    }

    fn alone(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let mut metrics = self.busy(stand)?;
        self.below_share(&mut metrics, stand)?;
        Ok(metrics)
    }

    /// Measures the victim beside an attacker, with the attacker's counts and remains.
    fn attacked(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        let Case { kind, connections, .. } = self.case;
        let kernel = self.stream.scheme == Scheme::Tcp;
        let attack = Attack { kind, connections, victim: self.listener, kernel, quick: self.quick };
        let limits = Limits { weight: self.case.weighs.then_some(TENANT_WEIGHT), ..Limits::default() };
        let mut attacker = Attacker::start(attack, stand.dir(), limits, signals)?;
        sleep(SETTLE);
        let (before, used) = (attacker.done(signals)?, attacker.cpu_usage());
        let mut metrics = self.busy(stand)?;
        let (after, used_after) = (attacker.done(signals)?, attacker.cpu_usage());
        let carried = match kind {
            Kind::Bulk => Some(attacker.carried(self.stream.span_ns, signals)?),
            _ => None,
        };
        self.below_share(&mut metrics, stand)?;
        drop(attacker);
        let seconds = after.at_ns.saturating_sub(before.at_ns).max(1) as f64 / 1e9;
        let per_s = |before: u64, after: u64| (after - before) as f64 / seconds;
        metrics.extend([
            ("attacks_per_s", per_s(before.tries, after.tries)),
            ("refused_per_s", per_s(before.refused, after.refused)),
        ]);
        if let (Some(used), Some(used_after)) = (used, used_after) {
            metrics.insert("attacker_cores", used_after.saturating_sub(used).as_secs_f64() / seconds);
        }
        if let Some(bytes) = carried {
            // The time of the victim's stream, without its start and its end.
            let (from_ns, to_ns) = self.stream.span_ns;
            let gbit_per_s = bytes * 8.0 / to_ns.saturating_sub(from_ns).max(1) as f64;
            metrics.insert("attacker_gbit_per_s", gbit_per_s);
            // Two tenants share a mover, and both could use all of it.
            if self.stream.scheme != Scheme::PipedeviceDirect {
                let shares = [metrics["throughput_gbit_per_s"], gbit_per_s];
                metrics.insert("jain_index", jain_index(&shares));
            }
        }
        if !kernel {
            let [clients, descriptors, bytes] = left_behind(stand.driver()?, signals)?;
            metrics.extend([
                ("left_behind_clients", clients as f64),
                ("left_behind_descriptors", descriptors as f64),
                ("left_behind_bytes", bytes as f64),
            ]);
        }
        Ok(metrics)
    }
}

impl Cell for IsolationCell {
    fn scheme(&self) -> Scheme {
        self.stream.scheme
    }

    fn params(&self) -> Params {
        let mut params: Params = vec![("attack", json!(self.case.kind.name()))];
        if self.case.connections > 0 {
            params.push(("connections", json!(self.case.connections)));
        }
        if self.case.weighs {
            params.push(("weights", json!("equal")));
        }
        params
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        match self.case.kind {
            Kind::Pipes => stand.port(attack::PORT, true)?,
            Kind::Options => stand.offer_service()?,
            Kind::DeniedConnects => {
                let signals = stand.signals;
                let pair = stand.pair_of(self.stream.scheme, LISTENER)?;
                self.listener = Some(pair.listen_only(MESSAGE_BYTES, signals)?.parse()?);
            }
            _ => {}
        }
        self.stream.connect(stand)?;
        self.stream.warm_up(stand)?;
        self.paced_gbit_per_s = DEMAND * self.stream.measure(stand)?["throughput_gbit_per_s"];
        let (signals, probe) = (stand.signals, Order::of(QUESTION_BYTES, QUESTIONS_PROBE));
        let answered = stand.pair(self.stream.scheme)?.ping_pong(&probe, signals)?;
        let us = self.stream.round_s * QUESTIONS_ROUND * 1e6;
        self.questions = ((us / answered.mean_us.max(0.1)) as u64).max(QUESTIONS_PROBE);
        Ok(Metrics::new())
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let (alone, attacked) = if self.alone_first {
            let alone = self.alone(stand)?;
            (alone, self.attacked(stand)?)
        } else {
            let attacked = self.attacked(stand)?;
            (self.alone(stand)?, attacked)
        };
        self.alone_first = !self.alone_first;
        let mut metrics = attacked;
        let kept = metrics["throughput_gbit_per_s"] / alone["throughput_gbit_per_s"];
        metrics.extend([
            ("kept", kept),
            (
                "kept_below_share",
                metrics["throughput_gbit_per_s_paced"] / alone["throughput_gbit_per_s_paced"],
            ),
            ("throughput_gbit_per_s_alone", alone["throughput_gbit_per_s"]),
            ("longest_gap_ms_alone", alone["longest_gap_ms"]),
            ("latency_us_p99_alone", alone["latency_us_p99"]),
            ("latency_us_worst_alone", alone["latency_us_worst"]),
            ("cpu_cores_alone", alone["cpu_cores"]),
        ]);
        metrics.extend(alone.get("driver_cores").map(|cores| ("driver_cores_alone", *cores)));
        Ok(metrics)
    }

    fn close(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        match self.case.kind {
            Kind::Pipes => stand.port(attack::PORT, false)?,
            Kind::Options => stand.allow()?,
            Kind::DeniedConnects => stand.end_pair(self.stream.scheme, LISTENER),
            _ => {}
        }
        self.stream.close(stand)
    }
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&SCHEMES);
    if schemes.is_empty() {
        return Ok(Vec::new());
    }
    let wanted = |case: Case| {
        let quick = settings.quick;
        let is_wanted = move |scheme: &Scheme| case.is_of(*scheme) && (!quick || case.is_quick(*scheme));
        let wanted = schemes.iter().copied().filter(is_wanted);
        wanted.collect::<Vec<_>>()
    };
    let fabric = || schemes.iter().copied().filter(|scheme| *scheme != Scheme::Tcp);
    let count = CASES.into_iter().flat_map(wanted).count() + fabric().count();
    let bar = progress::bar((count * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for weighs in [false, true] {
        let mut stand = Stand::set_up(&schemes, Memory::PROGRAMS, &settings.engine, signals)?;
        // Attackers that are not root attach, too.
        set_permissions(stand.dir(), Permissions::from_mode(0o711))?;
        if weighs {
            if let Err(error) = stand.weigh(DRIVER_WEIGHT, TENANT_WEIGHT / 2) {
                eprintln!("pd: warning: no rows of tenants with equal weights: {error:#}");
                break;
            }
        }
        let mut measure = |cells: Vec<Box<dyn Cell>>| -> Result<()> {
            rows.extend(interleave::run(Bench::Isolation.name(), cells, settings, &mut stand, &bar)?);
            Ok(())
        };
        for case in CASES.into_iter().filter(|case| case.weighs == weighs) {
            let cell = |scheme| -> Box<dyn Cell> { Box::new(IsolationCell::of(scheme, case, settings)) };
            measure(wanted(case).into_iter().map(cell).collect())?;
        }
        if !weighs {
            measure(fabric().map(|scheme| -> Box<dyn Cell> { Box::new(DeniedCell(scheme)) }).collect())?;
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Returns the bars that a row's medians miss, and its attacker's remains; empty if none.
fn misses(row: &Row) -> Vec<String> {
    let mut misses = Vec::new();
    if row.scheme == Scheme::Tcp.name() {
        return misses;
    }
    let below = |name: &str, bar: f64| row.median(name).filter(|value| *value < bar);
    misses.extend(below("kept", KEPT_BUSY).map(|kept| format!("keeps {kept:.2} of {KEPT_BUSY}")));
    let kept = below("kept_below_share", KEPT_BELOW_SHARE);
    misses.extend(kept.map(|kept| format!("keeps {kept:.2} of {KEPT_BELOW_SHARE} below its share")));
    misses.extend(below("jain_index", JAIN).map(|jain| format!("Jain's index {jain:.3}")));
    let gap = row.median("longest_gap_ms").filter(|gap| *gap >= GAP_MS);
    misses.extend(gap.map(|gap| format!("gap of {gap:.0} ms")));
    let worst = row.median("latency_us_worst").filter(|us| *us >= GAP_MS * 1e3);
    misses.extend(worst.map(|us| format!("round trip of {:.0} ms", us / 1e3)));
    let ended = row.median("ended_ms").filter(|ms| *ms >= ENDED_MS);
    misses.extend(ended.map(|ms| format!("ended after {ms:.0} ms")));
    for (name, what) in [
        ("left_behind_clients", "clients"),
        ("left_behind_descriptors", "descriptors"),
        ("left_behind_bytes", "bytes"),
    ] {
        let left = row.metrics.get(name).filter(|left| left.max > 0.0);
        misses.extend(left.map(|left| format!("left behind: {} {what}", left.max)));
    }
    misses
}

/// Returns the bars, and the rows that miss one, as text.
pub fn verdict(rows: &[&Row]) -> String {
    let bars = format!(
        "bars: keeps {KEPT_BUSY} of its rate alone, {KEPT_BELOW_SHARE} with a demand below its share; gaps and round trips below {GAP_MS} ms; Jain's \
         index {JAIN} over tenants; denied connections end within {ENDED_MS} ms; nothing left behind"
    );
    with_misses(bars, rows, misses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_misses_a_bar_is_named() {
        let row = |attack: &str, kept, below, gap, left| {
            let metrics = Metrics::from([
                ("kept", kept),
                ("kept_below_share", below),
                ("longest_gap_ms", gap),
                ("left_behind_bytes", left),
            ]);
            Row::of("isolation", "pipedevice", vec![("attack", json!(attack))], &[metrics])
        };
        let rows = [row("ports", 0.9, 1.0, 1.0, 0.0), row("regions", 0.3, 0.5, 250.0, 4096.0)];
        let text = verdict(&rows.iter().collect::<Vec<_>>());
        assert!(!text.contains("ports"), "{text}");
        let missed = "attack regions: keeps 0.30 of 0.45; keeps 0.50 of 0.9 below its share; gap of 250 ms; left behind: 4096 bytes";
        assert!(text.ends_with(missed), "{text}");
    }
}
