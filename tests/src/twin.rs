//! A side of a connection of the kernel with a twin, for tests and for the program `twin`.
use crate::{fill, verify};
use pd_client::core::{free, malloc, twin, Socket};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Longest time of a call; a longer one fails, so that the test ends.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// A twin, and where its two streams are. Stream 1 goes from the connecting side to the other, 2 back.
#[derive(Debug)]
pub struct TwinSide {
    /// The fabric's socket.
    pub socket: Arc<Socket>,
    side: u64,
}

impl TwinSide {
    /// Makes the side that connected (0) or accepted (1).
    pub fn new(socket: Arc<Socket>, side: u64) -> Self {
        socket.set_recv_timeout(Some(GIVE_UP_AFTER)).expect("a timeout");
        socket.set_send_timeout(Some(GIVE_UP_AFTER)).expect("a timeout");
        Self { socket, side }
    }

    /// Takes the twin of `fd` over.
    pub fn take(fd: BorrowedFd<'_>, side: u64) -> Option<Self> {
        twin::take(fd).expect("take").map(|socket| Self::new(socket, side))
    }

    /// Sends `bytes` bytes of its stream from `position` on.
    pub fn send(&self, position: u64, bytes: usize) {
        assert_eq!(self.send_what_fits(position, bytes), bytes);
    }

    /// Sends `bytes` bytes of its stream from `position` on, or as many as there is room for until the time-out. Returns the
    /// number sent.
    pub fn send_what_fits(&self, position: u64, bytes: usize) -> usize {
        let block = malloc(bytes).expect("memory");
        // SAFETY: `malloc` gave so many bytes to this call alone.
        let slice = unsafe { std::slice::from_raw_parts_mut(block.as_ptr(), bytes) };
        fill(1 + self.side, position, slice);
        let sent = self.socket.send(block.as_ptr(), bytes).expect("send");
        free(block.as_ptr()).expect("free"); // once it is delivered
        sent
    }

    /// Receives `bytes` bytes and checks them to be its peer's stream from `position` on.
    pub fn receive(&self, position: u64, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            let got = self.socket.recv(left as usize).expect("receive");
            assert!(got.len > 0, "{left} bytes missing at the end");
            // SAFETY: lent by `recv` until `recv_done`.
            let slice = unsafe { std::slice::from_raw_parts(got.ptr.as_ptr(), got.len) };
            verify(2 - self.side, position + bytes - left, slice);
            left -= got.len as u64;
            self.socket.recv_done(slice.len()).expect("give back");
        }
    }

    /// Checks that the peer's stream has ended.
    pub fn expect_end(&self) {
        assert_eq!(self.socket.recv(1).expect("end").len, 0);
    }
}

impl Drop for TwinSide {
    fn drop(&mut self) {
        let _ = self.socket.close(); // it may be closed already
    }
}
