//! What joins a port to the world outside of the agent: the kernel's interfaces, or another program's rings.
//!
//! An agent asks a device for frames and gives it frames, in turns of a bounded number. A device never blocks. Frames that it lends
//! lie in memory that nobody else writes until they are given back.
use crate::flow::Flow;
use std::os::fd::BorrowedFd;

/// What became of a frame that a pipe sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is on its way.
    Done,
    /// It has to wait: there will be room.
    Wait,
    /// It is lost: nobody is there, or there is no room.
    Lost,
}

/// The outer side of a port.
pub trait Device: std::fmt::Debug + Send {
    /// The oldest frame received that was not advanced over: the same at each call.
    fn peek(&mut self) -> Option<&[u8]>;

    /// Gives that frame back.
    fn advance(&mut self);

    /// Sends a frame, a private copy.
    fn send(&mut self, frame: &[u8]) -> Taken;

    /// Ends a turn: frames sent leave, and memory of frames given back is the other side's again. Returns whether anything else happened,
    /// after which another turn is due.
    fn flush(&mut self) -> bool;

    /// Prepares for a sleep of the agent, which news of a descriptor ends: the other side is to ring from now on. Called before the agent's
    /// last look. Returns whether the other side may have missed it, so that another look is due within a millisecond.
    fn rest(&mut self) -> bool {
        false
    }

    /// Descriptors whose edges say that frames may have come.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Takes frames of these flows only, from now on. A device that cannot choose takes all.
    fn bind(&mut self, _flows: &[Flow]) {}

    /// Most flows that it can tell apart.
    fn flows_max(&self) -> usize {
        usize::MAX
    }

    /// Returns whether it shows copies of frames, so that nothing can be sent there. Taps of its port see frames that no pipe is bound to.
    fn is_mirror(&self) -> bool {
        false
    }

    /// Says whether a pipe or a tap sees its frames from now on. A mirror that nobody watches need not copy.
    fn set_watched(&mut self, _is_watched: bool) {}

    /// Frames that were lost before the agent could see them.
    fn missed(&self) -> u64 {
        0
    }
}
