//! A mover's engines: the one chosen, and `cpu` for commands at which that one fails.
use crate::metrics::Metrics;
use crate::StartError;
use pd_abi::{Command, CommandStatus, CommandType};
use pd_engine::{Cpu, Engine, QueuePair};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most commands that one flow writes in its turn, and most completions that are taken at a time.
pub const COMMANDS_PER_TURN: usize = 128;
/// Failures in a row after which an engine is not used any more.
const FAILURES_MAX: u32 = 16;

pub struct Engines {
    chosen: Box<dyn QueuePair>,
    cpu: Box<dyn QueuePair>,
    name: &'static str,
    /// Set if the chosen engine is `cpu`.
    own: bool,
    chunk_bytes_max: u32,
    /// Commands that the submission queue had no room for.
    backlog: VecDeque<Command>,
    redone: Vec<Command>,
    /// Commands of the flow that has its turn.
    batch: Vec<Command>,
    /// Completions reaped last.
    completions: Vec<Command>,
    failures: u32,
    quarantined: bool,
    metrics: Arc<Metrics>,
}

impl Engines {
    pub fn new(engine: &dyn Engine, metrics: Arc<Metrics>) -> Result<Self, StartError> {
        let cpu = Cpu::new();
        let capability = engine.capability();
        Ok(Self {
            chosen: engine.queue_pair()?,
            name: capability.name,
            own: capability.name == cpu.capability().name,
            chunk_bytes_max: capability.chunk_bytes_max.min(cpu.capability().chunk_bytes_max),
            cpu: cpu.queue_pair()?,
            backlog: VecDeque::new(),
            redone: Vec::new(),
            batch: Vec::with_capacity(COMMANDS_PER_TURN),
            completions: vec![Command::default(); COMMANDS_PER_TURN],
            failures: 0,
            quarantined: false,
            metrics,
        })
    }

    pub fn chunk_bytes_max(&self) -> u32 {
        self.chunk_bytes_max
    }

    /// Tells whether the mover's own core copies. The core may then copy without commands in a flow that has none under way, and read
    /// files. With another engine such work is not the core's.
    pub fn is_own_core(&self) -> bool {
        self.own
    }

    pub fn in_flight(&self) -> usize {
        self.chosen.in_flight() + self.cpu.in_flight() + self.backlog.len()
    }

    /// Tells whether commands wait for room in a submission queue.
    pub fn is_full(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Returns the list to which a flow writes its commands. [`Self::submit`] hands them over.
    #[inline]
    pub fn batch(&mut self) -> &mut Vec<Command> {
        &mut self.batch
    }

    /// Tells whether there are commands to hand over.
    #[inline]
    pub fn has_batch(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Hands the commands to the engine. [`Self::reap`] hands over commands that do not fit.
    pub fn submit(&mut self) {
        let mut commands = std::mem::take(&mut self.batch);
        let accepted = if self.backlog.is_empty() { self.hand_over(&commands) } else { 0 };
        self.backlog.extend(&commands[accepted..]);
        commands.clear();
        self.batch = commands;
    }

    fn hand_over(&mut self, commands: &[Command]) -> usize {
        let pair = if self.quarantined { &mut self.cpu } else { &mut self.chosen };
        // SAFETY: every command's source lies in a send region and its destination in a receive ring, both mapped by the driver. A client's
        // send regions stay in its mover's table, and a flow keeps its ring, until no command of theirs is under way (`Flow::is_drained`).
        // A ring is reserved for one command at a time, and send and receive regions never overlap.
        unsafe { pair.submit(commands) }
    }

    /// Takes at most [`COMMANDS_PER_TURN`] completions. The `cpu` engine does failed commands again first.
    pub fn reap(&mut self) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        let count = self.reap_into(&mut completions);
        self.completions = completions;
        count
    }

    /// Returns one of the completions taken last.
    #[inline]
    pub fn completion(&self, at: usize) -> Command {
        self.completions[at]
    }

    fn reap_into(&mut self, completions: &mut [Command]) -> usize {
        let mut count = 0;
        while count < completions.len() {
            let mut got = self.chosen.reap(&mut completions[count..]);
            got = self.redo_failed(&mut completions[count..count + got]);
            got += self.cpu.reap(&mut completions[count + got..]);
            count += got;
            if !self.backlog.is_empty() {
                let waiting = self.backlog.make_contiguous().to_vec();
                let accepted = self.hand_over(&waiting);
                self.backlog.drain(..accepted);
                if accepted > 0 {
                    continue;
                }
            }
            if got == 0 {
                break;
            }
        }
        count
    }

    /// Moves failed completions out of the way and submits them again. Returns the number of good ones.
    fn redo_failed(&mut self, completions: &mut [Command]) -> usize {
        let mut good = 0;
        for at in 0..completions.len() {
            let completion = completions[at];
            if CommandStatus::from_raw(completion.status) == CommandStatus::Ok {
                completions[good] = completion;
                good += 1;
                self.failures = 0;
                continue;
            }
            Metrics::add(&self.metrics.commands_redone, 1);
            self.failures += 1;
            if self.failures >= FAILURES_MAX && !self.quarantined {
                self.quarantined = true;
                Metrics::add(&self.metrics.engines_quarantined, 1);
                tracing::error!(
                    engine = self.name,
                    "engine quarantined after {FAILURES_MAX} failures in a row; the cpu engine goes on"
                );
            }
            let again = Command { request_type: CommandType::GeneralSend as u8, status: 0, ..completion };
            self.redone.push(again);
        }
        if !self.redone.is_empty() {
            let redone = std::mem::take(&mut self.redone);
            // SAFETY: as in `hand_over`: a failed command is still under way for its flow.
            let accepted = unsafe { self.cpu.submit(&redone) };
            self.backlog.extend(&redone[accepted..]);
        }
        good
    }
}
