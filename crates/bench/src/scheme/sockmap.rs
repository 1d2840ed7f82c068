//! eBPF sockmap: the method of Cilium and service meshes for TCP on one host. A verdict program at each
//! socket hands every message to the peer's socket, past the TCP stack and the bridge.
//!
//! The program is small enough to be written as instructions. A message of the listening side goes to the
//! socket in slot 1 of the map, any other to that in slot 0, both to its receive queue (`BPF_F_INGRESS`). The
//! two containers find the map by its number, as root may.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use anyhow::{Context, Result};

use super::{single, socket, End, Scheme};
use crate::protocol::Open;

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_MAP_GET_FD_BY_ID: libc::c_long = 14;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_MAP_TYPE_SOCKMAP: u32 = 15;
const BPF_PROG_TYPE_SK_MSG: u32 = 16;
const BPF_SK_MSG_VERDICT: u32 = 7;
const HELPER_MSG_REDIRECT_MAP: i32 = 60;
const F_INGRESS: i32 = 1;
/// Offset of `local_port` in the program's context, `struct sk_msg_md`.
const LOCAL_PORT_AT: i16 = 64;
const REMEDY: &str =
    "the kernel needs CONFIG_BPF_SYSCALL and CONFIG_NET_SOCK_MSG, and pd CAP_BPF and CAP_NET_ADMIN";
/// Slot of the listening side's socket, and of the connecting side's.
const SLOTS: [u32; 2] = [0, 1];

/// The argument of one `bpf` call: words at the offsets of `union bpf_attr`.
#[repr(C, align(8))]
struct Attr([u8; 120]);

impl Attr {
    fn new() -> Attr {
        Attr([0; 120])
    }

