//! Limits: each a number, the reason for it, and what happens when it is reached.
use crate::declare::constants;

constants! {
    LIMITS:
    /// Ordinary page. Regions are whole pages.
    PAGE_BYTES: usize = 4096;
    /// Hugepage that payload regions are made of when the machine has some (paper, section IV-A).
    HUGEPAGE_BYTES: usize = 2 << 20;
    /// Cache line: words of different writers never share one.
    LINE_BYTES: usize = 64;

    /// Depth of an engine's submission and completion queue (paper, section IV). A full submission
    /// queue makes the mover reap before it submits more.
    QUEUE_DEPTH: usize = 1024;
    /// Payload of one command on the paper's hardware (section IV-B); engines state their own.
    CHUNK_BYTES_PAPER: u32 = 4096;

    /// Entries of a request ring. A client that finds it full waits for the driver.
    REQUEST_RING_ENTRIES: u64 = 1024;
    /// Entries of an event ring. Events that do not fit wait, in order, in the driver; there are at
    /// most one per socket and one per unanswered request.
    EVENT_RING_ENTRIES: u64 = 1024;

    /// Most answers to one request for several sockets.
    ANSWERS_MAX: u32 = 64;

    /// Channels (a request ring and an event ring) of one client. Threads beyond that share channels.
    CHANNELS_MAX: usize = 64;
    /// Sockets of one client: `EMFILE` beyond.
    SOCKETS_MAX: usize = 65_536;
    /// Payload regions of one client: `ENOMEM` beyond.
    REGIONS_MAX: usize = 4096;

    /// Default size of a socket's send ring and of its receive ring (paper, section IV-A).
    RING_BYTES_DEFAULT: u64 = 4 << 20;
    /// Smallest ring; smaller wishes are rounded up.
    RING_BYTES_MIN: u64 = 64 << 10;
    /// Largest ring; larger wishes are rounded down, as the BSD calls do.
    RING_BYTES_MAX: u64 = 1 << 30;
    /// Connections that one client may have on the direct path, each of which takes up to three of the 65,530 mappings
    /// that a process may have; further ones are offloaded.
    DIRECT_CONNECTIONS_MAX: usize = 16_384;
    /// Longest span of one send request. Longer sends are split by the client library.
    MESSAGE_BYTES_MAX: u64 = 1 << 30;
    /// Send requests that one socket may have outstanding; the library waits at it.
    SENDS_IN_FLIGHT_MAX: u64 = 4096;

    /// Files that the driver has open for one client at a time. The client reads others itself, and sends the bytes.
    FILES_MAX: usize = 64;

    /// Connections on the kernel whose reasons a client keeps; the oldest makes room.
    KERNEL_CONNECTIONS_MAX: usize = 256;

    /// Largest backlog of a listener; larger wishes are rounded down, as the BSD calls do.
    BACKLOG_MAX: u32 = 4096;
    /// First and last port handed out where a program names none.
    EPHEMERAL_PORT_FIRST: u16 = 32_768;
    /// See [`EPHEMERAL_PORT_FIRST`].
    EPHEMERAL_PORT_LAST: u16 = 60_999;
}

const _: () = {
    assert!(REQUEST_RING_ENTRIES.is_power_of_two() && EVENT_RING_ENTRIES.is_power_of_two());
    assert!(QUEUE_DEPTH.is_power_of_two());
    assert!(RING_BYTES_MIN.is_power_of_two() && RING_BYTES_MIN as usize % PAGE_BYTES == 0);
    assert!(RING_BYTES_MAX.is_power_of_two() && RING_BYTES_DEFAULT.is_power_of_two());
    assert!(RING_BYTES_DEFAULT as usize % HUGEPAGE_BYTES == 0);
    // A span's offset has 48 bits and a socket's slot 16 (see `Span` and `SocketId`).
    assert!(SOCKETS_MAX <= 1 << 16 && REGIONS_MAX <= 1 << 16);
};
