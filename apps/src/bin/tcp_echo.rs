//! `tcp_echo PORT ADDRESS/PREFIX [TCP-PORT]`: a server of TCP at port 7, or another, that sends received bytes back. Also answers
//! ARP.
#![forbid(unsafe_code)]

use anyhow::{anyhow, bail, Context, Result};
use pd_apps::tcp::echo::Echo;
use pd_apps::tcp::{address, Host};
use pd_apps::{arguments, number};

/// Connections at once.
const CONNECTIONS: usize = 64;

const USAGE: &str = "tcp_echo PORT ADDRESS/PREFIX [TCP-PORT]";

fn main() -> Result<()> {
    let words = arguments(USAGE);
    let (port, own, tcp_port) = match &words[..] {
        [port, own] => (port, own, 7),
        [port, own, tcp_port] => (port, own, number("TCP-PORT", tcp_port)?),
        _ => bail!("usage: {USAGE}"),
    };
    let mut host = Host::open(port, address(own).context("an address is as 10.0.0.2/24")?)?;
    let mut echo = Echo::new(&mut host.sockets, tcp_port, CONNECTIONS);
    loop {
        host.poll()?;
        echo.turn(&mut host.sockets).map_err(|why| anyhow!("cannot listen: {why}"))?;
        host.sleep()?;
    }
}
