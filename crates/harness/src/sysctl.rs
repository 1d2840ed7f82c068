//! Limits of the whole machine that are raised for a while: `sysctl`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::container::state::{orphans, owned, Lock};

/// A limit that can be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Mappings that a process may have.
    Mappings,
    /// What the limit of a process's descriptors can be raised to.
    Descriptors,
}

impl Limit {
    const ALL: [Limit; 2] = [Limit::Mappings, Limit::Descriptors];

    /// Its name for `sysctl`.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Mappings => "vm.max_map_count",
            Limit::Descriptors => "fs.nr_open",
        }
    }

    fn path(self) -> PathBuf {
        Path::new("/proc/sys").join(self.name().replace('.', "/"))
    }
}

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
    /// Raises a limit to at least `least`; `None` if it is high enough.
    ///
    /// # Errors
    /// If it cannot be: not root, or a machine that does not let it.
    pub fn raise(limit: Limit, least: u64, _lock: &Lock) -> Result<Option<Raised>> {
        Raised::raise_in(limit.path(), least, owned(limit.name()))
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
        let raised = Raised { path, note, change };
        write(&raised.path, least)?;
        Ok(Some(raised))
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

fn read(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.trim().parse().with_context(|| format!("{} holds no number", path.display()))
}

fn write(path: &Path, value: u64) -> Result<()> {
    fs::write(path, value.to_string()).with_context(|| format!("cannot write {value} to {}", path.display()))
}

/// Undoes what killed processes have raised.
pub fn sweep(_lock: &Lock) {
    for limit in Limit::ALL {
        for note in orphans(limit.name()) {
            let change = fs::read(&note).ok().and_then(|text| serde_json::from_slice(&text).ok());
            if let Some(change) = change {
                let _ = undo(&limit.path(), change);
            }
            let _ = fs::remove_file(note);
        }
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
    fn what_somebody_else_has_set_stays() {
        let (_dir, path, note) = limit("10\n");
        let raised = Raised::raise_in(path.clone(), 20, note).unwrap();
        fs::write(&path, "30").unwrap();
        drop(raised);
        assert_eq!(read(&path).unwrap(), 30);
    }
}
