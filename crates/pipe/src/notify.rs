//! Reactive notifications (Ensō): the agent announces appended bytes at most once until the program answers.
//!
//! The program answers by giving bytes back, or by asking for a notification (prefetch). Both are words of its own, which the
//! agent reads in each turn. The further behind the program is, the more bytes a notification covers. No side reads a word of
//! the other for each frame.
//!
//! The positions and their bounds are those of any ring of bytes ([`pd_shm::byte_ring`]). Here is when they are announced.
//!
//! The code is written over traits for the words, so that it runs over shared memory, over a model, and under loom.
use crate::violation::Violation;
use pd_shm::byte_ring::{Broken, Consumer, Producer};
use serde::{Deserialize, Serialize};

/// The words that an announcing agent reaches.
pub trait AnnounceCells {
    /// Returns the position up to which the program has given bytes back (acquire).
    fn load_given_back(&self) -> u64;
    /// Returns the number of notifications that the program has asked for (relaxed).
    fn load_wanted(&self) -> u32;
    /// Announces bytes up to `position` (release).
    fn store_producer(&self, position: u64);
}

/// The words that a reading program reaches.
pub trait ReadCells {
    /// Returns the position up to which bytes were announced (acquire).
    fn load_producer(&self) -> u64;
    /// Gives bytes back up to `position` (release).
    fn store_given_back(&self, position: u64);
    /// Asks for a notification (relaxed).
    fn store_wanted(&self, count: u32);
}

/// The agent's side: positions appended, announced and given back. Each word of the program is bounded by these before its use.
#[derive(Clone, Debug)]
pub struct Announcer {
    /// Positions appended, announced and given back.
    cursor: Producer,
    grain: u64,
    wanted: u32,
    outstanding: bool,
}

/// State of an [`Announcer`] for another agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Announced {
    appended: u64,
    announced: u64,
    given_back: u64,
    wanted: u32,
    outstanding: bool,
}

impl Announcer {
    /// Returns the state that another agent goes on with.
    pub fn state(&self) -> Announced {
        Announced {
            appended: self.tail(),
            announced: self.announced(),
            given_back: self.given_back(),
            wanted: self.wanted,
            outstanding: self.outstanding,
        }
    }

    /// Goes on with the state of another agent.
    ///
    /// # Errors
    /// [`Broken`] where no agent can have left it.
    pub fn resume(ring_bytes: u64, grain: u64, state: &Announced) -> Result<Self, Broken> {
        let &Announced { appended, announced, given_back, wanted, outstanding } = state;
        if [appended, announced, given_back].iter().any(|position| position % grain != 0) {
            return Err(Broken);
        }
        let cursor = Producer::resume(ring_bytes, appended, announced, given_back)?;
        Ok(Self { cursor, grain, wanted, outstanding })
    }

    /// Makes one for a ring of `ring_bytes`, whose positions are multiples of `grain`.
    pub fn new(ring_bytes: u64, grain: u64) -> Self {
        Self { cursor: Producer::new(ring_bytes), grain, wanted: 0, outstanding: false }
    }

    /// Reads the program's words. Returns whether there was an answer.
    ///
    /// # Errors
    /// [`Violation::Index`] where the program gave back bytes that were not announced, or that it had given back before.
    #[inline]
    pub fn look(&mut self, cells: &impl AnnounceCells) -> Result<bool, Violation> {
        let mut answered = false;
        // SYNC POINT: pipe-given-back
        let position = cells.load_given_back();
        if position != self.cursor.freed() {
            if position.wrapping_sub(self.cursor.freed()) % self.grain != 0 {
                return Err(Violation::Index);
            }
            self.cursor.see(position)?;
            answered = true;
        }
        let wanted = cells.load_wanted();
        if wanted != self.wanted {
            self.wanted = wanted;
            answered = true;
        }
        if answered {
            self.outstanding = false;
        }
        Ok(answered)
    }

    /// Returns the bytes that can be appended, if the ring is free up to `freed`.
    #[inline]
    pub fn room(&self, freed: u64) -> u64 {
        self.cursor.room_behind(freed)
    }

