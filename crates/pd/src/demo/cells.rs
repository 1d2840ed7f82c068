//! The demo's schemes as cells of a benchmark: each verifies the files once, then streams in rounds.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use pd_bench::bench::stream_cell::StreamCell;
use pd_bench::catalogue::{self, Cores};
use pd_bench::protocol::{Content, Files, Order};
use pd_bench::row::{Metrics, Params};
use pd_bench::run::interleave::Cell;
use pd_bench::run::stand::Stand;
use pd_harness::digest::Touch;
use serde::Serialize;
use serde_json::json;

use super::schemes::{Part, Scheme};

/// Seconds of a round at least, because CPU time is counted in ticks of 10 ms.
pub const ROUND_S: f64 = 0.8;

/// A scheme in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Part of the demo.
    pub part: Part,
    /// The scheme.
    pub scheme: Scheme,
    /// The round, from 1.
    pub round: u32,
    /// Bytes moved.
    pub bytes: u64,
    /// Time from before the first byte to the last one checksummed by the receiver.
    pub seconds: f64,
    /// Throughput.
    pub gbit_per_s: f64,
    /// CPU time of the whole machine.
    pub cpu_s: f64,
    /// CPU time of the whole machine for every 10^9 bytes.
    pub cpu_s_per_gb: f64,
    /// Cores busy on average.
    pub cores: f64,
    /// CPU time that the hypervisor took.
    pub steal_s: f64,
    /// CPU time of the sender.
    pub sender_cpu_s: Option<f64>,
    /// CPU time of the receiver.
    pub receiver_cpu_s: Option<f64>,
    /// CPU time of the driver, for PipeDevice.
    pub driver_cpu_s: Option<f64>,
    /// Checksum on which both sides agree.
    pub checksum: String,
}

/// Samples of all cells, in the order in which they were measured.
pub type Samples = Rc<RefCell<Vec<Sample>>>;

/// A scheme in a part of the demo.
pub struct DemoCell {
    part: Part,
    scheme: Scheme,
    stream: StreamCell,
    files: Files,
    last: Option<Metrics>,
    samples: Samples,
}

impl DemoCell {
    /// Streams messages of `message_bytes` in rounds of `bytes_min` or more; rounds that count go to `samples`.
    pub fn new(
        part: Part,
        scheme: Scheme,
        message_bytes: usize,
        bytes_min: u64,
        files: &Files,
        samples: &Samples,
    ) -> DemoCell {
        let stream = StreamCell {
            content: part.content(),
            bytes_min,
            ..StreamCell::of(scheme.in_catalogue(), message_bytes, ROUND_S)
        };
        DemoCell { part, scheme, stream, files: files.clone(), last: None, samples: samples.clone() }
    }
}

impl Cell for DemoCell {
    fn scheme(&self) -> catalogue::Scheme {
        self.stream.scheme
    }

    fn params(&self) -> Params {
        vec![("part", json!(self.part.name()))]
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        if self.part == Part::File {
            stand.pair(self.stream.scheme)?.open_files(&self.files, signals)?;
        }
        self.stream.open(stand)
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let metrics = self.stream.measure(stand)?;
        self.last = Some(metrics.clone());
        Ok(metrics)
    }

    fn keep(&mut self, round: usize) {
        let Some(metrics) = self.last.take() else { return };
        let figure = |name: &str| metrics.get(name).copied();
        let bytes = self.stream.messages * self.stream.message_bytes as u64;
        let gb = bytes as f64 / 1e9;
        let both = |user: &str, system: &str| Some((figure(user)? + figure(system)?) * gb);
        let some = |name: &str| figure(name).unwrap_or_default();
        self.samples.borrow_mut().push(Sample {
            part: self.part,
            scheme: self.scheme,
            round: round as u32,
            bytes,
            seconds: some("round_s"),
            gbit_per_s: some("throughput_gbit_per_s"),
            cpu_s: some("cpu_s_per_gb") * gb,
            cpu_s_per_gb: some("cpu_s_per_gb"),
            cores: some("cpu_cores"),
            steal_s: some("steal_s"),
            sender_cpu_s: both("sender_user_s_per_gb", "sender_system_s_per_gb"),
            receiver_cpu_s: both("receiver_user_s_per_gb", "receiver_system_s_per_gb"),
            driver_cpu_s: figure("driver_s_per_gb").map(|s| s * gb),
            checksum: self.stream.checksum.clone(),
        });
    }

    fn close(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        self.stream.close(stand)
    }
}

/// Connects a scheme's peers, and streams `bytes` of the files once if they are to be verified. Returns the report of both ends,
/// and the SHA-256 of the received bytes.
pub fn connect(
    scheme: Scheme,
    message_bytes: usize,
    files: &Files,
    bytes: Option<u64>,
    stand: &mut Stand<'_>,
) -> Result<(String, Option<String>)> {
    let signals = stand.signals;
    let pair = stand.pair(scheme.in_catalogue())?;
    pair.open(message_bytes, 1, Cores::default(), signals)?;
    let has = pair.describe(signals)?;
    let mut received = None;
    if let Some(bytes) = bytes {
        pair.open_files(files, signals)?;
        let send =
            Order { bytes, content: Content::Files, touch: Touch::Nothing, ..Order::of(message_bytes, 0) };
        let receive = Order { touch: Touch::Sha256, ..send };
        received = Some(pair.stream_apart((&send, &receive), signals)?.1.checksum);
    }
    pair.close(signals)?;
    Ok((has, received))
}
