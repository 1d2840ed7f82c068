//! Accepting, and listening on through a restart of the driver.
use crate::catch_up::{join, Made};
use crate::error::{check, would_block, Error, Result};
use crate::link::Link;
use crate::process;
use crate::recv::side::IDLE_CALLS;
use crate::socket::{Arrived, Control, Socket};
use crate::turn::{lock, Deadline, SLEEP_MAX};
use pd_abi::limits::ANSWERS_MAX;
use pd_abi::{Address, Operation, SocketId, SocketOption};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

impl Socket {
    /// Takes a connection from the backlog; waits for one unless the socket is non-blocking. While
    /// the driver is away a blocking listener waits for it and goes on listening.
    ///
    /// # Errors
    /// `EAGAIN`; `EINVAL` if the socket does not listen; `EMFILE` with too many sockets.
    pub fn accept(&self) -> Result<Arc<Socket>> {
        self.check_usable()?;
        let mut deadline = None;
        loop {
            let result = self.try_accept();
            match &result {
                Err(error) if error.would_block() && !self.is_nonblocking() => {}
                _ => return result,
            }
            let side = self.recv.lock();
            let deadline = *deadline.get_or_insert_with(|| Deadline::after(side.timeout));
            let Some(timeout) = deadline.next_sleep() else { return result };
            if self.kernel_listener.get().is_some() {
                drop(side);
                match self.sleep_for_both(timeout) {
                    // The driver has gone: the next round attaches again.
                    Err(_) if !lock(&self.control).link.attachment.alive() => std::thread::sleep(timeout),
                    slept => _ = slept?,
                }
                self.check_usable()?;
                continue;
            }
            let wake_at = side.consumer + 1;
            if side.link.attachment.alive() {
                drop(self.sleep_for_recv(side, wake_at, timeout, None));
            } else {
                drop(side);
                std::thread::sleep(timeout);
            }
            self.check_usable()?;
        }
    }

    fn try_accept(&self) -> Result<Arc<Socket>> {
        // Threads accept one at a time: the count of connections taken must not run ahead of those that came.
        let mut accepting = lock(&self.accepting);
        if !self.is_listening() {
            return Err(Error::invalid("the socket does not listen; call pd_listen first"));
        }
        if self.looks_at_kernel_first() {
            if let Some(socket) = self.accept_by_kernel()? {
                return Ok(socket);
            }
        }
        match self.accept_by_fabric(&mut accepting) {
            Err(error) if error.would_block() => self.accept_by_kernel()?.ok_or(error),
            result => result,
        }
    }

    #[allow(clippy::box_collection, reason = "as the socket keeps them")]
    fn accept_by_fabric(&self, accepting: &mut Option<Box<VecDeque<Arrived>>>) -> Result<Arc<Socket>> {
        if !self.keep_listening() {
            return Err(would_block());
        }
        let arrived = accepting.get_or_insert_default();
        // Connections of a driver that has gone are gone, too: all come from one.
        if arrived.front().is_some_and(|next| !next.link.attachment.alive()) {
            arrived.clear();
        }
        if arrived.is_empty() {
            self.fetch_arrived(arrived)?;
        }
        let next = arrived.pop_front().ok_or_else(would_block)?;
        let mut side = self.recv.lock();
        side.consumer += 1;
        side.link.store_recv_consumer(side.consumer);
        drop(side);
        Ok(self.accepted(next.link.connected(), next.peer))
    }

