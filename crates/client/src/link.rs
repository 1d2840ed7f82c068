//! A socket's name at the driver: its id, its line in the control and status regions, and the channel
//! its requests go through.
use crate::attachment::Attachment;
use crate::channel::Channel;
use crate::direct::setup::{self, Direct};
use crate::error::{moved as stale, Error, Result};
use pd_abi::layout::{
    direct, moved, path, socket_control as control, socket_offset, socket_status as status, ELSEWHERE, ENDED,
    SHUT,
};
use pd_abi::{Operation, Request, SocketId, Span};
use pd_shm::byte_ring::Ring;
use pd_shm::wait::SharedCells;
use pd_shm::{Own, Theirs};
use rustix::io::Errno;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

/// The end of a socket that another process has taken: what is unread here it reads there.
pub(crate) const MOVED: u32 = libc::ESTALE as u32;

/// Tells whether a direction has ended neither in order nor because the connection goes on elsewhere.
pub(crate) fn has_failed(end: u32) -> bool {
    ![0, ENDED, SHUT, ELSEWHERE, MOVED].contains(&end)
}

/// A live id and where its words are.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) attachment: Arc<Attachment>,
    pub(crate) id: SocketId,
    /// The channel that the socket's requests go through, in order, and its events come to.
    pub(crate) home: Arc<Channel>,
    /// Of a connection: the driver may put it on the direct path at any time, and take it from there.
    pub(crate) direct: Option<Arc<Direct>>,
    at: usize,
}

impl Link {
    /// Takes a new id into use: clears its control line, then says so.
    pub(crate) fn new(attachment: Arc<Attachment>, id: SocketId, home: Arc<Channel>) -> Self {
        let at = socket_offset(id.slot());
        let link = Self { attachment, id, home, direct: None, at };
        let map = &link.attachment.control;
        for word in [control::RECV_CONSUMER, control::RECV_WAKE_AT, control::SEND_WAKE_AT] {
            map.store_u64(at + word, 0, Ordering::Relaxed);
        }
        for word in [control::SUBSCRIBED, control::EVENT_ACK] {
            map.store_u32(at + word, 0, Ordering::Relaxed);
        }
        // SYNC POINT: line-in-use (the driver reads the generation, acquire, before any other word)
        map.store_u32(at + control::GENERATION, u32::from(id.generation()), Ordering::Release);
        fence(Ordering::SeqCst);
        link
    }

    /// Returns a link of this id with another home.
    pub(crate) fn with_home(&self, home: Arc<Channel>) -> Self {
        Self { home, ..self.clone() }
    }

    /// Returns a link of this id, now connected.
    pub(crate) fn connected(&self) -> Self {
        Self { direct: Some(Arc::default()), ..self.clone() }
    }

    /// Returns a link of this id, of a socket that is used no more.
    pub(crate) fn closed(&self) -> Self {
        Self { direct: None, ..self.clone() }
    }

    fn path_word(&self) -> u32 {
        self.attachment.status.load_u32(self.at + status::PATH, Ordering::Acquire)
    }

    /// Returns whether what is sent may go into the own ring, or is going to.
    #[inline]
    pub(crate) fn goes_direct(&self) -> bool {
        // SYNC POINT: direct-drained (the driver has delivered what was sent before)
        let asked = path::DIRECT | path::LEFT | path::SENDS_OFFLOADED | path::SEND_UNDRAINED;
        self.direct.is_some() && self.path_word() & asked == path::DIRECT
    }

