//! hyper on tokio, and wrk: small answers on connections that stay.
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use super::nginx::parse_wrk;
use super::{words, Load, Work};
use crate::row::Params;
use crate::scheme::Scheme;

/// Bytes of an answer.
const BYTES: u32 = 64;

/// So many connections, each with one request after the other.
pub(super) struct Hyper {
    pub connections: u32,
}

/// The server, an example of the tests, beside this program.
fn server() -> Option<PathBuf> {
    let program = pd_harness::own_exe().parent()?.join("examples/tokio_web");
    program.is_file().then_some(program)
}

impl Load for Hyper {
    fn name(&self) -> &'static str {
        "hyper"
    }

    fn params(&self) -> Params {
        vec![("connections", json!(self.connections))]
    }

    fn needs(&self) -> &'static [(&'static str, &'static str)] {
        &[("wrk", "wrk")]
    }

    fn lacks(&self) -> Option<&'static str> {
        let build = "tokio_web is not built; run: \
                     cargo build --release --package pd-tests --features programs --example tokio_web";
        server().is_none().then_some(build)
    }

    fn port(&self) -> u16 {
        7501
    }

    fn server(&self, _dir: &Path) -> Result<Vec<String>> {
        let program = server().unwrap_or_default();
        Ok(vec![program.display().to_string(), "server".to_owned()])
    }

    fn client(
        &self,
        _scheme: Scheme,
        server: &str,
        _dir: &Path,
        seconds: f64,
        _requests: u64,
    ) -> Vec<String> {
        let (port, connections, seconds) = (self.port(), self.connections, seconds.ceil().max(1.0));
        words(&format!("wrk -t 1 -c {connections} -d {seconds} http://{server}:{port}/{BYTES}"))
    }

    fn parse(&self, text: &str, _requests: u64) -> Option<Work> {
        parse_wrk(text)
    }
}
