//! Access to the door that only the simulation has, which does the work of its helpers' threads, too.
use super::Door;
use crate::messages::Payer;
use std::os::fd::AsFd;

impl Door {
    /// Tells whether there is news of the kernel's.
    pub fn is_rung(&self) -> bool {
        crate::simulation::kernel::is_readable(self.epoll.as_fd())
    }

    /// Lists the payers whose helper has something to do.
    pub fn helped(&self) -> Vec<Payer> {
        self.helpers.helped()
    }

    /// Does one job of a payer's helper.
    pub fn help(&mut self, payer: Payer) {
        self.helpers.help(payer);
    }

    /// Ends helpers that have nothing to do.
    pub fn end_helpers(&mut self) {
        self.helpers.end_idle();
    }

    /// Describes all state that is left although there is no client.
    pub fn leftovers(&self) -> Vec<String> {
        let counts = [("guests", self.guests.total()), ("jobs and held regions", self.helpers.leftovers())];
        let left = counts.into_iter().filter(|(_, count)| *count > 0);
        left.map(|(what, count)| format!("{count} {what}")).collect()
    }
}

/// Faults of a door with bugs.
impl Door {
    /// Forgets the frames that are held for guests that had no room. Returns whether there were any.
    pub fn forget_held(&mut self) -> bool {
        self.guests.forget_held()
    }
}
