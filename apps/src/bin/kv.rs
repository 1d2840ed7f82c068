//! `kv PORT [PARTITIONS]`: a key-value store in memory, with a thread for each partition. The store serves UDP: its own protocol at ports
//! from 9800 on, memcached's meta commands at ports from 11211 on.
#![forbid(unsafe_code)]

use anyhow::{anyhow, bail, Result};
use pd_apps::kv::store::Store;
use pd_apps::kv::{Kv, MEMCACHED_PORT, PARTITIONS_MAX, PORT};
use pd_apps::{arguments, number, over_pipe};
use pd_client::pipe::{Direction, Flow, Options, Pipe};
use pd_client::Error;
use rustix::event::{poll, PollFd, PollFlags};
use std::hash::{BuildHasher, RandomState};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::channel;
use std::thread;

/// Bytes and buckets of all partitions together.
const LOG_BYTES: usize = 64 << 20;
const BUCKETS: usize = 1 << 17;

/// Pipes of a partition: requests of the own protocol, those of memcached, and answers that are longer than their requests.
struct Pipes {
    own: Pipe,
    memcached: Pipe,
    answers: Pipe,
}

impl Pipes {
    fn open(port: &str, partition: usize) -> Result<Self> {
        let open = |base: u16| {
            let flow = Flow { protocol: 17, ports: [0, base + partition as u16], ..Flow::default() };
            Pipe::open(&Options::new(Direction::Forward, port).flow(flow))
        };
        let (mut own, mut memcached) = (open(PORT)?, open(MEMCACHED_PORT)?);
        own.fd()?;
        memcached.fd()?;
        Ok(Self { own, memcached, answers: Pipe::open(&Options::new(Direction::Send, port))? })
    }
}

fn serve(pipes: Pipes, partition: usize, partitions: usize) -> Result<()> {
    let seed = RandomState::new().hash_one(partition);
    let mut app =
        Kv::new(Store::new(LOG_BYTES / partitions, BUCKETS / partitions, seed), partition, partitions);
    let Pipes { mut own, mut memcached, mut answers } = pipes;
    loop {
        let mut idle = true;
        if own.arm().map_err(Error::from)? {
            idle = false;
            over_pipe(&mut own, None, &mut app).map_err(Error::from)?;
        }
        if memcached.arm().map_err(Error::from)? {
            idle = false;
            over_pipe(&mut memcached, Some(&mut answers), &mut app).map_err(Error::from)?;
        }
        if idle {
            let (own, memcached) = (own.fd()?, memcached.fd()?);
            poll(&mut [PollFd::new(&own, PollFlags::IN), PollFd::new(&memcached, PollFlags::IN)], None)?;
        }
    }
}

const USAGE: &str = "kv PORT [PARTITIONS]";

fn main() -> Result<()> {
    let words = arguments(USAGE);
    let (port, partitions) = match &words[..] {
        [port] => (port, 1),
        [port, partitions] => (port, number("PARTITIONS", partitions)?),
        _ => bail!("usage: {USAGE}"),
    };
    if !(1..=PARTITIONS_MAX).contains(&partitions) {
        bail!("there are 1 to {PARTITIONS_MAX} partitions");
    }
    let pipes = (0..partitions).map(|partition| Pipes::open(port, partition)).collect::<Result<Vec<_>>>()?;
    // The store ends with its first partition that does.
    let (ended, ends) = channel();
    for (partition, pipes) in pipes.into_iter().enumerate() {
        let ended = ended.clone();
        thread::spawn(move || {
            let served = catch_unwind(AssertUnwindSafe(|| serve(pipes, partition, partitions)));
            let _ = ended.send(served.unwrap_or_else(|_| Err(anyhow!("partition {partition} has panicked"))));
        });
    }
    ends.recv()?
}
