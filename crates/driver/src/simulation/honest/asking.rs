//! Actions that an honest client begins: sockets, listeners, connections, ends.
use super::*;

impl Honest {
    pub(super) fn has_to_close(&self) -> bool {
        self.sockets.iter().flatten().any(is_ready_to_close)
    }

    /// Closes a socket whose threads are over. Returns whether there was one.
    pub(super) fn close_one(&mut self, book: &mut Book) -> bool {
        let ready = |socket: &Option<Socket>| socket.as_ref().is_some_and(is_ready_to_close);
        let Some(at) = self.sockets.iter().position(ready) else { return false };
        self.close(at, false, book)
    }

    /// Requests the end of a socket. Returns whether there was room for the request.
    pub(super) fn close(&mut self, at: usize, resets: bool, book: &mut Book) -> bool {
        let Some(socket) = &self.sockets[at] else { return false };
        let (id, channel, number) = (socket.id, socket.channel, socket.number);
        let twin = socket.twin;
        let burnt = (socket.done < socket.posted).then_some(socket.area);
        let mut request = Request::new(Operation::Close, id, 0);
        let has_left = socket.twin.is_some_and(|twin| twin.has_left && !twin.is_stale);
        request.value = match resets {
            true => CLOSE_RESETS,
            // The kernel has the rest of both streams.
            false if has_left && is_ready_to_close(socket) => CLOSE_LEFT,
            false => 0,
        };
        if !self.post(channel, request) {
            return false;
        }
        self.sockets[at].iter().for_each(|socket| self.leave_turns(socket));
        let goes_on = match twin {
            // The program's descriptor is the one that it takes the end for.
            Some(twin) if twin.is_stale || self.takes(twin.inode) => {
                self.disown(at, twin.inode);
                true
            }
            Some(twin) => self.close_descriptor(twin.inode, book).is_none(),
            None => false,
        };
        if let Some(number) = number {
            let record = &mut book.sockets[number];
            match goes_on {
                // The driver parks the side for the other holders.
                true => record.is_moved = true,
                false => (record.is_over, record.is_excused) = (true, record.is_excused | resets),
            }
        }
        self.burnt.extend(burnt);
        self.sockets[at] = None;
        true
    }

    pub(super) fn ask(&mut self, channel: usize, request: Request, asked: Asked) -> bool {
        let tag = self.next_tag;
        if !self.post(channel, Request { tag, ..request }) {
            return false;
        }
        self.next_tag += 1;
        self.pending.insert(tag, asked);
        true
    }

    pub(super) fn post(&mut self, channel: usize, request: Request) -> bool {
        let Some(link) = &mut self.link else { return false };
        let is_there = link.write(channel, request);
        if is_there {
            self.open = None;
        }
        link.publish(channel);
        is_there
    }

    /// Begins an action. Returns a value for the trace.
    pub(super) fn wish(&mut self, book: &mut Book) -> u64 {
        if self.wishes == 0 {
            return 20;
        }
        let live = self.sockets.iter().flatten().count();
        let channel = self.random.below(self.events.len() as u64) as usize;
        let listens = self.sockets.iter().flatten().any(|socket| socket.listens.is_some());
        match self.random.below(12) {
            0 if live > 0 && self.random.chance(300) => {
                // A socket that ends its connection early.
                let at = self.random.below(self.sockets.len() as u64) as usize;
                let resets = self.random.chance(500);
                let must_settle = |s: &Socket| s.twin.is_some_and(twins::Twin::must_settle);
                let is_idle = |s: &Socket| s.calls.iter().all(Option::is_none);
                let may_close = |s: &Socket| s.is_connected && !s.has_shut && !must_settle(s) && is_idle(s);
                let is_connected = self.sockets[at].as_ref().is_some_and(may_close);
                if is_connected && self.close(at, resets, book) {
                    return 21;
                }
                let listens = self.sockets[at].as_ref().and_then(|socket| socket.listens);
                let known = listens.and_then(|listens| listens.at.filter(|_| !listens.asked));
                if let Some(local) = known.filter(|_| self.close(at, false, book)) {
                    book.listening.retain(|other| (other.owner, other.at) != (self.index, local));
                    return 22;
                }
                23
            }
            _ if self.pending.len() + live >= SOCKETS_MAX => 23,
            1..=5 if !listens || self.random.chance(200) && live < SOCKETS_MAX / 2 => {
                let request = Request { family: 4, ..Request::new(Operation::Socket, SocketId(0), 0) };
                if !self.ask(channel, request, Asked::Socket) {
                    return 24;
                }
                25
            }
            _ => {
                // An unused socket becomes a listener or a connection.
                let free = |socket: &Option<Socket>| {
                    socket.as_ref().is_some_and(|s| s.number.is_none() && s.listens.is_none())
                };
                let Some(at) = self.sockets.iter().position(free) else {
                    let mut request =
                        Request { family: 4, ..Request::new(Operation::Socket, SocketId(0), 0) };
                    request.value = self.random.between(0, 2) as u32;
                    self.ask(channel, request, Asked::Socket);
                    return 26;
                };
                self.use_socket(at, listens, book)
            }
        }
    }

    pub(super) fn use_socket(&mut self, at: usize, listens: bool, book: &mut Book) -> u64 {
        let Some(socket) = &self.sockets[at] else { return 30 };
        let (id, channel) = (socket.id, socket.channel);
        if !listens {
            let ip = self.random.pick(&[[127, 0, 0, 1], self.person.address, [0; 4]]);
            let wanted: SocketAddr = (ip, self.random.pick(&[0, 80, 81])).into();
            let request = Request::new(Operation::Bind, id, 0).with_address(wanted.into());
            if self.ask(channel, request, Asked::Bind(at)) {
                self.set(at, |s| s.listens = Some(Listener { at: None, accepted: 0, asked: false }));
            }
            return 31;
        }
        if self.random.chance(200) {
            let option = self.random.pick(&[SocketOption::SendRingBytes, SocketOption::ReceiveRingBytes]);
            let request = Request { value: option as u32, ..Request::new(Operation::SetOption, id, 0) };
            let bytes = 1 << self.random.between(16, 19);
            self.ask(channel, request.with_numbers(bytes, 0), Asked::Other);
            return 32;
        }
        if book.listening.is_empty() {
            return 33;
        }
        let to = self.random.pick(&book.listening);
        self.wishes -= 1;
        let mut request = Request::new(Operation::Connect, id, 0).with_address(to.at.into());
        request.value = if self.random.chance(500) { RECEIVES_SHARED } else { 0 };
        if self.ask(channel, request, Asked::Connect(at)) {
            let number = book.open();
            self.set(at, |socket| socket.number = Some(number));
        }
        34
    }

    pub(super) fn set(&mut self, at: usize, change: impl FnOnce(&mut Socket)) {
        if let Some(socket) = &mut self.sockets[at] {
            change(socket);
        }
    }
}
