//! Review of open connections after a policy or tenants have changed: which of them are denied, and which path they take.
//!
//! Clients choose the number of connections, and each is judged by all rules. A step looks at some, and the mover of the same thread has its
//! turns in between. New connections are judged by the present policy anyway.
use super::Conductor;
use crate::gate::Outcome;
use crate::ids::{ConnectionId, Number};
use crate::metrics::Metrics;
use crate::policy::Policy;
use std::sync::Arc;

/// Parts of rules that a step compares with connections, at most by those of one connection.
const PARTS_PER_STEP: usize = 1 << 15;
/// Cost of a connection beside the rules, in parts of rules.
const PARTS_OF_CONNECTION: usize = 128;

/// See the module. Places of the table of connections are looked at in turn, again and again.
#[derive(Debug, Default)]
pub(super) struct Review {
    /// The next place, among the first `places`.
    next: usize,
    /// Number of places at the last change. Connections in later ones are newer.
    places: usize,
    /// Number of places that are still to be looked at: all of them since the last change.
    left: usize,
    /// Number of places whose connections may be denied.
    denials_left: usize,
    /// Outcomes of policies, and the number of places that each waits for.
    outcomes: Vec<(usize, Arc<Outcome>)>,
    /// Parts of rules that a connection is compared with.
    parts: usize,
}

impl Review {
    /// Tells whether connections are still to be looked at.
    pub fn is_under_way(&self) -> bool {
        self.left > 0
    }

    fn begin(&mut self, places: usize, policy: &Policy) {
        if places != self.places {
            // The places before the next one come after the new ones.
            self.denials_left = if self.denials_left > 0 { places } else { 0 };
            self.outcomes.iter_mut().for_each(|(left, _)| *left = places);
        }
        (self.left, self.places) = (places, places);
        // A connection is compared for its verdict, for its path and for what it is led through.
        self.parts = PARTS_OF_CONNECTION + 3 * policy.parts();
    }

    /// Returns the place to look at, and whether its connection may be denied. `None` if all were looked at.
    fn take(&mut self) -> Option<(usize, bool)> {
        self.left = self.left.checked_sub(1)?;
        let (place, may_be_denied) = (self.next % self.places, self.denials_left > 0);
        self.next = place + 1;
        self.denials_left = self.denials_left.saturating_sub(1);
        Some((place, may_be_denied))
    }

    /// Counts an ended connection for all policies that wait.
    fn add_cut(&self) {
        self.outcomes.iter().for_each(|(_, outcome)| outcome.add_cut(1));
    }

    /// Lets go of the outcomes of policies by which all connections were judged, after one more place.
    fn settle(&mut self) {
        self.outcomes.retain_mut(|(left, _)| {
            *left = left.saturating_sub(1);
            *left > 0
        });
    }
}

impl Conductor {
    /// Puts connections on the paths of their present tenants, soon.
    pub(super) fn place_all(&mut self) {
        self.review.begin(self.connections.places(), self.tenants.policy());
        self.review_some();
    }

    /// Ends connections that the policy in force denies, and puts the others on their paths, soon. The outcome gets the number that ended.
    pub(super) fn judge_all(&mut self, outcome: Arc<Outcome>) {
        let places = self.connections.places();
        self.review.denials_left = places;
        self.review.outcomes.push((places, outcome));
        self.place_all();
        if places == 0 {
            self.review.outcomes.clear();
        }
    }

    /// Makes a step of the review. Returns whether there was something to look at.
    pub(super) fn review_some(&mut self) -> bool {
        if !self.review.is_under_way() {
            return false;
        }
        let mut parts = 0;
        while parts < PARTS_PER_STEP {
            parts += self.review.parts;
            let Some((place, may_be_denied)) = self.review.take() else { break };
            let index = ConnectionId::of_place(place);
            if may_be_denied && self.is_denied(index) {
                self.cut(index);
                Metrics::add(&self.metrics.connections_cut, 1);
                self.review.add_cut();
            }
            self.place(index);
            self.review.settle();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::Answer;
    use std::sync::mpsc::channel;

    #[test]
    fn each_policy_waits_for_all_places_and_a_change_does_not_begin_at_the_first() {
        let policy = Policy::default();
        let (reply, answers) = channel();
        let mut review = Review::default();
        review.begin(4, &policy);
        (review.denials_left, review.outcomes) = (4, vec![(4, Arc::new(Outcome::new(Some(reply), None)))]);
        for place in 0..3 {
            assert_eq!(review.take(), Some((place, true)));
            review.settle();
        }
        // A container comes: all places once more, from here on.
        review.begin(4, &policy);
        review.add_cut();
        assert!(answers.try_recv().is_err());
        for expected in [(3, true), (0, false), (1, false), (2, false)] {
            assert_eq!(review.take(), Some(expected));
            review.settle();
            assert!(review.outcomes.is_empty());
        }
        assert!(matches!(answers.try_recv(), Ok(Answer::Applied { cut: 1, .. })));
        assert_eq!((review.take(), review.is_under_way()), (None, false));
    }

    #[test]
    fn none_is_left_out_when_connections_come_meanwhile() {
        let policy = Policy::default();
        let mut review = Review::default();
        review.begin(4, &policy);
        review.denials_left = 4;
        let before: Vec<_> = (0..2).filter_map(|_| review.take()).collect();
        assert_eq!(before, [(0, true), (1, true)]);
        review.begin(6, &policy);
        let after: Vec<_> = std::iter::from_fn(|| review.take()).collect();
        assert_eq!(after, [2, 3, 4, 5, 0, 1].map(|place| (place, true)));
    }
}
