//! Source of a flow's stream: the sends of its client, in the order of the stream.
//!
//! Sends wait in the SBT (send buffer table). The next copy takes a [`Piece`] of a send, or of bytes that a previous owner of an end has left
//! ([`crate::mover::migration`]), which come first. A further kind of source is a further kind of piece.
use super::file::Files;
use super::sink::{Room, Sink};
use super::Pump;
use crate::messages::Endpoint;
use crate::mover::table::BufferTable;
use crate::reader::OpenFile;
use crate::takeover::pack::{Hindrance, Wrong};
use pd_abi::layout::{socket_status, ELSEWHERE, ENDED, SHUT};
use pd_shm::wait::Waker;
use std::sync::Arc;

/// Place of the bytes that are to be copied next.
#[derive(Clone, Copy, Debug)]
pub enum Piece {
    /// Address in a send region of the client.
    SendRegion(u64),
    /// Offset in the file of the send.
    File(u64),
    /// Address in a ring that a previous owner of an end has left.
    PreviousRing(u64),
}

/// A source without copies under way, as another driver goes on with it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceState {
    bytes_max: u64,
    /// Number of the oldest block, or of the next one.
    first: u64,
    /// Addresses, bytes and sends of blocks. A state that is given has offsets in place of addresses, in what `origins` says.
    blocks: Vec<(u64, u64, u64)>,
    origins: Vec<Origin>,
    allowed: u64,
    oldest_delivered: u64,
    accepted: u64,
    done: u64,
}

impl SourceState {
    /// Returns the state of a source that has sent nothing.
    pub fn fresh(bytes_max: u64) -> Self {
        let (blocks, origins) = Default::default();
        Self { bytes_max, first: 0, blocks, origins, allowed: 0, oldest_delivered: 0, accepted: 0, done: 0 }
    }

    /// Tells whether so many sends were accepted, and so many are done; none: as many as there are.
    pub fn is_at(&self, accepted: u64, done: Option<u64>) -> bool {
        (accepted, done.unwrap_or(self.done)) == (self.accepted, self.done)
    }

    /// Brings the state up to these numbers, with nothing to deliver. Returns whether all sends are done.
    pub fn catch_up(&mut self, accepted: u64, done: Option<u64>) -> bool {
        // A line that is another connection's by now may say anything.
        let said = done.unwrap_or(accepted);
        let done = said.min(accepted);
        *self = Self { first: self.first, accepted, done, ..Self::fresh(self.bytes_max) };
        accepted == said
    }
}

/// Memory or file that a block lies in.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Origin {
    /// Number of a send region.
    Region(u16),
    /// Place of a file among the client's open ones.
    File(u32),
}

/// Bytes that are to be copied next.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    pub piece: Piece,
    /// Bytes to the end of the piece.
    pub left: u64,
    /// Bytes of them that a rate of messages lets go.
    pub allowed: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Source {
    /// The sending end.
    end: Endpoint,
    /// Bytes that one client may have sent and not yet delivered.
    ring_bytes: u64,
    /// Blocks of sends accepted and not yet completed, oldest first.
    sbt: BufferTable,
    /// Number of the block to be copied next, and its bytes that are under way already.
    cursor: (u64, u64),
    /// Sends of that block that a rate of messages has allowed.
    allowed: u64,
    /// Bytes of the oldest block that are delivered.
    oldest_delivered: u64,
    accepted: u64,
    done: u64,
    /// Sends done that the client was told of.
    published: u64,
    waker: Waker,
    /// Files of its sends, if there ever were any.
    files: Option<Box<Files>>,
}

impl Source {
    pub fn new(end: Endpoint, send_ring_bytes: u64) -> Self {
        Self {
            end,
            ring_bytes: send_ring_bytes,
            sbt: BufferTable::new(send_ring_bytes),
            cursor: (0, 0),
            allowed: 0,
            oldest_delivered: 0,
            accepted: 0,
            done: 0,
            published: 0,
            waker: Waker::default(),
            files: None,
        }
    }

