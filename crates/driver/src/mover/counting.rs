//! Counts of moved bytes and messages, in this mover's lines of the counter region.
use super::flow::{Flow, Moved};
use crate::ids::{FlowId, MoverId};
use crate::messages::{Endpoint, NewFlow};
use crate::metrics::Metrics;
use pd_abi::counters::{ClientCounters, FlowCounters, Shape};
use pd_shm::counters::{CLIENT_WORDS, FLOW_WORDS};
use std::mem::offset_of;

/// Opens lines for a flow that begins, and for both of its clients.
pub fn open(metrics: &Metrics, mover: MoverId, flow: &NewFlow) {
    open_clients(metrics, mover, [&flow.source, &flow.destination]);
    open_flow(metrics, flow.id, flow.serial);
}

/// Opens a line for a flow of the connection with this serial.
pub fn open_flow(metrics: &Metrics, flow: FlowId, serial: u64) {
    let region = metrics.region();
    if let Some(at) = flow_line(region.shape(), flow) {
        region.open_line(at, serial, FLOW_WORDS);
    }
}

/// Opens lines for the clients of a flow.
pub fn open_clients(metrics: &Metrics, mover: MoverId, ends: [&Endpoint; 2]) {
    let region = metrics.region();
    for end in ends {
        if let Some(at) = client_line(region.shape(), mover, end) {
            if region.serial(at) != end.serial {
                region.open_line(at, end.serial, CLIENT_WORDS);
            }
        }
    }
}

/// Counts the bytes and messages that a flow has moved.
pub fn count(metrics: &Metrics, mover: MoverId, flow: &Flow, moved: &Moved) {
    if *moved == Moved::default() {
        return;
    }
    let wake_ups = moved.source_woken + moved.destination_woken;
    metrics.bytes_delivered.add(moved.bytes);
    metrics.messages_completed.add(moved.messages);
    metrics.rings_full.add(moved.rings_full);
    metrics.wake_ups.add(wake_ups);
    count_in_lines(metrics, mover, flow, moved);
}

/// Counts the bytes and messages that the source of a direct flow claims to have sent. Both count as delivered in the lines of the flow and
/// of its clients, and separately in the sum.
pub fn count_reported(metrics: &Metrics, mover: MoverId, flow: &Flow, bytes: u64, messages: u64) {
    metrics.bytes_reported.add(bytes);
    metrics.messages_reported.add(messages);
    count_in_lines(metrics, mover, flow, &Moved { bytes, messages, ..Moved::default() });
}

fn count_in_lines(metrics: &Metrics, mover: MoverId, flow: &Flow, moved: &Moved) {
    let (region, wake_ups) = (metrics.region(), moved.source_woken + moved.destination_woken);
    if let Some(at) = flow_line(region.shape(), flow.id) {
        region.add(at + offset_of!(FlowCounters, bytes), moved.bytes);
        region.add(at + offset_of!(FlowCounters, messages), moved.messages);
        region.add(at + offset_of!(FlowCounters, rings_full), moved.rings_full);
        region.add(at + offset_of!(FlowCounters, wake_ups), wake_ups);
    }
    // The line of a client that has gone may be another's by now.
    let line = |end| client_line(region.shape(), mover, end).filter(|&at| region.serial(at) == end.serial);
    if let Some(at) = line(flow.source()) {
        region.add(at + offset_of!(ClientCounters, bytes_sent), moved.bytes);
        region.add(at + offset_of!(ClientCounters, messages_sent), moved.messages);
        region.add(at + offset_of!(ClientCounters, wake_ups), moved.source_woken);
    }
    if let Some(at) = line(flow.destination()) {
        region.add(at + offset_of!(ClientCounters, bytes_received), moved.bytes);
        region.add(at + offset_of!(ClientCounters, messages_received), moved.messages);
        region.add(at + offset_of!(ClientCounters, rings_full), moved.rings_full);
        region.add(at + offset_of!(ClientCounters, wake_ups), moved.destination_woken);
    }
}

fn client_line(shape: Shape, mover: MoverId, end: &Endpoint) -> Option<usize> {
    let client = u32::from(end.client.get());
    (client < shape.clients).then(|| shape.client(mover.get(), client))
}

fn flow_line(shape: Shape, flow: FlowId) -> Option<usize> {
    (flow.connection().get() < shape.connections).then(|| shape.flow(flow.get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ClientId, Slot, TenantId};
    use crate::memory::ClientMemory;
    use pd_shm::counters::CounterView;
    use std::sync::Arc;

    const MOVER: MoverId = MoverId::new(0);

    fn flow(id: u32, serial: u64, source: (u16, u64), destination: (u16, u64)) -> NewFlow {
        let end = |(client, serial): (u16, u64)| Endpoint {
            client: ClientId::new(client),
            serial,
            slot: Slot::default(),
            generation: 1,
            memory: Arc::new(ClientMemory::new(client.into(), None).unwrap().0),
            mover: MOVER,
        };
        NewFlow {
            id: FlowId::new(id),
            tenant: TenantId::default(),
            lasts: false,
            source: end(source),
            destination: end(destination),
            send_ring_bytes: 1 << 20,
            serial,
        }
    }

    #[test]
    fn late_bytes_of_a_client_that_has_gone_are_not_the_next_ones() {
        let region = crate::metrics::region(1, 2, 2, 0).unwrap();
        let (view, metrics) = (CounterView::new(region.fd()).unwrap(), Metrics::new(&region, 1));
        let moved = Moved { bytes: 10, messages: 1, destination_woken: 1, ..Moved::default() };
        let old = flow(0, 5, (0, 1), (1, 2));
        open(&metrics, MOVER, &old);
        let old = Flow::new(old);
        count(&metrics, MOVER, &old, &moved);
        let (a, b) = (view.client(0, 1), view.client(1, 2));
        assert_eq!((a.bytes_sent, a.wake_ups, b.bytes_received, b.wake_ups), (10, 0, 10, 1));
        assert_eq!(view.flow(0, 5).map(|line| (line.bytes, line.messages, line.wake_ups)), Some((10, 1, 1)));

        open(&metrics, MOVER, &flow(2, 6, (0, 3), (1, 2)));
        count(&metrics, MOVER, &old, &moved);
        assert_eq!((view.client(0, 3).bytes_sent, view.client(1, 2).bytes_received), (0, 20));
        assert_eq!(view.total().bytes_delivered, 20);
    }

    #[test]
    fn who_has_no_line_is_counted_in_the_sum_only() {
        let region = crate::metrics::region(1, 2, 2, 0).unwrap();
        let (view, metrics) = (CounterView::new(region.fd()).unwrap(), Metrics::new(&region, 1));
        let beyond = flow(1000, 1, (u16::MAX, 1), (300, 2));
        open(&metrics, MOVER, &beyond);
        let beyond = Flow::new(beyond);
        count(&metrics, MOVER, &beyond, &Moved { bytes: 7, rings_full: 1, ..Moved::default() });
        assert_eq!((view.total().bytes_delivered, view.total().rings_full), (7, 1));
        assert_eq!(view.flow(1000, 1), None);
    }
}
