//! The reader: opens files that clients send (`sendfile`), waits for disks, and closes them, all of which may take
//! long, on a thread of its own. What is in the page cache movers read themselves.
//!
//! The driver never takes a client's descriptor (see [`crate::kernel_socket`]). It looks the descriptor up in `/proc`,
//! sees that the client may read by it, and opens the file anew. Only files of a disk are opened: those of other file
//! systems (network, user space, overlay, memory) may hold up whoever opens them, or cannot say whether a read would wait.
use crate::identity::has_exited;
use crate::mailbox::Mailbox;
use crate::memory::{ClientMemory, Lease};
use crate::messages::{ClientId, FlowId, Process, ToMover};
use pd_shm::Mapping;
use rustix::fs::{makedev, open, statx, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags, Result};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

/// How others reach the reader. It ends when nobody can any more.
#[derive(Clone, Debug)]
pub struct Reader(Sender<Job>);

/// A file that the driver has open for a client. Dropped anywhere, closed by the reader: with the last one a removed file
/// goes, which takes time.
#[derive(Debug)]
pub struct OpenFile {
    fd: Option<OwnedFd>,
    reader: Reader,
    /// For the descriptor.
    _lease: Lease,
}

/// A client's file, as the client says.
#[derive(Debug)]
pub struct Wanted {
    /// The client's.
    pub process: Process,
    /// Its descriptor.
    pub descriptor: u32,
    /// The file's.
    pub device: u64,
    pub inode: u64,
    /// Of a descriptor of the driver's.
    pub lease: Lease,
}

/// Who asked for a file.
#[derive(Debug)]
pub struct Asker {
    /// The client...
    pub client: ClientId,
    /// ...as long as it has this memory.
    pub memory: Arc<ClientMemory>,
    /// Where the file goes.
    pub slot: usize,
    /// Where the answer goes.
    pub channel: usize,
    pub tag: u32,
}

/// A piece of a file that is on a disk.
#[derive(Debug)]
pub struct ColdRead {
    pub file: Arc<OpenFile>,
    /// First byte of the piece.
    pub from: u64,
    /// Where it goes: bytes that the flow has reserved in its receive ring.
    pub map: Arc<Mapping>,
    pub offset: usize,
    pub len: usize,
    /// The flow's number of them.
    pub entry_seq: u16,
}

#[derive(Debug)]
enum Job {
    Open { wanted: Wanted, asker: Asker, reader: Reader, to: Arc<Mailbox<ToMover>> },
    Read { read: ColdRead, flow: FlowId, to: Arc<Mailbox<ToMover>> },
    Close(OwnedFd),
}

/// What is left to do, for [`Jobs::run`].
#[derive(Debug)]
pub struct Jobs(Receiver<Job>);

impl Reader {
    /// A way to a reader, and the reader's work.
    pub fn new() -> (Self, Jobs) {
        let (sender, receiver) = channel();
        (Self(sender), Jobs(receiver))
    }

    /// Opens a file; `to` gets a [`ToMover::FileOpened`].
    pub fn open(&self, wanted: Wanted, asker: Asker, to: &Arc<Mailbox<ToMover>>) {
        // Without a reader the driver is ending.
        let _ = self.0.send(Job::Open { wanted, asker, reader: self.clone(), to: Arc::clone(to) });
    }

    /// Reads a piece of a file; `to` gets a [`ToMover::FileRead`].
    pub fn read(&self, read: ColdRead, flow: FlowId, to: &Arc<Mailbox<ToMover>>) {
        let _ = self.0.send(Job::Read { read, flow, to: Arc::clone(to) });
    }
}

impl OpenFile {
    /// Reads into bytes of a receive ring what is in the page cache.
    ///
    /// # Errors
    /// Those of [`Mapping::read_file`].
    ///
    /// # Safety
    /// Those of [`Mapping::read_file`].
    pub unsafe fn read(&self, map: &Mapping, offset: usize, len: usize, from: u64) -> Result<usize> {
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        // SAFETY: the caller's promise.
        unsafe { map.read_file(offset, len, fd, from, true) }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            let _ = self.reader.0.send(Job::Close(fd));
        }
    }
}

impl ColdRead {
    /// Whether all of it could be read.
    fn carry_out(&self) -> bool {
        let mut done = 0;
        while done < self.len {
            let Some(fd) = &self.file.fd else { return false };
            let (to, from) = (self.offset + done, self.from + done as u64);
            // SAFETY: the flow has reserved these bytes of its ring for the piece until it hears of the end.
            match unsafe { self.map.read_file(to, self.len - done, fd, from, false) } {
                Ok(0) => return false,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot read a client's file");
                    return false;
                }
            }
        }
        true
    }
}

impl Jobs {
    /// Works until nobody can ask any more.
    pub fn run(self) {
        for job in self.0 {
            match job {
                Job::Open { wanted, asker, reader, to } => {
                    let file = wanted.open();
                    let file =
                        file.map(|fd| Arc::new(OpenFile { fd: Some(fd), reader, _lease: wanted.lease }));
                    to.send(ToMover::FileOpened(Some(Box::new((asker, file)))));
                }
                Job::Read { read, flow, to } => {
                    let whole = read.carry_out();
                    to.send(ToMover::FileRead { flow, entry_seq: read.entry_seq, whole });
                }
                Job::Close(fd) => drop(fd),
            }
        }
    }
}

