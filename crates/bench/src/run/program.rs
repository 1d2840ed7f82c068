//! Programs that a peer runs for the benchmark `programs`: with the library or without, as the scheme says.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use crate::catalogue::Scheme;

const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A server, ended when dropped.
pub struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(scheme: Scheme, words: &[String]) -> Result<Command> {
    let (program, arguments) = words.split_first().context("no program is named")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    if !scheme.is_baseline() {
        let library: PathBuf = pd_harness::preload_library()?;
        command.env("LD_PRELOAD", library);
    }
    if scheme == Scheme::TcpPreload {
        command.env("PD_SOCKET", "/nonexistent");
    }
    Ok(command)
}

/// Returns whether anything listens on a port in this network namespace. A connection to find out would be a client
/// to the server.
fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    ["tcp", "tcp6"].iter().any(|family| {
        let table = std::fs::read_to_string(format!("/proc/self/net/{family}")).unwrap_or_default();
        table.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = |place: usize| words.get(place).copied().unwrap_or_default();
            at(1).ends_with(&format!(":{port:04X}")) && at(3) == LISTEN
        })
    })
}

/// Starts a server and waits until it listens.
pub fn start(scheme: Scheme, words: &[String], port: u16) -> Result<Server> {
    // The output is discarded: standard output is this peer's line to the benchmark.
    let child = command(scheme, words)?.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut server = Server(child.with_context(|| format!("cannot start {}", words[0]))?);
    let end = Instant::now() + START_TIMEOUT;
    while !is_listening(port) {
        let status = server.0.try_wait()?;
        ensure!(status.is_none(), "{} ended early: {status:?}", words[0]);
        ensure!(Instant::now() < end, "{} does not listen on port {port}", words[0]);
        sleep(Duration::from_millis(20));
    }
    Ok(server)
}

/// Runs a client to its end. Returns its output.
pub fn run(scheme: Scheme, words: &[String]) -> Result<String> {
    let output = command(scheme, words)?.output().with_context(|| format!("cannot start {}", words[0]))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{} ended with {}: {text}{errors}", words[0], output.status);
    Ok(text.into_owned())
}
