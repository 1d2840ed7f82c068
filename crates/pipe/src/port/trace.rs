//! `trace`: prepared frames, or pieces of a stream, played over and over; what comes back is compared with what was made.
use super::{Frame, GenCounts};
use rustix::io::{Errno, Result};
use std::time::{Duration, Instant};

/// Of so many frames of a window one is timed: two looks at the clock are a good part of what a frame takes.
const TIMED: u64 = 16;
/// Times that are kept.
const TIMES_MAX: usize = 1 << 20;

/// Says for a frame that was made whether another is what a program makes of it.
pub type Check = fn(made: &[u8], returned: &[u8]) -> bool;

/// Frames of a program's traffic. Those that come back are checked in the order in which they were made: a program that drops some is not
/// for this port.
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
    /// The frame that is timed, by its number, and when it was made.
    timed: Option<(u64, Instant)>,
    times: Vec<Duration>,
}

/// A frame, and where it starts.
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
    /// Plays `frames`, of which at most `window` are under way; 0 sets no bound. `check` is asked of each frame that comes back.
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

    /// The next frame, which [`Self::advance`] counts; none while a window is under way.
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

    /// Counts of what was made, and of what came back.
    pub fn counts(&self) -> GenCounts {
        self.counts
    }

    /// Times that frames of a window took to come back, of one in some: those since the last call.
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
