//! io_uring over kernel TCP. Messages are written in registered buffers; sends are linked, so that
//! they go out in order, and submitted in batches. The receiver reads into a registered buffer.
//!
//! On one host the kernel copies bytes sent "without a copy" when it delivers them to a local socket, veth
//! included (see its documentation of MSG_ZEROCOPY). Sends are therefore plain ones, which are faster
//! (`docs/results/baseline.md`), unless [`Open::zero_copy`] asks for `SEND_ZC`, for messages of 16 KB and more.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{ensure, Context, Result};
use io_uring::{cqueue, opcode, squeue, types, IoUring, Probe};

use super::memory::{Inbox, PageAligned};
use super::{single, socket, End, Scheme};
use crate::catalogue::Waiting;
use crate::protocol::Open;
use crate::waiting;

/// Messages from which sending without a copy is worth while.
const ZERO_COPY_BYTES: usize = 16 << 10;
/// Bytes of memory in which the sender writes messages in turn.
const WINDOW_BYTES: usize = 512 << 10;
/// Messages submitted together at most, and their bytes.
const BATCH: usize = 64;
const BATCH_BYTES: usize = 256 << 10;
/// Marks completions of receives; sends have the number of their buffer.
const RECV: u64 = u64::MAX;

/// A TCP listener.
pub struct Listening {
    tcp: socket::Listening,
    open: Open,
}

impl Listening {
    /// Listens on the own address.
    pub fn new(open: &Open) -> Result<Listening> {
        single(open)?;
        check()?;
        let open = Open { scheme: Scheme::Tcp, ..*open };
        Ok(Listening { tcp: socket::Listening::tcp(&open)?, open })
    }
}

fn check() -> Result<()> {
    IoUring::new(8).context("the kernel permits no io_uring; see sysctl kernel.io_uring_disabled")?;
    Ok(())
}

impl super::Listening for Listening {
    fn address(&self) -> Result<String> {
        self.tcp.address()
    }

    fn accept(self: Box<Self>, _from: &str) -> Result<Box<dyn End>> {
        Ok(Box::new(UringEnd::new(self.tcp.accept_all()?.remove(0), &self.open)?))
    }
}

/// Makes the connecting end.
pub fn connect(open: &Open, to: &str) -> Result<Box<dyn End>> {
    single(open)?;
    let open = Open { scheme: Scheme::Tcp, ..*open };
    Ok(Box::new(UringEnd::new(socket::connect_all(&open, to)?.remove(0), &open)?))
}

/// The state of a buffer of the window.
#[derive(Clone, Copy, Default)]
struct Slot {
    len: usize,
    /// The result is still to come.
    unsent: bool,
    /// The kernel may still read it.
    pinned: bool,
}

impl Slot {
    fn busy(&self) -> bool {
        self.unsent || self.pinned
    }
}

struct UringEnd {
    ring: IoUring,
    socket: OwnedFd,
    window: PageAligned,
    inbox: Inbox,
    message_bytes: usize,
    slots: Vec<Slot>,
    next: usize,
    prepared: usize,
    batch: usize,
    zero_copy: bool,
}

/// Submits queued entries, waits for `wanted` completions, and takes all available ones. Completions of sends
/// change their slots; that of a receive is returned.
fn take_completions(ring: &mut IoUring, slots: &mut [Slot], wanted: usize) -> Result<Option<i32>> {
    if waiting::get() == Waiting::Spins {
        ring.submit().context("io_uring submission failed")?;
        if !waiting::look(0, || ring.completion().len() >= wanted) {
            ring.submit_and_wait(wanted).context("io_uring submission failed")?;
            waiting::slept();
        }
    } else {
        ring.submit_and_wait(wanted).context("io_uring submission failed")?;
    }
    let mut received = None;
    for completion in ring.completion() {
        if completion.user_data() == RECV {
            received = Some(completion.result());
            continue;
        }
        let slot = &mut slots[completion.user_data() as usize];
        if cqueue::notif(completion.flags()) {
            slot.pinned = false;
            continue;
        }
        slot.unsent = false;
        // Without that flag nothing was pinned, and no notification follows.
        slot.pinned = cqueue::more(completion.flags());
        let sent = completion.result();
        ensure!(sent >= 0, "cannot send: {}", std::io::Error::from_raw_os_error(-sent));
        ensure!(sent as usize == slot.len, "io_uring sent {sent} of {} bytes", slot.len);
    }
    Ok(received)
}

