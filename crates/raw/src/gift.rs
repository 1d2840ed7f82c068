//! Descriptors that nobody asked for.
use rustix::net::{sendmsg, sockopt, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// A TCP socket with unsent bytes whose last `close` waits for `linger`, and its peer, which does not read.
///
/// Dropping the peer first resets the connection, so that nobody waits.
///
/// # Errors
/// Errors of the socket calls.
pub fn lingering(linger: Duration) -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let peer = listener.accept()?.0;
    stream.set_nonblocking(true)?;
    while stream.write(&[0; 1 << 16]).is_ok() {}
    sockopt::set_socket_linger(&stream, Some(linger))?;
    stream.set_nonblocking(false)?;
    Ok((stream, peer))
}

/// Sends a message with a descriptor.
///
/// # Errors
/// Errors of `sendmsg`: `EPERM` if the receiver has the kernel refuse descriptors.
pub fn send_with(socket: impl AsFd, bytes: &[u8], fd: impl AsFd) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "the buffer is for one descriptor");
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
