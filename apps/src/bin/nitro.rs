//! `nitro PORT [FRAMES]`: prints the heavy hitters of a port after each FRAMES frames (1,000,000), and sends the frames back. Heavy
//! hitters are flows with 0.1 % of the frames or more.
#![forbid(unsafe_code)]

use anyhow::{bail, Result};
use pd_apps::nitro::Nitro;
use pd_apps::{arguments, number, over_pipe};
use pd_client::pipe::{Direction, Options, Pipe};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;

/// Inverse of the share of pairs of frame and row that are counted.
const WEIGHT: u32 = 100;
const SHARE: f64 = 0.001;

const USAGE: &str = "nitro PORT [FRAMES]";

fn main() -> Result<()> {
    let words = arguments(USAGE);
    let (port, each) = match &words[..] {
        [port] => (port, 1_000_000),
        [port, frames] => (port, number::<u64>("FRAMES", frames)?.max(1)),
        _ => bail!("usage: {USAGE}"),
    };
    let new = || Nitro::new(WEIGHT, SHARE, RandomState::new().hash_one(0));
    let mut pipe = Pipe::open(&Options::new(Direction::Forward, port))?;
    let mut app = new();
    loop {
        pipe.wait(None)?;
        over_pipe(&mut pipe, None, &mut app).map_err(pd_client::Error::from)?;
        if app.frames() >= each {
            let heavy = app.heavy();
            let mut out = std::io::stdout().lock();
            writeln!(out, "{} frames, {} heavy flows", app.frames(), heavy.len())?;
            for (flow, frames) in heavy {
                writeln!(out, "{frames} {flow}")?;
            }
            app = new();
        }
    }
}
