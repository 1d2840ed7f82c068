//! Settings from the environment, and with them where the driver is.
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::OnceLock;

/// Where the driver listens unless `PD_SOCKET` says otherwise.
pub const SOCKET_PATH_DEFAULT: &str = "/run/pipedevice/driver.sock";
/// The first value: programs may clear their environment later.
static SOCKET_PATH: OnceLock<PathBuf> = OnceLock::new();

/// Returns the environment variable `name`. None in a set-id program, whose environment another user sets.
pub fn setting(name: &str) -> Option<OsString> {
    // SAFETY: reads what the kernel told this process at its start.
    let is_set_id = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    std::env::var_os(name).filter(|_| !is_set_id)
}

fn socket_path() -> PathBuf {
    setting("PD_SOCKET").map_or_else(|| SOCKET_PATH_DEFAULT.into(), PathBuf::from)
}

/// Where the driver is.
pub(crate) fn known_socket_path() -> &'static Path {
    SOCKET_PATH.get_or_init(socket_path)
}

/// Looks where the driver is, now and for good.
pub(crate) fn remember_socket_path() {
    SOCKET_PATH.get_or_init(socket_path);
}

/// Values of a setting.
const UNKNOWN: u8 = 0;
const USES: u8 = 1;
const USES_NOT: u8 = 2;

/// Returns whether native sockets use the kernel at all. `PD_KERNEL=off` confines them to the fabric.
pub(crate) fn uses_kernel() -> bool {
    // No lock: a forked child would wait for another thread of its parent's.
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    if KNOWN.load(Ordering::Relaxed) == UNKNOWN {
        let uses = setting("PD_KERNEL").is_none_or(|said| said != "off");
        KNOWN.store(if uses { USES } else { USES_NOT }, Ordering::Relaxed);
    }
    KNOWN.load(Ordering::Relaxed) == USES
}
