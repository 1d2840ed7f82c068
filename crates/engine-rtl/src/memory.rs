//! The process's memory as the card sees it: queues, and what commands in flight name.
use crate::grants::Grants;
use crate::port::Host;
use crate::ring::{command_of, words_of, Ring, RING_BYTES};
use pd_abi::limits::{CHUNK_BYTES_PAPER, QUEUE_DEPTH};
use pd_abi::{Command, CommandType};
use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::Arc;

/// The two queues of one pair.
pub struct Rings {
    /// Submission queue; the driver writes it.
    pub sq: Ring,
    /// Completion queue; the card writes it.
    pub cq: Ring,
}

/// The port's record of one queue pair.
struct Queue {
    rings: Arc<Rings>,
    /// Entries that the driver has told of.
    submitted: u16,
    /// Memory that each of the last entries allows, from the oldest that the card has not completed; `None`: completed.
    in_flight: VecDeque<Option<Copy>>,
}

/// Memory that a command in flight allows; length 0: none.
#[derive(Default)]
struct Copy {
    src: u64,
    dst: u64,
    len: u64,
}

impl Queue {
    /// Where in `in_flight` the entry is whose completion belongs at byte `offset` of the completion queue.
    fn in_flight_at(&self, offset: usize) -> usize {
        let oldest = usize::from(self.submitted).wrapping_sub(self.in_flight.len());
        (offset / size_of::<Command>()).wrapping_sub(oldest) % QUEUE_DEPTH
    }
}

/// The memory behind the port of an `rtl` engine.
#[derive(Default)]
pub struct EngineMemory {
    queues: Vec<Option<Queue>>,
    sources: Grants,
    destinations: Grants,
}

impl EngineMemory {
    /// Lets the card use the queues of pair `index`.
    pub fn add(&mut self, index: usize, rings: Arc<Rings>) {
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        self.queues[index] = Some(Queue { rings, submitted: 0, in_flight: VecDeque::new() });
    }

    /// Takes all back that pair `index` allowed.
    pub fn remove(&mut self, index: usize) {
        let Some(queue) = self.queues.get_mut(index).and_then(Option::take) else { return };
        for copy in queue.in_flight.into_iter().flatten() {
            self.revoke(&copy);
        }
    }

    /// Notes the entries of pair `index` up to `producer_index`, which the card is about to be told of.
    pub fn submit(&mut self, index: usize, producer_index: u16) {
        let Some(Some(queue)) = self.queues.get_mut(index) else { return };
        while queue.submitted != producer_index {
            let command = command_of(queue.rings.sq.load(queue.submitted));
            let len = u64::from(command.data_len);
            let (src, dst) = (command.src_addr, command.dst_addr);
            let valid = command.request_type == CommandType::GeneralSend as u8
                && (1..=u64::from(CHUNK_BYTES_PAPER)).contains(&len)
                && [src, dst].iter().all(|addr| *addr != 0 && addr.checked_add(len).is_some());
            queue.submitted = queue.submitted.wrapping_add(1);
            queue.in_flight.push_back(Some(if valid { Copy { src, dst, len } } else { Copy::default() }));
            if valid {
                self.sources.grant(src, len);
                self.destinations.grant(dst, len);
            }
        }
    }

    /// Returns whether the card has something to do.
    pub fn is_busy(&self) -> bool {
        self.queues.iter().flatten().any(|queue| !queue.in_flight.is_empty())
    }

    fn revoke(&mut self, copy: &Copy) {
        if copy.len > 0 {
            self.sources.revoke(copy.src, copy.len);
            self.destinations.revoke(copy.dst, copy.len);
        }
    }

    /// A completion of pair `index` at byte `offset` of its queue. Batches of them may come in any order: a later one
    /// with less to copy is done first. Each must answer an entry in flight, once.
    fn complete(&mut self, index: usize, offset: usize, entry: &[u8]) -> bool {
        let Some(Some(queue)) = self.queues.get_mut(index) else { return false };
        if offset % size_of::<Command>() != 0 {
            return false;
        }
        let at = queue.in_flight_at(offset);
        let Some(copy) = queue.in_flight.get_mut(at).and_then(Option::take) else { return false };
        while queue.in_flight.front().is_some_and(Option::is_none) {
            queue.in_flight.pop_front();
        }
        let mut words = words_of(&Command::default());
        for (word, bytes) in words.iter_mut().zip(entry.chunks_exact(8)) {
            *word = u64::from_le_bytes([
                bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
            ]);
        }
        let rings = Arc::clone(&queue.rings);
        // The driver may give the bytes to somebody else as soon as it sees the entry.
        self.revoke(&copy);
        rings.cq.store((offset / size_of::<Command>()) as u16, words);
        true
    }

    /// The pair one of whose queues holds all these bytes, and their offset in it.
    fn find(&self, addr: u64, len: usize, ring: impl Fn(&Rings) -> &Ring) -> Option<(usize, usize)> {
        self.queues.iter().enumerate().find_map(|(index, queue)| {
            let offset = addr.checked_sub(ring(&queue.as_ref()?.rings).addr())? as usize;
            (offset < RING_BYTES && len <= RING_BYTES - offset).then_some((index, offset))
        })
    }
}

