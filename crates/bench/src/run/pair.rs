//! Two peers of one scheme, as `pd bench` sees them.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use pd_harness::container::cgroup::Limits;
use pd_harness::container::Spec;
use pd_harness::peer::Peer;
use pd_harness::signals::Signals;
use pd_harness::tuning::Tuning;
use pd_harness::{own_exe, preload_library};

use super::stand::Clocks;
use crate::catalogue::{Conditions, Cores, Place, Scheme, Waiting};
use crate::protocol::{Files, Latency, Open, Order, Reply, Request, Streamed};
use crate::row::Metrics;

/// Longest time of peers for one request.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest time of peers for one request if the streams are files, which may be large.
const PATIENCE_WITH_FILES: Duration = Duration::from_secs(120);

/// The peers. A local scheme has one.
pub struct Pair {
    scheme: Scheme,
    zero_copy: bool,
    window_bytes: Option<usize>,
    send: Peer,
    recv: Option<Peer>,
}

impl Pair {
    /// Starts the peers where the scheme has them, with kernel TCP set up like that.
    pub fn start(
        scheme: Scheme,
        number: usize,
        dir: &Path,
        tcp: &Tuning,
        under: Conditions,
        limits: Limits,
    ) -> Result<Pair> {
        let peer = |role: &str| -> Result<Peer> {
            let name = format!("{}-{}-{}-{number}-{role}", under.prefix, std::process::id(), scheme.name());
            let name = name.replace('_', "-");
            let command = [environment(scheme)?, command(dir, under.waiting)].concat();
            let mut peer = match scheme.place() {
                Place::Containers => {
                    let spec = Spec { limits, ..spec(tenant(scheme), name, dir, tcp) };
                    Peer::in_container(&spec, command)?
                }
                Place::Host | Place::Local => Peer::on_host(&name, command)?,
            };
            peer.set_patience(PATIENCE);
            Ok(peer)
        };
        let recv = match scheme.place() {
            Place::Local => None,
            _ => Some(peer("recv")?),
        };
        let (zero_copy, window_bytes) = (tcp.zero_copy, under.window_bytes);
        Ok(Pair { scheme, zero_copy, window_bytes, recv, send: peer("send")? })
    }

    fn recv(&mut self) -> Result<&mut Peer> {
        self.recv.as_mut().context("a local scheme has one peer")
    }

    /// Connects the two.
    pub fn open(
        &mut self,
        message_bytes: usize,
        connections: usize,
        cores: Cores,
        signals: &Signals,
    ) -> Result<()> {
        if self.scheme.place() == Place::Local {
            ensure!(connections == 1, "{} has no connections", self.scheme.name());
            return Ok(());
        }
        let Pair { scheme, zero_copy, window_bytes, .. } = *self;
        let open = Open { scheme, message_bytes, connections, core: cores.recv, zero_copy, window_bytes };
        let to = self.listen(&open, signals)?;
        let open = Open { core: cores.send, ..open };
        let exchange = self.scheme.exchanges_addresses();
        if !exchange {
            self.recv()?.ask(&Request::Accept { from: String::new() })?;
        }
        self.send.ask(&Request::Connect { open, to })?;
        let from = at(self.send.answer(signals)?)?;
        if exchange {
            self.recv()?.ask(&Request::Accept { from })?;
        }
        done(self.recv()?.answer(signals)?)
    }

    /// Has the receiver listen until the connections are closed. Returns its address.
    pub fn listen_only(&mut self, message_bytes: usize, signals: &Signals) -> Result<String> {
        let Pair { scheme, zero_copy, window_bytes, .. } = *self;
        let open = Open { scheme, message_bytes, connections: 1, core: None, zero_copy, window_bytes };
        self.listen(&open, signals)
    }

    fn listen(&mut self, open: &Open, signals: &Signals) -> Result<String> {
        self.recv()?.ask(&Request::Listen(*open))?;
        at(self.recv()?.answer(signals)?)
    }

    /// Closes the connections.
    pub fn close(&mut self, signals: &Signals) -> Result<()> {
        self.send.ask(&Request::Close)?;
        done(self.send.answer(signals)?)?;
        if let Some(recv) = &mut self.recv {
            recv.ask(&Request::Close)?;
            done(recv.answer(signals)?)?;
        }
        Ok(())
    }

    /// Returns the report of both ends on their kernel TCP or path. Empty if neither applies.
    pub fn describe(&mut self, signals: &Signals) -> Result<String> {
        let scheme = self.scheme;
        let Some(recv) = &mut self.recv else { return Ok(String::new()) };
        if !scheme.is_over_tcp() && !scheme.is_pipedevice() {
            return Ok(String::new());
        }
        let ask = |peer: &mut Peer| {
            peer.ask(&Request::Describe { scheme })?;
            printed(peer.answer(signals)?)
        };
        let (send, recv) = (ask(&mut self.send)?, ask(recv)?);
        Ok(match (send == recv, send.is_empty()) {
            (true, true) => String::new(),
            (true, false) => format!("both ends {send}"),
            (false, _) => format!("sender {send}; receiver {recv}"),
        })
    }

