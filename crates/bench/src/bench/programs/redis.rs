//! redis and its own benchmark: one thread on each side, many connections.
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::{words, Load, Work};
use crate::catalogue::Scheme;
use crate::row::Params;

/// SET and GET of values of `bytes` bytes, with `pipeline` requests under way on each of `connections` connections.
pub(super) struct Redis {
    pub bytes: u32,
    pub pipeline: u32,
    pub connections: u32,
}

impl Load for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn params(&self) -> Params {
        vec![
            ("value_bytes", json!(self.bytes)),
            ("pipeline", json!(self.pipeline)),
            ("connections", json!(self.connections)),
        ]
    }

    fn needs(&self) -> &'static [(&'static str, &'static str)] {
        &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")]
    }

    fn port(&self) -> u16 {
        6379
    }

    fn server(&self, dir: &Path) -> Result<Vec<String>> {
        let at = dir.display();
        let line =
            format!("redis-server --bind 0.0.0.0 --protected-mode no --appendonly no --dir {at} --save");
        Ok(words(&line))
    }

    fn client(
        &self,
        _scheme: Scheme,
        server: &str,
        _dir: &Path,
        _seconds: f64,
        requests: u64,
    ) -> Vec<String> {
        let Redis { bytes, pipeline, connections } = self;
        words(&format!(
            "redis-benchmark -h {server} --csv -t set,get -c {connections} -d {bytes} -P {pipeline} -n {requests}"
        ))
    }

    fn parse(&self, text: &str, requests: u64) -> Option<Work> {
        // "SET","52631.58",...: SET and GET one after the other.
        let rates: Option<Vec<f64>> = text
            .lines()
            .filter(|line| line.starts_with("\"SET\"") || line.starts_with("\"GET\""))
            .map(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok())
            .collect();
        let rates = rates.filter(|rates| rates.len() == 2)?;
        let seconds = rates.iter().map(|rate| requests as f64 / rate).sum();
        Some(Work::Requests(2.0 * requests as f64, seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_rates_count() {
        let redis = Redis { bytes: 64, pipeline: 1, connections: 50 };
        let text = "\"test\",\"rps\"\n\"SET\",\"50000.00\",\"1\"\n\"GET\",\"100000.00\",\"1\"\n";
        assert_eq!(redis.parse(text, 1000), Some(Work::Requests(2000.0, 0.03)));
        assert_eq!(redis.parse("\"SET\",\"50000.00\"\n", 1000), None);
    }
}
