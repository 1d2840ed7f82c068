//! `kv_client PORT PARTITIONS COMMAND`: a client of `kv`. Commands are `get KEY`, `set KEY VALUE`, `delete KEY`, and `load KEYS REQUESTS`.
//! The last one sets and gets keys by Zipf's law, checks each value, and prints the rate and the times of answers.
#![forbid(unsafe_code)]

use anyhow::{bail, ensure, Context, Result};
use pd_apps::frame::Ends;
use pd_apps::kv::client::Client;
use pd_apps::kv::protocol::{Op, Status};
use pd_apps::kv::store::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use pd_apps::kv::PARTITIONS_MAX;
use pd_apps::random::{Random, Zipf};
use pd_apps::{arguments, number};
use pd_client::pipe::{Direction, Flow, Options, Pipe, BACK};
use pd_client::Error;
use std::io::Write;
use std::time::{Duration, Instant};

/// Ends of a client of a link; the store answers to a request's source.
const ENDS: Ends = Ends {
    macs: [[2, 0, 0, 0, 9, 1], [2, 0, 0, 0, 9, 2]],
    addresses: [[198, 18, 9, 1], [198, 18, 9, 2]],
    ports: [9799, 0],
};
/// Requests under way in a load.
const WINDOW: usize = 32;
/// Answers that are timed, the first ones.
const TIMES_MAX: u64 = 1 << 20;
/// Most keys of a load.
const KEYS_MAX: usize = 1 << 24;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

struct Link {
    client: Client,
    send: Pipe,
    receive: Pipe,
}

impl Link {
    fn open(port: &str, partitions: usize) -> Result<Self> {
        let flow = Flow { protocol: 17, ports: [0, ENDS.ports[0]], ..Flow::default() };
        Ok(Self {
            client: Client::new(ENDS, partitions),
            send: Pipe::open(&Options::new(Direction::Send, port))?,
            receive: Pipe::open(&Options::new(Direction::Receive, port).flow(flow))?,
        })
    }

    fn send(&mut self, op: Op, key: &[u8], value: &[u8], room: usize) -> Result<u32> {
        let frame = self.client.request(op, key, value, room);
        self.send.wait_room(frame.len().next_multiple_of(64) as u64, Some(PATIENCE))?;
        self.send.send(&frame, BACK).map_err(Error::from)?;
        self.send.flush();
        Ok(self.client.number())
    }

    /// Waits for answers, and hands each to `each`.
    fn receive(&mut self, mut each: impl FnMut(u32, Status, &[u8])) -> Result<()> {
        self.receive
            .wait(Some(PATIENCE))
            .context("the store does not answer: is kv at the other end, with as many partitions?")?;
        let mut frames = self.receive.frames().map_err(Error::from)?;
        while let Some(frame) = frames.next() {
            if let Some(answer) = self.client.answer(frame.bytes()) {
                each(answer.number, answer.status, answer.value);
            }
        }
        Ok(())
    }

    fn ask(&mut self, op: Op, key: &str, value: &str) -> Result<()> {
        let room = if op == Op::Get { VALUE_BYTES_MAX } else { 0 };
        let number = self.send(op, key.as_bytes(), value.as_bytes(), room)?;
        let mut answered = None;
        while answered.is_none() {
            self.receive(|other, status, value| {
                if other == number {
                    answered = Some((status, String::from_utf8_lossy(value).into_owned()));
                }
            })?;
        }
        match answered {
            Some((Status::Done, value)) => writeln!(std::io::stdout(), "{value}")?,
            Some((status, _)) => bail!("{status:?}"),
            None => {}
        }
        Ok(())
    }

