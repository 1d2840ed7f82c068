//! Sends and receives of processes that use one end of a connection without a common lock. Another process may take the end between any
//! two steps of a call: the bytes are copied, claimed, and published. The previous owner goes on, and learns of the driver whether the bytes
//! of its call count: docs/design/paths.md.
//!
//! Every byte of a stream follows from its place, so that a process begins where the previous one has ended: it waits until that has heard
//! of the move, as programs do that tell each other how far they are ([`Wait::ForTurn`]).
use super::direct::Claim;
use super::twins::Twin;
use super::*;
use crate::simulation::kernel::{sockets, End};
use pd_abi::layout::moved;

/// The receiving and the sending thread of a socket, and calls of theirs.
pub(super) const RECEIVES: usize = 0;
pub(super) const SENDS: usize = 1;

/// A call that has begun.
pub(super) struct Call {
    stage: Stage,
    /// Set if the bytes go by a ring of two clients.
    by_ring: bool,
    len: u64,
    /// Received bytes.
    bytes: Vec<u8>,
    /// Set when the driver counts the bytes, whatever happens to the process.
    counts: bool,
    /// The thread has no core until then.
    until: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Copied,
    Claimed,
    /// The driver counts the bytes, which are to be published.
    Cleared,
}

impl Call {
    /// Begins a call that sends `len` bytes, which lie in a ring or in the send region.
    pub fn send(len: u64, by_ring: bool) -> Self {
        Self { stage: Stage::Copied, by_ring, len, bytes: Vec::new(), counts: false, until: Duration::ZERO }
    }

    /// Begins a call that receives these bytes.
    pub fn receive(bytes: Vec<u8>, by_ring: bool) -> Self {
        Self { len: bytes.len() as u64, bytes, ..Self::send(0, by_ring) }
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { stage, by_ring, len, counts, .. } = self;
        write!(f, "call of {len} bytes, {stage:?}, by ring {by_ring}, counts {counts}")
    }
}

/// Tells whether another client has a direction of a socket, as the words of its line say.
pub(super) fn has_moved(link: &Link, socket: &Socket, direction: usize) -> bool {
    let word = [socket_status::RECV_END, socket_status::SEND_END][direction];
    moved::is_one(link.line_u32(socket.id, word), Errno::STALE.raw_os_error() as u16)
}

impl Honest {
    /// Tells whether other processes may take a socket's end at any moment.
    pub(super) fn is_unlocked(socket: &Socket) -> bool {
        socket.twin.is_some() && sockets(|all| all.unlocked)
    }

    fn user(&self, socket: &Socket) -> Option<(usize, SocketId)> {
        Some((self.index, socket.id))
    }

    /// Tells whether a thread that waits for its turn can go on.
    pub(super) fn has_turn(&self, socket: &Socket, direction: usize) -> bool {
        let waits = [socket.receiver, socket.sender][direction] == Wait::ForTurn;
        let end = || sockets(|all| all.end(socket.twin?.inode));
        let is_free = |end: End| end.is_dead || end.users[direction].is_none();
        waits
            && (end().is_none_or(is_free)
                || self.link.as_ref().is_some_and(|link| has_moved(link, socket, direction)))
    }

    /// Takes the thread's core away for a while, at times.
    pub(super) fn pause_call(&mut self, at: usize, direction: usize) {
        let Some(call) =
            self.sockets.get_mut(at).and_then(|socket| socket.as_mut()?.calls[direction].as_mut())
        else {
            return;
        };
        if self.random.chance(150) {
            call.until = self.now + Duration::from_micros(self.random.pick(&[20, 1000, 20_000]));
        }
    }

    /// Tells whether a thread of a socket has no core now.
    pub(super) fn is_paused(socket: &Socket, direction: usize, now: Duration) -> bool {
        socket.calls[direction].as_ref().is_some_and(|call| now < call.until)
    }

