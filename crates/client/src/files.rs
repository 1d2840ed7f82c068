//! Files that the driver has open for this process, as one attachment knows them, and where their descriptors are passed to it.
use crate::own::OwnFd;
use pd_abi::layout::{control_header, header};
use pd_abi::FileId;
use pd_shm::{passed, Own, Region, Theirs};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{fence, Ordering};
use std::time::{Duration, Instant};

/// Time without questions for files after the driver has refused one for a reason that may pass.
const REFUSED: Duration = Duration::from_millis(100);

/// Files that the driver has open for this process.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// By the slot of their ids.
    known: Vec<Option<Known>>,
    /// Devices whose files the driver does not open.
    refused: Vec<u64>,
    again: Option<Instant>,
    /// Where descriptors are passed, from the first file on.
    socket: Option<OwnFd>,
    /// Of the last one passed.
    serial: u64,
}

#[derive(Debug)]
struct Known {
    name: Name,
    id: FileId,
    /// Sends so far.
    uses: u32,
}

/// Device and inode.
pub(crate) type Name = (u64, u64);

impl Files {
    pub(crate) fn find(&self, name: Name) -> Option<FileId> {
        self.known.iter().flatten().find(|known| known.name == name).map(|known| known.id)
    }

    /// Returns whether the driver does not open this file, or not now.
    pub(crate) fn is_refused(&self, name: Name) -> bool {
        let now = || self.again.is_some_and(|again| Instant::now() < again);
        self.find(name).is_none() && (self.refused.contains(&name.0) || now())
    }

    /// Takes in a file that the driver has opened.
    pub(crate) fn add(&mut self, name: Name, id: FileId, control: &Region<Own>) {
        let slot = usize::from(id.slot());
        control.store_u32(control_header::FILE_USES + 4 * slot, 0, Ordering::Release);
        if self.known.len() <= slot {
            self.known.resize_with(slot + 1, || None);
        }
        self.known[slot] = Some(Known { name, id, uses: 0 });
    }

    /// Counts a send of the file, which has to follow. False: the driver has closed it.
    pub(crate) fn count(&mut self, id: FileId, control: &Region<Own>, status: &Region<Theirs>) -> bool {
        let slot = usize::from(id.slot());
        let Some(place) = self.known.get_mut(slot) else { return false };
        let Some(known) = place.as_mut().filter(|known| known.id == id) else { return false };
        let uses = control_header::FILE_USES + 4 * slot;
        control.store_u32(uses, known.uses.wrapping_add(1), Ordering::Release);
        // SYNC POINT: file-dekker
        fence(Ordering::SeqCst);
        if status.load_u32(header::FILES + 4 * slot, Ordering::Acquire) == id.0 {
            known.uses = known.uses.wrapping_add(1);
            return true;
        }
        // Or is about to: it may find that it need not, and then shall later.
        control.store_u32(uses, known.uses, Ordering::Release);
        *place = None;
        false
    }

    /// The driver opens no file of this one's device.
    pub(crate) fn refuse(&mut self, name: Name) {
        self.refused.push(name.0);
    }

    /// Tells whether there is a socket to pass descriptors on.
    pub(crate) fn has_socket(&self) -> bool {
        self.socket.is_some()
    }

    /// Passes descriptors on `socket` from now on.
    pub(crate) fn pass_on(&mut self, socket: OwnFd) {
        self.socket = Some(socket);
    }

    /// Passes a file to the driver. Returns the serial to ask for it by. Never waits.
    pub(crate) fn pass(&mut self, fd: BorrowedFd<'_>) -> rustix::io::Result<u64> {
        let socket = self.socket.as_ref().ok_or(Errno::NOTCONN)?;
        // Used up, whether it goes or not.
        self.serial += 1;
        passed::send(socket, self.serial, fd)?;
        Ok(self.serial)
    }

    /// The driver is not asked for a while.
    pub(crate) fn pause(&mut self) {
        self.again = Some(Instant::now() + REFUSED);
    }
}