    /// Counts `bytes` appended at [`Self::tail`]. The caller bounds them by [`Self::room`].
    #[inline]
    pub fn append(&mut self, bytes: u64) {
        self.cursor.write(bytes);
    }

    /// Announces appended bytes, unless a notification is outstanding. Returns the position announced.
    #[inline]
    pub fn announce(&mut self, cells: &impl AnnounceCells) -> Option<u64> {
        if self.outstanding || self.tail() == self.announced() {
            return None;
        }
        self.announce_all(cells);
        Some(self.tail())
    }

    /// Announces appended bytes, also while a notification is outstanding.
    pub fn announce_all(&mut self, cells: &impl AnnounceCells) {
        if self.tail() == self.announced() {
            return;
        }
        self.outstanding = true;
        // SYNC POINT: pipe-announced
        cells.store_producer(self.cursor.publish());
    }

    /// Returns the position of the next byte appended.
    #[inline]
    pub fn tail(&self) -> u64 {
        self.cursor.written()
    }

    /// Returns the position up to which the program may read.
    #[inline]
    pub fn announced(&self) -> u64 {
        self.cursor.published()
    }

    /// Returns the position up to which the program has given back.
    #[inline]
    pub fn given_back(&self) -> u64 {
        self.cursor.freed()
    }
}

/// The program's side. The program trusts the agent, so that its positions have no bounds.
#[derive(Clone, Debug)]
pub struct Reader {
    piece: u64,
    /// Positions known to be announced, read and given back.
    cursor: Consumer,
    wanted: u32,
}

impl Reader {
    /// Makes a reader that gives space back by `piece` bytes.
    pub fn new(piece: u64) -> Self {
        Self { piece, cursor: Consumer::default(), wanted: 0 }
    }

    /// Takes the notification, if there is a new one. Returns the number of unread bytes.
    #[inline]
    pub fn refresh(&mut self, cells: &impl ReadCells) -> u64 {
        // SYNC POINT: pipe-announced
        self.cursor.see_trusted(cells.load_producer());
        self.unread()
    }

    /// Returns the position up to which bytes are known to be announced.
    #[inline]
    pub fn known(&self) -> u64 {
        self.cursor.known()
    }

    /// Returns the known unread bytes.
    #[inline]
    pub fn unread(&self) -> u64 {
        self.cursor.unread()
    }

    /// Returns the position of the first unread byte.
    #[inline]
    pub fn read(&self) -> u64 {
        self.cursor.read()
    }

    /// Counts `bytes` as read. The caller bounds them by [`Self::unread`].
    #[inline]
    pub fn consume(&mut self, bytes: u64) {
        self.cursor.take(bytes);
    }

    /// Returns whether a piece has been read that is not given back yet.
    #[inline]
    pub fn due(&self) -> bool {
        self.cursor.read().wrapping_sub(self.cursor.freed()) >= self.piece
    }

    /// Gives read bytes back. Returns whether there were any.
    #[inline]
    pub fn give_back(&mut self, cells: &impl ReadCells) -> bool {
        self.give_back_but(0, cells)
    }

    /// Gives read bytes back but for the last `kept`. Returns whether there were any.
    #[inline]
    pub fn give_back_but(&mut self, kept: u64, cells: &impl ReadCells) -> bool {
        let Some(position) = self.cursor.give_back(self.cursor.read().wrapping_sub(kept)) else {
            return false;
        };
        // SYNC POINT: pipe-given-back
        cells.store_given_back(position);
        true
    }

    /// Asks for a notification although the last one was not answered by bytes given back.
    #[inline]
    pub fn prefetch(&mut self, cells: &impl ReadCells) {
        self.wanted = self.wanted.wrapping_add(1);
        cells.store_wanted(self.wanted);
    }

    /// Answers the last notification by bytes given back, but for the last `kept`, or by a prefetch, so that the next bytes are announced. To be
    /// called before a sleep.
    #[inline]
    pub fn answer(&mut self, kept: u64, cells: &impl ReadCells) {
        if !self.give_back_but(kept, cells) {
            self.prefetch(cells);
        }
    }
}
