//! Taps: copies of the frames of a port or of a pipe, for an observer.
//!
//! A tap is a receiving pipe whose frames are records: [`Record`], then the first bytes of a frame. A tap holds nothing up. A record
//! for which its ring has no room is lost and counted, and the next record has the count. The observer is not a client: it sees what
//! clients of the port see. Its words are bounded as a program's are.
use super::doorbells::Doorbells;
use super::end::End;
use super::ports::PortId;
use super::{Agent, PipeId};
use crate::memory::Made;
use crate::shape::{Direction, Unit};
use pd_abi::pipe::FRAME_BYTES_MAX;
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most taps of an agent: `EMFILE` beyond. Each frame is compared with each of them.
pub const TAPS_MAX: usize = 16;

/// Frames that a tap copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tapped {
    /// Frames of a port, both ways.
    Port(PortId),
    /// Frames of a pipe, both ways.
    Pipe(PipeId),
}

/// Direction of a frame, as the port sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the port to a pipe.
    In,
    /// From a pipe to the port.
    Out,
}

/// Header of a record of a tap, before the bytes of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time at which the agent moved the frame, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes of the frame.
    pub frame_bytes: u32,
    /// Direction of the frame.
    pub way: Way,
    /// Frames that the tap has lost so far.
    pub lost: u64,
}

impl Record {
    /// Bytes of the header.
    pub const BYTES: usize = 24;
    /// Most bytes of a frame in a record.
    pub const SNAP_MAX: usize = FRAME_BYTES_MAX as usize - Self::BYTES;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.frame_bytes.to_le_bytes());
        bytes[12] = u8::from(self.way == Way::Out);
        bytes[16..].copy_from_slice(&self.lost.to_le_bytes());
        bytes
    }

    /// Parses a record: returns its header, and the first bytes of its frame. None if it is malformed.
    pub fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, frame) = bytes.split_first_chunk::<{ Self::BYTES }>()?;
        let word = |at: usize| head[at..].first_chunk().map(|word| u64::from_le_bytes(*word));
        let frame_bytes = head[8..].first_chunk().map(|word| u32::from_le_bytes(*word))?;
        let way = if head[12] == 0 { Way::In } else { Way::Out };
        Some((Self { time_ns: word(0)?, frame_bytes, way, lost: word(16)? }, frame))
    }
}

/// A tap of an agent. The id of a removed tap names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapId(u64);

/// Counts of a tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapCounts {
    /// Frames copied.
    pub frames: u64,
    /// Frames for which there was no room.
    pub lost: u64,
}

#[derive(Debug)]
struct Tap {
    id: TapId,
    of: Tapped,
    end: End,
    doorbell: OwnedFd,
    snap: usize,
    counts: TapCounts,
}

/// The taps of an agent.
#[derive(Debug, Default)]
pub(super) struct Taps {
    taps: Vec<Tap>,
    last: u64,
    record: Vec<u8>,
}

impl Taps {
    #[inline]
    pub(super) fn are_there(&self) -> bool {
        !self.taps.is_empty()
    }

    /// Returns whether a port has a tap.
    pub(super) fn are_of(&self, port: usize) -> bool {
        self.taps.iter().any(|tap| matches!(tap.of, Tapped::Port(id) if id.slot() == port))
    }

    /// Returns whether the pipe of this generation has a tap.
    pub(super) fn are_of_pipe(&self, pipe: u64) -> bool {
        self.taps.iter().any(|tap| matches!(tap.of, Tapped::Pipe(id) if id.generation == pipe))
    }

    /// Copies a frame that went between `port` and the pipe of this generation, for the taps of either.
    #[inline]
    pub(super) fn see(&mut self, port: usize, pipe: u64, frame: &[u8], way: Way) {
        if !self.taps.is_empty() {
            self.copy(port, pipe, frame, way);
        }
    }

    #[cold]
    fn copy(&mut self, port: usize, pipe: u64, frame: &[u8], way: Way) {
        let is_of = |tap: &Tap| match tap.of {
            Tapped::Port(id) => id.slot() == port,
            Tapped::Pipe(id) => id.generation == pipe,
        };
        let Self { taps, record, .. } = self;
        for tap in taps.iter_mut().filter(|tap| is_of(tap) && tap.end.is_open()) {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let time_ns = time.as_nanos() as u64;
            let head = Record { time_ns, frame_bytes: frame.len() as u32, way, lost: tap.counts.lost };
            record.clear();
            record.extend_from_slice(&head.to_bytes());
            record.extend_from_slice(&frame[..frame.len().min(tap.snap)]);
            if tap.end.append(record) {
                tap.counts.frames += 1;
            } else {
                tap.counts.lost += 1;
            }
        }
    }