impl UringEnd {
    fn new(socket: OwnedFd, open: &Open) -> Result<UringEnd> {
        let message_bytes = open.message_bytes;
        let count = (WINDOW_BYTES / message_bytes).clamp(2, 2 * BATCH);
        let ring = IoUring::builder().setup_single_issuer().build(4 * BATCH as u32);
        let ring = ring.or_else(|_| IoUring::new(4 * BATCH as u32));
        let ring = ring.context("the kernel permits no io_uring; see sysctl kernel.io_uring_disabled")?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).context("cannot ask what io_uring can do")?;
        let large = open.zero_copy && message_bytes >= ZERO_COPY_BYTES;
        let zero_copy = large && probe.is_supported(opcode::SendZc::CODE);
        let mut window = PageAligned::new(count * message_bytes);
        let mut inbox = Inbox::new(message_bytes);
        let buffers = [window.get(), inbox.whole_buffer()]
            .map(|memory| libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() });
        // SAFETY: both buffers are heap memory that neither moves nor is freed before the ring, which is
        // the first field and so the first to be dropped.
        unsafe { ring.submitter().register_buffers(&buffers) }
            .context("cannot register buffers with io_uring; raise ulimit -l")?;
        let batch = (BATCH_BYTES / message_bytes).clamp(1, BATCH).min(count / 2);
        Ok(UringEnd {
            ring,
            socket,
            window,
            inbox,
            message_bytes,
            slots: vec![Slot::default(); count],
            next: 0,
            prepared: 0,
            batch,
            zero_copy,
        })
    }

    /// Waits for `wanted` completions and takes all available ones.
    fn submit(&mut self, wanted: usize) -> Result<()> {
        take_completions(&mut self.ring, &mut self.slots, wanted)?;
        Ok(())
    }

    fn entry(&mut self, slot: usize, len: usize, last: bool) -> squeue::Entry {
        let fd = types::Fd(self.socket.as_raw_fd());
        let memory = self.window.get()[slot * self.message_bytes..].as_ptr();
        // MSG_WAITALL: a short send would break the chain, and with it the order.
        let entry = if self.zero_copy {
            opcode::SendZc::new(fd, memory, len as u32).buf_index(Some(0)).flags(libc::MSG_WAITALL).build()
        } else {
            opcode::Send::new(fd, memory, len as u32).flags(libc::MSG_WAITALL).build()
        };
        let entry = entry.user_data(slot as u64);
        if last {
            entry
        } else {
            entry.flags(squeue::Flags::IO_LINK)
        }
    }

    /// Waits until all sends before have a result: a new chain must not overtake the old one.
    fn await_results(&mut self) -> Result<()> {
        while self.slots.iter().any(|slot| slot.unsent) {
            self.submit(1)?;
        }
        Ok(())
    }
}

impl End for UringEnd {
    fn described(&self) -> String {
        rustix::net::sockopt::tcp_congestion(&self.socket).unwrap_or_default()
    }

    fn send(&mut self, _connection: usize, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let slot = self.next % self.slots.len();
        self.next += 1;
        while self.slots[slot].busy() {
            self.submit(1)?;
        }
        let start = slot * self.message_bytes;
        fill(&mut self.window.get()[start..start + len]);
        self.slots[slot].len = len;
        self.prepared += 1;
        if self.prepared >= self.batch {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let (count, prepared) = (self.slots.len(), self.prepared);
        self.await_results()?;
        for n in 0..prepared {
            let slot = (self.next - prepared + n) % count;
            let entry = self.entry(slot, self.slots[slot].len, n + 1 == prepared);
            self.slots[slot].unsent = true;
            // SAFETY: the entry points into the window, which lives as long as the ring, and `busy`
            // keeps the slot from being written until the kernel is done with it.
            unsafe { self.ring.submission().push(&entry) }.context("io_uring's queue is full")?;
        }
        self.prepared = 0;
        self.ring.submit().context("io_uring submission failed")?;
        Ok(())
    }

    fn recv(&mut self, _connection: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        self.await_results()?;
        let (ring, socket, slots) = (&mut self.ring, &self.socket, &mut self.slots);
        self.inbox.recv(
            |memory| {
                let fd = types::Fd(socket.as_raw_fd());
                let entry = opcode::ReadFixed::new(fd, memory.as_mut_ptr(), memory.len() as u32, 1).build();
                // SAFETY: `memory` is borrowed until the completion is taken, right below.
                unsafe { ring.submission().push(&entry.user_data(RECV)) }
                    .context("io_uring's queue is full")?;
                loop {
                    match take_completions(ring, slots, 1)? {
                        Some(n @ 0..) => return Ok(n as usize),
                        Some(e) => {
                            return Err(std::io::Error::from_raw_os_error(-e)).context("cannot receive")
                        }
                        // Notifications of sends before.
                        None => {}
                    }
                }
            },
            take,
        )
    }

    fn prefer_latency(&mut self) -> Result<()> {
        self.batch = 1;
        rustix::net::sockopt::set_tcp_nodelay(&self.socket, true)?;
        Ok(())
    }
}

impl Drop for UringEnd {
    fn drop(&mut self) {
        // Memory that the kernel still reads must not be freed.
        while self.slots.iter().any(Slot::busy) {
            if self.submit(1).is_err() {
                break;
            }
        }
    }
}
