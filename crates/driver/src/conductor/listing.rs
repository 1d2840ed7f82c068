//! Reports to administrators about clients and connections, in steps.
//!
//! Clients choose the number of both. A step looks at some, and the mover of the same thread has its turns in between. A report of few
//! objects is made in one step, and shows one moment.
use super::Conductor;
use crate::admin::{Answer, ClientReport, ConnectionReport, KernelReport};
use crate::ids::{ClientId, ConnectionId, Number};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::Sender;

/// Connections that a step looks at, where it looks at nothing else.
const WORK_PER_STEP: usize = 512;
/// Places of sockets that are looked at in the time of a connection.
const SLOTS_PER_WORK: usize = 16;
/// Most places of sockets that are looked at together.
const SLOTS_AT_ONCE: usize = 64 * SLOTS_PER_WORK;
/// Cost of a client's list of connections on the kernel, in connections.
const WORK_OF_KERNEL_LIST: usize = 16;

/// Content of a report.
#[derive(Debug)]
pub(super) enum Content {
    /// Clients and connections.
    All(Vec<ClientReport>, Vec<ConnectionReport>),
    /// Connections on the kernel.
    Kernel(KernelReport),
    /// Traffic of tenants, which the connections' is added to.
    Policy,
}

/// A report that is being made.
#[derive(Debug)]
struct Listing {
    content: Content,
    reply: Sender<Answer>,
    /// Place of the next client.
    client: usize,
    /// Its next place of sockets.
    slot: usize,
    /// Place of the next connection.
    connection: usize,
}

/// Reports that are being made, of which the first goes on.
#[derive(Debug, Default)]
pub(super) struct Listings(VecDeque<Listing>);

impl Conductor {
    /// Makes a report, soon.
    pub(super) fn begin_listing(&mut self, content: Content, reply: Sender<Answer>) {
        self.listings.0.push_back(Listing { content, reply, client: 0, slot: 0, connection: 0 });
        if self.listings.0.len() == 1 {
            self.list_some();
        }
    }

    /// Makes a step of a report. Returns whether there was something to look at.
    pub(super) fn list_some(&mut self) -> bool {
        self.list(WORK_PER_STEP)
    }

    /// Makes a step of a report that costs as much as this number of connections.
    fn list(&mut self, most: usize) -> bool {
        let Some(mut listing) = self.listings.0.pop_front() else { return false };
        let mut work = 0;
        while work < most {
            if listing.client < self.clients.len() {
                work += self.list_client(&mut listing);
            } else if listing.connection < self.connections.places() {
                self.list_connection(&mut listing);
                work += 1;
            } else {
                let answer = self.end_listing(listing.content);
                // The asker may have gone.
                let _ = listing.reply.send(answer);
                return true;
            }
        }
        self.listings.0.push_front(listing);
        true
    }

    /// Makes all reports at once, before another driver takes over.
    pub(super) fn end_listings(&mut self) {
        while self.list_some() {}
    }

    /// Adds a client, or some of its listeners. Returns the cost.
    fn list_client(&mut self, listing: &mut Listing) -> usize {
        let id = ClientId::of_place(listing.client);
        let mut cost = 1;
        if let Some(serial) = self.client(id).map(|client| client.serial) {
            match &mut listing.content {
                Content::All(clients, _) => {
                    if listing.slot == 0 {
                        self.take_kernel_counts(id);
                        clients.extend(self.client_report(id));
                    }
                    let Some(known) = clients.last_mut().filter(|known| known.serial == serial) else {
                        // Another client has the number by now.
                        clients.pop();
                        listing.slot = 0;
                        return cost;
                    };
                    let slots = self.client(id).map_or(0, |client| client.places());
                    let next = (listing.slot + SLOTS_AT_ONCE).min(slots);
                    let range: Range<usize> = listing.slot..next;
                    cost += range.len() / SLOTS_PER_WORK;
                    known.listening.extend(self.listeners_at(id, range));
                    listing.slot = next;
                    if next < slots {
                        return cost;
                    }
                }
                Content::Kernel(report) => {
                    report.clients.extend(self.kernel_client(id));
                    cost = WORK_OF_KERNEL_LIST;
                }
                Content::Policy => {}
            }
        }
        (listing.client, listing.slot) = (listing.client + 1, 0);
        cost
    }

    fn list_connection(&mut self, listing: &mut Listing) {
        let id = ConnectionId::of_place(listing.connection);
        listing.connection += 1;
        match &mut listing.content {
            Content::All(_, connections) => {
                self.report_sides(id);
                connections.extend(self.connection_report(id));
            }
            Content::Kernel(report) => {
                let twin = self.connection(id).and_then(|connection| connection.twin.as_ref());
                report.twins.extend(twin.into_iter().flat_map(|twin| twin.inodes()));
            }
            Content::Policy => {
                self.report_sides(id);
                self.settle_traffic(id);
            }
        }
    }

    fn end_listing(&mut self, content: Content) -> Answer {
        match content {
            Content::All(clients, connections) => {
                self.count_refused_on_kernel();
                Answer::Report(Box::new(self.report(clients, connections)))
            }
            Content::Kernel(report) => {
                Answer::Kernel(Box::new(KernelReport { refused: self.refused_lately(), ..report }))
            }
            Content::Policy => Answer::Policy(Box::new(self.policy_report())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::with_conductor;
    use std::sync::mpsc::channel;

    /// Makes a report in steps of this cost. Returns the answer, and the most clients and connections of a step.
    fn made(conductor: &mut Conductor, content: Content, most: usize) -> (Answer, usize) {
        let (reply, answer) = channel();
        conductor.listings.0.push_back(Listing { content, reply, client: 0, slot: 0, connection: 0 });
        let (mut before, mut largest) = (0, 0);
        loop {
            conductor.list(most);
            let Some(listing) = conductor.listings.0.front() else { break };
            let now = listing.client + listing.connection;
            (before, largest) = (now, largest.max(now - before));
        }
        (answer.try_recv().expect("an answer"), largest)
    }

    #[test]
    fn a_step_looks_at_few_and_all_steps_at_all() {
        let all = || Content::All(Vec::new(), Vec::new());
        let (mut clients, mut listeners, mut connections) = (0, 0, 0);
        let mut look = |conductor: &mut Conductor| {
            let (Answer::Report(whole), _) = made(conductor, all(), usize::MAX) else { panic!("no report") };
            let (Answer::Report(parts), largest) = made(conductor, all(), 1) else { panic!("no report") };
            assert!(largest <= 1, "{largest} in a step");
            assert_eq!(format!("{:?}", parts.clients), format!("{:?}", whole.clients));
            assert_eq!(format!("{:?}", parts.connections), format!("{:?}", whole.connections));
            clients += whole.clients.len();
            connections += whole.connections.len();
            listeners += whole.clients.iter().map(|client| client.listening.len()).sum::<usize>();
            for content in [Content::Kernel(KernelReport::default()), Content::Policy] {
                assert!(made(conductor, content, 1).1 <= 1);
            }
        };
        (0..40).for_each(|seed| with_conductor(seed, &mut look));
        assert!(clients > 40 && listeners > 10 && connections > 10, "{clients} {listeners} {connections}");
    }
}
