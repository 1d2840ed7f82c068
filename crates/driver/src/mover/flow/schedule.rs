//! State of a flow at the scheduler: whether it has a turn to come, and the reason for its waiting if not.
//!
//! ```text
//!            something to copy                  its turn
//!     Idle ────────────────────▶ Queued ────────────────────▶ Idle
//!       ▲                          ▲                            │
//!       │ resumed, nothing to copy │ resumed                    │ no receive ring, or a full one
//!       └──────────────────────────┴──────────── Blocked ◀──────┤
//!                                  │                            │ no tokens
//!                                  └─────────── Throttled ◀─────┘
//!                                     an alarm
//! ```

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Nothing to copy, or having its turn.
    #[default]
    Idle,
    /// In its payer's queue.
    Queued {
        /// Set if its tokens are there: it was the first of the flows of its tenant that waited.
        has_tokens: bool,
    },
    /// Waits for a receive ring, or for room in one.
    Blocked,
    /// Waits for tokens: parked until an alarm.
    Throttled,
}

impl Schedule {
    /// Tells whether it is in no queue and waits for nothing. Something to copy then puts it into a queue.
    #[inline]
    pub fn is_idle(self) -> bool {
        self == Self::Idle
    }

    /// Tells whether it waits for room or tokens.
    #[inline]
    pub fn is_blocked(self) -> bool {
        matches!(self, Self::Blocked | Self::Throttled)
    }

    /// Enters its payer's queue.
    #[inline]
    pub fn queue(&mut self) {
        *self = Self::Queued { has_tokens: false };
    }

    /// Begins its turn. Returns whether its tokens are there.
    #[inline]
    pub fn begin(&mut self) -> bool {
        std::mem::take(self) == Self::Queued { has_tokens: true }
    }

    /// Waits for a receive ring, or for room in one.
    pub fn block(&mut self) {
        *self = Self::Blocked;
    }

    /// Waits for tokens.
    pub fn throttle(&mut self) {
        *self = Self::Throttled;
    }

    /// Ends waiting for room, which may be there.
    pub fn unblock(&mut self) {
        if *self == Self::Blocked {
            *self = Self::Idle;
        }
    }

    /// Ends waiting for tokens, which may be there, or with others. Returns whether it waited for them.
    pub fn unthrottle(&mut self) -> bool {
        match *self {
            Self::Throttled => {
                *self = Self::Idle;
                true
            }
            Self::Queued { .. } => {
                self.queue();
                false
            }
            _ => false,
        }
    }

    /// Notes that the tokens of a queued flow are there.
    pub fn keep_tokens(&mut self) {
        if let Self::Queued { has_tokens } = self {
            *has_tokens = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Schedule::{Blocked, Idle, Queued, Throttled};

    const PLAIN: Schedule = Queued { has_tokens: false };
    const FIRST: Schedule = Queued { has_tokens: true };

    fn after(from: Schedule, step: impl FnOnce(&mut Schedule)) -> Schedule {
        let mut schedule = from;
        step(&mut schedule);
        schedule
    }

    #[test]
    fn every_step_from_everywhere() {
        //            from       unblock  unthrottle         keep_tokens  begin (has tokens)
        let table = [
            (Idle, Idle, (Idle, false), Idle, false),
            (PLAIN, PLAIN, (PLAIN, false), FIRST, false),
            (FIRST, FIRST, (PLAIN, false), FIRST, true),
            (Blocked, Idle, (Blocked, false), Blocked, false),
            (Throttled, Throttled, (Idle, true), Throttled, false),
        ];
        for (from, unblocked, (unthrottled, waited), kept, tokens) in table {
            assert_eq!(after(from, Schedule::unblock), unblocked, "{from:?}");
            assert_eq!(
                after(from, |s| assert_eq!(s.unthrottle(), waited, "{from:?}")),
                unthrottled,
                "{from:?}"
            );
            assert_eq!(after(from, Schedule::keep_tokens), kept, "{from:?}");
            assert_eq!(after(from, |s| assert_eq!(s.begin(), tokens, "{from:?}")), Idle, "{from:?}");
            assert_eq!(after(from, Schedule::queue), PLAIN);
            assert_eq!(after(from, Schedule::block), Blocked);
            assert_eq!(after(from, Schedule::throttle), Throttled);
            assert_eq!(from.is_blocked(), [Blocked, Throttled].contains(&from));
            assert_eq!(from.is_idle(), from == Idle);
        }
    }
}
