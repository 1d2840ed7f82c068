//! The engine that fails on purpose.

use crate::random::Random;
use crate::{Capability, Engine, EngineError, QueuePair};
use pd_abi::{limits::QUEUE_DEPTH, Command, CommandStatus, CommandType};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Faults that a [`Fault`] engine injects into its inner engine. The default injects none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Every decision follows from it; see [`Fault`].
    pub seed: u64,
    /// Commands in 1,000 that complete with [`Failed`](CommandStatus::Failed), in the mean. Half of those
    /// never reach the inner engine; the others are cut short, so that a part of the destination is written.
    pub fail_per_mille: u32,
    /// Each completion is held back for a random number of calls of `reap`, at most this many, from its
    /// submission on.
    /// Because each is drawn by itself, completions of different queue pairs overtake each other.
    pub delay_reaps_max: u32,
    /// Completions overtake each other within a queue pair, too.
    pub reorder: bool,
    /// Commands, counted over all queue pairs of the engine, after which every command fails and none reaches
    /// the inner engine: a dead device.
    pub dead_after: Option<u64>,
}

/// The `fault` engine: hands commands to another engine, and lets some fail, come late or out of order.
///
/// For the tests of whatever uses engines, and for trying a running system: it ships with the product.
/// Invalid commands get the inner engine's answer. With the default plan it is a slower copy of its
/// inner engine.
///
/// The n-th queue pair draws from a generator of its own, seeded with the plan's seed and n. A pair that is given the same calls therefore
/// does the same again, whatever other pairs and threads do. Only `dead_after`, which counts across pairs, depends on their interleaving.
pub struct Fault {
    inner: Arc<dyn Engine>,
    plan: FaultPlan,
    pairs: AtomicU64,
    submitted: Arc<AtomicU64>,
}

impl Fault {
    /// Faults according to `plan` around `inner`.
    pub fn new(inner: Arc<dyn Engine>, plan: FaultPlan) -> Self {
        Self { inner, plan, pairs: AtomicU64::new(0), submitted: Arc::default() }
    }
}

impl Engine for Fault {
    fn capability(&self) -> Capability {
        let inner = self.inner.capability();
        Capability {
            name: "fault",
            chunk_bytes_max: inner.chunk_bytes_max,
            queue_depth: QUEUE_DEPTH,
            ordered: !self.plan.reorder,
            synchronous: inner.synchronous && self.plan.delay_reaps_max == 0,
        }
    }

    fn queue_pair(&self) -> Result<Box<dyn QueuePair>, EngineError> {
        let inner = self.inner.queue_pair()?;
        let number = self.pairs.fetch_add(1, Ordering::Relaxed);
        // A generator's own first draw keeps the streams of neighbouring seeds and numbers apart.
        let seed = Random::new(Random::new(self.plan.seed).next() ^ number).next();
        Ok(Box::new(FaultQueue {
            inner,
            plan: self.plan,
            chunk_bytes_max: self.inner.capability().chunk_bytes_max,
            submitted: self.submitted.clone(),
            random: Random::new(seed),
            reaps: 0,
            slots: Box::new([const { Slot::FREE }; QUEUE_DEPTH]),
            free: (0..QUEUE_DEPTH as u16).rev().collect(),
            pending: VecDeque::with_capacity(QUEUE_DEPTH),
        }))
    }
}

/// A command in flight, as it was submitted.
#[derive(Clone, Copy)]
struct Slot {
    command: Command,
    /// Fails, whatever the inner engine says.
    fails: bool,
    /// The inner engine is done with it, or never got it; `command` is the completion.
    done: bool,
    /// The call of `reap` from which on it may be handed out, once done.
    due: u64,
}

impl Slot {
    const FREE: Self = Self {
        command: Command {
            request_type: 0,
            status: 0,
            cid: 0,
            data_len: 0,
            src_addr: 0,
            dst_addr: 0,
            conn_id: 0,
            table_id: 0,
            reserved: 0,
            entry_seq: 0,
        },
        fails: false,
        done: false,
        due: 0,
    };

