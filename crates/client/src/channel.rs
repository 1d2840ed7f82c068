//! A channel: a request ring and an event ring. Each thread has its own; its lock is contended only
//! where threads share a socket.
mod syncing;

use crate::attachment::{note_cores, Attachment};
use crate::epoll::watch::Watch;
use crate::error::{check, Error, Result};
use crate::lock::{Guard, Lock};
use crate::own::OwnFd;
use crate::turn::{sleep_in_turn, HasTurn, Turn, SLEEP_MAX};
use pd_abi::layout::{channel_control, channel_offset, channel_status, socket_control, socket_offset};
use pd_abi::limits::{EVENT_RING_ENTRIES, MESSAGE_BYTES_MAX, REQUEST_RING_ENTRIES, RING_BYTES_DEFAULT};
use pd_abi::{Event, EventKind, Operation, Request, SocketId, Span};
use pd_shm::ring::{Broken, Consumer, Producer, SharedCells};
use pd_shm::{wait, Own, Region, Spin, Theirs};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{fence, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// Most sockets that a channel has opened in advance.
const POOL_MAX: u32 = 15;

/// A channel.
#[derive(Debug)]
pub(crate) struct Channel {
    index: u32,
    place: usize,
    at: usize,
    doorbell: OwnFd,
    pipe: OnceLock<OwnFd>,
    control: Arc<Region<Own>>,
    status: Arc<Region<Theirs>>,
    attachment: Weak<Attachment>,
    inner: Lock<Inner>,
    /// Held by the thread that sleeps until a sync is done.
    sync_spin: Mutex<Spin>,
}

#[derive(Debug)]
struct Inner {
    requests: Producer<SharedCells<Request, Own, Theirs>>,
    /// The send that was written last, and the position of the ring after it: as long as nothing has followed, further
    /// sends may be added to it.
    open: Option<(u64, OpenSend)>,
    events: Consumer<SharedCells<Event, Theirs, Own>>,
    /// Sleep of the driver that the doorbell was last rung for.
    rung: u32,
    tag: u32,
    /// Syncs asked for.
    syncs: u64,
    /// Questions whose answers are waited for.
    questions: Vec<Question>,
    /// Pre-opened sockets of IPv4 and of IPv6.
    pools: [SocketPool; 2],
    /// Watches for `Ready` events, by slot.
    watches: Vec<Option<(SocketId, Arc<Watch>)>>,
    /// Epoll instances that want every event written to the wake pipe as well.
    pipe_users: u32,
    turn: Turn,
}

/// A question, and what has been answered.
#[derive(Debug)]
struct Question {
    tag: u32,
    /// Answers that more were to follow.
    more: Vec<Event>,
    last: Option<Event>,
}

/// Pre-opened sockets with the sizes of their rings: one request to the driver opens several.
#[derive(Debug, Default)]
struct SocketPool {
    sockets: Vec<(SocketId, u64)>,
    /// Sockets to ask for the next time, beside the one that is needed.
    more: u32,
}

impl HasTurn for Inner {
    fn turn(&mut self) -> &mut Turn {
        &mut self.turn
    }
}

impl Channel {
    pub(crate) fn new(index: u32, place: usize, doorbell: OwnFd, attachment: &Arc<Attachment>) -> Self {
        let at = channel_offset(index as usize);
        let (control, status) = (attachment.control.clone(), attachment.status.clone());
        let requests = SharedCells::new(
            (control.clone(), at + channel_control::REQUEST_PRODUCER, at + channel_control::REQUESTS),
            (status.clone(), at + channel_status::REQUEST_CONSUMER),
            REQUEST_RING_ENTRIES,
        );
        let events = SharedCells::new(
            (status.clone(), at + channel_status::EVENT_PRODUCER, at + channel_status::EVENTS),
            (control.clone(), at + channel_control::EVENT_CONSUMER),
            EVENT_RING_ENTRIES,
        );
        let inner = Inner {
            requests: Producer::new(requests),
            open: None,
            events: Consumer::new(events),
            rung: 0,
            tag: 0,
            syncs: 0,
            questions: Vec::new(),
            pools: Default::default(),
            watches: Vec::new(),
            pipe_users: 0,
            turn: Turn::new(),
        };
        Self {
            index,
            place,
            at,
            doorbell,
            pipe: OnceLock::new(),
            control,
            status,
            attachment: Arc::downgrade(attachment),
            inner: Lock::new(inner),
            sync_spin: Mutex::default(),
        }
    }

    /// Place in the attachment's list of channels.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// Number of the channel.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// The attachment, unless it is gone.
    pub(crate) fn attachment(&self) -> Option<Arc<Attachment>> {
        self.attachment.upgrade()
    }

    fn ring_doorbell(&self) {
        // A full counter means that the driver has not yet looked: nothing more to tell it.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Publishes requests and wakes the driver if it sleeps.
    #[inline]
    fn publish(&self, inner: &mut Inner) {
        inner.requests.publish();
        self.wake_driver(inner);
    }

    #[inline]
    fn wake_driver(&self, inner: &mut Inner) {
        // SYNC POINT: need-wakeup-dekker (the driver stores `need_wakeup`, fences, looks at the rings)
        fence(Ordering::SeqCst);
        let sleep = self.status.load_u32(self.at + channel_status::NEED_WAKEUP, Ordering::Relaxed);
        if sleep != 0 && sleep != inner.rung {
            inner.rung = sleep;
            self.ring_doorbell();
        }
    }

    /// Writes an unanswered request. Waits only if the ring is full, which the driver always empties.
    #[inline]
    pub(crate) fn submit(&self, request: Request) -> Result<()> {
        let mut inner = self.inner.lock();
        match inner.requests.write(request) {
            Ok(true) => {
                self.publish(&mut inner);
                Ok(())
            }
            full => drop_and(inner, || self.submit_slowly(full, request)),
        }
    }

    /// Has the driver send a span. Bytes that follow those of the last request of the channel are added to it: the driver
    /// takes together what it has not taken yet.
    #[inline]
    pub(crate) fn submit_send(&self, socket: SocketId, span: Span) -> Result<()> {
        let mut inner = self.inner.lock();
        let position = inner.requests.position();
        if let Some((at, open)) = &mut inner.open {
            if *at == position {
                if let Some(word) = open.add(socket, span) {
                    inner.requests.grow(word);
                    self.wake_driver(&mut inner);
                    return Ok(());
                }
            }
        }
        let request = Request::send(socket, span);
        match inner.requests.write(request) {
            Ok(true) => {
                inner.open = Some((position + 1, OpenSend { socket, span, sends: 1 }));
                self.publish(&mut inner);
                Ok(())
            }
            full => drop_and(inner, || self.submit_slowly(full, request)),
        }
    }

    #[cold]
    fn submit_slowly(&self, mut result: std::result::Result<bool, Broken>, request: Request) -> Result<()> {
        let mut rounds = 0u32;
        loop {
            match result {
                Ok(true) => return Ok(()),
                Ok(false) => self.wait_for_room(&mut rounds)?,
                Err(Broken) => return Err(self.broken()),
            }
            let mut inner = self.inner.lock();
            result = inner.requests.write(request);
            self.publish(&mut inner);
        }
    }

    fn wait_for_room(&self, rounds: &mut u32) -> Result<()> {
        *rounds += 1;
        if *rounds < 64 {
            pd_shm::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
        let attachment = self.attachment.upgrade().ok_or_else(crate::error::dead)?;
        if !attachment.alive() || (*rounds % 1024 == 0 && !attachment.check_alive()) {
            return Err(attachment.dead_error());
        }
        Ok(())
    }

    #[cold]
    fn broken(&self) -> Error {
        if let Some(attachment) = self.attachment.upgrade() {
            attachment.die(Some("a ring of the driver is broken"));
        }
        Error::new(Errno::CONNRESET, "the driver broke a ring; see its log")
    }

    /// Asks and waits for the answer, whatever its errno.
    pub(crate) fn call(&self, attachment: &Attachment, request: Request) -> Result<Event> {
        self.call_for_several(attachment, request).map(|(answer, _)| answer)
    }

    /// Asks, for [`Self::answer`] or [`Self::forget`].
    pub(crate) fn ask(&self, mut request: Request) -> Result<u32> {
        let mut inner = self.inner.lock();
        request.tag = inner.ask();
        self.write(inner, request).map(|_| request.tag)
    }

    /// Waits for the answer to what was asked, whatever its errno.
    pub(crate) fn answer(&self, attachment: &Attachment, tag: u32) -> Result<Event> {
        self.wait_for_answer(attachment, self.inner.lock(), tag).map(|(answer, _)| answer)
    }

    /// Nobody will wait for the answer.
    pub(crate) fn forget(&self, tag: u32) {
        self.inner.lock().forget(tag);
    }

    /// Asks and waits for the answer, whatever its errno, and those that came before it.
    pub(crate) fn call_for_several(
        &self,
        attachment: &Attachment,
        mut request: Request,
    ) -> Result<(Event, Vec<Event>)> {
        let mut inner = self.inner.lock();
        request.tag = inner.ask();
        let inner = self.write(inner, request)?;
        self.wait_for_answer(attachment, inner, request.tag)
    }

    /// Asks all at once, and waits for an answer to each, in order.
    pub(crate) fn call_each(
        &self,
        attachment: &Attachment,
        requests: impl Iterator<Item = Request>,
    ) -> Vec<Result<Event>> {
        let mut inner = Some(self.inner.lock());
        let mut asked = Vec::new();
        for mut request in requests {
            let mut guard = inner.take().unwrap_or_else(|| self.inner.lock());
            request.tag = guard.ask();
            // Published with the last one: the driver shall not wake up for each.
            let written = match guard.requests.write(request) {
                Ok(true) => {
                    inner = Some(guard);
                    Ok(())
                }
                _ => self.write(guard, request).map(|guard| inner = Some(guard)),
            };
            asked.push(written.map(|()| request.tag));
        }
        let mut guard = inner.take().unwrap_or_else(|| self.inner.lock());
        self.publish(&mut guard);
        drop(guard);
        asked.into_iter().map(|asked| asked.and_then(|tag| self.answer(attachment, tag))).collect()
    }

    /// Writes a question and publishes it; waits while the ring is full.
    fn write<'a>(&'a self, mut inner: Guard<'a, Inner>, request: Request) -> Result<Guard<'a, Inner>> {
        let written = inner.requests.write(request);
        self.publish(&mut inner);
        if written == Ok(true) {
            return Ok(inner);
        }
        drop(inner);
        let result = self.submit_slowly(written, request);
        let mut inner = self.inner.lock();
        match result {
            Ok(()) => Ok(inner),
            Err(error) => {
                inner.forget(request.tag);
                Err(error)
            }
        }
    }

    /// The answer to a question that goes another way than the request ring: `ask` is given its tag.
    pub(crate) fn call_by(
        &self,
        attachment: &Attachment,
        ask: impl FnOnce(u32) -> Result<()>,
    ) -> Result<Event> {
        let tag = self.inner.lock().ask();
        ask(tag).inspect_err(|_| self.forget(tag))?;
        self.answer(attachment, tag)
    }

    fn wait_for_answer<'a>(
        &'a self,
        attachment: &Attachment,
        mut inner: Guard<'a, Inner>,
        tag: u32,
    ) -> Result<(Event, Vec<Event>)> {
        loop {
            let drained = self.drain(&mut inner);
            if let Some(answers) = inner.answers(tag) {
                return Ok(answers);
            }
            if drained.is_err() || !attachment.alive() {
                inner.forget(tag);
                return Err(attachment.dead_error());
            }
            let timed_out;
            (inner, timed_out) = self.sleep(inner, SLEEP_MAX, || false);
            if timed_out {
                drop(inner);
                attachment.check_alive();
                inner = self.inner.lock();
            }
        }
    }

    /// A new socket's id and the size of its rings: one of the pool, or else the driver's answer.
    pub(crate) fn open(&self, attachment: &Attachment, v6: bool) -> Result<(SocketId, u64)> {
        let more = {
            let pool = &mut self.inner.lock().pools[usize::from(v6)];
            if let Some(socket) = pool.sockets.pop() {
                return Ok(socket);
            }
            let more = pool.more;
            pool.more = (more * 2 + 1).min(POOL_MAX);
            more
        };
        self.fill_pool(attachment, v6, 1 + more)?;
        self.inner.lock().pools[usize::from(v6)].sockets.pop().ok_or_else(|| self.broken())
    }

    /// Asks the driver to open up to `count` sockets.
    pub(crate) fn fill_pool(&self, attachment: &Attachment, v6: bool, count: u32) -> Result<()> {
        let mut request = Request::new(Operation::Socket, SocketId(0), 0);
        request.family = if v6 { 6 } else { 4 };
        request.value = count;
        let (last, others) = self.call_for_several(attachment, request)?;
        let last = check(last, || "cannot make a socket".to_owned())?;
        let opened = |answer: Event| match answer.number() {
            0 => (SocketId(answer.socket), RING_BYTES_DEFAULT),
            bytes => (SocketId(answer.socket), bytes),
        };
        let sockets = others.into_iter().chain([last]).map(opened);
        self.inner.lock().pools[usize::from(v6)].sockets.extend(sockets);
        Ok(())
    }

    /// Returns the number of pre-opened sockets.
    pub(crate) fn pooled(&self, v6: bool) -> usize {
        self.inner.lock().pools[usize::from(v6)].sockets.len()
    }

    /// Takes all events. Says whether there were any.
    pub(crate) fn take_events(&self) -> Result<bool> {
        let mut inner = self.inner.lock();
        self.drain(&mut inner)
    }

    fn drain(&self, inner: &mut Inner) -> Result<bool> {
        let mut any = false;
        loop {
            let mut ready: Vec<Arc<Watch>> = Vec::new();
            let mut more = false;
            while let Some(event) = inner.events.read().map_err(|Broken| self.broken())? {
                more = true;
                match EventKind::from_raw(event.kind) {
                    Some(EventKind::Answer) => {
                        if let Some(question) = inner.question(event.tag) {
                            question.last = Some(event);
                        }
                    }
                    Some(EventKind::More) => {
                        if let Some(question) = inner.question(event.tag) {
                            question.more.push(event);
                        }
                    }
                    Some(EventKind::Ready) => ready.extend(self.acknowledge(inner, &event)),
                    None => {}
                }
            }
            if !more {
                break;
            }
            any = true;
            inner.events.release();
            // SYNC POINT: event-ack (the driver delivers, fences, looks at the acknowledgement)
            // SYNC POINT: event-room (the driver stores `events_waiting`, fences, looks for room)
            fence(Ordering::SeqCst);
            if self.status.load_u32(self.at + channel_status::EVENTS_WAITING, Ordering::Relaxed) != 0 {
                self.ring_doorbell();
            }
            for watch in ready {
                watch.notify();
            }
            if inner.pipe_users == 0 || !self.arm(inner) {
                break;
            }
        }
        if any && inner.turn.contended() {
            self.inner.notify_all();
        }
        Ok(any)
    }

    fn acknowledge(&self, inner: &Inner, event: &Event) -> Option<Arc<Watch>> {
        let id = SocketId(event.socket);
        let (known, watch) = inner.watches.get(usize::from(id.slot()))?.as_ref()?;
        if *known != id {
            return None;
        }
        let ack = socket_offset(id.slot()) + socket_control::EVENT_ACK;
        self.control.store_u32(ack, event.tag, Ordering::Release);
        Some(watch.clone())
    }

    /// Asks for the next event to be written to the pipe. Says whether there is one already.
    fn arm(&self, inner: &Inner) -> bool {
        let position = inner.events.position();
        self.control.store_u32(self.at + channel_control::PIPE_WANTED, 1, Ordering::Relaxed);
        self.control.store_u64(self.at + channel_control::EVENT_WAKE_AT, position + 1, Ordering::Relaxed);
        // SYNC POINT: wake-dekker
        fence(Ordering::SeqCst);
        inner.events.cells().producer_beyond(position)
    }

    /// From now on every event is also written to the pipe; takes those that are there.
    pub(crate) fn use_pipe(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.pipe_users += 1;
        if self.arm(&inner) {
            self.drain(&mut inner)?;
        }
        Ok(())
    }

    /// Takes back one [`Self::use_pipe`].
    pub(crate) fn leave_pipe(&self) {
        let mut inner = self.inner.lock();
        inner.pipe_users = inner.pipe_users.saturating_sub(1);
        if inner.pipe_users == 0 {
            self.control.store_u32(self.at + channel_control::PIPE_WANTED, 0, Ordering::Relaxed);
        }
    }

    /// The client's end of the wake pipe, a socket, asked for at first use.
    pub(crate) fn pipe(&self) -> Result<BorrowedFd<'_>> {
        if let Some(pipe) = self.pipe.get() {
            return Ok(pipe.as_fd());
        }
        let attachment = self.attachment.upgrade().ok_or_else(crate::error::dead)?;
        let fd = attachment.wake_pipe(self.index())?;
        let flags = rustix::fs::fcntl_getfl(&fd).unwrap_or(rustix::fs::OFlags::empty());
        let _ = rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK);
        Ok(self.pipe.get_or_init(|| fd).as_fd())
    }

    /// Empties the wake pipe. Says whether there was something in it.
    pub(crate) fn empty_pipe(&self) -> bool {
        let Some(pipe) = self.pipe.get() else { return false };
        let mut bytes = [0u8; 64];
        let mut read = rustix::io::read(pipe, &mut bytes);
        let any = read.is_ok();
        while read == Ok(bytes.len()) {
            read = rustix::io::read(pipe, &mut bytes);
        }
        any
    }

    /// See [`note_cores`].
    pub(crate) fn note_cores(&self) {
        note_cores(&self.status);
    }

    fn sleep<'a>(
        &'a self,
        inner: Guard<'a, Inner>,
        timeout: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> (Guard<'a, Inner>, bool) {
        let position = inner.events.position();
        self.note_cores();
        let cells = wait::SharedCells {
            wake_at: (&self.control, self.at + channel_control::EVENT_WAKE_AT),
            doorbell: (&self.status, self.at + channel_status::EVENT_DOORBELL),
        };
        let producer = self.at + channel_status::EVENT_PRODUCER;
        let (mut inner, timed_out) = sleep_in_turn(&self.inner, inner, &cells, position + 1, timeout, || {
            self.status.load_u64(producer, Ordering::Acquire) != position || ready()
        });
        // The sleep took back the request for a wake-up that the pipe needs.
        if inner.pipe_users > 0 && self.arm(&inner) {
            // The next read reports a broken ring.
            let _ = self.drain(&mut inner);
        }
        (inner, timed_out)
    }

    /// Takes the events that come within `timeout`; returns early for no reason, or when `ready`.
    /// Returns whether the time was over.
    pub(crate) fn wait_events(&self, timeout: Duration, mut ready: impl FnMut() -> bool) -> Result<bool> {
        let mut inner = self.inner.lock();
        if self.drain(&mut inner)? || ready() {
            return Ok(false);
        }
        let (mut inner, timed_out) = self.sleep(inner, timeout, ready);
        self.drain(&mut inner)?;
        Ok(timed_out)
    }

    /// Returns whether an event has come; a broken ring is news as well.
    pub(crate) fn has_events(&self) -> bool {
        self.inner.lock().events.available().map_or(true, |events| events > 0)
    }

    /// Makes threads of this process that sleep in [`Self::wait_events`] look again.
    pub(crate) fn wake_all(&self) {
        self.status.futex_wake(self.at + channel_status::EVENT_DOORBELL);
        self.inner.notify_all();
    }

    /// Passes `Ready` events of socket `id` on to `watch`, or (none) to nobody.
    pub(crate) fn set_watch(&self, id: SocketId, watch: Option<Arc<Watch>>) {
        let mut inner = self.inner.lock();
        let slot = usize::from(id.slot());
        if inner.watches.len() <= slot {
            if watch.is_none() {
                return;
            }
            inner.watches.resize(slot + 1, None);
        }
        // A later socket may have the slot.
        let place = &mut inner.watches[slot];
        if watch.is_some() || place.as_ref().is_some_and(|(known, _)| *known == id) {
            *place = watch.map(|watch| (id, watch));
        }
    }
}

