//! Interleaved rounds: every scheme once per round, so that what disturbs the machine disturbs all.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use pd_harness::digest::Touch;
use pd_harness::driver::ChildDriver;
use pd_harness::measure::cpu::MachineTimes;
use pd_harness::peer::Peer;
use pd_harness::signals::Signals;
use pd_harness::site::Site;
use serde::Serialize;

use super::protocol::{Order, Part, Place, Reply, Request, Scheme, Streamed, Transport};

/// A round lasts about this long at least, for CPU time is counted in ticks of 10 ms.
const ROUND_S: f64 = 0.8;

/// One scheme in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Part of the demo.
    pub part: Part,
    /// How the bytes moved.
    pub scheme: Scheme,
    /// Which round, from 1; 0 is the warm-up.
    pub round: u32,
    /// Bytes moved.
    pub bytes: u64,
    /// From before the first byte to the last one checksummed by the receiver.
    pub seconds: f64,
    /// Throughput.
    pub gbit_per_s: f64,
    /// CPU time of the whole machine.
    pub cpu_s: f64,
    /// The same for every 10^9 bytes.
    pub cpu_s_per_gb: f64,
    /// Cores busy on average.
    pub cores: f64,
    /// CPU time that the hypervisor took.
    pub steal_s: f64,
    /// CPU time of the sender's container.
    pub sender_cpu_s: Option<f64>,
    /// CPU time of the receiver's container.
    pub receiver_cpu_s: Option<f64>,
    /// CPU time of the driver, for PipeDevice.
    pub driver_cpu_s: Option<f64>,
    /// Checksum on which both sides agree.
    pub checksum: String,
}

/// Two endpoints.
pub struct Pair {
    /// The sending container.
    pub sender: Peer,
    /// The receiving container.
    pub receiver: Peer,
}

/// The endpoints, and what is between them. Fields are dropped in this order.
pub struct Bench<'a> {
    /// Each pair that one of the schemes needs.
    pub pairs: BTreeMap<Place, Pair>,
    /// The directory and, for PipeDevice, the driver.
    pub site: Site,
    /// What may interrupt.
    pub signals: &'a Signals,
}

/// CPU time at one moment.
struct Clocks {
    machine: MachineTimes,
    sender: Option<Duration>,
    receiver: Option<Duration>,
    driver: Option<Duration>,
}

