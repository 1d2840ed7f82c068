//! Pipes: packets of the driver's ports, in a ring that this process shares with the driver.
//!
//! ```no_run
//! use pd_client::pipe::{Direction, Options, Pipe, DROP};
//!
//! # fn main() -> pd_client::Result<()> {
//! // A firewall: frames that are not dropped go back to the port.
//! let mut pipe = Pipe::open(&Options::new(Direction::Forward, "wan"))?;
//! loop {
//!     pipe.wait(None)?;
//!     let mut frames = pipe.frames()?;
//!     while let Some(mut frame) = frames.next() {
//!         if frame.bytes()[12..14] != [8, 0] {
//!             frame.verdict(DROP);
//!         }
//!     }
//! }
//! # }
//! ```
//!
//! A pipe is one thread's at a time. Nothing but [`Pipe::open`], waits, [`Pipe::fd`], and a change of the path of a link makes a system
//! call; on the direct path, one does for each 4 MiB. A forked child has none of
//! its parent's pipes.
use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::forks::forks;
use crate::process;
use pd_abi::pipe::peer_has;
use pd_abi::pipe::{PipeDirection, PipeRequest, PipeUnit, PIPE_RING_BYTES_DEFAULT};
pub use pd_abi::pipe::{BACK, DROP};
use pd_abi::{Frame as Message, FrameKind};
use pd_pipe::{Broker, Eventfds, Offer, PeerOffer, Shape};
pub use pd_pipe::{Direction, Flow, Frame, Frames, Messages, Net, Prefix, Unit};
use rustix::io::Errno;
use std::ops::{Deref, DerefMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two checks of a wait that the driver is still there.
const LOOK: Duration = Duration::from_millis(250);

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        let why = match errno {
            Errno::AGAIN => "nothing to do on the pipe yet",
            Errno::PROTO => "the driver has cut the pipe off: its words or entries were impossible",
            Errno::ACCESS => "the driver's policy denies the pipe by now",
            Errno::NODEV => "the pipe's port was removed",
            Errno::CONNRESET => "the driver has gone",
            Errno::MSGSIZE => "no frame has this length, or the ring is smaller",
            Errno::NOBUFS => {
                "what is lent or unread leaves too little of the ring to wait for more: give some back first"
            }
            Errno::OPNOTSUPP => "not on this kind of pipe",
            Errno::BUSY => "frames are lent: give them back first",
            _ => return Self::new(errno, std::io::Error::from(errno).to_string()),
        };
        Self::new(errno, why)
    }
}

/// Options of a pipe that is opened.
#[derive(Clone, Debug)]
pub struct Options {
    direction: Direction,
    unit: Unit,
    ports: String,
    ring_bytes: u64,
    flow: Flow,
    shares: bool,
}

impl Options {
    /// A pipe of frames on the port of this name, with a ring of [`PIPE_RING_BYTES_DEFAULT`].
    pub fn new(direction: Direction, port: &str) -> Self {
        let ring_bytes = PIPE_RING_BYTES_DEFAULT;
        let (ports, flow) = (port.to_owned(), Flow::default());
        Self { direction, unit: Unit::Frames, ports, ring_bytes, flow, shares: false }
    }

    /// With bytes that have no marks between them, in place of frames.
    #[must_use]
    pub fn bytes(mut self) -> Self {
        self.unit = Unit::Bytes;
        self
    }

    /// Adds a port that verdicts may name: the first as 1.
    #[must_use]
    pub fn and_port(mut self, port: &str) -> Self {
        self.ports = format!("{},{port}", self.ports);
        self
    }

    /// The ring's size, a power of two from 32 KiB to 64 MiB.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: u64) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// Frames that the pipe receives; else all that no other pipe is bound to.
    #[must_use]
    pub fn flow(mut self, flow: Flow) -> Self {
        self.flow = flow;
        self
    }

