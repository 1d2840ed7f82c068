//! Receiving on a connection one side of which has left: the fabric's stream to its end, then the kernel's. Also what is there, what
//! is certain to come, and the last close.
use super::declining::decline_mark;
use super::ending::settle;
use super::leaving::leave;
use super::mark::{await_mark, is_readable, take_mark, Mark};
use super::{FAILURE_TOLD, MARKED, UNMARKED};
use crate::call::{Outcome, AGAIN};
use crate::entry::Entry;
use crate::sleep::kernel_poll;
use crate::twin::Twin;
use crate::{address, closed, real};
use libc::c_int;
use pd_client::core::{are_put_off, KernelReason, Patience, Pause, Socket};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for bytes of which the driver has said that they are on their way.
const COMES_WITHIN: Duration = Duration::from_secs(2);

/// Time between looks where nothing tells of a change.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The kernel says that the descriptor of one that leaves is ready so: without what is there for the mark alone, which is taken off.
pub(crate) fn told_by_kernel(entry: &Arc<Entry>, twin: &Twin, fd: c_int, told: u32) -> u32 {
    const READABLE: u32 = (libc::POLLIN | libc::POLLRDNORM) as u32;
    const FAILED: u32 = (libc::POLLERR | libc::POLLHUP) as u32;
    if twin.window().is_some_and(|back| !back.receives()) {
        return told;
    }
    // A failure, which the kernel tells once, is the program's.
    if told & READABLE == 0 || told & FAILED != 0 || twin.progress().has(MARKED | UNMARKED) {
        return told;
    }
    ask_for_mark(entry, twin);
    match take_mark(entry, twin) {
        Ok(Mark::Off) if !is_readable(fd) => told & !READABLE,
        _ => told,
    }
}

/// Of an end that several processes have, only the driver knows whether a mark comes.
fn ask_for_mark(entry: &Arc<Entry>, twin: &Twin) {
    if !twin.progress().sends()
        && (twin.is_passed() || twin.current().is_some_and(|end| end.is_taken()))
        && twin.with_present(entry, |end| Ok(end.sends_elsewhere())) == Ok(true)
    {
        leave(entry, twin, KernelReason::PeerLeft);
    }
}

/// Tells whether one of the two has left, so that bytes may come in the kernel.
pub(crate) fn has_begun(twin: &Twin) -> bool {
    twin.progress().sends()
        || twin.window().is_some()
        || twin.current().is_some_and(|end| end.sends_elsewhere())
}

/// Number of the bytes that lie in the kernel and are the program's.
pub(crate) fn without_mark(twin: &Twin, there: c_int) -> c_int {
    let between = twin.window().is_some_and(|back| !back.receives());
    let mark = c_int::from(!twin.progress().has(MARKED | UNMARKED) && !between);
    (there - mark).max(0)
}

/// The stream of the fabric is read to its end by one that has left, or follows: takes the mark off and makes the descriptor the
/// kernel's. `waits`: for the mark, too, as the socket does; until then. False: this side receives no more, and nothing has come; a mark
/// still may, so that the descriptor stays as it is.
pub(crate) fn received_all(
    entry: &Arc<Entry>,
    twin: &Twin,
    waits: bool,
    until: Option<Instant>,
) -> Outcome<bool> {
    leave(entry, twin, KernelReason::PeerLeft);
    match await_mark(entry, twin, waits, until) {
        // The kernel says that of every empty stream that is shut.
        Ok(Mark::Never) if twin.recv_shut.load(Ordering::Relaxed) => return Ok(false),
        Ok(_) => settle(entry, twin),
        Err(failure) => {
            if twin.aside.failed.swap(FAILURE_TOLD, Ordering::Relaxed) > 0 {
                settle(entry, twin);
            }
            return Err(failure);
        }
    }
    Ok(true)
}

/// All of the fabric's stream is there, and what comes next is to be had with it from the kernel: takes the mark off.
pub(crate) fn kernels_part(
    entry: &Arc<Entry>,
    twin: &Twin,
    waits: bool,
    until: Option<Instant>,
) -> Outcome<()> {
    leave(entry, twin, KernelReason::PeerLeft);
    await_mark(entry, twin, waits, until).map(drop)
}

/// Nothing is there on the fabric for one that has left. Waits for what is certain to come: what the driver has spoken of, and the end
/// of a stream that has begun, or ended, in the kernel. False: nothing comes that the kernel does not tell of.
pub(crate) fn await_rest(entry: &Arc<Entry>, twin: &Twin, end: &Socket) -> bool {
    if entry.any_fd().is_none() {
        return false;
    }
    let is_due = end.position() < twin.progress().owed() || take_mark(entry, twin) != Ok(Mark::NotYet);
    if !is_due {
        return false;
    }
    let mut patience = Patience::new(COMES_WITHIN);
    while patience.lasts() {
        if end.look_exactly() {
            return true;
        }
        if closed::is_closed() {
            let _ = kernel_poll(&mut [], Some(LOOK_EVERY), std::ptr::null());
        } else if end.pause_recv(Duration::from_millis(50), 0) == Pause::Signal && are_put_off() {
            // Handlers run where the call holds nothing.
            return false;
        }
    }
    false
}

