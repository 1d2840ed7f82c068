//! Makes a TAP device for a port. The device is gone when the driver closes its descriptor, in whichever way it ends.
use rustix::fs::{open as open_file, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{c_short, c_ulong};
use std::os::fd::{AsRawFd, OwnedFd};

const DEVICE: &str = "/dev/net/tun";
/// `TUNSETIFF`, and flags of linux/if_tun.h: Ethernet frames without a header before them.
const SET_INTERFACE: c_ulong = 0x4004_54ca;
const TAP: c_short = 0x0002;
const NO_INFORMATION: c_short = 0x1000;
/// Longest name of an interface.
const NAME_BYTES_MAX: usize = 15;

fn device() -> Result<OwnedFd, String> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open_file(DEVICE, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            format!("{DEVICE} is missing: use a kernel with CONFIG_TUN, and make the device known to the container")
        }
        errno => format!("{DEVICE}: {errno}"),
    })
}

/// Opens the driver's descriptor: the device, an interface of this name in the thread's network namespace.
pub fn open(interface: &str) -> Result<Vec<OwnedFd>, String> {
    if !(1..=NAME_BYTES_MAX).contains(&interface.len()) || interface.contains(['/', '%', '\0', ' ']) {
        return Err(format!("'{interface}' is no name of an interface; use 1 to {NAME_BYTES_MAX} letters"));
    }
    let device = device()?;
    // SAFETY: numbers and bytes, of which all may be 0.
    let mut wanted: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in wanted.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte as _;
    }
    wanted.ifr_ifru.ifru_flags = TAP | NO_INFORMATION;
    // SAFETY: the kernel reads and writes `wanted`, which lives through the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), SET_INTERFACE as _, &raw mut wanted) };
    if result == 0 {
        return Ok(vec![device]);
    }
    Err(match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
        Errno::BUSY => format!("interface {interface} is there and in use"),
        Errno::INVAL => format!("interface {interface} is there, and no TAP device"),
        Errno::PERM => "a TAP device takes CAP_NET_ADMIN: use root".to_owned(),
        errno => format!("TAP device {interface}: {errno}"),
    })
}

/// Tells whether a device could be made here.
pub fn check() -> Result<(), String> {
    device().map(drop)
}
