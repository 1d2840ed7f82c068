//! Sleeping in the kernel's `poll`: for the kernel's descriptors alone, or for ends of the fabric, too. Nothing here knows which
//! connection an end is of.
use crate::call::{errno, set_errno, Failure, Outcome};
use crate::shared::own_id;
use crate::{closed, real, spin};
use libc::{c_int, nfds_t, pollfd, sigset_t, timespec};
use pd_client::core::{interruptible, Epoll, Kept, Socket, SET_BYTES};
use std::sync::Arc;
use std::time::Duration;

/// Longest sleep of a wait that nothing on the fabric can end.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(1);

/// `ppoll` for a time; a signal ends it whichever instant it comes.
pub(crate) fn kernel_poll(
    fds: &mut [pollfd],
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> Outcome<c_int> {
    let mut time =
        limit.map(|limit| timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
    let time = time.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    if limit == Some(Duration::ZERO) && mask.is_null() {
        // SAFETY: an array and its length.
        let found = unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, time, mask) };
        return if found < 0 { Err(Failure::Errno(errno())) } else { Ok(found) };
    }
    let arguments = [fds.as_mut_ptr() as usize, fds.len(), time as usize, mask as usize, SET_BYTES, 0];
    // SAFETY: an array and its length, a time of this call's, and the caller's mask.
    let found = unsafe { interruptible(libc::SYS_ppoll, arguments, mask) };
    if found < 0 {
        return Err(Failure::Errno(-found as c_int));
    }
    Ok(found as c_int)
}

/// The calling thread's epoll instance of the fabric: the connections of its last poll.
struct Poller {
    process: u32,
    fabric: Arc<Epoll>,
    members: Vec<(Arc<Socket>, u32)>,
}

thread_local! {
    static POLLER: Kept<Option<Poller>> = const { Kept::new(None, || POLLER.with(Kept::release)) };
}

impl Poller {
    fn new() -> Self {
        Self { process: own_id(), fabric: Epoll::new(), members: Vec::new() }
    }

    /// Makes it watch just these. False: one of them was closed meanwhile.
    fn watch(&mut self, wanted: Vec<(Arc<Socket>, u32)>) -> Outcome<bool> {
        for (known, _) in &self.members {
            if !wanted.iter().any(|(socket, _)| Arc::ptr_eq(socket, known)) {
                let _ = self.fabric.remove(known);
            }
        }
        for (socket, events) in &wanted {
            let watched = match self.members.iter().find(|(known, _)| Arc::ptr_eq(socket, known)) {
                Some((_, known)) if known == events => Ok(()),
                Some(_) => self.fabric.modify(socket, *events, 0),
                None => self.fabric.add(socket, *events, 0),
            };
            match watched {
                Ok(()) => {}
                Err(_) if socket.is_closed() => {
                    *self = Self::new();
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.members = wanted;
        Ok(true)
    }
}

/// Sleeps until something may have happened to one of these, or in the kernel; a signal ends that. `is_old` tells, once events
/// end the sleep, that what is waited for is no longer the right thing. Who makes it so has the ends looked at again after that.
pub(crate) fn sleep_on(
    wanted: Vec<(Arc<Socket>, u32)>,
    kernel: &mut Vec<pollfd>,
    left: Option<Duration>,
    mask: *const sigset_t,
    is_old: &dyn Fn() -> bool,
) -> Outcome<()> {
    if closed::is_closed() {
        let left = left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY));
        return kernel_poll(kernel, Some(left), mask).map(drop);
    }
    let sleep = |poller: &mut Poller| -> Outcome<()> {
        if !poller.watch(wanted)? {
            // Another thread has had its connection go on in the kernel.
            return Ok(());
        }
        // Descriptors are added before a thread sleeps on the instance, so that nothing is missed in between.
        let host = poller.fabric.host_fd().ok();
        if poller.fabric.look(1, &mut |_, _, _| {})? > 0 {
            return Ok(());
        }
        let found = spin::until(|| {
            let kernel_too = kernel.iter().any(|poll| poll.fd >= 0);
            Ok(poller.fabric.look(1, &mut |_, _, _| {})? > 0
                || kernel_too && kernel_poll(kernel, Some(Duration::ZERO), std::ptr::null())? > 0)
        })?;
        if found {
            return Ok(());
        }
        let Some((host, armed)) = host.and_then(|host| Some((host, poller.fabric.arm().ok()?))) else {
            let left = left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY));
            let slept = kernel_poll(kernel, Some(left), mask);
            spin::slept();
            return slept.map(drop);
        };
        if armed.ready || is_old() {
            poller.fabric.disarm(armed, false);
            return Ok(());
        }
        kernel.push(pollfd { fd: host, events: libc::POLLIN, revents: 0 });
        let slept = kernel_poll(kernel, left, mask);
        let before = errno();
        spin::slept();
        let woken = kernel.pop().is_some_and(|host| host.revents != 0);
        poller.fabric.disarm(armed, woken);
        set_errno(before);
        slept.map(drop)
    };
    POLLER
        .try_with(|poller| {
            let mut poller = poller.try_borrow_mut().map_err(|_| Failure::Errno(libc::EINTR))?;
            if poller.as_ref().is_some_and(|poller| poller.process != own_id()) {
                // The parent's.
                std::mem::forget(poller.take());
            }
            sleep(poller.get_or_insert_with(Poller::new))
        })
        .unwrap_or(Err(Failure::Errno(libc::EINTR)))
}
