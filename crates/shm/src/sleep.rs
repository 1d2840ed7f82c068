//! System calls that sleep: on words of shared memory, or for a time.
//!
//! A [`Sleep`] describes a call, and its user makes the call. A library that has to know which signal handlers run makes
//! it as the last step after its checks.
use crate::{Access, Region, Writable};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A system call that does nothing but sleep. It reads memory that lives as long as `'a`, so that making it is safe.
#[derive(Debug)]
pub struct Sleep<'a> {
    number: libc::c_long,
    arguments: [usize; 6],
    reads: PhantomData<&'a ()>,
}

impl Sleep<'_> {
    /// Returns its number and its arguments, for a caller that makes the call itself.
    pub fn parts(&self) -> (libc::c_long, [usize; 6]) {
        (self.number, self.arguments)
    }

    /// Makes it. 0 or more, or a negative `errno`.
    pub fn make(&self) -> isize {
        let [a, b, c, d, e, f] = self.arguments;
        // SAFETY: it only sleeps, and what it reads is there.
        let result = unsafe { libc::syscall(self.number, a, b, c, d, e, f) };
        if result >= 0 {
            return result as isize;
        }
        let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
        -(error as isize)
    }
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Sleeps for `time`, in the way of `make`; says whether a signal handler ended it.
pub fn sleep_for(time: Duration, make: impl FnOnce(&Sleep<'_>) -> isize) -> bool {
    let time = timespec(time);
    let arguments = [libc::CLOCK_MONOTONIC as usize, 0, (&raw const time).expose_provenance(), 0, 0, 0];
    make(&Sleep { number: libc::SYS_clock_nanosleep, arguments, reads: PhantomData })
        == -(libc::EINTR as isize)
}

/// Sleeps while `word` holds `expected`; at most `timeout`; in the way of `make`. Returns on wake-ups, signals and for no
/// reason at all; says whether a signal handler ended it.
pub fn sleep_on(
    word: &AtomicU32,
    expected: u32,
    timeout: Duration,
    make: impl FnOnce(&Sleep<'_>) -> isize,
) -> bool {
    let timeout = timespec(timeout);
    let operation = libc::FUTEX_WAIT as usize;
    let arguments = [
        word.as_ptr().expose_provenance(),
        operation,
        expected as usize,
        (&raw const timeout).expose_provenance(),
        0,
        0,
    ];
    // Every other outcome makes the caller look again.
    make(&Sleep { number: libc::SYS_futex, arguments, reads: PhantomData }) == -(libc::EINTR as isize)
}

/// Wakes all that sleep on `word`.
pub fn wake_all(word: &AtomicU32) {
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
}

/// Wakes up to `count` that sleep on `word`. Returns the number woken.
pub(crate) fn wake_some(word: &AtomicU32, count: u32) -> u32 {
    let woken = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), count);
    woken.map_or(0, |woken| woken as u32)
}

impl<A: Writable> Region<A> {
    /// Adds 1 to the doorbell at `offset`, of which the caller is the only writer: who has seen the value before does not sleep any more.
    pub fn advance_doorbell(&self, offset: usize) {
        self.store_u32(offset, self.load_u32(offset, Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

impl<A: Access> Region<A> {
    /// [`sleep_on`] the futex at `offset`.
    pub fn futex_wait(
        &self,
        offset: usize,
        expected: u32,
        timeout: Duration,
        make: impl FnOnce(&Sleep<'_>) -> isize,
    ) -> bool {
        sleep_on(self.atomic_u32(offset), expected, timeout, make)
    }

    /// Wakes all that sleep on the futex at `offset`.
    pub fn futex_wake(&self, offset: usize) {
        wake_all(self.atomic_u32(offset));
    }

    /// Sleeps while the futexes at two places hold what is expected of them; at most `timeout`; in the way of `make`.
    /// Returns on wake-ups, signals and for no reason at all; says whether it was a signal.
    pub fn futex_wait_two(
        places: [(&Self, usize, u32); 2],
        timeout: Duration,
        make: impl Fn(&Sleep<'_>) -> isize,
    ) -> bool {
        let waits = places.map(|(map, offset, expected)| {
            // SAFETY: all zeroes is a value of the type.
            let mut wait: libc::futex_waitv = unsafe { std::mem::zeroed() };
            wait.val = expected.into();
            wait.uaddr = map.atomic_u32(offset).as_ptr().expose_provenance() as u64;
            wait.flags = libc::FUTEX2_SIZE_U32 as u32;
            wait
        });
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let until = timespec(Duration::new(now.tv_sec as u64, now.tv_nsec as u32).saturating_add(timeout));
        let arguments = [
            waits.as_ptr().expose_provenance(),
            waits.len(),
            0,
            (&raw const until).expose_provenance(),
            libc::CLOCK_MONOTONIC as usize,
            0,
        ];
        let slept = make(&Sleep { number: libc::SYS_futex_waitv, arguments, reads: PhantomData });
        if slept == -(libc::ENOSYS as isize) || slept == -(libc::EPERM as isize) {
            // Linux before 5.16, or a filter of system calls: the second is looked at every so often.
            let [(map, offset, expected), _] = places;
            return map.futex_wait(offset, expected, timeout.min(Duration::from_millis(1)), make);
        }
        slept == -(libc::EINTR as isize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{create, Pages};
    use crate::Own;
    use std::time::Instant;

    #[test]
    fn either_of_two_futexes_ends_a_sleep() {
        let fd = create("test", 4096, Pages::Ordinary).unwrap();
        let map = std::sync::Arc::new(Region::<Own>::new(&fd, 4096).unwrap());
        let long = Duration::from_secs(20);
        for rung in [0, 64] {
            let sleeper = map.clone();
            let start = Instant::now();
            // A thread that begins late would see the new word, and wait for another.
            let seen = [0, 64].map(|at| map.load_u32(at, Ordering::Acquire));
            let thread = std::thread::spawn(move || {
                while [0, 64].map(|at| sleeper.load_u32(at, Ordering::Acquire)) == seen {
                    Region::futex_wait_two(
                        [(&sleeper, 0, seen[0]), (&sleeper, 64, seen[1])],
                        long,
                        |sleep| sleep.make(),
                    );
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            map.store_u32(rung, map.load_u32(rung, Ordering::Relaxed) + 1, Ordering::Release);
            map.futex_wake(rung);
            thread.join().unwrap();
            assert!(start.elapsed() < long);
        }
    }
}