    /// Has both ends open files.
    pub fn open_files(&mut self, files: &Files, signals: &Signals) -> Result<()> {
        for peer in [Some(&mut self.send), self.recv.as_mut()].into_iter().flatten() {
            peer.set_patience(PATIENCE_WITH_FILES);
        }
        self.send.ask(&Request::Files(files.clone()))?;
        done(self.send.answer(signals)?)
    }

    /// Streams. Returns the reports of sender and receiver, which agree.
    pub fn stream(&mut self, order: &Order, signals: &Signals) -> Result<(Streamed, Streamed)> {
        self.stream_apart((order, order), signals)
    }

    /// Streams by separate orders for sender and receiver, which differ in the work on the bytes. Checksums of both agree.
    pub fn stream_apart(
        &mut self,
        (order, receive): (&Order, &Order),
        signals: &Signals,
    ) -> Result<(Streamed, Streamed)> {
        let scheme = self.scheme;
        let Some(recv) = &mut self.recv else {
            self.send.ask(&Request::Local { scheme, order: *order })?;
            let streamed = streamed(self.send.answer(signals)?)?;
            let other = Streamed { user_s: 0.0, system_s: 0.0, ..streamed.clone() };
            return Ok((streamed, other));
        };
        recv.ask(&Request::Stream(*receive))?;
        self.send.ask(&Request::Stream(*order))?;
        let sent = streamed(self.send.answer(signals)?)?;
        let received = streamed(recv.answer(signals)?)?;
        ensure!(
            order.touch != receive.touch || sent.checksum == received.checksum,
            "{}: checksum {} was sent and {} received: the bytes differ, or a file changed meanwhile",
            scheme.name(),
            sent.checksum,
            received.checksum
        );
        Ok((sent, received))
    }

    /// Measures round trips.
    pub fn ping_pong(&mut self, order: &Order, signals: &Signals) -> Result<Latency> {
        self.recv()?.ask(&Request::PingPong(*order))?;
        self.send.ask(&Request::PingPong(*order))?;
        let Reply::Latency(latency) = self.send.answer(signals)? else { bail!("no latency was answered") };
        let _: Reply = self.recv()?.answer(signals)?;
        Ok(latency)
    }

    /// Starts streams on all connections at full rate for `ms`, together with the other pairs in between.
    pub fn start_sharing(&mut self, message_bytes: usize, ms: u64) -> Result<()> {
        self.recv()?.ask(&Request::Share { message_bytes, ms })?;
        self.send.ask(&Request::Share { message_bytes, ms })
    }

    /// Bytes that each connection carried after [`Pair::start_sharing`], and for how many seconds.
    pub fn shares(&mut self, signals: &Signals) -> Result<(Vec<u64>, f64)> {
        let Reply::Shares { checksum: sent, .. } = self.send.answer(signals)? else {
            bail!("no shares were answered")
        };
        let Reply::Shares { bytes, checksum, seconds } = self.recv()?.answer(signals)? else {
            bail!("no shares were answered")
        };
        ensure!(sent == checksum, "{}: checksum {sent} was sent and {checksum} received", self.scheme.name());
        Ok((bytes, seconds))
    }

    /// Starts a server at the receiving side; returns its address.
    pub fn start_server(&mut self, command: Vec<String>, port: u16, signals: &Signals) -> Result<String> {
        let scheme = self.scheme;
        self.recv()?.ask(&Request::Serve { scheme, command, port })?;
        at(self.recv()?.answer(signals)?)
    }

    /// Starts a server beside the clients of the sending side.
    pub fn start_beside_client(
        &mut self,
        command: Vec<String>,
        port: u16,
        signals: &Signals,
    ) -> Result<String> {
        self.send.ask(&Request::Serve { scheme: self.scheme, command, port })?;
        at(self.send.answer(signals)?)
    }

    /// Runs a client at the sending side. Returns its output.
    pub fn run_client(&mut self, command: Vec<String>, signals: &Signals) -> Result<String> {
        self.send.ask(&Request::Run { scheme: self.scheme, command })?;
        printed(self.send.answer(signals)?)
    }

