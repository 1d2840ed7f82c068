//! A socket as a source of an epoll instance.
use super::item::{Item, Rest, Source};
use super::ready::{ASIDE, EDGE, ERR, HUP, IN, LEFT, OUT, RDHUP};
use super::Registration;
use crate::link::{has_failed, MOVED};
use crate::own::OwnFd;
use crate::socket::{Control, Socket};
use crate::turn::lock;
use pd_abi::layout::{ELSEWHERE, ENDED, LOST, SHUT};
use std::sync::atomic::Ordering;
use std::sync::Arc;

impl Socket {
    /// Adds an item; the first one subscribes to the driver's events. The caller holds the control
    /// lock, so that items come and go one at a time.
    pub(super) fn watch(&self, control: &Control, registration: Registration) {
        let first = {
            let mut items = lock(&self.watch.items);
            items.push(registration.item.clone());
            lock(&self.registrations).push(registration);
            // Threads of the item's instance do not sleep on it yet.
            control.link.sleep_on_doorbell(0);
            items.len() == 1
        };
        if first && self.kernel.get().is_none() {
            self.subscribe(control);
        }
    }

    pub(super) fn subscribe(&self, control: &Control) {
        control.link.home.set_watch(control.link.id, Some(self.watch.clone()));
        self.watch.subscribed.store(true, Ordering::Relaxed);
        control.link.store_subscribed(true);
    }

    /// Takes an item away, and the subscription with the last one.
    pub(super) fn unwatch(&self, control: &Control, item: &Arc<Item>) {
        let last = {
            let mut items = lock(&self.watch.items);
            items.retain(|known| !Arc::ptr_eq(known, item));
            lock(&self.registrations).retain(|known| !Arc::ptr_eq(&known.item, item));
            items.is_empty()
        };
        if last {
            self.unsubscribe(control);
        }
    }

    pub(crate) fn unsubscribe(&self, control: &Control) {
        if self.watch.subscribed.swap(false, Ordering::Relaxed) {
            control.link.store_subscribed(false);
            control.link.home.set_watch(control.link.id, None);
        }
    }

    fn listener_readiness(&self) -> u32 {
        if self.kernel_has_arrived() {
            return IN;
        }
        if !self.keep_listening() {
            return 0;
        }
        if self.recv.lock().poll().0 > 0 {
            IN
        } else {
            0
        }
    }

    /// Sets whether the connection counts as not writable, for a reason that is not its own. Its end is an edge for waits that
    /// want edges.
    pub fn hold_out(&self, held: bool) {
        if self.watch.out_held.swap(held, Ordering::AcqRel) && !held {
            self.watch.notify();
        }
    }

    fn out_readiness(&self) -> u32 {
        if self.watch.out_held.load(Ordering::Acquire) {
            return 0;
        }
        let mut side = self.send.lock();
        loop {
            side.reap();
            if side.writable() || side.end().is_err() {
                return OUT;
            }
            // If something was done while asking to be told, look again instead.
            if !side.arm() {
                return 0;
            }
        }
    }

    /// True for what stands for TCP, where a peer's close is the end of its stream and no more: some programs read nothing
    /// after a `HUP`. A twin of an AF_UNIX socket, which has no address here, does not.
    pub(crate) fn stands_for_tcp(&self) -> bool {
        lock(&self.control).local.is_some()
    }
}

impl Source for Socket {
    fn leave(&self, item: &Arc<Item>) {
        self.unwatch(&lock(&self.control), item);
    }

    fn ask_for_doorbell(
        &self,
        item: &Arc<Item>,
        instance: u64,
        register: &dyn Fn(u64, Arc<OwnFd>) -> bool,
    ) -> bool {
        let link = lock(&self.control).link.clone();
        let (number, fd) =
            match link.direct.as_ref().map(|direct| direct.doorbell(&link.attachment, link.id, instance)) {
                Some(Ok(Some(doorbell))) => doorbell,
                Some(Ok(None)) => return false,
                None | Some(Err(_)) => return true,
            };
        // Another item would take it back.
        let items = lock(&self.watch.items);
        if items.len() == 1 && Arc::ptr_eq(&items[0], item) && register(number, fd) {
            link.sleep_on_doorbell(number);
        }
        true
    }

    fn readiness(&self, wanted: u32) -> u32 {
        self.look(wanted, News::Sent).0
    }

    fn glance(&self, wanted: u32) -> (u32, Option<Rest>) {
        self.look(wanted, News::LookedFor)
    }
}

