//! Memory that one party writes and others only read, and that can go to another process of the writer's.
//!
//! A seal ([`crate::memfd::seal_against_all`]) refuses every new writable mapping, also one of the process that takes the writer's place. A file
//! here has two ways to it. The writer has it open by a mount for writing, and keeps that descriptor. Readers have it open by a
//! read-only mount of the same file system, so that the kernel refuses to open it for writing through `/proc`, whatever their rights
//! over files are. Neither mount is in any namespace of mounts. The file has no name: who holds no descriptor of the
//! first kind never gets one.
use crate::memfd::Pages;
use rustix::fs::{
    fcntl_getfl, fstat, fstatfs, ftruncate, linkat, openat, unlinkat, AtFlags, Mode, OFlags, CWD,
};
use rustix::io::{Errno, Result};
use rustix::mount::{
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree, FsMountFlags,
    FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// See the module.
#[derive(Debug)]
pub struct Shelf {
    pages: Pages,
    /// The root of the file system by the mount for writing, and by the read-only one.
    writable: OwnedFd,
    readable: OwnedFd,
    /// Names given so far: each is taken back at once.
    named: AtomicU64,
}

impl Shelf {
    /// A file system of its own for files of such pages. A thread makes it in a namespace of mounts that ends with the thread.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`; `ENODEV` and others where the kernel lacks something (Linux 5.12).
    pub fn new(pages: Pages) -> std::io::Result<Self> {
        let made = std::thread::scope(|scope| {
            let thread =
                std::thread::Builder::new().name("pd-mount".into()).spawn_scoped(scope, || mount(pages));
            Ok::<_, std::io::Error>(thread?.join().unwrap_or(Err(Errno::IO)))
        });
        let (writable, readable) = made??;
        Ok(Self { pages, writable, readable, named: AtomicU64::new(0) })
    }

    /// A file of `bytes` bytes: for the writer, and for a reader. No page of it exists yet.
    ///
    /// # Errors
    /// `EINVAL` if `bytes` is not a positive multiple of the page size; those of the calls.
    pub fn make(&self, bytes: usize) -> Result<(OwnedFd, OwnedFd)> {
        if bytes == 0 || bytes % self.pages.bytes() != 0 {
            return Err(Errno::INVAL);
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let own = openat(&self.writable, ".", flags, Mode::RUSR | Mode::WUSR)?;
        ftruncate(&own, bytes as u64)?;
        // The file needs a name until it is opened by the other mount.
        let name = self.named.fetch_add(1, Ordering::Relaxed).to_string();
        crate::procfs::at(&format!("self/fd/{}", own.as_raw_fd()), |folder, path| {
            linkat(folder, path, &self.writable, &name, AtFlags::SYMLINK_FOLLOW)
        })?;
        let theirs = openat(&self.readable, &name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        unlinkat(&self.writable, &name, AtFlags::empty())?;
        Ok((own, theirs?))
    }
}

fn mount(pages: Pages) -> Result<(OwnedFd, OwnedFd)> {
    // SAFETY: the calling thread has just begun and ends after this: nobody counts on what it shared with others.
    if unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) } != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::PERM));
    }
    // Mounts made here are nowhere else.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let system = match pages {
        Pages::Ordinary => fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?,
        Pages::Huge => fsopen("hugetlbfs", FsOpenFlags::FSOPEN_CLOEXEC)?,
    };
    match pages {
        // Without limits: accounts bound what is made.
        Pages::Ordinary => {
            fsconfig_set_string(&system, "size", "0")?;
            fsconfig_set_string(&system, "nr_inodes", "0")?;
        }
        Pages::Huge => fsconfig_set_string(&system, "pagesize", "2M")?,
    }
    fsconfig_set_string(&system, "mode", "0700")?;
    fsconfig_create(&system)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mounted = fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    // Of a mount that is in no namespace there are no copies before Linux 6.15.
    move_mount(&mounted, "", CWD, "/proc", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    let copy = || {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        open_tree(&mounted, "", flags)
    };
    let (writable, readable) = (copy()?, copy()?);
    let read_only =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is an empty string that ends, and the attributes are of the size that is said.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            readable.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const read_only,
            size_of::<libc::mount_attr>(),
        )
    };
    if set != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS));
    }
    Ok((writable, readable))
}

/// Checks a file that another process has made here: exactly `bytes` bytes of such pages, open for writing, without a name.
///
/// # Errors
/// `EINVAL` if it is not such a file; those of the calls.
pub fn check(fd: impl AsFd, bytes: usize, pages: Pages) -> Result<()> {
    let (file, system) = (fstat(&fd)?, fstatfs(&fd)?);
    let magic = match pages {
        Pages::Ordinary => TMPFS_MAGIC,
        Pages::Huge => HUGETLBFS_MAGIC,
    };
    let is_ours = system.f_type as u64 & 0xffff_ffff == magic && file.st_nlink == 0;
    let fits = file.st_size as usize == bytes && bytes > 0 && bytes % pages.bytes() == 0;
    let writes = fcntl_getfl(&fd)?.contains(OFlags::RDWR);
    match is_ours && fits && writes {
        true => Ok(()),
        false => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::is_let_go;
    use crate::{Mapping, Protection};
    use pd_abi::limits::PAGE_BYTES;
    use rustix::fs::open;

    #[test]
    fn readers_cannot_write_and_successors_can() {
        let shelf = match Shelf::new(Pages::Ordinary) {
            Ok(shelf) => shelf,
            Err(error) => return println!("SKIPPED: no file system of one's own: {error}"),
        };
        let (own, theirs) = shelf.make(4 * PAGE_BYTES).unwrap();
        let map = Mapping::new(&own, 4 * PAGE_BYTES, Protection::ReadWrite).unwrap();
        map.store_u64(0, 7, Ordering::Relaxed);
        let read = Mapping::new(&theirs, 4 * PAGE_BYTES, Protection::Read).unwrap();
        assert_eq!(read.load_u64(0, Ordering::Relaxed), 7);
        assert_eq!(Mapping::new(&theirs, PAGE_BYTES, Protection::ReadWrite).unwrap_err(), Errno::ACCESS);
        let path = format!("/proc/self/fd/{}", theirs.as_raw_fd());
        for flags in [OFlags::RDWR, OFlags::WRONLY, OFlags::RDWR | OFlags::TRUNC] {
            assert_eq!(open(&path, flags, Mode::empty()).unwrap_err(), Errno::ROFS);
        }
        assert!(rustix::fs::fchmod(&theirs, Mode::all()).is_err());
        assert!(ftruncate(&theirs, 0).is_err());
        // Another process has no more than the descriptor.
        let passed = rustix::io::fcntl_dupfd_cloexec(&own, 0).unwrap();
        check(&passed, 4 * PAGE_BYTES, Pages::Ordinary).unwrap();
        assert!(check(&passed, 2 * PAGE_BYTES, Pages::Ordinary).is_err());
        assert!(check(&passed, 4 * PAGE_BYTES, Pages::Huge).is_err());
        assert!(check(&theirs, 4 * PAGE_BYTES, Pages::Ordinary).is_err());
        let again = Mapping::new(&passed, 4 * PAGE_BYTES, Protection::ReadWrite).unwrap();
        again.store_u64(8, 9, Ordering::Relaxed);
        assert_eq!(read.load_u64(8, Ordering::Relaxed), 9);
        drop((passed, again, map));
        assert!(!is_let_go(&own));
        drop((theirs, read));
        assert!(is_let_go(&own));
    }
}
