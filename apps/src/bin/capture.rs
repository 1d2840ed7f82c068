//! `capture PORT FRAMES`: writes FRAMES frames of a port to its output as a pcap file, for tcpdump and Wireshark.
#![forbid(unsafe_code)]

use anyhow::{bail, Result};
use pd_apps::{arguments, number};
use pd_client::pipe::{Direction, Options, Pipe};
use pd_pipe::Pcap;
use std::io::ErrorKind;

const USAGE: &str = "capture PORT FRAMES";

fn main() -> Result<()> {
    let words = arguments(USAGE);
    let [port, count] = &words[..] else { bail!("usage: {USAGE}") };
    let mut left: u64 = number("FRAMES", count)?;
    let mut file = Pcap::new(None::<&[u8]>, Some(Box::new(std::io::stdout())))?;
    let mut pipe = Pipe::open(&Options::new(Direction::Receive, port))?;
    while left > 0 {
        // All that is known is written before a sleep, so that a reader sees it, and an interrupt loses nothing.
        if let Err(error) = file.finish() {
            // The reader has what it wants.
            return if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error.into()) };
        }
        pipe.wait(None)?;
        let mut frames = pipe.frames().map_err(pd_client::Error::from)?;
        while let Some(frame) = frames.next() {
            if left == 0 {
                break;
            }
            file.write(frame.bytes());
            left -= 1;
        }
    }
    file.finish()?;
    Ok(())
}
