//! `pd gen`: traffic for a port, counts of returned frames, and the largest rate without loss.

mod frames;
mod rate;
mod run;

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use pd_abi::pipe::{PIPE_RING_BYTES_DEFAULT, PIPE_RING_BYTES_MAX, PIPE_RING_BYTES_MIN};
use pd_harness::signals::Signals;
use serde::Serialize;

use frames::{Addresses, Frames, FLOWS_MAX};
use rate::{search, Pace, Rate};
use run::{Ends, Limit, Outcome};

/// Factor of the first rate of a search over the rate without a limit.
const ABOVE: f64 = 1.1;

/// Sends frames to a port at a rate, and times those that come back.
///
/// The port is usually an end of a link, whose other end has a program that sends frames back. The driver's socket is that of
/// PD_SOCKET, else /run/pipedevice/driver.sock.
#[derive(Debug, clap::Args)]
pub struct GenArgs {
    /// Port to send to; the first of PD_PIPES if absent
    port: Option<String>,
    /// Bytes of frames, which take turns: numbers with commas between them, `imix`, or `rfc2544`
    #[arg(long, default_value = "64", conflicts_with = "pcap")]
    sizes: String,
    /// Flows of UDP, which take turns
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(FLOWS_MAX)), conflicts_with = "pcap")]
    flows: u32,
    /// Plays this capture over and over instead; its frames are counted, but not timed
    #[arg(long)]
    pcap: Option<PathBuf>,
    /// Rate: 200kpps, 1.5Mpps, 10Gbit (of frames, without preamble and gap); as fast as they are taken if absent
    #[arg(long, value_parser = Rate::parse)]
    rate: Option<Rate>,
    /// Seconds of a run, and of each trial of a search
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Frames after which a run ends
    #[arg(long, conflicts_with = "search")]
    frames: Option<u64>,
    /// Look for the largest rate without loss, from --rate down, by halving (RFC 2544)
    #[arg(long)]
    search: bool,
    /// Share of frames that a trial of a search may lose, in percent
    #[arg(long, default_value_t = 0.0, value_parser = percent)]
    loss_allowed: f64,
    /// Nothing comes back: the port is a sink, or its program drops
    #[arg(long)]
    one_way: bool,
    /// Size of each pipe's ring, a power of two
    #[arg(long, default_value_t = PIPE_RING_BYTES_DEFAULT, value_parser = ring_bytes)]
    ring_bytes: u64,
    /// Ethernet address that frames come from
    #[arg(long, default_value = "02:00:00:00:00:01", value_parser = mac)]
    from_mac: [u8; 6],
    /// Ethernet address that frames go to
    #[arg(long, default_value = "02:00:00:00:00:02", value_parser = mac)]
    to_mac: [u8; 6],
    /// IPv4 address that frames come from
    #[arg(long, default_value = "198.18.0.1")]
    from_ip: Ipv4Addr,
    /// IPv4 address that frames go to
    #[arg(long, default_value = "198.18.0.2")]
    to_ip: Ipv4Addr,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let byte = |text: &str| u8::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'));
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| format!("'{text}' is no Ethernet address"))
}

fn percent(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=100.0).contains(share));
    share.ok_or_else(|| format!("'{text}' is no share from 0 to 100"))
}

fn ring_bytes(text: &str) -> Result<u64, String> {
    let possible = PIPE_RING_BYTES_MIN..=PIPE_RING_BYTES_MAX;
    let bytes = text.parse().ok().filter(|bytes: &u64| bytes.is_power_of_two() && possible.contains(bytes));
    let [least, most] = [possible.start(), possible.end()];
    bytes.ok_or_else(|| format!("'{text}' is no power of two from {least} to {most}"))
}

/// A run, for people and for programs.
#[derive(Debug, Serialize)]
struct RunReport {
    seconds: f64,
    frames_due: u64,
    frames_sent: u64,
    bytes_sent: u64,
    frames_per_second: f64,
    bits_per_second: f64,
    /// Nothing where none are expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    returned: Option<ReturnReport>,
    loss: f64,
}

#[derive(Debug, Serialize)]
struct ReturnReport {
    frames: u64,
    bytes: u64,
    frames_reordered: u64,
    frames_foreign: u64,
    /// Nothing where frames carry no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ns: Option<LatencyReport>,
}

