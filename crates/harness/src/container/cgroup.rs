//! Control groups of version 2, which count CPU time without any controller being enabled and show the driver the
//! container of a process. Also groups of whichever version has the controllers of a limit.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use pd_driver::mounts::{mounts, unified_hierarchy, Mount};
use rustix::mount::{mount, MountFlags};

/// A control group of this program; removed when dropped.
pub struct Cgroup {
    path: PathBuf,
}

/// Returns the mount point of the hierarchy of version 1 with this controller, if it is mounted.
fn mount_of(controller: &str) -> Option<PathBuf> {
    let has = |mount: &Mount| mount.options.split(',').any(|option| option == controller);
    let found = mounts().ok()?.into_iter().find(|mount| mount.kind == "cgroup" && has(mount));
    found.map(|mount| mount.place)
}

const PARENT: &str = "pipedevice";
/// Controllers of limits.
const LIMITING: [&str; 2] = ["cpu", "memory"];

fn parent() -> Option<PathBuf> {
    Some(unified_hierarchy()?.join(PARENT))
}

/// Mounts cgroup2 under [`RUN_DIR`](super::state::RUN_DIR) on a machine that has it nowhere: without it a process could
/// leave its container's tenant with its namespace.
fn mount_own() -> Option<PathBuf> {
    let place = Path::new(super::state::RUN_DIR).join("cgroup");
    fs::create_dir_all(&place).ok()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("cgroup2", &place, "cgroup2", flags, None).ok()?;
    Some(place)
}

/// Limits of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// CPU time, in cores.
    pub cpus: Option<f64>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Share of contended CPU time, as in `cpu.weight`; container engines give each container 100.
    pub weight: Option<u64>,
}

/// The period in which CPU time is given out.
const PERIOD_US: u64 = 100_000;

/// The usual weight of a group in version 2, and in version 1.
const WEIGHT_DEFAULT: u64 = 100;
const SHARES_DEFAULT: u64 = 1024;

/// Sets limits on `group`. If version 2 lacks the controllers, sets them on new groups of version 1, which are returned:
/// the container's processes have to be added to them, too.
///
/// # Errors
/// If neither version has a controller that a limit needs.
pub fn limit(group: Option<&Cgroup>, name: &str, limits: Limits) -> Result<Vec<Cgroup>> {
    let mut more = Vec::new();
    if let Some(cpus) = limits.cpus {
        let quota_us = (cpus * PERIOD_US as f64) as u64;
        if !set(group, "cpu", &[("cpu.max", format!("{quota_us} {PERIOD_US}"))])? {
            let (period, quota) = (PERIOD_US.to_string(), quota_us.to_string());
            more.push(of_version_1(
                "cpu",
                name,
                &[("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", quota)],
            )?);
        }
    }
    if let Some(weight) = limits.weight {
        if !set(group, "cpu", &[("cpu.weight", weight.to_string())])? {
            let shares = weight * SHARES_DEFAULT / WEIGHT_DEFAULT;
            more.push(of_version_1("cpu", name, &[("cpu.shares", shares.to_string())])?);
        }
    }
    if let Some(bytes) = limits.memory_bytes {
        if !set(group, "memory", &[("memory.max", bytes.to_string())])? {
            more.push(of_version_1("memory", name, &[("memory.limit_in_bytes", bytes.to_string())])?);
        } else if let Some(group) = group {
            // Without swap there is nothing to limit.
            let _ = fs::write(group.path.join("memory.swap.max"), "0");
        }
    }
    Ok(more)
}

/// Sets values of a controller of version 2. Returns whether version 2 has it.
fn set(group: Option<&Cgroup>, controller: &str, values: &[(&str, String)]) -> Result<bool> {
    let (Some(group), Some(root)) = (group, unified_hierarchy()) else { return Ok(false) };
    let has = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    if !has.split_whitespace().any(|one| one == controller) {
        return Ok(false);
    }
    for folder in [root.clone(), root.join(PARENT)] {
        let file = folder.join("cgroup.subtree_control");
        fs::write(&file, format!("+{controller}"))
            .with_context(|| format!("cannot enable the {controller} controller in {}", file.display()))?;
    }
    group.write(values)?;
    Ok(true)
}

fn of_version_1(controller: &str, name: &str, values: &[(&str, String)]) -> Result<Cgroup> {
    let Some(mounted) = mount_of(controller) else {
        bail!("this machine has no {controller} controller of control groups; leave its limit out");
    };
    let path = mounted.join(PARENT).join(name);
    fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let group = Cgroup { path };
    group.write(values)?;
    Ok(group)
}

impl Cgroup {
    /// Creates `pipedevice/NAME`. `None` if this machine has no writable cgroup2, with one warning.
    pub fn create(name: &str) -> Option<Cgroup> {
        static WARNED: std::sync::Once = std::sync::Once::new();
        let created = match parent().or_else(|| Some(mount_own()?.join(PARENT))) {
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

    fn write(&self, values: &[(&str, String)]) -> Result<()> {
        for (name, value) in values {
            let file = self.path.join(name);
            fs::write(&file, value).with_context(|| format!("cannot write {value} to {}", file.display()))?;
        }
        Ok(())
    }

    /// Moves a process into it.
    pub fn add(&self, pid: u32) -> Result<()> {
        join(&self.path, pid)
    }

    /// Returns the CPU time of everything that ran in it, user and system.
    pub fn cpu_usage(&self) -> Option<Duration> {
        parse_usage(&fs::read_to_string(self.path.join("cpu.stat")).ok()?)
    }

    /// Returns the group's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Moves a process into the group at `path`.
pub fn join(path: &Path, pid: u32) -> Result<()> {
    let file = path.join("cgroup.procs");
    fs::write(&file, pid.to_string())
        .with_context(|| format!("cannot move process {pid} into {}", file.display()))
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

/// Returns the folders of this program's groups, one in each hierarchy.
fn parents() -> Vec<PathBuf> {
    let limiting = LIMITING.iter().filter_map(|controller| Some(mount_of(controller)?.join(PARENT)));
    parent().into_iter().chain(limiting).collect()
}

fn remove_parent() {
    for parent in parents() {
        // Fails while another container's group is in it, as it should.
        let _ = fs::remove_dir(parent);
    }
}

/// Removes groups without processes that an ended `pd` left. The caller holds the lock, under which
/// every group gets its first process.
pub fn sweep() {
    for entry in parents().into_iter().filter_map(|parent| fs::read_dir(parent).ok()).flatten().flatten() {
        if entry.path().is_dir() {
            // The kernel refuses to remove a group that has processes.
            let _ = fs::remove_dir(entry.path());
        }
    }
    remove_parent();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_in_microseconds() {
        assert_eq!(parse_usage("usage_usec 1500\nuser_usec 1000\n"), Some(Duration::from_micros(1500)));
        assert_eq!(parse_usage("nothing"), None);
    }
}
