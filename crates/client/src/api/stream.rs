use super::buffer::SendBuffer;
use crate::control::Shutdown;
use crate::copying::Reading;
use crate::error::{Error, Result};
use crate::path::Path;
use crate::recv::side::Handout;
use crate::socket::Socket;
use libc::iovec;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::ops::{Bound, Deref, RangeBounds};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// A connection. Closed when dropped; what was sent is still delivered.
#[derive(Debug)]
pub struct Stream {
    pub(crate) socket: Arc<Socket>,
}

impl Stream {
    /// Connects.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `EACCES` or `EMFILE` by policy, `EHOSTUNREACH`, `ENOBUFS`, `ENETDOWN` without a driver.
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = Self { socket: Socket::new(addr.is_ipv6())? };
        stream.socket.connect(addr)?;
        Ok(stream)
    }

    /// Connects several times, with few round trips to the driver: for pools of connections. All or none.
    ///
    /// # Errors
    /// As [`Self::connect`]; the first one's.
    pub fn connect_several(addr: SocketAddr, count: usize) -> Result<Vec<Self>> {
        let sockets = Socket::connect_several(addr, count)?;
        Ok(sockets.into_iter().map(|socket| Self { socket }).collect())
    }

    /// Sends part of a buffer. The bytes are moved out of it later: it cannot be written until then.
    /// A blocking stream sends all; a non-blocking one what there is room for.
    ///
    /// # Errors
    /// `EPIPE`, `ECONNRESET`, `EAGAIN`, `EINVAL` for a range outside the buffer.
    pub fn send(&self, buffer: &SendBuffer, range: impl RangeBounds<usize>) -> Result<usize> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end + 1,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => buffer.len(),
        };
        if start > end || end > buffer.len() {
            return Err(Error::invalid(format!("{start}..{end} is outside a buffer of {}", buffer.len())));
        }
        self.socket.send(buffer.as_ptr().wrapping_add(start), end - start)
    }

    /// Has `fill` write at most `len` bytes where they are sent from, and sends as many as it says. On the direct path
    /// that is the connection's ring, so that nobody copies them, and nothing need be kept until they are delivered. What the
    /// place holds before is of no meaning. `fill` must not use this stream: it would wait for itself.
    ///
    /// Returns how many bytes were sent: on a blocking stream all that were written. On a non-blocking one `fill` is
    /// called only if there is room for all of `len` or for half of the send ring, and in the latter case perhaps only
    /// the first bytes are sent.
    ///
    /// # Errors
    /// `EPIPE`, `ECONNRESET`, `EAGAIN`; `EMSGSIZE` and `ENOMEM` if there is no send memory for `len` bytes; `EINVAL` if
    /// `fill` says more than `len`.
    #[inline]
    pub fn send_with(&self, len: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<usize> {
        self.socket.send_placed(len, fill)
    }

    /// Sends at most `len` bytes of a file from `offset` on; fewer if it ends before. On the offloaded path the driver reads
    /// large pieces itself if the file is open for reading only, on a disk of its own (ext4, xfs) and in the page cache, so
    /// that they are not copied into send memory. They are read when they are delivered. A change of the file meanwhile changes
    /// what arrives, as with `sendfile(2)`. A file that is cut off ends the connection with `ECONNRESET`.
    ///
    /// A blocking stream sends all; a non-blocking one what there is room for.
    ///
    /// # Errors
    /// `EPIPE`, `ECONNRESET`, `EAGAIN`; those of reading the file.
    pub fn send_file(&self, file: impl AsFd, offset: u64, len: usize) -> Result<usize> {
        self.socket.send_file(file.as_fd(), offset, len)
    }

    /// Sends at most `len` bytes that this stream has received by the stream `to`, copied once, from ring to ring where `to` is on the
    /// direct path. Waits for the first as [`Self::recv`] does, and moves what has come then. A blocking `to` takes all of that. A
    /// non-blocking one takes what it has room for, and the rest stays received. Returns bytes; 0: the stream has ended.
    ///
    /// # Errors
    /// `EAGAIN` if nothing has come, or `to` has no room, and that stream is non-blocking; those of receiving and of sending.
    /// `EBUSY` while received bytes are lent.
    pub fn forward(&self, to: &Self, len: usize) -> Result<usize> {
        self.socket.forward(&to.socket, len)
    }

    /// Lends at most `max` received bytes; waits for the first. Empty: the stream has ended (or `max`
    /// is 0). Several lendings may be held at a time and given back in any order.
    ///
    /// The bytes stay as they are until they are given back, unless [`Self::set_recv_shared`] was called.
    ///
    /// # Errors
    /// `ECONNRESET`, `EAGAIN`; `ENOBUFS` if the whole receive ring is lent out.
    pub fn recv(&self, max: usize) -> Result<Received<'_>> {
        Ok(Received { handout: self.socket.recv(max)?, stream: self })
    }

    /// Receives bytes that their sender can still change until they are given back, for programs that look at each byte
    /// once or check nothing: then they can take the direct path, on which nobody copies them, also from peers that the policy
    /// does not trust. Until this is called such bytes are offloaded. Cannot be taken back.
    ///
    /// # Errors
    /// The errors of asking the driver.
    pub fn set_recv_shared(&self) -> Result<()> {
        self.socket.set_receives_shared()
    }

    /// Ends one direction or both.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        self.socket.shutdown(how)
    }

    /// Makes the end of this stream a reset: the peer's ends with `ECONNRESET`, and what was sent may be lost. `SO_LINGER` with a
    /// time of 0.
    pub fn set_close_resets(&self, resets: bool) {
        self.socket.set_close_resets(resets);
    }

    /// Makes calls return `EAGAIN` instead of waiting, or wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.socket.set_nonblocking(nonblocking);
    }

    /// Wishes for a send ring of `bytes`; returns the size taken.
    ///
    /// # Errors
    /// The errors of asking the driver.
    pub fn set_send_ring_bytes(&self, bytes: u64) -> Result<u64> {
        self.socket.set_send_ring_bytes(bytes)
    }

    /// Wishes for a receive ring of `bytes`; returns the size taken.
    ///
    /// # Errors
    /// The errors of asking the driver.
    pub fn set_recv_ring_bytes(&self, bytes: u64) -> Result<u64> {
        self.socket.set_receive_ring_bytes(bytes)
    }

    /// Longest wait of [`Self::recv`]; none: no limit.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> Result<()> {
        self.socket.set_recv_timeout(timeout)
    }

    /// Longest wait of [`Self::send`]; none: no limit.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> Result<()> {
        self.socket.set_send_timeout(timeout)
    }

    /// Returns the path of the bytes. It makes no other difference.
    pub fn path(&self) -> Path {
        self.socket.path()
    }

    /// The local address.
    ///
    /// # Errors
    /// The errors of asking the driver.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The address that the peer of an accepted stream asked for, where that is not the one it reached.
    ///
    /// # Errors
    /// `ENOENT` if it is; those of asking the driver.
    pub fn original_addr(&self) -> Result<SocketAddr> {
        self.socket.original_addr()
    }

    /// The peer's address.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.socket.peer_addr()
    }
}

