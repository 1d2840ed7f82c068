use pd_abi::Event;
use rustix::io::Errno;
use std::borrow::Cow;
use std::fmt;

/// Failure of a call: the errno that the C API sets, and a sentence that names what failed, on what,
/// and what to do about it.
#[derive(Clone, Debug)]
pub struct Error {
    errno: Errno,
    message: Cow<'static, str>,
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(errno: Errno, message: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, message: message.into() }
    }

    /// The error of an errno that the driver sent.
    pub(crate) fn from_driver(errno: u32, message: impl FnOnce() -> String) -> Self {
        let known = i32::try_from(errno).ok().filter(|raw| (1..4096).contains(raw));
        let errno = known.map_or(Errno::IO, Errno::from_raw_os_error);
        let advice = advice(errno).map_or_else(|| std::io::Error::from(errno).to_string(), str::to_owned);
        Self::new(errno, format!("{}: {advice}", message()))
    }

    /// The error of a call on an argument that makes no sense.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Errno::INVAL, message)
    }

    /// An error with the errno given.
    pub fn with_errno(errno: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Errno::from_raw_os_error(errno), message)
    }

    /// The errno.
    pub fn errno(&self) -> i32 {
        self.errno.raw_os_error()
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns whether the call would have had to wait.
    pub fn would_block(&self) -> bool {
        self.errno == Errno::AGAIN
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = std::io::Error::from(error.errno).kind();
        Self::new(kind, error)
    }
}

/// Returns what an errno of the driver means, and the remedy.
fn advice(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::CONNREFUSED => {
            "nothing listens there, or the backlog is full: start the listener, have it accept faster, or \
             give it a larger backlog"
        }
        Errno::HOSTUNREACH => {
            "no container that the driver serves holds the address: check it, or start a program there that \
             attaches to this driver"
        }
        Errno::ADDRNOTAVAIL => {
            "this network namespace does not hold the address, or another claimed it first: bind one of \
             those that `ip address` shows"
        }
        Errno::ADDRINUSE => "the port is taken: choose another, or close the socket that has it",
        Errno::NOBUFS => {
            "the driver has no memory or no connection left: close some, or raise memory.budget_bytes or \
             driver.connections_max"
        }
        Errno::MFILE => {
            "the process has as many sockets as the driver allows, or its tenant as many connections as the \
             policy does: close some, or have connections_max raised"
        }
        Errno::ACCESS => {
            "the driver's policy denies it: who runs the driver sees the rule with `pd policy show` and can \
             allow it"
        }
        _ => return None,
    })
}

pub(crate) fn bad_socket() -> Error {
    Error::new(Errno::BADF, "the socket is closed, or belongs to the process that forked this one")
}

/// The connection goes on in the kernel.
pub const ELSEWHERE: i32 = libc::EREMCHG;

#[cold]
pub(crate) fn elsewhere() -> Error {
    Error::new(Errno::REMCHG, "the connection goes on in the kernel")
}

pub(crate) fn not_connected() -> Error {
    Error::new(Errno::NOTCONN, "the socket is not connected")
}

pub(crate) fn would_block() -> Error {
    Error::new(
        Errno::AGAIN,
        "the call would have to wait, and the socket is non-blocking or its time is over",
    )
}

#[cold]
pub(crate) fn moved() -> Error {
    Error::new(Errno::STALE, "another process has taken the socket over")
}

#[cold]
pub(crate) fn lent() -> Error {
    Error::new(Errno::BUSY, "received bytes are lent out; give them back with pd_recv_done first")
}

pub(crate) fn dead() -> Error {
    Error::new(Errno::CONNRESET, "the driver has gone, and the connection with it; connect again")
}

/// The answer, unless it is an error.
pub(crate) fn check(answer: Event, what: impl FnOnce() -> String) -> Result<Event> {
    if answer.errno != 0 {
        return Err(Error::from_driver(answer.errno, what));
    }
    Ok(answer)
}
