//! Answers to clients' requests, which go through the mover of the channel that asked.
use super::Conductor;
use crate::ids::ClientId;
use crate::messages::ToMover;
use pd_abi::{Event, SocketId};
use rustix::io::Errno;

/// An answer without its tag.
pub(super) type Answer = Result<Event, Errno>;

/// Makes an answer that reports success without a value.
pub(super) fn done(socket: SocketId) -> Event {
    Event::answer(socket, 0, 0)
}

impl Conductor {
    /// Answers a request on a client's channel.
    pub(super) fn answer(&self, asker: (ClientId, usize), socket: SocketId, tag: u32, answer: Answer) {
        let refused = |errno: Errno| Event::answer(socket, 0, errno.raw_os_error() as u32);
        let event = Event { tag, ..answer.unwrap_or_else(refused) };
        self.post(asker, event);
    }

    /// Posts an event through the mover that serves the channel now.
    pub(super) fn post(&self, (client, channel): (ClientId, usize), event: Event) {
        if let Some(mover) = self.client(client).map(|client| client.mover_of(channel)) {
            self.movers.send(mover, ToMover::Post { client, channel, event });
        }
    }
}
