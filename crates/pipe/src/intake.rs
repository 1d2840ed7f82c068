//! Reading of a program's sends: each word and each entry once, bounded by the reader's own positions. The reader is the agent, or on the
//! direct path of a link the receiving program ([`crate::handover`]).
//!
//! The positions and their bounds are those of any ring of bytes ([`pd_shm::byte_ring`]). Here are the entries, and what is lent.
use crate::shape::{Direction, Shape, Unit};
use crate::violation::Violation;
use pd_abi::pipe::{entry_parts, frame_stride, DROP, FOREIGN_VERDICTS_MAX, FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use pd_shm::byte_ring::{Broken, Consumer};
use serde::{Deserialize, Serialize};

/// Most bytes of an unmarked stream that are taken at a time.
const CHUNK_BYTES: u64 = 64 << 10;

/// The words that a reader reaches.
pub trait IntakeCells {
    /// Returns the position up to which the program sends (acquire).
    fn load_producer(&self) -> u64;
    /// Returns the program's entry of the frame at `position` (relaxed).
    fn load_entry(&self, position: u64) -> u32;
    /// Publishes the position up to which bytes were taken (release).
    fn store_consumer(&self, position: u64);
}

/// Destination of a frame, by the program's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// A port, by its place among those that the pipe was opened with.
    Port(u16),
    /// No port: the frame is dropped.
    Dropped,
    /// A port that the pipe does not have: the frame is dropped and counted.
    Foreign,
}

/// A frame, or a piece of an unmarked stream, that the program sends. Position and length are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Position of the first byte.
    pub position: u64,
    /// Bytes.
    pub length: usize,
    /// Destination.
    pub to: To,
}

/// A reader's record of a program's sends.
#[derive(Clone, Debug)]
pub struct Intake {
    shape: Shape,
    ports: u16,
    /// Positions taken, known to be sent, and published as free.
    cursor: Consumer,
    /// Position of the oldest byte that was taken and is lent still.
    lent: Option<u64>,
    foreign: u32,
    pending: Option<Sent>,
}

/// State of an [`Intake`] for another reader. What is lent is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    known: u64,
    taken: u64,
    published: u64,
}

impl Intake {
    /// Returns the state that another reader goes on with. The entry of a frame that waits is read anew there.
    pub fn state(&self) -> Taken {
        let cursor = &self.cursor;
        Taken { known: cursor.known(), taken: cursor.read(), published: cursor.freed() }
    }

    /// Goes on with the state of another reader.
    ///
    /// # Errors
    /// [`Broken`] where no reader can have left it.
    pub fn resume_from(shape: Shape, ports: u16, state: &Taken) -> Result<Self, Broken> {
        let &Taken { known, taken, published } = state;
        if [known, taken, published].iter().any(|position| position % shape.grain() != 0) {
            return Err(Broken);
        }
        let cursor = Consumer::resume_at(shape.ring_bytes(), known, taken, published)?;
        Ok(Self { cursor, ..Self::new(shape, ports) })
    }

    /// Makes a record for a pipe whose verdicts may name `ports` ports.
    pub fn new(shape: Shape, ports: u16) -> Self {
        let cursor = Consumer::new(shape.ring_bytes());
        Self { shape, ports, cursor, lent: None, foreign: 0, pending: None }
    }

    /// Goes on at `position`: another reader has taken, and given back, what lies before.
    pub fn resume(&mut self, position: u64) {
        self.cursor = Consumer::resume(self.shape.ring_bytes(), position);
        (self.lent, self.pending) = (None, None);
    }

    /// Keeps taken bytes from `position` on from being published; with none, no more.
    pub fn lend(&mut self, position: Option<u64>) {
        self.lent = position;
    }

    /// Returns the position up to which taken bytes are free.
    #[inline]
    fn free(&self) -> u64 {
        self.lent.unwrap_or(self.cursor.read())
    }

    /// Returns the taken bytes that are lent still.
    #[inline]
    pub fn lent(&self) -> u64 {
        self.cursor.read().wrapping_sub(self.free())
    }

    /// Reads the position up to which the program sends. `announced`: position up to which bytes were announced to a forwarding
    /// program.
    ///
    /// # Errors
    /// [`Violation::Index`] where the position runs backwards, beyond the announced bytes or the ring as far as its place was published as free,
    /// or off a line.
    #[inline]
    pub fn look(&mut self, cells: &impl IntakeCells, announced: u64) -> Result<bool, Violation> {
        // SYNC POINT: pipe-sent
        let position = cells.load_producer();
        if position == self.cursor.known() {
            return Ok(false);
        }
        if position.wrapping_sub(self.cursor.known()) % self.shape.grain() != 0 {
            return Err(Violation::Index);
        }
        match self.shape.direction() {
            Direction::Forward => self.cursor.see_within(position, announced)?,
            _ => self.cursor.see(position)?,
        };
        Ok(true)
    }

