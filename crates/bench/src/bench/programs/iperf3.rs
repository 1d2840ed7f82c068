//! iperf3: bulk.
use std::path::Path;

use anyhow::Result;
use serde_json::{json, Value};

use super::{words, Load, Work};
use crate::catalogue::Scheme;
use crate::row::Params;

/// iperf3 with `streams` streams.
pub(super) struct Iperf3 {
    pub streams: u32,
}

impl Load for Iperf3 {
    fn name(&self) -> &'static str {
        "iperf3"
    }

    fn params(&self) -> Params {
        vec![("streams", json!(self.streams))]
    }

    fn needs(&self) -> &'static [(&'static str, &'static str)] {
        &[("iperf3", "iperf3")]
    }

    fn port(&self) -> u16 {
        5201
    }

    fn server(&self, _dir: &Path) -> Result<Vec<String>> {
        Ok(words("iperf3 --server"))
    }

    fn client(&self, scheme: Scheme, server: &str, _dir: &Path, seconds: f64, _requests: u64) -> Vec<String> {
        let (streams, seconds) = (self.streams, seconds.ceil().max(1.0));
        let zero_copy = if scheme == Scheme::TcpTuned { " --zerocopy" } else { "" };
        words(&format!("iperf3 --json --client {server} --time {seconds} --parallel {streams}{zero_copy}"))
    }

    fn parse(&self, text: &str, _requests: u64) -> Option<Work> {
        let result: Value = serde_json::from_str(text).ok()?;
        let sum = &result["end"]["sum_received"];
        Some(Work::Bytes(sum["bytes"].as_f64()?, sum["seconds"].as_f64()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_received_is_what_counts() {
        let iperf3 = Iperf3 { streams: 1 };
        let text = r#"{"end":{"sum_received":{"bytes":1000,"seconds":2.0}}}"#;
        assert_eq!(iperf3.parse(text, 0), Some(Work::Bytes(1000.0, 2.0)));
        assert_eq!(iperf3.parse(r#"{"error":"refused"}"#, 0), None);
    }
}
