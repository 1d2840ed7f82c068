//! A socket: what control calls, sends and receives share. Each side has a lock of its own, so that
//! one thread may send while another receives; no lock is held while a thread sleeps.
use crate::epoll::watch::Watch;
use crate::epoll::{Epoll, Registration};
use crate::error::{bad_socket, Result};
use crate::forks::forks;
use crate::kernel::Carrier;
use crate::link::{has_failed, Link};
use crate::lock::Lock;
use crate::recv::side::RecvSide;
use crate::send::side::SendSide;
use crate::turn::lock;
use pd_abi::layout::{ENDED, LOST, SHUT};
use pd_abi::Address;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// A socket. Closed by [`Socket::close`], never by dropping it.
#[derive(Debug)]
pub struct Socket {
    forks: u32,
    serial: u64,
    pub(crate) nonblocking: AtomicBool,
    closed: AtomicBool,
    /// Its side was another client's before.
    pub(crate) taken: AtomicBool,
    /// Its side had left for the kernel when this process took it.
    taken_aside: AtomicBool,
    /// Its side was another process's, bytes of which the driver may have still to bring: see [`Socket::await_inherited`].
    pub(crate) inherits: AtomicBool,
    /// End of the waits for those.
    pub(crate) inherits_until: OnceLock<Instant>,
    pub(crate) control: Mutex<Control>,
    /// Of a listener, once something has come.
    #[allow(clippy::box_collection, reason = "most sockets never listen: they have a word for it, not five")]
    pub(crate) accepting: Mutex<Option<Box<VecDeque<Arrived>>>>,
    /// Held while bytes are copied and sent: nobody else sends then.
    pub(crate) copying: Lock<()>,
    pub(crate) send: Lock<SendSide>,
    pub(crate) recv: Lock<RecvSide>,
    pub(crate) watch: Arc<Watch>,
    /// In epoll instances. Changes with the items of `watch`.
    pub(crate) registrations: Mutex<Vec<Registration>>,
    /// Of a connection that the kernel carries.
    pub(crate) kernel: OnceLock<Arc<Carrier>>,
    /// Of a listener: what listens in the kernel.
    pub(crate) kernel_listener: OnceLock<Arc<Carrier>>,
    /// Where accepts wait for both.
    pub(crate) acceptor: OnceLock<Arc<Epoll>>,
    pub(crate) accepts: AtomicU32,
    /// See [`Socket::come_back`].
    came_back: AtomicU8,
    /// See [`Socket::set_close_resets`].
    close_resets: AtomicBool,
    /// The other end of the connection, if this process has that, too.
    pub(crate) pair: OnceLock<Weak<Socket>>,
    /// See [`Socket::has_news_of_pair`].
    pub(crate) pair_has_acted: AtomicBool,
}

/// A connection that the driver has handed over and nobody has accepted yet.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) link: Link,
    pub(crate) peer: Address,
}

/// Nothing came back; it did; the program knows.
const NOT_BACK: u8 = 0;
const BACK: u8 = 1;
const BACK_TOLD: u8 = 2;

/// State of a socket.
#[derive(Clone, Debug)]
pub(crate) enum State {
    New,
    Bound,
    Listening,
    /// The driver was asked, by a question with this tag.
    Connecting(u32),
    /// The kernel was asked, for the fabric does not lead there.
    Reaching(Arc<Carrier>),
    Connected,
}

impl PartialEq for State {
    /// Of two that are being connected it does not matter how far they are.
    fn eq(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Connections that a listener takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takes {
    /// All.
    #[default]
    All,
    /// Connections of other networks, by a map of the policy's: the kernel cannot bring them.
    OtherNetworks,
    /// None.
    None,
}

/// State of control calls.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) link: Arc<Link>,
    pub(crate) state: State,
    pub(crate) v6: bool,
    pub(crate) v6_only: bool,
    /// See [`pd_abi::BESIDE_KERNEL`].
    pub(crate) beside_kernel: bool,
    /// See [`Socket::set_receives_shared`]. The library copies for programs that know only the kernel's sockets.
    pub(crate) receives_shared: bool,
    /// Of a listener.
    pub(crate) takes: Takes,
    pub(crate) local: Option<SocketAddr>,
    /// The local address is the listener's wildcard: the driver knows the real one.
    pub(crate) local_inexact: bool,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) backlog: u32,
    pub(crate) send_ring_bytes: u64,
    pub(crate) receive_ring_bytes: u64,
    pub(crate) error: i32,
    /// When a listener last tried to attach again.
    pub(crate) attach_tried: Option<Instant>,
    /// Of a bound socket: the kernel's at the same address.
    pub(crate) bound: Option<Arc<Carrier>>,
    /// Level, option and value, for kernel sockets that are made later.
    pub(crate) kernel_options: Vec<(i32, i32, i32)>,
}

