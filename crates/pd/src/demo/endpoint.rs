//! The program inside each of the demo's containers: a sender or a receiver that lives as long as the
//! demo, so that no process start is timed.

use std::collections::BTreeMap;

use anyhow::{bail, Context, Result};
use pd_harness::digest::Digest;
use pd_harness::measure::now_ns;
use pd_harness::peer::{own_address, serve};

use super::ends::{EndpointArgs, Listening, Receiving, Role, Sending};
use super::protocol::{Order, Reply, Request, Streamed, Transport};
use super::source::Source;
use super::{pipedevice, tcp};

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