    /// Returns the oldest frame that was not taken yet. The frame's entry is read once, in any number of calls.
    ///
    /// # Errors
    /// [`Violation::Length`] and [`Violation::Verdict`], by the entry.
    #[inline]
    pub fn next(&mut self, cells: &impl IntakeCells) -> Result<Option<Sent>, Violation> {
        if self.pending.is_some() || !self.has_untaken() {
            return Ok(self.pending);
        }
        let (position, left) = (self.cursor.read(), self.cursor.unread());
        let sent = match self.shape.unit() {
            Unit::Bytes => Sent { position, length: left.min(CHUNK_BYTES) as usize, to: To::Port(0) },
            Unit::Frames => {
                let (length, verdict) = entry_parts(cells.load_entry(position));
                let possible = (FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&length);
                if !possible || frame_stride(length) > left {
                    return Err(Violation::Length);
                }
                Sent { position, length: length.into(), to: self.judge(verdict)? }
            }
        };
        self.pending = Some(sent);
        Ok(self.pending)
    }

    fn judge(&mut self, verdict: u16) -> Result<To, Violation> {
        if verdict != DROP && verdict >= self.ports {
            self.foreign += 1;
            return if self.foreign > FOREIGN_VERDICTS_MAX {
                Err(Violation::Verdict)
            } else {
                Ok(To::Foreign)
            };
        }
        self.foreign = 0;
        Ok(if verdict == DROP { To::Dropped } else { To::Port(verdict) })
    }

    /// Takes the frame that [`Self::next`] returned.
    #[inline]
    pub fn take(&mut self) {
        if let Some(sent) = self.pending.take() {
            let bytes = match self.shape.unit() {
                Unit::Frames => frame_stride(sent.length as u16),
                Unit::Bytes => sent.length as u64,
            };
            self.cursor.take(bytes);
        }
    }

    /// Takes `bytes` of the piece of an unmarked stream that [`Self::next`] returned.
    pub fn take_part(&mut self, bytes: usize) {
        if let Some(sent) = &mut self.pending {
            sent.length = sent.length.min(bytes);
            self.take();
        }
    }

    /// Publishes the position of taken bytes that are not lent. Returns it, if it has changed.
    #[inline]
    pub fn publish(&mut self, cells: &impl IntakeCells) -> Option<u64> {
        let free = self.cursor.give_back(self.free())?;
        // SYNC POINT: pipe-taken
        cells.store_consumer(free);
        Some(free)
    }

    /// Returns whether sent bytes are still to be taken.
    pub fn has_untaken(&self) -> bool {
        self.cursor.unread() > 0
    }

    /// Returns the position up to which taken bytes were published as free.
    pub fn published(&self) -> u64 {
        self.cursor.freed()
    }

    /// Returns the position up to which the program sends, as [`Self::look`] has read it.
    #[inline]
    pub fn end(&self) -> u64 {
        self.cursor.known()
    }

    /// Returns the bytes that are free and not published.
    #[inline]
    pub fn unpublished(&self) -> u64 {
        self.free().wrapping_sub(self.cursor.freed())
    }

    /// Returns the position up to which everything was taken: in a forwarding pipe the ring is free up to there.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.cursor.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[derive(Default)]
    struct Words {
        producer: Cell<u64>,
        consumer: Cell<u64>,
    }

    impl IntakeCells for Words {
        fn load_producer(&self) -> u64 {
            self.producer.get()
        }
        fn load_entry(&self, _position: u64) -> u32 {
            unreachable!("bytes have no entries")
        }
        fn store_consumer(&self, position: u64) {
            self.consumer.set(position);
        }
    }

    /// Else a program that sends on without waiting would be read for ever, in one turn or call.
    #[test]
    fn the_place_of_taken_bytes_is_free_when_that_is_published() {
        const RING: u64 = 32 << 10;
        let words = Words::default();
        let mut intake = Intake::new(Shape::new(Direction::Send, Unit::Bytes, RING).unwrap(), 1);
        words.producer.set(RING);
        assert_eq!(intake.look(&words, 0), Ok(true));
        intake.next(&words).unwrap();
        intake.take_part(100);
        words.producer.set(RING + 100);
        assert_eq!(intake.look(&words, 0), Err(Violation::Index));
        assert_eq!((intake.publish(&words), words.consumer.get()), (Some(100), 100));
        assert_eq!(intake.look(&words, 0), Ok(true));
        words.producer.set(RING + 101);
        assert_eq!(intake.look(&words, 0), Err(Violation::Index));
    }
}
