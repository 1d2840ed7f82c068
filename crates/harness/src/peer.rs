//! A process that does its part of a measurement on request: one JSON request a line on its standard input,
//! one JSON answer a line on its standard output. The process runs in a container or on the host.

use std::ffi::OsString;
use std::io::{stdin, stdout, BufRead, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::container::jobs::Terminal;
use crate::container::{Container, Invocation, Spec};
use crate::signals::{interrupted, Signals, Wake};

const PATIENCE: Duration = Duration::from_secs(120);

/// A peer's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome<R> {
    Done(R),
    Failed(String),
}

/// A peer. Dropping it ends its process and, if it has one, its container.
pub struct Peer {
    name: String,
    stdin: ChildStdin,
    stdout: ChildStdout,
    unread: Vec<u8>,
    patience: Duration,
    home: Home,
}

enum Home {
    Container(Box<Container>),
    Host(Child),
}

impl Peer {
    /// Starts `command` in a container.
    pub fn in_container(spec: &Spec, command: Vec<OsString>) -> Result<Peer> {
        let invocation =
            Invocation { command, stdin: Stdio::piped(), stdout: Stdio::piped(), terminal: Terminal::None };
        let mut container = Container::start(spec, invocation)?;
        let (stdin, stdout) = (container.take_stdin(), container.take_stdout());
        Peer::new(&spec.name, stdin, stdout, Home::Container(Box::new(container)))
    }

    /// Starts `command` in the namespaces of this process; it dies with the calling thread.
    pub fn on_host(name: &str, command: Vec<OsString>) -> Result<Peer> {
        let mut child = Command::new(crate::own_exe())
            .args(["internal-tied", "--parent", &std::process::id().to_string(), "--"])
            .args(command)
            .env("PD_ADDRESS", "127.0.0.1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a copy of pd")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Peer::new(name, stdin, stdout, Home::Host(child))
    }

    fn new(name: &str, stdin: Option<ChildStdin>, stdout: Option<ChildStdout>, home: Home) -> Result<Peer> {
        let stdin = stdin.context("standard input is a pipe")?;
        let stdout = stdout.context("standard output is a pipe")?;
        Ok(Peer { name: name.to_owned(), stdin, stdout, unread: Vec::new(), patience: PATIENCE, home })
    }

    /// Sets the longest time for an answer from now on.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Returns the peer's container, if it has one.
    pub fn container(&self) -> Option<&Container> {
        match &self.home {
            Home::Container(container) => Some(container),
            Home::Host(_) => None,
        }
    }

    /// Asks for something; the answer is awaited apart, so that two peers can work at once.
    pub fn ask(&mut self, request: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stdin.write_all(&line).with_context(|| format!("peer {} is gone", self.name))
    }

    /// Waits for an answer, a signal or the end of patience.
    pub fn answer<R: DeserializeOwned>(&mut self, signals: &Signals) -> Result<R> {
        let end = Instant::now() + self.patience;
        loop {
            if let Some(at) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=at).collect();
                return match serde_json::from_slice(&line).context("garbage from a peer")? {
                    Outcome::Done(answer) => Ok(answer),
                    Outcome::Failed(reason) => bail!("peer {}: {reason}", self.name),
                };
            }
            let left = end.saturating_duration_since(Instant::now());
            match signals.wait(self.stdout.as_fd(), Some(left))? {
                Wake::Ready => {
                    let mut some = [0; 4096];
                    let n = self.stdout.read(&mut some)?;
                    ensure!(n > 0, "peer {} ended early", self.name);
                    self.unread.extend_from_slice(&some[..n]);
                }
                Wake::Signal(caught) => return Err(interrupted(caught)),
                Wake::TimedOut => {
                    bail!("peer {} did not answer within {} s", self.name, self.patience.as_secs())
                }
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Home::Host(child) = &mut self.home {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the peer's side: answers requests with `answer` until one is the `last` or the requests end.
pub fn serve<Q: DeserializeOwned, R: Serialize>(
    last: impl Fn(&Q) -> bool,
    mut answer: impl FnMut(Q) -> Result<R>,
) -> Result<()> {
    for line in stdin().lock().lines() {
        let request: Q = serde_json::from_str(&line?).context("garbage on standard input")?;
        let ends = last(&request);
        let outcome = match answer(request) {
            Ok(answer) => Outcome::Done(answer),
            Err(e) => Outcome::Failed(format!("{e:#}")),
        };
        let mut out = stdout().lock();
        serde_json::to_writer(&mut out, &outcome)?;
        out.write_all(b"\n")?;
        out.flush()?;
        if ends {
            break;
        }
    }
    Ok(())
}

/// Returns the own address, which a peer gets in `PD_ADDRESS`.
pub fn own_address() -> Result<Ipv4Addr> {
    let address = std::env::var("PD_ADDRESS").context("PD_ADDRESS is not set; peers are started by pd")?;
    address.parse().with_context(|| format!("PD_ADDRESS = '{address}' is no IPv4 address"))
}
