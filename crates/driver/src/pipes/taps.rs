//! Taps of administrators. Each ends when its observer has gone.
use super::messages::NewTap;
use super::report::{TapOf, TapReport};
use pd_pipe::{Agent, TapId, Tapped};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Interval of looks for observers that have gone.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct Tap {
    id: TapId,
    of: TapOf,
    life: OwnedFd,
}

/// The taps of the agent of pipes.
#[derive(Debug, Default)]
pub(super) struct Taps {
    taps: Vec<Tap>,
    looked: Duration,
}

impl Taps {
    /// Adds a tap.
    ///
    /// # Errors
    /// A sentence with the reason.
    pub fn add(&mut self, agent: &mut Agent, tapped: Tapped, tap: NewTap) -> Result<(), String> {
        let NewTap { of, snap_bytes, made, life } = tap;
        let id = agent.add_tap(made, tapped, snap_bytes).map_err(|errno| match errno {
            Errno::OPNOTSUPP => format!("{of} has a stream of bytes, and no frames"),
            Errno::MFILE => format!("a driver has {} taps at most", pd_pipe::TAPS_MAX),
            errno => format!("{of} cannot be tapped: {errno}"),
        })?;
        self.taps.push(Tap { id, of, life });
        Ok(())
    }

    /// Removes taps whose observers have gone.
    pub fn look(&mut self, agent: &mut Agent, now: impl FnOnce() -> Duration) {
        if self.taps.is_empty() {
            return;
        }
        let now = now();
        if now < self.looked + LOOK {
            return;
        }
        self.looked = now;
        self.taps.retain(|tap| {
            let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            // Nothing is read: readiness means the end.
            let gone = poll(&mut [PollFd::new(&tap.life, PollFlags::empty())], Some(&at_once));
            let stays = gone.is_ok_and(|ready| ready == 0);
            if !stays {
                agent.remove_tap(tap.id);
            }
            stays
        });
    }

    /// Returns the counts of each tap.
    pub fn report(&self, agent: &Agent) -> Vec<TapReport> {
        let of = |tap: &Tap| {
            let counts = agent.tap_counts(tap.id).unwrap_or_default();
            TapReport { of: tap.of.clone(), frames: counts.frames, frames_lost: counts.lost }
        };
        self.taps.iter().map(of).collect()
    }
}
