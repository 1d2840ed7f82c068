use crate::declare::{entry, kinds};
use crate::limits;
use core::mem::size_of;

entry! {
    /// Entry of a submission or completion queue: 32 bytes, the fields of the paper's Figure 6.
    ///
    /// The engine looks at `request_type`, the two addresses and `data_len` only. It writes
    /// `request_type` and `status` and gives everything else back as it came: `cid`, `conn_id`,
    /// `table_id` and `entry_seq` mean something to the driver alone, so that no connection state
    /// lives in an engine (section III-E).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Command in 32 {
        /// A [`CommandType`].
        request_type: u8,
        /// A [`CommandStatus`], set by the engine on completion (out of the paper's reserved bits).
        status: u8,
        /// Local container id: the client that sent.
        cid: u16,
        /// Bytes to move; 1 to the engine's chunk size.
        data_len: u32,
        /// Source address, in the engine's view of memory.
        src_addr: u64,
        /// Destination address, in the engine's view of memory.
        dst_addr: u64,
        /// The driver's number of the flow (one direction of a connection).
        conn_id: u32,
        /// A [`TableId`].
        table_id: u8,
        /// Zero. In a completion queue that hardware writes: [`Command::PHASE`].
        reserved: u8,
        /// Entry of that table, modulo 65,536.
        entry_seq: u16,
    }
}

impl Command {
    /// Bit of `reserved` that hardware sets in a completion queue entry on its first pass over the queue,
    /// clears on the second, and so on, so that a new entry differs from the one that was there before.
    pub const PHASE: u8 = 1;
}

const _: () = {
    // A queue is a whole number of pages.
    assert!(limits::QUEUE_DEPTH * size_of::<Command>() % limits::PAGE_BYTES == 0);
};

kinds! {
    /// Request or report of a [`Command`].
    enum CommandType: u8 {
        /// Copy `data_len` bytes from `src_addr` to `dst_addr`.
        GeneralSend = 1,
        /// The copy is done; see the status for how it went.
        GeneralCompleted = 2,
    }
}

kinds! {
    /// Result of a command.
    enum CommandStatus: u8 else Failed {
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
}

kinds! {
    /// Buffer table in which a command's `entry_seq` counts.
    enum TableId: u8 {
        /// Send buffer table.
        Sbt = 0,
        /// Receive buffer table.
        Rbt = 1,
    }
}
