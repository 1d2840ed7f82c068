//! `echo PORT`: sends each frame of a port back to its sender, where it lies in the ring.
#![forbid(unsafe_code)]

use anyhow::{bail, Result};
use pd_apps::arguments;
use pd_client::pipe::{Direction, Options, Pipe};

const USAGE: &str = "echo PORT";

fn main() -> Result<()> {
    let words = arguments(USAGE);
    let [port] = &words[..] else { bail!("usage: {USAGE}") };
    let mut pipe = Pipe::open(&Options::new(Direction::Forward, port))?;
    loop {
        pipe.wait(None)?;
        let mut frames = pipe.frames().map_err(pd_client::Error::from)?;
        while let Some(mut frame) = frames.next() {
            // Destination and source.
            if let Some((to, from)) = frame.bytes_mut().map(|bytes| bytes.split_at_mut(6)) {
                to.swap_with_slice(&mut from[..6]);
            }
        }
    }
}
