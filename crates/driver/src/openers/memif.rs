//! Makes the socket that programs with memif connect to. Root alone may connect, until an administrator says otherwise (`chmod`).
use rustix::fs::{chmod, lstat, unlink, FileType, Mode};
use rustix::io::Errno;
use rustix::net::{
    bind, connect, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};
use std::os::fd::OwnedFd;
use std::path::Path;

fn is_socket(path: &Path) -> bool {
    lstat(path).is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode) == FileType::Socket)
}

/// Opens the driver's descriptor: a socket that listens under this path.
pub fn open(path: &Path) -> Result<Vec<OwnedFd>, String> {
    let wrong = |why: Errno| format!("socket {}: {why}", path.display());
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(wrong)
    };
    let address = SocketAddrUnix::new(path).map_err(wrong)?;
    let made = socket()?;
    match bind(&made, &address) {
        // Left by a port that was removed. The kernel refuses connections to other files, too.
        Err(Errno::ADDRINUSE)
            if is_socket(path) && connect(socket()?, &address) == Err(Errno::CONNREFUSED) =>
        {
            unlink(path).map_err(wrong)?;
            bind(&made, &address).map_err(wrong)?;
        }
        bound => bound.map_err(wrong)?,
    }
    // Connects fail before the socket listens.
    chmod(path, Mode::RUSR | Mode::WUSR).map_err(wrong)?;
    listen(&made, 1).map_err(wrong)?;
    Ok(vec![made])
}
