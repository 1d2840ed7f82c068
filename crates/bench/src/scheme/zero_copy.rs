//! `MSG_ZEROCOPY`: sends from pages of the program that the kernel holds until it reports completion on the socket's error queue.
//! Messages take turns in a window, for none may be written again before that.
//!
//! To a receiver on the same machine the kernel copies after all when it delivers, as its documentation says. This is therefore only
//! a candidate of `pd bench tune`.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use anyhow::{ensure, Context, Result};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{recvmsg, ControlMessageOwned, MsgFlags};
use rustix::net::SendFlags;

use super::memory::PageAligned;

/// Smaller messages are copied sooner than their pages are held: the kernel's documentation says about 10 KB.
pub const BYTES_MIN: usize = 16 << 10;
/// Bytes of memory in which messages take turns.
const WINDOW_BYTES: usize = 1 << 20;
/// `MSG_ZEROCOPY`, which `rustix` has no name for.
const ZERO_COPY: SendFlags = SendFlags::from_bits_retain(0x400_0000);
/// `SO_EE_ORIGIN_ZEROCOPY`.
const ORIGIN: u8 = 5;

/// The window, and how far the kernel is.
pub struct ZeroCopy {
    slots: Vec<(PageAligned, u32)>,
    next: usize,
    /// Calls of `send` so far, and how many of them the kernel has done with. Both wrap as the kernel's count does.
    sent: u32,
    done: u32,
}

impl ZeroCopy {
    /// Asks the socket for it.
    pub fn new(socket: &OwnedFd, message_bytes: usize) -> Result<ZeroCopy> {
        let on: libc::c_int = 1;
        // SAFETY: the option's value is a live `int` of the size given.
        let rc = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ZEROCOPY,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        ensure!(rc == 0, "no SO_ZEROCOPY: {}", std::io::Error::last_os_error());
        let count = (WINDOW_BYTES / message_bytes).clamp(2, 64);
        let slots = (0..count).map(|_| (PageAligned::new(message_bytes), 0)).collect();
        Ok(ZeroCopy { slots, next: 0, sent: 0, done: 0 })
    }

    /// Sends a message written by `fill`.
    pub fn send(&mut self, socket: &OwnedFd, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let slot = self.next % self.slots.len();
        self.next += 1;
        let until = self.slots[slot].1;
        self.wait(socket, until)?;
        let message = &mut self.slots[slot].0.get()[..len];
        fill(message);
        let mut left = &*message;
        while !left.is_empty() {
            let flags = SendFlags::NOSIGNAL | ZERO_COPY;
            match rustix::net::send(socket, left, flags) {
                Ok(n) => {
                    left = &left[n..];
                    self.sent = self.sent.wrapping_add(1);
                }
                Err(rustix::io::Errno::INTR) => {}
                // The kernel holds as many pages as it allows.
                Err(rustix::io::Errno::NOBUFS) => take_notifications(socket, &mut self.done)?,
                Err(e) => return Err(e).context("cannot send without a copy"),
            }
        }
        self.slots[slot].1 = self.sent;
        Ok(())
    }

    /// Waits until the kernel holds none of the window.
    pub fn flush(&mut self, socket: &OwnedFd) -> Result<()> {
        self.wait(socket, self.sent)
    }

    fn wait(&mut self, socket: &OwnedFd, until: u32) -> Result<()> {
        while is_before(self.done, until) {
            take_notifications(socket, &mut self.done)?;
            if is_before(self.done, until) {
                // Errors are reported whether asked for or not.
                poll(&mut [PollFd::new(socket.as_fd(), PollFlags::empty())], PollTimeout::from(100u8))?;
            }
        }
        Ok(())
    }
}

/// Compares two counts that wrap.
fn is_before(one: u32, other: u32) -> bool {
    (other.wrapping_sub(one) as i32) > 0
}

/// Takes the notifications on the error queue, without waiting.
fn take_notifications(socket: &OwnedFd, done: &mut u32) -> Result<()> {
    let mut space = cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    loop {
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let mut nothing: [IoSliceMut<'_>; 0] = [];
        let message = match recvmsg::<()>(socket.as_raw_fd(), &mut nothing, Some(&mut space), flags) {
            Ok(message) => message,
            Err(Errno::EAGAIN) => return Ok(()),
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(e).context("cannot ask what has been sent"),
        };
        for control in message.cmsgs()? {
            if let ControlMessageOwned::Ipv4RecvErr(error, _) = control {
                if error.ee_origin == ORIGIN {
                    *done = error.ee_data.wrapping_add(1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn messages_arrive_unchanged_and_the_window_is_free_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket: OwnedFd = TcpStream::connect(listener.local_addr().unwrap()).unwrap().into();
        let (mut peer, _) = listener.accept().unwrap();
        let receiving = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        let mut zero_copy = ZeroCopy::new(&socket, 20_000).unwrap();
        for n in 0..200u8 {
            zero_copy.send(&socket, 20_000, &mut |message| message.fill(n)).unwrap();
        }
        zero_copy.flush(&socket).unwrap();
        drop(socket);
        let all = receiving.join().unwrap();
        assert_eq!(all.len(), 200 * 20_000);
        assert!(all.chunks(20_000).enumerate().all(|(n, part)| part.iter().all(|byte| *byte == n as u8)));
    }

    #[test]
    fn counts_wrap() {
        assert!(is_before(u32::MAX, 1) && !is_before(1, u32::MAX) && !is_before(5, 5));
    }
}
