//! The threads of an honest client's sockets: receivers, senders, and those that accept.
use super::*;

impl Honest {
    pub(super) fn receive(&mut self, at: usize, book: &mut Book) -> u64 {
        let Some(socket) = &self.sockets[at] else { return 50 };
        if socket.listens.is_some() {
            return self.accept(at);
        }
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return 50 };
        let (id, number) = (socket.id, socket.number.expect("a connected socket"));
        fence(Ordering::SeqCst);
        let end = link.line_u32(id, socket_status::RECV_END);
        let produced = link.line_u64(id, socket_status::RECV_PRODUCER);
        let received = socket.arriving.received;
        assert!(produced >= received, "a counter runs backwards: {produced} after {received}");
        if let Wait::Asking { doorbell, at } | Wait::Asleep { doorbell, at } = socket.receiver {
            if matches!(socket.receiver, Wait::Asking { .. }) && produced < at && end == 0 {
                socket.receiver = Wait::Asleep { doorbell, at };
                return 51;
            }
            link.set_line(id, socket_control::RECV_WAKE_AT, 0);
            socket.receiver = Wait::Awake;
            return 52;
        }
        if produced == received {
            return match end {
                0 if socket.is_subscribed => {
                    socket.receiver = Wait::ForEvent;
                    53
                }
                0 => {
                    let (doorbell, at) = (link.line_u32(id, socket_status::RECV_DOORBELL), received + 1);
                    link.set_line(id, socket_control::RECV_WAKE_AT, at);
                    socket.receiver = Wait::Asking { doorbell, at };
                    54
                }
                ENDED => {
                    socket.receiver = Wait::Over;
                    book.ended(number, &socket.arriving);
                    self.give_back(at);
                    55
                }
                errno => {
                    socket.receiver = Wait::Over;
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
        if !link.receive.contains_key(&region) {
            // The library reads its frames now.
            let news = link.has_news();
            assert!(
                news,
                "socket {number}: the region {region} ({page}, {pages} pages) of its ring has not come; {received} of {produced} \
                 bytes, generation {}, {:?}",
                link.line_u32(id, socket_status::GENERATION),
                link.receive.keys()
            );
            let Came::Frame(frame) = link.receive() else { return 57 };
            assert_eq!(frame.checked_kind(), Some(FrameKind::ReceiveRegion), "{}", frame.reason());
            return 58;
        }
        let map = &link.receive[&region].0;
        let ring = u64::from(pages) * PAGE_BYTES as u64;
        assert!(produced - socket.given_back <= ring, "more bytes than the ring has: {produced}");
        let len = (produced - received).min(self.random.between(1, 6000));
        for position in received..received + len {
            let offset = page as usize * PAGE_BYTES + (position & (ring - 1)) as usize;
            let got = map.load_u64(offset & !7, Ordering::Relaxed).to_le_bytes()[offset % 8];
            book.take(number, &mut socket.arriving, got);
        }
        if self.random.chance(700) || produced == received + len {
            self.give_back(at);
        }
        1000 + len
    }

    /// Gives back what was received.
    pub(super) fn give_back(&mut self, at: usize) {
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return };
        let (id, received) = (socket.id, socket.arriving.received);
        socket.given_back = received;
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
            // The answer wakes it.
            socket.receiver = Wait::ForEvent;
            return 63;
        }
        if arrived <= listens.accepted {
            let (doorbell, at) =
                (link.line_u32(socket.id, socket_status::RECV_DOORBELL), listens.accepted + 1);
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

    pub(super) fn send(&mut self, at: usize, book: &mut Book) -> u64 {
        let (Some(link), Some(socket)) = (&mut self.link, &mut self.sockets[at]) else { return 70 };
        let (id, number) = (socket.id, socket.number.expect("a connected socket"));
        fence(Ordering::SeqCst);
        let end = link.line_u32(id, socket_status::SEND_END);
        let done = link.line_u64(id, socket_status::SEND_CONSUMER);
        assert!((socket.done..=socket.posted).contains(&done), "{done} sends done of {}", socket.posted);
        if let Wait::Asking { doorbell, at } | Wait::Asleep { doorbell, at } = socket.sender {
            if matches!(socket.sender, Wait::Asking { .. }) && done < at && end == 0 {
                socket.sender = match socket.is_subscribed {
                    true => Wait::ForEvent,
                    false => Wait::Asleep { doorbell, at },
                };
                return 71;
            }
            link.set_line(id, socket_control::SEND_WAKE_AT, 0);
            socket.sender = Wait::Awake;
            return 72;
        }
        socket.in_flight.drain(..(done - socket.done) as usize);
        socket.done = done;
        if end != 0 {
            // What it has sent and was not done is lost, if the peer is told of an error.
            socket.sender = Wait::Over;
            book.sockets[number].is_over = true;
            if end != ENDED {
                book.failed(number, &socket.arriving, end);
            }
            // It says nothing more: its peer may be told so.
            book.sockets[number].is_excused = true;
            return 73;
        }
        if socket.sent == socket.total {
            let channel = socket.channel;
            let request = Request::new(Operation::Shutdown, id, 0).with_numbers(2, 0);
            if !self.ask(channel, request, Asked::Shutdown(at)) {
                return 74;
            }
            book.sockets[number].is_over = true;
            self.set(at, |socket| (socket.sender, socket.has_shut) = (Wait::Over, true));
            return 75;
        }
        let room = socket.send_ring - socket.in_flight.iter().sum::<u64>();
        let offset = socket.sent % AREA;
        let wanted = self.random.pick(&[1, 7, 64, 300, 1000, 4096, 5000]);
        let len = wanted.min(room).min(AREA - offset).min(socket.total - socket.sent);
        if len == 0 || socket.in_flight.len() >= SENDS_MAX {
            let (doorbell, at) = (link.line_u32(id, socket_status::SEND_DOORBELL), done + 1);
            link.set_line(id, socket_control::SEND_WAKE_AT, at);
            socket.sender = Wait::Asking { doorbell, at };
            return 77;
        }
        let (&region, (map, _)) = link.send.iter().next().expect("a send region");
        let first = socket.area as u64 * AREA + offset;
        fill(map, first, len, |at| byte(number, socket.sent + at));
        let span = Span { region: region as u16, offset: first, len };
        let position = link.channels[socket.channel].requests.position();
        let grows = self.random.chance(600);
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
                    return 78;
                }
                link.publish(socket.channel);
                self.open = (self.channels == 1).then_some((at, span, 1, position + 1));
            }
        }
        socket.sent += len;
        socket.posted += 1;
        socket.in_flight.push_back(len);
        book.sockets[number].sent = socket.sent;
        2000 + len
    }
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