/// Waits, for a while, until all that is certain to come on the fabric to one that has left lies in its ring.
pub(crate) fn await_owed(entry: &Arc<Entry>, twin: &Twin) {
    let mut patience = Patience::new(COMES_WITHIN);
    let _ = twin.with(entry, |end| {
        let owed = twin.progress().owed();
        while end.position() + end.received() < owed && patience.lasts() {
            end.pause_recv(Duration::from_millis(5), 0);
        }
        Ok(())
    });
}

/// Waits, for a while, until the peer has followed, and the descriptor is the kernel's: a child that cannot attach is about to have it.
/// Not if bytes lie unread on the fabric.
pub(crate) fn await_end(entry: &Arc<Entry>, twin: &Twin) {
    let mut patience = Patience::new(COMES_WITHIN);
    while !twin.progress().is_over() && patience.lasts() {
        let state = twin.with(entry, |end| {
            end.pause_recv(Duration::from_millis(5), 0);
            Ok((end.received() > 0, end.ends_elsewhere(0)))
        });
        match state {
            Ok((false, true)) if received_all(entry, twin, false, None) != Err(AGAIN) => return,
            // Its end is there already, and the mark alone is waited for.
            Ok((false, true)) => drop(kernel_poll(&mut [], Some(LOOK_EVERY), std::ptr::null())),
            Ok((false, false)) => {}
            _ => return,
        }
    }
}

/// Bytes of the program's lie unread in the kernel.
pub(crate) fn has_unread(fd: c_int, twin: &Twin) -> bool {
    if twin.names.is_some() || !has_begun(twin) {
        return false;
    }
    address::unread(fd).is_some_and(|there| without_mark(twin, there) > 0)
}

/// The last number is about to be closed with bytes unread: so is the kernel's connection reset if the two go on there. Of AF_UNIX the
/// mark does that, as long as it is unread.
pub(crate) fn reset_with(fd: c_int, twin: &Twin) {
    if twin.names.is_none() && !twin.unix && has_begun(twin) {
        address::linger_never(fd);
    }
}

/// The program has learned of a reset that the kernel knows of, too.
pub(crate) fn failure_is_told(entry: &Arc<Entry>, twin: &Twin) {
    if twin.progress().sends() {
        entry.any_fd().map(|fd| address::option(fd, libc::SOL_SOCKET, libc::SO_ERROR));
    }
}

/// Learns from the kernel that the program knows of the reset; false: it does not, or the library knew.
pub(crate) fn is_told(entry: &Arc<Entry>, twin: &Twin) -> bool {
    kernel_has_told(entry, twin) && twin.tells_failure()
}

/// Tells whether a call that went to the kernel has told the program of the reset of a connection that sends there.
fn kernel_has_told(entry: &Arc<Entry>, twin: &Twin) -> bool {
    let is_over = |fd| address::tcp_state(fd) == Some(address::CLOSED) && !address::has_error(fd);
    // The library has had what it took with the mark.
    let is_kept = twin.aside.failed.load(Ordering::Relaxed) != 0;
    !twin.unix && !is_kept && twin.progress().sends() && entry.any_fd().is_some_and(is_over)
}

/// Takes the mark off before the last number is closed: left unread it would have the kernel reset the connection. The peer's follows this
/// process's, as long as the kernel's connection takes it.
pub(crate) fn before_close(entry: &Arc<Entry>, fd: c_int, twin: &Twin) {
    if twin.names.is_some() || twin.current().is_none() {
        return;
    }
    if twin.unix && twin.is_sole() && !twin.is_passed() {
        // A peer may leave at any moment. A mark that has not come yet is refused from here on; of one that has come this side knows.
        // SAFETY: the program's descriptor.
        unsafe { real::shutdown(fd, libc::SHUT_RD) };
    }
    if has_begun(twin) {
        ask_for_mark(entry, twin);
        decline_mark(entry, twin, fd);
        let _ = take_mark(entry, twin);
    }
}

/// Declines the peer's mark before both directions of the kernel's connection are shut. TCP answers a byte that comes then with a reset.
pub(crate) fn before_shutdown(entry: &Arc<Entry>, fd: c_int, twin: &Twin) {
    if !twin.unix && twin.is_shut_both_ways() {
        // A departure that begins after this one wants no mark.
        twin.aside.await_departure();
        decline_mark(entry, twin, fd);
    }
}
