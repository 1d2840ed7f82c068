//! The control region and the status region of one client.
//!
//! Both have the same shape: a header page, [`CHANNELS_MAX`] channels, then one line per socket.
//! The **control region** is written by the client and only read by the driver; the **status
//! region** is written by the driver, and the client can map it read-only and no other way.
//! All numbers are little endian and naturally aligned. Indices are free-running and masked on use.
//!
//! Words ending in `_wake_at` are requests for a wake-up: 0 asks for none, any other value asks for
//! one when the counter named reaches it. The waiter reads the doorbell, writes `_wake_at`, fences,
//! looks at the counter once more and then sleeps on the doorbell (a futex); the other side writes
//! the counter, fences, looks at `_wake_at`, and if it is reached increments the doorbell and wakes.
use crate::limits::{
    CHANNELS_MAX, EVENT_RING_ENTRIES, FILES_MAX, KERNEL_CONNECTIONS_MAX, LINE_BYTES, PAGE_BYTES,
    REQUEST_RING_ENTRIES, SOCKETS_MAX,
};
use crate::{Event, Request, KERNEL_REASONS};
use core::mem::size_of;

/// Words of the header of the status region.
pub mod header {
    /// u64: [`crate::MAGIC`].
    pub const MAGIC: usize = 0;
    /// u32: [`crate::VERSION`].
    pub const VERSION: usize = 8;
    /// u32: the client's number.
    pub const CLIENT: usize = 12;
    /// u32: twins that the client may find when it accepts: made towards listeners that it speaks for, and not yet claimed
    /// or withdrawn. Counted before who makes one learns of it, so 0 says that what the kernel has accepted has none.
    pub const CLAIMABLE: usize = 16;
    /// u32 × [`crate::limits::FILES_MAX`]: the [`crate::FileId`] of each slot with an open file that may be sent; 0:
    /// none. See [`super::control_header::FILE_USES`].
    pub const FILES: usize = 64;
}

/// Words of the header of the control region.
pub mod control_header {
    /// u32 × [`crate::limits::FILES_MAX`]: sends of the file of each slot, since it was opened. The client counts one,
    /// fences, looks whether the slot is still the file's, and only then sends; the driver closes a file by clearing the
    /// slot, fencing, and looking whether it has taken as many sends as were counted: if not, it stays open.
    pub const FILE_USES: usize = 64;
    /// u32 × [`crate::KERNEL_REASONS`]: connections of the process that are or were the kernel's, for each
    /// [`crate::KernelReason`]. They only grow.
    pub const KERNEL_COUNTS: usize = 384;
    /// u64 × [`crate::limits::KERNEL_CONNECTIONS_MAX`]: the inode of such a connection's socket in the lower half, its
    /// [`crate::KernelReason`] in the upper; 0: none.
    pub const KERNEL_CONNECTIONS: usize = 512;
}

/// Words of a channel in the control region, which the client writes.
pub mod channel_control {
    /// u64: requests written.
    pub const REQUEST_PRODUCER: usize = 0;
    /// u64: events read.
    pub const EVENT_CONSUMER: usize = 64;
    /// u64: ring `event_doorbell` when `event_producer` reaches this.
    pub const EVENT_WAKE_AT: usize = 72;
    /// u32: not 0: also write the wake pipe when `event_wake_at` is reached.
    pub const PIPE_WANTED: usize = 80;
    /// [`crate::Request`] × [`crate::limits::REQUEST_RING_ENTRIES`].
    pub const REQUESTS: usize = 256;
}

/// Words of a channel in the status region, which the driver writes.
pub mod channel_status {
    /// u64: requests taken.
    pub const REQUEST_CONSUMER: usize = 0;
    /// u32: 0: the driver is looking; otherwise the number of its present sleep: write the doorbell
    /// eventfd once for each.
    pub const NEED_WAKEUP: usize = 64;
    /// u64: events written.
    pub const EVENT_PRODUCER: usize = 128;
    /// u32, futex: incremented with each wake-up.
    pub const EVENT_DOORBELL: usize = 136;
    /// u32: not 0: events wait for room; write the doorbell after reading some.
    pub const EVENTS_WAITING: usize = 140;
    /// [`crate::Event`] × [`crate::limits::EVENT_RING_ENTRIES`].
    pub const EVENTS: usize = 256;
}