impl Control {
    /// Returns the state that an accepted socket inherits from its listener. Link and addresses are its own.
    pub(crate) fn for_accepted(&self) -> Self {
        Self {
            link: self.link.clone(),
            state: State::Connected,
            v6: self.v6,
            v6_only: self.v6_only,
            beside_kernel: self.beside_kernel,
            receives_shared: self.receives_shared,
            takes: Takes::All,
            local: None,
            local_inexact: false,
            peer: None,
            backlog: 0,
            send_ring_bytes: self.send_ring_bytes,
            receive_ring_bytes: self.receive_ring_bytes,
            error: 0,
            attach_tried: None,
            bound: None,
            kernel_options: Vec::new(),
        }
    }
}

impl Socket {
    /// A socket with its state and its serial.
    pub(crate) fn with(control: Control, adoptable: bool, serial: u64) -> Self {
        let connected = control.state == State::Connected;
        Self {
            forks: forks(),
            serial,
            nonblocking: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            taken_aside: AtomicBool::new(false),
            inherits: AtomicBool::new(false),
            inherits_until: OnceLock::new(),
            accepting: Mutex::default(),
            copying: Lock::new(()),
            send: Lock::new(SendSide::new(
                control.link.clone(),
                serial,
                connected,
                adoptable,
                control.send_ring_bytes,
            )),
            recv: Lock::new(RecvSide::new(control.link.clone(), connected, control.receives_shared)),
            control: Mutex::new(control),
            watch: Arc::default(),
            registrations: Mutex::default(),
            kernel: OnceLock::new(),
            kernel_listener: OnceLock::new(),
            acceptor: OnceLock::new(),
            accepts: AtomicU32::new(0),
            came_back: AtomicU8::new(NOT_BACK),
            close_resets: AtomicBool::new(false),
            pair: OnceLock::new(),
            pair_has_acted: AtomicBool::new(false),
        }
    }

