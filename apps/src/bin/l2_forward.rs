//! `l2_forward PORT PORT`: sends frames of one port out at the other, both ways, without parsing them.
#![forbid(unsafe_code)]

use anyhow::{bail, Result};
use pd_apps::arguments;
use pd_client::pipe::{Direction, Options, Pipe};
use pd_client::Error;
use rustix::event::{poll, PollFd, PollFlags};

const USAGE: &str = "l2_forward PORT PORT";

fn main() -> Result<()> {
    let ports = arguments(USAGE);
    let [near, far] = &ports[..] else { bail!("usage: {USAGE}") };
    let open = |from: &str, to: &str| Pipe::open(&Options::new(Direction::Forward, from).and_port(to));
    let mut pipes = [open(near, far)?, open(far, near)?];
    for pipe in &mut pipes {
        pipe.fd()?;
    }
    loop {
        let mut idle = true;
        for pipe in &mut pipes {
            if pipe.arm().map_err(Error::from)? {
                idle = false;
                let mut frames = pipe.frames().map_err(Error::from)?;
                while let Some(mut frame) = frames.next() {
                    frame.verdict(1);
                }
            }
        }
        if idle {
            let [near, far] = &mut pipes;
            let (near, far) = (near.fd()?, far.fd()?);
            poll(&mut [PollFd::new(&near, PollFlags::IN), PollFd::new(&far, PollFlags::IN)], None)?;
        }
    }
}
