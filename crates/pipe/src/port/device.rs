//! Devices: connections of a port to the world outside the agent, such as the kernel's interfaces or another program's rings.
//!
//! An agent takes frames from a device and gives it frames, in turns of a bounded number. A device never blocks. Frames that it
//! lends lie in memory that nobody else writes until they are given back.
use crate::flow::Flow;
use std::os::fd::BorrowedFd;

/// Outcome of sending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The frame is on its way.
    Done,
    /// The frame has to wait: there will be room.
    Wait,
    /// The frame is lost: there is no receiver, or no room.
    Lost,
}

/// The outer side of a port.
pub trait Device: std::fmt::Debug + Send {
    /// Returns the oldest received frame that was not advanced over: the same at each call.
    fn peek(&mut self) -> Option<&[u8]>;

    /// Gives that frame back.
    fn advance(&mut self);

    /// Sends a frame, a private copy.
    fn send(&mut self, frame: &[u8]) -> Taken;

    /// Ends a turn: sent frames leave, and the memory of frames given back returns to the other side. Returns whether anything else
    /// happened, after which another turn is due.
    fn flush(&mut self) -> bool;

    /// Prepares for a sleep of the agent, which an edge of a descriptor ends. The other side has to ring from now on. Called before the
    /// agent's last look. Returns whether the other side may have missed the request, so that another look is due within a millisecond.
    fn rest(&mut self) -> bool {
        false
    }

    /// Returns whether the other side has gone for good, as an interface that was deleted. Called before a sleep of the agent.
    fn has_gone(&mut self) -> bool {
        false
    }

    /// Returns the descriptors whose edges mean that frames may have arrived.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Limits the device to frames of these flows from now on. A device that cannot choose takes all, and one that names no
    /// [`Self::flows_max`] is not told.
    fn bind(&mut self, _flows: &[Flow]) {}

    /// Returns the most flows that the device can tell apart.
    fn flows_max(&self) -> usize {
        usize::MAX
    }

    /// Returns whether the device shows copies of frames, so that nothing can be sent to it. Taps of its port see frames that no pipe is
    /// bound to.
    fn is_mirror(&self) -> bool {
        false
    }

    /// Tells the device whether a pipe or a tap sees its frames from now on. An unwatched mirror need not copy.
    fn set_watched(&mut self, _is_watched: bool) {}

    /// Returns the frames that were lost before the agent could see them.
    fn missed(&self) -> u64 {
        0
    }

    /// Returns the descriptor by which an agent of another process goes on with the device, and the received frame that was not advanced over, if
    /// there is one. None: the device ends with its agent.
    fn lasting(&self) -> Option<(BorrowedFd<'_>, &[u8])> {
        None
    }
}
