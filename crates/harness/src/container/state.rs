//! Records of running containers. Other programs can list them, and the next `pd` can remove the remains of
//! one that was killed.
//!
//! Everything lives under [`RUN_DIR`]. The [`Lock`] is held to change it, and to make or remove links and
//! control groups.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use procfs::process::Process;
use rustix::fs::{flock, FlockOperation};
use rustix::process::{kill_process, Pid, Signal};
use serde::{Deserialize, Serialize};

use super::{address::InterfaceAddress, links};

/// Folder of this program's state. Containers of other engines get the folder of the driver's sockets, and must not have this one.
pub const RUN_DIR: &str = "/run/pd";
/// Folders of [`RUN_DIR`] about all containers, which none of them sees.
pub const OF_ALL: [&str; 5] = ["bridges", "containers", "hosts", "logs", "networks"];

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessId {
    /// Returns the process `pid`, or `None` if there is none.
    pub fn of(pid: u32) -> Option<ProcessId> {
        let stat = Process::new(pid as i32).ok()?.stat().ok()?;
        // A zombie holds nothing any more.
        let is_over = matches!(stat.state, 'Z' | 'X');
        (!is_over).then_some(ProcessId { pid, start_ticks: stat.starttime })
    }

    /// Returns this process.
    pub fn own() -> ProcessId {
        ProcessId::of(std::process::id()).unwrap_or_default()
    }

    /// Returns whether it still runs.
    pub fn is_alive(self) -> bool {
        self.pid != 0 && ProcessId::of(self.pid) == Some(self)
    }

    /// Kills it and waits, for at most two seconds, until it is gone.
    pub(super) fn end(self) {
        let Some(pid) = Pid::from_raw(self.pid as i32) else { return };
        let end = Instant::now() + Duration::from_secs(2);
        while self.is_alive() && Instant::now() < end {
            let _ = kill_process(pid, Signal::KILL);
            sleep(Duration::from_millis(5));
        }
    }
}

/// A container, as written to `containers/NAME.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Name, which is also the host name.
    pub name: String,
    /// The tenant it belongs to.
    pub tenant: String,
    /// The bridge it is on.
    pub bridge: String,
    /// The network of the policy that it was run in.
    #[serde(default)]
    pub network: Option<String>,
    /// IPv4 address and prefix.
    pub address: String,
    /// IPv6 address and prefix.
    pub address6: String,
    /// The host end of its link.
    pub link: String,
    /// The first process; zero while it starts.
    pub init: ProcessId,
    /// Inode of its network namespace; zero while it starts.
    pub netns_inode: u64,
    /// The `pd` that holds it.
    pub owner: ProcessId,
    /// The control group, if CPU time is counted.
    pub cgroup: Option<PathBuf>,
    /// Groups of other hierarchies that limit it.
    #[serde(default)]
    pub limits: Vec<PathBuf>,
    /// Tells whether the container keeps the rights of `pd`.
    #[serde(default)]
    pub privileged: bool,
    /// Environment variables beside those of the `pd` that holds it.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    /// The driver's socket that it was given.
    pub socket: PathBuf,
    /// The command it runs.
    pub command: Vec<String>,
}

impl Record {
    /// Returns the IPv4 address alone.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.address.parse::<InterfaceAddress>().ok().map(|a| a.address)
    }

    fn path(name: &str) -> PathBuf {
        containers_dir().join(format!("{name}.json"))
    }

    /// Writes it, replacing an earlier version at once.
    pub fn write(&self, _lock: &Lock) -> Result<()> {
        write_json(&Record::path(&self.name), self)
    }

    /// Removes it.
    pub(super) fn remove(&self, _lock: &Lock) {
        let _ = fs::remove_file(Record::path(&self.name));
        let _ = fs::remove_file(control_socket(&self.name));
    }

    /// Returns whether the container was registered at the driver with this admin socket.
    pub fn is_of(&self, admin_socket: &Path) -> bool {
        self.admin_socket() == admin_socket
    }

    /// Returns the admin socket of its driver: in the folder of the socket.
    pub fn admin_socket(&self) -> PathBuf {
        self.socket.with_file_name("admin.sock")
    }
}

/// Returns the path of the control socket of a starting container.
pub fn control_socket(name: &str) -> PathBuf {
    containers_dir().join(format!("{name}.sock"))
}

fn containers_dir() -> PathBuf {
    Path::new(RUN_DIR).join("containers")
}

fn bridges_dir() -> PathBuf {
    Path::new(RUN_DIR).join("bridges")
}

