//! Sockets that the driver listens on.
use crate::peer::refuse_descriptors;
use crate::settings::Settings;
use crate::StartError;
use rustix::fs::{chmod, chown, Gid, Mode};
use rustix::io::Errno;
use rustix::net::{
    bind, connect, listen as listen_on, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Most connections that wait to be accepted.
const ATTACH_BACKLOG: i32 = 1024;

/// The attach socket and the admin socket.
#[derive(Debug)]
pub struct Sockets {
    pub attach: OwnedFd,
    pub admin: OwnedFd,
    /// Set if the kernel refuses to pass descriptors to them.
    pub is_safe: bool,
    /// Maps of the kernel's half, which go with them to another driver.
    pub maps: Vec<Arc<OwnedFd>>,
}

/// Makes the sockets.
///
/// # Errors
/// A driver runs already, or one of the sockets cannot be made.
pub fn listen(settings: &Settings) -> Result<Sockets, StartError> {
    let (attach, is_safe) = listen_at(&settings.socket, SocketType::SEQPACKET)?;
    chmod(&settings.socket, Mode::from_raw_mode(settings.socket_mode))?;
    if let Some(group) = settings.socket_group {
        chown(&settings.socket, None, Some(Gid::from_raw(group)))?;
    }
    let (admin, _) = listen_at(&settings.admin_socket, SocketType::STREAM)?;
    chmod(&settings.admin_socket, Mode::RUSR | Mode::WUSR)?;
    Ok(Sockets { attach, admin, is_safe, maps: Vec::new() })
}

fn listen_at(path: &Path, kind: SocketType) -> Result<(OwnedFd, bool), StartError> {
    let at = |errno| StartError::Socket { path: path.to_owned(), errno };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| at(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    }
    let address = SocketAddrUnix::new(path).map_err(at)?;
    let make = || socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    if path.exists() {
        let probe = make().map_err(at)?;
        if !matches!(connect(&probe, &address), Err(Errno::CONNREFUSED | Errno::NOENT)) {
            return Err(StartError::Running { path: path.to_owned() });
        }
        // A driver that was killed has left the socket behind.
        rustix::fs::unlink(path).map_err(at)?;
    }
    let socket = make().map_err(at)?;
    bind(&socket, &address).map_err(at)?;
    // Linux from 6.16 on refuses descriptors, sent before the accept or after: none even gets here.
    let is_safe = refuse_descriptors(&socket).is_ok();
    listen_on(&socket, ATTACH_BACKLOG).map_err(at)?;
    Ok((socket, is_safe))
}
