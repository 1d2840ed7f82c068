//! `gen`: frames from a recipe, and a check of those that come back.
//!
//! Frames are Ethernet, IPv4, UDP, and a number. The number encodes flow and order. Frames that come back are thus checked without a
//! record of each: in a flow no frame comes twice or before an earlier one. The first number and the sizes follow from the recipe
//! alone.
use super::Frame;
use pd_abi::pipe::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use rustix::io::{Errno, Result};
use serde::{Deserialize, Serialize};

/// Offset of the UDP source port: the flow.
const FLOW: usize = 34;
/// Offset of the frame's number.
const NUMBER: usize = 42;
/// Shortest frame that holds a number: Ethernet, IPv4, UDP and eight bytes.
pub const GEN_BYTES_MIN: usize = NUMBER + 8;
/// Most flows of a generator: a UDP port each.
pub const GEN_FLOWS_MAX: usize = 1 << 16;

/// Parameters of a generator.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Sizes of frames, which take turns.
    pub sizes: Vec<usize>,
    /// Flows, which take turns.
    pub flows: usize,
    /// Frames to make; 0 for no limit.
    pub frames: u64,
}

/// Counts of a generator: frames made, and frames that came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenCounts {
    /// Frames and bytes made.
    pub made: (u64, u64),
    /// Frames and bytes that came back.
    pub returned: (u64, u64),
    /// Frames missing between those that came back, by number.
    pub missing: u64,
    /// Frames that came back twice, out of order, or with other bytes than they were made of.
    pub wrong: u64,
}

/// The generator of a port.
#[derive(Debug)]
pub struct Gen {
    recipe: Recipe,
    frame: Vec<u8>,
    number: u64,
    /// Next expected number of each flow.
    expected: Vec<u64>,
    counts: GenCounts,
}

/// State of a generator for another agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenState {
    recipe: Recipe,
    number: u64,
    expected: Vec<u64>,
    counts: GenCounts,
}

impl Gen {
    /// Returns the state that another agent goes on with.
    pub fn state(&self) -> GenState {
        let (recipe, expected) = (self.recipe.clone(), self.expected.clone());
        GenState { recipe, number: self.number, expected, counts: self.counts }
    }

    /// Goes on with the state of another agent.
    ///
    /// # Errors
    /// `EINVAL` where no generator can have left it.
    pub fn resume(state: GenState) -> Result<Self> {
        let GenState { recipe, number, expected, counts } = state;
        let GenCounts { made, returned, missing, wrong } = counts;
        let all = [number, made.0, made.1, returned.0, returned.1, missing, wrong];
        let flows = recipe.flows as u64;
        let is_of = |(flow, next): (u64, &u64)| next % flows == flow && *next <= number.saturating_add(flows);
        let this = Self::new(recipe)?;
        let fits = expected.len() == this.expected.len() && (0..).zip(&expected).all(is_of);
        // Beyond, counts would wrap.
        if !fits || all.iter().any(|count| *count > u64::MAX / 2) {
            return Err(Errno::INVAL);
        }
        Ok(Self { number, expected, counts, ..this })
    }

    /// Makes a generator by `recipe`.
    ///
    /// # Errors
    /// `EINVAL` without sizes or flows, or with an impossible size of a numbered frame.
    pub fn new(recipe: Recipe) -> Result<Self> {
        let sizes = GEN_BYTES_MIN.max(FRAME_BYTES_MIN.into())..=FRAME_BYTES_MAX.into();
        let possible = recipe.sizes.iter().all(|size| sizes.contains(size)) && !recipe.sizes.is_empty();
        if !possible || !(1..=GEN_FLOWS_MAX).contains(&recipe.flows) {
            return Err(Errno::INVAL);
        }
        let mut frame = vec![0; FRAME_BYTES_MAX.into()];
        for (at, byte) in frame.iter_mut().enumerate() {
            *byte = at as u8;
        }
        // Locally administered addresses, type IPv4; version 4, no options, UDP; 198.18.0.1 to 198.18.0.2 (RFC 2544).
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        frame[14..34].fill(0);
        frame[14] = 0x45;
        (frame[22], frame[23]) = (64, 17);
        frame[26..34].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
        frame[34..42].copy_from_slice(&[0, 0, 0, 9, 0, 0, 0, 0]);
        let expected = (0..recipe.flows as u64).collect();
        Ok(Self { recipe, frame, number: 0, expected, counts: GenCounts::default() })
    }