    /// Reads the words of observers, and announces new records. Returns whether there was work.
    pub(super) fn turn(&mut self) -> bool {
        let mut busy = false;
        for tap in self.taps.iter_mut().filter(|tap| tap.end.is_open()) {
            match tap.end.look() {
                Ok(news) => busy |= news,
                Err(_) => tap.end.end(Errno::PROTO),
            }
            busy |= tap.end.tell().announced;
        }
        busy
    }

    pub(super) fn ask_wakeup(&self, sleep: impl Fn(&End) -> u32) {
        for tap in self.taps.iter().filter(|tap| tap.end.is_open()) {
            tap.end.ask_wakeup(sleep(&tap.end));
        }
    }

    /// Ends the taps of ports or pipes that have gone.
    pub(super) fn end(&mut self, is_gone: impl Fn(Tapped) -> bool) {
        for tap in self.taps.iter_mut().filter(|tap| is_gone(tap.of)) {
            tap.end.tell();
            tap.end.end(Errno::NODEV);
        }
    }

    fn remove(&mut self, id: TapId, doorbells: &Doorbells) {
        self.taps.retain(|tap| {
            if tap.id == id {
                doorbells.remove(&tap.doorbell);
            }
            tap.id != id
        });
    }
}

impl Agent {
    /// Adds a tap of at most `snap` bytes of each frame. `made` is a receiving pipe of frames, whose memory is sealed.
    ///
    /// # Errors
    /// `EINVAL` for another kind of pipe, or a port that was removed. `EBADF` for a pipe that was closed. `EOPNOTSUPP` where the unit
    /// is bytes. `EMFILE` at [`TAPS_MAX`]. Errors of `epoll_ctl`.
    pub fn add_tap(&mut self, made: Made, of: Tapped, snap: usize) -> Result<TapId> {
        let Made { shape, memory, doorbell, is_anothers } = made;
        if shape.direction() != Direction::Receive || shape.unit() != Unit::Frames {
            return Err(Errno::INVAL);
        }
        let unit = match of {
            Tapped::Port(id) => {
                let port = self.ports.get(id.slot()).filter(|port| !port.is_free()).ok_or(Errno::INVAL)?;
                port.unit
            }
            Tapped::Pipe(id) => Some(self.slot(id).ok_or(Errno::BADF)?.end.shape().unit()),
        };
        if unit == Some(Unit::Bytes) {
            return Err(Errno::OPNOTSUPP);
        }
        if self.taps.taps.len() >= TAPS_MAX {
            return Err(Errno::MFILE);
        }
        self.doorbells.add(&doorbell)?;
        self.judge_tapped(of);
        let mut end = End::new(shape, memory, 1, is_anothers);
        end.start();
        self.taps.last += 1;
        let id = TapId(self.taps.last);
        let snap = snap.min(Record::SNAP_MAX);
        self.taps.taps.push(Tap { id, of, end, doorbell, snap, counts: TapCounts::default() });
        if let Tapped::Port(port) = of {
            self.look_who_watches(port.slot());
        }
        Ok(id)
    }

    /// Removes a tap. The observer sees `ECONNRESET`.
    pub fn remove_tap(&mut self, id: TapId) {
        let of = self.taps.taps.iter().find(|tap| tap.id == id).map(|tap| tap.of);
        self.taps.remove(id, &self.doorbells);
        of.into_iter().for_each(|of| self.judge_tapped(of));
        if let Some(Tapped::Port(port)) = of {
            self.look_who_watches(port.slot());
        }
    }

    fn judge_tapped(&mut self, of: Tapped) {
        match of {
            Tapped::Port(port) => self.judge_port(port.slot()),
            Tapped::Pipe(pipe) => self.judge_pipe(pipe.slot),
        }
    }

    /// Returns the counts of a tap.
    pub fn tap_counts(&self, id: TapId) -> Option<TapCounts> {
        self.taps.taps.iter().find(|tap| tap.id == id).map(|tap| tap.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let record = Record { time_ns: u64::MAX - 5, frame_bytes: 9216, way: Way::Out, lost: 1 << 40 };
        let bytes = [&record.to_bytes()[..], b"frame"].concat();
        assert_eq!(Record::read(&bytes), Some((record, &b"frame"[..])));
        assert_eq!(Record::read(&bytes[..23]), None);
    }
}