    /// Returns the times at which threads of a socket get a core again.
    pub(super) fn paused_until(socket: &Socket) -> impl Iterator<Item = Duration> + '_ {
        let threads = [socket.receiver, socket.sender].into_iter().zip(&socket.calls);
        let paused = threads.filter(|(wait, _)| *wait == Wait::Awake).filter_map(|(_, call)| call.as_ref());
        paused.map(|call| call.until)
    }

    /// Tells whether a sender waits with what needs the lock: another process has it.
    pub(super) fn is_held_up(&self, socket: &Socket) -> bool {
        let Some(link) = self.link.as_ref().filter(|_| Self::is_unlocked(socket)) else { return false };
        let is_calling = socket.calls[SENDS].is_some() || socket.sender == Wait::ForTurn;
        let needs_lock =
            socket.sent == socket.total || link.line_u32(socket.id, socket_status::SEND_END) != 0;
        needs_lock && !is_calling && !has_moved(link, socket, SENDS) && self.is_lock_others(socket)
    }

    /// Keeps the progress of a socket's threads where other processes find it, and lets them go on when a thread is over.
    pub(super) fn keep_turns(&self, twin: Twin, socket: &Socket) {
        let user = self.user(socket);
        sockets(|all| {
            all.change(twin.inode, |end| {
                if end.users[RECEIVES] == user {
                    end.arriving = socket.arriving.at(socket.given_back);
                    end.users[RECEIVES].take_if(|_| socket.receiver == Wait::Over);
                }
                if end.users[SENDS] == user {
                    (end.sent, end.total) = (socket.sent, socket.total);
                    end.users[SENDS].take_if(|_| socket.sender == Wait::Over && !socket.has_shut);
                }
            });
        });
    }

    /// Lets other processes go on with the end of a socket that is closed.
    pub(super) fn leave_turns(&self, socket: &Socket) {
        let (Some(twin), user) = (socket.twin, self.user(socket)) else { return };
        sockets(|all| {
            all.change(twin.inode, |end| {
                end.users.iter_mut().for_each(|other| {
                    other.take_if(|other| Some(*other) == user);
                });
            });
        });
    }

    /// Goes on with what a thread has begun. None: it begins a call.
    pub(super) fn go_on_calling(&mut self, at: usize, direction: usize, book: &mut Book) -> Option<u64> {
        let socket = self.sockets[at].as_ref()?;
        if [socket.receiver, socket.sender][direction] == Wait::ForTurn {
            return Some(self.take_turn(at, direction, book));
        }
        let call = socket.calls[direction].as_ref()?;
        let Call { stage, by_ring, len, .. } = *call;
        let trace = 300 + 20 * direction as u64 + 10 * u64::from(by_ring) + stage as u64;
        self.set(at, |socket| *wait_of(socket, direction) = Wait::Awake);
        match (stage, direction, by_ring) {
            (Stage::Copied, SENDS, false) => self.post_call(at, len, book),
            (Stage::Copied, _, false) => self.give_back_call(at, len, book),
            (Stage::Copied, _, true) => {
                if let Some(counts) = self.claim_bytes(at, direction, len) {
                    self.has_claimed(at, direction, counts, book);
                }
            }
            (Stage::Claimed, _, true) => match self.claim_result(at, direction, len) {
                Claim::Unknown => {}
                Claim::Counts => self.set_stage(at, direction, Stage::Cleared),
                Claim::Refused => self.end_call(at, direction, false, book),
                Claim::Failed => {
                    self.end_call(at, direction, false, book);
                    self.lose_end(at, book);
                }
            },
            (Stage::Claimed, SENDS, false) => self.look_whether_taken(at, book),
            (Stage::Claimed, _, false) => self.look_whether_received(at, book),
            (Stage::Cleared, ..) => {
                self.publish_call(at, direction, len);
                self.end_call(at, direction, true, book);
            }
        }
        Some(trace)
    }

    fn set_stage(&mut self, at: usize, direction: usize, stage: Stage) {
        self.set(at, |socket| {
            if let Some(call) = &mut socket.calls[direction] {
                call.stage = stage;
            }
        });
    }

    /// Begins where the previous process has ended.
    fn take_turn(&mut self, at: usize, direction: usize, book: &mut Book) -> u64 {
        let (Some(link), Some(socket)) = (&self.link, &self.sockets[at]) else { return 360 };
        let (id, Some(twin)) = (socket.id, socket.twin) else { return 360 };
        if has_moved(link, socket, direction) {
            self.set_twin(at, |twin| twin.is_stale = true);
            self.set(at, |socket| *wait_of(socket, direction) = Wait::Over);
            return 361;
        }
        let user = Some((self.index, id));
        let Some(end) = sockets(|all| {
            all.change(twin.inode, |end| end.users[direction] = user);
            all.end(twin.inode)
        }) else {
            return 360;
        };
        if end.is_dead {
            self.lose_end(at, book);
            return 362;
        }
        let is_over = book.sockets[end.number].is_over && end.sent < end.total || end.has_shut;
        book.say(|| {
            format!("client {} goes on with {}, direction {direction}: {end:?}", self.index, twin.inode)
        });
        if direction == SENDS {
            // The driver has counted what the previous process claimed.
            book.sockets[end.number].unsure = 0;
        }
        self.set(at, |socket| match direction {
            RECEIVES => {
                (socket.arriving, socket.given_back) = (end.arriving, end.arriving.received);
                socket.rings.begin_at(end.arriving.received);
                socket.receiver = Wait::Awake;
            }
            _ => {
                (socket.sent, socket.total) = (end.sent, end.total);
                if socket.area >= AREAS {
                    socket.total = end.sent;
                }
                socket.sender = if is_over { Wait::Over } else { Wait::Awake };
            }
        });
        363
    }

    /// Ends a socket whose process cannot know how far its end is: the driver has failed it, or a previous owner.
    fn lose_end(&mut self, at: usize, book: &mut Book) {
        [RECEIVES, SENDS].into_iter().for_each(|direction| self.settle_call(at, direction, book));
        let Some(twin) = self.sockets[at].as_ref().and_then(|socket| socket.twin) else { return };
        sockets(|all| all.change(twin.inode, |end| end.is_dead = true));
        if let Some(end) = sockets(|all| all.end(twin.inode)) {
            book.over(&end);
        }
        self.set(at, |socket| {
            (socket.receiver, socket.sender, socket.is_closing) = (Wait::Over, Wait::Over, true);
        });
    }

    /// Ends a call whose process dies in it. Its bytes count from the claim on.
    pub(super) fn settle_call(&mut self, at: usize, direction: usize, book: &mut Book) {
        let call = self.sockets[at].as_ref().and_then(|it| Some((it.calls[direction].as_ref()?, it.number?)));
        if let Some((&Call { counts, by_ring, len, .. }, number)) = call {
            if direction == SENDS {
                book.sockets[number].unsure = if by_ring && counts { len } else { 0 };
            }
            self.end_call(at, direction, counts, book);
        }
    }

    /// Ends a call, whose bytes count or not. If not, another process has the end.
    fn end_call(&mut self, at: usize, direction: usize, counts: bool, book: &mut Book) {
        let Some(socket) = &mut self.sockets[at] else { return };
        let (Some(call), Some(number)) = (socket.calls[direction].take(), socket.number) else { return };
        book.say(|| format!("socket {number}: {call:?} ends, counts: {counts}"));
        if !counts {
            *wait_of(socket, direction) = Wait::Over;
            self.set_twin(at, |twin| twin.is_stale = true);
            return;
        }
        if direction == SENDS {
            socket.sent += call.len;
            book.sockets[number].sent = socket.sent;
            return;
        }
        call.bytes.iter().for_each(|got| book.take(number, &mut socket.arriving, *got));
        socket.given_back = socket.arriving.received;
        book.by_rings += if call.by_ring { call.len } else { 0 };
    }

    /// Notes that the bytes of a call are claimed: the driver counts them from now on, or another process has the end.
    fn has_claimed(&mut self, at: usize, direction: usize, counts: bool, book: &mut Book) {
        let Some(socket) = &mut self.sockets[at] else { return };
        let (Some(call), Some(number)) = (&mut socket.calls[direction], socket.number) else { return };
        (call.stage, call.counts) = (Stage::Claimed, counts);
        if direction == SENDS && counts {
            // The peer may receive them before the sender learns that they count.
            let record = &mut book.sockets[number];
            record.sent = record.sent.max(socket.sent + call.len);
            record.uses_ring |= call.by_ring;
        }
    }

    /// Posts a send.
    fn post_call(&mut self, at: usize, len: u64, book: &mut Book) {
        let (Some(link), Some(socket)) = (&self.link, &mut self.sockets[at]) else { return };
        let is_taken = has_moved(link, socket, SENDS);
        if !is_taken && link.line_u32(socket.id, socket_status::SEND_END) != 0 {
            // The stream has ended meanwhile: the call begins anew.
            socket.calls[SENDS] = None;
            return;
        }
        if self.post_send(at, len) {
            self.has_claimed(at, SENDS, !is_taken, book);
        }
    }

    /// Looks whether the driver has taken the last send.
    fn look_whether_taken(&mut self, at: usize, book: &mut Book) {
        fence(Ordering::SeqCst);
        let (Some(link), Some(socket)) = (&self.link, &self.sockets[at]) else { return };
        let word = link.line_u32(socket.id, socket_status::SEND_END);
        let counts = !has_moved(link, socket, SENDS)
            || moved::is_last_taken(word, socket.posted)
                .expect("a word that a mover has written in one turn");
        let number = socket.number;
        self.end_call(at, SENDS, counts, book);
        if let (0, Some(number), Some(socket)) = (word, number, &self.sockets[at]) {
            // A peer that leaves later waits for these bytes on the fabric.
            book.sockets[number].sent_before = socket.sent;
        }
    }

    /// Gives bytes back that were copied out of the receive ring.
    fn give_back_call(&mut self, at: usize, len: u64, book: &mut Book) {
        let (Some(link), Some(socket)) = (&self.link, &self.sockets[at]) else { return };
        let consumer = socket.rings.by_driver(socket.arriving.received + len);
        let counts = !has_moved(link, socket, RECEIVES);
        link.set_line(socket.id, socket_control::RECV_CONSUMER, consumer);
        self.has_claimed(at, RECEIVES, counts, book);
    }

    /// Looks whether the driver has seen that the bytes were received.
    fn look_whether_received(&mut self, at: usize, book: &mut Book) {
        fence(Ordering::SeqCst);
        let (Some(link), Some(socket)) = (&self.link, &self.sockets[at]) else { return };
        let Some(call) = &socket.calls[RECEIVES] else { return };
        let word = link.line_u32(socket.id, socket_status::RECV_END);
        let consumer = socket.rings.by_driver(socket.arriving.received + call.len);
        let has_moved = has_moved(link, socket, RECEIVES);
        assert!(!has_moved || moved::is_known(word), "a mover has said half of a move in one turn");
        let counts = !has_moved || consumer <= link.line_u64(socket.id, socket_status::SPACE_WAKE_AT);
        self.end_call(at, RECEIVES, counts, book);
        if counts && !has_moved {
            self.give_back(at);
        }
    }
}

pub(super) fn wait_of(socket: &mut Socket, direction: usize) -> &mut Wait {
    match direction {
        RECEIVES => &mut socket.receiver,
        _ => &mut socket.sender,
    }
}
