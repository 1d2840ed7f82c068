//! Signals an eventfd that another party holds, without a write to it.
//!
//! The other party shares the eventfd's description: its counter and its status flags. A write blocks where the counter is full and
//! `O_NONBLOCK` is clear. The party can cause that between any check and the write. No flag of a write prevents it: an eventfd has
//! `RWF_NOWAIT` for reads alone.
//!
//! The kernel itself signals an eventfd without ever blocking: a counter that is full stays full. The signal comes when an asynchronous
//! request with `IOCB_FLAG_RESFD` is complete (`io_submit(2)`). The request here reads an empty file of this side, and is complete
//! before the call returns.
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::io::{Errno, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// Most completions taken at a time.
const TAKEN_MAX: usize = 64;
/// `IOCB_CMD_PREAD`.
const READ: u16 = 0;
/// `IOCB_FLAG_RESFD`: `signalled` is an eventfd.
const SIGNALS: u32 = 1;

/// A request, in the kernel's layout: `struct iocb`.
#[repr(C)]
#[derive(Debug, Default)]
struct Request {
    data: u64,
    /// Key and flags of a read, in an order that depends on the processor; both are 0.
    key: [u32; 2],
    operation: u16,
    priority: i16,
    file: i32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    signalled: i32,
}

const _: () = assert!(size_of::<Request>() == 64);

/// A completion: `struct io_event`.
type Completion = [u64; 4];

/// Signals eventfds.
#[derive(Debug)]
pub struct Signaller {
    context: libc::c_ulong,
    /// An empty file.
    empty: OwnedFd,
}

fn done(returned: libc::c_long) -> Result<libc::c_long> {
    if returned >= 0 {
        return Ok(returned);
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

/// The signaller of a process, by its number.
static OF_PROCESS: Mutex<Option<(u32, Arc<Signaller>)>> = Mutex::new(None);

impl Signaller {
    /// Returns the one of this process, made when it is first wanted: the kernel takes milliseconds to end a context. A forked child gets
    /// its own.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn of_process() -> Result<Arc<Self>> {
        let (mut known, process) =
            (OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner), std::process::id());
        if let Some((_, signaller)) = known.as_ref().filter(|known| known.0 == process) {
            return Ok(Arc::clone(signaller));
        }
        let made = Arc::new(Self::new()?);
        *known = Some((process, Arc::clone(&made)));
        Ok(made)
    }

    /// Makes a context of asynchronous requests.
    ///
    /// # Errors
    /// `EAGAIN` where `fs.aio-max-nr` is reached, `ENOSYS` on a kernel without `CONFIG_AIO`, and errors of making a file.
    pub fn new() -> Result<Self> {
        let empty = memfd_create("pd-empty", MemfdFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number.
        done(unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) })?;
        Ok(Self { context, empty })
    }

    /// Adds 1 to an eventfd whose counter is not full. Never blocks.
    ///
    /// # Errors
    /// `EINVAL` for a file that is no eventfd.
    pub fn signal(&self, eventfd: &OwnedFd) -> Result<()> {
        match self.submit(eventfd) {
            // The ring of completions is full.
            Err(Errno::AGAIN) => {
                self.take_completions()?;
                self.submit(eventfd)
            }
            submitted => submitted,
        }
    }

    fn submit(&self, eventfd: &OwnedFd) -> Result<()> {
        let request = Request {
            operation: READ,
            file: self.empty.as_raw_fd(),
            flags: SIGNALS,
            signalled: eventfd.as_raw_fd(),
            ..Request::default()
        };
        let requests = [&raw const request];
        // SAFETY: the context is this one's, and the kernel copies the one request. It reads no bytes, into no buffer.
        done(unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, requests.as_ptr()) }).map(drop)
    }

    fn take_completions(&self) -> Result<()> {
        let mut taken = [MaybeUninit::<Completion>::uninit(); TAKEN_MAX];
        let (none, at_once) = (0, null_mut::<libc::timespec>());
        // SAFETY: the kernel writes at most `TAKEN_MAX` completions. Waiting for none, it returns at once.
        done(unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context, none, TAKEN_MAX, taken.as_mut_ptr(), at_once)
        })
        .map(drop)
    }
}

impl Drop for Signaller {
    fn drop(&mut self) {
        // SAFETY: the context is this one's, and no request is under way.
        let _ = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{eventfd, EventfdFlags};
    use rustix::io::{read, write};

    fn count(eventfd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        read(eventfd, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    /// More signals than the ring of completions has room for.
    #[test]
    fn each_signal_counts_on_any_eventfd() {
        let signaller = Signaller::new().unwrap();
        let (one, other) =
            (eventfd(0, EventfdFlags::empty()).unwrap(), eventfd(3, EventfdFlags::NONBLOCK).unwrap());
        for _ in 0..5000 {
            signaller.signal(&one).unwrap();
            signaller.signal(&other).unwrap();
        }
        assert_eq!((count(&one), count(&other)), (5000, 5003));
        assert_eq!(signaller.signal(&std::fs::File::open("/dev/null").unwrap().into()), Err(Errno::INVAL));
    }

    /// The counter is full and the description blocks: a write would wait, and a signal does not.
    #[test]
    fn a_full_eventfd_blocks_no_signal() {
        let signaller = Signaller::new().unwrap();
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..1000 {
            signaller.signal(&full).unwrap();
        }
        assert_eq!(count(&full), u64::MAX);
        signaller.signal(&full).unwrap();
        assert_eq!(count(&full), 1);
    }
}
