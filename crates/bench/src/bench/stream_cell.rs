//! A cell that streams: the base of most benchmarks.

use anyhow::Result;
use serde_json::json;

use crate::catalogue::{Cores, Scheme};
use crate::protocol::{Content, Order, Streamed};
use crate::row::{Metrics, Params};
use crate::run::interleave::Cell;
use crate::run::pair;
use crate::run::stand::Stand;

/// First volume with which the rate is estimated, in messages and in bytes.
const PROBE_MESSAGES: u64 = 20_000;
const PROBE_BYTES: u64 = 16 << 20;
/// Seconds of the second estimate.
const PROBE_S: f64 = 0.15;

/// Messages of one size over some connections, for about `round_s` seconds.
#[derive(Clone, Debug)]
pub struct StreamCell {
    /// Scheme of the connections.
    pub scheme: Scheme,
    /// The number of the scheme's pair.
    pub pair: usize,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Connections.
    pub connections: usize,
    /// Throughput that the sender does not exceed; also a parameter of the row.
    pub target_gbit_per_s: Option<f64>,
    /// Cores that the peers stay on.
    pub cores: Cores,
    /// Tells whether the receiver's longest gap is measured.
    pub gaps: bool,
    /// Further parameters of its rows: places and conditions.
    pub also: Params,
    /// Seconds of a round.
    pub round_s: f64,
    /// Source of the bytes.
    pub content: Content,
    /// The least bytes of a round.
    pub bytes_min: u64,
    /// Messages of a round, known once it is open.
    pub messages: u64,
    /// When the last round's stream began and ended, by the monotonic clock.
    pub span_ns: (u64, u64),
    /// The receiver's checksum of the last round.
    pub checksum: String,
}

impl StreamCell {
    /// Makes a cell with one connection of `scheme` from memory, on any cores.
    pub fn of(scheme: Scheme, message_bytes: usize, round_s: f64) -> StreamCell {
        StreamCell {
            scheme,
            pair: 0,
            message_bytes,
            connections: 1,
            target_gbit_per_s: None,
            cores: Cores::default(),
            gaps: false,
            also: Params::new(),
            round_s,
            content: Content::Memory,
            bytes_min: 0,
            messages: 0,
            span_ns: (0, 0),
            checksum: String::new(),
        }
    }

    fn order(&self, messages: u64) -> Order {
        // All connections get the same number, and at least one.
        let each = (messages / self.connections as u64).max(1);
        Order {
            content: self.content,
            target_gbit_per_s: self.target_gbit_per_s,
            gaps: self.gaps,
            ..Order::of(self.message_bytes, each * self.connections as u64)
        }
    }

    fn stream(&self, order: &Order, stand: &mut Stand<'_>) -> Result<(Streamed, Streamed)> {
        let signals = stand.signals;
        let send = Order { touch: self.scheme.sender_touch(), ..*order };
        stand.pair_of(self.scheme, self.pair)?.stream_apart((&send, order), signals)
    }

    /// Returns the number of messages for `seconds`, at the rate of a trial with `messages`.
    fn estimate(&self, stand: &mut Stand<'_>, messages: u64, seconds: f64) -> Result<u64> {
        let order = Order { target_gbit_per_s: None, ..self.order(messages) };
        let (sent, received) = self.stream(&order, stand)?;
        let mut per_s = order.messages() as f64 / pair::seconds(&sent, &received)?;
        if let Some(target) = self.target_gbit_per_s {
            per_s = per_s.min(target * 1e9 / 8.0 / self.message_bytes as f64);
        }
        Ok((per_s * seconds) as u64)
    }

    /// Connects without sending anything.
    pub fn connect(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        let signals = stand.signals;
        stand.pair_of(self.scheme, self.pair)?.open(self.message_bytes, self.connections, self.cores, signals)
    }

    /// Sends one untimed message on every connection. This restores rings that were taken back from idle
    /// connections, and the congestion windows of TCP.
    pub fn touch(&self, stand: &mut Stand<'_>) -> Result<()> {
        let order = Order { target_gbit_per_s: None, ..self.order(self.connections as u64) };
        self.stream(&order, stand)?;
        Ok(())
    }

    /// Finds out how much a round is, which also warms up.
    pub fn warm_up(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        let first = PROBE_MESSAGES.min(PROBE_BYTES / self.message_bytes as u64).max(self.connections as u64);
        let second = self.estimate(stand, first.max(8), PROBE_S.min(self.round_s))?;
        let least = self.bytes_min.div_ceil(self.message_bytes as u64);
        self.messages = self.estimate(stand, second.max(first), self.round_s)?.max(least);
        Ok(())
    }
}

impl Cell for StreamCell {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn params(&self) -> Params {
        let mut params: Params = vec![("message_bytes", json!(self.message_bytes))];
        if self.connections > 1 {
            params.push(("connections", json!(self.connections)));
        }
        if let Some(target) = self.target_gbit_per_s {
            params.push(("target_gbit_per_s", json!(target)));
        }
        params.extend(self.also.iter().cloned());
        params
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        self.connect(stand)?;
        self.warm_up(stand)?;
        Ok(Metrics::new())
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let order = self.order(self.messages);
        let before = stand.clocks()?;
        let (sent, received) = self.stream(&order, stand)?;
        let after = stand.clocks()?;
        let seconds = pair::seconds(&sent, &received)?;
        let gb = order.bytes as f64 / 1e9;
        let machine = after.machine - before.machine;
        let mut metrics = Metrics::from([
            ("throughput_gbit_per_s", gb * 8.0 / seconds),
            ("messages_per_s", order.messages() as f64 / seconds),
            ("cpu_cores", machine.busy_s / seconds),
            ("round_s", seconds),
        ]);
        if self.gaps {
            metrics.insert("longest_gap_ms", pair::longest_gap_ns(&sent, &received) as f64 / 1e6);
        }
        let driver = self.scheme.has_driver();
        pair::cpu(&mut metrics, gb, (&sent, &received), (before, after), driver);
        self.span_ns = (sent.start_ns, received.end_ns);
        self.checksum = received.checksum;
        Ok(metrics)
    }

    fn close(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        let signals = stand.signals;
        stand.pair_of(self.scheme, self.pair)?.close(signals)?;
        if !self.also.is_empty() {
            // Peers that are on a core stay there.
            stand.end_pairs(self.scheme);
        }
        Ok(())
    }
}