    /// Tells whether bytes go by rings in one direction at least.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some() && self.path_word() & (path::DIRECT | path::LEFT) == path::DIRECT
    }

    /// Tells whether the policy says that the peer does not change what it has sent.
    #[inline]
    pub(crate) fn trusts_peer(&self) -> bool {
        self.path_word() & path::TRUSTED != 0
    }

    /// Of a twin that has connected: whether the other end was claimed.
    pub(crate) fn is_claimed(&self) -> bool {
        self.path_word() & (path::CLAIMED | path::DIRECT) != 0
    }

    /// Returns whether the connection is to leave the direct path, or has.
    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        self.path_word() & path::LEFT != 0
    }

    /// Tells whether the driver has still to bring bytes of a previous client's, before those in the peer's ring.
    #[inline]
    pub(crate) fn is_undrained(&self) -> bool {
        // SYNC POINT: direct-drained (what the driver has delivered is seen after this)
        self.path_word() & path::RECV_UNDRAINED != 0
    }

    /// Tells whether the peer writes no more into its ring.
    #[inline]
    pub(crate) fn is_last(&self) -> bool {
        self.path_word() & path::LAST != 0
    }

    /// Returns whether the peer has made its direct ring.
    #[inline]
    pub(crate) fn peer_is_ready(&self) -> bool {
        self.path_word() & path::PEER_READY != 0
    }

    #[inline]
    fn is_broken(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.is_broken())
    }

    #[inline]
    pub(crate) fn submit(&self, request: Request) -> Result<()> {
        self.home.submit(request)
    }

    /// Sends a span.
    #[inline]
    pub(crate) fn submit_send(&self, span: Span) -> Result<()> {
        self.home.submit_send(self.id, span)
    }

    /// A request without an argument, on this socket.
    pub(crate) fn request(&self, operation: Operation) -> Request {
        Request::new(operation, self.id, 0)
    }

    /// The rings of a direct connection, once the peer has made its own.
    pub(crate) fn rings(&self) -> Result<Option<(Ring<Own>, Ring<Theirs>)>> {
        match &self.direct {
            Some(direct) => direct.both(&self.attachment, self.id, || self.peer_is_ready()),
            None => Ok(None),
        }
    }

    /// The peer's words in its direct ring cannot be: has the driver end the connection, which counts it.
    #[cold]
    pub(crate) fn break_direct(&self) -> Error {
        if self.direct.as_ref().is_some_and(|direct| direct.set_broken()) {
            let _ = self.submit(self.request(Operation::Broken));
        }
        Error::new(Errno::CONNRESET, "the peer wrote impossible words into its direct ring")
    }

    /// Tells the peer of a direct connection of news that it has asked an event for.
    #[cold]
    pub(crate) fn announce(&self, peer: &Ring<Theirs>) {
        let announced = |direct: &Arc<Direct>| direct.announce(&self.attachment, self.id, peer);
        if !self.direct.as_ref().is_some_and(announced) {
            self.nudge();
        }
    }

    /// Tells the peer of a direct connection the number of the doorbell to ring. 0: none.
    pub(crate) fn sleep_on_doorbell(&self, number: u64) {
        self.direct.iter().for_each(|direct| direct.sleep_on(number));
    }

    /// Has the driver post an event to the peer of a direct connection.
    #[cold]
    pub(crate) fn nudge(&self) {
        // The request fails only without a driver, and the peer notices that itself.
        let _ = self.submit(self.request(Operation::Nudge));
    }

    #[inline]
    pub(crate) fn recv_producer(&self) -> u64 {
        self.attachment.status.load_u64(self.at + status::RECV_PRODUCER, Ordering::Acquire)
    }

    /// Load before [`Self::recv_producer`] to decide whether the stream has ended.
    #[inline]
    pub(crate) fn recv_end(&self) -> u32 {
        if self.is_broken() {
            return libc::ECONNRESET as u32;
        }
        match self.recv_end_word() {
            word if moved::is_one(word, libc::ESTALE as u16) => MOVED,
            end => end,
        }
    }

    #[inline]
    fn recv_end_word(&self) -> u32 {
        self.attachment.status.load_u32(self.at + status::RECV_END, Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn send_consumer(&self) -> u64 {
        self.attachment.status.load_u64(self.at + status::SEND_CONSUMER, Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn send_end(&self) -> u32 {
        if self.is_broken() {
            return libc::ECONNRESET as u32;
        }
        match self.send_end_word() {
            word if moved::is_one(word, libc::ESTALE as u16) => libc::ESTALE as u32,
            end => end,
        }
    }

    #[inline]
    fn send_end_word(&self) -> u32 {
        self.attachment.status.load_u32(self.at + status::SEND_END, Ordering::Acquire)
    }

    /// Tells whether the driver takes the last of `posted` sends, which has just been posted. It does not if another process has taken the
    /// socket before.
    pub(crate) fn is_last_taken(&self, posted: u64) -> Result<bool> {
        // SYNC POINT: moved-dekker
        fence(Ordering::SeqCst);
        loop {
            let word = self.send_end_word();
            if !moved::is_one(word, libc::ESTALE as u16) {
                return Ok(true);
            }
            if let Some(taken) = moved::is_last_taken(word, posted) {
                return Ok(taken);
            }
            self.await_mover()?;
        }
    }

    /// Tells whether the bytes up to `consumer` are this process's, which has just stored that. They are not if another process has taken
    /// the socket before. Call it behind a fence.
    pub(crate) fn is_last_received(&self, consumer: u64) -> Result<bool> {
        // SYNC POINT: received-dekker
        loop {
            let word = self.recv_end_word();
            if !moved::is_one(word, libc::ESTALE as u16) {
                return Ok(true);
            }
            if moved::is_known(word) {
                return Ok(consumer <= self.space_wake_at());
            }
            self.await_mover()?;
        }
    }

    /// Waits for a moment: the mover is about to say what it has counted.
    fn await_mover(&self) -> Result<()> {
        if self.is_broken() || !self.attachment.check_alive() {
            return Err(self.attachment.dead_error());
        }
        pd_shm::yield_now();
        Ok(())
    }

    /// Tells whether another process has taken the socket while it had rings. The driver has fixed where they end for this one.
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.path_word() & path::TAKEN != 0
    }

    /// Tells whether the peer's side went to another process while there were rings. The driver has fixed where the peer's ends.
    pub(crate) fn is_peer_taken(&self) -> bool {
        self.path_word() & path::PEER_TAKEN != 0
    }

    /// Claims `written` bytes of the own ring before they are published, where another process may take the socket.
    ///
    /// # Errors
    /// `ESTALE`: another one has, and is to send the last of them.
    #[inline]
    pub(crate) fn claim_sent(&self, own: &Ring<Own>, written: u64) -> Result<()> {
        self.claim(own, direct::SENT, written, |(sent, _)| sent)
    }

    /// Claims `consumer` bytes of the peer's ring before they are given back, likewise.
    ///
    /// # Errors
    /// `ESTALE`: another process receives the last of them.
    #[inline]
    pub(crate) fn claim_received(&self, own: &Ring<Own>, consumer: u64) -> Result<()> {
        self.claim(own, direct::RECEIVED, consumer, |(_, received)| received)
    }

    #[inline]
    fn claim(&self, own: &Ring<Own>, word: usize, index: u64, end: fn((u64, u64)) -> u64) -> Result<()> {
        own.claim(word, index);
        if self.is_taken() && index > end(self.ring_ends()?) {
            return Err(stale());
        }
        Ok(())
    }

    /// Asks where the rings end: bytes that count of those written, and of those that the peer has written.
    #[cold]
    pub(crate) fn ring_ends(&self) -> Result<(u64, u64)> {
        setup::ring_ends(&self.attachment, self.id)
    }

    #[inline]
    pub(crate) fn space_wake_at(&self) -> u64 {
        self.attachment.status.load_u64(self.at + status::SPACE_WAKE_AT, Ordering::Relaxed)
    }

    /// Region, first page and pages of the receive ring.
    #[inline]
    pub(crate) fn ring_words(&self) -> (u32, u32, u32) {
        let load = |word| self.attachment.status.load_u32(self.at + word, Ordering::Relaxed);
        (load(status::RING_REGION), load(status::RING_PAGE), load(status::RING_PAGES))
    }

    /// Returns whether the driver still keeps the line for this id.
    pub(crate) fn line_is_ours(&self) -> bool {
        let generation = self.attachment.status.load_u32(self.at + status::GENERATION, Ordering::Acquire);
        generation == u32::from(self.id.generation())
    }

    #[inline]
    pub(crate) fn store_recv_consumer(&self, value: u64) {
        self.attachment.control.store_u64(self.at + control::RECV_CONSUMER, value, Ordering::Release);
    }

    /// Asks for a wake-up (and a `Ready` event) when `send_consumer` reaches `value`.
    pub(crate) fn store_send_wake_at(&self, value: u64) {
        self.attachment.control.store_u64(self.at + control::SEND_WAKE_AT, value, Ordering::Relaxed);
        // SYNC POINT: wake-dekker
        fence(Ordering::SeqCst);
    }

    /// Starts or stops `Ready` events. Counts all earlier ones as taken note of.
    pub(crate) fn store_subscribed(&self, subscribed: bool) {
        let map = &self.attachment.control;
        let posted = || self.attachment.status.load_u32(self.at + status::EVENT_NUMBER, Ordering::Acquire);
        let mut number = posted();
        loop {
            map.store_u32(self.at + control::EVENT_ACK, number, Ordering::Relaxed);
            map.store_u32(self.at + control::SUBSCRIBED, u32::from(subscribed), Ordering::Release);
            fence(Ordering::SeqCst);
            // Another thread may have taken note of a later event meanwhile: an acknowledgement that
            // went back would be the last.
            match posted() {
                again if again == number => return,
                later => number = later,
            }
        }
    }

    /// The words of a sleep until something is received.
    pub(crate) fn recv_cells(&self) -> SharedCells<'_, Own, Theirs> {
        SharedCells {
            wake_at: (&self.attachment.control, self.at + control::RECV_WAKE_AT),
            doorbell: (&self.attachment.status, self.at + status::RECV_DOORBELL),
        }
    }

    /// The words of a sleep until sends are done.
    pub(crate) fn send_cells(&self) -> SharedCells<'_, Own, Theirs> {
        SharedCells {
            wake_at: (&self.attachment.control, self.at + control::SEND_WAKE_AT),
            doorbell: (&self.attachment.status, self.at + status::SEND_DOORBELL),
        }
    }

    /// Makes threads of this process that sleep on the socket look again.
    pub(crate) fn wake_all(&self) {
        for doorbell in [status::RECV_DOORBELL, status::SEND_DOORBELL] {
            self.attachment.status.futex_wake(self.at + doorbell);
        }
    }
}
