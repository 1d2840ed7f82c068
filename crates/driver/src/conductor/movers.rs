//! The movers as the conductor reaches them.
use crate::ids::MoverId;
use crate::mailbox::Mailbox;
use crate::messages::{ToConductor, ToMover};
use crate::mover::Mover;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
pub enum Movers {
    /// The only one, of the conductor's thread: carries out at once what it is told.
    Own(RefCell<Box<Mover>>),
    /// Threads, by their mailboxes.
    Threads(Vec<Arc<Mailbox<ToMover>>>),
}

impl Movers {
    /// How many they are.
    pub fn len(&self) -> usize {
        match self {
            Self::Own(_) => 1,
            Self::Threads(mailboxes) => mailboxes.len(),
        }
    }

    /// Each of them.
    pub fn ids(&self) -> impl Iterator<Item = MoverId> {
        (0..self.len()).map(MoverId::at)
    }

    /// Tells one of them.
    #[inline]
    pub fn send(&self, to: MoverId, mut command: ToMover) {
        match self {
            Self::Own(mover) => mover.borrow_mut().carry_out(&mut command),
            Self::Threads(mailboxes) => mailboxes[to.index()].send(command),
        }
    }

    /// Moves what one of the same thread has to tell into `into`, which is empty.
    pub fn take_messages(&mut self, into: &mut VecDeque<ToConductor>) {
        if let Some(mover) = self.own() {
            mover.take_messages(into);
        }
    }

    /// The one of the same thread.
    pub fn own(&mut self) -> Option<&mut Mover> {
        match self {
            Self::Own(mover) => Some(mover.get_mut()),
            Self::Threads(_) => None,
        }
    }
}
