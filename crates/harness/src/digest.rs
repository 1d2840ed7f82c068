//! What both sides do with the bytes: a fast checksum in timed rounds, SHA-256 in the verifying pass.
//!
//! The fast checksum is XXH3 of each message-sized piece of the stream, the results folded into one
//! 64-bit value: the same on both sides however the bytes were split on the way. Hashing whole pieces
//! in place costs less than one streaming hash, which copies into a buffer of its own.

use std::hash::Hasher as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use twox_hash::XxHash3_64;

use crate::processor::xxh3;

/// What a side does with every byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Touch {
    /// A fast checksum.
    Checksum,
    /// SHA-256.
    Sha256,
    /// Nothing.
    Nothing,
}

/// Folds the checksums of the pieces of a stream.
pub struct Pieces {
    piece_bytes: usize,
    /// Made when a piece first comes in several parts: most streams of many connections never do.
    partial: Option<Box<XxHash3_64>>,
    partial_bytes: usize,
    folded: u64,
}

impl Pieces {
    /// For a stream cut into pieces of `piece_bytes`.
    pub fn new(piece_bytes: usize) -> Pieces {
        Pieces { piece_bytes, partial: None, partial_bytes: 0, folded: 0 }
    }

    fn fold(&mut self, hash: u64) {
        self.folded = (self.folded ^ hash).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    }

    /// Takes the next bytes of the stream.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.partial_bytes == 0 && bytes.len() >= self.piece_bytes {
                let (piece, rest) = bytes.split_at(self.piece_bytes);
                self.fold(xxh3(piece));
                bytes = rest;
                continue;
            }
            let (some, rest) = bytes.split_at(bytes.len().min(self.piece_bytes - self.partial_bytes));
            self.partial.get_or_insert_default().write(some);
            self.partial_bytes += some.len();
            bytes = rest;
            if self.partial_bytes == self.piece_bytes {
                self.end_partial();
            }
        }
    }

    /// Takes the next piece of the stream by its checksum.
    pub fn update_hash(&mut self, hash: u64) {
        self.fold(hash);
    }

    fn end_partial(&mut self) {
        if let Some(partial) = &mut self.partial {
            let hash = partial.finish();
            **partial = XxHash3_64::new();
            self.fold(hash);
        }
        self.partial_bytes = 0;
    }

    /// The checksum of the whole stream.
    pub fn finish(mut self) -> u64 {
        if self.partial_bytes > 0 {
            self.end_partial();
        }
        self.folded
    }
}

/// What one side does with the bytes of one round.
pub enum Digest {
    /// The fast checksum.
    Pieces(Box<Pieces>),
    /// SHA-256.
    Sha256(Box<Sha256>),
    /// Nothing.
    Nothing,
}

impl Digest {
    /// For a round of messages of `message_bytes`.
    pub fn new(touch: Touch, message_bytes: usize) -> Digest {
        match touch {
            Touch::Checksum => Digest::Pieces(Box::new(Pieces::new(message_bytes))),
            Touch::Sha256 => Digest::Sha256(Box::default()),
            Touch::Nothing => Digest::Nothing,
        }
    }

    /// Takes the next bytes of the stream.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Digest::Pieces(pieces) => pieces.update(bytes),
            Digest::Sha256(sha) => sha.update(bytes),
            Digest::Nothing => {}
        }
    }

    /// The result in hexadecimal; empty for nothing.
    pub fn finish(self) -> String {
        match self {
            Digest::Pieces(pieces) => format!("{:016x}", pieces.finish()),
            Digest::Sha256(sha) => hex(&sha.finalize()),
            Digest::Nothing => String::new(),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Changes every byte in place, as a program does that produces new data in the same memory: one pass
/// over 64-bit words with a key that differs from lap to lap.
pub fn rewrite(bytes: &mut [u8], lap: u64) {
    let key = (lap + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 0x0101_0101_0101_0101;
    crate::processor::change_words(bytes, key);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_does_not_depend_on_the_splits() {
        let bytes: Vec<u8> = (0..100_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let checksum = |split: usize| {
            let mut pieces = Pieces::new(4096);
            bytes.chunks(split).for_each(|chunk| pieces.update(chunk));
            pieces.finish()
        };
        let whole = checksum(bytes.len());
        for split in [1, 7, 100, 4095, 4096, 4097, 65536] {
            assert_eq!(checksum(split), whole, "{split}");
        }
    }

    #[test]
    fn the_checksum_sees_a_changed_byte_and_swapped_pieces() {
        let mut bytes = vec![1u8; 8192];
        bytes[5000] = 2;
        let checksum = |bytes: &[u8]| {
            let mut pieces = Pieces::new(4096);
            pieces.update(bytes);
            pieces.finish()
        };
        let before = checksum(&bytes);
        bytes.rotate_left(4096);
        assert_ne!(checksum(&bytes), before);
        bytes.rotate_left(4096);
        bytes[0] ^= 1;
        assert_ne!(checksum(&bytes), before);
    }

    #[test]
    fn a_rewrite_changes_every_byte_and_differs_from_lap_to_lap() {
        let before: Vec<u8> = (0..1003u32).map(|n| n as u8).collect();
        let (mut once, mut twice) = (before.clone(), before.clone());
        rewrite(&mut once, 0);
        rewrite(&mut twice, 0);
        rewrite(&mut twice, 1);
        assert!(before.iter().zip(&once).all(|(a, b)| a != b));
        assert_ne!(before, twice);
    }
}
