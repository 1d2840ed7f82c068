//! Socket options.
use crate::guard::guard;
use libc::{c_int, c_void, linger, socklen_t, timeval};
use pd_client::core::{with_socket, Socket};
use pd_client::{Error, Path, Result};
use std::mem::size_of;
use std::net::IpAddr;
use std::time::Duration;

/// Level of PipeDevice's own options (`SOL_PD`).
const SOL_PD: c_int = 0x5044;
/// int: calls return `EAGAIN` instead of waiting.
const PD_NONBLOCK: c_int = 1;
/// string, read only: the path that the connection's bytes take.
const PD_PATH: c_int = 2;
/// int: receive bytes that their sender can still change.
const PD_RECV_SHARED: c_int = 3;

/// Constants of `include/pd.h` that are here, by name.
#[cfg(test)]
pub const CONSTANTS: [(&str, i64); 4] = [
    ("SOL_PD", SOL_PD as i64),
    ("PD_NONBLOCK", PD_NONBLOCK as i64),
    ("PD_PATH", PD_PATH as i64),
    ("PD_RECV_SHARED", PD_RECV_SHARED as i64),
];

/// Options that programs set and that change nothing on the fabric, and what they read: the driver tells at once of a peer that has died,
/// bytes are never held back, and acknowledgements are nobody's wait. Numbers are Linux's defaults. A connection that the kernel carries
/// has them.
const INHERENT: [(c_int, c_int, c_int); 9] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    (libc::SOL_SOCKET, libc::SO_PRIORITY, 0),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1),
    (libc::IPPROTO_TCP, libc::TCP_CORK, 0),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 7200),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 75),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 9),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0),
];

/// Value that one of [`INHERENT`] reads.
fn inherent(level: c_int, option: c_int) -> Option<c_int> {
    INHERENT.iter().find(|known| (known.0, known.1) == (level, option)).map(|known| known.2)
}