    /// Refuses closed sockets and those of a parent process.
    #[inline]
    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.forks != forks() || self.closed.load(Ordering::Relaxed) {
            return Err(bad_socket());
        }
        Ok(())
    }

    /// Returns whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Returns whether calls return `EAGAIN` instead of waiting.
    pub fn nonblocking(&self) -> bool {
        self.is_nonblocking()
    }

    /// Makes calls return `EAGAIN` instead of waiting, or wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Longest wait of a receive or accept; none: no limit.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_recv_timeout(&self, timeout: Option<Duration>) -> Result<()> {
        self.check_usable()?;
        self.recv.lock().timeout = timeout;
        Ok(())
    }

    /// See [`Self::set_recv_timeout`].
    pub fn recv_timeout(&self) -> Option<Duration> {
        self.recv.lock().timeout
    }

    /// Longest wait of a send; none: no limit.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) -> Result<()> {
        self.check_usable()?;
        self.send.lock().timeout = timeout;
        Ok(())
    }

    /// See [`Self::set_send_timeout`].
    pub fn send_timeout(&self) -> Option<Duration> {
        self.send.lock().timeout
    }

    /// Replaces the link on both sides.
    pub(crate) fn set_link(&self, control: &mut Control, link: Arc<Link>) {
        self.send.lock().link = link.clone();
        self.recv.lock().link = link.clone();
        control.link = link;
    }

    /// Makes [`Self::close`] a [`Self::reset`], as `SO_LINGER` with a time of 0 does, or what it was.
    pub fn set_close_resets(&self, resets: bool) {
        self.close_resets.store(resets, Ordering::Relaxed);
    }

    /// See [`Self::set_close_resets`].
    pub fn close_resets(&self) -> bool {
        self.close_resets.load(Ordering::Relaxed)
    }

    pub(crate) fn set_taken_aside(&self) {
        self.taken_aside.store(true, Ordering::Relaxed);
    }

    /// Returns whether a twin's side had left for the kernel when this process took it: [`Self::step_aside`] tells how far it is.
    pub fn is_taken_aside(&self) -> bool {
        self.taken_aside.load(Ordering::Relaxed)
    }

    /// Marks the socket closed.
    ///
    /// # Errors
    /// As for [`Self::check_usable`].
    pub(crate) fn set_closed(&self) -> Result<()> {
        if self.forks != forks() || self.closed.swap(true, Ordering::AcqRel) {
            return Err(bad_socket());
        }
        Ok(())
    }

    /// Returns whether sends of this socket are not yet done. Frees the memory of those that are.
    pub(crate) fn sends_in_flight(&self) -> bool {
        let mut side = self.send.lock();
        if self.closed.load(Ordering::Acquire) {
            side.reap_closed();
        } else {
            side.reap();
        }
        side.in_flight() > 0 && side.link.attachment.alive()
    }

    /// Returns whether sends may still be delivered: those of an ended stream are not.
    pub(crate) fn sends_undelivered(&self) -> bool {
        self.sends_in_flight() && self.send.lock().link.send_end() == 0
    }

    /// Tells whether the peer has closed in order.
    pub fn is_closed_by_peer(&self) -> bool {
        [ENDED, LOST].contains(&self.send.lock().link.send_end())
    }

    /// Tells whether the peer has ended both directions: by a close, or by shutting both down.
    pub fn has_ended_peer(&self) -> bool {
        let link = lock(&self.control).link.clone();
        link.recv_end() == ENDED && [ENDED, LOST, SHUT].contains(&link.send_end())
    }

    /// Tells whether the peer has closed, and has not received all that was sent.
    pub fn has_lost(&self) -> bool {
        let mut side = self.send.lock();
        match side.link.send_end() {
            ENDED => self.has_come_back().0 || side.lies_in_ring(),
            SHUT => self.has_come_back().0,
            end => end == LOST,
        }
    }

    /// Bytes that were sent found the peer closed, which TCP learns from a reset that comes back: from now on the connection
    /// is gone, and has an error.
    pub fn come_back(&self) {
        if self.came_back.compare_exchange(NOT_BACK, BACK, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.watch.notify();
        }
    }

    /// The connection has failed, and the program is told: the kernel's TCP says so once. False: it was told before.
    pub fn tell_failure(&self) -> bool {
        self.came_back.swap(BACK_TOLD, Ordering::AcqRel) != BACK_TOLD
    }

    /// Tells whether the connection was reset, unless the program was told. AF_UNIX says so to a receive that finds nothing more, whichever
    /// directions had ended before.
    pub fn take_reset(&self) -> bool {
        self.was_reset() && self.tell_failure()
    }

    /// Tells whether a direction has failed.
    fn was_reset(&self) -> bool {
        let link = lock(&self.control).link.clone();
        has_failed(link.recv_end()) || has_failed(link.send_end())
    }

    /// Tells whether both directions had ended before a reset, given the end of what it receives. TCP ignores the reset then.
    pub(crate) fn ignores_reset(&self, recv_end: u32) -> bool {
        recv_end == ENDED && self.stands_for_tcp() && self.send.lock().is_shut_by_program()
    }

    /// Tells whether its side of a twin was another client's before.
    pub fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// Tells whether the connection has failed, or bytes that were sent have come back.
    pub fn is_gone(&self) -> bool {
        self.has_come_back().0 || self.was_reset()
    }

    /// Tells whether bytes have come back, and whether that error is still to be told.
    pub(crate) fn has_come_back(&self) -> (bool, bool) {
        let state = self.came_back.load(Ordering::Acquire);
        (state != NOT_BACK, state == BACK)
    }

    /// The pending error (`SO_ERROR`), which is then none.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn take_error(&self) -> Result<i32> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        let error = std::mem::take(&mut control.error);
        if error != 0 {
            return Ok(error);
        }
        if let Some(carrier) = self.kernel.get() {
            return Ok(carrier.take_error().map_or_else(|errno| errno.raw_os_error(), |()| 0));
        }
        if self.came_back.compare_exchange(BACK, BACK_TOLD, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Ok(libc::EPIPE);
        }
        if control.state != State::Connected {
            return Ok(0);
        }
        if !control.link.attachment.alive() {
            return Ok(libc::ECONNRESET);
        }
        let ends = [control.link.recv_end(), control.link.send_end()];
        let Some(end) = ends.into_iter().find(|&end| has_failed(end)) else { return Ok(0) };
        if !control.beside_kernel {
            return Ok(end as i32);
        }
        drop(control);
        if self.ignores_reset(ends[0]) {
            return Ok(0);
        }
        Ok(match self.tell_failure() {
            // TCP's word for a reset after the end of the stream.
            true if ends[0] == ENDED && self.stands_for_tcp() => libc::EPIPE,
            true => end as i32,
            false => 0,
        })
    }

    /// The process's number of this socket, never used again.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }
}
