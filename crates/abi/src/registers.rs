//! Registers of the engine's hardware form, described once: the driver of the hardware uses the constants here, and
//! the SystemVerilog package and the table in the documentation are generated from the same lines (`svpackage.rs`).
//!
//! BAR 0 has [`BAR_BYTES`]. Registers are 32 bits, little endian, written one at a time and read one or two at a
//! time. What a [`Block`] does not list reads and writes as "Unsupported Request", and is counted. Fields that are
//! not listed are zero, and ignored when written.

/// Size of BAR 0.
pub const BAR_BYTES: u32 = 32 << 10;
/// Most queue pairs, and most MSI-X vectors.
pub const QUEUES_MAX: u32 = 256;
/// Most submission queue entries that one fetch reads.
pub const BATCH_ENTRIES_MAX: u32 = 16;
/// First word of BAR 0: "PDST", little endian.
pub const DEVICE_ID: u32 = u32::from_le_bytes(*b"PDST");
/// Version of this map and of the programming model.
pub const DEVICE_VERSION: u32 = 1;
/// Reset value of the completion time-out, in units of 256 cycles: 51 ms at 250 MHz.
pub const CPL_TIMEOUT_RESET: u32 = 50_000;

/// The access that a register allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Writes are ignored.
    ReadOnly,
    /// Reads give what was written.
    ReadWrite,
    /// Reads give zero.
    WriteOnly,
}

/// Bits of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// In capitals, its register's name first.
    pub name: &'static str,
    /// Lowest bit.
    pub lsb: u32,
    /// Number of bits.
    pub bits: u32,
    /// Meaning of the field, for the table.
    pub text: &'static str,
}

impl Field {
    /// The field's bits of a register's value.
    pub const fn get(self, register: u32) -> u32 {
        (register >> self.lsb) & self.mask()
    }

    /// A register's bits with `value` in this field and zero elsewhere; `value` is cut to the field's width.
    pub const fn with(self, value: u32) -> u32 {
        (value & self.mask()) << self.lsb
    }

    const fn mask(self) -> u32 {
        u32::MAX >> (32 - self.bits)
    }
}

/// Register of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// In capitals.
    pub name: &'static str,
    /// Bytes from the start of its block.
    pub offset: u32,
    /// The access that it allows.
    pub access: Access,
    /// Value after reset; `None` where it depends on how the hardware was built.
    pub reset: Option<u32>,
    /// Meaning of the register, for the table.
    pub text: &'static str,
    /// Its fields; none where it is one number.
    pub fields: &'static [Field],
}

/// Registers that lie together, once or many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Prefix of its registers' names in SystemVerilog; empty for the registers of the whole device.
    pub prefix: &'static str,
    /// Start of the first block in BAR 0.
    pub base: u32,
    /// Distance from one to the next; 0 where there is one.
    pub stride: u32,
    /// Number of blocks at most.
    pub count: u32,
    /// The registers, by offset.
    pub registers: &'static [Register],
}

/// All blocks, by base.
pub const BLOCKS: [Block; 4] = [global::BLOCK, msix::BLOCK, msix_pba::BLOCK, queue::BLOCK];

