//! Sends of files. The mover reads them into the receive ring itself: one copy, where memory of the client would take two. The reader reads
//! bytes that have to wait for a disk ([`crate::reader`]).
use super::sink::{Room, Sink};
use super::{Flow, Pump};
use crate::messages::Violation;
use crate::reader::{ColdRead, OpenFile};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most bytes read from a disk at a time. Nothing else of the flow moves until they are there.
const COLD_BYTES_MAX: u64 = 256 << 10;

/// The files of a flow's sends. Most flows have none.
#[derive(Debug, Default)]
pub struct Files {
    /// Number of each send's block, and the file of the send; oldest first.
    sends: VecDeque<(u64, Arc<OpenFile>)>,
    /// Next job of the reader.
    cold: Option<ColdRead>,
    /// Set while the reader has a job.
    waiting: bool,
    /// Bytes read since they were last counted.
    read: u64,
}

impl Files {
    /// Records that a send is of this file.
    pub(super) fn add(&mut self, send: u64, file: Arc<OpenFile>) {
        self.sends.push_back((send, file));
    }

    /// Returns the file of a send, if it is of one.
    pub(super) fn of(&self, send: u64) -> Option<&Arc<OpenFile>> {
        self.sends.iter().find(|&&(number, _)| number == send).map(|(_, file)| file)
    }

    /// Tells whether a send is of a file.
    pub(super) fn has(&self, send: u64) -> bool {
        self.of(send).is_some()
    }

    /// Forgets the sends before this one, which are done.
    pub(super) fn forget_before(&mut self, send: u64) {
        while self.sends.front().is_some_and(|&(number, _)| number < send) {
            self.sends.pop_front();
        }
    }

    /// Tells whether the flow waits for a disk.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Reads a piece of the file of a send, from byte `from` on, into the ring. Returns the number of bytes delivered or on their way.
    ///
    /// # Errors
    /// The reason why the flow stops.
    pub(super) fn read(&mut self, send: u64, from: u64, sink: &mut Sink, room: Room) -> Result<u64, Pump> {
        let file = Arc::clone(self.of(send).ok_or(Pump::FileError)?);
        let (map, ring_at) = sink.mapping().ok_or(Pump::NoRing)?;
        let offset = ring_at + room.position as usize;
        // SAFETY: the flow alone may write the ring's room.
        match unsafe { file.read(map, offset, room.len as usize, from) } {
            Ok(0) => Err(Pump::FileError),
            Ok(read) => {
                let room = Room { len: read as u64, ..room };
                let number = sink.begin_copy(room).ok_or(Pump::More)?;
                self.read += room.len;
                sink.end_copy(number);
                Ok(room.len)
            }
            Err(Errno::AGAIN) => {
                let (map, room) = (Arc::clone(map), Room { len: room.len.min(COLD_BYTES_MAX), ..room });
                let number = sink.begin_copy(room).ok_or(Pump::More)?;
                let (len, entry_seq) = (room.len as usize, number as u16);
                self.waiting = true;
                self.cold = Some(ColdRead { file, from, map, offset, len, entry_seq });
                Ok(room.len)
            }
            Err(_) => Err(Pump::FileError),
        }
    }
}

impl Flow {
    /// Accepts a send of `len` bytes of a file.
    ///
    /// # Errors
    /// Same as [`Flow::accept`].
    pub fn accept_file(&mut self, file: Arc<OpenFile>, offset: u64, len: u64) -> Result<(), Violation> {
        if self.accepts(1) {
            self.source.accept_file(file, offset, len).ok_or(Violation::SendRing)?;
            self.pending += len;
        }
        Ok(())
    }

    /// Takes the next job of the reader.
    pub fn take_cold(&mut self) -> Option<ColdRead> {
        self.source.files()?.cold.take()
    }

    /// Notes that the reader has done its job.
    pub fn end_cold(&mut self) {
        if let Some(files) = self.source.files() {
            files.waiting = false;
        }
    }

    /// Returns the bytes of files read since the last call.
    pub fn take_file_bytes(&mut self) -> u64 {
        self.source.files().map_or(0, |files| std::mem::take(&mut files.read))
    }
}