/// Way in which a wait learns that `IN` holds later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// By an event.
    Sent,
    /// By looking at a word that tells when a rest is over, if there is one, and then nobody else is told; else by an
    /// event.
    LookedFor,
    /// By looking again.
    Nowhere,
}

/// The state of both directions of a connection at one look.
struct Seen {
    /// Bytes to receive.
    there: u64,
    /// There are as many as a receive waits for.
    is_enough: bool,
    /// The program receives no more.
    shut: bool,
    /// Ends of both streams: 0 while they go on.
    recv_end: u32,
    send_end: u32,
}

impl Socket {
    /// The events of [`crate::core::ready`] that hold now; of `OUT` only if `wanted`. No event need come of `IN`.
    pub fn ready(&self, wanted: u32) -> u32 {
        self.look(wanted, News::Nowhere).0
    }

    /// Returns the flags that hold now, and when a rest is over.
    fn look(&self, wanted: u32, news: News) -> (u32, Option<Rest>) {
        if self.check_usable().is_err() {
            return (0, None);
        }
        let mut side = self.recv.lock();
        if side.listening {
            drop(side);
            return (self.listener_readiness(), None);
        }
        if !side.connected {
            return (if side.connecting { 0 } else { OUT | HUP }, None);
        }
        if side.kernel.is_some() {
            drop(side);
            return (self.kernel_readiness(wanted), None);
        }
        let edge = wanted & EDGE != 0;
        let (there, recv_end, rest) = match news {
            News::Sent => {
                let (there, end) = side.poll_and_arm(edge);
                (there, end, None)
            }
            News::LookedFor => {
                // Another thread that wants an event adds its item before it takes the lock.
                if side.awaits_event() && lock(&self.watch.items).len() == 1 {
                    side.disarm();
                }
                side.poll_and_rest(edge)
            }
            News::Nowhere => {
                let (there, end) = side.poll();
                (there, end, None)
            }
        };
        let send_end = side.link.send_end();
        let (shut, lowat) = (side.shut, side.lowat);
        drop(side);
        if recv_end == MOVED || send_end == MOVED {
            // The connection goes on. A reader takes it back.
            return (IN, None);
        }
        if send_end != 0 {
            // The program may know by now, and expect the next send to fail.
            self.look_always();
        }
        let seen = Seen { there, is_enough: there >= lowat, shut, recv_end, send_end };
        (self.readiness(&seen, wanted), rest)
    }

    /// Returns the flags of a connection on the fabric of which this was `seen`.
    fn readiness(&self, seen: &Seen, wanted: u32) -> u32 {
        let &Seen { there, is_enough, shut, recv_end, send_end } = seen;
        // The kernel tells how a connection ends that goes on there.
        let goes_on = |end: u32| if end == ELSEWHERE { 0 } else { end };
        let is_aside = (recv_end == ELSEWHERE || send_end != 0) && self.send.lock().aside;
        let mut ready = match there {
            _ if recv_end != ELSEWHERE => 0,
            // The kernel knows of ends, which are told before the bytes are read.
            _ if !is_aside => ASIDE,
            0 => 0,
            _ => IN | LEFT,
        };
        // The peer ends what this side sends when it has received the rest of the fabric's stream, too.
        let (recv_end, send_end) = (goes_on(recv_end), if is_aside { 0 } else { goes_on(send_end) });
        let received_all = recv_end != 0 || shut;
        // Lost bytes come back after the peer's end.
        let send_failed = has_failed(send_end) && (send_end != LOST || recv_end != 0);
        let failed = has_failed(recv_end) || send_failed && !self.ignores_reset(recv_end);
        if is_enough || received_all {
            ready |= IN;
        }
        if received_all {
            ready |= RDHUP;
        }
        let stands_for_tcp = (send_end != 0 || received_all) && self.stands_for_tcp();
        let in_order = [ENDED, SHUT].contains(&send_end);
        if stands_for_tcp && recv_end != 0 && in_order && (self.sends_in_flight() || self.has_lost()) {
            // The peer has closed without it.
            self.come_back();
        }
        let (came_back, untold) = self.has_come_back();
        let told = came_back && !untold;
        if failed && !told || untold {
            ready |= ERR;
        }
        if received_all {
            let gone = came_back || failed || send_end != 0 && !stands_for_tcp;
            if gone || self.send.lock().is_shut_by_program() {
                ready |= HUP;
            }
        }
        if wanted & OUT != 0 {
            ready |= self.out_readiness();
        }
        ready
    }
}
