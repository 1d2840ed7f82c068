//! Waiting for sockets that the kernel carries or listens for: their descriptors are members of the instances that the sockets are in.
use crate::epoll::ready::{ERR, HUP, IN, OUT, RDHUP};
use crate::epoll::{Epoll, Item, Registration};
use crate::error::Result;
use crate::socket::Socket;
use crate::turn::lock;
use pd_abi::layout::ENDED;
use rustix::event::PollFlags;
use std::sync::Arc;
use std::time::Duration;

/// Events and those of poll.
const BITS: [(PollFlags, u32); 5] = [
    (PollFlags::IN, IN),
    (PollFlags::OUT, OUT),
    (PollFlags::RDHUP, RDHUP),
    (PollFlags::ERR, ERR),
    (PollFlags::HUP, HUP),
];

impl Socket {
    /// Makes the kernel's descriptor a member of an item's instance, if there is one.
    pub(crate) fn join(&self, item: &Arc<Item>, epoll: &Epoll) -> Result<()> {
        let Some(carrier) = self.kernel.get().or(self.kernel_listener.get()) else { return Ok(()) };
        epoll.join(self.serial(), carrier.fd()?, item)
    }

    /// Makes the kernel's descriptor a member of all instances that the socket is in already.
    pub(super) fn join_all(&self) {
        // Items that cannot be members are looked at every 250 ms.
        for Registration { item, epoll } in lock(&self.registrations).clone() {
            if let Some(epoll) = epoll.upgrade() {
                let _ = self.join(&item, &epoll);
            }
        }
    }

    /// The events that hold of a connection of the kernel's.
    pub(crate) fn kernel_readiness(&self, wanted: u32) -> u32 {
        let Some(carrier) = self.kernel.get() else { return 0 };
        let (buffered, lowat, end) = {
            let side = self.recv.lock();
            let end = side.kernel.as_ref().map_or(0, |inbox| inbox.end);
            (side.producer - side.cursor, side.lowat, end)
        };
        let mut asked = PollFlags::IN | PollFlags::RDHUP;
        asked.set(PollFlags::OUT, wanted & OUT != 0);
        let found = carrier.wait(asked, Duration::ZERO);
        let mut ready =
            BITS.iter().filter(|(flag, _)| found.contains(*flag)).fold(0, |ready, (_, bit)| ready | bit);
        let has_ended = end != 0 || ready & (RDHUP | HUP | ERR) != 0;
        let is_enough = |more: u64| buffered + more >= lowat;
        if is_enough(0) || has_ended {
            ready |= IN;
        } else if lowat > 1 && ready & IN != 0 && !is_enough(carrier.queued()) {
            ready &= !IN;
        }
        if end == ENDED {
            ready |= RDHUP;
        }
        ready
    }
}
