//! `send_lines PORT`: sends its input as a stream of bytes: `tail -F auth.log | send_lines logs.1`. The program ends when the
//! port has taken everything.
#![forbid(unsafe_code)]

use anyhow::{bail, Result};
use pd_apps::arguments;
use pd_client::pipe::{Direction, Options, Pipe, BACK};
use pd_client::Error;
use std::io::Read;

const USAGE: &str = "send_lines PORT";

fn main() -> Result<()> {
    let words = arguments(USAGE);
    let [port] = &words[..] else { bail!("usage: {USAGE}") };
    let mut pipe = Pipe::open(&Options::new(Direction::Send, port).bytes())?;
    let mut buffer = [0; 16 << 10];
    let mut input = std::io::stdin().lock();
    loop {
        let length = input.read(&mut buffer)?;
        if length == 0 {
            // The whole ring is free when all was taken.
            let ring = pipe.shape().ring_bytes();
            return Ok(pipe.wait_room(ring, None)?);
        }
        pipe.wait_room(length as u64, None)?;
        pipe.send(&buffer[..length], BACK).map_err(Error::from)?;
        pipe.flush();
    }
}
