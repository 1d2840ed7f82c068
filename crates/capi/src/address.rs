//! Socket addresses as C programs write them.
use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use pd_client::{Error, Result};
use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Reads an address.
///
/// # Safety
/// `addr` is null or points to `len` readable bytes.
pub(crate) unsafe fn read(addr: *const sockaddr, len: socklen_t) -> Result<SocketAddr> {
    let len = len as usize;
    if addr.is_null() {
        return Err(Error::with_errno(libc::EFAULT, "the address is NULL"));
    }
    if len < size_of::<sa_family_t>() {
        return Err(Error::invalid("the address length is too small"));
    }
    // SAFETY: `len` bytes are readable, the caller says; read unaligned.
    let family = i32::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() });
    match family {
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: as above, and the length was checked.
            let addr = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
            Ok(SocketAddr::new(ip.into(), u16::from_be(addr.sin_port)))
        }
        libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
            // SAFETY: as above, and the length was checked.
            let addr = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
            Ok(SocketAddr::new(ip.into(), u16::from_be(addr.sin6_port)))
        }
        libc::AF_INET | libc::AF_INET6 => Err(Error::invalid("the address length is too small")),
        _ => Err(Error::with_errno(
            libc::EAFNOSUPPORT,
            format!("address family {family} is not supported; use AF_INET or AF_INET6"),
        )),
    }
}

/// Writes an address, cut at `*len`, and sets `*len` to its full size, as the BSD calls do.
///
/// # Safety
/// `len` points to a `socklen_t`, and `addr` to so many writable bytes.
pub(crate) unsafe fn write(value: SocketAddr, addr: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    if addr.is_null() || len.is_null() {
        return Err(Error::with_errno(libc::EFAULT, "the place for the address is NULL"));
    }
    // SAFETY: zeros are a valid address structure of either family.
    let (mut v4, mut v6) = unsafe { (std::mem::zeroed::<sockaddr_in>(), std::mem::zeroed::<sockaddr_in6>()) };
    let (from, full): (*const u8, usize) = match value {
        SocketAddr::V4(value) => {
            v4.sin_family = libc::AF_INET as sa_family_t;
            v4.sin_port = value.port().to_be();
            v4.sin_addr.s_addr = u32::from(*value.ip()).to_be();
            ((&raw const v4).cast(), size_of::<sockaddr_in>())
        }
        SocketAddr::V6(value) => {
            v6.sin6_family = libc::AF_INET6 as sa_family_t;
            v6.sin6_port = value.port().to_be();
            v6.sin6_addr.s6_addr = value.ip().octets();
            ((&raw const v6).cast(), size_of::<sockaddr_in6>())
        }
    };
    // SAFETY: the caller says that both are writable as far as used here; `from` is a local.
    unsafe {
        let room = len.read_unaligned() as usize;
        std::ptr::copy_nonoverlapping(from, addr.cast::<u8>(), full.min(room));
        len.write_unaligned(full as socklen_t);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_truncation() {
        for text in ["10.1.2.3:80", "[fd00::1]:443"] {
            let value: SocketAddr = text.parse().unwrap();
            // SAFETY: zeros are valid; the lengths passed are those of the objects.
            unsafe {
                let mut storage: libc::sockaddr_storage = std::mem::zeroed();
                let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
                write(value, (&raw mut storage).cast(), &raw mut len).unwrap();
                assert_eq!(read((&raw const storage).cast(), len).unwrap(), value);
                assert_eq!(read((&raw const storage).cast(), len - 1).unwrap_err().errno(), libc::EINVAL);
                let mut short = 4;
                write(value, (&raw mut storage).cast(), &raw mut short).unwrap();
                assert_eq!(short, len);
                storage.ss_family = libc::AF_UNIX as sa_family_t;
                let error = read((&raw const storage).cast(), len).unwrap_err();
                assert_eq!(error.errno(), libc::EAFNOSUPPORT);
            }
        }
    }
}
