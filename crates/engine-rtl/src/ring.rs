//! A submission or completion queue in memory that the driver's side and the simulated card share.
use pd_abi::limits::QUEUE_DEPTH;
use pd_abi::Command;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = size_of::<Command>() / 8;
/// The word with `reserved` in it, which holds the phase: the card writes it last, the driver reads it first.
const LAST: usize = offset_of!(Command, reserved) / 8;
/// Bytes of the queue.
pub const RING_BYTES: usize = QUEUE_DEPTH * size_of::<Command>();

/// Entries of a queue, on pages of their own.
#[repr(C, align(4096))]
pub struct Ring([[AtomicU64; WORDS]; QUEUE_DEPTH]);

impl Ring {
    /// A queue of zeros.
    pub fn new() -> Self {
        Self([const { [const { AtomicU64::new(0) }; WORDS] }; QUEUE_DEPTH])
    }

    /// Address of the first entry.
    pub fn addr(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// The entry at `index`, which runs freely. What its writer wrote before it is seen as well.
    pub fn load(&self, index: u16) -> [u64; WORDS] {
        let entry = &self.0[usize::from(index) % QUEUE_DEPTH];
        // SYNC POINT: completion-phase
        let last = entry[LAST].load(Ordering::Acquire);
        let mut words = entry.each_ref().map(|word| word.load(Ordering::Relaxed));
        words[LAST] = last;
        words
    }

    /// Writes the entry at `index`, its last word after all else.
    pub fn store(&self, index: u16, words: [u64; WORDS]) {
        let entry = &self.0[usize::from(index) % QUEUE_DEPTH];
        for (number, (word, value)) in entry.iter().zip(words).enumerate() {
            if number != LAST {
                word.store(value, Ordering::Relaxed);
            }
        }
        // SYNC POINT: completion-phase
        entry[LAST].store(words[LAST], Ordering::Release);
    }

    /// Bytes of entries, `offset` and length being multiples of 8.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        for (number, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            let at = offset / 8 + number;
            chunk.copy_from_slice(&self.0[at / WORDS][at % WORDS].load(Ordering::Relaxed).to_le_bytes());
        }
    }
}

/// A command as the words of an entry.
pub fn words_of(command: &Command) -> [u64; WORDS] {
    [
        u64::from(command.request_type)
            | u64::from(command.status) << 8
            | u64::from(command.cid) << 16
            | u64::from(command.data_len) << 32,
        command.src_addr,
        command.dst_addr,
        u64::from(command.conn_id)
            | u64::from(command.table_id) << 32
            | u64::from(command.reserved) << 40
            | u64::from(command.entry_seq) << 48,
    ]
}

/// The command that the words of an entry are.
pub fn command_of(words: [u64; WORDS]) -> Command {
    Command {
        request_type: words[0] as u8,
        status: (words[0] >> 8) as u8,
        cid: (words[0] >> 16) as u16,
        data_len: (words[0] >> 32) as u32,
        src_addr: words[1],
        dst_addr: words[2],
        conn_id: words[3] as u32,
        table_id: (words[3] >> 32) as u8,
        reserved: (words[3] >> 40) as u8,
        entry_seq: (words[3] >> 48) as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_lie_where_the_layout_says() {
        let command = Command {
            request_type: 1,
            status: 2,
            cid: 0x304,
            data_len: 0x0506_0708,
            src_addr: 0x1122_3344_5566_7788,
            dst_addr: 0x99aa_bbcc_ddee_ff00,
            conn_id: 0x0a0b_0c0d,
            table_id: 0x0e,
            reserved: 0x0f,
            entry_seq: 0x1011,
        };
        let ring = Ring::new();
        ring.store(1030, words_of(&command));
        assert_eq!(command_of(ring.load(6)), command);
        let mut bytes = [0; 32];
        ring.read(6 * 32, &mut bytes);
        assert_eq!(bytes[offset_of!(Command, cid)], 0x04);
        assert_eq!(bytes[offset_of!(Command, data_len)], 0x08);
        assert_eq!(bytes[offset_of!(Command, dst_addr)], 0x00);
        assert_eq!(bytes[offset_of!(Command, conn_id)], 0x0d);
        assert_eq!(bytes[offset_of!(Command, reserved)], 0x0f);
        assert_eq!(bytes[offset_of!(Command, entry_seq)], 0x11);
        assert_eq!(ring.addr() % 4096, 0);
    }
}
