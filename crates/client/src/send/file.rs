//! Sending a file without reading it: the driver reads it into the peer's receive ring. When a file is first sent, its
//! descriptor is passed to the driver on a socket made for that, and the driver opens it; after that a send names it and waits
//! for nobody.
use super::side::{partial, SendSide};
use crate::attachment::Attachment;
use crate::error::{would_block, Error, Result};
use crate::files::Name;
use crate::lock::Guard;
use crate::socket::Socket;
use crate::turn::lock;
use pd_abi::limits::{MESSAGE_BYTES_MAX, PAGE_BYTES};
use pd_abi::{FileId, Operation, Request, SocketId};
use rustix::fs::{fcntl_getfl, fstat, FileType, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// Less of a file is copied: that is done before the driver has looked.
const FILE_BYTES_MIN: u64 = 64 << 10;

impl Attachment {
    /// The file, which the driver opens if it has not. None: it does not.
    fn file(
        &self,
        fd: BorrowedFd<'_>,
        name: Name,
        ask: impl Fn(Request) -> Result<Answer>,
    ) -> Result<Option<FileId>> {
        let mut files = lock(&self.files);
        if let Some(id) = files.find(name) {
            return Ok(Some(id));
        }
        if !files.has_socket() {
            match self.file_socket() {
                Ok(socket) => files.pass_on(socket),
                Err(error) if !self.alive() => return Err(error),
                Err(_) => {
                    files.pause();
                    return Ok(None);
                }
            }
        }
        let Ok(serial) = files.pass(fd) else {
            files.pause();
            return Ok(None);
        };
        match ask(Request::new(Operation::OpenFile, SocketId(0), 0).with_numbers(serial, 0))? {
            Ok(id) => {
                files.add(name, id, &self.control);
                Ok(Some(id))
            }
            // Of no file of that file system, or of none at all.
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
                files.refuse(name);
                Ok(None)
            }
            Err(_) => {
                files.pause();
                Ok(None)
            }
        }
    }

    /// Counts a send of the file, which has to follow. False: the driver has closed it.
    fn count_file(&self, id: FileId) -> bool {
        lock(&self.files).count(id, &self.control, &self.status)
    }
}

type Answer = std::result::Result<FileId, Errno>;

