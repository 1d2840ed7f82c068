//! Has a connection leave the fabric: tells the driver and the peer, and sends the mark.
use super::declining::decline_at_exit;
use super::mark::{MARK, MARK_BRIEF};
use super::{SENDS, UNMARKED};
use crate::call::{errno, lock, Failure};
use crate::claim::settling;
use crate::entry::Entry;
use crate::epoll_set::standing;
use crate::file_lock::FileLock;
use crate::log::note;
use crate::sleep::kernel_poll;
use crate::twin::{Stands, Twin};
use crate::{claim, closed, fabric, real, unseen};
use libc::c_int;
use pd_client::core::{Departure, KernelReason, Socket};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Has a connection leave, for a reason. What is sent after this is the kernel's. False: it has to stay.
pub(crate) fn leave(entry: &Arc<Entry>, twin: &Twin, why: KernelReason) -> bool {
    let by_choice = matches!(why, KernelReason::SmallTalk | KernelReason::Shared);
    if twin.names.is_some() || by_choice && twin.window().is_some() {
        return false;
    }
    let _one = lock(&twin.aside.leaving);
    if twin.progress().sends() || twin.is_abandoned() {
        return true;
    }
    // The kernel's connection knows nothing of a reset on the fabric, and nothing comes any more that it could tell of.
    let asked = by_choice || matches!(why, KernelReason::Signals | KernelReason::Option);
    if asked && twin.current().is_some_and(|end| end.is_gone()) {
        return false;
    }
    if twin.aside.is_closed() {
        // The number may be another descriptor's by now.
        return false;
    }
    if claim::any_pending() && lock(&twin.pending_claim).is_some() {
        settling::settle_now(entry);
    }
    let Some(fd) = entry.any_fd() else { return twin.is_abandoned() };
    // As long as this has the end, no other process has it leave.
    let left = twin.with_present(entry, |end| {
        if twin.progress().sends() {
            return Ok(());
        }
        // Another image that has the socket, too, may take it before the mark is sent: it waits for this then.
        let _marking = (!closed::is_closed()).then(|| FileLock::new(fd));
        let departure = departure(twin, end, why);
        // Until the driver has said how much comes, other threads take it that more does.
        twin.progress().owed.store(u64::MAX, Ordering::Relaxed);
        let left =
            end.step_aside(departure).inspect_err(|_| twin.progress().owed.store(0, Ordering::Relaxed))?;
        if left.unmarked {
            // Before anybody looks for a mark: a byte of the program's is none.
            twin.progress().set(UNMARKED);
        }
        note!("descriptor {fd}: leaves the fabric: {}", why.text());
        fabric::stays_on_kernel(fd, why);
        twin.progress().owed.store(left.owed, Ordering::Relaxed);
        standing::stand(entry, end, Stands::in_both());
        // One that has failed needs none: what the kernel tells once is the program's.
        let mut poll = [libc::pollfd { fd, events: 0, revents: 0 }];
        let fails = kernel_poll(&mut poll, Some(Duration::ZERO), std::ptr::null()) != Ok(0);
        // Bytes that go over the kernel already go on there.
        let marks = left.marks && twin.back.as_ref().is_none_or(|back| back.sends());
        if marks && !twin.send_shut.load(Ordering::Relaxed) && !fails {
            let returns = (why == KernelReason::SmallTalk || why == KernelReason::PeerLeft) && twin.is_sole();
            let is_sent = send_mark(fd, if returns { MARK_BRIEF } else { MARK });
            twin.aside.may_return[0].store(returns && is_sent, Ordering::Relaxed);
        }
        end.look_exactly();
        if twin.ends_sending() {
            // A shutdown has ended the stream on the fabric, and has still to end the kernel's. The peer would not read what goes there.
            // SAFETY: plain call.
            unsafe { real::shutdown(fd, libc::SHUT_WR) };
        }
        twin.progress().set(SENDS);
        decline_at_exit();
        // A thread that sleeps in `poll` watches the fabric alone; the driver's answer came too early for it.
        end.notify_waits();
        Ok(())
    });
    match left {
        Ok(()) | Err(Failure::Plain | Failure::Kernel) => true,
        Err(failure) => {
            note!("descriptor {fd}: cannot leave the fabric ({}): {failure:?}", why.text());
            false
        }
    }
}

/// Sends the mark behind which the kernel has what follows. Returns whether it is sent; another failure than a full buffer tells the next
/// call.
fn send_mark(fd: c_int, mark: u8) -> bool {
    // There is room: nothing was sent there before, or a connection that came back has left some. A program that has taken it away, by a
    // smaller buffer, waits: bytes without their mark would be wrong ones.
    loop {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: sends from a byte.
        let sent = unsafe { real::send(fd, (&raw const mark).cast(), 1, flags) };
        if sent == 1 || errno() != libc::EAGAIN {
            return sent == 1;
        }
        let mut room = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
        let _ = kernel_poll(&mut room, None, std::ptr::null());
    }
}

/// Returns the way in which a connection leaves. A mark wakes programs that wait in the kernel alone. For others it is a byte too
/// many: if it comes after the close, the kernel resets the connection and drops the bytes that are on their way to the peer.
fn departure(twin: &Twin, end: &Socket, why: KernelReason) -> Departure {
    let waits_in_kernel = || match why {
        KernelReason::UnseenWait | KernelReason::Signals | KernelReason::Sandbox => true,
        _ => unseen::is_found() || closed::is_closed(),
    };
    let is_shut = !twin.unix && (twin.is_shut_both_ways() || end.has_ended_peer());
    match why {
        // This side receives nothing in the kernel, or its peer: TCP would answer the mark with a reset.
        KernelReason::SmallTalk | KernelReason::Shared if is_shut => Departure::UnmarkedByChoice,
        _ if is_shut => Departure::Unmarked,
        KernelReason::SmallTalk => Departure::ByChoice,
        KernelReason::Shared if waits_in_kernel() => Departure::ByChoice,
        KernelReason::Shared => Departure::UnmarkedByChoice,
        _ if twin.is_passed() && twin.window().is_none() && !waits_in_kernel() => Departure::Unmarked,
        // Of AF_UNIX an unread mark is what resets the connection.
        _ if twin.unix || twin.window().is_some() || waits_in_kernel() => Departure::Marked,
        _ => Departure::Unmarked,
    }
}

/// After a send on the fabric: follows a peer that has left.
#[inline]
pub(crate) fn follow(entry: &Arc<Entry>, twin: &Twin, end: &Socket) {
    if end.sends_elsewhere() {
        leave(entry, twin, KernelReason::PeerLeft);
    }
}