impl Bench<'_> {
    fn pair(&mut self, place: Place) -> Result<&mut Pair> {
        self.pairs.get_mut(&place).context("these containers were not started")
    }

    /// Connects two endpoints; what they say that the connection has.
    pub fn connect(&mut self, place: Place, transport: Transport) -> Result<String> {
        let signals = self.signals;
        let Pair { sender, receiver } = self.pair(place)?;
        receiver.ask(&Request::Listen { transport })?;
        let Reply::Listening { at: to } = receiver.answer(signals)? else {
            bail!("the receiver gave no address");
        };
        let (address, _) = receiver.container().context("the receiver is in a container")?.addresses();
        ensure!(to.ip() == address, "the receiver listens on {to}, not on its container's {address}");
        receiver.ask(&Request::Accept { transport })?;
        sender.ask(&Request::Connect { transport, to })?;
        let (sent, received) = (connected(sender, signals)?, connected(receiver, signals)?);
        Ok(match sent == received {
            true => format!("both ends {sent}"),
            false => format!("sender {sent}; receiver {received}"),
        })
    }

    /// Ends all endpoints in order.
    pub fn quit(&mut self) -> Result<()> {
        for peer in self.pairs.values_mut().flat_map(|pair| [&mut pair.sender, &mut pair.receiver]) {
            peer.ask(&Request::Quit)?;
            done(peer, self.signals)?;
        }
        Ok(())
    }

    /// The SHA-256 of `bytes` of the source as the receiver got them.
    pub fn verify(&mut self, scheme: Scheme, bytes: u64) -> Result<String> {
        let order = Order { scheme, part: Part::File, bytes, touch: Touch::Nothing };
        let signals = self.signals;
        let Pair { sender, receiver } = self.pair(scheme.place())?;
        sender.ask(&Request::Prepare(order))?;
        done(sender, signals)?;
        receiver.ask(&Request::Round(Order { touch: Touch::Sha256, ..order }))?;
        sender.ask(&Request::Round(order))?;
        streamed(sender, signals)?;
        Ok(streamed(receiver, signals)?.checksum)
    }

    /// Runs all `schemes` `rounds` times after a warm-up, `bytes` or more each time. `tick` is called
    /// after each.
    pub fn rounds(
        &mut self,
        part: Part,
        schemes: &[Scheme],
        rounds: u32,
        bytes: u64,
        mut tick: impl FnMut(),
    ) -> Result<Vec<Sample>> {
        let mut volumes = Vec::new();
        for &scheme in schemes {
            let warm_up = self.sample(part, scheme, 0, bytes)?;
            tick();
            let enough = bytes as f64 / warm_up.seconds * ROUND_S;
            volumes.push((scheme, bytes.max(enough as u64)));
        }
        let mut samples = Vec::new();
        for round in 1..=rounds {
            // Every other round backwards, so that none always follows the same one.
            let order: Vec<_> = match round % 2 {
                1 => volumes.clone(),
                _ => volumes.iter().rev().copied().collect(),
            };
            for (scheme, bytes) in order {
                samples.push(self.sample(part, scheme, round, bytes)?);
                tick();
            }
        }
        Ok(samples)
    }

    fn sample(&mut self, part: Part, scheme: Scheme, round: u32, bytes: u64) -> Result<Sample> {
        let order = Order { scheme, part, bytes, touch: Touch::Checksum };
        let sender_order = Order { touch: scheme.sender_touch(), ..order };
        let (place, signals) = (scheme.place(), self.signals);
        let Pair { sender, .. } = self.pair(place)?;
        sender.ask(&Request::Prepare(sender_order))?;
        done(sender, signals)?;
        let before = self.clocks(place)?;
        let Pair { sender, receiver } = self.pair(place)?;
        receiver.ask(&Request::Round(order))?;
        sender.ask(&Request::Round(sender_order))?;
        let sent = streamed(sender, signals)?;
        let received = streamed(receiver, signals)?;
        let after = self.clocks(place)?;
        let name = scheme.name();
        ensure!(
            sent.bytes == received.bytes,
            "{name}: {} bytes sent, {} received",
            sent.bytes,
            received.bytes
        );
        if sender_order.touch == Touch::Checksum && sent.checksum != received.checksum {
            bail!(
                "{name}: checksum {} was sent and {} received: the bytes differ, or a file changed meanwhile",
                sent.checksum,
                received.checksum
            );
        }
        let ns = received.end_ns.checked_sub(sent.start_ns).context("the clock went backwards")?;
        let seconds = ns as f64 / 1e9;
        let machine = after.machine - before.machine;
        let spent = |after: Option<Duration>, before: Option<Duration>| {
            Some(after?.saturating_sub(before?).as_secs_f64())
        };
        Ok(Sample {
            part,
            scheme,
            round,
            bytes,
            seconds,
            gbit_per_s: bytes as f64 * 8.0 / 1e9 / seconds,
            cpu_s: machine.busy_s,
            cpu_s_per_gb: machine.busy_s / (bytes as f64 / 1e9),
            cores: machine.busy_s / seconds,
            steal_s: machine.steal_s,
            sender_cpu_s: spent(after.sender, before.sender),
            receiver_cpu_s: spent(after.receiver, before.receiver),
            driver_cpu_s: spent(after.driver, before.driver)
                .filter(|_| scheme.transport() == Transport::Pipedevice),
            checksum: received.checksum,
        })
    }

    fn clocks(&self, place: Place) -> Result<Clocks> {
        let pair = self.pairs.get(&place).context("these containers were not started")?;
        Ok(Clocks {
            machine: MachineTimes::now()?,
            sender: cpu_usage(&pair.sender),
            receiver: cpu_usage(&pair.receiver),
            driver: self.site.driver().and_then(ChildDriver::cpu_usage),
        })
    }
}

fn cpu_usage(peer: &Peer) -> Option<Duration> {
    peer.container()?.cpu_usage()
}

/// Waits until a peer did what was asked.
fn done(peer: &mut Peer, signals: &Signals) -> Result<()> {
    match peer.answer(signals)? {
        Reply::Done => Ok(()),
        other => bail!("an endpoint answered {other:?}"),
    }
}

/// Waits until a peer has its connection; what it has.
fn connected(peer: &mut Peer, signals: &Signals) -> Result<String> {
    match peer.answer(signals)? {
        Reply::Connected { has } => Ok(has),
        other => bail!("an endpoint answered {other:?}"),
    }
}

/// Waits for the end of a peer's round.
fn streamed(peer: &mut Peer, signals: &Signals) -> Result<Streamed> {
    match peer.answer(signals)? {
        Reply::Round(streamed) => Ok(streamed),
        other => bail!("an endpoint answered {other:?}"),
    }
}
