//! Connecting in the kernel, after the driver has said that it knows no listener there. Binding comes first: a bound socket holds its
//! port in both.
use super::carrier::{anywhere, failed};
use super::{Carrier, Inbox};
use crate::control::Shutdown;
use crate::error::{Error, Result};
use crate::setting::uses_kernel;
use crate::socket::{Control, Socket, State};
use crate::turn::{lock, Deadline};
use libc::c_int;
use pd_abi::{KernelReason, Operation};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};

/// Answers of the driver after which the kernel is asked: nobody listens there, or no namespace that it serves holds the address. Others,
/// such as those of the policy and of quotas, are the answer.
const ASKS_KERNEL: [Errno; 2] = [Errno::CONNREFUSED, Errno::HOSTUNREACH];
/// Answers of the kernel that say less than the driver's: it has no way there.
const SAYS_LESS: [Errno; 4] =
    [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::ADDRNOTAVAIL, Errno::AFNOSUPPORT];
/// Free ports of the kernel that are tried because the driver has given the one before to another client.
const PORTS_TRIED: u32 = 16;

impl Control {
    /// Returns whether the kernel serves the socket where the fabric does not.
    pub(super) fn has_kernel(&self) -> bool {
        !self.beside_kernel && uses_kernel()
    }

    /// A kernel socket for this one, bound if this one is.
    pub(super) fn kernel_socket(&mut self) -> Result<Arc<Carrier>> {
        if let Some(bound) = self.bound.take() {
            return Ok(bound);
        }
        let carrier = self.open_kernel_socket()?;
        if let Some(local) = self.local.filter(|_| self.state == State::Bound) {
            carrier.bind(local).map_err(|errno| failed(errno, || format!("cannot bind to {local} again")))?;
        }
        Ok(carrier)
    }

    fn open_kernel_socket(&self) -> Result<Arc<Carrier>> {
        let open = Carrier::open(self.v6, self.v6_only);
        let carrier = open.map_err(|errno| failed(errno, || "cannot make a kernel socket".to_owned()))?;
        for &option in &self.kernel_options {
            // An option that the kernel does not take was refused before, or changes nothing.
            let _ = carrier.set_option(option);
        }
        Ok(Arc::new(carrier))
    }
}

impl Socket {
    /// Binds in the kernel, then at the driver by `bind`, which is told the address with its port and says where it is.
    pub(crate) fn bind_both(
        &self,
        control: &mut Control,
        addr: SocketAddr,
        bind: impl Fn(&Control, SocketAddr) -> Result<SocketAddr>,
    ) -> Result<SocketAddr> {
        if !control.has_kernel() {
            return bind(control, addr);
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let carrier = control.open_kernel_socket()?;
            carrier.bind(addr).map_err(|errno| failed(errno, || format!("cannot bind to {addr}")))?;
            let port = carrier.local_addr().map_or(addr.port(), |local| local.port());
            match bind(control, SocketAddr::new(addr.ip(), port)) {
                Err(error)
                    if addr.port() == 0 && error.errno() == libc::EADDRINUSE && tries < PORTS_TRIED => {}
                Err(error) => return Err(error),
                Ok(local) => {
                    control.bound = Some(carrier);
                    return Ok(local);
                }
            }
        }
    }

    /// Returns whether the kernel is to be asked after an answer of the driver's.
    pub(crate) fn goes_by_kernel(control: &Control, error: &Error) -> bool {
        control.has_kernel() && ASKS_KERNEL.iter().any(|errno| errno.raw_os_error() == error.errno())
    }

    /// Connects in the kernel. `refused` is what the driver has said.
    pub(crate) fn connect_by_kernel(
        &self,
        mut control: MutexGuard<'_, Control>,
        addr: SocketAddr,
        refused: &Error,
    ) -> Result<()> {
        let carrier = control.kernel_socket()?;
        let before = std::mem::replace(&mut control.state, State::Reaching(carrier.clone()));
        let reason = match refused.errno() == libc::EHOSTUNREACH {
            true => KernelReason::PeerUnknown,
            false => KernelReason::PeerWithout,
        };
        let begun = carrier.connect(addr);
        if begun == Err(Errno::INPROGRESS) && self.is_nonblocking() {
            self.take_carrier(&mut control, carrier, addr, reason);
            drop(control);
            self.watch.notify();
            return Err(Error::new(Errno::INPROGRESS, format!("{addr} is being connected by the kernel")));
        }
        drop(control);
        let mut done = match begun {
            Err(Errno::INPROGRESS) => self.await_connection(&carrier, addr),
            done => done,
        };
        if done.is_ok() && carrier.is_own_peer() {
            done = Err(Errno::CONNREFUSED);
        }
        let mut control = lock(&self.control);
        if let Err(errno) = done {
            if matches!(control.state, State::Reaching(_)) {
                control.state = before;
            }
            carrier.close(true);
            self.check_usable()?;
            return Err(match SAYS_LESS.contains(&errno) {
                true => refused.clone(),
                false => failed(errno, || format!("cannot connect to {addr}")),
            })
            .inspect_err(|error| control.error = error.errno());
        }
        if self.is_closed() {
            carrier.close(false);
            self.check_usable()?;
        }
        let _ = carrier.set_waiting();
        self.take_carrier(&mut control, carrier, addr, reason);
        drop(control);
        self.watch.notify();
        Ok(())
    }

