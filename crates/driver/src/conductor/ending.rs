//! End of a connection: a state machine that each side goes through by itself.
//!
//! A connection ends in one of four ways:
//! - a client closes its socket;
//! - a client dies, or is cut off;
//! - no process holds the kernel's socket of a parked side any more;
//! - a policy denies the connection, or a client broke its ring.
//!
//! The first three end a side ([`Event::Ended`], with an [`Ending`] for both sides). The last ends the flows of both sides, and each side
//! ends when its client closes it. The connection is forgotten when both sides are over ([`Life::is_over`]). See the drawing in
//! `docs/design/connections.md`.
use crate::messages::Finish;
use pd_abi::layout::ENDED;
use rustix::io::Errno;
use std::time::Duration;

/// Holder of a side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Holder {
    /// No holder yet: the accepting side of a twin, which has no flow before it is claimed.
    Unclaimed,
    /// A client's socket.
    Open,
    /// No client, but a process that holds the kernel's socket.
    Parked,
    /// No holder any more. Bytes that were sent are still delivered.
    Ended,
}

/// Event at a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client claims the side, and its flow begins.
    Claimed,
    /// A client takes the side and its flow from the holder.
    Taken,
    /// The client is done with the side, and a process holds the kernel's socket.
    Left,
    /// The client is done with the side, or no process holds the kernel's socket any more. No holder follows.
    Ended,
    /// The flow that starts at the side is over, or will not begin.
    FlowOver,
}

/// State of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Life {
    holder: Holder,
    /// The flow that starts at the side is over. A client that has shut it down may keep its socket.
    flow_over: bool,
}

impl Life {
    /// State of a side that a client's socket holds.
    pub const OPEN: Self = Self { holder: Holder::Open, flow_over: false };
    /// State of a twin's side that no client has claimed.
    pub const UNCLAIMED: Self = Self { holder: Holder::Unclaimed, flow_over: false };

    /// Tells whether a flow starts at the side.
    pub fn has_flow(self) -> bool {
        !self.flow_over && self.holder != Holder::Unclaimed
    }

    /// Tells whether a side can be in this state. `is_somebodys`: a client has it. `may_be_unclaimed`: it can be a twin's accepting side.
    pub fn fits(self, is_somebodys: bool, may_be_unclaimed: bool) -> bool {
        match self.holder {
            Holder::Unclaimed => !is_somebodys && may_be_unclaimed,
            Holder::Open => is_somebodys,
            Holder::Parked => !is_somebodys,
            // The client's socket may still be closing.
            Holder::Ended => true,
        }
    }

    /// Returns the state after an event.
    #[must_use]
    pub fn after(self, event: Event) -> Self {
        match event {
            Event::Claimed => Self::OPEN,
            Event::Taken => Self { holder: Holder::Open, ..self },
            Event::Left => Self { holder: Holder::Parked, ..self },
            Event::Ended => Self { holder: Holder::Ended, ..self },
            Event::FlowOver => Self { flow_over: true, ..self },
        }
    }

    /// Tells whether the side is needed no more. The flow is over, and no process has the side that may still read the ends of streams: a
    /// process that takes a parked side does.
    pub fn is_over(self) -> bool {
        self.flow_over && matches!(self.holder, Holder::Unclaimed | Holder::Ended)
    }
}

/// Cause of the end of a side.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    /// The client closed its socket.
    Closed,
    /// The client closed its socket, and the peer is to learn that the end was not orderly.
    Reset,
    /// The client died, or no process holds the kernel's socket. The peer learns of a close, or with `resets` of a reset: the kernel closes
    /// the sockets of a process that dies. Bytes that were sent are delivered until `deadline`.
    Died { deadline: Duration, resets: bool },
    /// The client is cut off. Bytes that were sent are delivered until the given time.
    CutOff(Duration),
}

/// Instructions to the flows of a side that ends.
#[derive(Clone, Copy, Debug)]
pub struct Farewell {
    /// Finish of the flow that starts at the side.
    pub finish: Finish,
    /// Word by which the peer's sends end: [`ENDED`] or an errno. Goes to the flow that arrives at the side.
    pub send_end: u32,
    /// Set if the peer is to read a direct ring to the end, before it learns of the end.
    pub is_reset: bool,
    /// Set if the client is no more, and may not be told anything.
    pub is_gone: bool,
}

