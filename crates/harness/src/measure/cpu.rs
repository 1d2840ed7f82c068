//! CPU time: of the whole machine, of a process, and the rest that others leave.
//!
//! Busy is everything but idle and iowait: user, nice, system, irq and softirq, so programs, driver
//! and interrupt work all count. Steal, time that the hypervisor gave to others, is kept apart.
//! Guest time is part of user time already. The kernel counts in ticks of 10 ms: intervals of half a
//! second and more are meaningful.

use std::ops::Sub;
use std::thread::{self, available_parallelism, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use procfs::process::Process;
use procfs::{CpuTime, CurrentSI, KernelStats};
use rustix::time::{clock_gettime, ClockId};

use crate::signals::Signals;

/// CPU time since boot, or, subtracted, over an interval; seconds over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineTimes {
    /// Spent on anything.
    pub busy_s: f64,
    /// Spent idle or waiting for disks.
    pub idle_s: f64,
    /// Taken by the hypervisor.
    pub steal_s: f64,
    /// The part of busy that software interrupts took.
    pub softirq_s: f64,
}

impl MachineTimes {
    /// Returns the counters now.
    pub fn now() -> Result<MachineTimes> {
        let stat = KernelStats::current().context("cannot read /proc/stat")?;
        Ok(MachineTimes::of(&stat.total))
    }

    fn of(time: &CpuTime) -> MachineTimes {
        let s = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
        let softirq = time.softirq.unwrap_or(0);
        MachineTimes {
            busy_s: s(time.user + time.nice + time.system + time.irq.unwrap_or(0) + softirq),
            idle_s: s(time.idle + time.iowait.unwrap_or(0)),
            steal_s: s(time.steal.unwrap_or(0)),
            softirq_s: s(softirq),
        }
    }
}

impl Sub for MachineTimes {
    type Output = MachineTimes;

    fn sub(self, earlier: MachineTimes) -> MachineTimes {
        MachineTimes {
            busy_s: self.busy_s - earlier.busy_s,
            idle_s: self.idle_s - earlier.idle_s,
            steal_s: self.steal_s - earlier.steal_s,
            softirq_s: self.softirq_s - earlier.softirq_s,
        }
    }
}

/// Returns the CPU time that a process has used in user mode and in the kernel, including ended threads, in ticks of 10 ms.
pub fn of_process(pid: u32) -> Option<(Duration, Duration)> {
    let stat = Process::new(pid as i32).ok()?.stat().ok()?;
    let time = |ticks: u64| Duration::from_secs_f64(ticks as f64 / procfs::ticks_per_second() as f64);
    Some((time(stat.utime), time(stat.stime)))
}

/// Returns the number of cores that others keep busy; prints a warning if it is enough to spoil the figures.
pub fn background_cores(signals: &Signals) -> Result<f64> {
    const INTERVAL: Duration = Duration::from_millis(500);
    let before = MachineTimes::now()?;
    sleep(INTERVAL);
    signals.check()?;
    let cores = (MachineTimes::now()? - before).busy_s / INTERVAL.as_secs_f64();
    if cores > 0.1 {
        eprintln!("pd: warning: other programs keep {cores:.1} cores busy; the figures will be noisy");
    }
    Ok(cores)
}

/// The part of the machine that other programs and the hypervisor leave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quiet {
    /// Cores that other programs keep busy.
    pub background_cores: f64,
    /// CPU time that a busy thread for each core gets, over the time that passes.
    pub cpu_share: f64,
}

impl Quiet {
    /// Figures of a machine with more load than this are discarded.
    const BACKGROUND_CORES_MAX: f64 = 0.1;
    /// Figures of a machine that gives less than this are discarded.
    const CPU_SHARE_MIN: f64 = 0.97;
    /// Attempts a second apart: work that has just ended leaves some behind.
    const ATTEMPTS: u32 = 20;

    /// Measures both in 0.7 s.
    pub fn measure(signals: &Signals) -> Result<Quiet> {
        Ok(Quiet { background_cores: background_cores(signals)?, cpu_share: cpu_share() })
    }

    /// Measures until the machine is quiet, 20 times at most.
    pub fn wait(signals: &Signals) -> Result<Quiet> {
        let mut quiet = Quiet::measure(signals)?;
        for _ in 1..Quiet::ATTEMPTS {
            if quiet.disturbance().is_none() {
                break;
            }
            sleep(Duration::from_secs(1));
            quiet = Quiet::measure(signals)?;
        }
        Ok(quiet)
    }

    /// Returns the disturbance of the machine, if any.
    pub fn disturbance(&self) -> Option<String> {
        let Quiet { background_cores, cpu_share } = *self;
        if background_cores > Quiet::BACKGROUND_CORES_MAX {
            return Some(format!("other programs keep {background_cores:.2} cores busy"));
        }
        let percent = cpu_share * 100.0;
        (cpu_share < Quiet::CPU_SHARE_MIN).then(|| format!("a busy thread gets {percent:.0} % of a core"))
    }
}

/// Returns CPU time over elapsed time of busy threads, one for each core.
fn cpu_share() -> f64 {
    const INTERVAL: Duration = Duration::from_millis(200);
    let spent = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let busy = move || {
        let (start, before) = (Instant::now(), spent());
        while start.elapsed() < INTERVAL {}
        (spent() - before) / start.elapsed().as_secs_f64()
    };
    let cores = available_parallelism().map_or(1, usize::from);
    let threads: Vec<_> = (0..cores).map(|_| thread::spawn(busy)).collect();
    threads.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum::<f64>() / cores as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromBufReadSI;

    #[test]
    fn load_and_a_small_share_are_disturbances() {
        let quiet = Quiet { background_cores: 0.02, cpu_share: 0.995 };
        assert_eq!(quiet.disturbance(), None);
        let loaded = Quiet { background_cores: 0.5, ..quiet };
        assert_eq!(loaded.disturbance().unwrap(), "other programs keep 0.50 cores busy");
        let shared = Quiet { cpu_share: 0.9, ..quiet };
        assert_eq!(shared.disturbance().unwrap(), "a busy thread gets 90 % of a core");
        assert!((0.01..=1.01).contains(&cpu_share()));
    }

    #[test]
    fn idle_and_steal_are_not_busy() {
        let ticks = |seconds: f64| (seconds * procfs::ticks_per_second() as f64).round() as u64;
        let stat = "cpu  100 10 200 5000 50 1 2 30 0 0\nctxt 1\nbtime 1\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n";
        let stat = KernelStats::from_buf_read(stat.as_bytes(), procfs::current_system_info()).unwrap();
        let times = MachineTimes::of(&stat.total);
        let all = [times.busy_s, times.idle_s, times.steal_s, times.softirq_s];
        assert_eq!(all.map(ticks), [313, 5050, 30, 2]);
    }

    #[test]
    fn an_interval_is_a_difference() {
        let early = MachineTimes { busy_s: 1.0, idle_s: 2.0, ..Default::default() };
        let late = MachineTimes { busy_s: 1.5, idle_s: 4.0, steal_s: 0.25, softirq_s: 0.5 };
        assert_eq!(late - early, MachineTimes { busy_s: 0.5, idle_s: 2.0, steal_s: 0.25, softirq_s: 0.5 });
    }

    #[test]
    fn this_machine_and_this_process_have_used_time() {
        assert!(MachineTimes::now().unwrap().busy_s > 0.0);
        assert!(of_process(std::process::id()).is_some());
        assert_eq!(of_process(u32::MAX >> 1), None);
    }
}
