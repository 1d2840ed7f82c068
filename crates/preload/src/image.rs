//! The environment of another image. An image without the library cannot go on with a connection on the fabric, so one that gets such
//! a connection gets the library, too, even if the program gives it an environment without (as inetd and systemd-socket-activate do).
//! So does one that gets a listener: connections to that are made on the fabric, and wait half a second for who accepts without the library.
use crate::entry::State;
use crate::{address, call, carried, table};
use libc::{c_char, c_int};
use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStringExt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Variables that an image needs of this one's environment.
const NAMES: [&str; 4] = ["LD_PRELOAD", "PD_SOCKET", "PD_PRELOAD", "PD_PRELOAD_LOG"];
/// Environments that may be in use by threads that are making an image.
const IN_USE_MAX: usize = 64;

/// As they were when the program began.
static KEPT: OnceLock<Vec<CString>> = OnceLock::new();
pub(crate) static MADE: Mutex<VecDeque<Environment>> = Mutex::new(VecDeque::new());
/// Uses of an environment by the loader's call: for a child...
const OF_CHILD: c_int = 1;
/// ...or for the program from now on.
const FOR_GOOD: c_int = 2;

/// An array of pointers that ends with null.
pub(crate) struct Environment {
    _array: Vec<*const c_char>,
}

// SAFETY: the pointers are to memory of the program's and of `KEPT`, which this never reads.
unsafe impl Send for Environment {}

/// Keeps what an image needs.
pub(crate) fn keep_environment() {
    let of = |name: &str| {
        let value = pd_client::core::setting(name)?;
        CString::new([name.as_bytes(), b"=", &value.into_vec()].concat()).ok()
    };
    drop(KEPT.set(NAMES.into_iter().filter_map(of).collect()));
}

/// Tells whether an image would get a connection on the fabric, or a listener. Where the numbers of a child's are told in ways that the
/// library does not see, whether there is one.
fn gets_any(is_child: bool) -> bool {
    table::is_borrowed() && table::has_copied()
        || (0..table::end()).any(|fd| {
            let is_one = match table::look(fd) {
                table::SOCKET => {
                    table::entry(fd).is_some_and(|it| match it.socket().and_then(|it| it.state()) {
                        Some(State::Twin(twin)) => twin.names.is_none(),
                        Some(State::Listener(_)) => true,
                        None => false,
                    })
                }
                table::INHERITED => address::peer(fd).is_some() || address::listens(fd),
                _ => false,
            };
            is_one && (is_child || carried::is_kept(fd))
        })
}

/// Called by the loader before a call that makes an image with this environment: the one that the image is to have.
///
/// # Safety
/// The program's environment, or null.
pub(crate) unsafe extern "C" fn environment(
    given: *const *const c_char,
    use_of: c_int,
) -> *const *const c_char {
    let mut result = given;
    call::aside(|| {
        // SAFETY: the caller's promise.
        if let Some(made) = unsafe { with_library(given, use_of) } {
            result = made;
        }
    });
    result
}

unsafe fn with_library(given: *const *const c_char, use_of: c_int) -> Option<*const *const c_char> {
    let kept = KEPT.get()?;
    let name = |text: &CStr| text.to_bytes().split(|&byte| byte == b'=').next().map(<[u8]>::to_vec);
    kept.first().filter(|first| first.to_bytes().starts_with(b"LD_PRELOAD="))?;
    let mut all = Vec::new();
    let mut at = given;
    // SAFETY: the caller's array, which ends with null.
    while !at.is_null() && unsafe { !(*at).is_null() } {
        // SAFETY: likewise.
        let text = unsafe { *at };
        // SAFETY: a string of the caller's.
        if unsafe { CStr::from_ptr(text) }.to_bytes().starts_with(b"LD_PRELOAD=") {
            return None;
        }
        all.push(text);
        at = at.wrapping_add(1);
    }
    if !gets_any(use_of & OF_CHILD != 0) {
        return None;
    }
    // SAFETY: strings of the caller's.
    let has: Vec<_> = all.iter().filter_map(|&text| name(unsafe { CStr::from_ptr(text) })).collect();
    all.extend(
        kept.iter().filter(|text| name(text).is_some_and(|it| !has.contains(&it))).map(|text| text.as_ptr()),
    );
    all.push(std::ptr::null());
    let array = all.as_ptr();
    if use_of & FOR_GOOD != 0 {
        std::mem::forget(all);
        return Some(array);
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if made.len() >= IN_USE_MAX {
        made.pop_front();
    }
    made.push_back(Environment { _array: all });
    Some(array)
}
