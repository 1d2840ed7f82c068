//! Copies of a flow: its commands to an engine, or what the mover copies by itself, and what is delivered by them in the order
//! of the stream (paper, section III-E).
use super::{file, Flow, Pump};
use crate::messages::Violation;
use crate::mover::throttle::Allowance;
use pd_abi::{Command, CommandType, TableId};
use pd_engine::Cpu;

impl Flow {
    /// Accepts and delivers a send of `len` bytes at `address` if nothing is before it and the ring has room for it.
    /// Returns whether it did; if not, nothing has happened, and [`Self::pump`] finds out why. Only where the mover may copy by itself
    /// ([`Engines::is_own_core`](crate::mover::engines::Engines::is_own_core)) and no rate limits the flow.
    pub fn pass(&mut self, address: u64, len: u64) -> bool {
        let idle = self.pending == 0 && self.sbt.is_empty() && self.rbt.is_empty();
        let plain =
            !self.schedule.is_blocked() && !self.aborted && self.finish.is_none() && self.moves.is_none();
        if !idle || !plain || self.fit.is_poor() || len > self.sbt.room() {
            return false;
        }
        let Some(ring) = &self.ring else { return false };
        let (bytes, offset) = (ring.bytes(), ring.offset());
        let position = self.reserved & (bytes - 1);
        if len > bytes - position {
            return false;
        }
        let place = ring.map.address(offset + position as usize, len as usize).as_ptr();
        let lacks_room = |flow: &Self| bytes - (flow.reserved - flow.consumed) < len;
        if lacks_room(self) && (self.refresh_consumed().is_err() || lacks_room(self)) {
            return false;
        }
        let from = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: the source lies in a send region that the client's entry keeps mapped; the place is room of the receive
        // ring, which is the flow's to write and nobody else's; send and receive regions never overlap.
        unsafe { Cpu::copy(place, from, len as usize) };
        self.cursor = (self.sbt.pass() + 1, 0);
        self.sends_accepted += 1;
        self.sends_done += 1;
        self.reserved += len;
        self.delivered += len;
        true
    }

