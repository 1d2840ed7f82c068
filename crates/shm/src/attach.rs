//! The attach socket: fixed-size messages with file descriptors, over Unix sequenced packets.
use crate::Pod;
use pd_abi::Frame;
use rustix::io::{Errno, Result};
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Descriptors that one message may carry.
pub const FDS_MAX: usize = 4;

/// Sends a message. Never blocks if `flags` holds `DONTWAIT`.
///
/// # Errors
/// The errors of `sendmsg`; `EAGAIN` when the other side does not read.
pub fn send(socket: impl AsFd, frame: &Frame, fds: &[BorrowedFd<'_>], flags: SendFlags) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let sent =
        sendmsg(socket, &[IoSlice::new(frame.as_bytes())], &mut ancillary, flags | SendFlags::NOSIGNAL)?;
    if sent != size_of::<Frame>() {
        return Err(Errno::MSGSIZE);
    }
    Ok(())
}

/// Receives a message and its descriptors (close-on-exec). `None` when the other side has gone.
///
/// # Errors
/// `EMSGSIZE` if it is not a message of ours; those of `recvmsg`.
pub fn receive(socket: impl AsFd, flags: RecvFlags) -> Result<Option<(Frame, Vec<OwnedFd>)>> {
    let mut bytes = [0; size_of::<Frame>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message =
        recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for item in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            fds.extend(received);
        }
    }
    if message.bytes == 0 {
        close_elsewhere(fds);
        return Ok(None);
    }
    // The space for descriptors is aligned, so that one more than wanted may fit.
    let fits = fds.len() <= FDS_MAX && !message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    match Frame::from_bytes(&bytes[..message.bytes]).filter(|_| fits) {
        Some(frame) => Ok(Some((frame, fds))),
        None => {
            close_elsewhere(fds);
            Err(Errno::MSGSIZE)
        }
    }
}

/// Closes a stranger's descriptors in a thread of its own: closing one can take as long as its maker likes (a
/// socket's linger time, a file system of his own).
pub fn close_elsewhere(fds: Vec<OwnedFd>) {
    if !fds.is_empty() {
        // Without a thread they are closed here, by dropping the closure.
        let _ = std::thread::Builder::new().name("pd-close".into()).spawn(move || drop(fds));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pd_abi::FrameKind;
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

    #[test]
    fn frames_carry_descriptors() {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let frame = Frame::new(FrameKind::Hello).with_id(4);
        send(&a, &frame, &[a.as_fd(), b.as_fd()], SendFlags::empty()).unwrap();
        let (got, fds) = receive(&b, RecvFlags::empty()).unwrap().unwrap();
        assert_eq!((got, fds.len()), (frame, 2));
        rustix::net::send(&a, b"short", SendFlags::empty()).unwrap();
        assert_eq!(receive(&b, RecvFlags::empty()).unwrap_err(), Errno::MSGSIZE);
        drop((a, fds));
        assert!(receive(&b, RecvFlags::empty()).unwrap().is_none());
    }

    #[test]
    fn too_many_descriptors_are_refused_and_closed() {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        for count in [FDS_MAX, FDS_MAX + 1, FDS_MAX + 2, 50] {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            let fds = vec![writer.as_fd(); count];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(50))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
            let hello = Frame::new(FrameKind::Hello);
            sendmsg(&a, &[IoSlice::new(hello.as_bytes())], &mut ancillary, SendFlags::empty()).unwrap();
            let got = receive(&b, RecvFlags::empty());
            if count == FDS_MAX {
                assert_eq!(got.unwrap().unwrap().1.len(), count);
            } else {
                assert_eq!(got.unwrap_err(), Errno::MSGSIZE, "{count} descriptors");
            }
            // The last writer has gone: the pipe is at its end.
            drop(writer);
            assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0), "{count} descriptors");
        }
    }
}
