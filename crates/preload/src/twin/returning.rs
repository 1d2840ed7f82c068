//! The twin's part of coming back from the kernel ([`crate::back`]): who sends and receives where, and where it is waited for.
use super::Twin;
use crate::back::Back;
use crate::call::{Failure, Outcome};
use crate::entry::Entry;
use crate::epoll_set::standing;
use crate::{address, table};
use std::sync::atomic::Ordering;
use std::sync::Arc;

impl Twin {
    /// Goes on with the way back as far as may be.
    #[cold]
    pub(super) fn go_back(&self, entry: &Arc<Entry>, back: &Back) {
        let _ = self.with(entry, |end| {
            back.look(end)?;
            back.finish_receiving(end);
            Ok(())
        });
        let sends = back.sends() || self.progress().sends() || self.send_shut.load(Ordering::Relaxed);
        // The side that has offered sends its head first.
        let may = back.is_expected() || self.towards.is_some();
        if may && !sends && back.counts.close() {
            self.go_back_closed(entry);
            back.counts.open();
        } else if back.ends_now() {
            self.stand_again(entry);
        }
    }

    /// Sends by the twin from now on, if the kernel's socket has room for the mark of a later departure: nothing else is sent there from now
    /// on. A later call tries again. No call is under way in the kernel.
    pub(crate) fn go_back_closed(&self, entry: &Arc<Entry>) {
        let Some(back) = &self.back else { return };
        if !entry.any_fd().is_some_and(|fd| address::has_room(fd, self.unix)) {
            return;
        }
        if self.with(entry, |end| back.send_head(end)).is_ok() {
            back.ends_now();
            self.stand_again(entry);
        }
    }

    pub(super) fn stand_again(&self, entry: &Arc<Entry>) {
        if let Some(end) = self.current() {
            standing::stand(entry, &end, self.stands());
        }
    }

    /// The peer has given the twin up before it used it: the connection stays in the kernel.
    #[cold]
    pub(super) fn stay_away(&self, entry: &Arc<Entry>) {
        standing::move_back_around(entry, || {
            self.unmark(entry.any_fd());
            table::give_up(entry);
            self.abandon();
        });
    }

    /// The first bytes are there: they may be no program's, and more lies in the kernel, nobody knows how much.
    #[cold]
    pub(super) fn look_for_head(&self, entry: &Arc<Entry>) -> Outcome<()> {
        match self.with(entry, |end| Ok(Back::begins(end)))? {
            Some(true) => return Err(Failure::Errno(libc::ECONNRESET)),
            Some(false) => self.unsure.store(false, Ordering::Relaxed),
            None => {}
        }
        Ok(())
    }
}
