use crate::limits;
use core::mem::{offset_of, size_of};

/// One entry of a submission or completion queue: 32 bytes, the fields of the paper's Figure 6.
///
/// The engine looks at `request_type`, the two addresses and `data_len` only. It writes
/// `request_type` and `status` and gives everything else back as it came: `cid`, `conn_id`,
/// `table_id` and `entry_seq` mean something to the driver alone, so that no connection state
/// lives in an engine (section III-E).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Command {
    /// A [`CommandType`].
    pub request_type: u8,
    /// A [`CommandStatus`], set by the engine on completion (out of the paper's reserved bits).
    pub status: u8,
    /// Local container id: the client that sent.
    pub cid: u16,
    /// Bytes to move; 1 to the engine's chunk size.
    pub data_len: u32,
    /// Source address, in the engine's view of memory.
    pub src_addr: u64,
    /// Destination address, in the engine's view of memory.
    pub dst_addr: u64,
    /// The driver's number of the flow (one direction of a connection).
    pub conn_id: u32,
    /// A [`TableId`].
    pub table_id: u8,
    /// Zero. In a completion queue that hardware writes: [`Command::PHASE`].
    pub reserved: u8,
    /// Entry of that table, modulo 65,536.
    pub entry_seq: u16,
}

impl Command {
    /// Bit of `reserved` that hardware sets in a completion queue entry on its first pass over the queue,
    /// clears on the second, and so on, so that a new entry differs from the one that was there before.
    pub const PHASE: u8 = 1;
}

const _: () = {
    assert!(size_of::<Command>() == 32);
    assert!(offset_of!(Command, request_type) == 0);
    assert!(offset_of!(Command, status) == 1);
    assert!(offset_of!(Command, cid) == 2);
    assert!(offset_of!(Command, data_len) == 4);
    assert!(offset_of!(Command, src_addr) == 8);
    assert!(offset_of!(Command, dst_addr) == 16);
    assert!(offset_of!(Command, conn_id) == 24);
    assert!(offset_of!(Command, table_id) == 28);
    assert!(offset_of!(Command, reserved) == 29);
    assert!(offset_of!(Command, entry_seq) == 30);
    // A queue is a whole number of pages.
    assert!(limits::QUEUE_DEPTH * size_of::<Command>() % limits::PAGE_BYTES == 0);
};

/// What a [`Command`] asks for or reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CommandType {
    /// Copy `data_len` bytes from `src_addr` to `dst_addr`.
    GeneralSend = 1,
    /// The copy is done; see the status for how it went.
    GeneralCompleted = 2,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CommandStatus {
    /// All bytes are at the destination.
    Ok = 0,
    /// The engine cannot reach one of the addresses.
    BadAddress = 1,
    /// `data_len` is zero or above the engine's chunk size.
    BadLength = 2,
    /// `request_type` is not one the engine knows.
    BadType = 3,
    /// The engine failed; any part of the destination may have been written.
    Failed = 4,
}

impl CommandStatus {
    /// The status of a raw byte; what is not known counts as failed.
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0 => Self::Ok,
            1 => Self::BadAddress,
            2 => Self::BadLength,
            3 => Self::BadType,
            _ => Self::Failed,
        }
    }
}

/// Which buffer table a command's `entry_seq` counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TableId {
    /// Send buffer table.
    Sbt = 0,
    /// Receive buffer table.
    Rbt = 1,
}
