//! Handling of events and answers by an honest client.
use super::*;

impl Honest {
    pub(super) fn read_events(&mut self, channel: usize, now: Duration, book: &mut Book) -> u64 {
        let Some(link) = &mut self.link else { return 40 };
        let position = link.channels[channel].events.position();
        let asleep = |wait| matches!(wait, Wait::Asking { .. } | Wait::Asleep { .. });
        if asleep(self.events[channel]) {
            fence(Ordering::SeqCst);
            let has_come = link.channel_u64(channel, channel_status::EVENT_PRODUCER) > position;
            if let (Wait::Asking { doorbell, at }, false) = (self.events[channel], has_come) {
                self.events[channel] = Wait::Asleep { doorbell, at };
                return 41;
            }
            link.set_channel(channel, channel_control::EVENT_WAKE_AT, 0);
            link.empty_pipe(channel);
            self.events[channel] = Wait::Awake;
            return 42;
        }
        let mut events = Vec::new();
        let most = self.random.between(1, 8);
        for _ in 0..most {
            match link.channels[channel].events.read().expect("a driver that keeps the protocol") {
                Some(event) => events.push(event),
                None => break,
            }
        }
        link.channels[channel].events.release();
        fence(Ordering::SeqCst);
        if link.channel_u32(channel, channel_status::EVENTS_WAITING) != 0 {
            link.ring(channel);
        }
        if events.is_empty() {
            let doorbell = link.channel_u32(channel, channel_status::EVENT_DOORBELL).into();
            let at = position + 1;
            if link.pipes.contains_key(&channel) {
                link.set_channel_u32(channel, channel_control::PIPE_WANTED, 1);
            }
            link.set_channel(channel, channel_control::EVENT_WAKE_AT, at);
            self.events[channel] = Wait::Asking { doorbell, at };
            return 43;
        }
        let mut trace = 44;
        for event in events {
            trace = trace * 31 + u64::from(event.kind) + u64::from(event.errno) * 7 + u64::from(event.socket);
            self.take_event(&event, channel, now, book);
        }
        trace
    }

    pub(super) fn take_event(&mut self, event: &Event, channel: usize, _now: Duration, book: &mut Book) {
        let id = SocketId(event.socket);
        let kind = EventKind::from_raw(event.kind).expect("an event");
        if kind == EventKind::Ready {
            let Some(link) = &self.link else { return };
            let known = self.sockets.iter_mut().flatten().find(|socket| socket.id == id);
            // The event is of a socket that was closed meanwhile.
            let Some(socket) = known else { return };
            link.set_line_u32(id, socket_control::EVENT_ACK, event.tag);
            fence(Ordering::SeqCst);
            for wait in [&mut socket.receiver, &mut socket.sender] {
                if *wait == Wait::ForEvent {
                    *wait = Wait::Awake;
                }
            }
            return;
        }
        let asked = match kind {
            EventKind::More => *self.pending.get(&event.tag).expect("a question"),
            _ => self.pending.remove(&event.tag).expect("a question"),
        };
        // The list of addresses came too late for an earlier request, or too many requests wait for lists.
        let is_late =
            [Errno::TIMEDOUT, Errno::NOBUFS].map(|e| e.raw_os_error() as u32).contains(&event.errno);
        book.say(|| format!("client {}: {asked:?} {id:?} is answered: errno {}", self.index, event.errno));
        match (asked, event.errno) {
            (Asked::Socket, 0) => {
                self.add_socket(id, channel, None);
            }
            (Asked::Bind(at), 0) => {
                let request = Request::new(Operation::Listen, self.id(at), 0);
                let backlog = self.random.between(1, 8);
                let home = self.sockets[at].as_ref().map_or(channel, |socket| socket.channel);
                if !self.ask(home, request.with_numbers(backlog, 0), Asked::Listen(at)) {
                    self.set(at, |socket| socket.listens = None);
                }
            }
            (Asked::Listen(at), 0) => {
                let mut local = event.address().to_socket_addr().expect("an address");
                if local.ip().is_unspecified() {
                    local.set_ip(std::net::IpAddr::from(self.person.address));
                }
                book.listening.push(Listening { owner: self.index, at: local });
                if let Some(Listener { at, .. }) =
                    self.sockets[at].as_mut().and_then(|socket| socket.listens.as_mut())
                {
                    *at = Some(local);
                }
                self.set(at, |socket| socket.receiver = Wait::Awake);
            }
            (Asked::Bind(at) | Asked::Listen(at), _) => self.set(at, |socket| socket.listens = None),
            (Asked::Connect(at), 0) => self.begin(at, book),
            (Asked::Connect(at), errno) => {
                assert_ne!(errno, Errno::BADF.raw_os_error() as u32);
                self.set(at, |socket| {
                    (socket.receiver, socket.sender) = (Wait::Over, Wait::Over);
                    socket.is_closing = true;
                });
            }
            (Asked::Accept(listener), 0) => {
                let number = book.open();
                let at = self.add_socket(id, channel, Some(number));
                let mut accepted = 0;
                self.set(listener, |socket| {
                    if let Some(listens) = &mut socket.listens {
                        listens.accepted += 1;
                        listens.asked = kind == EventKind::More;
                        accepted = listens.accepted;
                    }
                    socket.receiver = Wait::Awake;
                });
                let listener = self.id(listener);
                if let Some(link) = self.link.as_ref().filter(|_| accepted > 0) {
                    link.set_line(listener, socket_control::RECV_CONSUMER, accepted);
                }
                self.begin(at, book);
            }
            (Asked::Accept(listener), errno) => {
                assert!(is_late || errno == Errno::AGAIN.raw_os_error() as u32, "accept fails: {errno}");
                self.set(listener, |socket| {
                    if let Some(listens) = &mut socket.listens {
                        listens.asked = false;
                    }
                    socket.receiver = Wait::Awake;
                });
            }
            (Asked::File(number), errno) => self.file_answered(number, errno, FileId(event.number() as u32)),
            (Asked::Shutdown(at), 0) => {
                self.unlock(at, true);
                self.set(at, |socket| socket.has_shut = false);
                self.keep(at);
            }
            (Asked::Shutdown(at), _) => {
                assert!(is_late || event.errno == Errno::NOTCONN.raw_os_error() as u32, "shutdown fails");
                self.unlock(at, false);
                self.set(at, |socket| (socket.sender, socket.has_shut) = (Wait::Awake, false));
            }
            (Asked::StepAside(at), _) => self.stepped_aside(at, event, book),
            (
                Asked::TwinListen(_)
                | Asked::TwinConnect { .. }
                | Asked::Claim(_)
                | Asked::Take(_)
                | Asked::Withdraw(_),
                _,
            ) => self.twin_answered(asked, event, channel, book),
            (Asked::Socket | Asked::Other, _) => {}
        }
    }

