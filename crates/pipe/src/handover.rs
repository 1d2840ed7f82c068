//! Hand-over of a link's frames or bytes between the agent and two programs of one tenant.
//!
//! On the direct path the receiving program reads the sending program's ring. The agent grants the path, and recalls it. A position in the
//! sender's ring divides the frames: the agent passes on those before [`grant`]'s and those from [`leave`]'s on, the receiver reads the
//! rest. So each frame has one reader, and their order is that of the ring:
//!
//! 1. The agent announces all that it has appended to the receiver's own ring, and grants. From then on the agent takes nothing from the sender.
//! 2. The receiver reads its own ring to the end, and then the sender's.
//! 3. The agent recalls. The receiver gives back what it has read, and says where that ends.
//! 4. The agent goes on at that position. The sender has nothing to do; it hears where its space comes from.
//!
//! Bytes of a stream are copied when they are taken. Frames that the receiver lends to its program stay where they are. The receiver gives them back by the same word as before, and the agent
//! passes that on (`SYNC POINT: link-lent`). No other path of that receiver begins until all are given back.
//!
//! The code is written over traits for the words, so that it runs over shared memory and under loom.
use pd_abi::pipe::{link, LinkPath};

/// The words of the agent in a status file.
pub trait GrantCells {
    /// Stores the position at which the receiver begins in the sender's ring (relaxed).
    fn store_from(&self, position: u64);
    /// Stores the path and its number (release).
    fn store_link(&self, word: u32);
}

/// The words of a receiver that leaves the direct path.
pub trait LeaveCells {
    /// Stores the position of the first frame or byte that is not read (relaxed).
    fn store_left_at(&self, position: u64);
    /// Stores the number of the path that is left (release).
    fn store_left(&self, number: u32);
}

/// Words of a receiver that leaves the direct path, as the agent reads them.
pub trait LeftCells {
    /// Returns the number of the path that the receiver has left (acquire).
    fn load_left(&self) -> u32;
    /// Returns the position of the first frame or byte that it has not read (relaxed).
    fn load_left_at(&self) -> u64;
}

/// Grants the direct path from `position` in the sender's ring. The agent has announced what it has appended, and published what it has
/// taken. The agent wakes both afterwards: a sender that has not seen its word yet wakes no receiver that has.
pub fn grant(number: u32, position: u64, sender: &impl GrantCells, receiver: &impl GrantCells) {
    receiver.store_from(position);
    // SYNC POINT: link-granted
    sender.store_link(link(number, LinkPath::Direct));
    receiver.store_link(link(number, LinkPath::Direct));
}

/// Leaves the direct path: all frames before `position` were read and given back.
pub fn leave(number: u32, position: u64, cells: &impl LeaveCells) {
    cells.store_left_at(position);
    // SYNC POINT: link-left
    cells.store_left(number);
}

/// Returns the position at which a receiver has left, once it has. Nothing of it is believed.
pub fn left(number: u32, cells: &impl LeftCells) -> Option<u64> {
    // SYNC POINT: link-left
    (cells.load_left() == number).then(|| cells.load_left_at())
}
