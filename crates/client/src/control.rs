//! Control calls: bind, listen, connect, shutdown, options, addresses. Each is one request and one
//! answer on the calling thread's channel (or the socket's, where order with sends matters).
use crate::catch_up::{note_made, Made};
use crate::error::{check, not_connected, Error, Result};
use crate::link::Link;
use crate::path::Path;
use crate::process;
use crate::socket::{Control, Socket, State, Takes};
use crate::turn::{lock, Deadline};
use pd_abi::limits::{BACKLOG_MAX, RING_BYTES_MAX, RING_BYTES_MIN};
use pd_abi::{
    Address, Event, Operation, Request, SocketOption, BESIDE_KERNEL, LEFT_BEFORE, LISTENS_TO_OTHERS,
    OTHER_NETWORKS, PEER_LEFT, PEER_UNMARKED, RECEIVES_SHARED, STEP_ASIDE_BY_CHOICE, STEP_ASIDE_CLAIM_MARK,
    STEP_ASIDE_UNMARKED, UNMARKED,
};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// Pauses of a connect that waits for room in a backlog, each twice the last one, and the end of the wait, as TCP has it by
/// default.
const BACKLOG_LOOK_FIRST: Duration = Duration::from_millis(1);
const BACKLOG_LOOK_LAST: Duration = Duration::from_millis(50);
const BACKLOG_WAIT_MAX: Duration = Duration::from_secs(127);

/// Time after a driver's replacement in which listeners come back. A connect that finds no listener asks the new driver
/// again until then, rather than go over the kernel for good.
const LISTENERS_RETURN_MAX: Duration = Duration::from_millis(600);

/// Kind of a departure for the kernel: see [`Socket::step_aside`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// A peer that follows marks the kernel's stream.
    Marked,
    /// A peer that follows marks the kernel's stream, and the kernel would only be faster.
    ByChoice,
    /// This side looks at both streams by itself: a peer that follows marks nothing.
    Unmarked,
    /// This side looks at both streams by itself, and the kernel would only be faster.
    UnmarkedByChoice,
}

/// Answer to a departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Position up to which the driver brings bytes that the peer has sent before it could know.
    pub owed: u64,
    /// No mark of the peer's comes.
    pub unmarked: bool,
    /// This side marks the kernel's stream.
    pub marks: bool,
}

/// The direction to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// No more receiving.
    Read,
    /// No more sending: the peer reads the end of the stream.
    Write,
    /// Neither.
    Both,
}

impl Control {
    /// Asks on the socket's own channel.
    pub(crate) fn call(&self, request: Request, what: impl FnOnce() -> String) -> Result<Event> {
        check(self.link.home.call(&self.link.attachment, request)?, what)
    }

    fn ask_to_connect(&self, addr: SocketAddr) -> Result<Request> {
        self.check_family(addr)?;
        match self.state {
            State::New | State::Bound => {}
            State::Connecting(_) | State::Reaching(_) => {
                return Err(Error::new(Errno::ALREADY, "the socket is being connected"))
            }
            State::Connected => return Err(Error::new(Errno::ISCONN, "the socket is connected already")),
            State::Listening => {
                return Err(Error::new(Errno::OPNOTSUPP, "a listening socket cannot connect; make another"))
            }
        }
        let value = if self.receives_shared { RECEIVES_SHARED } else { 0 };
        Ok(Request { value, ..self.addressed(Operation::Connect, addr) })
    }

    /// Returns the request to listen with `backlog` places.
    pub(crate) fn listen_request(&self, backlog: u32) -> Request {
        let value = if self.receives_shared { RECEIVES_SHARED } else { 0 };
        let value = if self.takes == Takes::OtherNetworks { value | LISTENS_TO_OTHERS } else { value };
        let request = self.link.request(Operation::Listen);
        Request { value, ..request }.with_numbers(backlog.into(), 0)
    }

    /// A request about an address.
    pub(crate) fn addressed(&self, operation: Operation, addr: SocketAddr) -> Request {
        let value = if self.beside_kernel { BESIDE_KERNEL } else { 0 };
        Request { value, ..self.link.request(operation).with_address(Address::from(addr)) }
    }

