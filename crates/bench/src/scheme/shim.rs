//! Peers whose libraries are in C: UCX and libfabric. A small C library for each (`crates/bench/peers/*.c`,
//! built by `make bench`) is loaded at run time and works as an [`End`]. Bytes are written, read and checked
//! here, as for every other scheme.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_long, c_void, CStr, CString};
use std::path::PathBuf;

use anyhow::{bail, Context, Result};
use libloading::Library;
use pd_shm::Spin;

use super::{single, End, Scheme};
use crate::catalogue::Waiting;
use crate::protocol::Open;
use crate::waiting;

/// Longest address, in hexadecimal, with its end.
const ADDRESS_BYTES: usize = 8192;

/// The functions that a peer library exports; `crates/bench/peers/peer.h` describes them.
struct Calls {
    open: unsafe extern "C" fn(usize, usize, c_long) -> *mut c_void,
    address: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> c_int,
    connect: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
    reserve: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    send: unsafe extern "C" fn(*mut c_void, usize) -> c_int,
    flush: unsafe extern "C" fn(*mut c_void) -> c_int,
    recv: unsafe extern "C" fn(*mut c_void, *mut *const c_void) -> isize,
    release: unsafe extern "C" fn(*mut c_void) -> c_int,
    close: unsafe extern "C" fn(*mut c_void),
    error: unsafe extern "C" fn() -> *const c_char,
    /// Keeps the functions loaded; never unloaded, for its threads may still run.
    _library: std::mem::ManuallyDrop<Library>,
}

/// Returns the path of a peer library: beside the program, or in the folder `PD_BENCH_PEERS`.
fn file(scheme: Scheme) -> Result<PathBuf> {
    let dir = match std::env::var_os("PD_BENCH_PEERS") {
        Some(dir) => PathBuf::from(dir),
        None => std::env::current_exe()?.parent().context("a program has a directory")?.join("peers"),
    };
    let file = dir.join(format!("{}.so", scheme.name()));
    if !file.exists() {
        bail!("{} is missing; make bench builds it where the library is installed", file.display());
    }
    Ok(file)
}

impl Calls {
    fn load(scheme: Scheme) -> Result<Calls> {
        let file = file(scheme)?;
        // SAFETY: the library is built by this project and has no initialiser beside those of the library
        // that it wraps.
        let library = unsafe { Library::new(&file) };
        let library = library.with_context(|| format!("cannot load {}", file.display()))?;
        macro_rules! call {
            ($name:literal) => {
                // SAFETY: the type is that of the function of this name in `peer.h`.
                *unsafe { library.get($name.as_bytes()) }
                    .with_context(|| format!("{} lacks {}", file.display(), $name))?
            };
        }
        Ok(Calls {
            open: call!("peer_open"),
            address: call!("peer_address"),
            connect: call!("peer_connect"),
            reserve: call!("peer_reserve"),
            send: call!("peer_send"),
            flush: call!("peer_flush"),
            recv: call!("peer_recv"),
            release: call!("peer_release"),
            close: call!("peer_close"),
            error: call!("peer_error"),
            _library: std::mem::ManuallyDrop::new(library),
        })
    }

    fn fail<T>(&self, what: &str) -> Result<T> {
        // SAFETY: the function returns a string that lives until its next call.
        let reason = unsafe { CStr::from_ptr((self.error)()) };
        bail!("cannot {what}: {}", reason.to_string_lossy())
    }
}

/// A peer of a C library.
struct ShimEnd {
    calls: Calls,
    peer: *mut c_void,
    message_bytes: usize,
}

/// Messages that a side has in flight at most.
fn depth(message_bytes: usize) -> usize {
    ((2 << 20) / message_bytes).clamp(2, 64)
}