#[derive(Debug, Serialize)]
struct LatencyReport {
    min: u64,
    mean: f64,
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

#[derive(Debug, Serialize)]
struct SearchReport {
    trials: Vec<TrialReport>,
    frames_per_second_max: Option<f64>,
    /// Run at the largest rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<RunReport>,
}

#[derive(Debug, Serialize)]
struct TrialReport {
    frames_per_second: f64,
    loss: f64,
    passed: bool,
}

impl RunReport {
    fn of(outcome: &Outcome, is_timed: bool) -> Self {
        let seconds = outcome.time.as_secs_f64().max(1e-9);
        let latency = &outcome.latency;
        let round_trip_ns = (is_timed && !latency.is_empty()).then(|| LatencyReport {
            min: latency.min(),
            mean: latency.mean(),
            p50: latency.value_at_quantile(0.5),
            p90: latency.value_at_quantile(0.9),
            p99: latency.value_at_quantile(0.99),
            p999: latency.value_at_quantile(0.999),
            max: latency.max(),
        });
        let returned = outcome.expects.then_some(ReturnReport {
            frames: outcome.returned[0],
            bytes: outcome.returned[1],
            frames_reordered: outcome.reordered,
            frames_foreign: outcome.foreign,
            round_trip_ns,
        });
        Self {
            seconds,
            frames_due: outcome.due,
            frames_sent: outcome.sent[0],
            bytes_sent: outcome.sent[1],
            frames_per_second: outcome.sent[0] as f64 / seconds,
            bits_per_second: outcome.sent[1] as f64 * 8.0 / seconds,
            returned,
            loss: outcome.loss(),
        }
    }

    fn print(&self) {
        println!(
            "sent       {} frames in {:.2} s: {}, {}",
            self.frames_sent,
            self.seconds,
            quantity(self.frames_per_second, "pps"),
            quantity(self.bits_per_second, "bit/s"),
        );
        if let Some(returned) = &self.returned {
            print!("came back  {} frames", returned.frames);
            if returned.frames_reordered > 0 {
                print!(", {} out of order", returned.frames_reordered);
            }
            if returned.frames_foreign > 0 {
                print!("; {} others came", returned.frames_foreign);
            }
            println!();
        }
        println!("lost       {:.4} % of {} frames due", self.loss * 100.0, self.frames_due);
        if let Some(trip) = self.returned.as_ref().and_then(|returned| returned.round_trip_ns.as_ref()) {
            let us = |ns: u64| format!("{:.1}", ns as f64 / 1000.0);
            println!(
                "round trip P50 {} µs, P90 {} µs, P99 {} µs, P99.9 {} µs, most {} µs",
                us(trip.p50),
                us(trip.p90),
                us(trip.p99),
                us(trip.p999),
                us(trip.max)
            );
        }
    }
}

fn quantity(value: f64, unit: &str) -> String {
    match value {
        v if v >= 1e9 => format!("{:.3} G{unit}", v / 1e9),
        v if v >= 1e6 => format!("{:.3} M{unit}", v / 1e6),
        v if v >= 1e3 => format!("{:.3} k{unit}", v / 1e3),
        v => format!("{v:.1} {unit}"),
    }
}

/// A generator with its pipes.
struct Generator {
    ends: Ends,
    frames: Frames,
    limit: Limit,
    runs: u32,
    signals: Signals,
    /// A signal came.
    interrupted: Cell<bool>,
}

impl Generator {
    fn new(args: &GenArgs, signals: Signals) -> Result<Self> {
        let from_environment = || std::env::var("PD_PIPES").ok()?.split(',').next().map(str::to_owned);
        let port =
            args.port.clone().or_else(from_environment).context("which port? pd port ls lists them")?;
        let addresses = Addresses { mac: [args.from_mac, args.to_mac], ip: [args.from_ip, args.to_ip] };
        let frames = match &args.pcap {
            Some(file) => Frames::captured(file)?,
            None => {
                let sizes = frames::sizes(&args.sizes).map_err(anyhow::Error::msg)?;
                Frames::synthetic(&sizes, args.flows, &addresses)
            }
        };
        let time = Duration::try_from_secs_f64(args.seconds).ok().filter(|time| !time.is_zero());
        let limit = Limit {
            time: time.context("--seconds is a positive time")?,
            frames: args.frames.unwrap_or(u64::MAX),
        };
        let ends = Ends::open(&port, args.one_way, args.ring_bytes)?;
        // Frames of an earlier generator may still be on their way.
        let runs = std::process::id().wrapping_mul(0x9e37_79b9);
        Ok(Self { ends, frames, limit, runs, signals, interrupted: Cell::new(false) })
    }

