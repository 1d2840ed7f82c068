//! The trusted driver of PipeDevice as a library: conductor, movers, tables, memory.
//!
//! The **conductor** attaches clients, owns sockets, addresses, connections and memory, and notices
//! deaths. **Movers** own the rings of their clients and the flows between sockets, and drive the
//! copy engines. The two share no state and talk by mailboxes ([`messages`]). Clock and engines are
//! passed in. [`Driver`] runs conductor and movers on threads: one for both where one mover is
//! enough.
//!
//! Everything a client can write is hostile. Requests are copied once, checked against private
//! tables, and then used. State is never read back from shared memory.
#![forbid(unsafe_op_in_unsafe_fn)]

mod addresses;
pub mod admin;
mod array;
mod bpf;
mod calls;
mod clock;
mod conductor;
pub mod containers;
mod cores;
mod crash;
mod door;
mod driver;
mod filter;
pub mod gate;
mod hash;
mod identity;
mod ids;
mod image;
mod kernel_socket;
mod limiter;
mod mailbox;
mod memory;
mod messages;
mod metrics;
mod mirror;
pub mod mounts;
mod mover;
mod nodes;
pub mod openers;
mod peer;
mod pipes;
pub mod policy;
pub mod probe;
mod process;
mod reader;
mod refusal;
pub mod rights;
mod service;
mod settings;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod simulation;
mod size;
mod sock_diag;
mod standing;
mod start_error;
mod takeover;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod testing;
mod unix_socket;
mod wanted;

pub use clock::{Clock, SystemClock};
pub use driver::Driver;
pub use filter::Confined;
pub use kernel_socket::SocketDiag;
pub use memory::HugepageUse;
pub use messages::Violation;
pub use mover::{BufferTable, Entry, ENTRIES_MAX};
pub use nodes::Nodes;
pub use policy::Policy;
pub use refusal::Refusal;
pub use rights::Namespaces;
pub use settings::Settings;
pub use size::Bytes;
pub use start_error::StartError;
pub use takeover::offer::FORMAT as TAKE_OVER_FORMAT;
pub use takeover::readable as state;
pub use unix_socket::UnixStreamSocket;
pub use wanted::UnixSocket;