macro_rules! block {
    (
        $(#[$about:meta])*
        mod $module:ident { prefix: $prefix:literal, base: $base:expr, stride: $stride:expr, count: $count:expr }
        $($offset:literal $name:ident $access:ident $reset:expr, $text:literal
            { $($field:ident $lsb:literal $bits:literal $meaning:literal)* })*
    ) => {
        $(#[$about])*
        pub mod $module {
            use super::{Access, Block, Register};
            $(
                #[doc = $text]
                pub const $name: u32 = $offset;
                $(
                    #[doc = $meaning]
                    pub const $field: super::Field =
                        super::Field { name: stringify!($field), lsb: $lsb, bits: $bits, text: $meaning };
                )*
            )*
            /// Where and how often.
            pub const BLOCK: Block = Block {
                prefix: $prefix,
                base: $base,
                stride: $stride,
                count: $count,
                registers: &[$(Register {
                    name: stringify!($name),
                    offset: $name,
                    access: Access::$access,
                    reset: $reset,
                    text: $text,
                    fields: &[$($field),*],
                }),*],
            };
        }
    };
}

block! {
    /// Registers of the whole device.
    mod global { prefix: "", base: 0, stride: 0, count: 1 }
    0x00 ID ReadOnly Some(super::DEVICE_ID), "\"PDST\", little endian" {}
    0x04 VERSION ReadOnly Some(super::DEVICE_VERSION), "version of this map" {}
    0x08 CAPS ReadOnly None, "what the hardware was built with" {
        CAPS_QUEUES 0 16 "queue pairs"
        CAPS_LOG2_DEPTH 16 5 "log2 of a queue's entries"
        CAPS_BATCH_ENTRIES 24 8 "most entries of one fetch"
    }
    0x0c COPY_BYTES_MAX ReadOnly None, "most bytes of one command" {}
    0x10 CONTROL ReadWrite Some(0), "the device as a whole" {
        CONTROL_ENABLE 0 1 "1: fetch commands; going from 0 to 1 forgets all queues"
    }
    0x14 STATUS ReadOnly Some(0), "how it stands" {
        STATUS_READY 0 1 "enabled, and the state of all queues is cleared"
        STATUS_BUSY 1 1 "a command is between its fetch and its completion"
        STATUS_ERROR_QUEUES 2 1 "some queue is in error"
    }
    0x18 IRQ_INTERVAL ReadWrite Some(0), "interrupt coalescing" {
        IRQ_INTERVAL_CYCLES 0 16 "least cycles between two interrupts of one vector"
    }
    0x1c CPL_TIMEOUT ReadWrite Some(super::CPL_TIMEOUT_RESET), "when a read counts as lost" {
        CPL_TIMEOUT_UNITS 0 16 "units of 256 cycles"
    }
    0x20 BATCH_MAX ReadWrite Some(super::BATCH_ENTRIES_MAX), "entries of one fetch" {
        BATCH_MAX_ENTRIES 0 5 "1 to 16"
    }
    0x40 COUNT_COMMANDS ReadOnly Some(0), "commands completed; wraps, as all counters do" {}
    0x44 COUNT_ERRORS ReadOnly Some(0), "of these, with a status other than Ok" {}
    0x48 COUNT_TIMEOUTS ReadOnly Some(0), "reads that got no completion in time" {}
    0x4c COUNT_UNEXPECTED ReadOnly Some(0), "completions dropped because no read waits for them" {}
    0x50 COUNT_IRQS ReadOnly Some(0), "interrupts sent" {}
    0x54 COUNT_MMIO_BAD ReadOnly Some(0), "requests to BAR 0 that no register answers" {}
}

block! {
    /// MSI-X table, as PCI lays it out.
    mod msix { prefix: "MSIX_", base: 0x1000, stride: 16, count: super::QUEUES_MAX }
    0x00 ADDRESS_LO ReadWrite None, "message address, low half" {}
    0x04 ADDRESS_HI ReadWrite None, "message address, high half" {}
    0x08 DATA ReadWrite None, "message data" {}
    0x0c VECTOR_CONTROL ReadWrite Some(1), "the vector as a whole" {
        VECTOR_CONTROL_MASK 0 1 "1: remember the interrupt instead of sending it"
    }
}

block! {
    /// MSI-X pending bits, 32 vectors a register.
    mod msix_pba { prefix: "MSIX_PBA_", base: 0x2000, stride: 4, count: super::QUEUES_MAX / 32 }
    0x00 PENDING ReadOnly Some(0), "bit n: vector 32 × index + n waits to be unmasked" {}
}

block! {
    /// Registers of one queue pair.
    mod queue { prefix: "QUEUE_", base: 0x4000, stride: 0x20, count: super::QUEUES_MAX }
    0x00 SQ_BASE_LO ReadWrite None, "address of the submission queue, low half; bits 11 to 0 count as zero" {}
    0x04 SQ_BASE_HI ReadWrite None, "address of the submission queue, high half" {}
    0x08 CQ_BASE_LO ReadWrite None, "address of the completion queue, low half; bits 11 to 0 count as zero" {}
    0x0c CQ_BASE_HI ReadWrite None, "address of the completion queue, high half" {}
    0x10 CONFIG ReadWrite None, "interrupts of the queue" {
        CONFIG_VECTOR 0 12 "MSI-X vector"
        CONFIG_IRQ_ENABLE 31 1 "1: interrupt after a batch of completions"
    }
    0x14 DOORBELL WriteOnly None, "both indices of the driver, which run freely" {
        DOORBELL_SQ_PRODUCER 0 16 "sq_producer_index: entries submitted"
        DOORBELL_CQ_CONSUMER 16 16 "cq_consumer_index: completions reaped"
    }
    0x18 CONTROL WriteOnly None, "the queue as a whole" {
        CONTROL_ENABLE 0 1 "1: set all indices to 0 and fetch; 0: fetch no more"
    }
    0x1c STATE ReadOnly Some(0), "how it stands" {
        STATE_SQ_CONSUMER 0 16 "sq_consumer_index: entries fetched"
        STATE_BATCHES 16 8 "fetches that are not completed"
        STATE_ENABLED 30 1 "the queue fetches"
        STATE_ERROR 31 1 "entries could not be read; the queue is disabled"
    }
}

/// Offset in BAR 0 of a register of queue pair `index`.
pub const fn queue_offset(index: u32, register: u32) -> u32 {
    queue::BLOCK.base + index * queue::BLOCK.stride + register
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_lie_apart_and_within_their_block() {
        let mut end = 0;
        for block in BLOCKS {
            assert!(block.base >= end, "{}", block.prefix);
            let mut next = 0;
            for register in block.registers {
                assert!(register.offset >= next && register.offset % 4 == 0, "{}", register.name);
                next = register.offset + 4;
            }
            assert!(next <= block.stride || block.count == 1);
            end = block.base + (block.count - 1) * block.stride + next;
        }
        assert!(end <= BAR_BYTES);
    }

    #[test]
    fn fields_lie_apart_and_are_named_after_their_register() {
        for register in BLOCKS.iter().flat_map(|block| block.registers) {
            let mut next = 0;
            for field in register.fields {
                assert!(field.lsb >= next && field.bits > 0, "{}", field.name);
                assert!(field.name.strip_prefix(register.name).is_some_and(|rest| rest.starts_with('_')));
                assert_eq!(field.get(field.with(u32::MAX)), u32::MAX >> (32 - field.bits));
                next = field.lsb + field.bits;
            }
            assert!(next <= 32, "{}", register.name);
        }
    }
}
