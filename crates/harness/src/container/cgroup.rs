//! Control groups (version 2), used for nothing but counting CPU time: `cpu.stat` counts without any
//! controller being enabled.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A control group of this program; removed when dropped.
pub struct Cgroup {
    path: PathBuf,
}

/// Where the cgroup2 hierarchy is mounted, if it is.
pub fn mount_point() -> Option<PathBuf> {
    find_mount(&fs::read_to_string("/proc/mounts").ok()?)
}

fn find_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, path, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path.replace("\\040", " ")))
    })
}

fn parent() -> Option<PathBuf> {
    Some(mount_point()?.join("pipedevice"))
}

impl Cgroup {
    /// Creates `pipedevice/NAME`. `None` if this machine has no writable cgroup2, with one warning.
    pub fn create(name: &str) -> Option<Cgroup> {
        static WARNED: std::sync::Once = std::sync::Once::new();
        let created = match parent() {
            None => Err("no cgroup2 file system is mounted".to_owned()),
            Some(parent) => {
                let path = parent.join(name);
                fs::create_dir_all(&path)
                    .map(|()| Cgroup { path: path.clone() })
                    .map_err(|e| format!("cannot create {}: {e}", path.display()))
            }
        };
        created
            .inspect_err(|reason| {
                WARNED.call_once(|| eprintln!("pd: warning: {reason}; CPU per container is not counted"));
            })
            .ok()
    }

    /// Moves a process into it.
    pub fn add(&self, pid: u32) -> Result<()> {
        let file = self.path.join("cgroup.procs");
        fs::write(&file, pid.to_string())
            .with_context(|| format!("cannot move process {pid} into {}", file.display()))
    }

    /// CPU time of everything that ran in it, user and system.
    pub fn cpu_usage(&self) -> Option<Duration> {
        parse_usage(&fs::read_to_string(self.path.join("cpu.stat")).ok()?)
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        let end = Instant::now() + Duration::from_secs(2);
        while fs::remove_dir(&self.path).is_err_and(|e| e.kind() != ErrorKind::NotFound)
            && Instant::now() < end
        {
            sleep(Duration::from_millis(5));
        }
        remove_parent();
    }
}

fn parse_usage(stat: &str) -> Option<Duration> {
    let line = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    line.trim().parse().ok().map(Duration::from_micros)
}

fn remove_parent() {
    if let Some(parent) = parent() {
        // Fails while another container's group is in it, as it should.
        let _ = fs::remove_dir(parent);
    }
}

/// Removes groups without processes that an ended `pd` left. The caller holds the lock, under which
/// every group gets its first process.
pub fn sweep() {
    let Some(entries) = parent().and_then(|parent| fs::read_dir(parent).ok()) else { return };
    for entry in entries.flatten().filter(|e| e.path().is_dir()) {
        // The kernel refuses to remove a group that has processes.
        let _ = fs::remove_dir(entry.path());
    }
    remove_parent();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_among_others() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(find_mount(mounts), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(find_mount("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn usage_is_read_in_microseconds() {
        assert_eq!(parse_usage("usage_usec 1500\nuser_usec 1000\n"), Some(Duration::from_micros(1500)));
        assert_eq!(parse_usage("nothing"), None);
    }
}
