//! `pd_malloc`: each thread allocates from arenas of its own, and asks the driver for another send region when none has room.
use crate::arena::{self, Arena};
use crate::error::{Error, Result};
use crate::forks::forks;
use crate::kept::Kept;
use crate::process;
use crate::sockets;
use pd_abi::limits::{MESSAGE_BYTES_MAX, PAGE_BYTES};
use rustix::io::Errno;
use std::ptr::NonNull;

/// Smallest send regions asked for, the first and the second: a thread that sends little ties up little, and a process that sends little begins
/// soon, for the driver fills them with pages.
const REGION_BYTES_MIN: [u64; 2] = [64 << 10, 256 << 10];
/// Smallest send region for blocks of bulk data, of hugepages where there are some.
const REGION_BYTES_BULK: u64 = 4 << 20;
/// Blocks from here on are bulk data.
const BLOCK_BYTES_BULK: usize = 32 << 10;

/// The calling thread's arenas. Given to other threads when this one ends.
#[derive(Default)]
struct ThreadArenas {
    forks: u32,
    arenas: Vec<&'static Arena>,
}

impl Drop for ThreadArenas {
    fn drop(&mut self) {
        for arena in &self.arenas {
            arena.disown();
        }
    }
}

thread_local! {
    static THREAD_ARENAS: Kept<ThreadArenas> = const {
        Kept::new(ThreadArenas { forks: 0, arenas: Vec::new() }, || THREAD_ARENAS.with(Kept::release))
    };
}

/// Allocates `bytes` bytes of memory that can be sent: aligned to 64 bytes, to a page from a page on.
///
/// # Errors
/// `ENOMEM` with the driver's reason, `EMSGSIZE` above the longest message, `ENETDOWN` without a
/// driver.
pub fn malloc(bytes: usize) -> Result<NonNull<u8>> {
    if bytes as u64 > MESSAGE_BYTES_MAX {
        return Err(Error::new(
            Errno::MSGSIZE,
            format!("{bytes} bytes are more than one block can have ({MESSAGE_BYTES_MAX}); use several"),
        ));
    }
    let bytes = bytes.max(1);
    THREAD_ARENAS
        .try_with(|local| {
            let mut local =
                local.try_borrow_mut().map_err(|_| Error::new(Errno::AGAIN, "called from within itself"))?;
            if local.forks != forks() {
                *local = ThreadArenas { forks: forks(), arenas: Vec::new() };
            }
            malloc_from(&mut local.arenas, bytes)
        })
        .unwrap_or_else(|_| malloc_from(&mut Vec::new(), bytes))
}

fn malloc_from(arenas: &mut Vec<&'static Arena>, bytes: usize) -> Result<NonNull<u8>> {
    if let Some(ptr) = arenas.last().and_then(|arena| arena.malloc(bytes)) {
        return Ok(ptr);
    }
    malloc_slowly(arenas, bytes)
}

#[cold]
fn malloc_slowly(arenas: &mut Vec<&'static Arena>, bytes: usize) -> Result<NonNull<u8>> {
    arenas.retain(|arena| arena.is_alive());
    let mut reaped = false;
    loop {
        // Latest first; the one that served goes last, where the quick path looks.
        for place in (0..arenas.len()).rev() {
            if let Some(ptr) = arenas[place].malloc(bytes) {
                let last = arenas.len() - 1;
                arenas.swap(place, last);
                return Ok(ptr);
            }
        }
        if reaped {
            break;
        }
        sockets::reap_all();
        reaped = true;
    }
    let attachment = process::attachment()?;
    if let Some(arena) = arena::arenas().take_over(&attachment) {
        arenas.push(arena);
        if let Some(ptr) = arena.malloc(bytes) {
            return Ok(ptr);
        }
    }
    let small = REGION_BYTES_MIN.get(arenas.len()).filter(|_| bytes < BLOCK_BYTES_BULK);
    let smallest = small.copied().unwrap_or(REGION_BYTES_BULK);
    let wanted = (bytes.next_multiple_of(PAGE_BYTES) as u64).max(smallest);
    let sent = attachment.send_region(wanted);
    if sent.as_ref().is_err_and(|error| error.errno() == libc::EMFILE) {
        // Another thread's will do, for once.
        if let Some(ptr) = arena::arenas().malloc(&attachment, bytes) {
            return Ok(ptr);
        }
    }
    let (region, map) = sent.map_err(|error| match error.errno() {
        libc::ENOMEM => Error::new(Errno::NOMEM, format!("no memory to send from: {}", error.message())),
        _ => error,
    })?;
    let arena = Arena::new(region as u16, map, attachment);
    arena::arenas().add(arena);
    arenas.push(arena);
    arena.malloc(bytes).ok_or_else(|| Error::new(Errno::NOMEM, "the driver sent too small a region"))
}