impl Host for EngineMemory {
    fn read(&mut self, addr: u64, bytes: &mut [u8]) -> bool {
        if self.sources.covers(addr, bytes.len() as u64) {
            let from = std::ptr::with_exposed_provenance::<u8>(addr as usize);
            // SAFETY: these bytes lie in the source of a command in flight, which whoever submitted it promised to
            // keep readable (`QueuePair::submit`); `bytes` is this program's own.
            unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
            return true;
        }
        match self.find(addr, bytes.len(), |rings| &rings.sq) {
            Some((index, offset)) if offset % 8 == 0 && bytes.len() % 8 == 0 => {
                if let Some(queue) = &self.queues[index] {
                    queue.rings.sq.read(offset, bytes);
                }
                true
            }
            _ => false,
        }
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> bool {
        if self.destinations.covers(addr, bytes.len() as u64) {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(addr as usize);
            // SAFETY: these bytes lie in the destination of a command in flight, which whoever submitted it promised to
            // keep writable and to share with nobody; `bytes` is this program's own.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            return true;
        }
        let entries = bytes.chunks_exact(size_of::<Command>());
        if bytes.is_empty() || !entries.remainder().is_empty() {
            return false;
        }
        let Some((index, offset)) = self.find(addr, bytes.len(), |rings| &rings.cq) else { return false };
        entries
            .enumerate()
            .all(|(number, entry)| self.complete(index, offset + number * size_of::<Command>(), entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64;

    fn memory(commands: &[Command]) -> (EngineMemory, Arc<Rings>) {
        let rings = Arc::new(Rings { sq: Ring::new(), cq: Ring::new() });
        let mut memory = EngineMemory::default();
        memory.add(3, Arc::clone(&rings));
        for (index, command) in commands.iter().enumerate() {
            rings.sq.store(index as u16, words_of(command));
        }
        memory.submit(3, commands.len() as u16);
        (memory, rings)
    }

    fn copy(src: &[u8], dst: &mut [u8]) -> Command {
        Command {
            request_type: CommandType::GeneralSend as u8,
            data_len: LEN as u32,
            src_addr: src.as_ptr().expose_provenance() as u64,
            dst_addr: dst.as_mut_ptr().expose_provenance() as u64,
            ..Command::default()
        }
    }

    #[test]
    fn the_card_reaches_what_commands_in_flight_name_and_nothing_else() {
        let (src, mut dst) = ([7; LEN + 2], [0; LEN + 2]);
        let command = copy(&src[1..], &mut dst[1..]);
        let (mut memory, rings) = memory(&[command]);
        let mut bytes = [0; LEN];
        assert!(memory.read(command.src_addr, &mut bytes) && bytes == [7; LEN]);
        for (addr, len) in [(command.src_addr - 1, LEN), (command.src_addr + 1, LEN), (command.dst_addr, 1)] {
            assert!(!memory.read(addr, &mut bytes[..len]), "read of what is no source");
        }
        for addr in [command.dst_addr - 1, command.dst_addr + 1, command.src_addr, 0, u64::MAX] {
            assert!(!memory.write(addr, &bytes), "write of what is no destination");
        }
        assert!(!memory.write(rings.sq.addr(), &bytes[..32]), "write of a submission queue");
        assert!(!memory.read(rings.cq.addr(), &mut bytes[..32]), "read of a completion queue");
        assert!(memory.write(command.dst_addr, &bytes));
        assert_eq!((dst[0], dst[1], dst[LEN], dst[LEN + 1]), (0, 7, 7, 0));
        // Completed: nothing is allowed any more.
        assert!(memory.is_busy() && memory.write(rings.cq.addr(), &[0; 32]) && !memory.is_busy());
        assert!(!memory.read(command.src_addr, &mut bytes) && !memory.write(command.dst_addr, &bytes));
    }

    #[test]
    fn completions_come_once_and_only_for_what_was_submitted() {
        let (src, mut dst) = ([0; LEN], [0; LEN]);
        let command = copy(&src, &mut dst);
        let (mut memory, rings) = memory(&[command, Command::default(), Command::default()]);
        let at = |entry: u64| rings.cq.addr() + entry * 32;
        assert!(!memory.write(at(0), &[0; 16]), "half an entry");
        assert!(!memory.write(at(0) + 8, &[0; 32]), "between two entries");
        assert!(memory.write(at(1), &[0; 32]), "the second first");
        assert!(!memory.write(at(1), &[0; 32]), "the second again");
        assert!(memory.is_busy() && memory.read(command.src_addr, &mut [0]), "the first is in flight");
        assert!(memory.write(at(0), &[0; 32]));
        assert!(!memory.read(command.src_addr, &mut [0]), "the first is done");
        for entry in [0, 1, 3, QUEUE_DEPTH as u64 - 1] {
            assert!(!memory.write(at(entry), &[0; 32]), "one that is not in flight");
        }
        assert!(memory.is_busy());
        memory.remove(3);
        assert!(!memory.write(at(2), &[0; 32]), "a queue that is gone");
        assert!(!memory.is_busy());
    }

    #[test]
    fn entries_keep_their_places_when_numbers_wrap() {
        let (mut memory, rings) = memory(&[]);
        for submitted in (0..=u16::MAX).chain(0..5).skip(2).step_by(2) {
            memory.submit(3, submitted);
            let slot = |back: u16| usize::from(submitted.wrapping_sub(back)) % QUEUE_DEPTH;
            for back in [1, 2] {
                assert!(memory.write(rings.cq.addr() + 32 * slot(back) as u64, &[0; 32]), "{submitted}");
            }
            assert!(!memory.is_busy());
        }
    }

    #[test]
    fn bad_commands_allow_nothing() {
        let (src, mut dst) = ([0; LEN], [0; LEN]);
        let good = copy(&src, &mut dst);
        let bad = [
            Command { request_type: 2, ..good },
            Command { data_len: 0, ..good },
            Command { data_len: CHUNK_BYTES_PAPER + 1, ..good },
            Command { dst_addr: 0, ..good },
            Command { dst_addr: u64::MAX, ..good },
        ];
        let (mut memory, _rings) = memory(&bad);
        assert!(!memory.read(good.src_addr, &mut [0]) && !memory.write(good.dst_addr, &[0]));
    }
}
