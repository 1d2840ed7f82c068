//! `/proc`, by a mount of this process's own where it has made one.
//!
//! Processes that share a mount of `/proc` share the locks of its folders. A process that lists a folder into memory which does not come
//! holds the folder's lock, and another call that wants to make a file there has all further look-ups wait. Nobody else lists the
//! folders of [`mount`].
use rustix::fs::{openat, readlinkat, statat, AtFlags, Mode, OFlags, Stat};
use rustix::io::Result;
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::ffi::CString;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

static OWN: OnceLock<OwnedFd> = OnceLock::new();

/// Makes a mount for this process alone, which is in no namespace of mounts. The functions here use it from then on. Only the first call
/// makes one.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `ENOSYS` before Linux 5.2. Before Linux 5.8 the mount has its folders in common with others.
pub fn mount() -> Result<()> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if OWN.get().is_some() {
        return Ok(());
    }
    let system = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&system)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mounted = fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let _ = OWN.set(mounted);
    Ok(())
}

/// Calls `at` with a folder and the path there of a file of `/proc`.
///
/// # Errors
/// Errors of `at`.
pub fn at<T>(path: &str, at: impl Fn(BorrowedFd<'_>, &str) -> Result<T>) -> Result<T> {
    match OWN.get() {
        Some(own) => at(own.as_fd(), path),
        None => at(rustix::fs::CWD, &format!("/proc/{path}")),
    }
}

/// Opens a file by its path below `/proc`, close-on-exec.
///
/// # Errors
/// Errors of `openat`.
pub fn open(path: &str, flags: OFlags) -> Result<OwnedFd> {
    at(path, |folder, path| openat(folder, path, flags | OFlags::CLOEXEC, Mode::empty()))
}

/// Returns facts about a file by its path below `/proc`.
///
/// # Errors
/// Errors of `fstatat`.
pub fn stat(path: &str) -> Result<Stat> {
    at(path, |folder, path| statat(folder, path, AtFlags::empty()))
}

/// Reads a symbolic link by its path below `/proc`.
///
/// # Errors
/// Errors of `readlinkat`.
pub fn read_link(path: &str) -> Result<CString> {
    at(path, |folder, path| readlinkat(folder, path, Vec::new()))
}

/// Reads a file of text by its path below `/proc`. Processes choose some of the names in it, of any bytes: bytes that are no text become U+FFFD.
///
/// # Errors
/// Errors of opening and reading it.
pub fn read(path: &str) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::from(open(path, OFlags::RDONLY)?).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_of_ones_own_shows_the_same_processes() {
        let before = stat("self/ns/net").unwrap();
        match mount() {
            Ok(()) => {}
            Err(error) => return println!("SKIPPED: no mount of one's own: {error}"),
        }
        mount().unwrap();
        let after = stat("self/ns/net").unwrap();
        assert_eq!((before.st_dev, before.st_ino), (after.st_dev, after.st_ino));
        assert!(read(&format!("{}/status", std::process::id())).unwrap().contains("PPid:"));
        let file = open("thread-self/status", OFlags::RDONLY).unwrap();
        let link = format!("self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        assert!(read_link(&link).unwrap().to_str().unwrap().ends_with("/status"));
        let shared = rustix::fs::stat("/proc").unwrap();
        assert_ne!(shared.st_dev, stat(".").unwrap().st_dev);
    }
}
