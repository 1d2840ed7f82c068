//! The process's memory as the card sees it: queues, and what commands in flight name.
use crate::grants::Grants;
use crate::port::Host;
use crate::ring::{command_of, words_of, Ring, RING_BYTES};
use pd_abi::limits::CHUNK_BYTES_PAPER;
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

/// What the port knows of one queue pair.
struct Queue {
    rings: Arc<Rings>,
    /// Entries that the driver has told of.
    submitted: u16,
    /// Entries that the card has completed.
    completed: u16,
    /// What each entry in between allows: source, destination, length; length 0: nothing.
    in_flight: VecDeque<(u64, u64, u64)>,
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
        self.queues[index] = Some(Queue { rings, submitted: 0, completed: 0, in_flight: VecDeque::new() });
    }

    /// Takes all back that pair `index` allowed.
    pub fn remove(&mut self, index: usize) {
        let Some(queue) = self.queues.get_mut(index).and_then(Option::take) else { return };
        for (src, dst, len) in queue.in_flight {
            self.revoke(src, dst, len);
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
            queue.in_flight.push_back(if valid { (src, dst, len) } else { (0, 0, 0) });
            if valid {
                self.sources.grant(src, len);
                self.destinations.grant(dst, len);
            }
        }
    }

    /// Whether the card has something to do.
    pub fn is_busy(&self) -> bool {
        self.queues.iter().flatten().any(|queue| queue.submitted != queue.completed)
    }

    fn revoke(&mut self, src: u64, dst: u64, len: u64) {
        if len > 0 {
            self.sources.revoke(src, len);
            self.destinations.revoke(dst, len);
        }
    }

    /// A completion of pair `index` at byte `offset` of its queue. Only the next one in order is right.
    fn complete(&mut self, index: usize, offset: usize, entry: &[u8]) -> bool {
        let Some(Some(queue)) = self.queues.get_mut(index) else { return false };
        let expected = usize::from(queue.completed) * size_of::<Command>() % RING_BYTES;
        if offset != expected {
            return false;
        }
        let Some((src, dst, len)) = queue.in_flight.pop_front() else { return false };
        let mut words = words_of(&Command::default());
        for (word, bytes) in words.iter_mut().zip(entry.chunks_exact(8)) {
            *word = u64::from_le_bytes([
                bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
            ]);
        }
        let (at, rings) = (queue.completed, Arc::clone(&queue.rings));
        queue.completed = queue.completed.wrapping_add(1);
        // The driver may give the bytes to somebody else as soon as it sees the entry.
        self.revoke(src, dst, len);
        rings.cq.store(at, words);
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
    fn completions_come_in_order_and_only_for_what_was_submitted() {
        let (src, mut dst) = ([0; LEN], [0; LEN]);
        let command = copy(&src, &mut dst);
        let (mut memory, rings) = memory(&[command, Command::default()]);
        assert!(!memory.write(rings.cq.addr() + 32, &[0; 32]), "the second first");
        assert!(!memory.write(rings.cq.addr(), &[0; 16]), "half an entry");
        assert!(memory.write(rings.cq.addr(), &[0; 64]));
        assert!(!memory.write(rings.cq.addr() + 64, &[0; 32]), "one that was not submitted");
        memory.remove(3);
        assert!(!memory.write(rings.cq.addr() + 64, &[0; 32]), "a queue that is gone");
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
