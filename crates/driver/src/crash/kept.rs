//! Findings of a driver that starts: what the one before has left with the service manager.
use super::keeping::{ADMIN, ATTACH, BATCH, HEAD_BYTES, MAGIC, MARKS, SNAPSHOT};
use super::marks::Marks;
use super::store::{peek_from_start, Manager};
use crate::door::Sockets;
use crate::peer::refuse_descriptors;
use crate::settings::Settings;
use crate::takeover::offer::FDS_MAX;
use crate::takeover::pack::Wrong;
use crate::takeover::taking::{self, is_listener};
use rustix::net::{
    getsockname, recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketType,
};
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Most bytes of a state.
const BYTES_MAX: u64 = 1 << 30;

/// State of a driver that was killed.
#[derive(Debug)]
pub struct Kept {
    epoch: u64,
    socket: OwnedFd,
}

/// Parts of a driver that stores snapshots.
#[derive(Debug)]
pub struct Storing {
    pub manager: Manager,
    pub marks: Arc<Marks>,
    /// Names of former snapshots.
    pub former: Vec<String>,
}

/// Returns the number of places for connections that a driver with these settings can have.
fn places(settings: &Settings) -> usize {
    2 * settings.connections_max.max(1 << 16) + 1
}

/// Sorts what the manager has passed on: listening sockets and state of a driver that was killed, if they fit. Everything else is let go of.
///
/// # Errors
/// A lack of memory.
pub fn sort(
    manager: Manager,
    inherited: Vec<(String, OwnedFd)>,
    settings: &Settings,
) -> rustix::io::Result<(Storing, Option<Sockets>, Option<Kept>)> {
    let (mut attach, mut admin, mut marks, mut snapshots) = (None, None, None, Vec::new());
    let mut names = Vec::new();
    for (name, fd) in inherited {
        match &*name {
            ATTACH => attach = Some(fd),
            ADMIN => admin = Some(fd),
            MARKS => marks = Some(fd),
            _ => {
                if let Some(epoch) = name.strip_prefix(SNAPSHOT).and_then(|number| number.parse::<u64>().ok())
                {
                    snapshots.push(Kept { epoch, socket: fd });
                }
            }
        }
        names.push(name);
    }
    let sockets = match (attach, admin) {
        (Some(attach), Some(admin)) => sockets(attach, admin, settings),
        _ => None,
    };
    snapshots.sort_unstable_by_key(|kept| kept.epoch);
    let known = marks.and_then(|file| Marks::resume(file, places(settings)).ok());
    let (marks, kept) = match (known, snapshots.pop()) {
        (Some(marks), Some(kept)) => {
            marks.begin_after(kept.epoch);
            (marks, Some(kept))
        }
        (_, kept) => {
            if kept.is_some() {
                tracing::warn!("the state of the driver before does not fit: its connections are reset");
            }
            (Marks::new(places(settings))?, None)
        }
    };
    let mut former = Vec::new();
    for name in names {
        match &*name {
            ATTACH | ADMIN if sockets.is_some() => {}
            MARKS if kept.is_some() => {}
            _ if kept.is_some() && name.starts_with(SNAPSHOT) => former.push(name),
            _ => manager.remove(&name)?,
        }
    }
    if kept.is_none() {
        manager.store(MARKS, &[marks.file().as_fd()])?;
    }
    Ok((Storing { manager, marks: Arc::new(marks), former }, sockets, kept))
}

/// Checks listening sockets, and lists them as this process's.
fn sockets(attach: OwnedFd, admin: OwnedFd, settings: &Settings) -> Option<Sockets> {
    let is_at = |fd: &OwnedFd, path: &Path| {
        let address = getsockname(fd).ok().and_then(|address| SocketAddrUnix::try_from(address).ok());
        let bound = address.as_ref().and_then(SocketAddrUnix::path_bytes);
        bound == Some(path.as_os_str().as_encoded_bytes()) && path.exists()
    };
    let are_these = is_listener(&attach, SocketType::SEQPACKET)
        && is_listener(&admin, SocketType::STREAM)
        && is_at(&attach, &settings.socket)
        && is_at(&admin, &settings.admin_socket);
    if !are_these {
        return None;
    }
    let is_safe = refuse_descriptors(&attach).is_ok();
    let sockets = Sockets { attach, admin, is_safe, maps: Vec::new() };
    taking::announce(&sockets).ok().map(|()| sockets)
}

impl Storing {
    /// Stores the sockets that the driver listens on.
    ///
    /// # Errors
    /// Errors of `sendmsg`.
    pub fn store_sockets(&self, sockets: &Sockets) -> rustix::io::Result<()> {
        self.manager.store(ATTACH, &[sockets.attach.as_fd()])?;
        self.manager.store(ADMIN, &[sockets.admin.as_fd()])
    }

    /// Has the manager let go of everything, so that the next driver starts anew.
    pub fn give_up(&self) {
        let others = [MARKS, ATTACH, ADMIN];
        for name in self.former.iter().map(String::as_str).chain(others) {
            let _ = self.manager.remove(name);
        }
    }
}

impl Kept {
    /// Returns the snapshot's number.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the state, and its descriptors. They stay in the snapshot, for the case that this driver is killed before it has taken one.
    ///
    /// # Errors
    /// The fault in it.
    pub fn read(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), Wrong> {
        let wrong = |errno: rustix::io::Errno| Wrong::of(format!("the snapshot cannot be read: {errno}"));
        peek_from_start(&self.socket).map_err(wrong)?;
        let mut fds = Vec::new();
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let into = &mut [IoSliceMut::new(&mut byte)];
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = match recvmsg(&self.socket, into, &mut ancillary, flags) {
                Err(rustix::io::Errno::AGAIN) => break,
                received => received.map_err(wrong)?,
            };
            for item in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(more) = item {
                    fds.extend(more);
                }
            }
            if received.bytes == 0 {
                break;
            }
            Wrong::unless(fds.len() as u64 <= FDS_MAX, || "too many descriptors".to_owned())?;
        }
        let file = match fds.is_empty() {
            true => return Err(Wrong::of("the snapshot is empty")),
            false => File::from(fds.remove(0)),
        };
        let unreadable =
            |error: std::io::Error| Wrong::of(format!("the snapshot's file cannot be read: {error}"));
        let mut head = [0; HEAD_BYTES];
        file.read_exact_at(&mut head, 0).map_err(unreadable)?;
        let word = |at: usize| head[8 * at..8 * at + 8].try_into().map_or(0, u64::from_le_bytes);
        let fits =
            (word(0), word(1), word(2)) == (MAGIC, self.epoch, fds.len() as u64) && word(3) <= BYTES_MAX;
        Wrong::unless(fits, || {
            "the snapshot is another, or lacks descriptors: raise LimitNOFILE".to_owned()
        })?;
        let mut state = vec![0; word(3) as usize];
        file.read_exact_at(&mut state, HEAD_BYTES as u64).map_err(unreadable)?;
        Ok((state, fds))
    }
}
