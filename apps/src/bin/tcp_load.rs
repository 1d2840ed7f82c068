//! `tcp_load PORT ADDRESS/PREFIX SERVER:TCP-PORT CONNECTIONS BYTES`: a client of `tcp_echo`. Sends bytes on several connections at once, closes
//! its half of each, and checks that all come back.
#![forbid(unsafe_code)]

use anyhow::{bail, ensure, Context, Result};
use pd_apps::tcp::load::Load;
use pd_apps::tcp::{address, Host};
use pd_apps::{arguments, number};
use std::io::Write;

const USAGE: &str = "tcp_load PORT ADDRESS/PREFIX SERVER:TCP-PORT CONNECTIONS BYTES";

fn main() -> Result<()> {
    let words = arguments(USAGE);
    let [port, own, server, connections, bytes] = &words[..] else { bail!("usage: {USAGE}") };
    let (connections, bytes) = (number("CONNECTIONS", connections)?, number("BYTES", bytes)?);
    ensure!((1..=1000).contains(&connections) && bytes > 0, "1 to 1000 connections, at least a byte");
    let mut host = Host::open(port, address(own).context("an address is as 10.0.0.2/24")?)?;
    let mut load = Load::begin(
        &mut host,
        server.parse().with_context(|| format!("a server is ADDRESS:TCP-PORT, not '{server}'"))?,
        connections,
        bytes,
    )?;
    loop {
        host.poll()?;
        if load.turn(&mut host.sockets)? {
            break;
        }
        host.sleep()?;
    }
    host.finish()?;
    writeln!(std::io::stdout(), "{connections} connections, {bytes} bytes each, all back")?;
    Ok(())
}