    /// Has a share of its frames only, the packets of a flow in order, beside pipes of other processes of the tenant which say so, too, and have the
    /// same [`Self::flow`]. Without it only pipes of one process share frames.
    #[must_use]
    pub fn shares(mut self) -> Self {
        self.shares = true;
        self
    }

    fn pipe_request(&self) -> Result<PipeRequest> {
        let direction = match self.direction {
            Direction::Receive => PipeDirection::Receive,
            Direction::Send => PipeDirection::Send,
            Direction::Forward => PipeDirection::Forward,
        };
        let unit = if self.unit == Unit::Frames { PipeUnit::Frames } else { PipeUnit::Bytes };
        let mut request = PipeRequest::new(direction, unit, &self.ports)
            .ok_or_else(|| Error::invalid("names of ports with 64 bytes at most"))?;
        (request.protocol, request.ports) = (self.flow.protocol, self.flow.ports);
        request.addresses = self.flow.addresses.map(|net| (net.address, net.prefix));
        request.shares = self.shares;
        Ok(request)
    }
}

/// The driver's door, which passes the memory of the other end of a link.
#[derive(Debug)]
struct Door {
    attachment: Arc<Attachment>,
    number: u32,
    forks: u32,
}

impl Broker for Door {
    fn peer(&mut self) -> Option<PeerOffer> {
        if self.forks != forks() {
            return None;
        }
        let ask = Message::new(FrameKind::PipePeer).with_id(self.number);
        let (answer, fds) = self.attachment.exchange(&ask, FrameKind::PipePeer).ok()?;
        let mut fds = fds.into_iter();
        let (control, has) = (fds.next()?, |bit: u64| answer.page_bytes & bit != 0);
        let mut next = |bit| if has(bit) { fds.next().map(Some) } else { Some(None) };
        let (ring, own, peer) =
            (next(peer_has::RING)?, next(peer_has::OWN_EVENTFD)?, next(peer_has::PEER_EVENTFD)?);
        Some(PeerOffer { ring_bytes: answer.bytes, control, ring, eventfds: Eventfds { own, peer } })
    }

    fn is_alive(&self) -> bool {
        self.attachment.check_alive()
    }
}

/// A pipe. Frames, messages and bytes are those of [`pd_pipe::Pipe`], to which it leads.
#[derive(Debug)]
pub struct Pipe {
    pipe: pd_pipe::Pipe,
    attachment: Arc<Attachment>,
    number: u32,
    forks: u32,
}

impl Deref for Pipe {
    type Target = pd_pipe::Pipe;

    fn deref(&self) -> &pd_pipe::Pipe {
        &self.pipe
    }
}

impl DerefMut for Pipe {
    fn deref_mut(&mut self) -> &mut pd_pipe::Pipe {
        &mut self.pipe
    }
}

impl Pipe {
    /// Opens a pipe. When this returns, the pipe has started: frames of its port that come from then on are its own.
    ///
    /// # Errors
    /// `ENOENT` without such a port, `EACCES` where the policy denies it, `EINVAL` where port, direction, unit, flow and ring do not fit each
    /// other, `EADDRINUSE` where another tenant has the frames, or another process and not both share them, `ENOMEM` and `EMFILE` at limits, `ENETDOWN` without a driver. `ENODEV` where the port
    /// is removed meanwhile, `ECONNRESET` where the driver ends, or does not answer for ten seconds.
    pub fn open(options: &Options) -> Result<Self> {
        let request = options.pipe_request()?;
        let shape = Shape::new(options.direction, options.unit, options.ring_bytes)?;
        Self::open_by(process::attachment()?, shape, &request)
    }

