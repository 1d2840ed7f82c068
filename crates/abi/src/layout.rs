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
use crate::declare::{constants, words};
use crate::limits::{
    CHANNELS_MAX, EVENT_RING_ENTRIES, FILES_MAX, KERNEL_CONNECTIONS_MAX, LINE_BYTES, PAGE_BYTES,
    REQUEST_RING_ENTRIES, SOCKETS_MAX,
};
use crate::{Event, Request, KERNEL_REASONS};

words! {
    /// Words of the header of the status region.
    mod header in PAGE_BYTES {
        /// [`crate::MAGIC`].
        MAGIC: u64 = 0;
        /// [`crate::VERSION`].
        VERSION: u32 = 8;
        /// The client's number.
        CLIENT: u32 = 12;
        /// Twins that the client may find when it accepts: made towards its listeners, and not yet claimed
        /// or withdrawn. Counted before the connecting client learns of its twin, so that 0 says that no
        /// connection which the kernel has accepted has one.
        CLAIMABLE: u32 = 16;
        /// Not 0: for a while more threads have wanted to run on this machine than it has cores. A wait then sleeps rather than spins.
        CORES_SCARCE: u32 = 20;
        /// The [`crate::FileId`] of each slot with an open file that may be sent; 0: none. See
        /// [`super::control_header::FILE_USES`].
        FILES: [u32; FILES_MAX] = 64;
    }
}

words! {
    /// Words of the header of the control region.
    mod control_header in PAGE_BYTES {
        /// Sends of the file of each slot, since it was opened. The client counts one, fences, looks whether
        /// the slot is still the file's, and only then sends; the driver closes a file by clearing the slot,
        /// fencing, and looking whether it has taken as many sends as were counted: if not, it stays open.
        FILE_USES: [u32; FILES_MAX] = 64;
        /// Connections of the process that are or were the kernel's, for each [`crate::KernelReason`]. They
        /// only grow.
        KERNEL_COUNTS: [u32; KERNEL_REASONS] = 384;
        /// The inode of such a connection's socket in the lower half, its [`crate::KernelReason`] in the upper;
        /// 0: none.
        KERNEL_CONNECTIONS: [u64; KERNEL_CONNECTIONS_MAX] = 512;
    }
}

words! {
    /// Words of a channel in the control region, which the client writes.
    mod channel_control in CHANNEL_STRIDE {
        /// Requests written.
        REQUEST_PRODUCER: u64 = 0;
        /// Events read.
        EVENT_CONSUMER: u64 = 64;
        /// Ring `event_doorbell` when `event_producer` reaches this.
        EVENT_WAKE_AT: u64 = 72;
        /// Not 0: also write the wake pipe when `event_wake_at` is reached.
        PIPE_WANTED: u32 = 80;
        /// Ring `sync_doorbell` when `synced` reaches this.
        SYNC_WAKE_AT: u64 = 88;
        /// The entries.
        REQUESTS: [Request; REQUEST_RING_ENTRIES as usize] = 256;
    }
}

words! {
    /// Words of a channel in the status region, which the driver writes.
    mod channel_status in CHANNEL_STRIDE {
        /// Requests taken.
        REQUEST_CONSUMER: u64 = 0;
        /// 0: the driver is looking; otherwise the number of its present sleep: write the doorbell eventfd once
        /// for each.
        NEED_WAKEUP: u32 = 64;
        /// Events written.
        EVENT_PRODUCER: u64 = 128;
        /// Futex: incremented with each wake-up.
        EVENT_DOORBELL: u32 = 136;
        /// Not 0: events wait for room; write the doorbell after reading some.
        EVENTS_WAITING: u32 = 140;
        /// The largest number of a [`crate::Operation::Sync`] that was carried out.
        SYNCED: u64 = 144;
        /// Futex: incremented with each wake-up.
        SYNC_DOORBELL: u32 = 152;
        /// The entries.
        EVENTS: [Event; EVENT_RING_ENTRIES as usize] = 256;
    }
}

