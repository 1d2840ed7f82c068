//! Reasons why a driver does not start, each with its remedy.
use crate::policy::PolicyError;
use pd_engine::EngineError;
use rustix::io::Errno;
use std::path::PathBuf;

/// Reason why a driver did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A socket cannot be made.
    #[error(
        "cannot make the socket {path}: {errno}; choose another path or start as a user who may write there"
    )]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the kernel.
        errno: Errno,
    },
    /// Another driver runs.
    #[error("a driver is running on {path} already: stop it, or give this one a socket of its own")]
    Running {
        /// Path of its socket.
        path: PathBuf,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A system call failed.
    #[error("the kernel refused: {0}")]
    Kernel(#[from] Errno),
    /// The policy is wrong.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A thread cannot be made.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// Rights are missing, a sentence for each.
    #[error("rights are missing\n{}", .0.join("\n"))]
    Rights(Vec<String>),
    /// The running driver keeps its place, for this reason.
    #[error("the running driver goes on: {0}")]
    TakeOver(String),
    /// The state of a driver that was killed is wrong, for this reason. The next start is without it.
    #[error(
        "cannot go on where the driver before has ended: {0}; start it again, which resets all connections"
    )]
    Recovery(String),
    /// The filter of system calls cannot be installed.
    #[error("cannot confine the driver to its system calls: {0}; use a kernel with CONFIG_SECCOMP_FILTER on x86-64, ARM64 or RISC-V")]
    Filter(Errno),
}