    /// Returns the state that another driver goes on with. `place` returns region and offset of an address in the client's send regions,
    /// `file_place` the place of a file among the client's. None: the client has gone.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(
        &self,
        place: impl Fn(u64, u64) -> Option<(u16, u64)>,
        mut file_place: impl FnMut(&Arc<OpenFile>) -> Option<Result<u32, Hindrance>>,
    ) -> Result<SourceState, Hindrance> {
        if self.is_cold() {
            return Err(Hindrance::passing("a file is being read from a disk"));
        }
        let left = || Hindrance::passing("sends of a process that has left are being delivered");
        let (mut blocks, mut origins) = (Vec::new(), Vec::new());
        for (number, block) in (self.sbt.first()..).zip(self.sbt.blocks()) {
            let file = self.files.as_ref().and_then(|files| files.of(number));
            let (origin, offset) = match file {
                Some(file) => (Origin::File(file_place(file).ok_or_else(left)??), block.pointer),
                None => {
                    let (region, offset) = place(block.pointer, block.size).ok_or_else(left)?;
                    (Origin::Region(region), offset)
                }
            };
            blocks.push((offset, block.size, block.sends));
            origins.push(origin);
        }
        Ok(SourceState {
            bytes_max: self.sbt.bytes_max(),
            first: self.sbt.first(),
            blocks,
            origins,
            allowed: if self.sbt.is_empty() { 0 } else { self.allowed },
            // Of a block whose sends were dropped nothing counts any more.
            oldest_delivered: if self.sbt.is_empty() { 0 } else { self.oldest_delivered },
            accepted: self.accepted,
            done: self.done,
        })
    }

    /// Takes over state that another driver has given. `address` returns the address of bytes in the client's send regions, `file` the
    /// client's file of a place. Returns the number of bytes that are still to be put under way, too.
    ///
    /// # Errors
    /// The fault in it.
    pub fn resume(
        end: Endpoint,
        state: SourceState,
        address: impl Fn(u16, u64, u64) -> Option<u64>,
        file: impl Fn(u32) -> Option<Arc<OpenFile>>,
    ) -> Result<(Self, u64), Wrong> {
        let SourceState { bytes_max, first, mut blocks, origins, allowed, oldest_delivered, accepted, done } =
            state;
        let wrong =
            |what: &str| Wrong::of(format!("sends of socket {} of client {}: {what}", end.slot, end.client));
        if origins.len() != blocks.len() || first.max(accepted) > u64::MAX / 2 {
            return Err(wrong("blocks without origins"));
        }
        let mut files: Option<Box<Files>> = None;
        for (number, ((at, size, sends), origin)) in (first..).zip(blocks.iter_mut().zip(origins)) {
            match origin {
                Origin::Region(region) => {
                    *at = address(region, *at, *size).ok_or_else(|| wrong("they lie in no send region"))?;
                }
                Origin::File(place) => {
                    let end = at.checked_add(*size).filter(|&end| *sends == 1 && i64::try_from(end).is_ok());
                    let file = end.and_then(|_| file(place)).ok_or_else(|| wrong("they lie in no file"))?;
                    files.get_or_insert_default().add(number, file);
                }
            }
        }
        let sbt = BufferTable::resume(bytes_max, first, &blocks).ok_or_else(|| wrong("impossible blocks"))?;
        let oldest = sbt.get(first).map_or((0, 0), |oldest| (oldest.size, oldest.sends));
        let is_within = match sbt.is_empty() {
            true => (oldest_delivered, allowed) == (0, 0),
            false => oldest_delivered < oldest.0 && allowed <= oldest.1,
        };
        let left = sbt.blocks().try_fold(0u64, |sum, block| sum.checked_add(block.sends));
        if !is_within || accepted.checked_sub(done).is_none_or(|open| left.is_none_or(|left| left > open)) {
            return Err(wrong("impossible counts"));
        }
        let pending = sbt.used() - oldest_delivered;
        let cursor = (first, oldest_delivered);
        let (published, waker) = (done, Waker::default());
        let this = Self {
            end,
            ring_bytes: bytes_max,
            sbt,
            cursor,
            allowed,
            oldest_delivered,
            accepted,
            done,
            published,
            waker,
            files,
        };
        Ok((this, pending))
    }

    pub fn end(&self) -> &Endpoint {
        &self.end
    }

    pub fn end_mut(&mut self) -> &mut Endpoint {
        &mut self.end
    }

    /// Takes sends of another client from now on. Returns the previous end.
    pub fn replace_end(&mut self, end: Endpoint) -> Endpoint {
        self.waker = Waker::default();
        std::mem::replace(&mut self.end, end)
    }

    /// Sets the bytes that the client may have sent and not yet delivered. Bytes beyond them may stay.
    pub fn set_bytes_max(&mut self, bytes: u64) {
        self.ring_bytes = bytes;
        self.forget_previous_sends();
    }

    /// Lets a further client fill its send ring, while sends of those before it are not yet delivered.
    pub fn make_room_for_successor(&mut self) {
        self.sbt.set_bytes_max(self.ring_bytes.saturating_add(self.sbt.used()));
    }

    /// Lets the client have no more bytes under way than its send ring holds: it is the only one that has any.
    pub fn forget_previous_sends(&mut self) {
        self.sbt.set_bytes_max(self.ring_bytes.max(self.sbt.used()));
    }

    /// Takes one or several sends, unless there is no room for them. With `joins` they may become one block with bytes that lie before them
    /// in memory and have not begun.
    #[inline]
    pub fn accept(&mut self, pointer: u64, len: u64, sends: u64, joins: bool) -> Option<()> {
        self.accepted += sends;
        let (cursor, joins) = (self.cursor, joins && self.files.is_none());
        let not_begun = |number| joins && (number > cursor.0 || (number, 0) == cursor);
        if !self.sbt.extend(pointer, len, sends, not_begun) {
            self.sbt.insert_sends(pointer, len, sends)?;
        }
        Some(())
    }

    /// Takes a send of `len` bytes of a file from `offset` on, unless there is no room for it.
    pub fn accept_file(&mut self, file: Arc<OpenFile>, offset: u64, len: u64) -> Option<()> {
        self.accepted += 1;
        let number = self.sbt.insert(offset, len)?;
        self.files.get_or_insert_default().add(number, file);
        Some(())
    }

    /// Counts sends that nobody will read. Their spans may be reused once earlier ones may.
    pub fn refuse(&mut self, sends: u64) {
        self.accepted += sends;
        if self.sbt.is_empty() {
            self.done = self.accepted;
        }
    }

    /// Counts sends that were copied at once, while none waited.
    #[inline]
    pub fn pass(&mut self, sends: u64) {
        self.cursor = (self.sbt.pass() + 1, 0);
        self.accepted += sends;
        self.done += sends;
    }

    /// Tells whether a send of `len` bytes would be the only one, and has room.
    #[inline]
    pub fn can_pass(&self, len: u64) -> bool {
        self.sbt.is_empty() && len <= self.sbt.room()
    }

    /// Returns the next bytes of its sends, and takes the sends that they need from `messages`.
    #[inline]
    pub fn next(&mut self, messages: &mut u64) -> Option<Next> {
        let (number, under_way) = self.cursor;
        let entry = self.sbt.get(number)?;
        let more = (entry.sends - self.allowed).min(*messages);
        *messages -= more;
        self.allowed += more;
        let allowed = match self.allowed {
            all if all == entry.sends => entry.size,
            // The part of the block's bytes is that of the allowed sends among all.
            some => (u128::from(entry.size) * u128::from(some) / u128::from(entry.sends)) as u64,
        };
        let from = entry.pointer + under_way;
        let piece = match &self.files {
            Some(files) if files.has(number) => Piece::File(from),
            _ => Piece::SendRegion(from),
        };
        Some(Next { piece, left: entry.size - under_way, allowed: allowed - under_way })
    }

    /// Notes that `len` bytes are under way, of the `left` that came next.
    #[inline]
    pub fn advance(&mut self, len: u64, left: u64) {
        let (number, under_way) = self.cursor;
        if len == left {
            (self.cursor, self.allowed) = ((number + 1, 0), 0);
        } else {
            self.cursor = (number, under_way + len);
        }
    }

    /// Counts the next `len` bytes of its sends as delivered.
    #[inline]
    pub fn deliver(&mut self, len: u64) {
        self.oldest_delivered += len;
        let first = self.sbt.first();
        let Some(oldest) = self.sbt.get(first) else { return };
        if self.oldest_delivered == oldest.size {
            self.done += oldest.sends;
            self.sbt.finish(first);
            self.sbt.remove_finished();
            self.oldest_delivered = 0;
            if let Some(files) = &mut self.files {
                files.forget_before(first + 1);
            }
        }
    }

    /// Ends all sends: nobody will read the rest of them.
    pub fn drop_sends(&mut self) {
        self.sbt.clear();
        if let Some(files) = &mut self.files {
            files.forget_before(u64::MAX);
        }
        self.done = self.accepted;
    }

    /// Tells whether no send waits or is under way.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sbt.is_empty()
    }

    /// Returns the sends to be allowed before the present block is copied to its end.
    pub fn messages_wanted(&self) -> u64 {
        self.sbt.get(self.cursor.0).map_or(0, |block| block.sends - self.allowed)
    }

    /// Returns the numbers of sends ever accepted, and done.
    #[inline]
    pub fn sends(&self) -> (u64, u64) {
        (self.accepted, self.done)
    }

    /// Returns the number of sends done that the client was not told of. [`Self::publish`] tells it.
    #[inline]
    pub fn take_unpublished(&mut self) -> u64 {
        self.done - std::mem::replace(&mut self.published, self.done)
    }

    /// Tells the client how many of its own sends are done: those from number `first` up to `end`. Returns whether it was woken.
    pub fn publish(&mut self, first: u64, end: u64) -> bool {
        let Endpoint { slot, ref memory, .. } = self.end;
        let own = self.done.min(end).saturating_sub(first);
        memory.publish_u64(slot, socket_status::SEND_CONSUMER, own);
        self.waker.wake(&memory.send_wait(slot), own)
    }

    /// Tells the client that its sends reach nobody any more, and why. `wakes`: it may wait for that. An orderly end says nothing more than that
    /// the peer has left for the kernel: the client follows, and the kernel tells the end.
    pub fn publish_end(&mut self, errno: u32, wakes: bool) {
        let Endpoint { slot, ref memory, .. } = self.end;
        let has_left = || memory.published_u32(slot, socket_status::SEND_END) == ELSEWHERE;
        if !([ENDED, SHUT].contains(&errno) && has_left()) {
            memory.publish_u32(slot, socket_status::SEND_END, errno);
        }
        if wakes {
            self.wake();
        }
    }

    /// Wakes the client, whatever it waits for.
    pub fn wake(&mut self) {
        let Endpoint { slot, ref memory, .. } = self.end;
        self.waker.wake_always(&memory.send_wait(slot));
    }

    /// Reads a piece of the send that comes next, which is of a file, into the ring: see [`Files::read`].
    ///
    /// # Errors
    /// The reason why the flow stops.
    pub fn read_file(&mut self, from: u64, sink: &mut Sink, room: Room) -> Result<u64, Pump> {
        let (number, _) = self.cursor;
        self.files.as_mut().ok_or(Pump::FileError)?.read(number, from, sink, room)
    }

    /// Returns the files of its sends, if there ever were any.
    #[inline]
    pub fn files(&mut self) -> Option<&mut Files> {
        self.files.as_deref_mut()
    }

    /// Tells whether the flow waits for a disk.
    #[inline]
    pub fn is_cold(&self) -> bool {
        self.files.as_ref().is_some_and(|files| files.is_waiting())
    }

    /// Gives back memory that is not needed at the moment.
    pub fn shrink(&mut self) {
        self.sbt.shrink();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ClientId, MoverId, Slot};
    use crate::memory::ClientMemory;
    use crate::mover::flow::sink::SinkState;
    use proptest::prelude::*;

    fn end() -> Endpoint {
        let memory = Arc::new(ClientMemory::new(1, None).unwrap().0);
        memory.populate_slot(Slot::default()).unwrap();
        let (client, slot) = (ClientId::new(1), Slot::default());
        Endpoint { client, serial: 1, slot, generation: 1, memory, mover: MoverId::default() }
    }

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 0u64..12, 1 => any::<u64>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Bytes that come next lie in a block, whatever a state says.
        #[test]
        fn no_state_leads_beyond_its_blocks(
            blocks in prop::collection::vec((number(), number(), number()), 0..4),
            of_files in any::<[bool; 4]>(),
            numbers in prop::array::uniform6(number()),
        ) {
            let [bytes_max, first, allowed, oldest_delivered, accepted, done] = numbers;
            let origin = |is_of_file| if is_of_file { Origin::File(0) } else { Origin::Region(0) };
            let origins = of_files.into_iter().take(blocks.len()).map(origin).collect();
            let state = SourceState {
                bytes_max, first, blocks: blocks.clone(), origins, allowed, oldest_delivered, accepted, done,
            };
            // A send region of 16 bytes at 1000.
            let address = |_: u16, at: u64, len: u64| at.checked_add(len).filter(|end| *end <= 16).map(|_| 1000 + at);
            let open = Arc::new(OpenFile::of_nobody());
            let file = |place: u32| (place == 0).then(|| Arc::clone(&open));
            let Ok((mut source, mut pending)) = Source::resume(end(), state, address, file) else { return Ok(()) };
            let mut messages = u64::MAX;
            while let Some(next) = source.next(&mut messages) {
                let at = usize::try_from(source.cursor.0 - first).unwrap();
                match next.piece {
                    Piece::SendRegion(from) => {
                        prop_assert!(!of_files[at] && from >= 1000 && from + next.left <= 1016);
                    }
                    Piece::File(from) => prop_assert!(of_files[at] && from + next.left <= i64::MAX as u64),
                    Piece::PreviousRing(_) => return Err(TestCaseError::fail("a previous ring")),
                }
                prop_assert!(next.left <= pending);
                pending -= next.left;
                source.advance(next.left, next.left);
                source.deliver(next.left);
            }
            prop_assert_eq!(pending, 0);
            // Sends that are done keep no file.
            prop_assert_eq!(Arc::strong_count(&open), 1);
            prop_assert!(source.is_empty() && source.sends().1 <= source.sends().0);
        }

        /// A sink without a ring holds no bytes that a receiver reads.
        #[test]
        fn no_state_has_bytes_without_a_ring(numbers in prop::array::uniform3(number()), flags in any::<[bool; 3]>()) {
            let text = format!(
                "{{\"ring\":null,\"delivered\":{},\"consumed\":{},\"announced\":{},\"taken\":{},\"gone\":{},\"end_published\":{}}}",
                numbers[0], numbers[1], numbers[2], flags[0], flags[1], flags[2],
            );
            let state: SinkState = serde_json::from_str(&text).unwrap();
            let resumed = Sink::resume(end(), state, None);
            let [delivered, consumed, announced] = numbers;
            let is_possible = announced <= delivered
                && delivered <= u64::MAX / 2
                && (consumed == delivered || flags[1] && consumed < delivered);
            prop_assert_eq!(resumed.is_ok(), is_possible);
        }
    }
}