words! {
    /// Words of a socket's line in the control region, which the client writes.
    ///
    /// The driver ignores the line until `generation` is the socket's: a slot is used again and again.
    mod socket_control in SOCKET_STRIDE {
        /// Bytes given back by `pd_recv_done`; of a listener: connections accepted.
        RECV_CONSUMER: u64 = 0;
        /// Ring `recv_doorbell` when `recv_producer` reaches this, and when the stream ends.
        RECV_WAKE_AT: u64 = 8;
        /// Ring `send_doorbell` when `send_consumer` reaches this, and when the socket fails.
        SEND_WAKE_AT: u64 = 16;
        /// Not 0: post a `Ready` event with every such ring, and with everything received.
        SUBSCRIBED: u32 = 24;
        /// Number of the last `Ready` event acknowledged.
        EVENT_ACK: u32 = 28;
        /// The socket's generation, written last when a socket is taken into use.
        GENERATION: u32 = 32;
    }
}

words! {
    /// Words of a socket's line in the status region, which the driver writes.
    mod socket_status in SOCKET_STRIDE {
        /// Bytes delivered to the receive ring; of a listener: connections that ever entered the backlog. Byte
        /// n of the stream lies at offset n modulo the ring's size.
        RECV_PRODUCER: u64 = 0;
        /// Send requests whose span may be reused.
        SEND_CONSUMER: u64 = 8;
        /// Write `Operation::Space` when `recv_consumer` reaches this; 0: no need. Of a socket that another client has taken: bytes that
        /// it has received; see [`super::moved`].
        SPACE_WAKE_AT: u64 = 16;
        /// Futex: incremented to wake a receiver.
        RECV_DOORBELL: u32 = 24;
        /// Futex: incremented to wake a sender.
        SEND_DOORBELL: u32 = 28;
        /// End of receiving: 0 if it goes on, [`super::ENDED`] if the stream ended in order, otherwise an errno. `ESTALE` in the lower 16
        /// bits: another client has taken the socket; see [`super::moved`].
        RECV_END: u32 = 32;
        /// End of sending, likewise. `ESTALE` in the lower 16 bits: another client has taken the socket; see [`super::moved`].
        SEND_END: u32 = 36;
        /// Number of the last `Ready` event posted.
        EVENT_NUMBER: u32 = 40;
        /// Region that the receive ring lies in. Valid while `recv_producer` > `recv_consumer`.
        RING_REGION: u32 = 44;
        /// First page of the receive ring in that region.
        RING_PAGE: u32 = 48;
        /// Pages of the receive ring; a power of two.
        RING_PAGES: u32 = 52;
        /// The socket's generation; 0: no socket.
        GENERATION: u32 = 56;
        /// Path of the connection's bytes: a [`super::path`] word. Written before the socket is connected,
        /// and once more when the peer's direct ring is there.
        PATH: u32 = 60;
    }
}

/// [`socket_status::SEND_END`] of a socket that another client has taken. Its lower half is `errno` (`ESTALE`), its upper half tells
/// how many sends the driver has taken: `sends`, modulo 65,535, and 1; or 0 as long as that is open. A send that was posted
/// before its sender saw the word may or may not be among them. A sender reads the word after each post, behind a fence.
///
/// [`socket_status::RECV_END`] has the same form. Its upper half is not 0 once [`socket_status::SPACE_WAKE_AT`] holds the bytes that
/// the socket has received. The new owner receives all further ones, also those that the socket's client gives back later. A
/// receiver reads the word after it has given bytes back, behind a fence.
pub mod moved {
    const COUNT: u64 = 65_535;

    /// The word, of `sends` taken in all; none: not known yet.
    pub fn word(errno: u16, sends: Option<u64>) -> u32 {
        let sends = sends.map_or(0, |sends| (sends % COUNT) as u32 + 1);
        sends << 16 | u32::from(errno)
    }

    /// The word of `RECV_END`. `known`: the bytes that were received are there.
    pub fn received(errno: u16, known: bool) -> u32 {
        word(errno, known.then_some(0))
    }

