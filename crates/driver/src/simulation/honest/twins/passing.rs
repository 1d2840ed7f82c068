//! Ends that a client takes from another one, or from none.
use super::*;

impl Honest {
    /// Asks for an end that another client has, or none.
    pub(super) fn take(&mut self, inode: u32) {
        let names = sockets(|all| all.names(inode));
        if self.ask_twin(TwinOperation::Take, inode, names, Asked::Take(inode)) {
            sockets(|all| all.change(inode, |end| end.lock = Some(self.index)));
        }
    }

    /// Tells whether the client has asked for an end, and has no answer.
    pub(in super::super) fn takes(&self, inode: u32) -> bool {
        self.pending.values().any(|asked| matches!(asked, Asked::Take(taken) if *taken == inode))
    }

    /// Goes on with an end where the client before has left it.
    pub(super) fn taken(&mut self, id: SocketId, channel: usize, inode: u32, aside: bool, book: &mut Book) {
        for socket in self.sockets.iter_mut().flatten() {
            if let Some(twin) = socket.twin.as_mut().filter(|twin| twin.inode == inode) {
                twin.is_stale = true;
                if !sockets(|all| all.unlocked) {
                    (socket.receiver, socket.sender) = (Wait::Over, Wait::Over);
                }
            }
        }
        let Some(end) = sockets(|all| all.end(inode)) else { return };
        if end.is_dead {
            // The previous process has gone on without a driver: the program's calls fail.
            sockets(|all| all.set_end(inode, End { owner: None, lock: None, ..end }));
            let at = self.add_socket(id, channel, None);
            self.set(at, |socket| socket.is_closing = true);
            return;
        }
        let end = End { owner: Some(self.index), lock: None, ..end };
        book.sockets[end.number].is_moved = true;
        book.say(|| format!("client {} has taken {inode}: {end:?}", self.index));
        let at = self.add_twin(id, channel, inode, end, book);
        let is_over = book.sockets[end.number].is_over && end.sent < end.total || end.has_shut;
        self.set(at, |socket| {
            (socket.arriving, socket.given_back) = (end.arriving, end.arriving.received);
            (socket.sent, socket.total) = (end.sent, end.total);
            socket.rings.begin_at(end.arriving.received);
            if socket.area >= AREAS {
                socket.total = end.sent;
            }
            if is_over {
                socket.sender = Wait::Over;
            }
            if Self::is_unlocked(socket) {
                (socket.receiver, socket.sender) = (Wait::ForTurn, Wait::ForTurn);
            }
        });
        self.taken_aside(at, aside, end.has_shut, book);
        self.keep(at);
    }

    pub(super) fn not_taken(&mut self, inode: u32, errno: u32, book: &mut Book) {
        let Some(end) = sockets(|all| all.end(inode)) else { return };
        sockets(|all| all.change(inode, |end| end.lock = None));
        book.say(|| format!("client {} has not got {inode}: errno {errno}", self.index));
        let is_it = |socket: &Option<Socket>| {
            let twin = socket.as_ref().and_then(|socket| socket.twin);
            let is_stale = |twin: &Twin| twin.is_stale && sockets(|all| all.unlocked);
            twin.is_some_and(|twin| twin.inode == inode && !is_stale(&twin))
        };
        let own = self.sockets.iter().position(is_it);
        if errno == Errno::ALREADY.raw_os_error() as u32 {
            // The end is the client's still: another one has died before it got it.
            if let Some(at) = own {
                sockets(|all| all.change(inode, |end| end.owner = Some(self.index)));
                if sockets(|all| all.unlocked) {
                    return; // its threads have gone on
                }
                self.set_twin(at, |twin| twin.is_stale = false);
                let is_over = end.has_shut || book.sockets[end.number].is_over;
                self.set(at, |socket| {
                    socket.receiver = Wait::Awake;
                    socket.sender = if is_over { Wait::Over } else { Wait::Awake };
                });
            }
        } else if end.owner.is_none() && self.random.chance(500) {
            // The program's calls fail.
            self.release(inode, book);
        }
    }
}