    fn open_by(attachment: Arc<Attachment>, shape: Shape, request: &PipeRequest) -> Result<Self> {
        let ask = Message::new(FrameKind::Pipe).with_bytes(shape.ring_bytes(), 0).with_pipe_request(request);
        let (frame, fds) = attachment.exchange(&ask, FrameKind::Pipe)?;
        let number = frame.id;
        let mut pipe = map(shape, fds).inspect_err(|_| close(&attachment, number))?;
        // A pipe that the driver refuses to start is closed already.
        attachment.exchange(&Message::new(FrameKind::PipeMapped).with_id(number), FrameKind::Ready)?;
        pipe.set_broker(Box::new(Door { attachment: Arc::clone(&attachment), number, forks: forks() }));
        Ok(Self { pipe, attachment, number, forks: forks() })
    }

    fn check_usable(&self) -> Result<()> {
        if self.forks == forks() {
            Ok(())
        } else {
            Err(Error::new(Errno::BADF, "the pipe is the parent process's"))
        }
    }

    /// Looks whether the driver is still there. A wait of more than no time does so, too.
    ///
    /// # Errors
    /// `ECONNRESET` if it has gone.
    pub fn check_driver(&self) -> Result<()> {
        if self.attachment.check_alive() {
            Ok(())
        } else {
            Err(self.attachment.dead_error())
        }
    }

    /// Sleeps until there are unread bytes, at most `timeout`; without one for as long as it takes. What was read is given back before a sleep. Of a
    /// stream there are as many as [`pd_pipe::Pipe::need`] has asked for.
    ///
    /// # Errors
    /// `EAGAIN` after the time; the pipe's own error once it has ended and all was read; `ENOBUFS` if lent frames leave too little room for the
    /// longest frame; `EOPNOTSUPP` on a sending pipe.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.sleep(timeout, pd_pipe::Pipe::wait)
    }

    /// Sleeps until there are more unread bytes than are known of: where a message is there in part.
    ///
    /// # Errors
    /// As for [`Self::wait`]; `EMSGSIZE` if unread bytes fill the ring: no message is longer. `ENOBUFS` if unread and lent frames leave too
    /// little room for the longest frame.
    pub fn wait_more(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.sleep(timeout, pd_pipe::Pipe::wait_more)
    }

    /// Sleeps until `room` bytes of the ring are free, at most `timeout`. The whole ring is free when all was taken.
    ///
    /// # Errors
    /// As for [`Self::wait`]; `EINVAL` if the ring is smaller.
    pub fn wait_room(&mut self, room: u64, timeout: Option<Duration>) -> Result<()> {
        self.sleep(timeout, |pipe, timeout| pipe.wait_room(room, timeout))
    }

    fn sleep(
        &mut self,
        timeout: Option<Duration>,
        mut wait: impl FnMut(&mut pd_pipe::Pipe, Duration) -> rustix::io::Result<()>,
    ) -> Result<()> {
        self.check_usable()?;
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()));
            match wait(&mut self.pipe, left.min(LOOK)) {
                Err(Errno::AGAIN) if left.is_zero() => return Err(Errno::AGAIN.into()),
                Err(Errno::AGAIN) => {
                    self.check_driver()?;
                    if left <= LOOK && until.is_some() {
                        return Err(Errno::AGAIN.into());
                    }
                }
                done => return Ok(done?),
            }
        }
    }

    /// The descriptor to wait on in `poll`, `epoll` or an event loop: an epoll instance, the same as long as the pipe lives, whichever way its frames
    /// go. [`pd_pipe::Pipe::arm`] comes before each wait, and tells whether there is something to do already. Never read from the descriptor or
    /// change the instance.
    ///
    /// # Errors
    /// `EMFILE` without a descriptor left.
    pub fn fd(&mut self) -> Result<BorrowedFd<'_>> {
        self.check_usable()?;
        if self.pipe.wake_fd().is_none() {
            let ask = Message::new(FrameKind::PipeWakeFd).with_id(self.number);
            let (_, mut fds) = self.attachment.exchange(&ask, FrameKind::PipeWakeFd)?;
            let wake_fd =
                fds.pop().ok_or_else(|| Error::new(Errno::PROTO, "the driver sent nothing to wait on"))?;
            self.pipe.set_wake_fd(wake_fd)?;
        }
        self.pipe.wake_fd().ok_or_else(|| Error::new(Errno::BADF, "the pipe has nothing to wait on"))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if self.forks == forks() && self.attachment.alive() {
            self.pipe.flush();
            close(&self.attachment, self.number);
        }
    }
}

