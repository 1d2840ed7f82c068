//! The program of a peer, which carries out one request after the other.

use std::path::PathBuf;

use anyhow::{bail, Context, Result};
use pd_harness::measure::now_ns;
use pd_harness::peer::{own_address, serve};
use pd_harness::tuning;
use rustix::thread::{sched_setaffinity, CpuSet};

use super::times::ProcessTimes;
use super::{program, share, stream};
use crate::attack::{self, Running};
use crate::catalogue::{Place, Scheme, Waiting};
use crate::files::Source;
use crate::protocol::{Latency, Open, Reply, Request, Streamed};
use crate::scheme::{self, local, End, Listening};
use crate::waiting;

/// Arguments of the hidden subcommand.
#[derive(Clone, Debug, clap::Args)]
pub struct PeerArgs {
    /// Directory that both peers share.
    #[arg(long)]
    pub dir: PathBuf,
    /// Way in which the peer waits
    #[arg(long, value_enum, default_value = "shipped")]
    pub waiting: Waiting,
}

/// Runs the peer; returns the status to exit with.
pub fn main(args: &PeerArgs) -> Result<i32> {
    waiting::set(args.waiting)?;
    let mut peer = Peer {
        dir: args.dir.clone(),
        listening: None,
        end: None,
        source: None,
        connections: 0,
        sends: false,
        server: None,
        attack: None,
    };
    serve(|request| matches!(request, Request::Quit), |request| peer.answer(request))?;
    Ok(0)
}

struct Peer {
    dir: PathBuf,
    listening: Option<(Box<dyn Listening>, Open)>,
    end: Option<Box<dyn End>>,
    source: Option<Source>,
    connections: usize,
    sends: bool,
    server: Option<program::Server>,
    attack: Option<Running>,
}

impl Peer {
    fn answer(&mut self, request: Request) -> Result<Reply> {
        match request {
            Request::Listen(open) => {
                pin(open.core)?;
                let listening = scheme::listen(&open, &self.dir)?;
                let address = listening.address()?;
                self.listening = Some((listening, open));
                return Ok(Reply::At { address });
            }
            Request::Connect { open, to } => {
                pin(open.core)?;
                let (end, address) = scheme::connect(&open, &to)?;
                (self.end, self.connections, self.sends) = (Some(end), open.connections, true);
                return Ok(Reply::At { address });
            }
            Request::Accept { from } => {
                let (listening, open) = self.listening.take().context("not listening")?;
                self.end = Some(listening.accept(&from)?);
                (self.connections, self.sends) = (open.connections, false);
            }
            Request::Files(files) => self.source = Some(Source::open_mapped(&files)?),
            Request::Stream(order) => {
                let Peer { sends, connections, source, end, .. } = self;
                let end = &mut **end.as_mut().context("not connected")?;
                return Ok(Reply::Streamed(match sends {
                    true => stream::send(end, *connections, &order, source.as_ref())?,
                    false => stream::receive(end, *connections, &order)?,
                }));
            }
            Request::PingPong(order) => {
                let sends = self.sends;
                let end = self.open_end()?;
                return Ok(Reply::Latency(match sends {
                    true => stream::ping(end, &order)?,
                    false => stream::pong(end, &order).map(|()| Latency::default())?,
                }));
            }
            Request::Share { message_bytes, ms } => {
                let end = self.end.take().context("not connected")?;
                return match self.sends {
                    true => share::send(end, message_bytes, ms),
                    false => share::receive(end, message_bytes),
                };
            }
            Request::SetUp { open, to, connections } => return self.set_up(&open, &to, connections),
            Request::Local { scheme, order } => return Ok(Reply::Streamed(local::run(scheme, &order)?)),
            Request::Serve { scheme, command, port } => {
                self.server = Some(program::start(scheme, &command, port)?);
                return Ok(Reply::At { address: own_address()?.to_string() });
            }
            Request::Run { scheme, command } => {
                return Ok(Reply::Printed { text: program::run(scheme, &command)? });
            }
            Request::Describe { scheme } => return Ok(Reply::Printed { text: self.describe(scheme) }),
            Request::Attack { attack } => {
                self.attack = Some(attack::start(attack, self.dir.join("driver.sock"))?);
            }
            Request::Attacked => {
                return Ok(Reply::Attacked(self.attack.as_mut().context("no attack was ordered")?.done()?));
            }
            Request::Carried { from_ns, to_ns } => {
                let attack = self.attack.as_ref().context("no attack was ordered")?;
                return Ok(Reply::Carried { bytes: attack.carried(from_ns, to_ns) });
            }
            Request::Close | Request::Quit => {
                self.server = None;
                self.listening = None;
                if let Some(end) = self.end.take() {
                    end.close()?;
                }
            }
        }
        Ok(Reply::Done)
    }

    fn open_end(&mut self) -> Result<&mut dyn End> {
        match &mut self.end {
            Some(end) => Ok(&mut **end),
            None => bail!("not connected"),
        }
    }

    /// Returns the connection's own congestion control with that of its network namespace, or the connection's path.
    fn describe(&self, scheme: Scheme) -> String {
        let own = self.end.as_ref().map_or(String::new(), |end| end.described());
        match (scheme.is_over_tcp() && scheme.place() == Place::Containers, own.is_empty()) {
            (false, _) => own,
            (true, true) => tuning::in_force(),
            (true, false) => format!("{own} (network namespace: {})", tuning::in_force()),
        }
    }

    fn set_up(&mut self, open: &Open, to: &str, connections: u64) -> Result<Reply> {
        let (times, start_ns) = (ProcessTimes::now(), now_ns());
        match &mut self.listening {
            Some((listening, _)) => listening.accept_and_close(connections)?,
            None => scheme::connect_and_close(open, to, connections)?,
        }
        let end_ns = now_ns();
        let (user_s, system_s) = times.elapsed();
        let bytes = connections;
        Ok(Reply::Streamed(Streamed { bytes, start_ns, end_ns, user_s, system_s, ..Streamed::default() }))
    }
}

/// Keeps this thread and those it starts on a core.
fn pin(core: Option<usize>) -> Result<()> {
    if let Some(core) = core {
        let mut cores = CpuSet::new();
        cores.set(core);
        sched_setaffinity(None, &cores).with_context(|| format!("cannot stay on core {core}"))?;
    }
    Ok(())
}
