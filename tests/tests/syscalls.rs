//! System calls in steady state, of driver, sender and receiver together, counted by the kernel's own tracepoint.
use pd_driver::admin::{ask, Answer, Ask};
use pd_tests::{needs_root, peer_path, Puppet};
use rustix::mount::{mount, mount_change, MountFlags, MountPropagationFlags};
use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MESSAGES: u64 = 200_000;
const WARM_UP: u64 = 5_000;
/// Least messages for each system call, under any load. The aim is sixteen. The actual number is printed, and
/// depends on which of the three processes waits for the others.
const MESSAGES_PER_CALL_MIN: u64 = 1;
const EVENT: &str = "events/raw_syscalls/sys_enter/id";

/// Returns the tracepoint's number. Mounts tracefs in a private namespace if the machine has not.
fn tracepoint() -> Option<u64> {
    let read = |folder: &Path| std::fs::read_to_string(folder.join(EVENT)).ok()?.trim().parse().ok();
    if let Some(id) = read(Path::new("/sys/kernel/tracing")) {
        return Some(id);
    }
    let folder = tempfile::tempdir().ok()?;
    let reader = move || {
        // SAFETY: a mount namespace and file system attributes of this thread's own; it shares no memory
        // that these would make inconsistent.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.ok()?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).ok()?;
        mount("none", folder.path(), "tracefs", MountFlags::empty(), None::<&std::ffi::CStr>).ok()?;
        let id = read(folder.path());
        let _ = rustix::mount::unmount(folder.path(), rustix::mount::UnmountFlags::DETACH);
        id
    };
    std::thread::spawn(reader).join().ok()?
}

/// `struct perf_event_attr` up to its first version (`PERF_ATTR_SIZE_VER0`).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const PERF_TYPE_TRACEPOINT: u32 = 2;
const INHERIT: u64 = 1 << 1;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

/// Opens a counter of the tracepoint in one thread and those that it starts from now on.
fn counter(id: u64, thread: i32) -> Option<File> {
    let size = size_of::<Attributes>() as u32;
    let attributes =
        Attributes { kind: PERF_TYPE_TRACEPOINT, size, config: id, flags: INHERIT, ..Attributes::default() };
    // SAFETY: the attributes are as large as they say, and only read; any processor, no group.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &attributes, thread, -1, -1, PERF_FLAG_FD_CLOEXEC)
    };
    // SAFETY: a descriptor that the kernel has just made, owned by nobody else.
    (fd >= 0).then(|| File::from(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

/// Counters of a process.
struct Counters {
    name: &'static str,
    threads: Vec<File>,
}

impl Counters {
    fn of(name: &'static str, id: u64, pid: u32) -> Option<Self> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        let threads = tasks.map(|task| {
            let thread = task.expect("thread").file_name().to_str()?.parse().ok()?;
            counter(id, thread)
        });
        Some(Self { name, threads: threads.collect::<Option<_>>()? })
    }

    fn read(&self) -> u64 {
        let counts = self.threads.iter().map(|mut file| {
            let mut bytes = [0; 8];
            file.read_exact(&mut bytes).expect("counter");
            u64::from_ne_bytes(bytes)
        });
        counts.sum()
    }
}

/// Driver, receiver and sender, each a process of its own, with bytes under way.
struct Trio {
    _folder: tempfile::TempDir,
    admin: std::path::PathBuf,
    driver: Puppet,
    receiver: Puppet,
    sender: Puppet,
}

impl Trio {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (socket, admin) = (folder.path().join("driver.sock"), folder.path().join("admin.sock"));
        let peer = |args: &[&str]| {
            let mut command = Command::new(peer_path());
            command.args(args).env("PD_SOCKET", &socket).stdin(Stdio::piped()).stdout(Stdio::piped());
            Puppet::new(command.spawn().expect("peer"))
        };
        let paths = [&socket, &admin].map(|path| path.to_str().expect("path").to_owned());
        let mut driver = peer(&["driver", &paths[0], &paths[1], "budget_bytes=1073741824", "hugepages=0"]);
        assert_eq!(driver.line(), "ready");
        let mut receiver = peer(&["compare", "127.0.0.1:0", "65536"]);
        let line = receiver.line();
        let sender = peer(&["fill", line.strip_prefix("ready ").expect("ready"), "65536", "32"]);
        Self { _folder: folder, admin, driver, receiver, sender }
    }

    fn messages(&self) -> u64 {
        match ask(&self.admin, &Ask::List).expect("report") {
            Answer::Report(report) => report.connections.first().map_or(0, |c| c.messages[0]),
            other => panic!("no report but {other:?}"),
        }
    }

    /// Waits until `messages` messages have been moved. Returns their number.
    fn wait(&self, messages: u64) -> u64 {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let moved = self.messages();
            if moved >= messages {
                return moved;
            }
            assert!(Instant::now() < until, "{moved} of {messages} messages");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn fewer_system_calls_than_messages() {
    needs_root("counting system calls of other processes");
    let trio = Trio::start();
    let first = trio.wait(WARM_UP);
    let pids =
        [("driver", trio.driver.pid()), ("receiver", trio.receiver.pid()), ("sender", trio.sender.pid())];
    let counters: Option<Vec<_>> =
        tracepoint().and_then(|id| pids.iter().map(|&(name, pid)| Counters::of(name, id, pid)).collect());
    let Some(counters) = counters else {
        return by_strace(&trio, &pids.map(|(_, pid)| pid));
    };
    let before: Vec<_> = counters.iter().map(Counters::read).collect();
    let start = trio.messages().max(first);
    let messages = trio.wait(start + MESSAGES) - start;
    let calls: Vec<_> =
        counters.iter().zip(before).map(|(counter, before)| counter.read() - before).collect();
    for (counter, calls) in counters.iter().zip(&calls) {
        eprintln!("{}: {calls} system calls", counter.name);
    }
    check(calls.iter().sum(), messages);
}

fn check(calls: u64, messages: u64) {
    eprintln!(
        "{calls} system calls for {messages} messages: one for {:.1}",
        messages as f64 / calls.max(1) as f64
    );
    assert!(calls * MESSAGES_PER_CALL_MIN <= messages, "{calls} system calls for {messages} messages");
}

/// Counts without the tracepoint, by `strace -c`, which slows everything down.
fn by_strace(trio: &Trio, pids: &[u32]) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let table = folder.path().join("table");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-U", "calls,name", "-o"]).arg(&table);
    pids.iter().for_each(|pid| {
        strace.args(["-p", &pid.to_string()]);
    });
    let Ok(mut strace) = strace.stderr(Stdio::null()).spawn() else {
        eprintln!("NOT COUNTED: neither the raw_syscalls tracepoint nor strace is to be had on this machine");
        return;
    };
    let is_traced = |pid: &u32| {
        let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        threads.all(|thread| {
            let status = std::fs::read_to_string(thread.expect("thread").path().join("status"));
            status.is_ok_and(|status| !status.contains("TracerPid:\t0\n"))
        })
    };
    let until = Instant::now() + Duration::from_secs(60);
    while !pids.iter().all(is_traced) {
        assert!(Instant::now() < until, "strace does not attach to {pids:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let start = trio.messages();
    let messages = trio.wait(start + MESSAGES / 10) - start;
    let pid = rustix::process::Pid::from_child(&strace);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("strace");
    let _ = strace.wait();
    let table = std::fs::read_to_string(&table).expect("table");
    let total = table.lines().find(|line| line.ends_with(" total")).unwrap_or_else(|| panic!("{table}"));
    let calls = total.split_whitespace().next().expect("calls").parse().expect("number");
    check(calls, messages);
}
