//! What keeps a driver from starting, each with what to do about it.
use crate::policy::PolicyError;
use pd_engine::EngineError;
use rustix::io::Errno;
use std::path::PathBuf;

/// Why a driver did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A socket.
    #[error(
        "cannot make the socket {path}: {errno}; choose another path or start as a user who may write there"
    )]
    Socket {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// Another driver.
    #[error("a driver is running on {path} already: stop it, or give this one a socket of its own")]
    Running {
        /// Where.
        path: PathBuf,
    },
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The kernel.
    #[error("the kernel refused: {0}")]
    Kernel(#[from] Errno),
    /// The policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// Rights, a sentence for each.
    #[error("rights are missing\n{}", .0.join("\n"))]
    Rights(Vec<String>),
    /// The running driver keeps its place: why.
    #[error("the running driver goes on: {0}")]
    TakeOver(String),
    /// The filter of system calls.
    #[error("cannot confine the driver to its system calls: {0}; use a kernel with CONFIG_SECCOMP_FILTER on x86-64, ARM64 or RISC-V")]
    Filter(Errno),
}