/// Returns the folder of notes on bridges with a network of a policy.
pub(super) fn networks_dir() -> PathBuf {
    Path::new(RUN_DIR).join("networks")
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let fresh = path.with_extension("tmp");
    fs::write(&fresh, serde_json::to_vec_pretty(value)?)
        .and_then(|()| fs::rename(&fresh, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The right to change files under [`RUN_DIR`]; given back when dropped or when its holder dies.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for it.
    pub fn acquire() -> Result<Lock> {
        let make = |path: &Path, mode| {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(mode)
                .create(path)
                .with_context(|| format!("cannot create {}; run as root", path.display()))
        };
        // Processes of a run that have given up root reach its driver here, by the socket's path. Nobody else can list or change anything.
        make(Path::new(RUN_DIR), 0o711)?;
        // The folder may be there with another mode.
        let _ = fs::set_permissions(RUN_DIR, PermissionsExt::from_mode(0o711));
        // A container hides what is there when it starts.
        OF_ALL.iter().try_for_each(|name| make(&Path::new(RUN_DIR).join(name), 0o700))?;
        let path = Path::new(RUN_DIR).join("lock");
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot open {}; run as root", path.display()))?;
        flock(&file, FlockOperation::LockExclusive)
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Lock { _file: file })
    }
}

/// Returns the recorded containers. Those whose `pd` was killed are included until the next [sweep](super::sweep::sweep).
pub fn records() -> Result<Vec<Record>> {
    let entries = match fs::read_dir(containers_dir()) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read {}; run as root", containers_dir().display()))?,
    };
    let mut records: Vec<Record> = entries
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|e| e == "json"))
        .filter_map(|entry| serde_json::from_slice(&fs::read(entry.path()).ok()?).ok())
        .collect();
    records.sort_by(|a: &Record, b| a.name.cmp(&b.name));
    Ok(records)
}

/// Writes down that `bridge` was made by this program, which will remove it with its last container.
pub fn claim_bridge(bridge: &str, _lock: &Lock) -> Result<()> {
    write_json(&bridges_dir().join(format!("{bridge}.json")), &bridge)
}

/// Removes the bridges made by this program that no container is on.
pub fn release_bridges(_lock: &Lock) {
    let used: Vec<String> = records().unwrap_or_default().into_iter().map(|r| r.bridge).collect();
    let Ok(entries) = fs::read_dir(bridges_dir()) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        let Some(bridge) = path.file_stem().and_then(|s| s.to_str()) else { continue };
        if !used.iter().any(|u| u == bridge) {
            links::delete(bridge);
            let _ = fs::remove_file(networks_dir().join(format!("{bridge}.json")));
            let _ = fs::remove_file(&path);
        }
    }
}

const SCRATCH: &str = "scratch";

/// A directory under [`RUN_DIR`] for one process; removed when dropped, or by the next sweep.
pub struct ScratchDir {
    path: PathBuf,
}

impl ScratchDir {
    /// Creates it for this process.
    pub fn create(_lock: &Lock) -> Result<ScratchDir> {
        let path = owned(SCRATCH);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(ScratchDir { path })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the directories of processes that are gone.
pub(super) fn sweep_dirs() {
    for path in orphans(SCRATCH) {
        let _ = fs::remove_dir_all(path);
    }
}

/// Returns a path under [`RUN_DIR`] for a directory of this process, or for a note that tells the next sweep
/// what to undo. `kind`: unique within this process.
pub fn owned(kind: &str) -> PathBuf {
    let own = ProcessId::own();
    Path::new(RUN_DIR).join(format!("{kind}-{}-{}", own.pid, own.start_ticks))
}

/// Returns the paths that [`owned`] has named for ended processes.
pub fn orphans(kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(RUN_DIR).into_iter().flatten().flatten();
    let of_the_dead = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_str().and_then(|name| owner(name, kind)).is_some_and(|owner| !owner.is_alive())
    };
    entries.filter(of_the_dead).map(|entry| entry.path()).collect()
}

fn owner(name: &str, kind: &str) -> Option<ProcessId> {
    let (pid, start_ticks) = name.strip_prefix(kind)?.strip_prefix('-')?.split_once('-')?;
    Some(ProcessId { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
}

/// Returns the inode of a process's network namespace.
pub fn netns_inode(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/ns/net");
    Ok(fs::metadata(&path).with_context(|| format!("cannot read {path}"))?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_is_no_process() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = child.id();
        let end = Instant::now() + Duration::from_secs(10);
        while ProcessId::of(id).is_some() && Instant::now() < end {
            sleep(Duration::from_millis(1));
        }
        assert_eq!(ProcessId::of(id), None, "nobody has waited for it yet");
        child.wait().unwrap();
    }

    #[test]
    fn this_process_is_alive_and_an_earlier_one_of_its_number_is_not() {
        let own = ProcessId::own();
        assert!(own.is_alive());
        assert!(!ProcessId { start_ticks: own.start_ticks + 1, ..own }.is_alive());
        assert!(!ProcessId::default().is_alive());
    }

    #[test]
    fn a_name_carries_its_owner() {
        assert_eq!(owner("scratch-12-34", SCRATCH), Some(ProcessId { pid: 12, start_ticks: 34 }));
        assert_eq!(owner("vm.max-12-34", SCRATCH), None);
        assert_eq!(owner("driver.sock", SCRATCH), None);
    }
}
