//! Watch on the machine's cores: whether more threads want to run than there are cores.
//!
//! A thread that spins holds a core that another one could use. Its own core tells it nothing: the other threads may queue on another
//! core, and the kernel moves them only to a core that is idle. So the driver looks at the number of runnable threads of the whole machine,
//! and tells its clients when that has stayed high or low for a while.
//!
//! The texts of the kernel are read here and not by a library, which would open a file for each look.
use crate::mailbox::Mailbox;
use crate::messages::ToConductor;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two looks on a busy machine. A look costs a few microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest time between two looks; on an idle machine it doubles from look to look.
const LOOK_SELDOM: Duration = Duration::from_millis(160);

/// Parts of a thread in which averages are counted.
const PARTS: u32 = 256;
/// Looks over which the average goes, about.
const LOOKS: u32 = 16;
/// Runnable threads for each core, in quarters, from which cores are scarce. Both ends of a busy connection and a mover are three
/// threads, and take turns on two cores without loss.
const SCARCE_FROM: u32 = 7;
/// Likewise: the number under which cores are no longer scarce.
const AMPLE_BELOW: u32 = 6;

/// Average number of runnable threads, and the verdict on it.
#[derive(Debug)]
struct Verdict {
    cores: u32,
    /// In [`PARTS`].
    average: u32,
    scarce: bool,
}

impl Verdict {
    fn new(cores: u32) -> Self {
        Self { cores: cores.max(1), average: 0, scarce: false }
    }

    /// Learns that so many threads are runnable. Returns the new verdict if it has changed.
    fn note(&mut self, runnable: u32) -> Option<bool> {
        let runnable = runnable.min(u32::MAX / PARTS / LOOKS) * PARTS;
        self.average = (self.average * (LOOKS - 1) + runnable) / LOOKS;
        let quarters = if self.scarce { AMPLE_BELOW } else { SCARCE_FROM };
        let scarce = self.average >= quarters * self.cores * PARTS / 4;
        (std::mem::replace(&mut self.scarce, scarce) != scarce).then_some(scarce)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Watch {
    load: File,
    verdict: Verdict,
}

impl Watch {
    /// Opens the kernel's numbers.
    ///
    /// # Errors
    /// There are none: no `/proc`.
    pub fn open() -> Result<Self> {
        let statistics = std::fs::read_to_string("/proc/stat")?;
        let this = Self { load: File::open("/proc/loadavg")?, verdict: Verdict::new(cores(&statistics)) };
        this.runnable()?;
        Ok(this)
    }

    /// Returns the number of threads that run or want to, without the calling one.
    fn runnable(&self) -> Result<u32> {
        let mut text = [0; 64];
        let bytes = self.load.read_at(&mut text, 0)?;
        runnable(&text[..bytes]).ok_or_else(|| Error::from(ErrorKind::InvalidData))
    }

    /// Looks until `stop`, and tells the conductor of each change.
    pub fn run(mut self, stop: &AtomicBool, conductor: &Mailbox<ToConductor>) {
        let mut pause = LOOK_EVERY;
        while !stop.load(Ordering::Acquire) {
            std::thread::sleep(pause);
            let Ok(runnable) = self.runnable() else { return };
            if let Some(scarce) = self.verdict.note(runnable) {
                conductor.send(ToConductor::Cores { scarce });
            }
            let is_quiet = !self.verdict.scarce && runnable < self.verdict.cores;
            pause = if is_quiet { (pause * 2).min(LOOK_SELDOM) } else { LOOK_EVERY };
        }
    }
}

/// Returns the number of cores in use, from the text of `/proc/stat`.
fn cores(statistics: &str) -> u32 {
    let is_core = |line: &&str| {
        let number = line.strip_prefix("cpu").unwrap_or_default();
        number.starts_with(|first: char| first.is_ascii_digit())
    };
    statistics.lines().filter(is_core).count() as u32
}

/// Returns the number of runnable threads but one, from the text of `/proc/loadavg`: "0.71 4.36 5.46 3/412 17249".
fn runnable(load: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(load).ok()?;
    let (running, _) = text.split_ascii_whitespace().nth(3)?.split_once('/')?;
    Some(running.parse::<u32>().ok()?.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_read() {
        assert_eq!(runnable(b"0.71 4.36 5.46 3/412 17249\n"), Some(2));
        assert_eq!(runnable(b"0.00 0.00 0.00 0/1 1"), Some(0));
        for text in [&b""[..], b"0.71 4.36 5.46", b"0.71 4.36 5.46 x/412 1", b"\xff 1 1 1/1"] {
            assert_eq!(runnable(text), None);
        }
        assert_eq!(cores("cpu  1 2\ncpu0 1 2\ncpu1 3 4\nintr 5\ncpufreq 1\n"), 2);
        let watch = Watch::open().unwrap();
        assert!(watch.verdict.cores >= 1 && watch.runnable().is_ok());
    }

    #[test]
    fn scarcity_begins_and_ends_after_a_while() {
        let mut verdict = Verdict::new(2);
        assert_eq!((0..1000).find_map(|_| verdict.note(3)), None, "one thread more than cores");
        let looks = (1..1000).find(|_| verdict.note(8).is_some()).unwrap();
        assert!((2..LOOKS).contains(&looks) && verdict.scarce, "{looks}");
        assert_eq!(verdict.note(0), None, "one look is no news");
        let looks = (1..1000).find(|_| verdict.note(1).is_some()).unwrap();
        assert!((2..3 * LOOKS).contains(&looks) && !verdict.scarce, "{looks}");
    }

    #[test]
    fn an_average_between_the_limits_changes_nothing() {
        for (before, scarce) in [(0, false), (100, true)] {
            let mut verdict = Verdict::new(4);
            (0..100).for_each(|_| _ = verdict.note(before));
            // 6.5 threads on four cores: between 6 and 7.
            (0..100).for_each(|look| _ = verdict.note(6 + look % 2));
            assert_eq!(verdict.scarce, scarce);
        }
    }

    #[test]
    fn absurd_numbers_do_no_harm() {
        let mut verdict = Verdict::new(u32::MAX >> 13);
        (0..100).for_each(|_| _ = verdict.note(u32::MAX));
    }
}
