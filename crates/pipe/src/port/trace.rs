//! `trace`: prepared frames, or pieces of a stream, played over and over. Frames that come back are compared with those made.
use super::{Frame, GenCounts};
use rustix::io::{Errno, Result};
use std::time::{Duration, Instant};

/// Number of frames of a window for each timed one: reading the clock twice takes a good part of a frame's time.
const TIMED: u64 = 16;
/// Most times that are kept.
const TIMES_MAX: usize = 1 << 20;

/// Tells whether `returned` is the program's correct result of `made`.
pub type Check = fn(made: &[u8], returned: &[u8]) -> bool;

/// Frames of a program's traffic. Returned frames are checked in the order in which they were made: not for programs that drop some.
#[derive(Debug)]
pub struct Trace {
    bytes: Vec<u8>,
    /// End of each frame in `bytes`.
    ends: Vec<usize>,
    next: Place,
    back: Place,
    /// Most frames under way.
    window: u64,
    check: Check,
    counts: GenCounts,
    /// Number of the timed frame, and the time when it was made.
    timed: Option<(u64, Instant)>,
    times: Vec<Duration>,
}

/// A frame, and its offset.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    frame: usize,
    start: usize,
}

impl Place {
    fn of<'a>(&self, bytes: &'a [u8], ends: &[usize]) -> &'a [u8] {
        &bytes[self.start..ends[self.frame]]
    }

    fn step(&mut self, ends: &[usize]) {
        self.start = ends[self.frame];
        self.frame += 1;
        if self.frame == ends.len() {
            *self = Self::default();
        }
    }
}

impl Trace {
    /// Plays `frames`, with at most `window` under way; 0 sets no bound. `check` checks each frame that comes back.
    ///
    /// # Errors
    /// `EINVAL` without frames, or with an empty one.
    pub fn new<F: AsRef<[u8]>>(
        frames: impl IntoIterator<Item = F>,
        window: u64,
        check: Check,
    ) -> Result<Self> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for frame in frames {
            if frame.as_ref().is_empty() {
                return Err(Errno::INVAL);
            }
            bytes.extend_from_slice(frame.as_ref());
            ends.push(bytes.len());
        }
        if ends.is_empty() {
            return Err(Errno::INVAL);
        }
        let window = if window == 0 { u64::MAX } else { window };
        let (next, back, counts) = (Place::default(), Place::default(), GenCounts::default());
        let (timed, times) = (None, Vec::new());
        Ok(Self { bytes, ends, next, back, window, check, counts, timed, times })
    }

    /// Returns the next frame, which [`Self::advance`] counts; none while a window is under way.
    #[inline]
    pub fn peek(&mut self) -> Frame<'_> {
        if self.counts.made.0 - self.counts.returned.0 >= self.window {
            return None;
        }
        Some(self.next.of(&self.bytes, &self.ends))
    }

    /// Counts the frame as made.
    #[inline]
    pub fn advance(&mut self) {
        let number = self.counts.made.0;
        if number % TIMED == 0 && self.window < u64::MAX && self.timed.is_none() {
            self.timed = Some((number, Instant::now()));
        }
        self.counts.made.0 += 1;
        self.counts.made.1 += self.next.of(&self.bytes, &self.ends).len() as u64;
        self.next.step(&self.ends);
    }

    /// Checks a frame that came back. `frame` is a private copy.
    #[inline]
    pub fn take(&mut self, frame: &[u8]) {
        if self.counts.returned.0 == self.counts.made.0 {
            self.counts.wrong += 1;
            return;
        }
        if let Some((_, made)) = self.timed.take_if(|(number, _)| *number == self.counts.returned.0) {
            if self.times.len() < TIMES_MAX {
                self.times.push(made.elapsed());
            }
        }
        self.counts.returned.0 += 1;
        self.counts.returned.1 += frame.len() as u64;
        if !(self.check)(self.back.of(&self.bytes, &self.ends), frame) {
            self.counts.wrong += 1;
        }
        self.back.step(&self.ends);
    }

    /// Returns the counts.
    pub fn counts(&self) -> GenCounts {
        self.counts
    }

    /// Takes the return times of frames of a window since the last call, for one frame in 16.
    pub fn take_times(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_played_in_order_within_a_window_and_compared() {
        let mut trace = Trace::new([&b"one"[..], b"three", b"x"], 2, |made, back| made == back).unwrap();
        let mut made = Vec::new();
        while made.len() < 7 {
            let frame = trace.peek().unwrap().to_vec();
            trace.advance();
            made.push(frame);
            if trace.peek().is_none() {
                let oldest = trace.counts().returned.0 as usize;
                trace.take(&made[oldest]);
            }
        }
        assert_eq!(made.concat(), b"onethreexonethreexone");
        assert_eq!((trace.counts().made.0, trace.counts().returned.0, trace.counts().wrong), (7, 6, 0));
        assert_eq!((trace.take_times().len(), trace.take_times().len()), (1, 0), "one in sixteen");
        trace.take(b"two");
        trace.take(b"none is under way");
        assert_eq!(trace.counts().wrong, 2);
        assert!(Trace::new([b""], 0, |_, _| true).is_err() && Trace::new([b""; 0], 0, |_, _| true).is_err());
    }
}
