//! A host for figures: the queues and the driver that keeps them full, and payload that is checked byte by byte
//! without being stored.
use pd_abi::limits::QUEUE_DEPTH;
use pd_abi::{Command, CommandType};
use pd_engine_rtl::{Event, Host};
use std::mem::{offset_of, size_of};

const ENTRY: u64 = size_of::<Command>() as u64;
const RING_BYTES: u64 = QUEUE_DEPTH as u64 * ENTRY;
const SQ: u64 = 0x1_0000_0000;
const CQ: u64 = 0x2_0000_0000;
const IRQ: u64 = 0xfee0_0000;
const SRC: u64 = 0x10_0000_0000;
const DST: u64 = 0x20_0000_0000;
/// Send and receive rings of a queue pair, as large as the driver's default.
const RING: u64 = 4 << 20;

/// A load: how copies are submitted.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Queue pairs that are used.
    pub queues: u32,
    /// Bytes of a command.
    pub command_bytes: u32,
    /// Commands that the driver submits with one doorbell.
    pub batch: u32,
    /// Commands that it lets be in flight in a queue pair.
    pub in_flight_max: u32,
}

struct Queue {
    submitted: u64,
    completed: u64,
}

/// The host.
pub struct PerfHost {
    load: Load,
    queues: Vec<Queue>,
    /// Queue pairs that have completed something since the driver looked.
    pub news: Vec<u32>,
    /// Payload that has arrived.
    pub payload_bytes: u64,
    /// Commands that have completed.
    pub commands: u64,
    /// Interrupts that have arrived.
    pub interrupts: u64,
    /// When an interrupt last arrived.
    pub interrupt_at: u64,
    /// First and last of each kind of event on each kind of memory, for latencies.
    pub moments: Moments,
}

/// Cycles of the first command's packets: first and last of each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    /// The doorbell at the card's pins.
    pub doorbell: Option<u64>,
    /// The fetch leaves.
    pub fetch: Option<u64>,
    /// The entries are there.
    pub fetched: Option<u64>,
    /// The first read of payload leaves.
    pub read: Option<u64>,
    /// The last payload is there.
    pub read_done: Option<u64>,
    /// The last write of payload leaves.
    pub written: Option<u64>,
    /// The completion leaves.
    pub completed: Option<u64>,
    /// The interrupt leaves.
    pub interrupt: Option<u64>,
}

fn pattern(addr: u64) -> u8 {
    (addr ^ (addr >> 7) ^ (addr >> 15)) as u8
}

impl PerfHost {
    /// Makes a host with nothing under way.
    pub fn new(load: Load) -> Self {
        Self {
            load,
            queues: (0..load.queues).map(|_| Queue { submitted: 0, completed: 0 }).collect(),
            news: (0..load.queues).collect(),
            payload_bytes: 0,
            commands: 0,
            interrupts: 0,
            interrupt_at: 0,
            moments: Moments::default(),
        }
    }

    /// Address of a submission queue.
    pub fn sq(queue: u32) -> u64 {
        SQ + u64::from(queue) * RING_BYTES
    }

    /// Address of a completion queue.
    pub fn cq(queue: u32) -> u64 {
        CQ + u64::from(queue) * RING_BYTES
    }

    /// Address and data of a vector's interrupt.
    pub fn irq(queue: u32) -> (u64, u32) {
        (IRQ, queue)
    }

    /// Submits as many whole batches as there is room for. Returns the indices for the doorbell.
    pub fn submit(&mut self, queue: u32) -> Option<(u16, u16)> {
        let state = &mut self.queues[queue as usize];
        let room = u64::from(self.load.in_flight_max) - (state.submitted - state.completed);
        let batch = u64::from(self.load.batch);
        if room < batch {
            return None;
        }
        state.submitted += batch;
        Some((state.submitted as u16, state.completed as u16))
    }