/// Words of a socket's line in the control region, which the client writes.
///
/// The driver ignores the line until `generation` is the socket's: a slot is used again and again.
pub mod socket_control {
    /// u64: bytes given back by `pd_recv_done`; of a listener: connections accepted.
    pub const RECV_CONSUMER: usize = 0;
    /// u64: ring `recv_doorbell` when `recv_producer` reaches this, and when the stream ends.
    pub const RECV_WAKE_AT: usize = 8;
    /// u64: ring `send_doorbell` when `send_consumer` reaches this, and when the socket fails.
    pub const SEND_WAKE_AT: usize = 16;
    /// u32: not 0: post a `Ready` event with every such ring, and with everything received.
    pub const SUBSCRIBED: usize = 24;
    /// u32: number of the last `Ready` event taken note of.
    pub const EVENT_ACK: usize = 28;
    /// u32: the socket's generation, written last when a socket is taken into use.
    pub const GENERATION: usize = 32;
}

/// Words of a socket's line in the status region, which the driver writes.
pub mod socket_status {
    /// u64: bytes delivered to the receive ring; of a listener: connections that ever entered the
    /// backlog. Byte n of the stream lies at offset n modulo the ring's size.
    pub const RECV_PRODUCER: usize = 0;
    /// u64: send requests whose span may be reused.
    pub const SEND_CONSUMER: usize = 8;
    /// u64: write `Operation::Space` when `recv_consumer` reaches this; 0: no need.
    pub const SPACE_WAKE_AT: usize = 16;
    /// u32, futex.
    pub const RECV_DOORBELL: usize = 24;
    /// u32, futex.
    pub const SEND_DOORBELL: usize = 28;
    /// u32: how receiving ended: 0 it did not, [`super::ENDED`] in order, otherwise an errno.
    pub const RECV_END: usize = 32;
    /// u32: how sending ended, likewise.
    pub const SEND_END: usize = 36;
    /// u32: number of the last `Ready` event posted.
    pub const EVENT_NUMBER: usize = 40;
    /// u32: region that the receive ring lies in. Valid while `recv_producer` > `recv_consumer`.
    pub const RING_REGION: usize = 44;
    /// u32: first page of the receive ring in that region.
    pub const RING_PAGE: usize = 48;
    /// u32: pages of the receive ring; a power of two.
    pub const RING_PAGES: usize = 52;
    /// u32: the socket's generation; 0: no socket.
    pub const GENERATION: usize = 56;
    /// u32: how the connection's bytes travel: a [`super::path`] word. Written before the socket is
    /// connected, and once more when the peer's direct ring is there.
    pub const PATH: usize = 60;
}

/// Values of [`socket_status::PATH`].
pub mod path {
    /// The driver moves the bytes. Also of sockets that are not connected.
    pub const OFFLOADED: u32 = 0;
    /// The bytes lie in rings that the two clients share.
    pub const DIRECT: u32 = 1;
    /// Added to `DIRECT`: the peer has made its ring.
    pub const PEER_READY: u32 = 2;
    /// Added to `DIRECT`: the connection is offloaded again. Nothing is written into the own ring any more (see
    /// `Operation::Left`). Of the peer's ring no more is read than has come by now, until `LAST` says where it ends.
    pub const LEFT: u32 = 4;
    /// Of a twin that has connected, and is offloaded: the other end has been claimed.
    pub const CLAIMED: u32 = 8;
    /// Added to `LEFT`: the peer writes nothing more into its ring, and what lies there is the last.
    pub const LAST: u32 = 16;
    /// Added to `DIRECT`: what this side sends stays offloaded, because its peer receives no bytes that the sender can
    /// still change (see `SocketOption::ReceivesShared`).
    pub const SENDS_OFFLOADED: u32 = 32;
    /// Added to `DIRECT`: the policy says that the two sides trust each other. Bytes may be lent where the peer wrote them.
    pub const TRUSTED: u32 = 64;
}

