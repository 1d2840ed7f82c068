//! Numbers that name sockets, epoll instances and others, for the C API. The lowest free one is given out, as the kernel does with
//! descriptors, from a range that the kernel gives no descriptor in: a call on the wrong kind of number fails with `EBADF`
//! and reaches nothing. Looking one up takes no lock in the usual case: each thread remembers the few it used last.
use crate::epoll::Epoll;
use crate::error::{Error, Result};
use crate::forks::forks;
use crate::per_process::PerProcess;
use crate::process;
use crate::socket::Socket;
use crate::turn::lock;
use rustix::io::Errno;
use std::any::Any;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const CHUNK: usize = 1024;
const CHUNKS: usize = 80;
/// The lowest number. Descriptors are below it, whatever `fs.nr_open` is: its largest value is 0x3fff_ffc0.
pub const FIRST_SID: i32 = 0x4000_0000;
const REMEMBERED: usize = 8;

/// The object that a number names.
#[derive(Clone, Debug)]
pub enum Named {
    /// A socket.
    Socket(Arc<Socket>),
    /// An epoll instance.
    Epoll(Arc<Epoll>),
    /// An object of the caller's, an [`Other`](crate::core::Other).
    Other(Arc<dyn Any + Send + Sync>),
}

#[derive(Debug, Default)]
struct Place {
    /// Changes whenever the number changes its meaning.
    serial: AtomicU64,
    named: Mutex<Option<Named>>,
}

static SIDS: PerProcess<Sids> = PerProcess::new();

/// The numbers of a process.
#[derive(Debug)]
struct Sids {
    chunks: [OnceLock<Box<[Place]>>; CHUNKS],
    free: Mutex<Free>,
}

/// Places that are free. A number is [`FIRST_SID`] and its place.
#[derive(Debug)]
struct Free {
    returned: BinaryHeap<Reverse<usize>>,
    next: usize,
}

impl Default for Sids {
    fn default() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free { returned: BinaryHeap::new(), next: 0 }),
        }
    }
}

struct Remembered {
    sid: i32,
    forks: u32,
    place: &'static Place,
    serial: u64,
    named: Named,
}

thread_local! {
    static REMEMBER: RefCell<[Option<Remembered>; REMEMBERED]> = const { RefCell::new([const { None }; REMEMBERED]) };
}

impl Sids {
    fn place(&self, sid: i32) -> Option<&Place> {
        let place = usize::try_from(sid.checked_sub(FIRST_SID)?).ok()?;
        Some(&self.chunks.get(place / CHUNK)?.get()?[place % CHUNK])
    }

    /// Gives a number out.
    ///
    /// # Errors
    /// `EMFILE`.
    fn insert(&self, named: Named) -> Result<i32> {
        let mut free = lock(&self.free);
        let index = match free.returned.pop() {
            Some(Reverse(index)) => index,
            None if free.next == CHUNK * CHUNKS => {
                return Err(Error::new(Errno::MFILE, "too many sockets in this process; close some"))
            }
            None => {
                free.next += 1;
                free.next - 1
            }
        };
        drop(free);
        let chunk = self.chunks[index / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Place::default()).collect());
        let place = &chunk[index % CHUNK];
        *lock(&place.named) = Some(named);
        place.serial.fetch_add(1, Ordering::Release);
        Ok(FIRST_SID + index as i32)
    }

    /// Takes a number back.
    ///
    /// # Errors
    /// `EBADF`.
    fn remove(&self, sid: i32) -> Result<Named> {
        let place = self.place(sid).ok_or_else(|| unknown(sid))?;
        let named = lock(&place.named).take().ok_or_else(|| unknown(sid))?;
        place.serial.fetch_add(1, Ordering::Release);
        lock(&self.free).returned.push(Reverse((sid - FIRST_SID) as usize));
        Ok(named)
    }

    fn get(&'static self, sid: i32) -> Result<(&'static Place, u64, Named)> {
        let place = self.place(sid).ok_or_else(|| unknown(sid))?;
        let named = lock(&place.named);
        let serial = place.serial.load(Ordering::Acquire);
        Ok((place, serial, named.clone().ok_or_else(|| unknown(sid))?))
    }
}

/// Gives a number to a socket or an epoll instance.
///
/// # Errors
/// `EMFILE`.
pub fn insert(named: Named) -> Result<i32> {
    process::begin();
    SIDS.get().insert(named)
}

/// Takes a number back. What it named is not closed by that.
///
/// # Errors
/// `EBADF`.
pub fn remove(sid: i32) -> Result<Named> {
    SIDS.get().remove(sid)
}

/// Runs `call` on what `sid` names.
///
/// # Errors
/// `EBADF`; those of `call`.
#[inline]
pub fn with<R>(sid: i32, call: impl FnOnce(&Named) -> Result<R>) -> Result<R> {
    let mut call = Some(call);
    // Not available in a thread that ends, and not where this is called from within itself.
    let quick = REMEMBER.try_with(|table| {
        let table = table.try_borrow().ok()?;
        let known = table[sid as usize % REMEMBERED].as_ref()?;
        if known.sid != sid || known.forks != forks() {
            return None;
        }
        if known.place.serial.load(Ordering::Acquire) != known.serial {
            return None;
        }
        call.take().map(|call| call(&known.named))
    });
    match (quick, call) {
        (Ok(Some(result)), _) => result,
        (_, Some(call)) => {
            let (place, serial, named) = SIDS.get().get(sid)?;
            remember(Remembered { sid, forks: forks(), place, serial, named: named.clone() });
            call(&named)
        }
        // `call` is taken only together with a result.
        (_, None) => Err(unknown(sid)),
    }
}

fn remember(entry: Remembered) {
    // The earlier value is dropped after the table is released.
    let _before = REMEMBER.try_with(|table| {
        let mut table = table.try_borrow_mut().ok()?;
        table[entry.sid as usize % REMEMBERED].replace(entry)
    });
}

/// Runs `call` on the socket that `sid` names.
///
/// # Errors
/// `EBADF`, `ENOTSOCK`; those of `call`.
#[inline]
pub fn with_socket<R>(sid: i32, call: impl FnOnce(&Arc<Socket>) -> Result<R>) -> Result<R> {
    with(sid, |named| match named {
        Named::Socket(socket) => call(socket),
        Named::Epoll(_) => {
            Err(Error::new(Errno::NOTSOCK, format!("{sid} is an epoll instance, not a socket")))
        }
        Named::Other(_) => Err(Error::new(Errno::NOTSOCK, format!("{sid} is a pipe, not a socket"))),
    })
}

#[cold]
fn unknown(sid: i32) -> Error {
    let why =
        if (0..FIRST_SID).contains(&sid) { ": such a number is a descriptor of the kernel's" } else { "" };
    Error::new(Errno::BADF, format!("{sid} is not an open socket of this process{why}"))
}
