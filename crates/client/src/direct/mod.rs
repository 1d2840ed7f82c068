//! The direct path: a connection whose bytes lie in rings that the two clients share, one for each direction.
//!
//! The sender copies into the ring that it writes, or writes its bytes there ([`send`]); the receiver is lent the bytes
//! where they are ([`recv`]). The driver makes the rings ([`setup`]), passes on events where there is no doorbell, and ends the
//! connection; it takes no part otherwise. The rings, their bounds and how the two wake each other are [`pd_shm::byte_ring`]'s.
//! [`wait`] is a sleep that the driver may end, too, [`backoff`] is how a receiver polls, and [`doorbell`] how one side wakes a
//! thread of the other that sleeps in epoll.
//!
//! The peer is not trusted. Its words are loaded once and bounded, and what cannot be ends the connection. It can change
//! bytes that it has sent until they are given back, so a program is never shown them where they lie, unless the policy says
//! that the two trust each other or the program has asked for it ([`crate::core::Socket::set_receives_shared`]): for other
//! programs what was received is copied first, once, also what was only peeked at. A connection that the driver has ended, or
//! whose driver has gone, ends here, too, whatever the peer goes on writing.
mod arrival;
mod backoff;
mod doorbell;
pub(crate) mod incoming;
pub(crate) mod outgoing;
mod recv;
mod send;
pub(crate) mod setup;
mod vacancy;
mod wait;

pub(crate) use wait::Noticing;

/// Bytes of a stream between two checks that the driver is there. A side that always finds bytes or room never sleeps,
/// and a sleep is the other time of the check.
const ALIVE_BYTES: u64 = 4 << 20;