    fn await_connection(&self, carrier: &Carrier, addr: SocketAddr) -> rustix::io::Result<()> {
        let deadline = Deadline::after(self.send_timeout());
        loop {
            let timeout = deadline.next_sleep().ok_or(Errno::TIMEDOUT)?;
            if !carrier.wait(PollFlags::OUT, timeout).is_empty() {
                carrier.take_error()?;
                // The kernel tells one more call of the success, and only those after it that there is a connection.
                return carrier.connect(addr);
            }
        }
    }

    /// From now on the kernel carries the socket. The driver's is given up.
    fn take_carrier(
        &self,
        control: &mut Control,
        carrier: Arc<Carrier>,
        addr: SocketAddr,
        reason: KernelReason,
    ) {
        let link = control.link.clone();
        self.unsubscribe(control);
        if link.attachment.alive() {
            let _ = link.submit(link.request(Operation::Close));
        }
        link.attachment.stays_on_kernel(reason, carrier.inode());
        control.local = carrier.local_addr().ok().or(control.local);
        control.local_inexact = false;
        control.peer = Some(addr);
        control.state = State::Connected;
        self.be_carried(control, carrier);
    }

    /// Makes a connected socket one of the kernel's.
    pub(super) fn be_carried(&self, control: &Control, carrier: Arc<Carrier>) {
        let _ = self.kernel.set(carrier.clone());
        {
            let mut side = self.recv.lock();
            side.kernel = Some(Inbox::new(carrier, control.receive_ring_bytes));
            side.connected = true;
        }
        self.send.lock().connected = true;
        self.join_all();
    }

    /// The answer to another connect of a socket that the kernel carries.
    pub(crate) fn connect_again(&self, carrier: &Carrier, addr: SocketAddr) -> Result<()> {
        carrier.connect(addr).map_err(|errno| failed(errno, || format!("cannot connect to {addr}")))
    }

    /// Shuts a connection of the kernel's down.
    pub(crate) fn shutdown_carrier(&self, carrier: &Carrier, how: Shutdown) -> Result<()> {
        let (read, write) = (how != Shutdown::Write, how != Shutdown::Read);
        let shut = carrier.shutdown(read, write);
        shut.map_err(|errno| failed(errno, || "cannot shut the connection down".to_owned()))?;
        if read {
            self.recv.lock().shut = true;
        }
        self.watch.notify();
        Ok(())
    }

    /// Sets an option that the fabric has no use for: what the kernel carries, now or later, has it.
    ///
    /// # Errors
    /// `EBADF`; those of setsockopt(2).
    pub fn set_kernel_option(&self, level: c_int, option: c_int, value: c_int) -> Result<()> {
        self.check_usable()?;
        let mut control = lock(&self.control);
        let wanted = (level, option, value);
        for carrier in
            self.kernel.get().iter().chain(self.kernel_listener.get().iter()).copied().chain(&control.bound)
        {
            let set = carrier.set_option(wanted);
            set.map_err(|errno| failed(errno, || format!("cannot set option {option} of level {level}")))?;
        }
        control.kernel_options.retain(|known| (known.0, known.1) != (level, option));
        control.kernel_options.push(wanted);
        Ok(())
    }

    /// Returns the kernel's value of a socket option; none where the fabric carries the socket.
    pub fn kernel_option(&self, level: c_int, option: c_int) -> Option<c_int> {
        self.kernel.get()?.option(level, option).ok()
    }

    /// Binds to any address and a port that is free, as listening does.
    pub(super) fn address_anywhere(control: &Control) -> SocketAddr {
        anywhere(control.v6)
    }
}