    /// Returns entry `index` of a submission queue.
    fn command(&self, queue: u32, index: u64) -> [u8; ENTRY as usize] {
        let len = u64::from(self.load.command_bytes);
        let offset = u64::from(queue) * RING + index * len % RING;
        let mut entry = [0; ENTRY as usize];
        let mut put = |at: usize, bytes: &[u8]| entry[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset_of!(Command, request_type), &[CommandType::GeneralSend as u8]);
        put(offset_of!(Command, data_len), &self.load.command_bytes.to_le_bytes());
        put(offset_of!(Command, src_addr), &(SRC + offset).to_le_bytes());
        put(offset_of!(Command, dst_addr), &(DST + offset).to_le_bytes());
        put(offset_of!(Command, entry_seq), &(index as u16).to_le_bytes());
        entry
    }

    fn complete(&mut self, queue: u32, slot: u64, entry: &[u8]) -> bool {
        let state = &mut self.queues[queue as usize];
        let index = state.completed;
        let pass = index / QUEUE_DEPTH as u64;
        let expected = [CommandType::GeneralCompleted as u8, 0];
        let phase = entry[offset_of!(Command, reserved)] & Command::PHASE;
        if slot != index % QUEUE_DEPTH as u64
            || index >= state.submitted
            || entry[..2] != expected
            || u64::from(phase) != (pass + 1) % 2
        {
            return false;
        }
        state.completed += 1;
        self.commands += 1;
        self.news.push(queue);
        true
    }
}

impl Host for PerfHost {
    fn read(&mut self, addr: u64, bytes: &mut [u8]) -> bool {
        if addr >= SRC {
            for (byte, at) in bytes.iter_mut().zip(addr..) {
                *byte = pattern(at);
            }
            return true;
        }
        let offset = addr.wrapping_sub(SQ);
        let queue = offset / RING_BYTES;
        if queue >= u64::from(self.load.queues) || offset % ENTRY != 0 || bytes.len() as u64 % ENTRY != 0 {
            return false;
        }
        let submitted = self.queues[queue as usize].submitted;
        for (number, entry) in bytes.chunks_exact_mut(ENTRY as usize).enumerate() {
            let slot = offset % RING_BYTES / ENTRY + number as u64;
            // The newest entry of this slot that has been submitted.
            let back = (submitted + QUEUE_DEPTH as u64 - 1 - slot) % QUEUE_DEPTH as u64;
            let Some(index) = (submitted).checked_sub(1 + back) else { return false };
            entry.copy_from_slice(&self.command(queue as u32, index));
        }
        true
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> bool {
        if addr >= DST {
            self.payload_bytes += bytes.len() as u64;
            return bytes.iter().zip(addr - DST + SRC..).all(|(byte, at)| *byte == pattern(at));
        }
        if addr == IRQ {
            self.interrupts += 1;
            return true;
        }
        let offset = addr.wrapping_sub(CQ);
        let queue = offset / RING_BYTES;
        if queue >= u64::from(self.load.queues) || offset % ENTRY != 0 || bytes.len() as u64 % ENTRY != 0 {
            return false;
        }
        let slot = offset % RING_BYTES / ENTRY;
        let mut entries = bytes.chunks_exact(ENTRY as usize).zip(slot..);
        entries.all(|(entry, slot)| self.complete(queue as u32, slot, entry))
    }

    fn seen(&mut self, event: Event, addr: u64, cycle: u64) {
        let of_queue = (SQ..CQ).contains(&addr);
        let moments = &mut self.moments;
        let first = |moment: &mut Option<u64>| {
            moment.get_or_insert(cycle);
        };
        match event {
            Event::RegisterWritten => moments.doorbell = Some(cycle),
            Event::ReadSent if of_queue => first(&mut moments.fetch),
            Event::ReadSent => first(&mut moments.read),
            Event::ReadAnswered if of_queue => moments.fetched = Some(cycle),
            Event::ReadAnswered => moments.read_done = Some(cycle),
            Event::WriteSent if addr >= DST => moments.written = Some(cycle),
            Event::WriteSent if addr == IRQ => first(&mut moments.interrupt),
            Event::WriteSent => first(&mut moments.completed),
            Event::WriteArrived if addr == IRQ => self.interrupt_at = cycle,
            Event::WriteArrived => {}
        }
    }
}
