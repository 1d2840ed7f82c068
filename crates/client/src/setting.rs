//! Settings from the environment, and with them where the driver is.
use libc::c_char;
use std::ffi::{CStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::sync::OnceLock;

/// Where the driver listens unless `PD_SOCKET` says otherwise.
pub const SOCKET_PATH_DEFAULT: &str = "/run/pipedevice/driver.sock";
/// The first value: programs may clear their environment later.
static SOCKET_PATH: OnceLock<PathBuf> = OnceLock::new();

/// Texts `NAME=value` that stand for the environment; null: there are none.
static SETTINGS: AtomicPtr<*const c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Has [`setting`] look at these, as a program was given them, for it may have changed its environment meanwhile.
///
/// # Safety
/// An array of strings that ends with null, which stay as they are.
pub unsafe fn set_settings(settings: *const *const c_char) {
    SETTINGS.store(settings.cast_mut(), Ordering::Release);
}

fn given(name: &str, settings: *const *const c_char) -> Option<OsString> {
    // SAFETY: strings, and null behind them, by who has set them.
    let text = |at: usize| unsafe { (*settings.add(at)).as_ref().map(|text| CStr::from_ptr(text)) };
    let value =
        |text: &CStr| Some(text.to_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec());
    (0..).map_while(text).find_map(value).map(OsString::from_vec)
}

/// Returns the environment variable `name`. None in a set-id program, whose environment another user sets.
pub fn setting(name: &str) -> Option<OsString> {
    // SAFETY: reads what the kernel told this process at its start.
    let is_set_id = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let settings = SETTINGS.load(Ordering::Acquire);
    let value = if settings.is_null() { std::env::var_os(name) } else { given(name, settings) };
    value.filter(|_| !is_set_id)
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
