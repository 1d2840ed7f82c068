//! The two ends of a stream: what starts them, and what each kind of connection does.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use pd_harness::digest::Digest;

use super::protocol::Order;
use super::source::Source;

/// Which end of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// The sender.
    Send,
    /// The receiver.
    Recv,
}

impl Role {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Role::Send => "send",
            Role::Recv => "recv",
        }
    }
}

/// Arguments of the hidden subcommand.
#[derive(Clone, Debug, clap::Args)]
pub struct EndpointArgs {
    /// Which end of the stream.
    #[arg(long)]
    pub role: Role,
    /// Bytes of one message.
    #[arg(long)]
    pub message_bytes: usize,
    /// Memory that the sender sends from.
    #[arg(long)]
    pub window_bytes: usize,
    /// Bytes that the PipeDevice sender reads at a time in the file part.
    #[arg(long)]
    pub read_bytes: usize,
    /// Files to stream, for the sender.
    #[arg(last = true)]
    pub files: Vec<PathBuf>,
}

impl EndpointArgs {
    /// The command that runs such an endpoint.
    pub fn command(&self) -> Vec<OsString> {
        let mut command = vec![pd_harness::own_exe().into_os_string(), "internal-endpoint".into()];
        command.extend(["--role", self.role.name()].map(OsString::from));
        for (option, value) in [
            ("--message-bytes", self.message_bytes),
            ("--window-bytes", self.window_bytes),
            ("--read-bytes", self.read_bytes),
        ] {
            command.extend([option.into(), value.to_string().into()]);
        }
        command.push("--".into());
        command.extend(self.files.iter().map(|f| f.clone().into_os_string()));
        command
    }
}

/// A sender over one connection.
pub trait Sending {
    /// Returns what the connection has: a congestion control, or a path.
    fn has(&self) -> String;
    /// Allocates and fills what a round needs.
    fn prepare(&mut self, order: &Order, source: &Source) -> Result<()>;
    /// Sends one round, every message given to `digest` before it is sent.
    fn stream(&mut self, order: &Order, source: &Source, digest: &mut Digest) -> Result<()>;
    /// Ends the connection in order.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// A receiver over one connection.
pub trait Receiving {
    /// Returns what the connection has: a congestion control, or a path.
    fn has(&self) -> String;
    /// Receives exactly `bytes`, all of them given to `digest`.
    fn stream(&mut self, bytes: u64, digest: &mut Digest) -> Result<()>;
}

/// A receiver that waits for its connection.
pub trait Listening {
    /// The port it is on.
    fn port(&self) -> Result<u16>;
    /// Waits for the connection.
    fn accept(self: Box<Self>) -> Result<Box<dyn Receiving>>;
}