impl Wanted {
    /// Opens the file for reading.
    ///
    /// # Errors
    /// `EINVAL` if it is no regular file, `ESTALE` if the descriptor is of another file, `EACCES` if the client cannot
    /// read by it, `EOPNOTSUPP` if its file system is none of a disk or has no reads that do not wait, `ESRCH` if the client has
    /// died; those of opening it.
    fn open(&self) -> Result<OwnedFd> {
        // Asks nobody: a file system's own `open` and `stat` may take as long as they like.
        let place = format!("/proc/{}/fd/{}", self.process.pid, self.descriptor);
        let path = open(place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let known = statx(&path, "", flags, StatxFlags::TYPE | StatxFlags::INO | StatxFlags::MNT_ID)?;
        if FileType::from_raw_mode(known.stx_mode.into()) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        let device = makedev(known.stx_dev_major, known.stx_dev_minor);
        if (device, known.stx_ino) != (self.device, self.inode) {
            return Err(Errno::STALE);
        }
        if known.stx_dev_major == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let info = std::fs::read_to_string(format!("/proc/{}/fdinfo/{}", self.process.pid, self.descriptor))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        check_readable(&info, known.stx_ino, known.stx_mnt_id)?;
        // All of that was the client's, and not another process's with its number, only if it is alive now.
        if has_exited(&self.process.pidfd)? {
            return Err(Errno::SRCH);
        }
        let again = format!("/proc/self/fd/{}", path.as_raw_fd());
        // Without waiting for the holder of a lease, and without a trace in the file.
        let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOATIME;
        let file = match open(&*again, how, Mode::empty()) {
            Err(Errno::PERM) => open(&*again, how - OFlags::NOATIME, Mode::empty())?,
            file => file?,
        };
        let mut byte = [0];
        match rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT) {
            Ok(_) | Err(Errno::AGAIN) => Ok(file),
            Err(error) => Err(error),
        }
    }
}

/// Whether a descriptor, of which the kernel says `info`, can read this file. The descriptor may have become another
/// file's since that was looked at.
fn check_readable(info: &str, inode: u64, mount: u64) -> Result<()> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let number = |name| field(name).and_then(|text| text.parse::<u64>().ok());
    if number("mnt_id:") != Some(mount) || number("ino:") != Some(inode) {
        return Err(Errno::STALE);
    }
    let flags = field("flags:").and_then(|text| u32::from_str_radix(text, 8).ok()).ok_or(Errno::STALE)?;
    let flags = OFlags::from_bits_retain(flags);
    if flags.contains(OFlags::PATH) || flags & OFlags::ACCMODE == OFlags::WRONLY {
        return Err(Errno::ACCESS);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Amounts, HugepageUse, Pool};
    use rustix::process::{getpid, pidfd_open, PidfdFlags};
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    fn wanted(file: &File) -> Wanted {
        let known = file.metadata().unwrap();
        let pidfd = Arc::new(pidfd_open(getpid(), PidfdFlags::NONBLOCK).unwrap());
        Wanted {
            process: Process { pid: std::process::id(), pidfd },
            descriptor: file.as_raw_fd() as u32,
            device: known.dev(),
            inode: known.ino(),
            lease: Pool::new(0, HugepageUse::Off).root().lease(Amounts::descriptor()).unwrap(),
        }
    }

    #[test]
    fn what_the_client_can_read_is_opened_and_nothing_else() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "bytes").unwrap();
        let file = File::open(&path).unwrap();
        if rustix::fs::major(wanted(&file).device) == 0 {
            // The sources are not on a disk of their own.
            assert_eq!(wanted(&file).open().unwrap_err(), Errno::OPNOTSUPP);
            return;
        }
        let opened = wanted(&file).open().unwrap();
        assert_eq!(File::from(opened).metadata().unwrap().ino(), wanted(&file).inode);

        let other = Wanted { inode: wanted(&file).inode + 1, ..wanted(&file) };
        assert_eq!(other.open().unwrap_err(), Errno::STALE);
        let writer = File::options().write(true).open(&path).unwrap();
        assert_eq!(wanted(&writer).open().unwrap_err(), Errno::ACCESS);
        let name = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(wanted(&File::from(name)).open().unwrap_err(), Errno::ACCESS);
        let folder = File::open(dir.path()).unwrap();
        assert_eq!(wanted(&folder).open().unwrap_err(), Errno::INVAL);
        let memory = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        assert_eq!(wanted(&memory).open().unwrap_err(), Errno::OPNOTSUPP);
    }

    #[test]
    fn a_process_that_has_exited_has_no_files() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = Arc::new(pidfd_open(pid, PidfdFlags::NONBLOCK).unwrap());
        child.wait().unwrap();
        // As if this process had got its number.
        let process = Process { pidfd, ..wanted(&file).process };
        let error = Wanted { process, ..wanted(&file) }.open().unwrap_err();
        assert!(matches!(error, Errno::SRCH | Errno::OPNOTSUPP), "{error}");
    }

    #[test]
    fn descriptors_are_judged_by_what_the_kernel_says() {
        let info = |flags: &str, mount, inode| {
            format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t{mount}\nino:\t{inode}\nlock:\t1: POSIX\n")
        };
        assert_eq!(check_readable(&info("0100000", 7, 9), 9, 7), Ok(()));
        assert_eq!(check_readable(&info("02102", 7, 9), 9, 7), Ok(()));
        assert_eq!(check_readable(&info("0100001", 7, 9), 9, 7), Err(Errno::ACCESS));
        assert_eq!(check_readable(&info("010000000", 7, 9), 9, 7), Err(Errno::ACCESS));
        assert_eq!(check_readable(&info("0100000", 7, 9), 8, 7), Err(Errno::STALE));
        assert_eq!(check_readable(&info("0100000", 6, 9), 9, 7), Err(Errno::STALE));
        assert_eq!(check_readable("", 9, 7), Err(Errno::STALE));
    }
}
