//! The engine that is always there: the CPU of the thread that calls it.

use crate::{Capability, Engine, EngineError, QueuePair};
use pd_abi::{limits::QUEUE_DEPTH, Command, CommandStatus, CommandType};
use pd_shm::copy::{copy, prefetch};

/// The `cpu` engine: copies on the caller's CPU, in [`reap`](QueuePair::reap).
///
/// Each queue pair is one array of 1,024 commands in private memory, submission and completion queue in one.
/// `submit` only stores commands. `reap` carries them out in order and hands each back at once, so that the
/// caller bounds the copying by the room that it offers. One call stops after the command that brings it to
/// 256 KB (some 30 µs).
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {}

impl Cpu {
    /// Makes the engine. The engine holds nothing, and takes any number of queue pairs.
    pub const fn new() -> Self {
        Self {}
    }

    /// Copies `len` bytes from `src` to `dst` before it returns, as a queue pair of this engine would. Commands in a
    /// queue pair keep their own order: copies whose order matters must go one way only.
    ///
    /// # Safety
    ///
    /// `len` bytes at `src` are readable, and `len` bytes at `dst` writable, and the two are disjoint. Other processes
    /// may write the source meanwhile; nobody else writes the destination.
    #[inline]
    pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { copy(dst, src, len) }
    }
}

/// Most bytes of one command, and the bytes after which a reap returns.
const CHUNK_BYTES_MAX: u32 = 256 << 10;

/// While one command is carried out, the beginnings of the one this many places behind it are fetched.
const AHEAD: usize = 4;

impl Engine for Cpu {
    fn capability(&self) -> Capability {
        Capability {
            name: "cpu",
            chunk_bytes_max: CHUNK_BYTES_MAX,
            queue_depth: QUEUE_DEPTH,
            ordered: true,
            synchronous: true,
        }
    }

    fn queue_pair(&self) -> Result<Box<dyn QueuePair>, EngineError> {
        Ok(Box::new(CpuQueue {
            entries: Box::new([Command::default(); QUEUE_DEPTH]),
            producer_index: 0,
            consumer_index: 0,
        }))
    }
}

/// Entries from `consumer_index` up to `producer_index` (both run freely) wait for their copy.
struct CpuQueue {
    entries: Box<[Command; QUEUE_DEPTH]>,
    producer_index: usize,
    consumer_index: usize,
}

impl QueuePair for CpuQueue {
    unsafe fn submit(&mut self, commands: &[Command]) -> usize {
        let accepted = commands.len().min(QUEUE_DEPTH - self.in_flight());
        let first = self.producer_index % QUEUE_DEPTH;
        let straight = accepted.min(QUEUE_DEPTH - first);
        self.entries[first..first + straight].copy_from_slice(&commands[..straight]);
        self.entries[..accepted - straight].copy_from_slice(&commands[straight..accepted]);
        self.producer_index = self.producer_index.wrapping_add(accepted);
        accepted
    }

    fn reap(&mut self, completions: &mut [Command]) -> usize {
        let mut reaped = 0;
        let mut bytes = 0;
        for completion in completions.iter_mut().take(self.in_flight()) {
            let command = self.entries[self.consumer_index % QUEUE_DEPTH];
            self.consumer_index = self.consumer_index.wrapping_add(1);
            if self.in_flight() >= AHEAD {
                let next = &self.entries[self.consumer_index.wrapping_add(AHEAD - 1) % QUEUE_DEPTH];
                prefetch(next.dst_addr, next.src_addr);
            }
            let status = match check(&command) {
                CommandStatus::Ok => {
                    // SAFETY: the command was submitted and neither reaped nor its pair dropped, so the
                    // promise made to `submit` holds; type, length and addresses have just been checked.
                    unsafe { execute(&command) };
                    CommandStatus::Ok
                }
                bad => bad,
            };
            *completion = Command {
                request_type: CommandType::GeneralCompleted as u8,
                status: status as u8,
                ..command
            };
            reaped += 1;
            bytes += command.data_len as usize;
            if bytes >= CHUNK_BYTES_MAX as usize {
                break;
            }
        }
        reaped
    }

    fn in_flight(&self) -> usize {
        self.producer_index.wrapping_sub(self.consumer_index)
    }
}

/// Returns the status of a command that follows without touching the memory that it names.
fn check(command: &Command) -> CommandStatus {
    let fits = |addr: u64| {
        addr != 0 && addr.checked_add(command.data_len.into()).is_some_and(|end| end <= usize::MAX as u64)
    };
    if command.request_type != CommandType::GeneralSend as u8 {
        CommandStatus::BadType
    } else if command.data_len == 0 || command.data_len > CHUNK_BYTES_MAX {
        CommandStatus::BadLength
    } else if !fits(command.src_addr) || !fits(command.dst_addr) {
        CommandStatus::BadAddress
    } else {
        CommandStatus::Ok
    }
}

/// Carries out the copy.
///
/// # Safety
///
/// As for [`QueuePair::submit`].
unsafe fn execute(command: &Command) {
    let src = std::ptr::with_exposed_provenance(command.src_addr as usize);
    let dst = std::ptr::with_exposed_provenance_mut(command.dst_addr as usize);
    // SAFETY: the caller promises that both ranges are there and disjoint.
    unsafe { copy(dst, src, command.data_len as usize) }
}
