//! `process_vm_readv`: the receiver copies each message out of the sender's memory, once, knowing
//! its address. The kernel checks that it may trace the sender; nothing else is checked.
//!
//! Addresses travel as 16-byte descriptors in a shared ring, which the receiver gives back after copying. One
//! call takes up to 64 descriptors.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;

use anyhow::{bail, ensure, Context, Result};

use super::memory::PageAligned;
use super::shm_ring::{Listening, Pair};
use super::{single, End};
use crate::protocol::Open;

/// Bytes of memory in which the sender writes messages in turn.
const WINDOW_BYTES: usize = 2 << 20;
const DESCRIPTOR_BYTES: usize = 16;
/// Most descriptors of one call.
const BATCH: usize = 64;
/// The receiver copies at most this much at a time, or one message.
const COPY_BYTES: usize = 256 << 10;

/// Returns the number of messages in the window. The ring has as many descriptors, so that one limits the other.
fn window_messages(message_bytes: usize) -> usize {
    (WINDOW_BYTES / message_bytes).clamp(2, 4096)
}

fn ring_bytes(open: &Open) -> usize {
    window_messages(open.message_bytes) * DESCRIPTOR_BYTES
}

/// Makes the listening end: rings of descriptors.
pub fn listen(open: &Open, dir: &Path) -> Result<Listening> {
    Listening::new(open, dir, "descriptors", ring_bytes(open), end)
}

/// Makes the connecting end.
pub fn connect(open: &Open, to: &str) -> Result<Box<dyn End>> {
    single(open)?;
    Ok(end(Pair::open(Path::new(to), ring_bytes(open))?, open))
}

/// Makes an end that knows the other's process.
fn end(pair: Pair, open: &Open) -> Box<dyn End> {
    let mut end = VmEnd::new(pair, open);
    end.introduce();
    let mut pid = 0;
    end.pair.back.consume(DESCRIPTOR_BYTES, &mut |bytes| pid = word(&bytes[..8]) as i32);
    end.peer = pid;
    Box::new(end)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
}

struct VmEnd {
    pair: Pair,
    peer: i32,
    message_bytes: usize,
    window: PageAligned,
    next: usize,
    inbox: PageAligned,
    remote: Vec<libc::iovec>,
}

impl VmEnd {
    fn new(pair: Pair, open: &Open) -> VmEnd {
        let message_bytes = open.message_bytes;
        VmEnd {
            pair,
            peer: 0,
            message_bytes,
            window: PageAligned::new(window_messages(message_bytes) * message_bytes),
            next: 0,
            inbox: PageAligned::new(COPY_BYTES.max(message_bytes)),
            remote: Vec::with_capacity(BATCH),
        }
    }

    fn describe(&mut self, address: u64, len: u64) {
        self.pair.out.produce(DESCRIPTOR_BYTES, &mut |bytes| {
            bytes[..8].copy_from_slice(&address.to_ne_bytes());
            bytes[8..].copy_from_slice(&len.to_ne_bytes());
        });
    }

    /// Tells the other side this process's number, and permits it to read from this process.
    fn introduce(&mut self) {
        // SAFETY: sets a flag of this process. It fails without the Yama module, which then forbids nothing.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::MAX, 0, 0, 0) };
        self.describe(u64::from(std::process::id()), 0);
    }
}

/// Copies the ranges `remote` of the process `pid` to `local`.
fn copy(pid: i32, remote: &[libc::iovec], local: &mut [u8]) -> Result<()> {
    let to = libc::iovec { iov_base: local.as_mut_ptr().cast(), iov_len: local.len() };
    // SAFETY: `to` describes `local`, which is borrowed mutably; the addresses in `remote` are of another
    // process, and the kernel checks them.
    let n = unsafe { libc::process_vm_readv(pid, &to, 1, remote.as_ptr(), remote.len() as u64, 0) };
    if n < 0 {
        let error = io::Error::last_os_error();
        bail!("process_vm_readv from process {pid} failed: {error}; CAP_SYS_PTRACE is needed");
    }
    ensure!(n as usize == local.len(), "process_vm_readv copied {n} of {} bytes", local.len());
    Ok(())
}

impl End for VmEnd {
    fn send(&mut self, _connection: usize, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let slots = window_messages(self.message_bytes);
        // There are as many slots as descriptors in the ring. If there is room for the descriptor, its
        // predecessor of one lap ago was given back, and its slot with it.
        let slot = self.next % slots * self.message_bytes;
        let address = self.window.get()[slot..].as_ptr() as u64;
        let window = &mut self.window;
        self.pair.out.reserve(DESCRIPTOR_BYTES, &mut |bytes| {
            fill(&mut window.get()[slot..slot + len]);
            bytes[..8].copy_from_slice(&address.to_ne_bytes());
            bytes[8..].copy_from_slice(&(len as u64).to_ne_bytes());
        });
        self.pair.out.publish();
        self.next += 1;
        Ok(())
    }

    fn recv(&mut self, _connection: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        let batch = (self.inbox.get().len() / self.message_bytes).clamp(1, BATCH);
        let (peer, inbox, remote) = (self.peer, &mut self.inbox, &mut self.remote);
        let mut copied = Ok(0);
        self.pair.back.consume(batch * DESCRIPTOR_BYTES, &mut |bytes| {
            remote.clear();
            let descriptors = bytes.chunks_exact(DESCRIPTOR_BYTES);
            remote.extend(descriptors.map(|d| libc::iovec {
                iov_base: word(&d[..8]) as *mut libc::c_void,
                iov_len: word(&d[8..]) as usize,
            }));
            let len = remote.iter().map(|piece| piece.iov_len).sum::<usize>();
            // Given back only when the bytes are copied, for then the sender writes there again.
            copied = copy(peer, remote, &mut inbox.get()[..len]).map(|()| len);
        });
        let len = copied.context("cannot receive")?;
        take(&inbox.get()[..len]);
        Ok(len)
    }
}
