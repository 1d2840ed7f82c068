use pd_abi::Command;
use std::sync::Arc;

/// The capabilities of an engine, constant over its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The name that [`by_name`](crate::by_name), metrics and logs use.
    pub name: &'static str,
    /// Most bytes of one command. Longer transfers are split by the driver.
    pub chunk_bytes_max: u32,
    /// Most commands in flight in one queue pair:
    /// [`QUEUE_DEPTH`](pd_abi::limits::QUEUE_DEPTH).
    pub queue_depth: usize,
    /// Completions of one queue pair come in the order of submission. Says nothing of two pairs, nor of
    /// when the bytes of a command move relative to those of another command in flight.
    pub ordered: bool,
    /// The caller's CPU copies, inside [`submit`](QueuePair::submit) or [`reap`](QueuePair::reap), and
    /// a reap with something in flight and room for it always returns something. Otherwise a reap may
    /// return 0 until the engine has got there.
    pub synchronous: bool,
}

/// A copy engine.
///
/// Threads: an engine is shared; any thread may call it at any time. Neither method is for the data
/// path: both may allocate, lock and call the kernel.
///
/// Lifetime: a queue pair keeps its engine's resources alive, so the two may be dropped in any order.
pub trait Engine: Send + Sync {
    /// Returns the engine's capability.
    fn capability(&self) -> Capability;

    /// Makes an empty queue pair, independent of all others. It neither waits for them nor shares their
    /// depth, and a command that fails in one does nothing to another.
    ///
    /// # Errors
    ///
    /// [`EngineError::Exhausted`] when the engine has no queue pair left, and
    /// [`EngineError::Unavailable`] when its hardware or its library is not there.
    fn queue_pair(&self) -> Result<Box<dyn QueuePair>, EngineError>;
}

impl<E: Engine + ?Sized> Engine for Arc<E> {
    fn capability(&self) -> Capability {
        (**self).capability()
    }

    fn queue_pair(&self) -> Result<Box<dyn QueuePair>, EngineError> {
        (**self).queue_pair()
    }
}

/// A submission queue and a completion queue, owned by one thread at a time (paper, section III-E:
/// one pair per core, so that nobody locks).
///
/// ```text
///   free ──submit──▶ in flight ──(engine: check, copy, set status)──▶ done ──reap──▶ free
///          at most queue_depth are in flight or done; in_flight() counts both
/// ```
///
/// Ownership: from `submit` until its completion is reaped, a command's bytes belong to the engine. It may
/// read the source and write the destination at any moment in between, in any order and, if the command ends
/// in an error, in part. After the reap the bytes belong to the caller. The whole destination is visible to
/// the reaping thread, and to threads that it then notifies by a release store. Commands are copied on
/// submission and completions on reaping; the engine keeps no reference to either slice.
///
/// Dropping a pair ends its use of memory. Commands in flight are abandoned, carried out in full, in part or
/// not at all. Once `drop` has returned, none of their bytes are read or written any more.
///
/// `submit` and `reap` never allocate, lock, sleep or call the kernel. There are no interrupts: a caller with
/// commands in flight polls.
pub trait QueuePair: Send {
    /// Submits commands in order, as long as there is room. Returns their number: a prefix of the slice, 0
    /// when the queue is full. A batch costs less than its commands one by one.
    ///
    /// A command that cannot be carried out is accepted like any other and completes with an error:
    /// [`BadType`](pd_abi::CommandStatus::BadType); [`BadLength`](pd_abi::CommandStatus::BadLength) for 0 and
    /// for more than the chunk size; [`BadAddress`](pd_abi::CommandStatus::BadAddress) for an address known
    /// to be wrong, such as null.
    ///
    /// # Safety
    ///
    /// For every command that has the right type, a length in bounds and no null address, until its
    /// completion is reaped or the pair is dropped:
    ///
    /// - `data_len` bytes at `src_addr` are mapped and readable, and `data_len` bytes at `dst_addr` are
    ///   mapped and writable, both exposed (pointers cast to integers);
    /// - the two are disjoint, and the destination is disjoint from the source and the destination
    ///   of every other command in flight in any pair;
    /// - memory that Rust code holds a reference to is not written.
    ///
    /// Another process may write the source meanwhile: the destination then gets a mixture of
    /// old and new bytes, and nothing else happens.
    unsafe fn submit(&mut self, commands: &[Command]) -> usize;

    /// Takes completions, up to the size of the slice. Returns their number.
    ///
    /// Each is its command with `request_type` =
    /// [`GeneralCompleted`](pd_abi::CommandType::GeneralCompleted) and `status` set; every other field
    /// comes back as it went in. Entries beyond the returned count are left alone.
    ///
    /// Bounded: one call does a bounded amount of copying, and may return less than is complete. Call again
    /// while [`in_flight`](Self::in_flight) is not 0.
    fn reap(&mut self, completions: &mut [Command]) -> usize;

    /// Commands submitted and not reaped.
    fn in_flight(&self) -> usize;
}

/// Reason why there is no engine, or no queue pair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// No engine has this name.
    #[error("unknown engine \"{name}\"; known engines: {known}")]
    Unknown {
        /// The value asked for.
        name: String,
        /// The value that the machine has.
        known: &'static str,
    },
    /// The part after the colon of an engine's name is wrong.
    #[error("engine \"{engine}\": bad option \"{option}\"; expected {expected}")]
    BadOption {
        /// The engine's name.
        engine: &'static str,
        /// The option as it was written.
        option: String,
        /// The value that would have been right.
        expected: &'static str,
    },
    /// The hardware or the library that the engine needs is not there.
    #[error("engine \"{engine}\" is not available: {reason}")]
    Unavailable {
        /// The engine's name.
        engine: &'static str,
        /// The missing part.
        reason: String,
    },
    /// The engine has no queue pair left.
    #[error("engine \"{engine}\" has no queue pair left; it has {limit}")]
    Exhausted {
        /// The engine's name.
        engine: &'static str,
        /// Number of pairs that it has.
        limit: usize,
    },
}
