//! Connections that the kernel's TCP carries behind a native socket: where the fabric does not lead. The socket keeps its number, its calls
//! and their errors; [`Path::Kernel`](crate::Path) says which way it took.
//!
//! A bound socket holds a kernel socket of the same address, a listener listens there, too, and a connect that the fabric
//! knows no listener for goes on in the kernel. These sockets belong to the process; the driver knows nothing of them. A call looks once
//! for a carrier, and the fabric's calls go on as without one.
//!
//! Files: `carrier` owns the descriptor, `held` closes it in forked children, `connect` and `listen` make connections, `inbox` fills the ring that is lent from, `data` moves bytes, `watch` waits. None of them is
//! used by sockets that stand beside a kernel socket of an unmodified program.
mod carrier;
mod connect;
mod data;
mod held;
mod inbox;
mod listen;
mod watch;

pub(crate) use carrier::{Carrier, Inbox};
pub(crate) use held::{close_inherited, HeldFd, LOCK};
