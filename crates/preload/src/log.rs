//! Log of the library's decisions, with reasons. `PD_PRELOAD_LOG` names a file, or `-` for standard error. Without it
//! nothing is ever written.
use crate::real;
use std::ffi::CString;
use std::sync::OnceLock;

static PLACE: OnceLock<Option<CString>> = OnceLock::new();

pub(crate) fn set_place(place: Option<CString>) {
    let _ = PLACE.set(place);
}

/// Returns whether anything is written.
pub(crate) fn wanted() -> bool {
    PLACE.get().is_some_and(Option::is_some) && !crate::closed::is_closed()
}

pub(crate) fn line(text: std::fmt::Arguments<'_>) {
    let Some(Some(place)) = PLACE.get() else { return };
    let line = format!("pd_preload[{}]: {text}\n", std::process::id());
    // SAFETY: plain calls with valid pointers; the descriptor is closed again.
    unsafe {
        if place.as_bytes() == b"-" {
            real::write(2, line.as_ptr().cast(), line.len());
            return;
        }
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
        let fd = libc::open(place.as_ptr(), flags, 0o644);
        if fd >= 0 {
            real::write(fd, line.as_ptr().cast(), line.len());
            real::close(fd);
        }
    }
}

/// Writes a line if anybody wants it.
macro_rules! note {
    ($($text:tt)*) => {
        if $crate::log::wanted() {
            $crate::log::line(format_args!($($text)*));
        }
    };
}
pub(crate) use note;
