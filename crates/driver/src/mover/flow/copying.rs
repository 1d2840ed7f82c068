//! Copies of a flow, by commands to an engine or by the mover itself, and their delivery in the order of the stream (paper, section III-E).
use super::sink::Place;
use super::source::{Next, Piece};
use super::{Allowance, Flow, Pump};
use crate::messages::Violation;
use pd_abi::{Command, CommandType, TableId};
use pd_engine::Cpu;

/// Progress of a piece on its way to the receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    /// The piece is there.
    Copied,
    /// An engine has a command.
    Commanded,
    /// Read from its file, or to be read by the reader.
    Read,
}

impl Flow {
    /// Accepts and delivers one or several sends of `len` bytes at `address`, if nothing is before them and the ring has room for them.
    /// Returns whether it did. Nothing has happened if not, and [`Self::pump`] finds the reason. For movers that may copy by themselves
    /// ([`Engines::is_own_core`](crate::mover::engines::Engines::is_own_core)), and flows without a rate.
    pub fn pass(&mut self, address: u64, len: u64, sends: u64) -> bool {
        let plain =
            !self.schedule.is_blocked() && !self.aborted && self.finish.is_none() && self.migration.is_none();
        if self.pending > 0 || !plain || !self.source.can_pass(len) {
            return false;
        }
        let Some(place) = self.sink.room_at_once(len) else { return false };
        let from = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: the source lies in a send region that the client's entry keeps mapped. The place is room of the receive ring, which the
        // flow alone may write. Send and receive regions never overlap.
        unsafe { Cpu::copy(place, from, len as usize) };
        self.source.pass(sends);
        self.sink.reserve(len);
        self.sink.deliver(len);
        true
    }

    /// Writes commands for at most `budget`, and takes the used part from it. With `at_once` it copies by itself, as long as no copy is
    /// under way: then at most `commands_max` pieces.
    ///
    /// # Errors
    /// The receiving client broke the protocol.
    pub fn pump(
        &mut self,
        budget: &mut Allowance,
        chunk_bytes_max: u32,
        commands: &mut Vec<Command>,
        commands_max: usize,
        at_once: bool,
    ) -> Result<Pump, Violation> {
        if self.pending == 0 || self.aborted || self.source.is_cold() || self.is_moving() {
            return Ok(Pump::Drained);
        }
        let place = match self.sink.open()? {
            Ok(place) => place,
            Err(pump) => return Ok(pump),
        };
        let mut pieces = 0;
        while self.pending > 0 {
            if budget.bytes == 0 || pieces >= commands_max {
                return Ok(Pump::More);
            }
            let Some(next) = self.next(&mut budget.messages) else { return Ok(Pump::Drained) };
            if next.allowed == 0 {
                return Ok(Pump::More);
            }
            let most = match next.piece {
                Piece::File(_) => budget.bytes.min(next.allowed),
                Piece::SendRegion(_) | Piece::PreviousRing(_) => {
                    budget.bytes.min(next.allowed).min(chunk_bytes_max.into())
                }
            };
            let (len, put) = match self.put(next, most, place, commands, at_once)? {
                Ok(done) => done,
                Err(pump) => return Ok(pump),
            };
            pieces += 1;
            self.sink.reserve(len);
            self.pending -= len;
            budget.bytes -= len;
            self.advance(next, len);
            match put {
                Put::Copied => self.arrive(len),
                Put::Commanded => {}
                Put::Read => {
                    self.deliver();
                    if self.source.is_cold() {
                        return Ok(Pump::PageCacheMiss);
                    }
                }
            }
        }
        if at_once {
            self.drop_sends_if_over();
        }
        Ok(Pump::Drained)
    }

    /// Returns the bytes to be copied next. Bytes that a previous owner has left come before any send.
    #[inline]
    fn next(&mut self, messages: &mut u64) -> Option<Next> {
        let Some(migration) = &self.migration else { return self.source.next(messages) };
        match migration.next_undrained() {
            Some((address, left)) => Some(Next { piece: Piece::PreviousRing(address), left, allowed: left }),
            None if migration.holds_sends() => None,
            None => self.source.next(messages),
        }
    }

    /// Notes that `len` bytes of `next` are under way.
    #[inline]
    fn advance(&mut self, next: Next, len: u64) {
        match (next.piece, &mut self.migration) {
            (Piece::PreviousRing(_), Some(migration)) => migration.take_undrained(len),
            _ => self.source.advance(len, next.left),
        }
    }

    /// Puts up to `most` bytes into the receive ring, or has an engine or the reader do so. Returns the number of bytes and their progress,
    /// or the reason why the flow stops.
    #[inline]
    fn put(
        &mut self,
        next: Next,
        most: u64,
        place: Place,
        commands: &mut Vec<Command>,
        at_once: bool,
    ) -> Result<Result<(u64, Put), Pump>, Violation> {
        let Some(room) = self.sink.room(place, next.left.min(most))? else { return Ok(Err(Pump::Full)) };
        let to = place.base + room.position;
        match next.piece {
            Piece::SendRegion(from) | Piece::PreviousRing(from) if at_once && self.sink.is_quiet() => {
                let from = std::ptr::with_exposed_provenance(from as usize);
                let to = std::ptr::with_exposed_provenance_mut(to as usize);
                // SAFETY: as for commands (`Engines::submit`). The source lies in memory that the client's entry or the flow keeps mapped.
                // The destination is room of the ring that the flow alone writes.
                unsafe { Cpu::copy(to, from, room.len as usize) };
                Ok(Ok((room.len, Put::Copied)))
            }
            Piece::SendRegion(from) | Piece::PreviousRing(from) => {
                let Some(number) = self.sink.begin_copy(room) else { return Ok(Err(Pump::More)) };
                commands.push(self.command(from, to, room.len, number));
                Ok(Ok((room.len, Put::Commanded)))
            }
            Piece::File(from) => {
                let read = self.source.read_file(from, &mut self.sink, room);
                Ok(read.map(|len| (len, Put::Read)))
            }
        }
    }

    fn command(&self, src_addr: u64, dst_addr: u64, len: u64, seq: u64) -> Command {
        Command {
            request_type: CommandType::GeneralSend as u8,
            cid: self.source.end().client.get(),
            data_len: len as u32,
            src_addr,
            dst_addr,
            conn_id: self.id.get(),
            table_id: TableId::Rbt as u8,
            entry_seq: seq as u16,
            ..Command::default()
        }
    }

    /// Ends a command of this flow that went well.
    pub fn complete(&mut self, entry_seq: u16) {
        let finished = self.sink.end_command(entry_seq);
        debug_assert!(finished, "completion of a command that is not under way");
        self.deliver();
    }

    /// Delivers copies that have ended, in the order of the stream.
    fn deliver(&mut self) {
        while let Some(len) = self.sink.take_arrived() {
            if self.aborted {
                continue;
            }
            self.arrive(len);
        }
        self.drop_sends_if_over();
    }

    /// Delivers the next `len` bytes of the stream, which are in the ring.
    #[inline]
    fn arrive(&mut self, len: u64) {
        self.sink.deliver(len);
        if self.migration.as_mut().is_some_and(|migration| migration.deliver_undrained(len)) {
            return;
        }
        self.source.deliver(len);
    }

    fn drop_sends_if_over(&mut self) {
        if self.sink.is_quiet() && (self.aborted || (self.finish.is_some() && self.source.is_empty())) {
            self.source.drop_sends();
        }
    }
}