impl Ending {
    /// Returns the instructions to the flows of the side.
    pub fn farewell(self) -> Farewell {
        let reset = Errno::CONNRESET.raw_os_error() as u32;
        let (end, send_end, deadline) = match self {
            Self::Closed => (ENDED, ENDED, None),
            Self::Reset => (reset, reset, None),
            Self::Died { deadline, resets: false } => (ENDED, ENDED, Some(deadline)),
            Self::Died { deadline, resets: true } => (reset, reset, Some(deadline)),
            Self::CutOff(deadline) => (ENDED, reset, Some(deadline)),
        };
        let is_gone = deadline.is_some();
        let finish = Finish { end, late_errno: reset, deadline, source_gone: is_gone };
        Farewell {
            finish,
            send_end,
            is_reset: matches!(self, Self::Reset | Self::Died { resets: true, .. }),
            is_gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Event::{Claimed, Ended, FlowOver, Left, Taken};
    use Holder::{Open, Parked, Unclaimed};

    #[test]
    fn every_event_in_every_state() {
        let life = |holder, flow_over| Life { holder, flow_over };
        // States after `Claimed`, `Taken`, `Left`, `Ended` and `FlowOver`. A stroke marks a state whose flow is over.
        let table = [
            ("U ", ["O ", "O ", "P ", "E ", "U'"]),
            ("U'", ["O ", "O'", "P'", "E'", "U'"]),
            ("O ", ["O ", "O ", "P ", "E ", "O'"]),
            ("O'", ["O ", "O'", "P'", "E'", "O'"]),
            ("P ", ["O ", "O ", "P ", "E ", "P'"]),
            ("P'", ["O ", "O'", "P'", "E'", "P'"]),
            ("E ", ["O ", "O ", "P ", "E ", "E'"]),
            ("E'", ["O ", "O'", "P'", "E'", "E'"]),
        ];
        let state = |name: &str| {
            let holder = match &name[..1] {
                "U" => Unclaimed,
                "O" => Open,
                "P" => Parked,
                _ => Holder::Ended,
            };
            life(holder, name.ends_with('\''))
        };
        for (from, after) in table {
            for (event, to) in [Claimed, Taken, Left, Ended, FlowOver].into_iter().zip(after) {
                assert_eq!(state(from).after(event), state(to), "{from} {event:?}");
            }
            assert_eq!(state(from).is_over(), ["U'", "E'"].contains(&from), "{from}");
        }
    }

    /// Each of the ways ends a connection, whichever comes first: the last socket or the last flow.
    #[test]
    fn every_way_ends_it() {
        let ways: [(Life, &[Event]); 8] = [
            (Life::OPEN, &[Ended, FlowOver]),
            (Life::OPEN, &[FlowOver, Ended]),
            (Life::OPEN, &[Left, Ended, FlowOver]),
            (Life::OPEN, &[FlowOver, Left, Ended]),
            (Life::OPEN, &[Left, Taken, FlowOver, Ended]),
            (Life::UNCLAIMED, &[Claimed, Ended, FlowOver]),
            (Life::UNCLAIMED, &[FlowOver]),
            (Life::UNCLAIMED, &[FlowOver, Claimed, FlowOver, Ended]),
        ];
        for (mut life, events) in ways {
            assert!(!life.is_over());
            for event in events {
                life = life.after(*event);
            }
            assert!(life.is_over(), "{events:?}");
        }
    }

    #[test]
    fn what_flows_are_told() {
        let reset = Errno::CONNRESET.raw_os_error() as u32;
        let told = |ending: Ending| {
            let Farewell { finish, send_end, is_reset, is_gone } = ending.farewell();
            assert_eq!((finish.late_errno, finish.source_gone), (reset, is_gone));
            (finish.end, send_end, finish.deadline, is_reset, is_gone)
        };
        let later = Duration::from_secs(7);
        assert_eq!(told(Ending::Closed), (ENDED, ENDED, None, false, false));
        assert_eq!(told(Ending::Reset), (reset, reset, None, true, false));
        let died = |resets| Ending::Died { deadline: later, resets };
        assert_eq!(told(died(false)), (ENDED, ENDED, Some(later), false, true));
        assert_eq!(told(died(true)), (reset, reset, Some(later), true, true));
        assert_eq!(told(Ending::CutOff(later)), (ENDED, reset, Some(later), false, true));
    }
}