    fn complete(&mut self, status: u8) {
        self.command.request_type = CommandType::GeneralCompleted as u8;
        self.command.status = if self.fails { CommandStatus::Failed as u8 } else { status };
        self.done = true;
    }
}

struct FaultQueue {
    inner: Box<dyn QueuePair>,
    plan: FaultPlan,
    chunk_bytes_max: u32,
    /// Commands of all pairs of the engine.
    submitted: Arc<AtomicU64>,
    random: Random,
    /// Calls of `reap`.
    reaps: u64,
    slots: Box<[Slot; QUEUE_DEPTH]>,
    /// Slots not in use.
    free: Vec<u16>,
    /// Slots in use, in order of submission.
    pending: VecDeque<u16>,
}

/// Completions taken from the inner engine at a time.
const BATCH: usize = 64;

impl QueuePair for FaultQueue {
    unsafe fn submit(&mut self, commands: &[Command]) -> usize {
        let mut accepted = 0;
        for command in commands {
            let Some(&slot) = self.free.last() else { break };
            // The inner engine sees the slot's number in place of `entry_seq`, to know it again.
            let mut forwarded = Command { entry_seq: slot, ..*command };
            let valid = command.request_type == CommandType::GeneralSend as u8
                && (1..=self.chunk_bytes_max).contains(&command.data_len)
                && command.src_addr != 0
                && command.dst_addr != 0;
            let dead = self.plan.dead_after.is_some_and(|n| self.submitted.load(Ordering::Relaxed) >= n);
            let fails = valid && (dead || self.draw_failure());
            let mut lost = dead && valid;
            if fails && !dead {
                let cut = self.random.below(2 * u64::from(command.data_len)) as u32;
                lost = cut >= command.data_len;
                forwarded.data_len = cut + 1;
            }
            // SAFETY: the caller's promise covers the command, and a prefix of its two ranges with it.
            if !lost && unsafe { self.inner.submit(&[forwarded]) } == 0 {
                break;
            }
            let due = match self.plan.delay_reaps_max {
                0 => 0,
                max => self.reaps + 1 + self.random.below(u64::from(max) + 1),
            };
            let entry = &mut self.slots[usize::from(slot)];
            *entry = Slot { command: *command, fails, done: false, due };
            if lost {
                entry.complete(CommandStatus::Failed as u8);
            }
            self.free.pop();
            self.pending.push_back(slot);
            self.submitted.fetch_add(1, Ordering::Relaxed);
            accepted += 1;
        }
        accepted
    }

    fn reap(&mut self, completions: &mut [Command]) -> usize {
        if completions.is_empty() {
            return 0;
        }
        self.reaps += 1;
        let mut batch = [Command::default(); BATCH];
        let arrived = self.inner.reap(&mut batch);
        for completion in &batch[..arrived] {
            self.slots[usize::from(completion.entry_seq)].complete(completion.status);
        }
        let mut reaped = 0;
        for completion in completions {
            let Some(slot) = self.take_ripe() else { break };
            *completion = self.slots[usize::from(slot)].command;
            self.free.push(slot);
            reaped += 1;
        }
        reaped
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

impl FaultQueue {
    fn draw_failure(&mut self) -> bool {
        self.plan.fail_per_mille > 0 && self.random.below(1000) < u64::from(self.plan.fail_per_mille)
    }

    /// Returns the next completion to hand out: the oldest if it is ripe, or, reordering, any that is.
    fn take_ripe(&mut self) -> Option<u16> {
        let ripe = |slot: &u16| {
            let slot = &self.slots[usize::from(*slot)];
            slot.done && slot.due <= self.reaps
        };
        let pending = self.pending.len();
        let at = if !self.plan.reorder {
            self.pending.front().filter(|slot| ripe(slot)).map(|_| 0)?
        } else if pending == 0 {
            return None;
        } else {
            let first = self.random.below(pending as u64) as usize;
            (first..pending).chain(0..first).find(|at| ripe(&self.pending[*at]))?
        };
        self.pending.remove(at)
    }
}

#[cfg(test)]
mod tests;