    /// Tells whether the bytes that were received are there.
    pub fn is_known(word: u32) -> bool {
        word >> 16 != 0
    }

    /// Tells whether this is such a word.
    pub fn is_one(word: u32, errno: u16) -> bool {
        word as u16 == errno
    }

    /// Tells whether the last of `posted` sends was taken, of which all but that are known to be; none: not known yet.
    pub fn is_last_taken(word: u32, posted: u64) -> Option<bool> {
        let sends = (word >> 16).checked_sub(1)?;
        Some(sends == (posted % COUNT) as u32)
    }
}

/// Values of [`socket_status::PATH`].
pub mod path {
    use crate::declare::constants;

    constants! {
        PATHS:
        /// The driver moves the bytes. Also of sockets that are not connected.
        OFFLOADED: u32 = 0;
        /// The bytes lie in rings that the two clients share.
        DIRECT: u32 = 1;
        /// Added to `DIRECT`: the peer has made its ring.
        PEER_READY: u32 = 2;
        /// Added to `DIRECT`: the connection is offloaded again. This side writes nothing more into its ring (see
        /// `Operation::Left`), and reads of the peer's ring only what is there, until `LAST` says where it ends.
        LEFT: u32 = 4;
        /// Of a twin that has connected, and is offloaded: the other end has been claimed.
        CLAIMED: u32 = 8;
        /// Added to `LEFT`: the peer writes nothing more into its ring, so that its end is known.
        LAST: u32 = 16;
        /// Added to `DIRECT`: what this side sends stays offloaded, because its peer receives no bytes that the sender can
        /// still change (see `SocketOption::ReceivesShared`).
        SENDS_OFFLOADED: u32 = 32;
        /// Added to `DIRECT`: the policy says that the two sides trust each other. Bytes may be lent where the peer wrote them.
        TRUSTED: u32 = 64;
        /// Of a twin that was another client's: the driver has still to bring bytes that a previous client of the socket was brought and
        /// has not read. The peer's ring is not read before them.
        RECV_UNDRAINED: u32 = 128;
        /// Of a twin that was another client's: the driver has still to deliver what a previous client of the socket has sent. What this
        /// side sends goes by the driver until then.
        SEND_UNDRAINED: u32 = 256;
        /// Added to `LAST`: the peer's side went to another client, and the driver has fixed where the ring ends
        /// (`FrameKind::RingEnds`).
        PEER_TAKEN: u32 = 512;
        /// This side went to another client while there were rings. Bytes beyond the ends that the driver has fixed
        /// (`FrameKind::RingEnds`) are not sent, and not received. The upper half of the word has no other bit.
        TAKEN: u32 = 1 << 16;
    }
}

words! {
    /// The index page of a direct ring: the first page of a memory file that one client of a connection
    /// writes (its owner) and that the other, like the driver, can only read. The ring follows in the same
    /// file. All that one side writes lies in its own file, so that every page has one writer.
    ///
    /// Words of different readers or of different rhythm lie 128 bytes apart: processors fetch lines in pairs.
    mod direct in PAGE_BYTES {
        /// Bytes that the owner has written. Byte n lies at offset n modulo the ring's size.
        PRODUCER: u64 = 0;
        /// Sends that these bytes were.
        MESSAGES: u64 = 8;
        /// Bytes that the owner is about to publish in `producer`. Needed where another client may take the socket: the owner stores the
        /// word, makes a fence unless it has registered for `membarrier`, and looks for [`super::path::TAKEN`] before it publishes.
        SENT: u64 = 16;
        /// Bytes of the peer's ring that the owner has given back.
        CONSUMER: u64 = 128;
        /// Bytes of the peer's ring that the owner is about to give back, likewise.
        RECEIVED: u64 = 136;
        /// The owner receives: ring `recv_doorbell` when `producer` reaches this.
        RECV_WAKE_AT: u64 = 256;
        /// The owner sends: ring `send_doorbell` when `consumer` reaches this.
        SEND_WAKE_AT: u64 = 264;
        /// The owner receives: have the driver post a `Ready` event (`Operation::Nudge`) when `producer`
        /// reaches this.
        RECV_EVENT_AT: u64 = 272;
        /// The owner sends: likewise, when `consumer` reaches this.
        SEND_EVENT_AT: u64 = 280;
        /// Not 0: the fence is asymmetric. The peer makes none between `producer` and its look at the two words
        /// for receiving; the owner makes it on all cores (`membarrier`) before each sleep.
        RECV_ASYMMETRIC: u32 = 288;
        /// Not 0: the fence between `consumer` and the peer's look at the two words for sending is asymmetric.
        SEND_ASYMMETRIC: u32 = 292;
        /// Not 0: the owner has registered for `membarrier`.
        BARRIERS: u32 = 296;
        /// Not 0: the owner sleeps on the doorbell of this number. A peer that has it (`FrameKind::PeerDoorbell`) rings it
        /// instead of a nudge.
        EPOLL_DOORBELL: u64 = 304;
        /// Futex: incremented to wake the peer's receiver.
        RECV_DOORBELL: u32 = 384;
        /// Futex: incremented to wake the peer's sender.
        SEND_DOORBELL: u32 = 388;
    }
}

