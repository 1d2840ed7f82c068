//! `sink`: an end for sent frames, which are counted.

use serde::{Deserialize, Serialize};

/// Counts of a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sink {
    /// Frames; pieces of an unmarked stream.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
    /// FNV-1a over all bytes, in order. Independent of the cuts of a stream.
    pub digest: u64,
}

/// FNV-1a: offset basis and prime.
const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x0100_0000_01b3);

impl Sink {
    /// Takes `bytes`, a private copy.
    pub fn take(&mut self, bytes: &[u8]) {
        self.frames = self.frames.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(bytes.len() as u64);
        let start = if self.digest == 0 { FNV.0 } else { self.digest };
        self.digest = bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV.1));
    }
}