    /// Sends the requests of `load`, one SET in twenty. A value is the key and the number of its last SET.
    fn load(&mut self, keys: usize, requests: u64) -> Result<()> {
        let (zipf, mut random) = (Zipf::new(keys, 0.99), Random::new(7));
        let (mut sets, mut gets, mut hits, mut wrong) = (vec![0u32; keys], 0u64, 0u64, 0u64);
        // A request under way, and the least that a value that is found may be.
        let mut under_way: Vec<(u32, usize, Option<u32>, Instant)> = Vec::new();
        let mut times = Vec::with_capacity(requests.min(TIMES_MAX) as usize);
        let (begun, mut made, mut done) = (Instant::now(), 0, 0);
        while done < requests {
            while made < requests && under_way.len() < WINDOW {
                let rank = zipf.draw(&mut random);
                let key = (rank as u64).to_be_bytes();
                made += 1;
                if random.below(20) == 0 {
                    sets[rank] += 1;
                    let value = [&key[..], &sets[rank].to_be_bytes()].concat();
                    let number = self.send(Op::Set, &key, &value, 0)?;
                    under_way.push((number, rank, None, Instant::now()));
                } else {
                    let number = self.send(Op::Get, &key, b"", 12)?;
                    under_way.push((number, rank, Some(sets[rank]), Instant::now()));
                }
            }
            self.receive(|number, status, value| {
                let Some(at) = under_way.iter().position(|&(other, ..)| other == number) else { return };
                let (_, rank, wanted, asked) = under_way.swap_remove(at);
                if times.len() < TIMES_MAX as usize {
                    times.push(asked.elapsed());
                }
                done += 1;
                // A partition answers in order, so that the last value set before is found.
                let Some(set) = wanted else { return wrong += u64::from(status != Status::Done) };
                gets += 1;
                match status {
                    Status::Done => {
                        hits += 1;
                        let expected = [&(rank as u64).to_be_bytes()[..], &set.to_be_bytes()].concat();
                        // A value of an earlier run may be there.
                        wrong += u64::from(set > 0 && value != expected);
                    }
                    Status::Missing => {}
                    _ => wrong += 1,
                }
            })?;
        }
        let rate = requests as f64 / begun.elapsed().as_secs_f64();
        times.sort_unstable();
        let part = |part: f64| match times.len().checked_sub(1) {
            Some(last) => times[(last as f64 * part) as usize].as_secs_f64() * 1e6,
            None => 0.0,
        };
        let (p50, p99) = (part(0.5), part(0.99));
        writeln!(
            std::io::stdout(),
            "{requests} requests, {gets} gets, {hits} hits, {wrong} wrong, {rate:.0} requests/s, P50 {p50:.1} us, P99 {p99:.1} us"
        )?;
        ensure!(wrong == 0, "answers were wrong");
        Ok(())
    }
}

const USAGE: &str = "kv_client PORT PARTITIONS get KEY | set KEY VALUE | delete KEY | load KEYS REQUESTS";

fn main() -> Result<()> {
    let words = arguments(USAGE);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [port, partitions, command @ ..] = &words[..] else {
        bail!("usage: {USAGE}");
    };
    let partitions = number("PARTITIONS", partitions)?;
    ensure!((1..=PARTITIONS_MAX).contains(&partitions), "there are 1 to {PARTITIONS_MAX} partitions");
    let open = || Link::open(port, partitions);
    let fits = |key: &str, value: &str| {
        let (key, value) = (key.len(), value.len());
        ensure!((1..=KEY_BYTES_MAX).contains(&key), "a key has 1 to {KEY_BYTES_MAX} bytes, not {key}");
        ensure!(value <= VALUE_BYTES_MAX, "a value has at most {VALUE_BYTES_MAX} bytes, not {value}");
        Ok(())
    };
    match command {
        ["get", key] => fits(key, "").and_then(|()| open()?.ask(Op::Get, key, "")),
        ["set", key, value] => fits(key, value).and_then(|()| open()?.ask(Op::Set, key, value)),
        ["delete", key] => fits(key, "").and_then(|()| open()?.ask(Op::Delete, key, "")),
        ["load", keys, requests] => {
            let (keys, requests) = (number("KEYS", keys)?, number("REQUESTS", requests)?);
            ensure!((1..=KEYS_MAX).contains(&keys), "1 to {KEYS_MAX} keys");
            open()?.load(keys, requests)
        }
        _ => bail!("usage: {USAGE}"),
    }
}