impl ShimEnd {
    fn open(open: &Open) -> Result<ShimEnd> {
        single(open)?;
        let calls = Calls::load(open.scheme)?;
        let spin_ns = match waiting::get() {
            Waiting::Shipped => -1,
            Waiting::Blocks => 0,
            Waiting::Spins => Spin::LIMIT_DEFAULT.as_nanos() as c_long,
        };
        // SAFETY: as `peer.h` says.
        let peer = unsafe { (calls.open)(open.message_bytes, depth(open.message_bytes), spin_ns) };
        if peer.is_null() {
            return calls.fail("open");
        }
        Ok(ShimEnd { calls, peer, message_bytes: open.message_bytes })
    }

    fn address(&self) -> Result<String> {
        let mut text = vec![0u8; ADDRESS_BYTES];
        // SAFETY: the buffer has the length given; the library ends what it writes with a zero.
        let rc = unsafe { (self.calls.address)(self.peer, text.as_mut_ptr().cast(), text.len()) };
        if rc != 0 {
            return self.calls.fail("tell its address");
        }
        Ok(CStr::from_bytes_until_nul(&text)?.to_str()?.to_owned())
    }

    fn connect(&self, to: &str) -> Result<()> {
        let to = CString::new(to)?;
        // SAFETY: a string with its end.
        match unsafe { (self.calls.connect)(self.peer, to.as_ptr()) } {
            0 => Ok(()),
            _ => self.calls.fail("connect"),
        }
    }
}

impl End for ShimEnd {
    fn send(&mut self, _connection: usize, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        assert!(len <= self.message_bytes, "messages fit into the buffers");
        // SAFETY: the peer is open and used by one thread.
        let memory = unsafe { (self.calls.reserve)(self.peer) };
        if memory.is_null() {
            return self.calls.fail("get a buffer");
        }
        // SAFETY: a reserved buffer has `message_bytes` initialised bytes, which the library does not touch
        // before `peer_send`.
        fill(unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), len) });
        // SAFETY: sends the buffer just reserved.
        match unsafe { (self.calls.send)(self.peer, len) } {
            0 => Ok(()),
            _ => self.calls.fail("send"),
        }
    }

    fn flush(&mut self) -> Result<()> {
        // SAFETY: the peer is open and used by one thread.
        match unsafe { (self.calls.flush)(self.peer) } {
            0 => Ok(()),
            _ => self.calls.fail("flush"),
        }
    }

    fn recv(&mut self, _connection: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        let mut memory = std::ptr::null();
        // SAFETY: the peer is open and used by one thread.
        let n = unsafe { (self.calls.recv)(self.peer, &mut memory) };
        if n < 0 {
            return self.calls.fail("receive");
        }
        // SAFETY: the library lends `n` received bytes until `peer_release`.
        take(unsafe { std::slice::from_raw_parts(memory.cast::<u8>(), n as usize) });
        // SAFETY: gives back what was lent.
        match unsafe { (self.calls.release)(self.peer) } {
            0 => Ok(n as usize),
            _ => self.calls.fail("give back a buffer"),
        }
    }
}

impl Drop for ShimEnd {
    fn drop(&mut self) {
        // SAFETY: the peer is open, and not used after this.
        unsafe { (self.calls.close)(self.peer) };
    }
}

/// An end that knows no peer yet.
pub struct Listening {
    end: ShimEnd,
}

impl Listening {
    /// Opens the library.
    pub fn new(open: &Open) -> Result<Listening> {
        Ok(Listening { end: ShimEnd::open(open)? })
    }
}

impl super::Listening for Listening {
    fn address(&self) -> Result<String> {
        self.end.address()
    }

    fn accept(self: Box<Self>, from: &str) -> Result<Box<dyn End>> {
        self.end.connect(from)?;
        Ok(Box::new(self.end))
    }
}

/// Makes the connecting end, and returns its address.
pub fn connect(open: &Open, to: &str) -> Result<(Box<dyn End>, String)> {
    let end = ShimEnd::open(open)?;
    end.connect(to)?;
    let address = end.address()?;
    Ok((Box::new(end), address))
}