    /// Opens and closes `connections` connections, `at_a_time` at a time. Returns the reports of the two sides.
    pub fn set_up(
        &mut self,
        connections: u64,
        message_bytes: usize,
        at_a_time: usize,
        signals: &Signals,
    ) -> Result<(Streamed, Streamed)> {
        let Pair { scheme, zero_copy, window_bytes, .. } = *self;
        let open =
            Open { scheme, message_bytes, connections: at_a_time, core: None, zero_copy, window_bytes };
        let to = self.listen(&open, signals)?;
        self.recv()?.ask(&Request::SetUp { open, to: String::new(), connections })?;
        self.send.ask(&Request::SetUp { open, to, connections })?;
        let opened = streamed(self.send.answer(signals)?)?;
        let accepted = streamed(self.recv()?.answer(signals)?)?;
        self.recv()?.ask(&Request::Close)?;
        done(self.recv()?.answer(signals)?)?;
        Ok((opened, accepted))
    }
}

/// Returns a prefix for commands of programs that run with the preload library.
pub(super) fn environment(scheme: Scheme) -> Result<Vec<OsString>> {
    let Some(settings) = scheme.preload() else { return Ok(Vec::new()) };
    let mut library = OsString::from("LD_PRELOAD=");
    library.push(preload_library()?);
    Ok(["env".into(), library].into_iter().chain(settings.iter().map(OsString::from)).collect())
}

/// Returns the tenant of a scheme: see the policy of [`super::stand`].
pub fn tenant(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::PipedeviceDefault => "default",
        Scheme::PipedeviceDirect => "bench-direct",
        _ => "bench-mediated",
    }
}

/// Returns the command of a peer that shares `dir` with others.
pub(super) fn command(dir: &Path, waiting: Waiting) -> Vec<OsString> {
    let peer = [own_exe().into(), "internal-bench-peer".into(), "--dir".into(), dir.into()];
    let waiting = waiting.name().map(|name| ["--waiting".into(), name.into()]);
    peer.into_iter().chain(waiting.into_iter().flatten()).collect()
}

pub(super) fn spec(tenant: &str, name: String, dir: &Path, tcp: &Tuning) -> Spec {
    Spec {
        name,
        address: None,
        tenant: tenant.to_owned(),
        network: tcp.network.clone(),
        bridge: "pd0".to_owned(),
        overlay: None,
        socket: dir.join("driver.sock"),
        driver: dir.join("driver.sock").exists(),
        // Peers of benchmarks may change settings of the machine.
        privileged: true,
        environment: Vec::new(),
        limits: Limits::default(),
    }
}

fn done(reply: Reply) -> Result<()> {
    match reply {
        Reply::Done => Ok(()),
        other => bail!("a peer answered {other:?}"),
    }
}

fn at(reply: Reply) -> Result<String> {
    match reply {
        Reply::At { address } => Ok(address),
        other => bail!("a peer answered {other:?}"),
    }
}

fn printed(reply: Reply) -> Result<String> {
    match reply {
        Reply::Printed { text } => Ok(text),
        other => bail!("a peer answered {other:?}"),
    }
}

fn streamed(reply: Reply) -> Result<Streamed> {
    match reply {
        Reply::Streamed(streamed) => Ok(streamed),
        other => bail!("a peer answered {other:?}"),
    }
}

/// Seconds from the sender's start to the receiver's end.
pub fn seconds(sent: &Streamed, received: &Streamed) -> Result<f64> {
    let ns = received.end_ns.checked_sub(sent.start_ns).context("the clock went backwards")?;
    Ok(ns.max(1) as f64 / 1e9)
}

/// Returns the receiver's longest wait for bytes, including that for the first since the sender's start. Only of an
/// order with `gaps`.
pub fn longest_gap_ns(sent: &Streamed, received: &Streamed) -> u64 {
    received.gap_ns.max(received.first_ns.saturating_sub(sent.start_ns))
}

/// Adds the CPU time per unit of work, of the whole machine and of each party.
pub fn cpu(
    metrics: &mut Metrics,
    units: f64,
    sides: (&Streamed, &Streamed),
    clocks: (Clocks, Clocks),
    driver: bool,
) {
    let machine = clocks.1.machine - clocks.0.machine;
    let (sent, received) = sides;
    metrics.extend([
        ("cpu_s_per_gb", machine.busy_s / units),
        ("softirq_s_per_gb", machine.softirq_s / units),
        ("sender_user_s_per_gb", sent.user_s / units),
        ("sender_system_s_per_gb", sent.system_s / units),
        ("receiver_user_s_per_gb", received.user_s / units),
        ("receiver_system_s_per_gb", received.system_s / units),
        ("steal_s", machine.steal_s),
    ]);
    if let (true, Some(after), Some(before)) = (driver, clocks.1.driver, clocks.0.driver) {
        metrics.insert("driver_s_per_gb", after.saturating_sub(before).as_secs_f64() / units);
    }
}