impl Socket {
    /// Sends at most `len` bytes of a file from `offset` on: fewer if it ends before, and, on a non-blocking socket, if
    /// there is no room for more.
    ///
    /// # Errors
    /// `EAGAIN` without room; `EPIPE`, `ECONNRESET`, `ENOTCONN`; those of reading the file.
    pub fn send_file(&self, fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<usize> {
        self.check_usable()?;
        if let Some(carrier) = self.kernel.get() {
            return self.send_file_by_kernel(carrier, fd, offset, len);
        }
        let (mut sent, mut deadline) = (0, None);
        while sent < len {
            let (at, left) = (offset + sent as u64, len - sent);
            let step = match self.send_by_driver(fd, at, left) {
                Ok(None) => self.send_filled(left, &mut read_at(fd, at)),
                Ok(Some(part)) => Ok(part),
                Err(error) => Err(error),
            };
            match step {
                Ok(0) => break,
                Ok(part) => sent += part,
                Err(error) if error.errno() == libc::EAGAIN && !self.is_nonblocking() => {
                    match self.await_room(self.send.lock(), &mut deadline) {
                        Ok(side) => drop(side),
                        Err(error) => return partial(len, left as u64, error),
                    }
                }
                Err(error) => return partial(len, left as u64, error),
            }
        }
        Ok(sent)
    }

    /// Sends at most `len` bytes of a file from `offset` on, which the driver reads: as many as there is room for. They are
    /// read when they are delivered. A change of the file meanwhile changes what arrives, as with the kernel's `sendfile`. A
    /// file that is cut off ends the connection. Never waits for room. Returns `None` if the driver does not read the file: it
    /// would have to wait for a disk, the descriptor is not for reading only, or the connection is on the direct path. The
    /// caller then sends the bytes themselves ([`Self::send_filled`]).
    ///
    /// # Errors
    /// `EAGAIN` without room; `EPIPE`, `ECONNRESET`, `ENOTCONN`.
    pub fn send_by_driver(&self, fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Option<usize>> {
        self.check_usable()?;
        if (len as u64) < FILE_BYTES_MIN {
            return Ok(None);
        }
        let _copying = self.copying.lock();
        let side = self.send.lock();
        let (adoptable, link) = (side.adoptable, side.link.clone());
        drop(side);
        if link.goes_direct() {
            return Ok(None);
        }
        let attachment = &link.attachment;
        let Ok(known) = fstat(fd) else { return Ok(None) };
        let name = (known.st_dev, known.st_ino);
        if lock(&attachment.files).is_refused(name) {
            return Ok(None);
        }
        let len = (len as u64).min((known.st_size as u64).saturating_sub(offset)).min(MESSAGE_BYTES_MAX);
        let is_file = FileType::from_raw_mode(known.st_mode) == FileType::RegularFile;
        // A program that writes the file, too, may write it anew from its first byte as soon as it was sent.
        let is_source = fcntl_getfl(fd).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::RDONLY);
        if !is_file || !is_source || len < FILE_BYTES_MIN || is_cold(fd, offset, len) {
            return Ok(None);
        }
        if adoptable {
            self.adopt()?;
        }
        loop {
            let ask = |request| {
                let answer = attachment.channel()?.call(attachment, request)?;
                Ok(match answer.errno {
                    0 => Ok(FileId(answer.number() as u32)),
                    errno => Err(Errno::from_raw_os_error(errno as i32)),
                })
            };
            let Some(id) = attachment.file(fd, name, ask)? else { return Ok(None) };
            let Some((mut side, part)) = self.file_part(len)? else { return Ok(None) };
            if !Arc::ptr_eq(&side.link.attachment, attachment) {
                return Ok(None);
            }
            if attachment.count_file(id) {
                side.post_file(id, offset, part)?;
                side.check_taken()?;
                return Ok(Some(part as usize));
            }
        }
    }

    /// Returns how many of `wanted` bytes have room; `None` if the bytes do not go by the driver.
    fn file_part(&self, wanted: u64) -> Result<Option<(Guard<'_, SendSide>, u64)>> {
        let mut side = self.send.lock();
        if side.room() < wanted {
            side.reap();
        }
        loop {
            side.end()?;
            if side.out.has_ring() {
                return Ok(None);
            }
            let room = side.room().min(wanted);
            // Not a splinter.
            if room == wanted || room >= side.ring_bytes / 8 {
                return Ok(Some((side, room)));
            }
            if !(self.watch.subscribed() && side.arm()) {
                return Err(would_block());
            }
        }
    }
}

impl SendSide {
    fn post_file(&mut self, id: FileId, offset: u64, len: u64) -> Result<()> {
        self.link.submit(Request::send_file(self.link.id, id, offset, len))?;
        self.count(None, len);
        Ok(())
    }
}

/// Reads a file from `at` on, piece by piece.
fn read_at(fd: BorrowedFd<'_>, mut at: u64) -> impl FnMut(*mut u8, usize) -> Result<usize> + '_ {
    move |place, room| {
        let from = i64::try_from(at).map_err(|_| Error::invalid("no file is that long"))?;
        // SAFETY: the place has so much room.
        let read = unsafe { libc::pread(fd.as_raw_fd(), place.cast(), room, from) };
        let read = usize::try_from(read).map_err(|_| {
            let errno = std::io::Error::last_os_error().raw_os_error();
            Error::with_errno(errno.unwrap_or(libc::EIO), "the file cannot be read")
        })?;
        at += read as u64;
        Ok(read)
    }
}

/// Returns whether some of the range is known not to be in the page cache: then it is read by whose memory it shall count as.
fn is_cold(fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    /// See cachestat(2), Linux 6.5; the number is the same on all architectures.
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = [offset, len];
    let mut stat = [0u64; 5];
    // SAFETY: a range of two numbers and an answer of five, which live through the call.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), range.as_ptr(), stat.as_mut_ptr(), 0) };
    let page = PAGE_BYTES as u64;
    result == 0 && stat[0] < (offset + len).div_ceil(page) - offset / page
}
