//! Access to a mover that only tests have.
#[cfg(test)]
pub use super::requests::FORWARDED_MAX;
#[cfg(test)]
pub use super::scheduler::{CONTROL_BYTES, TURN_BYTES};
use super::Mover;

impl Mover {
    /// Tells whether copies are under way.
    pub fn is_copying(&self) -> bool {
        self.engines.in_flight() > 0
    }

    /// Pretends that it has slept `times` times.
    #[cfg(test)]
    pub fn pretend_slept(&mut self, times: u32) {
        self.doorbells.pretend_slept(times);
    }

    /// Makes a flow a twin's.
    #[cfg(test)]
    pub fn make_last(&mut self, flow: crate::ids::FlowId) {
        if let Some(flow) = self.flows.get(flow) {
            flow.lasts = true;
        }
    }

    /// Tells whether it serves the flow.
    pub fn holds(&mut self, flow: crate::ids::FlowId) -> bool {
        !matches!(self.flows.place(flow), super::flows::Place::Free)
    }

    /// Returns the number of payers that are held, with that of no clients.
    pub fn payer_count(&self) -> usize {
        self.scheduler.payers()
    }

    /// Pretends that `flows` flows of each payer with rings were busy.
    pub fn pretend_busy(&mut self, flows: u64) {
        self.division.pretend_busy(flows);
    }

    /// Tells whether a doorbell has rung while it slept, or a transfer has given it flows, for which its thread has been woken.
    pub fn is_rung(&self) -> bool {
        self.doorbells.is_rung() || self.scheduler.has_flows()
    }

    /// Skips a byte that goes from a previous client's ring to its successor's. Returns whether there was one.
    pub fn skip_moved_byte(&mut self) -> bool {
        let ids: Vec<_> = self.flows.ids().collect();
        ids.into_iter().any(|id| {
            let migration = self.flows.used(id).and_then(|flow| flow.migration());
            migration.is_some_and(|migration| migration.skip_undrained())
        })
    }

    /// Tells a client that its peer has left for the kernel, which it has not. Returns whether there was one.
    pub fn say_elsewhere_early(&mut self) -> bool {
        use pd_abi::layout::{socket_status, ELSEWHERE};
        let ids: Vec<_> = self.flows.ids().collect();
        ids.into_iter().any(|id| {
            let told = self.flows.get(id).map(|flow| flow.last_sender().clone());
            told.is_some_and(|end| {
                end.memory.publish_u32(end.slot, socket_status::RECV_END, ELSEWHERE);
                true
            })
        })
    }

    /// Describes its flows, for diagnosis.
    pub fn describe(&mut self) -> Vec<String> {
        let ids: Vec<_> = self.flows.ids().collect();
        let own = self.outbox.own();
        let of = |flow: &mut super::flow::Flow| format!("{own}: {}", flow.describe());
        ids.into_iter().filter_map(|id| self.flows.get(id).map(of)).collect()
    }

    /// Describes all state that is left although there is no client.
    pub fn leftovers(&mut self) -> Vec<String> {
        let ids: Vec<_> = self.flows.ids().collect();
        let flows = ids.into_iter().filter(|&id| self.flows.get(id).is_some()).count();
        let counts = [
            ("clients", self.clients.with_ids().count()),
            ("flows", flows),
            ("payers", self.payer_count() - 1),
            ("copies", self.engines.in_flight()),
            ("rings", self.division.rings().0 as usize),
        ];
        let left = counts.into_iter().filter(|(_, count)| *count > 0);
        left.map(|(what, count)| format!("{count} {what}")).collect()
    }

    /// Returns the number of rings, and the highest number of late.
    #[cfg(test)]
    pub fn ring_counts(&self) -> (u64, u64) {
        self.division.rings()
    }

    /// Replaces the outbox to the conductor. Returns the previous one.
    #[cfg(test)]
    pub fn tell_by(
        &mut self,
        outbox: crate::mailbox::Outbox<crate::messages::ToConductor>,
    ) -> crate::mailbox::Outbox<crate::messages::ToConductor> {
        self.outbox.replace_conductor(outbox)
    }
}
