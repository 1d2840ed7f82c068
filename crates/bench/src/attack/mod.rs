//! Hostile clients of `pd bench isolation`: a process in a container of its own tenant, which does one kind of harm as fast as it
//! can until it is killed.
//!
//! [`rows`] has a function for each kind, or names its module. [`start`] runs one in a thread and returns once it has set itself up.
//! Nothing here measures: an attack counts its actions in a [`Tally`].

mod crowd;
mod kernel;
mod programs;
mod rings;
mod rows;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{anyhow, bail, Context, Result};
use pd_harness::measure::now_ns;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

/// The port of packets at which an attacker has pipes.
pub const PORT: &str = "bench-attacker";
/// User of an attacker that need not be root: `nobody`.
const ATTACKER: u32 = 65_534;

/// A kind of harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// No harm to the driver: keeps one core busy. The other rows are compared with it.
    Spin,
    /// Keeps cores busy with two threads, as many as attackers by traffic have.
    Spins,
    /// Sends a TCP socket with unsent bytes and `SO_LINGER` at the attach socket, before it is accepted.
    Descriptors,
    /// Sends such sockets at the admin socket, as root of its container.
    AdminDescriptors,
    /// Connects to the attach socket and leaves.
    Connects,
    /// Attaches and leaves.
    Attaches,
    /// Binds to any port where all are taken.
    Ports,
    /// Asks for channels and wake pipes.
    Frames,
    /// Asks for large send regions, and gives them up.
    Regions,
    /// Gives descriptors of regions to a child, and leaves.
    HandedRegions,
    /// Breaks the protocol and is cut off.
    Violations,
    /// Holds thousands of addresses, and binds and connects.
    Addresses,
    /// Sends files on which it holds thousands of record locks.
    RecordLocks,
    /// Rings the doorbells of all channels without a request.
    Doorbells,
    /// Opens and closes sockets.
    Requests,
    /// Sends nothing, and more than a message may have.
    ImpossibleSends,
    /// Reads no event.
    Unread,
    /// Opens and closes pipes of packets.
    Pipes,
    /// Connects to a victim, which the policy denies.
    DeniedConnects,
    /// Opens, uses and closes connections to itself.
    Churn,
    /// Opens, uses and closes connections as an unmodified program with the preload library.
    Twins,
    /// Asks the kernel for options of a socket, as an unmodified program.
    Options,
    /// Sends files, which leave the page cache each time, on each of its connections.
    Files,
    /// Sends messages of 64 MB without touching a byte.
    Huge,
    /// Sends 64 KB on each of its connections as fast as it can, and touches every byte as the victim does.
    Bulk,
    /// Sends 64 B on each of its connections as fast as it can.
    Tiny,
}

impl Kind {
    /// Returns the name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Spin => "spin",
            Kind::Spins => "spins",
            Kind::Descriptors => "descriptors",
            Kind::AdminDescriptors => "admin-descriptors",
            Kind::Connects => "connects",
            Kind::Attaches => "attaches",
            Kind::Ports => "ports",
            Kind::Frames => "frames",
            Kind::Regions => "regions",
            Kind::HandedRegions => "handed-regions",
            Kind::Violations => "violations",
            Kind::Addresses => "addresses",
            Kind::RecordLocks => "record-locks",
            Kind::Doorbells => "doorbells",
            Kind::Requests => "requests",
            Kind::ImpossibleSends => "impossible-sends",
            Kind::Unread => "unread",
            Kind::Pipes => "pipes",
            Kind::DeniedConnects => "denied-connects",
            Kind::Churn => "churn",
            Kind::Twins => "twins",
            Kind::Options => "options",
            Kind::Files => "files",
            Kind::Huge => "huge",
            Kind::Bulk => "bulk",
            Kind::Tiny => "tiny",
        }
    }
}

/// The order for an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attack {
    /// The kind of harm.
    pub kind: Kind,
    /// Connections; 0 where it has none.
    pub connections: usize,
    /// The address of a victim that listens, for [`Kind::DeniedConnects`].
    pub victim: Option<SocketAddr>,
    /// Traffic goes over kernel TCP.
    pub kernel: bool,
    /// Smaller numbers of addresses and locks.
    pub quick: bool,
}

/// Counts of an attacker's work until some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Monotonic clock.
    pub at_ns: u64,
    /// Times that it tried.
    pub tries: u64,
    /// Tries that were refused.
    pub refused: u64,
    /// Bytes that went from its senders to its receivers.
    pub bytes: u64,
}

