//! A limit of the whole machine that is raised for a while: mappings that a process may have.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::container::state::{orphans, owned, Lock};

const PATH: &str = "/proc/sys/vm/max_map_count";
/// The name of notes of a raised limit.
const NOTE: &str = "mappings";

/// A limit that is raised; as before when dropped, or after the next sweep if this process is killed.
#[derive(Debug)]
pub struct Raised {
    path: PathBuf,
    note: PathBuf,
    change: Change,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Change {
    from: u64,
    to: u64,
}

impl Raised {
    /// Lets processes have `least` mappings (`vm.max_map_count`); `None` if they may already.
    ///
    /// # Errors
    /// If it cannot be set: not root, or a machine that does not allow it.
    pub fn mappings(least: u64, _lock: &Lock) -> Result<Option<Raised>> {
        Raised::raise_in(PATH.into(), least, owned(NOTE))
    }

    fn raise_in(path: PathBuf, least: u64, note: PathBuf) -> Result<Option<Raised>> {
        let from = read(&path)?;
        if from >= least {
            return Ok(None);
        }
        let change = Change { from, to: least };
        // Written before the change, so that a sweep finds it.
        fs::write(&note, serde_json::to_vec(&change)?)
            .with_context(|| format!("cannot write {}", note.display()))?;
        if let Err(e) = write(&path, least) {
            let _ = fs::remove_file(&note);
            return Err(e);
        }
        Ok(Some(Raised { path, note, change }))
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        let _lock = Lock::acquire();
        if let Err(e) = undo(&self.path, self.change) {
            eprintln!("pd: warning: {e:#}; it was {} before", self.change.from);
        }
        let _ = fs::remove_file(&self.note);
    }
}

/// Lowers a limit again, unless somebody else has changed it meanwhile.
fn undo(path: &Path, change: Change) -> Result<()> {
    match read(path)? == change.to {
        true => write(path, change.from),
        false => Ok(()),
    }
}

/// Returns the number in a file of the kernel.
pub(crate) fn read(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.trim().parse().with_context(|| format!("{} holds no number", path.display()))
}

/// Sets it.
pub(crate) fn write(path: &Path, value: u64) -> Result<()> {
    fs::write(path, value.to_string()).with_context(|| format!("cannot write {value} to {}", path.display()))
}

/// Undoes the changes of killed processes.
pub fn sweep(_lock: &Lock) {
    for note in orphans(NOTE) {
        let change = fs::read(&note).ok().and_then(|text| serde_json::from_slice(&text).ok());
        if let Some(change) = change {
            let _ = undo(Path::new(PATH), change);
        }
        let _ = fs::remove_file(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(value: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (path, note) = (dir.path().join("limit"), dir.path().join("note"));
        fs::write(&path, value).unwrap();
        (dir, path, note)
    }

    #[test]
    fn a_limit_is_raised_and_then_as_before() {
        let (_dir, path, note) = limit("10\n");
        assert!(Raised::raise_in(path.clone(), 10, note.clone()).unwrap().is_none() && !note.exists());
        let raised = Raised::raise_in(path.clone(), 11, note.clone()).unwrap();
        assert_eq!((read(&path).unwrap(), note.exists()), (11, true));
        drop(raised);
        assert_eq!((read(&path).unwrap(), note.exists()), (10, false));
    }

    #[test]
    fn what_cannot_be_raised_leaves_no_note() {
        let (dir, path, note) = limit("10\n");
        // A link leads to a file that cannot be written.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/proc/sys/kernel/random/poolsize", &path).unwrap();
        assert!(Raised::raise_in(path, 1 << 40, note.clone()).is_err() && !note.exists());
        drop(dir);
    }

    #[test]
    fn what_somebody_else_has_set_stays() {
        let (_dir, path, note) = limit("10\n");
        let raised = Raised::raise_in(path.clone(), 20, note).unwrap();
        fs::write(&path, "30").unwrap();
        drop(raised);
        assert_eq!(read(&path).unwrap(), 30);
    }
}
