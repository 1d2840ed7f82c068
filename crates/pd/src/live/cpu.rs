//! CPU time of a process.

use std::time::Duration;

/// CPU time that the process has used, threads that have ended included.
pub fn of_process(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse(&stat, rustix::param::clock_ticks_per_second())
}

fn parse(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    // The name, in parentheses, may hold anything; user and system time are the 12th and 13th field after it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let sum = ticks()?.checked_add(ticks()?)?;
    Some(Duration::from_secs_f64(sum as f64 / ticks_per_second.max(1) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_added_whatever_the_name() {
        let stat = "7 (a ) 1 (b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 3 0 100 1 1";
        assert_eq!(parse(stat, 100), Some(Duration::from_secs(3)));
        assert_eq!(parse("7 (a) S 1", 100), None);
    }
}