    fn run(&mut self, frames_per_second: Option<f64>) -> Result<Outcome> {
        self.runs = self.runs.wrapping_add(1);
        let Self { ends, frames, limit, runs, signals, interrupted } = self;
        // Each signal ends one thing: the run, and then the wait for what is still on its way.
        let is_over = || {
            let has_come = signals.next().is_some();
            interrupted.set(interrupted.get() || has_come);
            has_come
        };
        ends.run(frames, *runs, Pace::new(frames_per_second), *limit, &is_over)
    }

    fn report(&self, outcome: &Outcome) -> RunReport {
        RunReport::of(outcome, self.frames.are_stamped())
    }

    fn search(&mut self, most: Option<f64>, allowed: f64, is_told: bool) -> Result<SearchReport> {
        let most = match most {
            Some(most) => most,
            None => {
                let outcome = self.run(None)?;
                if self.interrupted.get() {
                    bail!("interrupted");
                }
                ABOVE * outcome.sent[0] as f64 / outcome.time.as_secs_f64().max(1e-9)
            }
        };
        if most < 1.0 {
            bail!("no frame was taken: is there a program at the other end?");
        }
        let mut best: Option<(f64, RunReport)> = None;
        let (trials, found) = search(most, allowed, 0.01, |rate| {
            let outcome = self.run(Some(rate))?;
            if self.interrupted.get() {
                bail!("interrupted");
            }
            let loss = outcome.loss();
            if is_told {
                let verdict = if loss <= allowed { "passed" } else { "failed" };
                println!("{:>14}: {:.4} % lost, {verdict}", quantity(rate, "pps"), loss * 100.0);
            }
            if loss <= allowed {
                best = Some((rate, self.report(&outcome)));
            }
            Ok(loss)
        })?;
        let trials = trials.iter().map(|trial| TrialReport {
            frames_per_second: trial.rate,
            loss: trial.loss,
            passed: trial.loss <= allowed,
        });
        let run = best.map(|(_, run)| run);
        Ok(SearchReport { trials: trials.collect(), frames_per_second_max: found, run })
    }
}

/// Runs `pd gen`; returns the status to exit with.
pub fn main(args: &GenArgs) -> Result<i32> {
    pd_harness::sys::end_on_closed_output();
    let signals = Signals::watch()?;
    let mut generator = Generator::new(args, signals)?;
    let rate = args.rate.map(|rate| rate.frames(generator.frames.mean_bytes()));
    if !args.search {
        let outcome = generator.run(rate)?;
        let report = generator.report(&outcome);
        if args.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            report.print();
        }
        return Ok(0);
    }
    let report = generator.search(rate, args.loss_allowed / 100.0, !args.json)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        match report.frames_per_second_max {
            Some(rate) => println!("largest rate without loss: {}", quantity(rate, "pps")),
            None => println!("every rate that was tried lost frames"),
        }
        if let Some(run) = &report.run {
            run.print();
        }
    }
    Ok(if report.frames_per_second_max.is_some() { 0 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_values_are_refused() {
        assert_eq!((percent("0"), percent("12.5"), percent("100")), (Ok(0.0), Ok(12.5), Ok(100.0)));
        for wrong in ["", "-1", "100.1", "NaN", "inf", "1e300"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
        assert_eq!((ring_bytes("32768"), ring_bytes("67108864")), (Ok(32 << 10), Ok(64 << 20)));
        for wrong in
            ["", "0", "-1", "16384", "65535", "134217728", "9223372036854775808", "18446744073709551616"]
        {
            assert!(ring_bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(mac("2:0:0:0:a:FF"), Ok([2, 0, 0, 0, 10, 255]));
        for wrong in ["", "1:2", "+1:0:0:0:0:0", "1:2:3:4:5:6:7", "100:0:0:0:0:0", ":::::"] {
            assert!(mac(wrong).is_err(), "{wrong}");
        }
    }
}
