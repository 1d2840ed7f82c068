//! The shape of a pipe: direction, unit, and size.
use pd_abi::limits::LINE_BYTES;
use pd_abi::pipe::{frame_stride, FRAME_BYTES_MAX};
use pd_abi::pipe::{PIPE_PIECE_BYTES, PIPE_RING_BYTES_MAX, PIPE_RING_BYTES_MIN};
use pd_shm::byte_ring::offset_in;
use rustix::io::{Errno, Result};
use serde::{Deserialize, Serialize};

/// Direction of a pipe's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// From the agent to the program.
    Receive,
    /// From the program to the agent.
    Send,
    /// From the agent to the program and back, in one ring: an RxTx pipe of Ensō.
    Forward,
}

/// Unit of a pipe's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Frames, each at the start of a line, with a frame table.
    Frames,
    /// Bytes without marks between them.
    Bytes,
}

/// Direction, unit and size of a pipe, checked on construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(Direction, Unit, u64)", into = "(Direction, Unit, u64)")]
pub struct Shape {
    direction: Direction,
    unit: Unit,
    ring_bytes: u64,
}

impl From<Shape> for (Direction, Unit, u64) {
    fn from(shape: Shape) -> Self {
        (shape.direction, shape.unit, shape.ring_bytes)
    }
}

impl TryFrom<(Direction, Unit, u64)> for Shape {
    type Error = Errno;

    fn try_from((direction, unit, ring_bytes): (Direction, Unit, u64)) -> Result<Self> {
        Self::new(direction, unit, ring_bytes)
    }
}

impl Shape {
    /// Makes the shape of a pipe with a ring of `ring_bytes`.
    ///
    /// # Errors
    /// `EINVAL` unless `ring_bytes` is a power of two from [`PIPE_RING_BYTES_MIN`] to [`PIPE_RING_BYTES_MAX`].
    pub fn new(direction: Direction, unit: Unit, ring_bytes: u64) -> Result<Self> {
        let allowed = PIPE_RING_BYTES_MIN..=PIPE_RING_BYTES_MAX;
        if !ring_bytes.is_power_of_two() || !allowed.contains(&ring_bytes) {
            return Err(Errno::INVAL);
        }
        Ok(Self { direction, unit, ring_bytes })
    }

    /// Returns the direction.
    pub fn direction(self) -> Direction {
        self.direction
    }

    /// Returns the unit.
    pub fn unit(self) -> Unit {
        self.unit
    }

    /// Returns the size of the ring.
    pub fn ring_bytes(self) -> u64 {
        self.ring_bytes
    }

    /// Returns whether the program receives.
    pub fn receives(self) -> bool {
        self.direction != Direction::Send
    }

    /// Returns whether the program sends.
    pub fn sends(self) -> bool {
        self.direction != Direction::Receive
    }

    /// Returns the unit of positions in shared words, which are multiples of it.
    pub(crate) fn grain(self) -> u64 {
        match self.unit {
            Unit::Frames => LINE_BYTES as u64,
            Unit::Bytes => 1,
        }
    }

    /// Returns the bytes after which the program gives space back.
    pub(crate) fn piece(self) -> u64 {
        PIPE_PIECE_BYTES.min(self.ring_bytes / 4)
    }

    /// Returns the free bytes of the ring that a sender waits for in `poll` and `epoll`: a quarter, and of frames room for the longest. A program
    /// that waits for frames leaves as much.
    pub fn headroom(self) -> u64 {
        match self.unit {
            Unit::Frames => frame_stride(FRAME_BYTES_MAX).max(self.ring_bytes / 4),
            Unit::Bytes => self.ring_bytes / 4,
        }
    }

    /// Returns the offset of a position in the ring.
    pub(crate) fn offset(self, position: u64) -> usize {
        offset_in(position, self.ring_bytes) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_a_power_of_two_within_limits() {
        let shape = |bytes| Shape::new(Direction::Receive, Unit::Frames, bytes);
        assert!(shape(PIPE_RING_BYTES_MIN).is_ok() && shape(PIPE_RING_BYTES_MAX).is_ok());
        for bytes in [0, 4096, PIPE_RING_BYTES_MIN + 4096, 2 * PIPE_RING_BYTES_MAX, u64::MAX] {
            assert_eq!(shape(bytes), Err(Errno::INVAL));
        }
    }
}
