//! A run of `pd gen`: frames are sent when they are due, and returned ones are counted and timed, in one thread.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use pd_client::pipe::{Direction, Options, Pipe};
use pd_client::Error;
use rustix::io::Errno;

use super::frames::{Frames, Stamp};
use super::rate::Pace;

/// Frames written before a look at returned ones.
const BURST: u64 = 64;
/// Time after the end in which frames that are due are still sent: the machine may have been elsewhere.
const GRACE: Duration = Duration::from_millis(20);
/// Silence after which nothing more is expected back.
const SILENCE: Duration = Duration::from_millis(300);
/// Shorter waits are spent looking.
const SLEEP_MIN: Duration = Duration::from_micros(150);
/// Longest round trip that is distinguished, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The two pipes of a generator.
pub struct Ends {
    send: Pipe,
    /// Receiving pipe; none where no frames return.
    receive: Option<Pipe>,
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// After this time.
    pub time: Duration,
    /// End after this number of frames.
    pub frames: u64,
}

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Time in which frames were sent.
    pub time: Duration,
    /// Frames that were to be sent.
    pub due: u64,
    /// Frames sent, and their bytes.
    pub sent: [u64; 2],
    /// Frames that came back, and their bytes.
    pub returned: [u64; 2],
    /// Frames that came back behind a later one of their flow.
    pub reordered: u64,
    /// Frames that came and are none of this run.
    pub foreign: u64,
    /// Round trips in nanoseconds.
    pub latency: Histogram<u64>,
    /// Tells whether frames are expected back.
    pub expects: bool,
}

impl Outcome {
    /// Returns the share of the due frames that did not return, or were not sent in time.
    pub fn loss(&self) -> f64 {
        let arrived = if self.expects { self.returned[0] } else { self.sent[0] };
        self.due.saturating_sub(arrived) as f64 / self.due.max(1) as f64
    }
}

impl Ends {
    /// Opens the pipes on a port.
    ///
    /// # Errors
    /// Errors of opening them.
    pub fn open(port: &str, one_way: bool, ring_bytes: u64) -> Result<Self> {
        let open = |direction| {
            Pipe::open(&Options::new(direction, port).ring_bytes(ring_bytes))
                .with_context(|| format!("cannot open a pipe on port {port}"))
        };
        let receive = if one_way { None } else { Some(open(Direction::Receive)?) };
        Ok(Self { send: open(Direction::Send)?, receive })
    }