    /// Writes commands for at most `budget`, and takes what it uses of it. With `at_once` it copies by itself, as long as
    /// no copy is under way: then at most `commands_max` pieces.
    ///
    /// # Errors
    /// If the receiving client broke the protocol.
    pub fn pump(
        &mut self,
        budget: &mut Allowance,
        chunk_bytes_max: u32,
        commands: &mut Vec<Command>,
        commands_max: usize,
        at_once: bool,
    ) -> Result<Pump, Violation> {
        if self.pending == 0 || self.aborted || self.is_cold() || self.is_moving() {
            return Ok(Pump::Drained);
        }
        if self.fit.is_poor() {
            if self.is_ring_empty()? {
                return Ok(Pump::Poor);
            }
            if self.fit.is_closed() {
                return Ok(Pump::Full);
            }
        }
        let Some(ring) = &self.ring else { return Ok(Pump::NoRing) };
        let ring_bytes = ring.bytes();
        let ring_address = ring.map.address(ring.offset(), ring_bytes as usize);
        let base = ring_address.as_ptr() as u64;
        let mut pieces = 0;
        while self.pending > 0 {
            if budget.bytes == 0 || pieces >= commands_max {
                return Ok(Pump::More);
            }
            let (number, under_way) = self.cursor;
            let unread = self.moves.as_ref().and_then(|moves| moves.next_unread());
            let starts = u64::from(under_way == 0 && unread.is_none());
            if budget.messages < starts {
                return Ok(Pump::More);
            }
            let (src_addr, left) = match (unread, self.sbt.get(number)) {
                (Some(unread), _) => unread,
                (None, Some(entry)) => (entry.pointer + under_way, entry.size - under_way),
                (None, None) => return Ok(Pump::Drained),
            };
            let file = if unread.is_none() { self.file_of(number) } else { None };
            let want = match file {
                Some(_) => left.min(budget.bytes),
                None => left.min(budget.bytes).min(chunk_bytes_max.into()),
            };
            let mut room = ring_bytes - (self.reserved - self.consumed);
            if room < want {
                self.refresh_consumed()?;
                room = ring_bytes - (self.reserved - self.consumed);
            }
            if room == 0 {
                self.fit.note_full();
                return Ok(Pump::Full);
            }
            let position = self.reserved & (ring_bytes - 1);
            let mut len = want.min(room).min(ring_bytes - position);
            let is_file = file.is_some();
            let here = at_once && !is_file && self.rbt.is_empty();
            if let Some(file) = file {
                len = match self.read_piece(&file, file::Piece { from: src_addr, position, len }) {
                    Ok(len) => len,
                    Err(pump) => return Ok(pump),
                };
            } else if here {
                let from = std::ptr::with_exposed_provenance(src_addr as usize);
                let to = std::ptr::with_exposed_provenance_mut((base + position) as usize);
                // SAFETY: as for commands (`Engines::submit`): the source lies in memory that the client's entry or the
                // flow keeps mapped, the destination is room of the ring that the flow alone writes.
                unsafe { Cpu::copy(to, from, len as usize) };
            } else {
                let Some(seq) = self.rbt.insert(position, len) else { return Ok(Pump::More) };
                commands.push(self.command(src_addr, base + position, len, seq));
            }
            pieces += 1;
            self.reserved += len;
            self.pending -= len;
            budget.bytes -= len;
            budget.messages -= starts;
            match &mut self.moves {
                Some(moves) if unread.is_some() => moves.take_unread(len),
                _ if len == left => self.cursor = (number + 1, 0),
                _ => self.cursor = (number, under_way + len),
            }
            if here {
                self.arrive(len);
            }
            if is_file {
                self.deliver();
                if self.is_cold() {
                    return Ok(Pump::Cold);
                }
            }
        }
        if at_once {
            self.drop_sends_if_over();
        }
        Ok(Pump::Drained)
    }

    fn command(&self, src_addr: u64, dst_addr: u64, len: u64, seq: u64) -> Command {
        Command {
            request_type: CommandType::GeneralSend as u8,
            cid: self.source.client.get(),
            data_len: len as u32,
            src_addr,
            dst_addr,
            conn_id: self.id.get(),
            table_id: TableId::Rbt as u8,
            entry_seq: seq as u16,
            ..Command::default()
        }
    }

    /// A command of this flow has ended well.
    pub fn complete(&mut self, entry_seq: u16) {
        let finished = self.rbt.number(entry_seq).is_some_and(|number| self.rbt.finish(number));
        debug_assert!(finished, "completion of a command that is not under way");
        self.deliver();
    }

    /// Takes what is delivered in the order of the stream.
    fn deliver(&mut self) {
        while let Some(entry) = self.rbt.remove_finished() {
            if self.aborted {
                continue;
            }
            self.arrive(entry.size);
        }
        self.drop_sends_if_over();
    }

    /// The next `len` bytes of the stream are in the ring.
    fn arrive(&mut self, len: u64) {
        self.delivered += len;
        if self.moves.as_mut().is_some_and(|moves| moves.deliver_unread(len)) {
            return;
        }
        self.oldest_delivered += len;
        let Some(oldest) = self.sbt.get(self.sends_done) else { return };
        if self.oldest_delivered == oldest.size {
            self.sbt.finish(self.sends_done);
            self.sbt.remove_finished();
            self.sends_done += 1;
            self.oldest_delivered = 0;
            if let Some(files) = &mut self.files {
                files.forget_before(self.sends_done);
            }
        }
    }

    fn drop_sends_if_over(&mut self) {
        if self.rbt.is_empty() && (self.aborted || (self.finish.is_some() && self.sbt.is_empty())) {
            self.drop_sends();
        }
    }
}