/// Counters of an attack, for other threads to read.
#[derive(Debug, Default)]
struct Tally {
    tries: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
    /// Moments, and the bytes until then; a millisecond apart or more.
    marks: Mutex<Vec<(u64, u64)>>,
}

/// The least time between two marks.
const MARK_NS: u64 = 1_000_000;

/// Returns the bytes at `at_ns` by marks around it: as if they came evenly between two marks.
fn bytes_at(marks: &[(u64, u64)], at_ns: u64) -> f64 {
    let after = marks.partition_point(|mark| mark.0 <= at_ns);
    match (after.checked_sub(1).and_then(|at| marks.get(at)), marks.get(after)) {
        (Some(&(from, before)), Some(&(to, then))) => {
            before as f64 + (then - before) as f64 * (at_ns - from) as f64 / (to - from) as f64
        }
        (Some(mark), None) | (None, Some(mark)) => mark.1 as f64,
        (None, None) => 0.0,
    }
}

impl Tally {
    fn marks(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts received bytes. To be called by one thread, also with 0.
    fn came(&self, bytes: u64) {
        let all = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let (now, mut marks) = (now_ns(), self.marks());
        if marks.last().is_none_or(|mark| now >= mark.0 + MARK_NS) {
            marks.push((now, all));
        }
    }

    fn tried(&self, taken: bool) {
        self.tries.fetch_add(1, Ordering::Relaxed);
        self.refused.fetch_add(u64::from(!taken), Ordering::Relaxed);
    }
}

/// An attack's surroundings: where the driver is, and where to count.
#[derive(Clone, Debug)]
struct Scene {
    socket: PathBuf,
    attack: Attack,
    tally: Arc<Tally>,
    begun: Sender<()>,
}

impl Scene {
    /// Reports that all is set up.
    fn begin(&self) {
        // The waiting side may have given up.
        let _ = self.begun.send(());
    }
}

/// An attack under way. The attack ends with the process.
#[derive(Debug)]
pub struct Running {
    tally: Arc<Tally>,
    thread: Option<JoinHandle<Result<Infallible>>>,
}

/// Starts an attack on the driver with the attach socket `socket`, as an unprivileged user if the attack allows it. Returns once
/// the attack is set up.
///
/// # Errors
/// If the attack cannot be started.
pub fn start(attack: Attack, socket: PathBuf) -> Result<Running> {
    let prepared = rows::prepare(&attack)?;
    if attack.kind != Kind::AdminDescriptors {
        give_up_root().context("cannot give up root")?;
    }
    let (begun, begins) = channel();
    let tally = Arc::new(Tally::default());
    let scene = Scene { socket, attack, tally: Arc::clone(&tally), begun };
    let thread = std::thread::Builder::new()
        .name("attack".to_owned())
        .spawn(move || rows::attack(&scene, prepared))
        .context("no thread")?;
    let mut running = Running { tally, thread: Some(thread) };
    match begins.recv() {
        Ok(()) => Ok(running),
        Err(_) => Err(running.why_ended()),
    }
}

impl Running {
    /// Returns the counts of the attack so far.
    ///
    /// # Errors
    /// If the attack has ended, the reason.
    pub fn done(&mut self) -> Result<Done> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err(self.why_ended());
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(Done {
            at_ns: now_ns(),
            tries: count(&self.tally.tries),
            refused: count(&self.tally.refused),
            bytes: count(&self.tally.bytes),
        })
    }

    /// Returns the bytes that came through between two moments.
    pub fn carried(&self, from_ns: u64, to_ns: u64) -> f64 {
        let marks = self.tally.marks();
        bytes_at(&marks, to_ns) - bytes_at(&marks, from_ns)
    }

    fn why_ended(&mut self) -> anyhow::Error {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error.context("the attack ended"),
            Some(Err(_)) => anyhow!("the attack panicked; see its message above"),
            _ => anyhow!("the attack has ended"),
        }
    }
}

/// Gives up root for the calling thread and those that it starts.
fn give_up_root() -> Result<()> {
    let (user, group) = (Uid::from_raw(ATTACKER), Gid::from_raw(ATTACKER));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    if rustix::process::geteuid().is_root() {
        bail!("still root");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_between_two_moments_come_evenly_between_marks() {
        let marks = [(100, 0), (200, 1000), (400, 1000), (500, 3000)];
        let at = |ns| bytes_at(&marks, ns);
        assert_eq!(
            [at(0), at(100), at(150), at(300), at(450), at(900)],
            [0.0, 0.0, 500.0, 1000.0, 2000.0, 3000.0]
        );
        assert_eq!(bytes_at(&[], 5), 0.0);
    }
}