    fn u32(mut self, at: usize, value: u32) -> Attr {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Attr {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// Makes the call. Every address written into the argument must be that of live memory of the size
    /// that the command expects.
    unsafe fn call(mut self, command: libc::c_long) -> io::Result<i32> {
        // SAFETY: the argument lives through the call and says its own size; what it points to is the
        // caller's promise.
        let rc = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), self.0.len()) };
        match rc {
            0.. => Ok(rc as i32),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn owned(fd: io::Result<i32>, what: &str) -> Result<OwnedFd> {
    let fd = fd.with_context(|| format!("cannot {what}; {REMEDY}"))?;
    // SAFETY: the kernel just made this descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Encodes an instruction: code, destination and source register, offset, immediate.
fn instruction(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let mut bytes = [code, src << 4 | dst, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&offset.to_ne_bytes());
    bytes[4..].copy_from_slice(&immediate.to_ne_bytes());
    bytes
}

/// Returns the verdict program for a listener on `port`, over the map `map`.
fn program(map: RawFd, port: u16) -> Vec<u8> {
    [
        // r0 = context->local_port (r1 is the context, also the helper's first argument)
        instruction(0x61, 0, 1, LOCAL_PORT_AT, 0),
        // r3 = slot of the listening side's socket
        instruction(0xb7, 3, 0, 0, SLOTS[0] as i32),
        // if this is not the listening side, skip one
        instruction(0x55, 0, 0, 1, i32::from(port)),
        instruction(0xb7, 3, 0, 0, SLOTS[1] as i32),
        // r2 = map, an instruction of two halves
        instruction(0x18, 2, 1, 0, map),
        instruction(0, 0, 0, 0, 0),
        // r4 = BPF_F_INGRESS
        instruction(0xb7, 4, 0, 0, F_INGRESS),
        // return bpf_msg_redirect_map(r1, r2, r3, r4)
        instruction(0x85, 0, 0, 0, HELPER_MSG_REDIRECT_MAP),
        instruction(0x95, 0, 0, 0, 0),
    ]
    .concat()
}

/// The map and its program, in the listening process.
pub struct Redirect {
    map: OwnedFd,
    /// Attached; kept by the map as long as that lives.
    _program: OwnedFd,
}

impl Redirect {
    /// Makes the map, loads the program and attaches it.
    pub fn load(port: u16) -> Result<Redirect> {
        let map = Attr::new().u32(0, BPF_MAP_TYPE_SOCKMAP).u32(4, 4).u32(8, 4).u32(12, SLOTS.len() as u32);
        // SAFETY: no addresses.
        let map = owned(unsafe { map.call(BPF_MAP_CREATE) }, "make a sockmap")?;
        let instructions = program(map.as_raw_fd(), port);
        let license = c"GPL";
        let load = Attr::new()
            .u32(0, BPF_PROG_TYPE_SK_MSG)
            .u32(4, instructions.len() as u32 / 8)
            .u64(8, instructions.as_ptr() as u64)
            .u64(16, license.as_ptr() as u64);
        // SAFETY: both addresses are of memory that lives until after the call; the length is the program's.
        let program = owned(unsafe { load.call(BPF_PROG_LOAD) }, "load an sk_msg program")?;
        let attach = Attr::new()
            .u32(0, map.as_raw_fd() as u32)
            .u32(4, program.as_raw_fd() as u32)
            .u32(8, BPF_SK_MSG_VERDICT);
        // SAFETY: no addresses.
        unsafe { attach.call(BPF_PROG_ATTACH) }
            .with_context(|| format!("cannot attach an sk_msg program; {REMEDY}"))?;
        Ok(Redirect { map, _program: program })
    }

    /// Returns the map's number on this machine.
    fn id(&self) -> Result<u32> {
        let mut info = [0u32; 32];
        let ask = Attr::new()
            .u32(0, self.map.as_raw_fd() as u32)
            .u32(4, size_of_val(&info) as u32)
            .u64(8, info.as_mut_ptr() as u64);
        // SAFETY: the address is of `info`, whose size is given.
        unsafe { ask.call(BPF_OBJ_GET_INFO_BY_FD) }.context("cannot identify the sockmap")?;
        // `struct bpf_map_info`: type, id, ...
        Ok(info[1])
    }
}

/// Puts a connected socket into a slot.
fn insert(map: &OwnedFd, slot: u32, socket: &OwnedFd) -> Result<()> {
    let value = socket.as_raw_fd() as u32;
    let update = Attr::new()
        .u32(0, map.as_raw_fd() as u32)
        .u64(8, &raw const slot as u64)
        .u64(16, &raw const value as u64);
    // SAFETY: key and value are live words of the sizes that the map was made with.
    unsafe { update.call(BPF_MAP_UPDATE_ELEM) }.context("cannot put a socket into the sockmap")?;
    Ok(())
}

/// A TCP listener and the map.
pub struct Listening {
    tcp: socket::Listening,
    redirect: Redirect,
    open: Open,
}

impl Listening {
    /// Listens on the own address.
    pub fn new(open: &Open) -> Result<Listening> {
        single(open)?;
        let open = Open { scheme: Scheme::Tcp, ..*open };
        let tcp = socket::Listening::tcp(&open)?;
        let address = super::Listening::address(&tcp)?;
        let port =
            address.rsplit(':').next().and_then(|p| p.parse().ok()).context("an address has a port")?;
        Ok(Listening { tcp, redirect: Redirect::load(port)?, open })
    }
}

impl super::Listening for Listening {
    fn address(&self) -> Result<String> {
        Ok(format!("{}#{}", self.tcp.address()?, self.redirect.id()?))
    }

    fn accept(self: Box<Self>, _from: &str) -> Result<Box<dyn End>> {
        let sockets = self.tcp.accept_all()?;
        insert(&self.redirect.map, SLOTS[0], &sockets[0])?;
        let end = socket::SocketEnd::new(sockets, &self.open)?;
        Ok(Box::new(SockmapEnd { end, _redirect: Some(self.redirect) }))
    }
}

/// Makes the connecting end.
pub fn connect(open: &Open, to: &str) -> Result<Box<dyn End>> {
    single(open)?;
    let open = Open { scheme: Scheme::Tcp, ..*open };
    let (to, id) = to.split_once('#').context("a sockmap address has a map")?;
    let sockets = socket::connect_all(&open, to)?;
    let by_id = Attr::new().u32(0, id.parse()?);
    // SAFETY: no addresses.
    let map = owned(unsafe { by_id.call(BPF_MAP_GET_FD_BY_ID) }, "open the sockmap of the other side")?;
    insert(&map, SLOTS[1], &sockets[0])?;
    let end = socket::SocketEnd::new(sockets, &open)?;
    Ok(Box::new(SockmapEnd { end, _redirect: None }))
}

struct SockmapEnd {
    end: socket::SocketEnd,
    _redirect: Option<Redirect>,
}

impl End for SockmapEnd {
    fn described(&self) -> String {
        self.end.described()
    }

    fn send(&mut self, connection: usize, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        self.end.send(connection, len, fill)
    }

    fn recv(&mut self, connection: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        self.end.recv(connection, take)
    }

    fn prefer_latency(&mut self) -> Result<()> {
        self.end.prefer_latency()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_well_formed() {
        let program = program(7, 4321);
        assert_eq!(program.len(), 9 * 8);
        assert_eq!(program[64..], instruction(0x95, 0, 0, 0, 0));
        // The map is loaded by descriptor: source register 1 of a wide load.
        assert_eq!(program[32..40], [0x18, 0x12, 0, 0, 7, 0, 0, 0]);
    }

    /// The kernel accepts the program if it permits BPF; otherwise the test prints that it is skipped.
    #[test]
    fn the_kernel_takes_the_program() {
        match Redirect::load(4321) {
            Ok(redirect) => assert!(redirect.id().unwrap() > 0),
            Err(e) => {
                let denied = e.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
                assert!(matches!(denied, Some(libc::EPERM | libc::EINVAL | libc::ENOSYS)), "{e:#}");
                eprintln!("SKIPPED: {e:#}");
            }
        }
    }
}
