//! Reopening of a passed file, if it is a file of a disk that the client can read.
use crate::calls::simulated;
use rustix::fs::{fcntl_getfl, fstatfs, open, statx, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags, Result};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

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
    check_kind(passed)?;
    // Path within this thread, which may have a table of its own.
    let again = format!("/proc/thread-self/fd/{}", passed.as_raw_fd());
    let file = match open(&*again, HOW, Mode::empty()) {
        Err(Errno::PERM) => open(&*again, HOW.difference(OFlags::NOATIME), Mode::empty())?,
        file => file?,
    };
    check_reads(file.as_fd())?;
    Ok(file)
}

/// Flags of files that the driver opens: without waiting for the holder of a lease, and without an access time.
const HOW: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOATIME);

/// Checks a file that another driver has opened anew.
///
/// # Errors
/// `EACCES` if it is open for something else than the reads of a driver. Otherwise as of [`open_anew`].
pub fn check_opened(file: impl AsFd) -> Result<()> {
    let file = file.as_fd();
    let flags = fcntl_getfl(file)?;
    let is_read = flags & OFlags::ACCMODE == OFlags::RDONLY;
    if !is_read || flags.intersects(OFlags::PATH | OFlags::DIRECT | OFlags::APPEND) {
        return Err(Errno::ACCESS);
    }
    check_kind(file)?;
    check_reads(file)
}

/// Fails unless a file is a regular one, of a file system that waits for its disk alone.
fn check_kind(file: BorrowedFd<'_>) -> Result<()> {
    // No synchronization: a file system's own `stat` may take any time.
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let known = statx(file, "", how, StatxFlags::TYPE)?;
    if FileType::from_raw_mode(known.stx_mode.into()) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    // The simulation's files are memory.
    let is_of_disk = simulated::is_on() || known.stx_dev_major != 0;
    if !is_of_disk || ASKING_OTHERS.contains(&(fstatfs(file)?.f_type as u32)) {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(())
}

/// Fails unless a file has reads that do not wait.
fn check_reads(file: BorrowedFd<'_>) -> Result<()> {
    if simulated::is_on() {
        return Ok(());
    }
    let mut byte = [0];
    match rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
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
            println!("SKIPPED: files on a disk: the folder of temporary files is on none");
            return;
        }
        let opened = File::from(open_anew(&file).unwrap());
        let found = opened.metadata().unwrap();
        assert_eq!((found.dev(), found.ino()), (known.dev(), known.ino()));
        let both = File::options().read(true).write(true).open(&path).unwrap();
        // Of the three only the driver's own is one that another driver takes.
        check_opened(open_anew(&both).unwrap()).unwrap();
        assert_eq!(check_opened(&both).unwrap_err(), Errno::ACCESS);
        fcntl_setfl(&opened, OFlags::DIRECT).unwrap();
        assert_eq!(check_opened(&opened).unwrap_err(), Errno::ACCESS);
    }

    #[test]
    fn others_are_not_taken_from_another_driver() {
        let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let again = open(format!("/proc/self/fd/{}", memory.as_raw_fd()), OFlags::RDONLY, Mode::empty());
        assert_eq!(check_opened(again.unwrap()).unwrap_err(), Errno::OPNOTSUPP);
        assert_eq!(check_opened(File::open("/proc/self/maps").unwrap()).unwrap_err(), Errno::OPNOTSUPP);
        assert_eq!(check_opened(File::open(".").unwrap()).unwrap_err(), Errno::INVAL);
        assert_eq!(check_opened(rustix::pipe::pipe().unwrap().0).unwrap_err(), Errno::INVAL);
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
