//! Streams as their receivers see them.

/// A socket's number, which no other ever has.
pub type Number = usize;

/// A receiver's view of its stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arriving {
    pub received: u64,
    /// The first bytes, which name the sender.
    pub head: [u8; 8],
    pub from: From,
}

/// Sender of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub enum From {
    #[default]
    Unknown,
    Honest(Number),
    Hostile,
}

impl Arriving {
    /// Returns the view of a receiver that has received so many bytes of the same stream.
    pub fn at(self, received: u64) -> Self {
        Self { received, ..self }
    }
}
