//! Twins whose other end may never be there: nobody claims it in time, and the kernel carries the connection.
use super::*;

impl Honest {
    /// Returns the time at which a twin is to be withdrawn.
    pub(in crate::simulation::honest) fn settle_by(&self) -> Option<Duration> {
        let twins = self.sockets.iter().flatten().filter_map(|socket| socket.twin);
        twins.filter(|twin| !twin.is_settling).filter_map(|twin| twin.settle_at).min()
    }

    /// Withdraws a twin, unless its other end is there.
    pub(super) fn settle(&mut self, at: usize) {
        let (Some(link), Some(socket)) = (&self.link, &self.sockets[at]) else { return };
        let (id, channel) = (socket.id, socket.channel);
        let is_claimed = link.line_u32(id, socket_status::PATH) & (path::CLAIMED | path::DIRECT) != 0;
        let has_received = link.line_u64(id, socket_status::RECV_PRODUCER) > 0
            || link.line_u32(id, socket_status::RECV_END) != 0;
        if is_claimed || has_received {
            self.settled(at);
        } else if self.ask(channel, Request::new(Operation::Withdraw, id, 0), Asked::Withdraw(at)) {
            self.lock(at);
            self.set_twin(at, |twin| twin.is_settling = true);
        }
    }

    pub(super) fn settled(&mut self, at: usize) {
        self.set_twin(at, |twin| (twin.settle_at, twin.is_settling) = (None, false));
        if let Some(twin) = self.sockets[at].as_ref().and_then(|socket| socket.twin) {
            sockets(|all| all.change(twin.inode, |end| end.is_settled = true));
        }
    }

    /// Goes on with twins whose other end is there: the library looks at each wait.
    pub(super) fn look_for_claims(&mut self) {
        for at in 0..self.sockets.len() {
            let (Some(link), Some(socket)) = (&self.link, &self.sockets[at]) else { continue };
            let waits = socket.twin.is_some_and(|twin| twin.settle_at.is_some() && !twin.is_settling);
            let word = link.line_u32(socket.id, socket_status::PATH);
            if waits && word & (path::CLAIMED | path::DIRECT) != 0 {
                self.settled(at);
            }
        }
    }

    /// Ends the socket of a twin that nobody will claim.
    pub(super) fn withdrawn(&mut self, at: usize, book: &mut Book) {
        let Some(socket) = &self.sockets[at] else { return };
        let Some(twin) = socket.twin else { return };
        if let Some(number) = socket.number {
            book.sockets[number].is_withdrawn = true;
        }
        self.set_twin(at, |twin| {
            *twin = Twin { is_stale: true, settle_at: None, is_settling: false, ..*twin };
        });
        self.set(at, |socket| (socket.receiver, socket.sender) = (Wait::Over, Wait::Over));
        self.release(twin.inode, book);
    }
}
