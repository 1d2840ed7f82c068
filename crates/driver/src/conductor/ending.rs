//! How a connection ends: one state machine, which each of its sides goes through by itself.
//!
//! There are four ways: a client closes its socket; it dies, or is cut off; nobody holds the kernel's socket of a parked side
//! any more; a policy denies the connection, or a client broke its ring. The first three end a side ([`Event::Ended`], with an
//! [`Ending`] that says what both sides learn). The last ends the flows of both sides, and each side ends when its client closes it.
//! The connection is forgotten when both sides are over ([`Life::is_over`]). There is a drawing in `docs/design/connections.md`.
use crate::messages::Finish;
use pd_abi::layout::ENDED;
use rustix::io::Errno;
use std::time::Duration;

/// Who has a side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Holder {
    /// Nobody yet: the accepting side of a twin, which has no flow before somebody claims it.
    Unclaimed,
    /// A client's socket.
    Open,
    /// No client, but a process that holds the kernel's socket.
    Parked,
    /// Nobody any more: what it has sent is still delivered.
    Ended,
}

/// What befalls a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client claims it: its flow begins.
    Claimed,
    /// A client takes it from whoever had it, with its flow.
    Taken,
    /// Its client is done with it, and somebody holds the kernel's socket.
    Left,
    /// Its client is done with it, or nobody holds the kernel's socket any more; nobody goes on.
    Ended,
    /// The flow that starts there is over, or there will be none.
    FlowOver,
}

/// Where a side stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Life {
    holder: Holder,
    /// The flow that starts there is over. A client that has shut it down may keep its socket.
    flow_over: bool,
}

impl Life {
    /// Of a client's socket.
    pub const OPEN: Self = Self { holder: Holder::Open, flow_over: false };
    /// Of a twin that nobody has claimed.
    pub const UNCLAIMED: Self = Self { holder: Holder::Unclaimed, flow_over: false };

    /// Tells whether a flow starts there.
    pub fn has_flow(self) -> bool {
        !self.flow_over && self.holder != Holder::Unclaimed
    }

    /// Tells whether the side of a connection can be this: whether a client has it, and whether it can be one that nobody has claimed.
    pub fn fits(self, is_somebodys: bool, may_be_unclaimed: bool) -> bool {
        match self.holder {
            Holder::Unclaimed => !is_somebodys && may_be_unclaimed,
            Holder::Open => is_somebodys,
            Holder::Parked => !is_somebodys,
            // Its socket may still be closing.
            Holder::Ended => true,
        }
    }

    /// Where the side stands after an event.
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

    /// Whether nobody needs the side any more: its flow is over, and no client's socket has it, where the ends of its streams
    /// may still be read.
    pub fn is_over(self) -> bool {
        self.flow_over && self.holder != Holder::Open
    }
}

/// Why a side ends.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    /// Its client closed it.
    Closed,
    /// The same, and the peer is to learn that it was no orderly end.
    Reset,
    /// Its client died, or nobody holds the kernel's socket; what was sent is delivered until then.
    Died(Duration),
}

/// What the flows of a side that ends are told.
#[derive(Clone, Copy, Debug)]
pub struct Farewell {
    /// The one that starts there.
    pub finish: Finish,
    /// The one that ends there: what the peer's sends fail with.
    pub send_end: u32,
    /// On the direct path the peer is to read its ring to the end, before it learns the end.
    pub is_reset: bool,
    /// Its client is no more, and may not be told anything.
    pub is_gone: bool,
}

impl Ending {
    /// What its flows are told.
    pub fn farewell(self) -> Farewell {
        let reset = Errno::CONNRESET.raw_os_error() as u32;
        let (end, send_end, deadline) = match self {
            Self::Closed => (ENDED, ENDED, None),
            Self::Reset => (reset, reset, None),
            Self::Died(deadline) => (ENDED, reset, Some(deadline)),
        };
        let is_gone = deadline.is_some();
        let finish = Finish { end, late_errno: reset, deadline, source_gone: is_gone };
        Farewell { finish, send_end, is_reset: matches!(self, Self::Reset), is_gone }
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
        // After `Claimed`, `Taken`, `Left`, `Ended` and `FlowOver`; a state whose flow is over has a stroke.
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
            assert_eq!(state(from).is_over(), ["U'", "P'", "E'"].contains(&from), "{from}");
        }
    }

    /// Each of the ways ends a connection, whichever comes first: the last socket or the last flow.
    #[test]
    fn every_way_ends_it() {
        let ways: [(Life, &[Event]); 7] = [
            (Life::OPEN, &[Ended, FlowOver]),
            (Life::OPEN, &[FlowOver, Ended]),
            (Life::OPEN, &[Left, Ended, FlowOver]),
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
        assert_eq!(told(Ending::Died(later)), (ENDED, reset, Some(later), false, true));
    }
}