    /// Sends frames as `pace` says. `run` tells frames of this run from those of others. `is_over` is asked now and then.
    ///
    /// # Errors
    /// Errors of the pipes.
    pub fn run(
        &mut self,
        frames: &Frames,
        run: u32,
        pace: Pace,
        limit: Limit,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Outcome> {
        self.drop_late();
        let mut trip = Trip::new(frames, run, self.receive.is_some())?;
        let mut turns = 0u32;
        let all_due = pace.due(limit.time).min(limit.frames);
        let end = if pace.is_limited() { limit.time.saturating_add(GRACE) } else { limit.time };
        loop {
            let elapsed = trip.start.elapsed();
            let due = pace.due(elapsed).min(all_due);
            turns = turns.wrapping_add(1);
            let is_stopped = turns % 64 == 0 && is_over();
            let is_done = trip.next >= limit.frames || elapsed >= limit.time && trip.next >= due;
            if is_stopped || is_done || elapsed >= end {
                // Without a rate all that was sent was due.
                trip.outcome.due = if is_stopped || !pace.is_limited() { trip.next } else { all_due };
                trip.outcome.time = elapsed.min(limit.time);
                break;
            }
            let burst = due.min(trip.next + BURST);
            let mut moved = self.send_until(&mut trip, burst)?;
            moved |= self.receive(&mut trip)?;
            if !moved {
                self.rest(pace.at(trip.next).saturating_sub(elapsed))?;
            }
        }
        self.drain(&mut trip, is_over)?;
        Ok(trip.outcome)
    }

    /// Drops late frames of an earlier run.
    fn drop_late(&mut self) {
        while let Some(Ok(mut frames)) = self.receive.as_mut().map(|pipe| pipe.frames()) {
            while frames.next().is_some() {}
        }
    }

    /// Writes frames up to `end`, as long as there is room. Returns whether there was any.
    fn send_until(&mut self, trip: &mut Trip<'_>, end: u64) -> Result<bool> {
        let before = trip.next;
        while trip.next < end {
            let bytes = trip.frames.bytes(trip.next);
            let place = match self.send.place(bytes) {
                Ok(place) => place,
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(Error::from(errno).into()),
            };
            let sent_ns = trip.start.elapsed().as_nanos() as u64;
            trip.frames.write(trip.next, Stamp { run: trip.run, number: trip.next as u32, sent_ns }, place);
            self.send.placed(pd_client::pipe::BACK);
            trip.outcome.sent[0] += 1;
            trip.outcome.sent[1] += bytes as u64;
            trip.next += 1;
        }
        self.send.flush();
        Ok(trip.next > before)
    }

    /// Takes the returned frames. Returns whether there were any.
    fn receive(&mut self, trip: &mut Trip<'_>) -> Result<bool> {
        let Some(pipe) = &mut self.receive else { return Ok(false) };
        let mut frames = match pipe.frames() {
            Ok(frames) => frames,
            Err(Errno::AGAIN) => return Ok(false),
            Err(errno) => return Err(Error::from(errno).into()),
        };
        while let Some(frame) = frames.next() {
            trip.take(frame.bytes());
        }
        Ok(true)
    }

    /// Waits for the next frame to be due, at most `time`, or for one to come back.
    fn rest(&mut self, time: Duration) -> Result<()> {
        if time < SLEEP_MIN {
            std::hint::spin_loop();
            return Ok(());
        }
        let time = (time - SLEEP_MIN / 2).min(Duration::from_millis(20));
        let Some(pipe) = &mut self.receive else {
            std::thread::sleep(time);
            return Ok(());
        };
        match pipe.wait(Some(time)) {
            Err(error) if error.errno() != Errno::AGAIN.raw_os_error() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Waits for frames that are still on their way, as long as some come.
    fn drain(&mut self, trip: &mut Trip<'_>, is_over: &dyn Fn() -> bool) -> Result<()> {
        let mut last = Instant::now();
        while last.elapsed() < SILENCE && !is_over() {
            let is_back = trip.outcome.returned[0] >= trip.outcome.sent[0];
            if self.send.untaken() == 0 && (is_back || self.receive.is_none()) {
                break;
            }
            if self.receive(trip)? {
                last = Instant::now();
            } else {
                self.rest(Duration::from_millis(1))?;
            }
        }
        Ok(())
    }
}

/// A run that goes on.
struct Trip<'a> {
    frames: &'a Frames,
    run: u32,
    start: Instant,
    /// Number of the next frame to be sent.
    next: u64,
    /// Of each flow the number of the next frame to come back.
    expected: Vec<u64>,
    outcome: Outcome,
}

impl<'a> Trip<'a> {
    fn new(frames: &'a Frames, run: u32, expects: bool) -> Result<Self> {
        let outcome = Outcome {
            time: Duration::ZERO,
            due: 0,
            sent: [0; 2],
            returned: [0; 2],
            reordered: 0,
            foreign: 0,
            latency: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?,
            expects,
        };
        let expected = vec![0; frames.flows()];
        Ok(Self { frames, run, start: Instant::now(), next: 0, expected, outcome })
    }

    /// Takes a frame that came. Nothing in it is believed: another program has had it.
    fn take(&mut self, frame: &[u8]) {
        if self.frames.are_stamped() {
            let stamp = Stamp::read(frame).filter(|stamp| stamp.run == self.run);
            // The low half of its number says which of those sent it is.
            let number = stamp.and_then(|stamp| {
                let age = (self.next as u32).wrapping_sub(stamp.number);
                (age > 0).then(|| self.next.checked_sub(age.into()))?
            });
            let (Some(stamp), Some(number)) = (stamp, number) else {
                self.outcome.foreign += 1;
                return;
            };
            let now_ns = self.start.elapsed().as_nanos() as u64;
            self.outcome.latency.saturating_record(now_ns.saturating_sub(stamp.sent_ns).max(1));
            let expected = &mut self.expected[self.frames.flow(number) as usize];
            if number < *expected {
                self.outcome.reordered += 1;
            } else {
                *expected = number + 1;
            }
        }
        self.outcome.returned[0] += 1;
        self.outcome.returned[1] += frame.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::{sizes, Addresses};
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn what_comes_back_is_told_from_what_does_not_belong_here() {
        let addresses = Addresses { mac: [[2; 6]; 2], ip: [Ipv4Addr::LOCALHOST; 2] };
        let frames = Frames::synthetic(&sizes("64").unwrap(), 2, &addresses);
        let mut trip = Trip::new(&frames, 9, true).unwrap();
        let made = |run, number: u64, sent_ns| {
            let mut frame = vec![0; 64];
            frames.write(number, Stamp { run, number: number as u32, sent_ns }, &mut frame);
            frame
        };
        trip.next = (1 << 32) + 4;
        for number in [0, 1, 3, 2].map(|low| (1u64 << 32) + low) {
            trip.take(&made(9, number, 0));
        }
        assert_eq!(
            (trip.outcome.returned, trip.outcome.reordered),
            ([4, 256], 0),
            "flows have an order each"
        );
        trip.take(&made(9, 1 << 32, u64::MAX));
        assert_eq!((trip.outcome.returned[0], trip.outcome.reordered), (5, 1));
        // Another run, a frame not sent yet, a short one.
        trip.take(&made(8, 1, 0));
        trip.take(&made(9, (1 << 32) + 4, 0));
        trip.take(&[0; 57]);
        assert_eq!((trip.outcome.foreign, trip.outcome.returned[0]), (3, 5));
        trip.outcome.due = 10;
        assert_eq!(trip.outcome.loss(), 0.5);
    }
}
