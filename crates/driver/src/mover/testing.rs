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

    /// As if it had slept so often.
    #[cfg(test)]
    pub fn pretend_slept(&mut self, times: u32) {
        self.doorbells.pretend_slept(times);
    }

    /// Whether it serves the flow.
    pub fn holds(&mut self, flow: crate::ids::FlowId) -> bool {
        !matches!(self.flows.place(flow), super::flows::Place::Free)
    }

    /// Payers that somebody holds, and that of no clients.
    pub fn payer_count(&self) -> usize {
        self.scheduler.payers()
    }

    /// As if so many flows of each payer with rings had been busy.
    pub fn pretend_busy(&mut self, flows: u64) {
        self.division.pretend_busy(flows);
    }

    /// Whether anybody has rung while it slept; or a transfer has given it flows, for which its thread has been woken.
    pub fn is_rung(&self) -> bool {
        self.doorbells.is_rung() || self.scheduler.has_flows()
    }

    /// How its flows stand, for those who wonder.
    pub fn describe(&mut self) -> Vec<String> {
        let ids: Vec<_> = self.flows.ids().collect();
        let own = self.outbox.own();
        let of = |flow: &mut super::flow::Flow| format!("{own}: {}", flow.describe());
        ids.into_iter().filter_map(|id| self.flows.get(id).map(of)).collect()
    }

    /// What is left although there is no client.
    pub fn leftovers(&mut self) -> Vec<String> {
        let ids: Vec<_> = self.flows.ids().collect();
        let flows = ids.into_iter().filter(|&id| self.flows.get(id).is_some()).count();
        let counts = [
            ("clients", self.clients.iter_mut().count()),
            ("flows", flows),
            ("payers", self.payer_count() - 1),
            ("copies", self.engines.in_flight()),
            ("rings", self.division.rings().0 as usize),
        ];
        let left = counts.into_iter().filter(|(_, count)| *count > 0);
        left.map(|(what, count)| format!("{count} {what}")).collect()
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