/// A send request that may grow.
#[derive(Debug)]
struct OpenSend {
    socket: SocketId,
    span: Span,
    sends: u64,
}

impl OpenSend {
    /// Adds a send of `span`, if it follows. Returns the request's new word ([`Request::SEND_WORD`]).
    fn add(&mut self, socket: SocketId, span: Span) -> Option<u64> {
        let follows = span.region == self.span.region && span.offset == self.span.offset + self.span.len;
        if !follows || socket != self.socket || self.span.len + span.len > MESSAGE_BYTES_MAX {
            return None;
        }
        self.span.len += span.len;
        self.sends += 1;
        Some(Request::send_word(self.span.len, self.sends))
    }
}

impl Inner {
    /// A new tag.
    fn ask(&mut self) -> u32 {
        self.tag = self.tag.wrapping_add(1);
        self.questions.push(Question { tag: self.tag, more: Vec::new(), last: None });
        self.tag
    }

    fn question(&mut self, tag: u32) -> Option<&mut Question> {
        self.questions.iter_mut().find(|question| question.tag == tag)
    }

    /// Its answers, if the last one has come.
    fn answers(&mut self, tag: u32) -> Option<(Event, Vec<Event>)> {
        let place = self.questions.iter().position(|question| question.tag == tag)?;
        let last = self.questions[place].last?;
        Some((last, self.questions.swap_remove(place).more))
    }

    fn forget(&mut self, tag: u32) {
        self.questions.retain(|question| question.tag != tag);
    }
}

fn drop_and<G, T>(guard: G, then: impl FnOnce() -> T) -> T {
    drop(guard);
    then()
}