/// Memory of the caller's, for one call.
fn pieces<'a>(slices: &'a [IoSliceMut<'_>]) -> &'a [iovec] {
    // SAFETY: `IoSliceMut` has the layout of an `iovec`, the standard library says.
    unsafe { std::slice::from_raw_parts(slices.as_ptr().cast(), slices.len()) }
}

impl Stream {
    /// Copies received bytes into `slices`, as [`Read::read_vectored`] does; with [`Reading::peek`] they stay to be received,
    /// with [`Reading::all`] it waits until there is no room, or for the end. One copy more than [`Self::recv`]; the bytes are the
    /// caller's alone, whatever the peer does. 0: the stream has ended, or there is no room.
    ///
    /// # Errors
    /// `EAGAIN`, `ECONNRESET`; `EBUSY` while [`Received`] bytes are held.
    pub fn recv_into(&self, slices: &mut [IoSliceMut<'_>], how: Reading) -> Result<usize> {
        // SAFETY: memory that is the caller's to write for the time of the call.
        unsafe { self.socket.read(pieces(slices), how) }
    }

    /// Copies the bytes that come next and leaves them to be received.
    ///
    /// # Errors
    /// As [`Self::recv_into`].
    pub fn peek(&self, bytes: &mut [u8]) -> Result<usize> {
        self.recv_into(&mut [IoSliceMut::new(bytes)], Reading { peek: true, ..Reading::default() })
    }
}

/// Costs a copy more than [`Stream::recv`]. For programs that have memory of their own to read into.
impl Read for &Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(bytes)])
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(self.recv_into(slices, Reading::default())?)
    }
}

/// Costs a copy more than [`Stream::send`] on the offloaded path, and as many on the direct one; the bytes may be written at once
/// again. Nothing is held back: there is nothing to flush.
impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: `IoSlice` has the layout of an `iovec`, the standard library says.
        let pieces = unsafe { std::slice::from_raw_parts(slices.as_ptr().cast::<iovec>(), slices.len()) };
        // SAFETY: memory that the caller lends for reading.
        Ok(unsafe { self.socket.write(pieces) }?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&*self).read(bytes)
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(slices)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Closing fails only in a forked child, which has nothing to close.
        let _ = self.socket.close();
    }
}

/// Received bytes, lent out of the receive ring; given back when dropped.
#[derive(Debug)]
pub struct Received<'a> {
    handout: Handout,
    stream: &'a Stream,
}

// SAFETY: read-only memory that any thread may read; giving it back takes the socket's lock.
unsafe impl Send for Received<'_> {}
// SAFETY: as above.
unsafe impl Sync for Received<'_> {}

impl Received<'_> {
    /// Gives the first `len` bytes back (all, if there are fewer) and keeps the rest.
    pub fn give_back(&mut self, len: usize) {
        let len = len.min(self.handout.len);
        self.stream.socket.give_back(self.handout.start, len as u64);
        self.handout.start += len as u64;
        self.handout.len -= len;
        // SAFETY: at most the end of the bytes lent.
        self.handout.ptr = unsafe { self.handout.ptr.add(len) };
    }
}

impl Deref for Received<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the receive ring is written by the driver alone, which is trusted and writes to a
        // byte that was delivered only after it was given back, which happens in `drop`; on the direct
        // path by a peer that the policy trusts to keep to the same, or the program has asked for bytes that
        // may change (`Stream::set_recv_shared`). The mapping is read-only here and kept by the socket, which the
        // stream keeps.
        unsafe { std::slice::from_raw_parts(self.handout.ptr.as_ptr(), self.handout.len) }
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        self.stream.socket.give_back(self.handout.start, self.handout.len as u64);
    }
}
