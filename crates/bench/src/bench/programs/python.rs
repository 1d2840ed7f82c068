//! Programs in Python on libraries with event loops of their own: gRPC, uvloop, and PyTorch's Gloo. Each prints its work
//! in one line.
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::{Load, Work};
use crate::catalogue::Scheme;
use crate::row::Params;

/// A program, and its load.
pub(super) struct Python {
    name: &'static str,
    script: &'static str,
    needs: &'static [(&'static str, &'static str)],
    port: u16,
    /// The program's first argument as a client, before the server's address.
    kind: Option<&'static str>,
    /// Processes that take part, half of them on each side.
    ranks: Option<u32>,
}

const GRPC: &[(&str, &str)] =
    &[("/usr/bin/python3", "python3"), ("/usr/lib/python3/dist-packages/grpc", "python3-grpcio")];
const UVLOOP: &[(&str, &str)] =
    &[("/usr/bin/python3", "python3"), ("/usr/lib/python3/dist-packages/uvloop", "python3-uvloop")];
const TORCH: &[(&str, &str)] =
    &[("/usr/bin/python3", "python3"), ("/usr/lib/python3/dist-packages/torch", "python3-torch")];

impl Python {
    pub(super) const GRPC_STREAM: Python = Python {
        name: "grpc-stream",
        script: include_str!("grpc.py"),
        needs: GRPC,
        port: 5005,
        kind: Some("stream"),
        ranks: None,
    };
    pub(super) const GRPC_UNARY: Python =
        Python { name: "grpc-unary", kind: Some("unary"), ..Python::GRPC_STREAM };
    pub(super) const UVLOOP: Python = Python {
        name: "uvloop",
        script: include_str!("uvloop.py"),
        needs: UVLOOP,
        port: 5006,
        kind: None,
        ranks: None,
    };

    pub(super) const fn gloo(ranks: u32) -> Python {
        Python {
            name: "gloo",
            script: include_str!("gloo.py"),
            needs: TORCH,
            port: 5007,
            kind: None,
            ranks: Some(ranks),
        }
    }

    fn command(&self, dir: &Path, arguments: impl IntoIterator<Item = String>) -> Vec<String> {
        let script = dir.join(format!("load-{}.py", self.name)).display().to_string();
        ["/usr/bin/python3".to_owned(), script].into_iter().chain(arguments).collect()
    }
}

impl Load for Python {
    fn name(&self) -> &'static str {
        self.name
    }

    fn params(&self) -> Params {
        self.ranks.map(|ranks| ("ranks", json!(ranks))).into_iter().collect()
    }

    fn needs(&self) -> &'static [(&'static str, &'static str)] {
        self.needs
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn server(&self, dir: &Path) -> Result<Vec<String>> {
        std::fs::write(dir.join(format!("load-{}.py", self.name)), self.script)?;
        Ok(self.command(dir, ["serve".to_owned()].into_iter().chain(self.ranks.map(|n| n.to_string()))))
    }

    fn client(&self, _scheme: Scheme, server: &str, dir: &Path, seconds: f64, _requests: u64) -> Vec<String> {
        let kind = self.kind.map(str::to_owned).into_iter();
        let ranks = self.ranks.map(|n| n.to_string());
        self.command(dir, kind.chain([server.to_owned()]).chain(ranks).chain([seconds.to_string()]))
    }

    fn parse(&self, text: &str, _requests: u64) -> Option<Work> {
        let mut words = text.lines().last()?.split_whitespace();
        let kind = words.next()?;
        let (count, seconds) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        match kind {
            "bytes" => Some(Work::Bytes(count, seconds)),
            "requests" => Some(Work::Requests(count, seconds)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts() {
        let parse = |text| Python::UVLOOP.parse(text, 0);
        assert_eq!(parse("a warning\nbytes 4096 2.5\n"), Some(Work::Bytes(4096.0, 2.5)));
        assert_eq!(parse("requests 10 1\n"), Some(Work::Requests(10.0, 1.0)));
        assert_eq!(parse("Traceback\n"), None);
    }
}