/// Maps the memory of a pipe that the driver has sent.
fn map(shape: Shape, fds: Vec<OwnedFd>) -> Result<pd_pipe::Pipe> {
    let [status, control, ring, doorbell] = <[OwnedFd; 4]>::try_from(fds)
        .map_err(|_| Error::new(Errno::PROTO, "the driver sent no memory for the pipe"))?;
    let mapped = pd_pipe::Pipe::map(Offer { shape, status, control, ring, doorbell });
    mapped.map_err(|errno| Error::new(errno, "cannot map the pipe's memory"))
}

/// Has the driver close a pipe. A driver that does not answer has closed it.
fn close(attachment: &Attachment, number: u32) {
    let close = Message::new(FrameKind::PipeClose).with_id(number);
    let _ = attachment.exchange(&close, FrameKind::Ready);
}

#[cfg(test)]
mod tests {
    use super::*;
    use pd_pipe::Made;
    use pd_shm::attach::{receive, send};
    use rustix::net::{socketpair, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
    use std::os::fd::AsFd;

    /// Opens a pipe at a driver that passes `fds` descriptors and answers what follows with `answers`, and then hangs up. Returns the errno, and the
    /// kinds of what the client has said.
    fn open(fds: usize, answers: &[Message]) -> (i32, Vec<FrameKind>) {
        let (ours, driver) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let attachment = Attachment::to_test(ours);
        let shape = Shape::new(Direction::Receive, Unit::Frames, 64 << 10).unwrap();
        let request = PipeRequest::new(PipeDirection::Receive, PipeUnit::Frames, "wan").unwrap();
        std::thread::scope(|scope| {
            let played = scope.spawn(move || {
                let mut said = Vec::new();
                let mut hear = || match receive(&driver, RecvFlags::empty()) {
                    Ok(Some((frame, _))) => {
                        said.push(frame.checked_kind().unwrap());
                        true
                    }
                    _ => false,
                };
                assert!(hear());
                let (_made, _files, offer) = Made::new(shape).unwrap();
                let all = [&offer.status, &offer.control, &offer.ring, &offer.doorbell].map(AsFd::as_fd);
                let passed = Message::new(FrameKind::Pipe).with_id(7);
                send(&driver, &passed, &all[..fds], SendFlags::empty()).unwrap();
                for answer in answers {
                    if hear() {
                        send(&driver, answer, &[], SendFlags::empty()).unwrap();
                    }
                }
                if answers.is_empty() {
                    hear();
                } else {
                    // The client hangs up when it has said all.
                    while hear() {}
                }
                said
            });
            let opened = Pipe::open_by(attachment, shape, &request).map(drop);
            (opened.map_or_else(|error| error.errno(), |()| 0), played.join().unwrap())
        })
    }

    #[test]
    fn a_pipe_is_open_when_the_driver_has_started_it_and_else_closed_once() {
        use FrameKind::{Pipe, PipeClose, PipeMapped};
        let ready = Message::new(FrameKind::Ready).with_id(7);
        let refused = Message::new(FrameKind::Error).with_error(libc::EACCES as u32, "the policy");
        assert_eq!(open(4, &[ready, ready]), (0, vec![Pipe, PipeMapped, PipeClose]));
        // The driver has closed it: a further word about it would be a violation.
        assert_eq!(open(4, &[refused]), (libc::EACCES, vec![Pipe, PipeMapped]));
        // Memory that cannot be mapped is given back.
        assert_eq!(open(3, &[ready]), (libc::EPROTO, vec![Pipe, PipeClose]));
        // A driver that ends meanwhile.
        assert_eq!(open(4, &[]), (libc::ECONNRESET, vec![Pipe, PipeMapped]));
    }
}
