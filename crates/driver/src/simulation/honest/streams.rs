//! The threads of an honest client's sockets: receivers, senders, and acceptors.
use super::calls::{Call, RECEIVES, SENDS};
use super::direct::Found;
use super::*;

impl Honest {
    pub(super) fn receive(&mut self, at: usize, book: &mut Book) -> u64 {
        let Some(socket) = &self.sockets[at] else { return 50 };
        if socket.listens.is_some() {
            return self.accept(at);
        }
        if let Some(trace) = self.go_on_calling(at, RECEIVES, book) {
            return trace;
        }
        let now = self.now;
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return 50 };
        let (id, number) = (socket.id, socket.number.expect("a connected socket"));
        fence(Ordering::SeqCst);
        let end = link.recv_end(id);
        let produced = link.line_u64(id, socket_status::RECV_PRODUCER);
        let word = link.line_u32(id, socket_status::PATH);
        let received = socket.arriving.received;
        if let Wait::Asking { doorbell, at } | Wait::Asleep { doorbell, at } = socket.receiver {
            let has_come = produced >= at || end != 0 || socket.rings.has_come(received, word, now);
            if matches!(socket.receiver, Wait::Asking { .. }) && !has_come {
                socket.look_at[0] = socket.rings.look_at(word, now);
                socket.receiver = match socket.is_subscribed {
                    true => Wait::ForEvent,
                    false => Wait::Asleep { doorbell, at },
                };
                return 51;
            }
            link.set_line(id, socket_control::RECV_WAKE_AT, 0);
            socket.rings.disarm_receiver();
            socket.look_at[0] = None;
            socket.receiver = Wait::Awake;
            return 52;
        }
        (socket.receiver, socket.look_at[0]) = (Wait::Awake, None);
        if self.notices_move(at, RECEIVES) {
            self.set(at, |socket| socket.receiver = Wait::Over);
            return 57;
        }
        let found = self.look_into_ring(at, end);
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return 50 };
        let produced = match found {
            Found::Later(trace) => return trace,
            Found::InRing(there) if there > 0 => return self.take_of_ring(at, there, book),
            // Loaded after the ring was checked, so that earlier deliveries of the driver are seen.
            _ => link.line_u64(id, socket_status::RECV_PRODUCER),
        };
        let at_driver = socket.rings.by_driver(received);
        assert!(produced >= at_driver, "a counter runs backwards: {produced} after {at_driver}");
        let end = if matches!(found, Found::Unknown) { 0 } else { end };
        if produced == at_driver || matches!(found, Found::InRing(_)) {
            return match end {
                0 => {
                    let (doorbell, at) = (rung(link, socket, true), at_driver + 1);
                    if !socket.is_subscribed {
                        link.set_line(id, socket_control::RECV_WAKE_AT, at);
                    }
                    socket.rings.arm_receiver(received, socket.is_subscribed);
                    socket.receiver = Wait::Asking { doorbell, at };
                    54
                }
                ENDED => {
                    socket.receiver = Wait::Over;
                    book.say(|| format!("socket {number} ends, path {word:#x}: {}", socket.rings.describe()));
                    book.ended(number, &socket.arriving);
                    self.give_back(at);
                    55
                }
                ELSEWHERE => {
                    socket.receiver = Wait::Over;
                    book.say(|| format!("socket {number} goes on in the kernel, path {word:#x}"));
                    book.left(number, &socket.arriving);
                    self.give_back(at);
                    58
                }
                errno => {
                    socket.receiver = Wait::Over;
                    book.say(|| format!("socket {number} fails with {errno}, path {word:#x}"));
                    book.failed(number, &socket.arriving, errno);
                    56
                }
            };
        }
        let (region, page, pages) = (
            link.line_u32(id, socket_status::RING_REGION),
            link.line_u32(id, socket_status::RING_PAGE),
            link.line_u32(id, socket_status::RING_PAGES),
        );
        if socket.twin.is_some() && end == Errno::STALE.raw_os_error() as u32 {
            // Bytes that were not given back are a successor's. The client's questions show that the driver has hung up.
            assert!(kernel::is_hung_up(&link.socket), "socket {number} is taken from client {}", self.index);
            return self.read_frame(now, book);
        }
        if !link.receive.contains_key(&region) {
            // The client's library reads its frames now.
            let news = link.has_news();
            assert!(
                news,
                "socket {number}: the region {region} ({page}, {pages} pages) of its ring has not come; {received} of {produced} \
                 bytes, generation {}, {:?}",
                link.line_u32(id, socket_status::GENERATION),
                link.receive.keys()
            );
            return self.read_frame(now, book);
        }
        let map = &link.receive[&region].0;
        if socket.twin.is_some() {
            book.say(|| {
                format!("socket {number} has received {received}, and finds {produced} bytes, path {word:#x}")
            });
        }
        let ring = u64::from(pages) * PAGE_BYTES as u64;
        let given_back = socket.rings.by_driver(socket.given_back);
        assert!(produced - given_back <= ring, "more bytes than the ring has: {produced}");
        let len = (produced - at_driver).min(self.random.between(1, 6000));
        let got = (at_driver..at_driver + len).map(|position| {
            let offset = page as usize * PAGE_BYTES + (position & (ring - 1)) as usize;
            map.load_u64(offset & !7, Ordering::Relaxed).to_le_bytes()[offset % 8]
        });
        if Self::is_unlocked(socket) {
            socket.calls[RECEIVES] = Some(Call::receive(got.collect(), false));
            return 5000 + len;
        }
        got.for_each(|got| book.take(number, &mut socket.arriving, got));
        if self.random.chance(700) || produced == at_driver + len {
            self.give_back(at);
        }
        1000 + len
    }

    /// Gives received bytes back.
    pub(super) fn give_back(&mut self, at: usize) {
        let Some(socket) = &mut self.sockets[at] else { return };
        socket.given_back = socket.arriving.received;
        let (id, received) = (socket.id, socket.rings.by_driver(socket.given_back));
        self.give_back_of_ring(at);
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return };
        link.set_line(id, socket_control::RECV_CONSUMER, received);
        fence(Ordering::SeqCst);
        let wanted = link.line_u64(id, socket_status::SPACE_WAKE_AT);
        if wanted != 0 && received >= wanted && wanted != socket.space_answered {
            let channel = socket.channel;
            if link.write(channel, Request::new(Operation::Space, id, 0)) {
                socket.space_answered = wanted;
                self.open = None;
                link.publish(channel);
            }
        }
    }

    pub(super) fn accept(&mut self, at: usize) -> u64 {
        let (Some(link), Some(socket)) = (&self.link, &mut self.sockets[at]) else { return 60 };
        let Some(listens) = socket.listens else { return 60 };
        let arrived = link.line_u64(socket.id, socket_status::RECV_PRODUCER);
        if let Wait::Asking { doorbell, at } | Wait::Asleep { doorbell, at } = socket.receiver {
            if matches!(socket.receiver, Wait::Asking { .. }) && arrived < at {
                socket.receiver = Wait::Asleep { doorbell, at };
                return 61;
            }
            link.set_line(socket.id, socket_control::RECV_WAKE_AT, 0);
            socket.receiver = Wait::Awake;
            return 62;
        }
        if listens.asked {
            // The answer wakes the receiver.
            socket.receiver = Wait::ForEvent;
            return 63;
        }
        if arrived <= listens.accepted {
            let (doorbell, at) = (rung(link, socket, true), listens.accepted + 1);
            link.set_line(socket.id, socket_control::RECV_WAKE_AT, at);
            socket.receiver = Wait::Asking { doorbell, at };
            return 64;
        }
        let (id, channel) = (socket.id, socket.channel);
        let mut request = Request::new(Operation::Accept, id, 0);
        request.value = self.random.between(0, 3) as u32;
        if self.ask(channel, request, Asked::Accept(at)) {
            self.set(at, |socket| {
                socket.receiver = Wait::ForEvent;
                if let Some(listens) = &mut socket.listens {
                    listens.asked = true;
                }
            });
        }
        65
    }

    /// Puts the sender of a socket to sleep until there is room.
    pub(super) fn wait_for_room(&mut self, at: usize) -> u64 {
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return 70 };
        let (doorbell, at) = (rung(link, socket, false), socket.done + 1);
        link.set_line(socket.id, socket_control::SEND_WAKE_AT, at);
        socket.rings.arm_sender(socket.is_subscribed);
        socket.sender = Wait::Asking { doorbell, at };
        77
    }

    pub(super) fn send(&mut self, at: usize, book: &mut Book) -> u64 {
        if let Some(trace) = self.go_on_calling(at, SENDS, book) {
            return trace;
        }
        let now = self.now;
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return 70 };
        let (id, number) = (socket.id, socket.number.expect("a connected socket"));
        fence(Ordering::SeqCst);
        let end = link.line_u32(id, socket_status::SEND_END);
        let done = link.line_u64(id, socket_status::SEND_CONSUMER);
        assert!((socket.done..=socket.posted).contains(&done), "{done} sends done of {}", socket.posted);
        if let Wait::Asking { doorbell, at } | Wait::Asleep { doorbell, at } = socket.sender {
            let word = link.line_u32(id, socket_status::PATH);
            let has_room = socket.rings.has_room(word, now).unwrap_or(done >= at);
            if matches!(socket.sender, Wait::Asking { .. }) && !has_room && end == 0 {
                socket.look_at[1] = socket.rings.look_at(word, now);
                socket.sender = match socket.is_subscribed {
                    true => Wait::ForEvent,
                    false => Wait::Asleep { doorbell, at },
                };
                return 71;
            }
            link.set_line(id, socket_control::SEND_WAKE_AT, 0);
            socket.rings.disarm_sender();
            socket.look_at[1] = None;
            socket.sender = Wait::Awake;
            return 72;
        }
        (socket.sender, socket.look_at[1]) = (Wait::Awake, None);
        if self.notices_move(at, SENDS) {
            self.set(at, |socket| socket.sender = Wait::Over);
            return 70;
        }
        let Some(socket) = &mut self.sockets[at] else { return 70 };
        socket.in_flight.drain(..(done - socket.done) as usize);
        socket.done = done;
        if end == ELSEWHERE || end == 0 && self.is_leaving(at) {
            return self.step_aside(at, end == ELSEWHERE, book);
        }
        let Some(socket) = &mut self.sockets[at] else { return 70 };
        if end != 0 {
            book.say(|| format!("socket {number} sends no more: {end}"));
            // Sends that are not completed are lost, if the peer sees an error.
            socket.sender = Wait::Over;
            book.sockets[number].is_over = true;
            if ![ENDED, SHUT, LOST].contains(&end) {
                book.failed(number, &socket.arriving, end);
            }
            // The socket sends nothing more: its peer may see that.
            book.sockets[number].is_excused = true;
            return 73;
        }
        if let Some(trace) = self.send_direct(at, book) {
            return trace;
        }
        let Some(socket) = &mut self.sockets[at] else { return 70 };
        if socket.sent == socket.total {
            let channel = socket.channel;
            let request = Request::new(Operation::Shutdown, id, 0).with_numbers(2, 0);
            if !self.ask(channel, request, Asked::Shutdown(at)) {
                return 74;
            }
            self.lock(at);
            book.sockets[number].is_over = true;
            self.set(at, |socket| (socket.sender, socket.has_shut) = (Wait::Over, true));
            return 75;
        }
        self.prepare_file(at, book);
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return 70 };
        let room = socket.send_ring - socket.in_flight.iter().sum::<u64>();
        let offset = socket.sent % AREA;
        let wanted = self.random.pick(&[1, 7, 64, 300, 1000, 4096, 5000]);
        let len = wanted.min(room).min(AREA - offset).min(socket.total - socket.sent);
        if len == 0 || socket.in_flight.len() >= SENDS_MAX {
            return self.wait_for_room(at);
        }
        if let Some(file) = socket.file.as_mut().filter(|_| self.random.chance(700)) {
            if let Some(file_id) = file.count(link) {
                if !link.write(socket.channel, Request::send_file(id, file_id, socket.sent, len)) {
                    file.take_back(link);
                    return 79;
                }
                link.publish(socket.channel);
                self.open = None;
                file.has_sent = true;
                socket.count_post(len);
                return sent(socket, len, book);
            }
        }
        let (_, (map, _)) = link.send.iter().next().expect("a send region");
        fill(map, socket.area as u64 * AREA + offset, len, |at| byte(number, socket.sent + at));
        if Self::is_unlocked(socket) {
            socket.calls[SENDS] = Some(Call::send(len, false));
            return 6000 + len;
        }
        if !self.post_send(at, len) {
            return 78;
        }
        let (Some(link), Some(socket)) = (&self.link, &mut self.sockets[at]) else { return 70 };
        let trace = sent(socket, len, book);
        fence(Ordering::SeqCst);
        if link.line_u32(id, socket_status::SEND_END) == 0 {
            // A peer that leaves later waits for these bytes on the fabric.
            book.sockets[number].sent_before = socket.sent;
        }
        trace
    }

    /// Posts a send of bytes that lie in the send region. Returns whether there was room for the request.
    pub(super) fn post_send(&mut self, at: usize, len: u64) -> bool {
        let grows = self.random.chance(600);
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return false };
        let id = socket.id;
        let first = socket.area as u64 * AREA + socket.sent % AREA;
        let region = link.send.keys().next().copied().expect("a send region");
        let span = Span { region: region as u16, offset: first, len };
        let position = link.channels[socket.channel].requests.position();
        match &mut self.open {
            Some((of, open, sends, known))
                if grows && *of == at && *known == position && open.offset + open.len == first =>
            {
                (open.len, *sends) = (open.len + len, *sends + 1);
                link.channels[socket.channel].requests.grow(Request::send_word(open.len, *sends));
                link.ring_if_asked(socket.channel);
            }
            _ => {
                if !link.write(socket.channel, Request::send(id, span)) {
                    return false;
                }
                link.publish(socket.channel);
                self.open = (self.channels == 1).then_some((at, span, 1, position + 1));
            }
        }
        socket.count_post(len);
        true
    }
}

impl Socket {
    /// Counts a send that was posted.
    fn count_post(&mut self, len: u64) {
        self.posted += 1;
        self.rings.weigh();
        self.in_flight.push_back(len);
    }
}

/// Counts the bytes of a send. Returns a value for the trace.
fn sent(socket: &mut Socket, len: u64, book: &mut Book) -> u64 {
    socket.sent += len;
    if let Some(number) = socket.number {
        book.sockets[number].sent = socket.sent;
    }
    2000 + len
}

/// Writes bytes into a region.
fn fill(map: &pd_shm::Region<pd_shm::Own>, first: u64, len: u64, byte: impl Fn(u64) -> u8) {
    for at in 0..len {
        let offset = (first + at) as usize;
        let (word, place) = (offset & !7, offset % 8);
        let mut bytes = map.load_u64(word, Ordering::Relaxed).to_le_bytes();
        bytes[place] = byte(at);
        map.store_u64(word, u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}
