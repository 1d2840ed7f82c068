//! The kernel's word on the holdings of a driver in this process, and on those of its clients.
use procfs::process::{MMapPath, MemoryMap, Process};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for a process to stop.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most that one object takes: a client of descriptors, a direct ring of memory.
pub const OBJECT_DESCRIPTORS: u64 = 6;
pub const OBJECT_BYTES: u64 = 1 << 20;

/// Returns the number of processes to kill: `short`, unless `PD_KILLS` says more. The long form has 10,000.
pub fn kills(short: u64) -> u64 {
    std::env::var("PD_KILLS").map_or(short, |kills| kills.parse().expect("a number"))
}

/// Device and inode.
pub type File = (u64, u64);

/// The kernel's word on memory by file, in bytes of pages, and of descriptors.
#[derive(Debug, Default)]
pub struct Held {
    pub descriptors: u64,
    pub memory: BTreeMap<File, u64>,
    /// Kinds of open files with their numbers.
    kinds: BTreeMap<String, u64>,
}

impl Held {
    /// Returns the holdings of this process, which runs the driver.
    pub fn here() -> Self {
        let mut held = Self::default();
        for file in std::fs::read_dir("/proc/self/fd").expect("own descriptors").flatten() {
            held.descriptors += 1;
            if let Ok(link) = std::fs::read_link(file.path()) {
                let link = link.to_string_lossy();
                let kind = link.split([':', '#']).next().unwrap_or_default();
                let kind = if kind == "anon_inode" { &*link } else { kind };
                *held.kinds.entry(kind.to_owned()).or_default() += 1;
            }
            if is_drivers(&file.path()) {
                if let Ok(file) = std::fs::metadata(file.path()) {
                    held.memory.insert((file.dev(), file.ino()), 512 * file.blocks());
                }
            }
        }
        held
    }

    /// Returns the kinds of which there are more or fewer than `before`, with both numbers.
    pub fn changes_since<'a>(&'a self, before: &'a Self) -> Vec<(&'a str, u64, u64)> {
        let kinds: BTreeSet<&str> =
            self.kinds.keys().chain(before.kinds.keys()).map(String::as_str).collect();
        let of = |held: &Self, kind: &str| held.kinds.get(kind).copied().unwrap_or_default();
        let changes = kinds.into_iter().map(|kind| (kind, of(before, kind), of(self, kind)));
        changes.filter(|(_, before, now)| before != now).collect()
    }

    /// Returns the bytes of memory that is new since `before`. Memory of the bystanders is older, and may grow.
    pub fn bytes_since(&self, before: &Self) -> u64 {
        let new = self.memory.iter().filter(|(file, _)| !before.memory.contains_key(file));
        new.map(|(_, bytes)| bytes).sum()
    }
}

fn is_drivers(link: &Path) -> bool {
    std::fs::read_link(link).is_ok_and(|to| is_memory_of_driver(&to.to_string_lossy()))
}

/// Names of the driver's memory: a memory file, or one of a shelf, which has a number for a moment.
fn is_memory_of_driver(name: &str) -> bool {
    let number = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let of_shelf = |name: &str| number(name.trim_start_matches('#'));
    name.starts_with("/memfd:pd-")
        || name.strip_prefix('/').and_then(|name| name.strip_suffix(" (deleted)")).is_some_and(of_shelf)
}

/// Files of the driver's memory that a process has mapped.
fn mapped(process: &Process) -> Vec<File> {
    let file = |map: MemoryMap| {
        let MMapPath::Path(name) = &map.pathname else { return None };
        let (major, minor) = map.dev;
        let file = (rustix::fs::makedev(major as u32, minor as u32), map.inode);
        is_memory_of_driver(&name.to_string_lossy()).then_some(file)
    };
    process.maps().expect("mappings").into_iter().filter_map(file).collect()
}

/// Returns the driver's memory that a process has open or mapped.
pub fn files_of(pid: u32) -> Vec<File> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").flatten();
    let open = files.filter(|file| is_drivers(&file.path()));
    let open = open.filter_map(|file| std::fs::metadata(file.path()).ok());
    open.map(|file| (file.dev(), file.ino())).chain(mapped(&process(pid))).collect()
}

/// Returns the number of mappings of the driver's memory in this process.
pub fn mappings() -> usize {
    mapped(&Process::myself().expect("this process")).len()
}

fn process(pid: u32) -> Process {
    Process::new(pid as i32).expect("it is not reaped")
}

/// Waits until a process has stopped.
pub fn wait_stopped(pid: u32) {
    let until = Instant::now() + PATIENCE;
    while process(pid).stat().expect("it is not reaped").state != 'T' {
        assert!(Instant::now() < until, "it does not stop");
        std::thread::sleep(Duration::from_micros(200));
    }
}