/// A value as bytes.
enum Value {
    Int(c_int),
    Time(Option<Duration>),
    /// True: closing resets.
    Linger(bool),
    Text(&'static [u8]),
    /// As bytes, and how many of them count.
    Address(SockAddr),
}

/// An address of the family that was asked for.
enum SockAddr {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

/// `SO_ORIGINAL_DST`, and `IP6T_SO_ORIGINAL_DST`: what an accepted connection asked for.
const ORIGINAL_DST: c_int = 80;

/// The answer to one of these.
fn original(socket: &Socket, v6: bool) -> Result<SockAddr> {
    let asked = socket.original_addr()?;
    let (ip, port) = (asked.ip().to_canonical(), asked.port().to_be());
    match (v6, ip) {
        (false, IpAddr::V4(ip)) => {
            // SAFETY: zeroes are a value of the type.
            let mut value: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            (value.sin_family, value.sin_port) = (libc::AF_INET as libc::sa_family_t, port);
            value.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
            Ok(SockAddr::V4(value))
        }
        (false, IpAddr::V6(_)) => Err(Error::with_errno(libc::ENOENT, "the peer asked for an IPv6 address")),
        (true, ip) => {
            let octets = match ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            // SAFETY: zeroes are a value of the type.
            let mut value: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            (value.sin6_family, value.sin6_port) = (libc::AF_INET6 as libc::sa_family_t, port);
            value.sin6_addr.s6_addr = octets;
            Ok(SockAddr::V6(value))
        }
    }
}

fn unknown(level: c_int, option: c_int) -> Error {
    Error::with_errno(libc::ENOPROTOOPT, format!("option {option} of level {level} is not supported"))
}

/// Reads a value of type `T`.
///
/// # Safety
/// `value` is null or points to `len` readable bytes. Any bytes are a valid `T`.
unsafe fn read<T: Copy>(value: *const c_void, len: socklen_t) -> Result<T> {
    if value.is_null() {
        return Err(Error::with_errno(libc::EFAULT, "the option's value is NULL"));
    }
    if (len as usize) < size_of::<T>() {
        return Err(Error::invalid("the option's value is too short"));
    }
    // SAFETY: long enough, the caller says so; read unaligned.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Reads a time-out; 0 means none.
///
/// # Safety
/// As for [`read`].
unsafe fn read_time(value: *const c_void, len: socklen_t) -> Result<Option<Duration>> {
    // SAFETY: passed on; any bytes are a valid `timeval`.
    let time = unsafe { read::<timeval>(value, len) }?;
    let (Ok(seconds), Ok(micros @ 0..=999_999)) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_usec))
    else {
        return Err(Error::with_errno(libc::EDOM, "the time-out is not a time"));
    };
    let time = Duration::new(seconds, micros * 1000);
    Ok((!time.is_zero()).then_some(time))
}

fn bytes(value: c_int) -> Result<u64> {
    u64::try_from(value).map_err(|_| Error::invalid("a negative size"))
}

/// Sets an option.
///
/// # Safety
/// `value` is null or points to `len` readable bytes.
unsafe fn set(
    socket: &Socket,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<()> {
    // SAFETY: passed on; any bytes are a valid `int`.
    let int = || unsafe { read::<c_int>(value, len) };
    match (level, option) {
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => socket.set_send_ring_bytes(bytes(int()?)?).map(drop),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => socket.set_receive_ring_bytes(bytes(int()?)?).map(drop),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => socket.set_recv_lowat(bytes(int()?)?),
        // SAFETY: passed on.
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => socket.set_recv_timeout(unsafe { read_time(value, len) }?),
        // SAFETY: passed on.
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => socket.set_send_timeout(unsafe { read_time(value, len) }?),
        // A port is free as soon as its listener is closed, and sends are delivered after a close.
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => int().map(drop),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            // SAFETY: passed on; any bytes are a valid `linger`.
            let linger = unsafe { read::<linger>(value, len) }?;
            socket.set_close_resets(linger.l_onoff != 0 && linger.l_linger == 0);
            Ok(())
        }
        _ if inherent(level, option).is_some() => socket.set_kernel_option(level, option, int()?),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => socket.set_v6_only(int()? != 0),
        (SOL_PD, PD_NONBLOCK) => {
            socket.set_nonblocking(int()? != 0);
            Ok(())
        }
        (SOL_PD, PD_RECV_SHARED) => match int()? {
            0 if socket.receives_shared() => Err(Error::invalid("PD_RECV_SHARED cannot be taken back")),
            0 => Ok(()),
            _ => socket.set_receives_shared(),
        },
        _ => Err(unknown(level, option)),
    }
}

fn get(socket: &Socket, level: c_int, option: c_int) -> Result<Value> {
    let size = |bytes: u64| Value::Int(c_int::try_from(bytes).unwrap_or(c_int::MAX));
    Ok(match (level, option) {
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => size(socket.ring_bytes().0),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => size(socket.ring_bytes().1),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => size(socket.recv_lowat()),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => Value::Time(socket.recv_timeout()),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => Value::Time(socket.send_timeout()),
        (libc::SOL_SOCKET, libc::SO_ERROR) => Value::Int(socket.take_error()?),
        (libc::SOL_SOCKET, libc::SO_TYPE) => Value::Int(libc::SOCK_STREAM),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => Value::Int(socket.is_listening().into()),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => Value::Int(1),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Value::Int(libc::IPPROTO_TCP),
        (libc::SOL_SOCKET, libc::SO_LINGER) => Value::Linger(socket.close_resets()),
        (libc::SOL_IP, ORIGINAL_DST) => Value::Address(original(socket, false)?),
        (libc::SOL_IPV6, ORIGINAL_DST) => Value::Address(original(socket, true)?),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => Value::Int(socket.v6_only().into()),
        (SOL_PD, PD_NONBLOCK) => Value::Int(socket.nonblocking().into()),
        (SOL_PD, PD_RECV_SHARED) => Value::Int(socket.receives_shared().into()),
        (SOL_PD, PD_PATH) => Value::Text(match socket.path() {
            Path::Offloaded => b"offloaded\0",
            Path::Direct => b"direct\0",
            Path::Kernel => b"kernel\0",
        }),
        _ => {
            let usual = inherent(level, option).ok_or_else(|| unknown(level, option))?;
            Value::Int(socket.kernel_option(level, option).unwrap_or(usual))
        }
    })
}

/// Writes a value, cut at `*len`, and sets `*len` to what was written.
///
/// # Safety
/// `len` points to a length, and `place` to so many writable bytes; or one of them is null.
unsafe fn write(value: &Value, place: *mut c_void, len: *mut socklen_t) -> Result<()> {
    if place.is_null() || len.is_null() {
        return Err(Error::with_errno(libc::EFAULT, "the place for the option's value is NULL"));
    }
    let time;
    let linger = linger { l_onoff: matches!(value, Value::Linger(true)).into(), l_linger: 0 };
    let (from, size): (*const u8, usize) = match value {
        Value::Int(value) => ((value as *const c_int).cast(), size_of::<c_int>()),
        Value::Time(value) => {
            let value = value.unwrap_or_default();
            time = timeval {
                tv_sec: value.as_secs() as libc::time_t,
                tv_usec: value.subsec_micros() as libc::suseconds_t,
            };
            ((&raw const time).cast(), size_of::<timeval>())
        }
        Value::Linger(_) => ((&raw const linger).cast(), size_of_val(&linger)),
        Value::Text(text) => (text.as_ptr(), text.len()),
        Value::Address(SockAddr::V4(address)) => (std::ptr::from_ref(address).cast(), size_of_val(address)),
        Value::Address(SockAddr::V6(address)) => (std::ptr::from_ref(address).cast(), size_of_val(address)),
    };
    // SAFETY: the caller's places, neither null; `from` points to `size` bytes of a local or constant.
    unsafe {
        let size = size.min(len.read_unaligned() as usize);
        std::ptr::copy_nonoverlapping(from, place.cast::<u8>(), size);
        len.write_unaligned(size as socklen_t);
    }
    Ok(())
}

/// See `pd_setsockopt(3)`.
///
/// # Safety
/// `value` points to `len` readable bytes.
#[no_mangle]
pub unsafe extern "C" fn pd_setsockopt(
    sid: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    guard(-1, || {
        with_socket(sid, |socket| {
            // SAFETY: passed on from the caller.
            unsafe { set(socket, level, option, value, len) }?;
            Ok(0)
        })
    })
}

/// See `pd_setsockopt(3)`.
///
/// # Safety
/// `value` points to `*len` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn pd_getsockopt(
    sid: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    guard(-1, || {
        with_socket(sid, |socket| {
            let got = get(socket, level, option)?;
            // SAFETY: passed on from the caller.
            unsafe { write(&got, value, len) }?;
            Ok(0)
        })
    })
}
