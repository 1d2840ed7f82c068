//! `capture PORT FRAMES`: writes FRAMES frames of a port to its output as a pcap file, for tcpdump and Wireshark.
#![forbid(unsafe_code)]

use anyhow::{bail, Result};
use pd_client::pipe::{Direction, Options, Pipe};
use pd_pipe::Pcap;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [port, count] = &words[..] else { bail!("usage: capture PORT FRAMES") };
    let mut left: u64 = count.parse()?;
    let mut file = Pcap::new(None::<&[u8]>, Some(Box::new(std::io::stdout())))?;
    let mut pipe = Pipe::open(&Options::new(Direction::Receive, port))?;
    while left > 0 {
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