    fn check_family(&self, addr: SocketAddr) -> Result<()> {
        if self.v6 != addr.is_ipv6() {
            return Err(Error::new(
                Errno::AFNOSUPPORT,
                format!("{addr} is not an address of the socket's family; make the socket with the other"),
            ));
        }
        Ok(())
    }
}

/// The driver's answer to a connect that the listener's backlog has no room for.
fn is_backlog_full(answer: &Event) -> bool {
    answer.errno == Errno::AGAIN.raw_os_error() as u32
}

impl Socket {
    /// Binds to an address that the network namespace holds.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`; `EINVAL` if bound already.
    pub fn bind(&self, addr: SocketAddr) -> Result<()> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        control.check_family(addr)?;
        if control.state != State::New {
            return Err(Error::invalid("the socket has an address already"));
        }
        self.bind_at(&mut control, addr)
    }

    fn bind_at(&self, control: &mut Control, addr: SocketAddr) -> Result<()> {
        let local = self.bind_both(control, addr, |control, addr| {
            let request = control.addressed(Operation::Bind, addr);
            let answer = control.call(request, || format!("cannot bind to {addr}"))?;
            Ok(answer.address().to_socket_addr().unwrap_or(addr))
        })?;
        (control.local, control.state) = (Some(local), State::Bound);
        Ok(())
    }

    /// Takes connections from now on; at most `backlog` wait to be accepted.
    ///
    /// # Errors
    /// `EADDRINUSE`; `EINVAL` on a connected socket.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        if matches!(control.state, State::Connected | State::Reaching(_)) {
            return Err(Error::invalid("a connected socket cannot listen"));
        }
        let backlog = backlog.clamp(1, BACKLOG_MAX);
        if let Some(anywhere) = Self::has_address(&control) {
            self.bind_at(&mut control, anywhere)?;
        }
        let kernel_listener = self.listen_by_kernel(&mut control, backlog)?;
        let request = control.listen_request(backlog);
        let answer = control.call(request, || match control.local {
            Some(local) => format!("cannot listen on {local}"),
            None => "cannot listen".to_owned(),
        });
        let answer = answer.inspect_err(|_| self.unlisten(kernel_listener.clone()))?;
        control.local = answer.address().to_socket_addr().or(control.local);
        control.backlog = backlog;
        control.state = State::Listening;
        self.recv.lock().listening = true;
        self.set_kernel_listener(kernel_listener);
        drop(control);
        self.watch.notify();
        Ok(())
    }

    /// Connects to a listener. It is enough that the listener's backlog has room: no need for it to
    /// accept. Waits for room, as long as a send may wait and as TCP does at most, unless the socket is non-blocking or stands
    /// beside one of the kernel, which waits better.
    ///
    /// # Errors
    /// `ECONNREFUSED`, also without room for one that does not wait; `EAGAIN` without room for one beside the kernel; `ETIMEDOUT`,
    /// `EHOSTUNREACH`, `ENOBUFS`, `EISCONN`.
    pub fn connect(&self, addr: SocketAddr) -> Result<()> {
        let (mut limits, mut pause) = (None, BACKLOG_LOOK_FIRST);
        loop {
            self.check_usable()?;
            if let Some(carrier) = self.kernel.get() {
                return self.connect_again(carrier, addr);
            }
            let control = lock(&self.control);
            let request = control.ask_to_connect(addr)?;
            let answer = control.link.home.call(&control.link.attachment, request);
            let waits = !control.beside_kernel && !self.is_nonblocking();
            let refused = |error: &Error| Self::goes_by_kernel(&control, error);
            if waits
                && Self::refusal(&answer).as_ref().is_some_and(refused)
                && process::reattached_within(LISTENERS_RETURN_MAX)
            {
                drop(control);
                std::thread::sleep(BACKLOG_LOOK_LAST / 2);
                continue;
            }
            if !waits || !answer.as_ref().is_ok_and(is_backlog_full) {
                return self.take_connection(control, addr, answer);
            }
            drop(control);
            let deadline = *limits.get_or_insert_with(|| {
                let most =
                    self.send.lock().timeout.map_or(BACKLOG_WAIT_MAX, |most| most.min(BACKLOG_WAIT_MAX));
                Deadline::after(Some(most))
            });
            let Some(left) = deadline.next_sleep() else {
                return Err(Error::new(
                    Errno::TIMEDOUT,
                    format!("cannot connect to {addr}: its backlog stays full"),
                ));
            };
            std::thread::sleep(left.min(pause));
            pause = (pause * 2).min(BACKLOG_LOOK_LAST);
        }
    }

    /// Returns the error of the driver's answer, if it is one.
    fn refusal(answer: &Result<Event>) -> Option<Error> {
        match answer {
            Ok(answer) if answer.errno != 0 && !is_backlog_full(answer) => {
                Some(Error::from_driver(answer.errno, || "refused".to_owned()))
            }
            _ => None,
        }
    }

    /// Begins to connect to a listener, without waiting for the driver. Until [`Self::finish_connect`] the socket is ready
    /// for nothing.
    ///
    /// # Errors
    /// The errors of [`Self::connect`] for which the driver is not asked.
    pub fn begin_connect(&self, addr: SocketAddr) -> Result<()> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        let request = control.ask_to_connect(addr)?;
        control.state = State::Connecting(control.link.home.ask(request)?);
        self.recv.lock().connecting = true;
        control.peer = Some(addr);
        Ok(())
    }

    /// Waits for what has come of [`Self::begin_connect`]; nothing to do if it is known.
    ///
    /// # Errors
    /// The errors of [`Self::connect`]; the socket is as before it then.
    pub fn finish_connect(&self) -> Result<()> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        let (&State::Connecting(tag), Some(addr)) = (&control.state, control.peer) else { return Ok(()) };
        let answer = control.link.home.answer(&control.link.attachment, tag);
        control.state = if control.local.is_some() { State::Bound } else { State::New };
        control.peer = None;
        let taken = self.take_connection(control, addr, answer);
        self.recv.lock().connecting = false;
        taken
    }

    /// Connects several sockets, with one round trip to the driver for those of one thread. None waits for room in a backlog.
    ///
    /// # Errors
    /// Of each, as [`Self::connect`].
    fn connect_each(sockets: &[Arc<Self>], addr: SocketAddr) -> Vec<Result<()>> {
        let asked: Vec<_> = sockets.iter().map(|socket| socket.about_to_connect(addr)).collect();
        let mut results: Vec<Result<()>> = Vec::with_capacity(sockets.len());
        while results.len() < sockets.len() {
            let first = results.len();
            let (link, _) = match &asked[first] {
                Ok(asked) => asked,
                Err(error) => {
                    results.push(Err(error.clone()));
                    continue;
                }
            };
            let alike = asked[first..].iter().map_while(|next| {
                next.as_ref()
                    .ok()
                    .filter(|(other, _)| Arc::ptr_eq(&other.home, &link.home))
                    .map(|next| next.1)
            });
            let answers = link.home.call_each(&link.attachment, alike);
            for (socket, answer) in sockets[first..].iter().zip(answers) {
                results.push(socket.take_connection(lock(&socket.control), addr, answer));
            }
        }
        results
    }

    /// Makes several sockets and connects them: all or none.
    ///
    /// # Errors
    /// The errors of [`Self::new`], and the first one's of [`Self::connect_each`].
    pub fn connect_several(addr: SocketAddr, count: usize) -> Result<Vec<Arc<Self>>> {
        let sockets = Self::new_several(addr.is_ipv6(), count)?;
        let connected: Result<()> = Self::connect_each(&sockets, addr).into_iter().collect();
        if let Err(error) = connected {
            sockets.iter().for_each(|socket| drop(socket.close()));
            return Err(error);
        }
        Ok(sockets)
    }

    fn about_to_connect(&self, addr: SocketAddr) -> Result<(Arc<Link>, Request)> {
        self.check_usable()?;
        let control = lock(&self.control);
        Ok((control.link.clone(), control.ask_to_connect(addr)?))
    }

    /// Takes the driver's answer to [`Control::ask_to_connect`].
    fn take_connection(
        &self,
        mut control: MutexGuard<'_, Control>,
        addr: SocketAddr,
        answer: Result<Event>,
    ) -> Result<()> {
        // A full backlog is the listener's answer.
        let is_asked = !answer.as_ref().is_ok_and(is_backlog_full);
        let answer = answer.and_then(|answer| match is_backlog_full(&answer) && !control.beside_kernel {
            true => Err(Error::from_driver(Errno::CONNREFUSED.raw_os_error() as u32, || {
                format!("cannot connect to {addr}")
            })),
            false => check(answer, || format!("cannot connect to {addr}")),
        });
        let answer = match answer {
            Err(error) if is_asked && Self::goes_by_kernel(&control, &error) => {
                return self.connect_by_kernel(control, addr, &error);
            }
            answer => answer.inspect_err(|error| control.error = error.errno())?,
        };
        control.bound = None;
        control.local = answer.address().to_socket_addr().or(control.local);
        control.peer = Some(addr);
        control.state = State::Connected;
        let link = Arc::new(control.link.connected());
        self.set_link(&mut control, link);
        self.send.lock().connected = true;
        self.recv.lock().connected = true;
        if let Some(local) = control.local.filter(|_| control.beside_kernel) {
            note_made(Made::At(local), self);
        }
        drop(control);
        self.watch.notify();
        Ok(())
    }

    /// Stops receiving, sending, or both.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        self.check_usable()?;
        if let Some(carrier) = self.kernel.get() {
            return self.shutdown_carrier(carrier, how);
        }
        let control = lock(&self.control);
        if control.state != State::Connected {
            return Err(not_connected());
        }
        let (read, write) = (how != Shutdown::Write, how != Shutdown::Read);
        if write {
            self.send.lock().shut = true;
        }
        let mask = u64::from(read) | u64::from(write) << 1;
        let request = control.link.request(Operation::Shutdown).with_numbers(mask, 0);
        control.call(request, || "cannot shut the connection down".to_owned())?;
        if read {
            self.recv.lock().shut = true;
        }
        control.link.wake_all();
        drop(control);
        self.watch.notify();
        Ok(())
    }

    /// Of a twin: sends nothing more, and has the peer send nothing more ([`Self::sends_elsewhere`]), for the connection goes on
    /// in the kernel. What was sent by either is still received here. [`Self::look_exactly`] finds what is owed in its ring.
    ///
    /// # Errors
    /// `ENOTCONN` if the peer has not claimed its end; `EACCES` if it leaves by choice and the policy has the driver move its
    /// bytes; `ESTALE` if another process has taken the socket; `ENETDOWN` and others if the connection has ended anyway.
    pub fn step_aside(&self, departure: Departure) -> Result<Left> {
        self.check_usable()?;
        // A send that is under way is over first: what it posts after this would not be delivered.
        let _copying = self.copying.lock();
        let control = lock(&self.control);
        if control.state != State::Connected {
            return Err(not_connected());
        }
        let was_shut = {
            let mut side = self.send.lock();
            side.aside = true;
            std::mem::replace(&mut side.shut, true)
        };
        let value = match departure {
            Departure::Marked => 0,
            Departure::ByChoice => STEP_ASIDE_BY_CHOICE,
            Departure::Unmarked => STEP_ASIDE_UNMARKED,
            Departure::UnmarkedByChoice => STEP_ASIDE_UNMARKED | STEP_ASIDE_BY_CHOICE,
        };
        let request = Request { value, ..control.link.request(Operation::StepAside) };
        let answer = control.call(request, || "cannot leave the fabric".to_owned());
        if answer.is_err() {
            let mut side = self.send.lock();
            (side.shut, side.aside) = (was_shut, false);
        }
        control.link.wake_all();
        drop(control);
        self.watch.notify();
        answer.map(|answer| {
            let (number, bits) = (answer.number(), PEER_LEFT | PEER_UNMARKED | LEFT_BEFORE | UNMARKED);
            Left {
                owed: number & !bits,
                unmarked: number & UNMARKED != 0,
                marks: number & (PEER_UNMARKED | LEFT_BEFORE) == 0,
            }
        })
    }

    /// Has waits on the socket look at it again: what they wait for may be elsewhere now.
    pub fn notify_waits(&self) {
        self.watch.notify();
    }

    /// Claims the peer's mark in the kernel's connection. The socket or its peer has left. Returns whether this process is to take the mark
    /// off: another one has, or there is none, otherwise.
    ///
    /// # Errors
    /// `ESTALE` if another process has taken the socket; those of [`Self::step_aside`].
    pub fn claim_mark(&self) -> Result<bool> {
        Ok(self.ask_about_mark()? & UNMARKED == 0)
    }

    /// Declines the peer's mark in the kernel's connection, which this socket's process is about to close. The socket has left. Returns whether
    /// the mark comes all the same, because the peer has left, too.
    ///
    /// # Errors
    /// As [`Self::claim_mark`].
    pub fn decline_mark(&self) -> Result<bool> {
        Ok(self.ask_about_mark()? & (UNMARKED | PEER_LEFT) == PEER_LEFT)
    }

    fn ask_about_mark(&self) -> Result<u64> {
        self.check_present()?;
        let control = lock(&self.control);
        let request = Request { value: STEP_ASIDE_CLAIM_MARK, ..control.link.request(Operation::StepAside) };
        Ok(control.call(request, || "cannot claim the mark".to_owned())?.number())
    }

    /// Ends receiving on this side alone, as TCP does: what comes can still be received, a receive that finds nothing says that
    /// the stream has ended, and the peer learns of nothing.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn end_receiving(&self) -> Result<()> {
        self.check_usable()?;
        self.recv.lock().shut = true;
        lock(&self.control).link.wake_all();
        self.watch.notify();
        Ok(())
    }

    /// Ends sending, which another process that had the socket has ended at the driver.
    pub fn end_sending(&self) {
        self.send.lock().shut = true;
        self.watch.notify();
    }

    /// Returns the path of the connection's bytes; `Offloaded` while there is no connection.
    pub fn path(&self) -> Path {
        if self.kernel.get().is_some() {
            return Path::Kernel;
        }
        match lock(&self.control).link.is_direct() {
            true => Path::Direct,
            false => Path::Offloaded,
        }
    }

    /// Where the socket is bound; port 0 of the unspecified address if nowhere.
    ///
    /// # Errors
    /// `EBADF`; those of asking the driver.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        if control.local_inexact {
            let answer = control.set_option(SocketOption::LocalAddress, 0)?;
            control.local = answer.address().to_socket_addr().or(control.local);
            control.local_inexact = false;
        }
        let nowhere =
            if control.v6 { SocketAddr::from(([0u16; 8], 0)) } else { SocketAddr::from(([0u8; 4], 0)) };
        Ok(control.local.unwrap_or(nowhere))
    }

    /// The address that the peer of an accepted socket asked for, where that is not the one it reached: a service, or the destination of a connection
    /// that a policy leads to this proxy.
    ///
    /// # Errors
    /// `ENOENT` if it is the one it reached; those of asking the driver.
    pub fn original_addr(&self) -> Result<SocketAddr> {
        self.check_usable()?;
        if let Some(carrier) = self.kernel.get() {
            return carrier
                .original_addr()
                .map_err(|errno| Error::new(errno, "the peer asked for no other address"));
        }
        let answer = lock(&self.control).set_option(SocketOption::OriginalAddress, 0)?;
        let none = || Error::new(Errno::NOENT, "the peer asked for no other address");
        answer.address().to_socket_addr().ok_or_else(none)
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.check_usable()?;
        lock(&self.control).peer.ok_or_else(not_connected)
    }

    /// Wishes for a send ring of `bytes`, which limits what may be sent and not yet delivered. Returns the size taken: a
    /// power of two within the limits.
    ///
    /// # Errors
    /// The errors of asking the driver.
    pub fn set_send_ring_bytes(&self, bytes: u64) -> Result<u64> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        if self.kernel.get().is_some() {
            // The kernel's buffers follow what the way takes.
            control.send_ring_bytes = ring_bytes_near(bytes);
            return Ok(control.send_ring_bytes);
        }
        let taken = control.set_option(SocketOption::SendRingBytes, bytes)?.number();
        let taken = taken.clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        control.send_ring_bytes = taken;
        self.send.lock().ring_bytes = taken;
        Ok(taken)
    }

    /// Wishes for a receive ring of `bytes`, which takes effect with the next ring. Returns the size taken.
    ///
    /// # Errors
    /// The errors of asking the driver.
    pub fn set_receive_ring_bytes(&self, bytes: u64) -> Result<u64> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        if self.kernel.get().is_some() {
            control.receive_ring_bytes = ring_bytes_near(bytes);
            return Ok(control.receive_ring_bytes);
        }
        let taken = control.set_option(SocketOption::ReceiveRingBytes, bytes)?.number();
        control.receive_ring_bytes = taken.clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        Ok(control.receive_ring_bytes)
    }

    /// Sizes of the send ring and the receive ring.
    pub fn ring_bytes(&self) -> (u64, u64) {
        let control = lock(&self.control);
        (control.send_ring_bytes, control.receive_ring_bytes)
    }

    /// Makes an IPv6 socket take no IPv4 connections, or take them.
    ///
    /// # Errors
    /// `EINVAL` on an IPv4 socket or a bound one.
    pub fn set_v6_only(&self, only: bool) -> Result<()> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        if !control.v6 || control.state != State::New {
            return Err(Error::invalid("IPV6_V6ONLY is for IPv6 sockets that are not yet bound"));
        }
        control.set_option(SocketOption::V6Only, only.into())?;
        control.v6_only = only;
        Ok(())
    }

    /// Lets bytes be received that their sender can still change, on the direct path, where the peer is not one that the
    /// policy trusts: then they are not copied. Of a listener: for the connections that it accepts from now on. Cannot be
    /// taken back.
    ///
    /// # Errors
    /// The errors of asking the driver, on a connected socket.
    pub fn set_receives_shared(&self) -> Result<()> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        control.receives_shared = true;
        self.recv.lock().receives_shared = true;
        let is_carried = self.kernel.get().is_some();
        if matches!(control.state, State::Connected | State::Listening) && !is_carried {
            control.set_option(SocketOption::ReceivesShared, 1)?;
        }
        Ok(())
    }

    /// See [`Self::set_receives_shared`].
    pub fn receives_shared(&self) -> bool {
        lock(&self.control).receives_shared
    }

    /// Sets the connections that a listener takes from now on, or from when it listens. Those in its backlog stay.
    ///
    /// # Errors
    /// Errors of asking the driver.
    pub fn set_takes(&self, takes: Takes) -> Result<()> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        if matches!(control.state, State::Listening) {
            let number = match takes {
                Takes::All => 0,
                Takes::None => 1,
                Takes::OtherNetworks => OTHER_NETWORKS,
            };
            control.set_option(SocketOption::Paused, number)?;
        }
        control.takes = takes;
        Ok(())
    }

    /// See [`Self::set_v6_only`].
    pub fn v6_only(&self) -> bool {
        lock(&self.control).v6_only
    }

    /// Returns whether the socket listens.
    pub fn is_listening(&self) -> bool {
        lock(&self.control).state == State::Listening
    }

    /// Moves a fresh accepted socket to the calling thread's channel, so that threads that were handed
    /// a connection do not share the acceptor's.
    pub(crate) fn adopt(&self) -> Result<()> {
        let mut control = lock(&self.control);
        {
            let mut side = self.send.lock();
            if !std::mem::take(&mut side.adoptable) || side.has_sent() {
                return Ok(());
            }
        }
        let link = control.link.clone();
        let channel = link.attachment.channel()?;
        if Arc::ptr_eq(&channel, &link.home) {
            return Ok(());
        }
        let answer = channel.call(&link.attachment, link.request(Operation::Adopt))?;
        if check(answer, || "cannot move the socket to this thread".to_owned()).is_err() {
            // The socket may stay where it is.
            return Ok(());
        }
        self.set_link(&mut control, Arc::new(link.with_home(channel)));
        Ok(())
    }
}

impl Control {
    pub(crate) fn set_option(&self, option: SocketOption, value: u64) -> Result<Event> {
        let mut request = self.link.request(Operation::SetOption).with_numbers(value, 0);
        request.value = option as u32;
        self.call(request, || format!("cannot set {option:?} to {value}"))
    }
}

/// Size of a ring that is wished for, as the driver takes it.
fn ring_bytes_near(bytes: u64) -> u64 {
    bytes.clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two()
}
