//! CPU time of the whole machine from the first line of `/proc/stat`.
//!
//! Busy is everything but idle and iowait: user, nice, system, irq and softirq, so programs, driver
//! and interrupt work all count. Steal, time that the hypervisor gave to others, is kept apart.
//! Guest time is part of user time already. The kernel counts in ticks of 10 ms: intervals of half a
//! second and more are meaningful.

use std::fs;
use std::ops::Sub;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::param::clock_ticks_per_second;

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
    /// The counters now.
    pub fn now() -> Result<MachineTimes> {
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        parse(&stat, clock_ticks_per_second() as f64).context("/proc/stat has no line of CPU times")
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

fn parse(stat: &str, ticks_per_s: f64) -> Option<MachineTimes> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else { return None };
    Some(MachineTimes {
        busy_s: (user + nice + system + irq + softirq) / ticks_per_s,
        idle_s: (idle + iowait) / ticks_per_s,
        steal_s: steal / ticks_per_s,
        softirq_s: softirq / ticks_per_s,
    })
}

/// How many cores others keep busy; says so if it is enough to spoil the figures.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_steal_are_not_busy() {
        let stat = "cpu  100 10 200 5000 50 1 2 30 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 5\n";
        let times = parse(stat, 100.0).unwrap();
        assert_eq!(times, MachineTimes { busy_s: 3.13, idle_s: 50.5, steal_s: 0.3, softirq_s: 0.02 });
    }

    #[test]
    fn an_interval_is_a_difference() {
        let early = MachineTimes { busy_s: 1.0, idle_s: 2.0, ..Default::default() };
        let late = MachineTimes { busy_s: 1.5, idle_s: 4.0, steal_s: 0.25, softirq_s: 0.5 };
        assert_eq!(late - early, MachineTimes { busy_s: 0.5, idle_s: 2.0, steal_s: 0.25, softirq_s: 0.5 });
    }

    #[test]
    fn garbage_is_refused() {
        assert_eq!(parse("", 100.0), None);
        assert_eq!(parse("cpu  1 2 3\n", 100.0), None);
        assert_eq!(parse("cpu  a b c d e f g h\n", 100.0), None);
        assert!(MachineTimes::now().unwrap().busy_s > 0.0);
    }
}
