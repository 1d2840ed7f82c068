//! `maglev PORT SERVICE BACKENDS [OUT]`: a load balancer. SERVICE is ADDRESS:PORT; BACKENDS are ADDRESS/MAC with commas between them.
//! Frames go on by the port OUT, or back.
#![forbid(unsafe_code)]

use anyhow::{bail, Context, Result};
use pd_apps::maglev::{Backend, Maglev};
use pd_apps::{arguments, over_pipe, Verdict};
use pd_client::pipe::{Direction, Options, Pipe};
use std::net::SocketAddrV4;

fn backend(text: &str) -> Option<Backend> {
    let (address, mac) = text.split_once('/')?;
    let mut bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let mut next = || bytes.next()?.ok();
    let mac = [next()?, next()?, next()?, next()?, next()?, next()?];
    if bytes.next().is_some() {
        return None;
    }
    Some(Backend { address: address.parse().ok()?, mac })
}

const USAGE: &str = "maglev PORT ADDRESS:PORT ADDRESS/MAC,... [OUT]";

fn main() -> Result<()> {
    let words = arguments(USAGE);
    let (port, service, backends, out) = match &words[..] {
        [port, service, backends] => (port, service, backends, None),
        [port, service, backends, out] => (port, service, backends, Some(out)),
        _ => bail!("usage: {USAGE}"),
    };
    let service: SocketAddrV4 =
        service.parse().with_context(|| format!("a service is ADDRESS:PORT, not '{service}'"))?;
    let parse = |text| backend(text).with_context(|| format!("a backend is ADDRESS/MAC, not '{text}'"));
    let backends = backends.split(',').map(parse).collect::<Result<Vec<_>>>()?;
    let mut options = Options::new(Direction::Forward, port);
    let mut to = Verdict::Back;
    if let Some(out) = out {
        (options, to) = (options.and_port(out), Verdict::To(1));
    }
    let mut app = Maglev::new(*service.ip(), service.port(), &backends, to);
    let mut pipe = Pipe::open(&options)?;
    loop {
        pipe.wait(None)?;
        over_pipe(&mut pipe, None, &mut app).map_err(pd_client::Error::from)?;
    }
}
