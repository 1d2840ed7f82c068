use crate::card::Card;
use crate::memory::Rings;
use crate::model::Hardware;
use crate::port::Counts;
use crate::ring::{command_of, words_of, Ring};
use pd_abi::limits::{CHUNK_BYTES_PAPER, QUEUE_DEPTH};
use pd_abi::registers::QUEUES_MAX;
use pd_abi::Command;
use pd_engine::{Capability, Engine, EngineError, QueuePair};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

const NAME: &str = "rtl";

/// The `rtl` engine: the hardware of `rtl/`, compiled by Verilator, cycle by cycle.
///
/// All queue pairs belong to one simulated card, which runs on a thread of its own from the first
/// [`queue_pair`](Engine::queue_pair) until the engine and its pairs are dropped. The card reads and writes this
/// process's memory at the addresses that commands carry, and only where a command in flight says so;
/// anything else is refused as an IOMMU would, and counted ([`Rtl::counts`]).
pub struct Rtl {
    hardware: Hardware,
    trace: Option<PathBuf>,
    card: Mutex<Option<Arc<Card>>>,
}

impl Rtl {
    /// The engine; `trace` is a file for the waveform (FST), which grows by some kilobytes per command.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] if the simulated hardware is not there.
    pub fn new(trace: Option<PathBuf>) -> Result<Self, EngineError> {
        let hardware = Hardware::load("pd_stack").map_err(unavailable)?;
        Ok(Self { hardware, trace, card: Mutex::new(None) })
    }

    /// The engine that the part after `rtl:` of its name describes: nothing, or `trace=FILE`.
    ///
    /// # Errors
    /// [`EngineError::BadOption`], and those of [`Rtl::new`].
    pub fn from_options(options: &str) -> Result<Self, EngineError> {
        match options.strip_prefix("trace=") {
            Some(file) if !file.is_empty() => Self::new(Some(file.into())),
            None if options.is_empty() => Self::new(None),
            _ => Err(EngineError::BadOption { engine: NAME, option: options.into(), expected: "trace=FILE" }),
        }
    }

    /// Returns what has gone over the card's port; zeros before the first queue pair.
    pub fn counts(&self) -> Counts {
        let card = self.card.lock().unwrap_or_else(PoisonError::into_inner);
        card.as_ref().map_or_else(Counts::default, |card| card.counts())
    }
}

fn unavailable(reason: String) -> EngineError {
    EngineError::Unavailable { engine: NAME, reason }
}

impl Engine for Rtl {
    fn capability(&self) -> Capability {
        Capability {
            name: NAME,
            chunk_bytes_max: CHUNK_BYTES_PAPER,
            queue_depth: QUEUE_DEPTH,
            ordered: true,
            synchronous: false,
        }
    }

    fn queue_pair(&self) -> Result<Box<dyn QueuePair>, EngineError> {
        let mut card = self.card.lock().unwrap_or_else(PoisonError::into_inner);
        let card = match &mut *card {
            Some(card) => Arc::clone(card),
            none => {
                let started = Card::start(&self.hardware, self.trace.clone()).map_err(unavailable)?;
                Arc::clone(none.insert(Arc::new(started)))
            }
        };
        let rings = Arc::new(Rings { sq: Ring::new(), cq: Ring::new() });
        let index = card
            .add(Arc::clone(&rings))
            .ok_or(EngineError::Exhausted { engine: NAME, limit: QUEUES_MAX as usize })?;
        Ok(Box::new(RtlQueue { card, index, rings, producer_index: 0, consumer_index: 0 }))
    }
}

/// The driver's end of one queue pair. It is what a driver of real hardware would be: entries in memory, one
/// doorbell for each batch, and a phase bit that tells a new completion from an old one.
struct RtlQueue {
    card: Arc<Card>,
    index: usize,
    rings: Arc<Rings>,
    producer_index: u16,
    consumer_index: u16,
}

impl RtlQueue {
    /// The phase that entry `index` of the completion queue has once it is written: set on the first pass.
    fn phase(index: u16) -> u8 {
        Command::PHASE * u8::from(usize::from(index) / QUEUE_DEPTH % 2 == 0)
    }
}

impl QueuePair for RtlQueue {
    unsafe fn submit(&mut self, commands: &[Command]) -> usize {
        let accepted = commands.len().min(QUEUE_DEPTH - self.in_flight());
        if accepted == 0 {
            return 0;
        }
        for command in &commands[..accepted] {
            self.rings.sq.store(self.producer_index, words_of(command));
            self.producer_index = self.producer_index.wrapping_add(1);
        }
        self.card.ring(self.index, self.producer_index, self.consumer_index);
        accepted
    }

    fn reap(&mut self, completions: &mut [Command]) -> usize {
        let mut reaped = 0;
        for completion in completions.iter_mut().take(self.in_flight()) {
            let found = command_of(self.rings.cq.load(self.consumer_index));
            if found.reserved & Command::PHASE != Self::phase(self.consumer_index) {
                break;
            }
            let submitted = command_of(self.rings.sq.load(self.consumer_index));
            *completion = Command { reserved: submitted.reserved, ..found };
            self.consumer_index = self.consumer_index.wrapping_add(1);
            reaped += 1;
        }
        reaped
    }

    fn in_flight(&self) -> usize {
        usize::from(self.producer_index.wrapping_sub(self.consumer_index))
    }
}

impl Drop for RtlQueue {
    fn drop(&mut self) {
        self.card.remove(self.index);
    }
}