    /// Has the driver hand over connections that have come.
    fn fetch_arrived(&self, arrived: &mut VecDeque<Arrived>) -> Result<()> {
        self.check_usable()?;
        let (link, came, taken) = {
            let mut side = self.recv.lock();
            let came = side.link.recv_producer();
            if came <= side.consumer {
                side.idle_calls = side.idle_calls.wrapping_add(1);
                if side.idle_calls % IDLE_CALLS == 0 {
                    side.link.attachment.check_alive();
                }
                return Err(would_block());
            }
            (side.link.clone(), came, side.consumer)
        };
        let channel = match link.attachment.channel() {
            Err(_) if !link.attachment.alive() => return Err(would_block()),
            channel => channel?,
        };
        let mut request = link.request(Operation::Accept);
        request.value = (came - taken).min(ANSWERS_MAX.into()) as u32;
        let answers = channel.call_for_several(&link.attachment, request);
        let (last, others) = match answers {
            Ok(answers) => answers,
            // The driver has gone: the next round attaches again.
            Err(_) if !link.attachment.alive() => return Err(would_block()),
            Err(error) => return Err(error),
        };
        if last.errno == Errno::AGAIN.raw_os_error() as u32 {
            // The threads that came have left again.
            let mut side = self.recv.lock();
            side.consumer = side.consumer.max(came);
            side.link.store_recv_consumer(side.consumer);
        }
        let last = check(last, || "cannot accept".to_owned())?;
        for answer in others.into_iter().chain([last]) {
            let link = Link::new(link.attachment.clone(), SocketId(answer.socket), channel.clone());
            arrived.push_back(Arrived { link, peer: answer.address() });
        }
        Ok(())
    }

    /// Closes connections that have come and that nobody has accepted.
    pub(crate) fn refuse_arrived(&self) {
        for next in lock(&self.accepting).take().into_iter().flat_map(|arrived| *arrived) {
            if next.link.attachment.alive() {
                let _ = next.link.submit(next.link.request(Operation::Close));
            }
        }
    }

    fn accepted(&self, link: Link, peer: Address) -> Arc<Socket> {
        let listener = lock(&self.control);
        let control = Control {
            link: Arc::new(link),
            local: listener.local,
            local_inexact: listener.local.is_none_or(|local| local.ip().is_unspecified()),
            peer: peer.to_socket_addr(),
            ..listener.for_accepted()
        };
        drop(listener);
        let made = control.peer.filter(|_| control.beside_kernel).map(Made::At);
        let socket = Socket::assemble(control, true);
        made.into_iter().for_each(|made| join(&socket, made));
        socket
    }

    /// Attaches and listens again if the driver has gone; tries at most every 250 ms. Says whether
    /// the socket listens.
    pub(crate) fn keep_listening(&self) -> bool {
        let mut control = lock(&self.control);
        if control.link.attachment.alive() {
            return true;
        }
        if control.attach_tried.is_some_and(|tried| tried.elapsed() < SLEEP_MAX) {
            return false;
        }
        control.attach_tried = Some(Instant::now());
        self.listen_again(&mut control).is_ok()
    }

    fn listen_again(&self, control: &mut Control) -> Result<()> {
        let attachment = process::attachment()?;
        let (link, _) = Socket::open(&attachment, control.v6)?;
        let link = Arc::new(link);
        let old = std::mem::replace(&mut control.link, link.clone());
        let result = self.repeat_calls(control);
        if let Err(error) = result {
            control.link = old;
            let _ = link.submit(link.request(Operation::Close));
            return Err(error);
        }
        self.set_link(control, link);
        self.recv.lock().restart();
        self.rewatch(control);
        Ok(())
    }

    fn repeat_calls(&self, control: &Control) -> Result<()> {
        if control.v6_only {
            control.set_option(SocketOption::V6Only, 1)?;
        }
        control.set_option(SocketOption::SendRingBytes, control.send_ring_bytes)?;
        control.set_option(SocketOption::ReceiveRingBytes, control.receive_ring_bytes)?;
        if let Some(local) = control.local {
            let bind = control.addressed(Operation::Bind, local);
            control.call(bind, || format!("cannot bind to {local} again"))?;
        }
        let listen = control.listen_request(control.backlog);
        control.call(listen, || "cannot listen again".to_owned())?;
        Ok(())
    }
}
