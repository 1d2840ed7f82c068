//! Division of an agent's time among the payers of its pipes.
//!
//! Work for a pipe costs its payer: looks at words, frames of any fate, bytes, and wake-ups, in the bytes that are copied in the same time.
//! Each turn gives each payer the same credit. Credit that is left over is lost, and a debt is paid back by later turns: until then the
//! agent neither looks at the payer's pipes nor takes their frames. A payer alone has no limit.

use foldhash::fast::RandomState;
use std::collections::HashMap;

/// Credit of a payer for a turn: some 100 µs. A payer with one pipe of small frames uses less.
pub const TURN_COST: i64 = 512 << 10;
/// Most debt. What comes in from a port is charged to its receiver, who does not choose when.
const DEBT_MAX: i64 = 8 * TURN_COST;
/// Cost of a look at a pipe whose program has done nothing.
pub const LOOK_COST: i64 = 128;
/// Further cost of a look that finds something: lines come out of another core's cache.
pub const NEWS_COST: i64 = 512;
/// Cost of a frame or piece, whatever becomes of it, beside its bytes.
pub const FRAME_COST: i64 = 512;
/// Cost of a wake-up of a program: a system call.
pub const WAKE_COST: i64 = 8 << 10;
/// Cost of a pipe that starts, and of one that ends: tables, and system calls for its descriptors.
pub const CHANGE_COST: i64 = 32 << 10;

/// A payer's account.
#[derive(Clone, Debug)]
struct Account {
    payer: u64,
    /// Pipes that have not been closed.
    pipes: usize,
    credit: i64,
}

/// The accounts of all payers, which pipes name by their place.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    accounts: Vec<Account>,
    /// Places of the accounts with pipes, by payer, and of those without.
    places: HashMap<u64, usize, RandomState>,
    free: Vec<usize>,
}

impl Shares {
    /// Counts one more pipe of a payer. Returns the place of the payer's account.
    pub fn enter(&mut self, payer: u64) -> usize {
        let at = *self.places.entry(payer).or_insert_with(|| {
            let at = self.free.pop().unwrap_or(self.accounts.len());
            let fresh = Account { payer, pipes: 0, credit: TURN_COST };
            match self.accounts.get_mut(at) {
                None => self.accounts.push(fresh),
                Some(account) => *account = fresh,
            }
            at
        });
        self.accounts[at].pipes += 1;
        at
    }

    /// Counts one pipe less.
    pub fn leave(&mut self, at: usize) {
        let account = &mut self.accounts[at];
        account.pipes -= 1;
        if account.pipes == 0 {
            self.places.remove(&account.payer);
            self.free.push(at);
        }
    }

    /// Begins a turn, with credit for all.
    pub fn begin_turn(&mut self) {
        let is_shared = self.accounts.iter().filter(|account| account.pipes > 0).count() > 1;
        for account in &mut self.accounts {
            let credit = account.credit.max(-DEBT_MAX).saturating_add(TURN_COST);
            account.credit = if is_shared { credit.min(TURN_COST) } else { i64::MAX };
        }
    }

    /// Returns what a payer may still cost in this turn; at most zero in debt.
    #[inline]
    pub fn credit(&self, at: usize) -> i64 {
        self.accounts[at].credit
    }

    /// Charges a payer.
    #[inline]
    pub fn charge(&mut self, at: usize, cost: i64) {
        let credit = &mut self.accounts[at].credit;
        *credit = credit.saturating_sub(cost);
    }

    /// Tells whether a payer with pipes has no credit: they were not looked at, or have more to send.
    pub fn is_any_spent(&self) -> bool {
        self.accounts.iter().any(|account| account.pipes > 0 && account.credit <= 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn accounts_are_of_payers_and_used_again() {
        let mut shares = Shares::default();
        let [a, b, again] = [7, 8, 7].map(|payer| shares.enter(payer));
        assert_eq!((a, b, again), (0, 1, 0));
        shares.begin_turn();
        shares.charge(a, 3 * TURN_COST);
        assert!(shares.is_any_spent() && shares.credit(b) == TURN_COST);
        shares.leave(a);
        shares.begin_turn();
        assert!(shares.is_any_spent());
        shares.leave(again);
        assert!(!shares.is_any_spent());
        // Another payer does not inherit the debt. Alone it has no limit.
        assert_eq!((shares.enter(9), shares.credit(a)), (a, TURN_COST));
        shares.leave(b);
        shares.begin_turn();
        assert_eq!(shares.credit(a), i64::MAX);
    }

    proptest! {
        /// Payers want some cost in each turn, in pieces of some size. Model: each gets all that it wants, or as much as anybody.
        #[test]
        fn nobody_takes_of_others_shares(
            wants in prop::collection::vec((0..4 * TURN_COST, 1..DEBT_MAX / 2), 2..8),
            turns in 20..200i64,
        ) {
            let mut shares = Shares::default();
            let places: Vec<_> = (0..wants.len() as u64).map(|payer| shares.enter(payer)).collect();
            let mut served = vec![0; wants.len()];
            for _ in 0..turns {
                shares.begin_turn();
                for (&at, &(want, piece)) in places.iter().zip(&wants) {
                    let mut left = want;
                    while left > 0 && shares.credit(at) > 0 {
                        let cost = piece.min(left);
                        shares.charge(at, cost);
                        (left, served[at]) = (left - cost, served[at] + cost);
                    }
                }
            }
            for (&(want, piece), &served) in wants.iter().zip(&served) {
                let fair = want.min(TURN_COST) * turns;
                prop_assert!(served <= fair.max(TURN_COST * turns) + piece, "{served} of {fair}");
                // A debt is of one piece at most.
                prop_assert!(served + piece.min(want) >= fair, "{served} of {fair}, pieces of {piece}");
            }
        }
    }
}
