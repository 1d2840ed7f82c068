//! Checksums of streams: a fast one in timed rounds, SHA-256 in the verifying pass.
//!
//! The fast checksum is XXH3 of each block of the stream, the results folded into one 64-bit value. It is the same on both
//! sides however the bytes were split on the way. A block is a message, or 4 KB of a longer one. Whole blocks are hashed in
//! place. A streaming hash would take between 1.0 and 1.5 times the time, as the compiler happens to inline it, and that
//! difference would count as the transport's.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::processor::xxh3;

/// The checksum that a side takes of every byte.
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

/// Most bytes of a block.
const BLOCK_BYTES_MAX: usize = 4096;

/// Folds the checksums of the blocks of a stream.
pub struct Blocks {
    block_bytes: usize,
    /// Start of a block that comes in several parts. Allocated with the first of them.
    partial: Vec<u8>,
    folded: u64,
}

impl Blocks {
    /// Makes a checksum for a stream of messages of `message_bytes`, which is cut into blocks of that size, 4 KB at most.
    pub fn new(message_bytes: usize) -> Self {
        Self { block_bytes: message_bytes.min(BLOCK_BYTES_MAX), partial: Vec::new(), folded: 0 }
    }

    fn fold(&mut self, hash: u64) {
        self.folded = (self.folded ^ hash).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    }

    /// Takes the next bytes of the stream.
    pub fn update(&mut self, mut bytes: &[u8]) {
        if !self.partial.is_empty() {
            let (some, rest) = bytes.split_at(bytes.len().min(self.block_bytes - self.partial.len()));
            self.partial.extend_from_slice(some);
            bytes = rest;
            if self.partial.len() < self.block_bytes {
                return;
            }
            self.end_partial();
        }
        let mut blocks = bytes.chunks_exact(self.block_bytes);
        for block in &mut blocks {
            self.fold(xxh3(block));
        }
        if !blocks.remainder().is_empty() {
            self.partial.reserve_exact(self.block_bytes);
            self.partial.extend_from_slice(blocks.remainder());
        }
    }

    fn end_partial(&mut self) {
        self.fold(xxh3(&self.partial));
        self.partial.clear();
    }

    /// Returns the checksum of the whole stream.
    pub fn finish(mut self) -> u64 {
        if !self.partial.is_empty() {
            self.end_partial();
        }
        self.folded
    }
}

/// A checksum of one round, under way.
pub enum Digest {
    /// The fast checksum of each connection.
    Blocks(Vec<Blocks>),
    /// SHA-256 of one connection.
    Sha256(Box<Sha256>),
    /// Nothing.
    Nothing,
}

impl Digest {
    /// Makes a digest for a round of messages of `message_bytes` over `connections`.
    pub fn new(touch: Touch, connections: usize, message_bytes: usize) -> Digest {
        match touch {
            Touch::Checksum => Digest::Blocks((0..connections).map(|_| Blocks::new(message_bytes)).collect()),
            Touch::Sha256 => Digest::Sha256(Box::default()),
            Touch::Nothing => Digest::Nothing,
        }
    }

    /// Takes the next bytes of a connection.
    pub fn update(&mut self, connection: usize, bytes: &[u8]) {
        match self {
            Digest::Blocks(blocks) => blocks[connection].update(bytes),
            Digest::Sha256(sha) => sha.update(bytes),
            Digest::Nothing => {}
        }
    }

    /// Returns the result in hexadecimal, independent of the order of the connections; empty for nothing.
    pub fn finish(self) -> String {
        match self {
            Digest::Blocks(blocks) => combine(blocks.into_iter().map(Blocks::finish)),
            Digest::Sha256(sha) => hex(&sha.finalize()),
            Digest::Nothing => String::new(),
        }
    }
}

/// Combines the checksums of several connections into one value, independent of their order.
pub fn combine(checksums: impl Iterator<Item = u64>) -> String {
    let mixed = checksums.map(|c| xxh3(&c.to_le_bytes()));
    format!("{:016x}", mixed.fold(0u64, u64::wrapping_add))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Changes every byte in place, like a program that produces new data in the same memory: one pass over
/// 64-bit words with a key that differs from lap to lap.
pub fn rewrite(bytes: &mut [u8], lap: u64) {
    let key = (lap + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 0x0101_0101_0101_0101;
    crate::processor::change_words(bytes, key);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(bytes: &[u8], message_bytes: usize, split: usize) -> u64 {
        let mut blocks = Blocks::new(message_bytes);
        bytes.chunks(split).for_each(|chunk| blocks.update(chunk));
        blocks.finish()
    }

    #[test]
    fn the_checksum_does_not_depend_on_the_splits() {
        let bytes: Vec<u8> = (0..100_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
        for message_bytes in [1, 64, 1000, 4096, 65536] {
            let whole = checksum(&bytes, message_bytes, bytes.len());
            for split in [1, 7, 100, 4095, 4096, 4097, 65536] {
                assert_eq!(
                    checksum(&bytes, message_bytes, split),
                    whole,
                    "{message_bytes} in parts of {split}"
                );
            }
        }
    }

    #[test]
    fn the_checksum_sees_a_changed_byte_and_swapped_blocks() {
        let mut bytes = vec![1u8; 8192];
        bytes[5000] = 2;
        let before = checksum(&bytes, 4096, 8192);
        bytes.rotate_left(4096);
        assert_ne!(checksum(&bytes, 4096, 8192), before);
        bytes.rotate_left(4096);
        bytes[0] ^= 1;
        assert_ne!(checksum(&bytes, 4096, 8192), before);
    }

    #[test]
    fn checksums_of_connections_add_up_in_any_order() {
        let one = combine([1, 2, 3].into_iter());
        assert_eq!(one, combine([3, 1, 2].into_iter()));
        assert_ne!(one, combine([1, 2, 4].into_iter()));
        assert_ne!(one, combine([6, 0, 0].into_iter()));
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