    pub(super) fn id(&self, at: usize) -> SocketId {
        self.sockets[at].as_ref().map_or(SocketId(0), |socket| socket.id)
    }

    pub(super) fn add_socket(&mut self, id: SocketId, channel: usize, number: Option<Number>) -> usize {
        let Some(link) = &self.link else { return 0 };
        link.take(id);
        let used = self.sockets.iter().flatten().map(|socket| socket.area);
        let used: Vec<_> = used.chain(self.burnt.iter().copied()).collect();
        let area = (0..).find(|area| !used.contains(area)).unwrap_or(0);
        let socket = Socket {
            id,
            number,
            channel,
            is_subscribed: false,
            area,
            listens: None,
            receiver: Wait::Over,
            sender: Wait::Over,
            arriving: Arriving::default(),
            given_back: 0,
            space_answered: 0,
            total: 0,
            sent: 0,
            posted: 0,
            done: 0,
            in_flight: VecDeque::new(),
            has_shut: false,
            is_closing: false,
            is_connected: false,
            send_ring: self.ring_default.min(AREA),
            file: None,
            rings: direct::Rings::new(self.random.between(1, 8)),
            twin: None,
            calls: [None, None],
            look_at: [None; 2],
        };
        match self.sockets.iter().position(Option::is_none) {
            Some(at) => {
                self.sockets[at] = Some(socket);
                at
            }
            None => {
                self.sockets.push(Some(socket));
                self.sockets.len() - 1
            }
        }
    }

    /// Begins a stream on a socket that has connected.
    pub(super) fn begin(&mut self, at: usize, book: &mut Book) {
        let total = match self.sockets[at].as_ref().map(|socket| socket.area) {
            // The send region has no area for it.
            Some(area) if area >= AREAS => 0,
            _ => self.random.below(self.stream_max + 1),
        };
        let is_subscribed = self.random.chance(400);
        let Some(link) = &self.link else { return };
        let Some(socket) = &mut self.sockets[at] else { return };
        book.say(|| format!("client {}: {:?} is {:?}, sends {total}", self.index, socket.id, socket.number));
        (socket.receiver, socket.sender, socket.total) = (Wait::Awake, Wait::Awake, total);
        socket.is_connected = true;
        if is_subscribed {
            socket.is_subscribed = true;
            link.set_line_u32(socket.id, socket_control::SUBSCRIBED, 1);
            fence(Ordering::SeqCst);
        }
    }
}
