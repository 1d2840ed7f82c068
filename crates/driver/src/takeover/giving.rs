//! The old driver's part: holds still, gives everything, and then ends or goes on.
use super::early::Numbers;
use super::offer::{self, Word};
use super::pack::{Hindrance, Pack};
use super::state::{now, State, Stops};
use super::Agents;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Time for which attempts are repeated while a passing hindrance lasts, and their interval.
const PATIENCE: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(10);
/// Longest stop of all agents for a successor that does not get ready.
pub const STILL_MAX: Duration = Duration::from_secs(1);
/// Longest wait of an attempt for helpers' results.
const SETTLING: Duration = Duration::from_millis(20);

/// A driver that waits to take this one's place.
#[derive(Debug)]
pub struct Successor {
    stream: UnixStream,
    /// Direct rings that the other driver has.
    early: Numbers,
    until: Instant,
    next: Instant,
    stops: Stops,
}

/// Outcome of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The other driver has everything. This one must touch nothing any more.
    Gone,
    /// The attempt is repeated later.
    Again,
    /// The attempt is given up. The driver goes on.
    Stays,
}

impl Successor {
    /// Makes a successor that waits at the other end, and has these direct rings.
    pub fn new(stream: UnixStream, early: Numbers) -> Self {
        let now = Instant::now();
        Self { stream, early, until: now + PATIENCE, next: now, stops: Stops::default() }
    }

    /// Returns the time until the next attempt, if it is not due.
    pub fn waits(&self) -> Option<Duration> {
        let left = self.next.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Notes that the caller begins to stop all agents, for [`Self::attempt`].
    pub fn begin(&mut self) {
        self.stops.since = now();
        self.stops.attempts += 1;
    }

    /// Tries once. The caller holds all agents.
    pub fn attempt(&mut self, agents: &mut Agents<'_>) -> Outcome {
        let outcome = self.outcome(agents);
        let still = now().saturating_sub(self.stops.since);
        let still_us = still.as_micros() as u64;
        match outcome {
            Outcome::Gone => tracing::info!(still_us, "another driver has taken over"),
            Outcome::Again => tracing::debug!(still_us, "another driver cannot take over yet"),
            Outcome::Stays => tracing::warn!(still_us, "no other driver takes over"),
        }
        self.stops.earlier += still;
        outcome
    }

    fn outcome(&mut self, agents: &mut Agents<'_>) -> Outcome {
        match self.try_once(agents) {
            Ok(()) => Outcome::Gone,
            Err(Failed::Hindered(hindrance)) if hindrance.is_passing() && Instant::now() < self.until => {
                self.next = Instant::now() + AGAIN;
                Outcome::Again
            }
            Err(Failed::Hindered(hindrance)) => {
                tracing::warn!(%hindrance, "it cannot be taken over");
                let _ = self.stream.set_write_timeout(Some(STILL_MAX));
                let _ = writeln!(&self.stream, "it cannot be taken over: {hindrance}");
                Outcome::Stays
            }
            Err(Failed::Talk(error)) => {
                tracing::warn!(%error, "the other driver cannot go on");
                Outcome::Stays
            }
        }
    }

    fn try_once(&mut self, agents: &mut Agents<'_>) -> Result<(), Failed> {
        let begun = Instant::now();
        let (state, pack) = give(self.stops, &self.early, agents)?;
        let gathered = begun.elapsed();
        let bytes = state.to_bytes()?;
        let written = begun.elapsed();
        let left = || (STILL_MAX.saturating_sub(begun.elapsed())).max(Duration::from_millis(1));
        self.stream.set_write_timeout(Some(left()))?;
        offer::send(&self.stream, &bytes, pack.fds())?;
        let sent = begun.elapsed();
        self.stream.set_read_timeout(Some(left()))?;
        offer::expect(&self.stream, Word::Ready)?;
        tracing::debug!(?gathered, ?written, ?sent, ready = ?begun.elapsed(), "steps of a take-over at the previous driver");
        // A write that fails means that the successor has gone.
        offer::say(&self.stream, Word::Yours)?;
        Ok(())
    }
}

enum Failed {
    Hindered(Hindrance),
    Talk(std::io::Error),
}

impl From<Hindrance> for Failed {
    fn from(hindrance: Hindrance) -> Self {
        Self::Hindered(hindrance)
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self::Talk(error)
    }
}

/// Returns the state that another driver goes on with, while all agents hold still. `early`: direct rings that it has.
///
/// # Errors
/// The hindrance.
pub fn give<'early>(
    stops: Stops,
    early: &'early Numbers,
    agents: &mut Agents<'_>,
) -> Result<(State, Pack<'early>), Hindrance> {
    let until = Instant::now() + SETTLING;
    loop {
        match gather(stops, early, agents) {
            Err(hindrance) if hindrance.is_passing() && Instant::now() < until => {
                std::thread::sleep(Duration::from_micros(200));
            }
            given => return given,
        }
    }
}

/// Returns the state as [`give`] does, or the hindrance of this moment.
///
/// # Errors
/// The hindrance.
pub fn gather<'early>(
    stops: Stops,
    early: &'early Numbers,
    agents: &mut Agents<'_>,
) -> Result<(State, Pack<'early>), Hindrance> {
    let mut pack = Pack::beyond(early);
    let Agents { conductor, door, nic } = agents;
    while door.take_commands() | conductor.settle() | nic.as_mut().is_some_and(|nic| nic.take_commands()) {}
    let of_door = door.give(&mut pack)?;
    let (of_conductor, movers) = conductor.give(&mut pack)?;
    let policy = conductor.policy_text().map(|text| text.to_string());
    let nic = nic.as_mut().map(|nic| nic.give(&mut pack)).transpose()?;
    Ok((State { stops, policy, conductor: of_conductor, movers, door: of_door, nic }, pack))
}
