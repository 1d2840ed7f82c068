//! What the simulation asks of the door beside what everybody may: it is its helpers' threads, too.
use super::Door;
use crate::messages::Payer;
use std::os::fd::AsFd;

impl Door {
    /// Whether there is news of the kernel's.
    pub fn is_rung(&self) -> bool {
        crate::simulation::kernel::is_readable(self.epoll.as_fd())
    }

    /// Payers whose helper has something to do.
    pub fn helped(&self) -> Vec<Payer> {
        self.helpers.helped()
    }

    /// Has a payer's helper do one thing.
    pub fn help(&mut self, payer: Payer) {
        self.helpers.help(payer);
    }

    /// Ends helpers that have nothing to do.
    pub fn end_helpers(&mut self) {
        self.helpers.end_idle();
    }

    /// What is left although there is no client.
    pub fn leftovers(&self) -> Vec<String> {
        let counts = [("guests", self.guests.total()), ("jobs and held regions", self.helpers.leftovers())];
        let left = counts.into_iter().filter(|(_, count)| *count > 0);
        left.map(|(what, count)| format!("{count} {what}")).collect()
    }
}

/// What a door with bugs would do.
impl Door {
    /// Forgets what is held for guests that had no room. Says whether there was anything.
    pub fn forget_held(&mut self) -> bool {
        self.guests.forget_held()
    }
}
