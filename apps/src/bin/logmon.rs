//! `logmon PORT [LINES SECONDS [FILTERS]]`: reads lines of logs as a stream from a port. Prints addresses that a filter has matched LINES
//! times (5) within SECONDS (600). FILTERS is a file in the form of `apps/src/logmon/filters.txt`.
#![forbid(unsafe_code)]

use anyhow::{bail, Context, Error, Result};
use pd_apps::logmon::{Filters, Logmon, Rules, FILTERS};
use pd_apps::{arguments, number};
use pd_client::pipe::{Direction, Options, Pipe};
use rustix::io::Errno;
use std::io::Write;
use std::time::Instant;

const USAGE: &str = "logmon PORT [LINES SECONDS [FILTERS]]";

fn main() -> Result<()> {
    let words = arguments(USAGE);
    let (port, rules, filters) = match &words[..] {
        [port] => (port, Rules { threshold: 5, window_s: 600 }, None),
        [port, lines, seconds, filters @ ..] if filters.len() < 2 => (
            port,
            Rules { threshold: number("LINES", lines)?, window_s: number("SECONDS", seconds)? },
            filters.first(),
        ),
        _ => bail!("usage: {USAGE}"),
    };
    let text = match filters {
        Some(file) => {
            std::fs::read_to_string(file).with_context(|| format!("the file of filters, {file}"))?
        }
        None => FILTERS.to_owned(),
    };
    let filters = Filters::parse(&text).map_err(Error::msg)?;
    let mut app = Logmon::new(filters, rules);
    let mut pipe = Pipe::open(&Options::new(Direction::Receive, port).bytes())?;
    let begun = Instant::now();
    loop {
        match pipe.peek() {
            Ok(bytes) => {
                let done = app.scan(bytes, begun.elapsed().as_secs());
                pipe.done(done).map_err(pd_client::Error::from)?;
                let mut out = std::io::stdout().lock();
                for report in app.take_reports() {
                    writeln!(out, "{} {} {} lines", report.address, report.filter, report.lines)?;
                }
                out.flush()?;
                if done == 0 {
                    pipe.wait_more(None)?;
                }
            }
            Err(Errno::AGAIN) => pipe.wait(None)?,
            Err(errno) => return Err(pd_client::Error::from(errno).into()),
        }
    }
}
