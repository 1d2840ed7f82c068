//! An epoll instance inside a wait of the program, on a kernel epoll instance or a poll that
//! [`Epoll::host_fd`] is a member of. Looking costs no system call. Only while a thread sleeps does the
//! driver write to the wake pipes, and do changes of this process write to the eventfd.
use super::kernel::{Found, Kernel};
use super::look::{collect, sift};
use super::Epoll;
use crate::channel::Channel;
use crate::error::{bad_socket, Result};
use crate::turn::lock;
use std::os::fd::RawFd;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// A thread is about to sleep on the host's descriptor; to be given to [`Epoll::disarm`].
#[derive(Debug)]
#[must_use]
pub struct Armed {
    channels: Vec<Arc<Channel>>,
    /// There is something to report: do not sleep.
    pub ready: bool,
}

impl Epoll {
    /// Makes the instance a hosted one: [`Epoll::wait`] and [`Epoll::fd`] are not for it. Returns the
    /// descriptor that is readable when an armed thread should look.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn host_fd(&self) -> Result<RawFd> {
        self.check_usable()?;
        if self.ready.kernel.get().is_none() {
            let _ = self.ready.kernel.set(Kernel::new(true)?);
        }
        Ok(self.ready.kernel.get().ok_or_else(bad_socket)?.raw_fd())
    }

    /// Reports at most `max` events, `(events, data, name)` each, without waiting: the name is the registration's. Returns how many.
    ///
    /// # Errors
    /// `EBADF` in a forked child.
    pub fn look(&self, max: usize, report: &mut dyn FnMut(u32, u64, u64)) -> Result<usize> {
        self.check_usable()?;
        let mut lost = false;
        for home in lock(&self.homes).iter() {
            lost |= home.channel.take_events().is_err();
        }
        if lost {
            self.lose();
        }
        Ok(collect(&self.ready.queue, &self.resting, max, report))
    }

    /// Call before sleeping on the descriptor, after a look found nothing.
    ///
    /// # Errors
    /// The errors of asking the driver for wake pipes.
    pub fn arm(&self) -> Result<Armed> {
        self.check_usable()?;
        self.host_fd()?;
        let kernel = self.ready.kernel.get().ok_or_else(bad_socket)?;
        let mut channels = Vec::new();
        {
            let mut homes = lock(&self.homes);
            for home in homes.iter_mut() {
                if !home.registered {
                    home.register(kernel)?;
                }
                channels.push(home.channel.clone());
            }
        }
        self.ready.armed.fetch_add(1, Ordering::SeqCst);
        let mut lost = false;
        for channel in &channels {
            channel.note_cores();
            lost |= channel.use_pipe().is_err();
        }
        if lost {
            // Its descriptor would stay readable for an instance that has no member left to tell of it.
            self.lose();
        }
        self.begin_sleep();
        fence(Ordering::SeqCst);
        let mut queue = lock(&self.ready.queue);
        let ready = lost || !queue.is_empty();
        // Not every thread that arms sleeps: for some the descriptor only has to be right.
        self.ready.signal_armed(kernel, &mut queue);
        drop(queue);
        Ok(Armed { channels, ready })
    }

    /// Arms for a thread that may sleep without a look first: the descriptor is readable only if there is an event to report.
    ///
    /// # Errors
    /// The errors of [`Self::arm`].
    pub fn arm_exactly(&self) -> Result<Armed> {
        let armed = self.arm()?;
        let mut lost = false;
        self.take_doorbells();
        for channel in &armed.channels {
            // Of events that were taken without waiting for them.
            channel.empty_pipe();
            lost |= channel.take_events().is_err();
        }
        if lost {
            self.lose();
        }
        sift(&self.ready.queue);
        let mut queue = lock(&self.ready.queue);
        if queue.signalled && queue.is_empty() {
            queue.signalled = false;
            self.ready.kernel.get().iter().for_each(|kernel| kernel.clear_signal());
        }
        drop(queue);
        Ok(armed)
    }

    /// Call after the sleep. `woken`: the descriptor was readable.
    pub fn disarm(&self, armed: Armed, woken: bool) {
        // This thread looks next: what is found here needs a signal for the other threads alone.
        self.ready.armed.fetch_sub(1, Ordering::SeqCst);
        let (mut found, mut lost) = (armed.ready, false);
        let rung = woken.then(|| self.take_doorbells()).flatten();
        found |= rung.as_ref().is_some_and(|rung| !rung.doorbells.is_empty());
        for channel in &armed.channels {
            channel.leave_pipe();
            if woken && rung.as_ref().is_none_or(|rung| rung.pipes.contains(&channel.index())) {
                // Another thread may sleep on the same pipe: its events are taken with what wakes it.
                if channel.empty_pipe() {
                    found = true;
                    lost |= channel.take_events().is_err();
                }
            }
        }
        if lost {
            self.lose();
        }
        super::rest::end_sleep(&self.resting, &self.ready.queue);
        let mut queue = lock(&self.ready.queue);
        if queue.signalled {
            queue.signalled = false;
            found = true;
            if let Some(kernel) = self.ready.kernel.get() {
                kernel.clear_signal();
            }
        }
        drop(queue);
        // Nobody of these: the attach socket.
        if woken && !found {
            let alive = |channel: &Arc<Channel>| {
                channel.attachment().is_some_and(|attachment| attachment.check_alive())
            };
            if !armed.channels.iter().all(alive) {
                self.lose();
            }
        }
    }

    /// Takes note of doorbells that rang, if the instance has any; then says what else is readable.
    fn take_doorbells(&self) -> Option<Found> {
        if lock(&self.doorbells).is_empty() {
            return None;
        }
        let found = self.ready.kernel.get()?.poll(Duration::ZERO);
        self.rung(&found.doorbells);
        Some(found)
    }

    /// Call at the end of a wait: what it leaves in the queue is news to another thread that sleeps, as in the kernel's instances.
    pub fn pass_on(&self) {
        let Some(kernel) = self.ready.kernel.get() else { return };
        fence(Ordering::SeqCst);
        if self.ready.armed.load(Ordering::SeqCst) > 0 {
            self.ready.signal_armed(kernel, &mut lock(&self.ready.queue));
        }
    }

    /// Makes the descriptor readable once, for threads that sleep on its host without having armed.
    pub fn poke(&self) {
        if let Some(kernel) = self.ready.kernel.get() {
            lock(&self.ready.queue).signalled = true;
            kernel.set_signal();
        }
    }
}
