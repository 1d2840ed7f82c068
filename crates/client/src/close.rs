//! Closing sockets. What was sent is still delivered, and the process looks after its memory until then.
use crate::direct::incoming::Incoming;
use crate::direct::outgoing::Outgoing;
use crate::error::Result;
use crate::link::Link;
use crate::socket::{Socket, State};
use crate::sockets;
use crate::turn::{lock, HasTurn};
use pd_abi::{Operation, Request, CLOSE_LEFT, CLOSE_RESETS};
use std::sync::Arc;

impl Socket {
    /// Gives the socket up. What was sent is still delivered, unless [`Self::set_close_resets`] was called. Never blocks.
    ///
    /// # Errors
    /// `EBADF` if it was closed before.
    pub fn close(self: &Arc<Self>) -> Result<()> {
        self.end(if self.close_resets() { CLOSE_RESETS } else { 0 })
    }

    /// Gives the socket up, and ends the peer's stream with `ECONNRESET`.
    ///
    /// # Errors
    /// `EBADF` if it was closed before.
    pub fn reset(self: &Arc<Self>) -> Result<()> {
        self.end(CLOSE_RESETS)
    }

    /// [`Self::close`] of a twin whose connection goes on in the kernel, in both directions.
    ///
    /// # Errors
    /// `EBADF` if it was closed before.
    pub fn close_left(self: &Arc<Self>) -> Result<()> {
        self.end(CLOSE_LEFT)
    }

    fn end(self: &Arc<Self>, value: u32) -> Result<()> {
        self.set_closed()?;
        self.unwatch_all();
        self.refuse_arrived();
        // Bytes that a send reports as sent come before the close.
        self.send.lock().close();
        let link = self.let_go();
        self.close_kernel(value & CLOSE_RESETS != 0);
        if self.kernel.get().is_some() {
            // The driver has had its socket back, or never had one. Sleepers in the kernel are awake.
            self.recv.lock().forget_ring();
        } else if link.attachment.alive() {
            // A driver that has gone has closed everything already.
            let _ = link.submit(Request { value, ..link.request(Operation::Close) });
        }
        self.forget_made(link.id, lock(&self.control).local);
        self.tell_pair();
        let sleeping = {
            let mut side = self.recv.lock();
            side.forget_ring();
            side.turn().is_sleeping() || self.send.lock().turn().is_sleeping()
        };
        if sleeping {
            // A thread that waits for its turn is told by the sleeper, or has not begun to wait and finds the socket closed.
            link.wake_all();
            self.send.notify_all();
            self.recv.notify_all();
        }
        sockets::retire(self);
        Ok(())
    }

    /// Unmaps direct rings: the driver takes them back when nobody holds them.
    fn let_go(&self) -> Arc<Link> {
        let mut control = lock(&self.control);
        if let State::Connecting(tag) = control.state {
            control.link.home.forget(tag);
        }
        if control.link.direct.is_some() {
            let link = Arc::new(control.link.closed());
            self.set_link(&mut control, link);
            self.send.lock().out = Outgoing::default();
            let mut recv = self.recv.lock();
            recv.forget_ring();
            recv.incoming = Incoming::default();
        }
        control.link.clone()
    }
}