    fn size(&self, number: u64) -> usize {
        let sizes = &self.recipe.sizes;
        if sizes.len() == 1 {
            sizes[0]
        } else {
            sizes[(number % sizes.len() as u64) as usize]
        }
    }

    fn flow(&self, number: u64) -> u64 {
        if self.recipe.flows == 1 {
            0
        } else {
            number % self.recipe.flows as u64
        }
    }

    /// Returns the next frame, which [`Self::advance`] counts.
    #[inline]
    pub fn peek(&mut self) -> Frame<'_> {
        if self.recipe.frames != 0 && self.number == self.recipe.frames {
            return None;
        }
        let (size, flow) = (self.size(self.number), self.flow(self.number));
        self.frame[FLOW..FLOW + 2].copy_from_slice(&(flow as u16).to_be_bytes());
        self.frame[NUMBER..NUMBER + 8].copy_from_slice(&self.number.to_be_bytes());
        Some(&self.frame[..size])
    }

    /// Counts the frame as made.
    #[inline]
    pub fn advance(&mut self) {
        self.counts.made.0 += 1;
        self.counts.made.1 += self.size(self.number) as u64;
        self.number += 1;
    }

    /// Checks a frame that came back. `frame` is a private copy.
    #[inline]
    pub fn check(&mut self, frame: &[u8]) {
        self.counts.returned.0 += 1;
        self.counts.returned.1 += frame.len() as u64;
        let number =
            frame.get(NUMBER..).and_then(<[u8]>::first_chunk).map(|bytes| u64::from_be_bytes(*bytes));
        let Some(number) = number.filter(|&number| number < self.number) else {
            self.counts.wrong += 1;
            return;
        };
        let flow = self.flow(number);
        let expected = &mut self.expected[flow as usize];
        let whole = frame.len() == self.recipe.sizes[(number % self.recipe.sizes.len() as u64) as usize]
            && frame[GEN_BYTES_MIN..] == self.frame[GEN_BYTES_MIN..frame.len()];
        if !whole || number < *expected {
            self.counts.wrong += 1;
            return;
        }
        self.counts.missing += (number - *expected) / self.recipe.flows as u64;
        *expected = number + self.recipe.flows as u64;
    }

    /// Returns the counts.
    pub fn counts(&self) -> GenCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_lost_doubled_and_changed_are_told_apart() {
        let mut gen = Gen::new(Recipe { sizes: vec![64, 1500], flows: 2, frames: 6 }).unwrap();
        let mut frames = Vec::new();
        while let Some(frame) = gen.peek() {
            frames.push(frame.to_vec());
            gen.advance();
        }
        assert_eq!(gen.counts().made, (6, 3 * 1564));
        for at in [0, 1, 4, 5] {
            gen.check(&frames[at]);
        }
        assert_eq!((gen.counts().returned.0, gen.counts().missing, gen.counts().wrong), (4, 2, 0));
        gen.check(&frames[2]);
        gen.check(&frames[5]);
        gen.check(&frames[5][..20]);
        assert_eq!(gen.counts().wrong, 3);
        let mut other = Gen::new(Recipe { sizes: vec![64], flows: 1, frames: 0 }).unwrap();
        other.peek().unwrap();
        other.advance();
        frames[0][60] ^= 1;
        other.check(&frames[0]);
        assert_eq!(other.counts().wrong, 1);
    }

    #[test]
    fn a_recipe_that_makes_no_frames_is_refused() {
        for (sizes, flows) in [(vec![], 1), (vec![49], 1), (vec![9217], 1), (vec![64], 0), (vec![64], 65_537)]
        {
            assert!(Gen::new(Recipe { sizes, flows, frames: 0 }).is_err());
        }
    }
}
