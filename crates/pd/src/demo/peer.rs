//! The demo's handle on an endpoint in a container.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use super::endpoint::{EndpointArgs, Role};
use super::protocol::{Reply, Request};
use crate::container::{Container, Invocation, Spec};
use crate::signals::{interrupted, Signals, Wake};

const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

/// An endpoint in a container of its own. Dropping it ends both.
pub struct Peer {
    name: String,
    stdin: ChildStdin,
    stdout: ChildStdout,
    unread: Vec<u8>,
    container: Container,
}

/// What an endpoint says about one round.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// Bytes it sent or received.
    pub bytes: u64,
    /// Their checksum.
    pub checksum: String,
    /// Monotonic clock at its start.
    pub start_ns: u64,
    /// Monotonic clock at its end.
    pub end_ns: u64,
}

impl Peer {
    /// Starts a container with an endpoint in it.
    pub fn start(spec: &Spec, args: &EndpointArgs) -> Result<Peer> {
        let role = match args.role {
            Role::Send => "send",
            Role::Recv => "recv",
        };
        let mut command = vec![crate::own_exe().into_os_string()];
        command.extend(["internal-endpoint", "--role", role, "--message-bytes"].map(Into::into));
        command.push(args.message_bytes.to_string().into());
        for (option, value) in [("--window-bytes", args.window_bytes), ("--read-bytes", args.read_bytes)] {
            command.extend([option.into(), value.to_string().into()]);
        }
        command.push("--".into());
        command.extend(args.files.iter().map(|f| f.clone().into_os_string()));
        let invocation = Invocation { command, stdin: Stdio::piped(), stdout: Stdio::piped() };
        let mut container = Container::start(spec, invocation)?;
        let stdin = container.take_stdin().context("standard input is a pipe")?;
        let stdout = container.take_stdout().context("standard output is a pipe")?;
        Ok(Peer { name: spec.name.clone(), stdin, stdout, unread: Vec::new(), container })
    }

    /// Its container.
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// Asks for something; the answer is awaited apart, so that two peers can work at once.
    pub fn ask(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stdin.write_all(&line).with_context(|| format!("endpoint {} is gone", self.name))
    }

    /// Waits for an answer, a signal or the end of patience.
    pub fn answer(&mut self, signals: &Signals) -> Result<Reply> {
        let end = Instant::now() + REPLY_TIMEOUT;
        loop {
            if let Some(at) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=at).collect();
                return match serde_json::from_slice(&line).context("garbage from an endpoint")? {
                    Reply::Failed { reason } => bail!("endpoint {}: {reason}", self.name),
                    reply => Ok(reply),
                };
            }
            let left = end.saturating_duration_since(Instant::now());
            match signals.wait(self.stdout.as_fd(), Some(left))? {
                Wake::Ready => {
                    let mut some = [0; 4096];
                    let n = self.stdout.read(&mut some)?;
                    ensure!(
                        n > 0,
                        "endpoint {} (container process {}) ended early",
                        self.name,
                        self.container.pid()
                    );
                    self.unread.extend_from_slice(&some[..n]);
                }
                Wake::Signal(caught) => return Err(interrupted(caught)),
                Wake::TimedOut => {
                    bail!("endpoint {} did not answer within {} s", self.name, REPLY_TIMEOUT.as_secs())
                }
            }
        }
    }

    /// Waits until it did what was asked.
    pub fn done(&mut self, signals: &Signals) -> Result<()> {
        match self.answer(signals)? {
            Reply::Done => Ok(()),
            other => bail!("endpoint {} answered {other:?}", self.name),
        }
    }

    /// Waits for the address it listens on.
    pub fn listening(&mut self, signals: &Signals) -> Result<SocketAddr> {
        match self.answer(signals)? {
            Reply::Listening { at } => Ok(at),
            other => bail!("endpoint {} answered {other:?}", self.name),
        }
    }

    /// Waits for the end of a round.
    pub fn streamed(&mut self, signals: &Signals) -> Result<Streamed> {
        match self.answer(signals)? {
            Reply::Round { bytes, checksum, start_ns, end_ns } => {
                Ok(Streamed { bytes, checksum, start_ns, end_ns })
            }
            other => bail!("endpoint {} answered {other:?}", self.name),
        }
    }
}
