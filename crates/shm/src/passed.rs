//! The file socket: a client passes a file that it has open, and the driver receives it. One datagram of a Unix socket of
//! sequenced packets, a [`PassedFile`] with one descriptor, is one file.
use crate::Pod;
use pd_abi::{PassedFile, MAGIC};
use rustix::io::{Errno, Result};
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Passes a file. The caller keeps its descriptor. Never waits.
///
/// # Errors
/// The errors of `sendmsg`; `EAGAIN` when the other side has not received what was passed before.
pub fn send(socket: impl AsFd, serial: u64, file: BorrowedFd<'_>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [file];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::INVAL);
    }
    let passed = PassedFile { magic: MAGIC, serial };
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(passed.as_bytes())], &mut ancillary, flags).map(drop)
}

/// Receives a file and its serial, without waiting. The descriptor is close-on-exec. The calling thread closes every other
/// descriptor that came, which can take as long as the sender likes.
///
/// # Errors
/// `EAGAIN` if nothing is there, `EPROTO` if it is something else or the other side has gone, `EMFILE` if there is no
/// descriptor left; those of `recvmsg`.
pub fn receive(socket: impl AsFd) -> Result<(u64, OwnedFd)> {
    let mut bytes = [0; size_of::<PassedFile>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    // The space is aligned: there may be one more than wanted.
    let mut fds = Vec::new();
    for item in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            fds.extend(received);
        }
    }
    let is_cut_off = message.flags.contains(ReturnFlags::CTRUNC);
    if is_cut_off && fds.is_empty() {
        return Err(Errno::MFILE);
    }
    let is_whole = !is_cut_off && !message.flags.contains(ReturnFlags::TRUNC);
    let passed = PassedFile::from_bytes(&bytes[..message.bytes]).filter(|passed| passed.magic == MAGIC);
    match (passed, fds.pop()) {
        (Some(passed), Some(fd)) if is_whole && fds.is_empty() => Ok((passed.serial, fd)),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

    fn send_raw(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).unwrap();
    }

    #[test]
    fn files_are_passed_one_at_a_time_and_nothing_else_is_kept() {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        assert_eq!(receive(&b).unwrap_err(), Errno::AGAIN);
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        send(&a, 7, writer.as_fd()).unwrap();
        let (serial, fd) = receive(&b).unwrap();
        assert_eq!(serial, 7);
        assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        drop(fd);
        let good = PassedFile { magic: MAGIC, serial: 8 };
        let other = PassedFile { magic: MAGIC ^ 1, serial: 8 };
        let long = [good.as_bytes(), &[0]].concat();
        let bad: [(&[u8], usize); 8] = [
            (good.as_bytes(), 0),
            (good.as_bytes(), 2),
            (good.as_bytes(), 3),
            (good.as_bytes(), 100),
            (other.as_bytes(), 1),
            (&long, 1),
            (&long[..15], 1),
            (&[], 1),
        ];
        for (bytes, count) in bad {
            send_raw(&a, bytes, &vec![writer.as_fd(); count]);
            assert_eq!(receive(&b).unwrap_err(), Errno::PROTO, "{} bytes, {count}", bytes.len());
        }
        assert_eq!(receive(&b).unwrap_err(), Errno::AGAIN);
        drop(writer);
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0), "one is still open");
        drop(a);
        assert_eq!(receive(&b).unwrap_err(), Errno::PROTO);
    }
}
