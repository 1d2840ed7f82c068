//! Sends of files: the mover reads them into the receive ring itself, which takes one copy where memory of the client's
//! would take two. What would have to wait for a disk is the reader's to read ([`crate::reader`]).
use super::{Flow, Pump};
use crate::messages::Violation;
use crate::reader::{ColdRead, OpenFile};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most that is read from a disk at a time: nothing else of the flow moves until it is there.
const COLD_BYTES_MAX: u64 = 256 << 10;

/// The files of a flow's sends. Most flows have none.
#[derive(Debug, Default)]
pub struct Files {
    /// Number of a send's block, and what it is of; oldest first.
    sends: VecDeque<(u64, Arc<OpenFile>)>,
    /// For the reader.
    cold: Option<ColdRead>,
    /// The reader is about it.
    waiting: bool,
    /// Bytes read since they were counted last.
    read: u64,
}

impl Files {
    /// Blocks up to this one are done.
    pub(super) fn forget_before(&mut self, block: u64) {
        while self.sends.front().is_some_and(|&(number, _)| number < block) {
            self.sends.pop_front();
        }
    }
}

/// The next piece of a send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// First byte of the file.
    pub from: u64,
    /// Where in the receive ring.
    pub position: u64,
    pub len: u64,
}

impl Flow {
    /// Accepts a send of `len` bytes of a file.
    ///
    /// # Errors
    /// As [`Flow::accept`].
    pub fn accept_file(&mut self, file: Arc<OpenFile>, offset: u64, len: u64) -> Result<(), Violation> {
        if self.counts(1) {
            let number = self.sbt.insert(offset, len).ok_or(Violation::SendRing)?;
            self.pending += len;
            self.files.get_or_insert_default().sends.push_back((number, file));
        }
        Ok(())
    }

    /// The file that a block is of, if any.
    pub(super) fn file_of(&self, block: u64) -> Option<Arc<OpenFile>> {
        let sends = &self.files.as_ref()?.sends;
        sends.iter().find(|&&(number, _)| number == block).map(|(_, file)| Arc::clone(file))
    }

    /// Reads a piece of a file into the ring. Returns how many bytes are delivered or on their way.
    ///
    /// # Errors
    /// What the flow ran into.
    pub(super) fn read_piece(&mut self, file: &Arc<OpenFile>, piece: Piece) -> Result<u64, Pump> {
        let (Some(ring), Some(files)) = (&self.ring, &mut self.files) else { return Err(Pump::NoRing) };
        let offset = ring.offset() + piece.position as usize;
        // SAFETY: the ring's room is the flow's to write, and nobody else's.
        match unsafe { file.read(&ring.map, offset, piece.len as usize, piece.from) } {
            Ok(0) => Err(Pump::Failed),
            Ok(read) => {
                let seq = self.rbt.insert(piece.position, read as u64).ok_or(Pump::More)?;
                files.read += read as u64;
                self.rbt.finish(seq);
                Ok(read as u64)
            }
            Err(Errno::AGAIN) => {
                let len = piece.len.min(COLD_BYTES_MAX);
                let seq = self.rbt.insert(piece.position, len).ok_or(Pump::More)?;
                files.waiting = true;
                files.cold = Some(ColdRead {
                    file: Arc::clone(file),
                    from: piece.from,
                    map: Arc::clone(&ring.map),
                    offset,
                    len: len as usize,
                    entry_seq: seq as u16,
                });
                Ok(len)
            }
            Err(_) => Err(Pump::Failed),
        }
    }

    /// Whether a disk is waited for.
    pub(super) fn is_cold(&self) -> bool {
        self.files.as_ref().is_some_and(|files| files.waiting)
    }

    /// What the reader shall read.
    pub fn take_cold(&mut self) -> Option<ColdRead> {
        self.files.as_mut()?.cold.take()
    }

    /// The reader has done so.
    pub fn end_cold(&mut self) {
        if let Some(files) = &mut self.files {
            files.waiting = false;
        }
    }

    /// Bytes of files read since the last call.
    pub fn take_file_bytes(&mut self) -> u64 {
        self.files.as_mut().map_or(0, |files| std::mem::take(&mut files.read))
    }
}