/// The index page of a direct ring: the first page of a memory file that one client of a connection
/// writes (its owner) and that the other, like the driver, can only read. The ring follows in the same
/// file. All that one side writes lies in its own file, so that every page has one writer.
///
/// Words of different readers or of different rhythm lie 128 bytes apart: processors fetch lines in pairs.
pub mod direct {
    /// u64: bytes that the owner has written. Byte n lies at offset n modulo the ring's size.
    pub const PRODUCER: usize = 0;
    /// u64: sends that they were.
    pub const MESSAGES: usize = 8;
    /// u64: bytes of the peer's ring that the owner has given back.
    pub const CONSUMER: usize = 128;
    /// u64: the owner receives: ring `recv_doorbell` when `producer` reaches this.
    pub const RECV_WAKE_AT: usize = 256;
    /// u64: the owner sends: ring `send_doorbell` when `consumer` reaches this.
    pub const SEND_WAKE_AT: usize = 264;
    /// u64: the owner receives: have the driver post a `Ready` event (`Operation::Nudge`) when
    /// `producer` reaches this.
    pub const RECV_EVENT_AT: usize = 272;
    /// u64: the owner sends: likewise, when `consumer` reaches this.
    pub const SEND_EVENT_AT: usize = 280;
    /// u32: not 0: the peer need not fence between `producer` and its look at the two words for
    /// receiving: the owner makes it, before each sleep, by a barrier of the kernel.
    pub const RECV_UNFENCED: usize = 288;
    /// u32: the same of `consumer` and the two words for sending.
    pub const SEND_UNFENCED: usize = 292;
    /// u32: not 0: such barriers reach the owner.
    pub const BARRIERS: usize = 296;
    /// u64: not 0: the owner sleeps on the bell of this number. Who has it (`FrameKind::PeerBell`) rings it instead of having the
    /// driver post an event.
    pub const BELL: usize = 304;
    /// u32, futex: incremented to wake the peer's receiver.
    pub const RECV_DOORBELL: usize = 384;
    /// u32, futex: incremented to wake the peer's sender.
    pub const SEND_DOORBELL: usize = 388;
}

/// `recv_end`, `send_end`: ended in order. Above every errno.
pub const ENDED: u32 = 1 << 16;

/// The same of a twin: the rest of the stream goes over the kernel's connection.
pub const ELSEWHERE: u32 = ENDED + 1;

/// Distance from one channel to the next.
pub const CHANNEL_STRIDE: usize = 9 * PAGE_BYTES;
/// First channel.
pub const CHANNELS_OFFSET: usize = PAGE_BYTES;
/// First socket line.
pub const SOCKETS_OFFSET: usize = CHANNELS_OFFSET + CHANNELS_MAX * CHANNEL_STRIDE;
/// Distance from one socket line to the next.
pub const SOCKET_STRIDE: usize = LINE_BYTES;
/// Size of the control region and of the status region. Pages come into being when they are used.
pub const REGION_BYTES: usize = SOCKETS_OFFSET + SOCKETS_MAX * SOCKET_STRIDE;

/// Offset of channel `index`.
pub const fn channel_offset(index: usize) -> usize {
    CHANNELS_OFFSET + index * CHANNEL_STRIDE
}

/// Offset of the line of socket `slot`.
pub const fn socket_offset(slot: u16) -> usize {
    SOCKETS_OFFSET + slot as usize * SOCKET_STRIDE
}

const _: () = {
    assert!(
        channel_control::REQUESTS + REQUEST_RING_ENTRIES as usize * size_of::<Request>() <= CHANNEL_STRIDE
    );
    assert!(channel_status::EVENTS + EVENT_RING_ENTRIES as usize * size_of::<Event>() <= CHANNEL_STRIDE);
    assert!(SOCKETS_OFFSET % PAGE_BYTES == 0 && REGION_BYTES % PAGE_BYTES == 0);
    // Producer and consumer words of one channel never share a cache line.
    assert!(channel_control::EVENT_CONSUMER - channel_control::REQUEST_PRODUCER >= LINE_BYTES);
    assert!(channel_status::EVENT_PRODUCER - channel_status::REQUEST_CONSUMER >= 2 * LINE_BYTES);
    assert!(header::FILES + 4 * FILES_MAX <= PAGE_BYTES);
    assert!(control_header::FILE_USES + 4 * FILES_MAX <= control_header::KERNEL_COUNTS);
    assert!(control_header::KERNEL_COUNTS + 4 * KERNEL_REASONS <= control_header::KERNEL_CONNECTIONS);
    assert!(control_header::KERNEL_CONNECTIONS + 8 * KERNEL_CONNECTIONS_MAX <= PAGE_BYTES);
    assert!(socket_status::PATH + 4 <= SOCKET_STRIDE);
    assert!(direct::SEND_DOORBELL + 4 <= PAGE_BYTES);
    assert!(socket_control::GENERATION + 4 <= SOCKET_STRIDE);
};
