//! Listening in the kernel beside the fabric, at the same address, and accepting from both.
use super::carrier::failed;
use super::Carrier;
use crate::epoll::{ready, Epoll};
use crate::error::Result;
use crate::socket::{Control, Socket, State};
use crate::sockets;
use crate::turn::lock;
use pd_abi::KernelReason;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Accepts from the fabric between two that look at the kernel first, so that neither starves the other.
const FABRIC_FIRST: u32 = 8;

impl Socket {
    /// Listens in the kernel, before the driver is asked. Returns what [`Self::set_kernel_listener`] makes the listener's.
    pub(crate) fn listen_by_kernel(
        &self,
        control: &mut Control,
        backlog: u32,
    ) -> Result<Option<Arc<Carrier>>> {
        if !control.has_kernel() {
            return Ok(None);
        }
        let kernel_listener = match self.kernel_listener.get() {
            Some(kernel_listener) => kernel_listener.clone(),
            None => control.kernel_socket()?,
        };
        kernel_listener.listen(backlog).map_err(|errno| {
            failed(errno, || match control.local {
                Some(local) => format!("cannot listen on {local}"),
                None => "cannot listen".to_owned(),
            })
        })?;
        Ok(Some(kernel_listener))
    }

    /// A wish to listen that was not granted: the kernel socket is closed, and a later one listens on another.
    pub(crate) fn unlisten(&self, kernel_listener: Option<Arc<Carrier>>) {
        if let Some(kernel_listener) = kernel_listener.filter(|_| self.kernel_listener.get().is_none()) {
            kernel_listener.close(false);
        }
    }

    /// The socket listens in both.
    pub(crate) fn set_kernel_listener(&self, kernel_listener: Option<Arc<Carrier>>) {
        if let Some(kernel_listener) = kernel_listener {
            let _ = self.kernel_listener.set(kernel_listener);
            self.join_all();
        }
    }

    /// Has a socket that is to listen an address first.
    pub(crate) fn has_address(control: &Control) -> Option<SocketAddr> {
        (control.has_kernel() && control.state == State::New).then(|| Self::address_anywhere(control))
    }

    /// Returns whether this accept looks at the kernel first.
    pub(crate) fn looks_at_kernel_first(&self) -> bool {
        self.kernel_listener.get().is_some()
            && self.accepts.fetch_add(1, Ordering::Relaxed) % FABRIC_FIRST == FABRIC_FIRST - 1
    }

    /// Takes a connection that has come by the kernel; none: there is none.
    pub(crate) fn accept_by_kernel(&self) -> Result<Option<Arc<Socket>>> {
        let Some(kernel_listener) = self.kernel_listener.get() else { return Ok(None) };
        loop {
            return match kernel_listener.accept() {
                Ok((fd, Some(peer))) => Ok(Some(self.accepted_by_kernel(fd, peer))),
                // The peer has gone again.
                Ok((_, None)) | Err(Errno::CONNABORTED | Errno::PROTO) => continue,
                Err(Errno::AGAIN) => Ok(None),
                Err(errno) => Err(failed(errno, || "cannot accept from the kernel".to_owned())),
            };
        }
    }

    fn accepted_by_kernel(&self, fd: OwnedFd, peer: SocketAddr) -> Arc<Socket> {
        let carrier = Arc::new(Carrier::new(fd));
        let local = carrier.local_addr().ok();
        let listener = lock(&self.control);
        let control = Control {
            // Of its link nothing is asked: the listener's stands where one has to.
            local,
            peer: Some(peer),
            ..listener.for_accepted()
        };
        drop(listener);
        control.link.attachment.stays_on_kernel(KernelReason::PeerPlain, carrier.inode());
        let socket = Socket::assemble(control, false);
        socket.be_carried(&lock(&socket.control), carrier);
        socket
    }

    /// Returns whether a connection has come by the kernel.
    pub(crate) fn kernel_has_arrived(&self) -> bool {
        self.kernel_listener.get().is_some_and(|kernel_listener| {
            kernel_listener.wait(PollFlags::IN, Duration::ZERO).contains(PollFlags::IN)
        })
    }

    /// Sleeps until a connection may have come by either way. False: there is one way only.
    pub(crate) fn sleep_for_both(&self, timeout: Duration) -> Result<bool> {
        if self.kernel_listener.get().is_none() {
            return Ok(false);
        }
        let acceptor = match self.acceptor.get() {
            Some(acceptor) => acceptor,
            None => {
                let Some(this) = sockets::find(self.serial()) else { return Ok(true) };
                let acceptor = Epoll::new();
                acceptor.add(&this, ready::IN, 0)?;
                self.acceptor.get_or_init(|| acceptor)
            }
        };
        acceptor.wait(1, Some(timeout), &mut |_, _| ())?;
        Ok(true)
    }

    /// Ends what the kernel holds for a socket that is closed.
    pub(crate) fn close_kernel(&self, resets: bool) {
        let (bound, reaching) = {
            let mut control = lock(&self.control);
            let reaching = match &control.state {
                State::Reaching(carrier) => Some(carrier.clone()),
                _ => None,
            };
            (control.bound.take(), reaching)
        };
        let carried = self.kernel.get().into_iter().chain(self.kernel_listener.get());
        carried.chain(&bound).chain(&reaching).for_each(|carrier| carrier.close(resets));
        if let Some(acceptor) = self.acceptor.get() {
            acceptor.poke();
            acceptor.close();
        }
    }
}
