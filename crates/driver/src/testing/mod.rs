//! A mover against a client that writes any value to any place it can: the oracle of the property tests below
//! and of `fuzz/fuzz_targets/requests.rs`. It sees the mover only through [`crate::mover::testing`].
//!
//! Three clients share one mover, or move among three, without their conductor (this harness answers for it):
//!
//! ```text
//! A (hostile)  slot 0 ──flow 0──▶ slot 1  B  slot 0 ──flow 2──▶ slot 0  C
//!                     ◀──flow 1──                   ◀──flow 3──
//! ```
//!
//! A program is a string of bytes: words and requests that A writes into its control region, turns of the
//! mover, time, sends and receives of B and C, and messages of a conductor about A. Whatever it does: no
//! panic, and bounded work. B and C get every byte of each other's streams in order. B gets from A bytes of
//! A's own region only. Nothing outside a receive ring is written. Only A is ever accused, and once accused
//! it is gone in bounded time.
#[cfg(test)]
mod aside;
#[cfg(test)]
mod attacks;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod fair;
mod movers;
mod peers;
mod program;
#[cfg(test)]
mod rates;
mod world;

use crate::clock::Clock;
use crate::ids::{ClientId, FlowId, MoverId, Slot, TenantId};
use crate::mailbox::{Mailbox, Outbox};
use crate::memory::{Amounts, ClientMemory, HugepageUse, Pool};
use crate::messages::{
    payer, Endpoint, Finish, NewChannel, NewFlow, Permit, Ring, SendEnd, ToConductor, ToMover, Violation,
};
use crate::metrics::Metrics;
use crate::mover::{Mover, MoverSettings};
use crate::policy::WEIGHT_MAX;
use pd_abi::layout::{
    channel_control, channel_offset, channel_status, socket_control, socket_offset, socket_status, ENDED,
    REGION_BYTES,
};
use pd_abi::limits::{EVENT_RING_ENTRIES, PAGE_BYTES, REQUEST_RING_ENTRIES};
use pd_abi::{Event, EventKind, Operation, Request, SocketId, Span};
use pd_shm::ring::{Consumer, Producer, SharedCells};
use pd_shm::{memfd, Mapping, Protection};
use peers::{Line, Party, Peer};
use program::Program;
use rustix::event::{eventfd, EventfdFlags};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use world::{region_bytes, word, ManualClock};

const A: ClientId = ClientId::new(0);
const B: ClientId = ClientId::new(1);
const C: ClientId = ClientId::new(2);
const FIRST: Slot = Slot::new(0);
const SECOND: Slot = Slot::new(1);
const A_TO_B: FlowId = FlowId::new(0);
const B_TO_A: FlowId = A_TO_B.peer();
const B_TO_C: FlowId = FlowId::new(2);
const C_TO_B: FlowId = B_TO_C.peer();
const FLOWS: [FlowId; 4] = [A_TO_B, B_TO_A, B_TO_C, C_TO_B];
/// Channels of the hostile client; the others have one.
const CHANNELS_OF_A: usize = 2;
const GENERATION: u16 = 7;
const SEND_RING_BYTES: u64 = 16 << 10;
const SEND_REGION_BYTES: usize = 4 * PAGE_BYTES;
/// Period of the streams of B and C: no power of two, so that a wrong page shows.
const PERIOD: u64 = 4093;
const SEND_BYTES_MAX: u64 = SEND_REGION_BYTES as u64 - PERIOD;
const RING_PAGES: u32 = 2;
const RING_BYTES: u64 = RING_PAGES as u64 * PAGE_BYTES as u64;
const GUARD_PAGES: u32 = 1;
const GUARD: u64 = 0xEEEE_EEEE_EEEE_EEEE;
/// Range of all bytes in A's region.
const MARKS: std::ops::Range<u8> = 0x10..0x3F;
/// Most turns until a mover rests, for any input.
const TURNS_MAX: usize = 20_000;
const RESET: u32 = Errno::CONNRESET.raw_os_error() as u32;

/// Runs a program.
///
/// # Panics
/// If the mover violates one of these rules.
pub fn run(program: &[u8]) {
    let Some((&first, rest)) = program.split_first() else { return };
    let engine = match first % 4 {
        0 => "fault:seed=1,fail=200,delay=3,reorder",
        _ => "cpu",
    };
    let mut world = World::with_movers(engine, if first / 4 % 2 == 0 { 1 } else { 3 });
    let mut program = Program(rest);
    while !program.0.is_empty() {
        world.apply(&mut program);
    }
    world.finish();
}

struct World {
    clock: Arc<ManualClock>,
    mover: Mover,
    /// Further movers, in some tests.
    others: Vec<Mover>,
    inbox: movers::Inboxes,
    outbox: Arc<Mailbox<ToConductor>>,
    parties: Vec<Party>,
    peers: Vec<Peer>,
    /// Requests that A has published, by its own count, by channel.
    published: [u64; CHANNELS_OF_A],
    /// By flow: whether the flow holds a ring.
    rings: [bool; 4],
    /// By flow: rings that the flow has given back.
    rings_given: [u32; 4],
    /// Flows that were denied a ring.
    denied: Vec<FlowId>,
    deny: u8,
    violation: Option<Violation>,
    disconnected: bool,
    closed: bool,
    gone: bool,
    /// Movers that have forgotten A.
    forgotten: usize,
    flows_done: [bool; 4],
    /// The reader of A's wake pipe.
    pipe: Option<OwnedFd>,
}
