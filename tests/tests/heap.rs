//! Bytes of the driver's heap in use, in rounds of clients that attach, connect and are killed. Alone in its binary: the allocator counts what the
//! process has, of which the driver is a part.
use pd_driver::policy::Otherwise;
use pd_tests::{needs_root, program_path, Puppet, TestDriver};
use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::{Duration, Instant};

/// Clients of a round, and connections of each.
const CLIENTS: usize = 4;
const CONNECTIONS: usize = 4;
/// Rounds until tables are as large as they get, and rounds in which they stay so.
const ROUNDS_BEFORE: usize = 20;
const ROUNDS: usize = 40;
/// Growth that is none: fewer bytes than a note of 32 bytes for each client of the rounds would take.
const SLACK: isize = (CLIENTS * ROUNDS * 32) as isize - 1;
/// Time in which threads of the driver end that have nothing to do; and the longest wait for that.
const QUIET: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

static LIVE: AtomicIsize = AtomicIsize::new(0);

struct Counting;

fn count(bytes: usize, sign: isize) {
    LIVE.fetch_add(sign * bytes as isize, Ordering::Relaxed);
}

// SAFETY: each call is the system's, with the caller's promises.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let memory = unsafe { System.alloc(layout) };
        count(if memory.is_null() { 0 } else { layout.size() }, 1);
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        let new = unsafe { System.realloc(memory, layout, bytes) };
        if !new.is_null() {
            count(layout.size(), -1);
            count(bytes, 1);
        }
        new
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// Has clients attach and connect, kills them, and waits until the driver has forgotten them.
fn round(driver: &TestDriver) {
    let crowd = |_| {
        let mut command = Command::new(program_path("attacker"));
        command.arg(driver.socket()).args(["crowd", &CONNECTIONS.to_string()]);
        let mut crowd = Puppet::new(driver.spawn(&mut command));
        assert_eq!(crowd.line(), "ready");
        crowd
    };
    let crowds: Vec<_> = (0..CLIENTS).map(crowd).collect();
    assert_eq!(driver.report().clients.len(), CLIENTS);
    // A drop kills.
    drop(crowds);
    driver.wait_for("they are forgotten", |report| {
        report.clients.is_empty() && report.connections.is_empty() && report.memory_used_bytes == 0
    });
}

/// Returns the fewest bytes in use for a time. Ends early with no more than `enough`.
fn in_use(time: Duration, enough: isize) -> isize {
    let (until, mut least) = (Instant::now() + time, isize::MAX);
    while Instant::now() < until && least > enough {
        least = least.min(LIVE.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(10));
    }
    least
}

#[test]
fn clients_that_come_and_are_killed_leave_nothing_on_the_heap() {
    needs_root("clients of another user");
    let driver = TestDriver::with("cpu", |settings| {
        settings.budget_bytes = 256 << 20;
        settings.policy.attach.default = Otherwise::Anyone;
    });
    std::fs::set_permissions(driver.folder(), PermissionsExt::from_mode(0o755)).unwrap();
    (0..ROUNDS_BEFORE).for_each(|_| round(&driver));
    let before = in_use(QUIET, isize::MIN);
    (0..ROUNDS).for_each(|_| round(&driver));
    let after = in_use(PATIENCE, before + SLACK);
    println!("{before} bytes before {ROUNDS} rounds, {after} afterwards");
    assert!(after <= before + SLACK, "{} bytes more", after - before);
}