constants! {
    ENDS:
    /// `recv_end`, `send_end`: ended in order. Above every errno.
    ENDED: u32 = 1 << 16;
    /// `send_end`: `EPIPE`, the peer has closed, and has not received all.
    LOST: u32 = 32;
    /// `recv_end`, `send_end` of a twin: the rest of the stream goes over the kernel's connection.
    ELSEWHERE: u32 = ENDED + 1;
    /// `send_end`: the peer has shut down receiving, and has not closed. What it has not read yet it may still read.
    SHUT: u32 = ENDED + 2;
}

constants! {
    PLACES:
    /// Distance from one channel to the next.
    CHANNEL_STRIDE: usize = 9 * PAGE_BYTES;
    /// First channel.
    CHANNELS_OFFSET: usize = PAGE_BYTES;
    /// First socket line.
    SOCKETS_OFFSET: usize = CHANNELS_OFFSET + CHANNELS_MAX * CHANNEL_STRIDE;
    /// Distance from one socket line to the next.
    SOCKET_STRIDE: usize = LINE_BYTES;
    /// Size of the control region and of the status region. Pages come into being when they are used.
    REGION_BYTES: usize = SOCKETS_OFFSET + SOCKETS_MAX * SOCKET_STRIDE;
}

/// Offset of channel `index`.
pub const fn channel_offset(index: usize) -> usize {
    CHANNELS_OFFSET + index * CHANNEL_STRIDE
}

/// Offset of the line of socket `slot`.
pub const fn socket_offset(slot: u16) -> usize {
    SOCKETS_OFFSET + slot as usize * SOCKET_STRIDE
}

const _: () = {
    assert!(SOCKETS_OFFSET % PAGE_BYTES == 0 && REGION_BYTES % PAGE_BYTES == 0);
    // Producer and consumer words of one channel never share a cache line.
    assert!(channel_control::EVENT_CONSUMER - channel_control::REQUEST_PRODUCER >= LINE_BYTES);
    assert!(channel_status::EVENT_PRODUCER - channel_status::REQUEST_CONSUMER >= 2 * LINE_BYTES);
};

#[cfg(test)]
mod tests {
    use super::moved::{is_last_taken, is_one, word};

    #[test]
    fn a_moved_word_tells_of_the_last_send() {
        const STALE: u16 = 116;
        for sends in [0, 1, 2, 65_533, 65_534, 65_535, 65_536, 1 << 32, u64::MAX - 1] {
            let known = word(STALE, Some(sends));
            assert!(is_one(known, STALE));
            assert_eq!(is_last_taken(known, sends), Some(true));
            assert_eq!(is_last_taken(known, sends + 1), Some(false), "{sends}");
        }
        assert_eq!(is_last_taken(word(STALE, None), 0), None);
        for other in [0, super::ENDED, super::ELSEWHERE, super::SHUT, 104] {
            assert!(!is_one(other, STALE));
        }
    }
}
