//! What tests may ask of a mover beside what everybody may, and have it believe.
#[cfg(test)]
pub use super::requests::FORWARDED_MAX;
#[cfg(test)]
pub use super::scheduler::{CONTROL_BYTES, TURN_BYTES};
use super::Mover;

impl Mover {
    /// Whether copies are under way.
    pub fn is_copying(&self) -> bool {
        self.engines.in_flight() > 0
    }

    /// Payers that somebody holds, and that of no clients.
    pub fn payer_count(&self) -> usize {
        self.scheduler.payers()
    }

    /// As if so many flows of each payer with rings had been busy.
    pub fn pretend_busy(&mut self, flows: u64) {
        self.division.pretend_busy(flows);
    }

    /// Rings in all, and the most of them of late.
    #[cfg(test)]
    pub fn ring_counts(&self) -> (u64, u64) {
        self.division.rings()
    }

    /// Has it tell its conductor by another outbox. Returns the former one.
    #[cfg(test)]
    pub fn tell_by(
        &mut self,
        outbox: crate::mailbox::Outbox<crate::messages::ToConductor>,
    ) -> crate::mailbox::Outbox<crate::messages::ToConductor> {
        self.outbox.replace_conductor(outbox)
    }
}
