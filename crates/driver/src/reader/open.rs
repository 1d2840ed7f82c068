//! Reopening of a passed file, if it is a file of a disk that the client can read.
use crate::calls::simulated;
use rustix::fs::{fcntl_getfl, fstatfs, open, statx, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags, Result};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// File systems on a block device that nevertheless depend on other parties: FUSE (`fuseblk`), and those of clusters.
const ASKING_OTHERS: [u32; 3] = [0x6573_5546, 0x7461_636f, 0x0116_1970];

/// Opens a file that a client has open for reading. The new description is the driver's alone: flags of the
/// client's own (`O_DIRECT`) do not affect the driver's reads.
///
/// # Errors
/// `EACCES` if the client cannot read by the descriptor. `EINVAL` if it is no regular file. `EOPNOTSUPP` if its file system is
/// not on a disk or has no reads that do not wait. Errors of opening it.
pub fn open_anew(passed: impl AsFd) -> Result<OwnedFd> {
    let passed = passed.as_fd();
    let flags = fcntl_getfl(passed)?;
    let can_read = [OFlags::RDONLY, OFlags::RDWR].contains(&(flags & OFlags::ACCMODE));
    if flags.contains(OFlags::PATH) || !can_read {
        return Err(Errno::ACCESS);
    }
    // No synchronization: a file system's own `stat` may take any time.
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let known = statx(passed, "", how, StatxFlags::TYPE)?;
    if FileType::from_raw_mode(known.stx_mode.into()) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    // The simulation's files are memory.
    let is_of_disk = simulated::is_on() || known.stx_dev_major != 0;
    if !is_of_disk || ASKING_OTHERS.contains(&(fstatfs(passed)?.f_type as u32)) {
        return Err(Errno::OPNOTSUPP);
    }
    // Path within this thread, which may have a table of its own.
    let again = format!("/proc/thread-self/fd/{}", passed.as_raw_fd());
    // Without waiting for the holder of a lease, and without an access time.
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOATIME;
    let file = match open(&*again, how, Mode::empty()) {
        Err(Errno::PERM) => open(&*again, how - OFlags::NOATIME, Mode::empty())?,
        file => file?,
    };
    if simulated::is_on() {
        return Ok(file);
    }
    let mut byte = [0];
    match rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT) {
        Ok(_) | Err(Errno::AGAIN) => Ok(file),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{fcntl_setfl, memfd_create, MemfdFlags};
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn what_the_client_can_read_is_opened_and_nothing_else() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "bytes").unwrap();
        let file = File::open(&path).unwrap();
        let writer = File::options().write(true).open(&path).unwrap();
        assert_eq!(open_anew(&writer).unwrap_err(), Errno::ACCESS);
        for what in [&*path, dir.path()] {
            let name = open(what, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            assert_eq!(open_anew(&name).unwrap_err(), Errno::ACCESS);
        }
        // Neither readable nor writable: see open(2).
        let neither = open(&path, OFlags::ACCMODE | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(open_anew(&neither).unwrap_err(), Errno::ACCESS);
        assert_eq!(open_anew(File::open(dir.path()).unwrap()).unwrap_err(), Errno::INVAL);
        assert_eq!(open_anew(rustix::pipe::pipe().unwrap().0).unwrap_err(), Errno::INVAL);
        let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(open_anew(&memory).unwrap_err(), Errno::OPNOTSUPP);
        assert_eq!(open_anew(File::open("/proc/self/maps").unwrap()).unwrap_err(), Errno::OPNOTSUPP);
        let known = file.metadata().unwrap();
        if rustix::fs::major(known.dev()) == 0 {
            // This file system is not on a block device.
            assert_eq!(open_anew(&file).unwrap_err(), Errno::OPNOTSUPP);
            return;
        }
        let opened = File::from(open_anew(&file).unwrap());
        let found = opened.metadata().unwrap();
        assert_eq!((found.dev(), found.ino()), (known.dev(), known.ino()));
        let both = File::options().read(true).write(true).open(&path).unwrap();
        open_anew(&both).unwrap();
    }

    #[test]
    fn the_clients_flags_are_not_the_drivers() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "bytes").unwrap();
        let file = File::open(&path).unwrap();
        let Ok(opened) = open_anew(&file) else { return };
        fcntl_setfl(&file, OFlags::DIRECT).unwrap();
        assert!(fcntl_getfl(&file).unwrap().contains(OFlags::DIRECT));
        assert!(!fcntl_getfl(&opened).unwrap().contains(OFlags::DIRECT));
    }
}
