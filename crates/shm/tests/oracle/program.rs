//! The byte string by which an oracle does what it does.
#![allow(dead_code, reason = "no oracle reads in all ways")]

/// A byte string, taken piece by piece; zeros after its end.
pub struct Program<'a>(pub &'a [u8]);

impl Program<'_> {
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// A number of so many bytes, the lowest first.
    pub fn number(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |number, at| number | u64::from(self.byte()) << (8 * at))
    }

    /// Mostly `usual`, which a zero stands for; else a number.
    pub fn or(&mut self, usual: u64, bytes: usize) -> u64 {
        if self.byte() == 0 {
            usual
        } else {
            self.number(bytes)
        }
    }
}
