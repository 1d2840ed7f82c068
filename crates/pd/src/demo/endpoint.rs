//! The program inside each of the demo's containers: a sender or a receiver that lives as long as the
//! demo, so that no process start is timed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{bail, Context, Result};
use clap::ValueEnum;
use pd_harness::digest::Digest;
use pd_harness::measure::now_ns;
use pd_harness::peer::{own_address, serve};

use super::protocol::{Order, Reply, Request, Streamed, Transport};
use super::source::Source;
use super::{pipedevice, tcp};

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
    /// What the connection has: a congestion control, or a path.
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
    /// What the connection has: a congestion control, or a path.
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

/// Runs the endpoint; returns the status to exit with.
pub fn main(args: &EndpointArgs) -> Result<i32> {
    let source = match args.role {
        Role::Send => Some(Source::open(&args.files)?),
        Role::Recv => None,
    };
    let mut endpoint = Endpoint {
        args,
        source,
        listening: BTreeMap::new(),
        sending: BTreeMap::new(),
        receiving: BTreeMap::new(),
    };
    serve(|request| matches!(request, Request::Quit), |request| endpoint.answer(request))?;
    Ok(0)
}

struct Endpoint<'a> {
    args: &'a EndpointArgs,
    source: Option<Source>,
    listening: BTreeMap<Transport, Box<dyn Listening>>,
    sending: BTreeMap<Transport, Box<dyn Sending>>,
    receiving: BTreeMap<Transport, Box<dyn Receiving>>,
}

impl Endpoint<'_> {
    fn answer(&mut self, request: Request) -> Result<Reply> {
        match request {
            Request::Listen { transport } => {
                let listener = match transport {
                    Transport::Tcp => tcp::listen(self.args)?,
                    Transport::Pipedevice => pipedevice::listen(self.args)?,
                };
                let at = (own_address()?, listener.port()?).into();
                self.listening.insert(transport, listener);
                return Ok(Reply::Listening { at });
            }
            Request::Connect { transport, to } => {
                let sender = match transport {
                    Transport::Tcp => tcp::connect(self.args, to)?,
                    Transport::Pipedevice => pipedevice::connect(self.args, to)?,
                };
                let has = sender.has();
                self.sending.insert(transport, sender);
                return Ok(Reply::Connected { has });
            }
            Request::Accept { transport } => {
                let listener = self.listening.remove(&transport).context("not listening")?;
                let receiver = listener.accept()?;
                let has = receiver.has();
                self.receiving.insert(transport, receiver);
                return Ok(Reply::Connected { has });
            }
            Request::Prepare(order) => {
                if let Some(source) = &self.source {
                    let sender = self.sending.get_mut(&order.scheme.transport());
                    sender.context("not connected")?.prepare(&order, source)?;
                }
            }
            Request::Round(order) => return self.round(&order),
            Request::Quit => {
                for (_, sender) in std::mem::take(&mut self.sending) {
                    sender.finish()?;
                }
                self.receiving.clear();
            }
        }
        Ok(Reply::Done)
    }

    fn round(&mut self, order: &Order) -> Result<Reply> {
        let mut digest = Digest::new(order.touch, self.args.message_bytes);
        let transport = order.scheme.transport();
        let start_ns = now_ns();
        match (&self.source, self.sending.get_mut(&transport), self.receiving.get_mut(&transport)) {
            (Some(source), Some(sender), _) => sender.stream(order, source, &mut digest)?,
            (_, _, Some(receiver)) => receiver.stream(order.bytes, &mut digest)?,
            _ => bail!("not connected"),
        }
        let checksum = digest.finish();
        Ok(Reply::Round(Streamed { bytes: order.bytes, checksum, start_ns, end_ns: now_ns() }))
    }
}
