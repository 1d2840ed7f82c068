//! Control groups of tests.
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait until the kernel lets go of a group whose processes have ended.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// A control group, removed when dropped.
#[derive(Debug)]
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes the group, in a folder that is there. `None`: that is no hierarchy of control groups, or not a writable one.
    pub fn new(path: PathBuf) -> Option<Self> {
        std::fs::create_dir(&path).ok()?;
        let this = Self(path);
        this.path().join("cgroup.procs").exists().then_some(this)
    }

    /// Returns its folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes one of its files.
    ///
    /// # Errors
    /// Errors of the write.
    pub fn set(&self, file: &str, value: impl ToString) -> io::Result<()> {
        std::fs::write(self.0.join(file), value.to_string())
    }

    /// Returns a shell command that runs its arguments in the group.
    pub fn enter(&self) -> String {
        format!("echo $$ >{}/cgroup.procs; exec \"$@\"", self.0.display())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let until = Instant::now() + GONE_WITHIN;
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
