//! CPU time of this process.

use pd_harness::measure::cpu::of_process;
use rustix::time::{clock_gettime, ClockId};

/// Time that this process had used at some moment, in user mode and in the kernel.
#[derive(Clone, Copy, Debug)]
pub struct ProcessTimes {
    user_s: f64,
    system_s: f64,
}

impl ProcessTimes {
    /// Returns the times so far.
    pub fn now() -> ProcessTimes {
        let all = clock_gettime(ClockId::ProcessCPUTime);
        let all_s = all.tv_sec as f64 + all.tv_nsec as f64 / 1e9;
        let user_s = user_share().unwrap_or(1.0) * all_s;
        ProcessTimes { user_s, system_s: all_s - user_s }
    }

    /// Returns the times since then: user, system.
    pub fn elapsed(&self) -> (f64, f64) {
        let now = ProcessTimes::now();
        ((now.user_s - self.user_s).max(0.0), (now.system_s - self.system_s).max(0.0))
    }
}

/// Returns the part of time in user mode, which the kernel scales to the precise sum.
fn user_share() -> Option<f64> {
    let (user, system) = of_process(std::process::id())?;
    let sum = (user + system).as_secs_f64();
    Some(if sum > 0.0 { user.as_secs_f64() / sum } else { 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time() {
        let before = ProcessTimes::now();
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 20 {
            std::hint::black_box((0..1000).sum::<u64>());
        }
        let (user_s, system_s) = before.elapsed();
        assert!(user_s + system_s > 0.0);
    }
}
