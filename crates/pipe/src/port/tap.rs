//! `tap`: frames of an interface of the kernel, with this side as its other end (TUN/TAP).
//!
//! A process with the needed rights has made the device, and passes its descriptor. The device has no packet information and no
//! headers for offloads, so that the kernel completes checksums. A frame is read or written by one call, which does not block.
use super::device::{Device, Taken};
use pd_abi::pipe::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use rustix::fs::{fcntl_getfl, fcntl_setfl, fstat, makedev, FileType, OFlags};
use rustix::io::{read, write, Errno, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Number of `/dev/net/tun`.
const TUN: (u32, u32) = (10, 200);
/// Most frames of impossible lengths that are skipped at a time.
const SKIPPED_MAX: usize = 16;

/// The device.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    frame: Box<[u8]>,
    /// Bytes of the frame that was read and not advanced over.
    len: Option<usize>,
    missed: u64,
    has_gone: bool,
}

impl Tap {
    /// Takes a descriptor of a device of `IFF_TAP | IFF_NO_PI`.
    ///
    /// # Errors
    /// Errors of `fcntl`.
    pub fn new(fd: OwnedFd) -> Result<Self> {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        // The kernel cuts a longer frame, which its length shows.
        let frame = vec![0; usize::from(FRAME_BYTES_MAX) + 1].into();
        Ok(Self { fd, frame, len: None, missed: 0, has_gone: false })
    }

    /// Goes on with a device of an agent of another process: see [`Device::lasting`].
    ///
    /// # Errors
    /// `EINVAL` where it is no such device, or no such frame. Errors of `fstat` and `fcntl`.
    pub fn resume(fd: OwnedFd, frame: &[u8]) -> Result<Self> {
        let file = fstat(&fd)?;
        let is_tun = FileType::from_raw_mode(file.st_mode) == FileType::CharacterDevice
            && file.st_rdev == makedev(TUN.0, TUN.1);
        if !is_tun || !frame.is_empty() && !is_possible(frame.len()) {
            return Err(Errno::INVAL);
        }
        let mut this = Self::new(fd)?;
        this.frame[..frame.len()].copy_from_slice(frame);
        this.len = Some(frame.len()).filter(|&len| len > 0);
        Ok(this)
    }
}

fn is_possible(len: usize) -> bool {
    (usize::from(FRAME_BYTES_MIN)..=FRAME_BYTES_MAX.into()).contains(&len)
}

impl Device for Tap {
    fn peek(&mut self) -> Option<&[u8]> {
        for _ in 0..SKIPPED_MAX {
            if self.len.is_some() {
                break;
            }
            let read = read(&self.fd, &mut self.frame[..]);
            // The descriptor's interface was deleted.
            self.has_gone = read == Err(Errno::BADFD);
            let len = read.ok()?;
            let possible = is_possible(len);
            self.len = possible.then_some(len);
            self.missed += u64::from(!possible);
        }
        self.len.map(|len| &self.frame[..len])
    }

    fn advance(&mut self) {
        self.len = None;
    }

    fn send(&mut self, frame: &[u8]) -> Taken {
        match write(&self.fd, frame) {
            Ok(_) => Taken::Done,
            Err(Errno::INTR) => Taken::Wait,
            // The interface is down, or its queue is full.
            Err(_) => Taken::Lost,
        }
    }

    fn flush(&mut self) -> bool {
        false
    }

    fn has_gone(&mut self) -> bool {
        self.has_gone
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.fd.as_fd()]
    }

    fn missed(&self) -> u64 {
        self.missed
    }

    fn lasting(&self) -> Option<(BorrowedFd<'_>, &[u8])> {
        Some((self.fd.as_fd(), &self.frame[..self.len.unwrap_or(0)]))
    }
}
